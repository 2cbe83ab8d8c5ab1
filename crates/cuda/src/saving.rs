//! Copies from the device into memory of the host that the caller lends until they have ended.

use std::ptr::NonNull;

use cudarc::driver::sys;

use crate::device::check;
use crate::{CudaError, Event, Span, Stream};

/// A copy under way into memory of `T`, which no other code can reach until it has ended. Dropping it waits.
pub struct Saving<T> {
    event: Event,
    /// Boxed, so that bytes within the value stay where they are; `None` once it was given back.
    to: Option<NonNull<T>>,
}

// SAFETY: it owns the value.
unsafe impl<T: Send> Send for Saving<T> {}

impl Stream {
    /// Copies the first bytes of `from` to all the `bytes` that `to` lends. Memory that is not pinned is copied as
    /// well, only slower.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// When `from` has fewer bytes.
    pub fn save<T: Send + 'static>(
        &self,
        from: Span<u8>,
        to: T,
        bytes: fn(&mut T) -> &mut [u8],
    ) -> Result<Saving<T>, CudaError> {
        self.device().inner.bind()?;
        let event = Event::new(self.device())?;
        let mut to = NonNull::from(Box::leak(Box::new(to)));
        let saving = Saving { event, to: Some(to) };
        // SAFETY: the box was leaked above and nothing else refers to it.
        let target = bytes(unsafe { to.as_mut() });
        assert!(target.len() <= from.len(), "a copy is as long as its target");
        let (address, length) = (target.as_mut_ptr(), target.len());
        // SAFETY: the bytes are borrowed of a value that is neither touched nor freed before `saving` has seen the copy
        // end; the span was checked when it was made.
        let queued = unsafe {
            sys::cuMemcpyDtoHAsync_v2(address.cast(), from.address(), length, self.handle())
        };
        check("cuMemcpyDtoHAsync", queued)?;
        if let Err(error) = saving.event.record(self) {
            // Without the event, only the end of the whole stream tells that the copy has ended.
            match self.wait() {
                Ok(()) => drop(saving),
                Err(_) => std::mem::forget(saving),
            }
            return Err(error);
        }
        Ok(saving)
    }
}

impl<T> Saving<T> {
    /// True when the copy has ended.
    ///
    /// # Errors
    /// The device failed.
    pub fn has_ended(&self) -> Result<bool, CudaError> {
        self.event.has_happened()
    }

    /// The memory with the bytes in it, once the copy has ended.
    ///
    /// # Errors
    /// The device failed. Then the memory is never used again: whether the device still writes to it is not known.
    pub fn finish(mut self) -> Result<T, CudaError> {
        let to = self.to.take();
        self.event.wait()?;
        let to = to.expect("it is given back once, here");
        // SAFETY: leaked by `save`, and the copy into it has ended.
        Ok(*unsafe { Box::from_raw(to.as_ptr()) })
    }
}

impl<T> Drop for Saving<T> {
    fn drop(&mut self) {
        // An event that was not recorded counts as passed: then no copy was begun. After a failure of the device the
        // value is leaked.
        if let Some(to) = self.to.take()
            && self.event.wait().is_ok()
        {
            // SAFETY: leaked by `save`, and the copy into it has ended.
            drop(unsafe { Box::from_raw(to.as_ptr()) });
        }
    }
}

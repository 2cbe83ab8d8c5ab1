//! Memory that kernels can address: of the device, and of the host, registered and mapped into the device.
//!
//! A [`Span`] is an address: kernels, graphs, matrices and tables keep it without a lifetime. So memory is given back
//! only when the last clone of its [`Device`] goes: streams, events and graphs are clones, and while one of them can
//! still run something, everything that it may name is there (docs/decisions.md).

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys;
use kernels::memory::StableMemory;

use crate::device::{Retired, check};
use crate::pages::{Pages, RetiredRange};
use crate::{CudaError, Device};

/// Checks that `length` values of `size` bytes from byte `offset` on lie within `bytes`.
///
/// # Panics
/// When they do not, however large the numbers are.
pub(crate) fn inside(what: &str, offset: usize, length: usize, size: usize, bytes: usize) {
    let end = length.checked_mul(size).and_then(|length| offset.checked_add(length));
    assert!(
        end.is_some_and(|end| end <= bytes),
        "{what}: {length} of {size} bytes each from byte {offset} on do not lie within {bytes} bytes"
    );
}

/// Values of type `T` at an address that kernels can use.
pub struct Span<T> {
    pub(crate) address: u64,
    pub(crate) length: usize,
    kind: PhantomData<fn() -> T>,
}

/// Bytes of registered host memory: a [`Span`] that can only be copied from.
#[derive(Clone, Copy)]
pub struct Source(pub(crate) Span<u8>);

impl Source {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<T> {}

impl Span<f32> {
    /// The same memory as bytes.
    pub fn bytes(&self) -> Span<u8> {
        Span::new(self.address, self.length * size_of::<f32>())
    }
}

impl<T> Span<T> {
    /// `length` values that lie in one allocation: their caller has checked that.
    pub(crate) fn new(address: u64, length: usize) -> Self {
        assert!(address.is_multiple_of(align_of::<T>() as u64), "a span is aligned to its type");
        Self { address, length, kind: PhantomData }
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The values `start..start + length`.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn part(&self, start: usize, length: usize) -> Self {
        inside("part of a span", start, length, 1, self.length);
        // No more than the bytes of the span, which lie in one allocation.
        Self::new(self.address + (start * size_of::<T>()) as u64, length)
    }
}

/// Bytes of device memory, zero at first. Where it comes in pages ([`DeviceBuffer::reserve`]), only what has some may
/// be used.
pub struct DeviceBuffer {
    pub(crate) device: Device,
    pub(crate) address: u64,
    bytes: usize,
    /// Where the memory comes in pages.
    pub(crate) pages: Option<Pages>,
}

impl DeviceBuffer {
    /// Allocates; zero bytes are rounded up to a few.
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let bytes = bytes.max(16);
        let _quiet = device.inner.quiet();
        let mut address = 0;
        // SAFETY: stores an address, freed with the device.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.inner.memory()?;
            return Err(CudaError::Memory { kind: "device", bytes, free, total });
        }
        check("cuMemAlloc", result)?;
        let buffer = Self { device: device.clone(), address, bytes, pages: None };
        // SAFETY: the range was allocated above.
        unsafe { clear(address, bytes) }?;
        Ok(buffer)
    }

    /// A reserved range, which is given back with the buffer.
    pub(crate) fn with_pages(device: &Device, address: u64, bytes: usize, pages: Pages) -> Self {
        Self { device: device.clone(), address, bytes, pages: Some(pages) }
    }

    /// `length` values from byte `offset`.
    ///
    /// # Panics
    /// When they are not all inside, or not aligned.
    pub fn span<T>(&self, offset: usize, length: usize) -> Span<T> {
        inside("span of a buffer", offset, length, size_of::<T>(), self.bytes);
        Span::new(self.address + offset as u64, length)
    }

    /// Copies bytes to `offset` and waits.
    ///
    /// # Errors
    /// The device failed.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        inside("bytes written", offset, bytes.len(), 1, self.bytes);
        let to = self.address + offset as u64;
        // SAFETY: the buffer has room for them.
        self.device.inner.staged(|staging, device| unsafe { staging.write(device, bytes, to) })
    }

    /// Copies bytes from `offset` to the host, once all streams that wrote them were waited for.
    ///
    /// # Errors
    /// The device failed.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        inside("bytes of a buffer", offset, bytes.len(), 1, self.bytes);
        let from = self.address + offset as u64;
        // SAFETY: the buffer has them.
        self.device.inner.staged(|staging, device| unsafe { staging.read(device, from, bytes) })
    }

    /// Copies f32 values to value `offset` and waits.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_values(&self, offset: usize, values: &[f32]) -> Result<(), CudaError> {
        let bytes = size_of_val(values);
        inside("values", offset, values.len(), 1, self.bytes / 4);
        // SAFETY: all bytes of the slice.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), bytes) };
        self.write(offset * 4, bytes)
    }

    /// Copies f32 values from value `offset` to the host, once all streams that wrote them were waited for.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&self, offset: usize, values: &mut [f32]) -> Result<(), CudaError> {
        let bytes = size_of_val(values);
        inside("values", offset, values.len(), 1, self.bytes / 4);
        // SAFETY: all bytes of the slice; any bits are an f32.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) };
        self.read_bytes(offset * 4, bytes)
    }
}

/// Sets device memory to zero, and waits: the driver only queues that, behind nothing and before nothing of any stream
/// of ours, and it would come after bytes that are copied there next.
///
/// # Safety
/// The device has as many bytes at `address`. The context is current.
pub(crate) unsafe fn clear(address: u64, bytes: usize) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(address, 0, bytes) })?;
    // SAFETY: null is the default stream, in which that is.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.device.inner.retire(match self.pages.take() {
            Some(pages) => RetiredRange::of(self.address, pages),
            None => Retired::Device(self.address),
        });
    }
}

/// Host memory of somebody else, pinned and mapped into the device. The device only reads it: there is no [`Span`] of
/// it, which could be written to, and kernels read the records that its addresses name. So its maker cannot
/// hand out write access to memory that is not theirs.
pub struct Registration {
    device: Device,
    host: *mut c_void,
    address: u64,
    bytes: usize,
    owner: Arc<dyn StableMemory>,
}

// SAFETY: the pointer is only a name for the range when it is given back.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Pins the memory of `owner`, which is kept until the device goes.
    ///
    /// # Errors
    /// The driver refused, usually for want of memory that may be locked.
    pub fn new(device: &Device, owner: Arc<dyn StableMemory>) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let _quiet = device.inner.quiet();
        let (host, bytes) = owner.range();
        let host: *mut c_void = host.cast_mut().cast();
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the range is mapped for as long as its owner lives (`StableMemory`), which outlives the registration.
        let result = unsafe { sys::cuMemHostRegister_v2(host, bytes, flags) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.inner.memory()?;
            return Err(CudaError::Memory { kind: "pinned host", bytes, free, total });
        }
        check("cuMemHostRegister", result)?;
        let mut registration = Self { device: device.clone(), host, address: 0, bytes, owner };
        // SAFETY: stores the address of the range registered above.
        let mapped =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&mut registration.address, host, 0) };
        check("cuMemHostGetDevicePointer", mapped)?;
        Ok(registration)
    }

    /// Its first byte's address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// `length` bytes from `offset`, to copy from.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn source(&self, offset: usize, length: usize) -> Source {
        inside("source of a copy", offset, length, 1, self.bytes);
        Source(Span::new(self.address + offset as u64, length))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let owner = Arc::clone(&self.owner);
        self.device.inner.retire(Retired::Registered(self.host, owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panics(check: impl Fn() + std::panic::UnwindSafe) -> String {
        let payload = std::panic::catch_unwind(check).unwrap_err();
        payload.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn parts_that_overflow_are_refused_with_their_numbers() {
        let span: Span<u64> = Span::new(4096, 10);
        assert_eq!((span.part(3, 7).address(), span.part(10, 0).len()), (4096 + 24, 0));
        for (start, length) in [(3, 8), (11, 0), (usize::MAX, 2), (2, usize::MAX), (1 << 61, 1)] {
            let text = panics(|| assert!(span.part(start, length).is_empty()));
            let numbers = [start, length, 10].map(|number| number.to_string());
            assert!(numbers.iter().all(|number| text.contains(number)), "{text}");
        }
    }

    #[test]
    fn ranges_of_values_are_checked_in_bytes_without_overflow() {
        inside("values", 16, 4, 8, 48);
        for (offset, length) in
            [(16, 5), (49, 0), (0, 1 << 61), (usize::MAX, 1), (8, usize::MAX / 8)]
        {
            let text = panics(move || inside("values", offset, length, 8, 48));
            assert!(text.contains(&offset.to_string()) && text.contains("48 bytes"), "{text}");
        }
    }
}

//! Pinned host memory that kernels can address, of words of one width.
//!
//! Both sides touch it, so the host sees atomics, all of one width: words of two widths over the same bytes have no
//! meaning in the memory model. Which words are handed over by queueing work, which are read after its end, and which
//! are polled while it runs is said in docs/device-protocol.md.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys;

use crate::device::{Retired, check};
use crate::memory::inside;
use crate::{CudaError, Device, Span};

/// A value that pinned memory holds.
pub trait Word: Copy + sealed::Sealed + 'static {
    /// What the host sees while kernels may write it.
    type Atomic: Sync + 'static;
    /// Reads it, without ordering anything else.
    fn load(word: &Self::Atomic) -> Self;
    /// Writes it, without ordering anything else.
    fn store(self, word: &Self::Atomic);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! words {
    ($($value:ty as $atomic:ty: $from:expr, $to:expr;)+) => { $(
        // The span of a buffer and its atomics are the same bytes.
        const _: () = assert!(size_of::<$value>() == size_of::<$atomic>());

        impl sealed::Sealed for $value {}

        impl Word for $value {
            type Atomic = $atomic;

            fn load(word: &Self::Atomic) -> Self {
                ($from)(word.load(Ordering::Relaxed))
            }

            fn store(self, word: &Self::Atomic) {
                word.store(($to)(self), Ordering::Relaxed);
            }
        }
    )+ };
}

words! {
    u8 as AtomicU8: std::convert::identity, std::convert::identity;
    u32 as AtomicU32: std::convert::identity, std::convert::identity;
    u64 as AtomicU64: std::convert::identity, std::convert::identity;
    f32 as AtomicU32: f32::from_bits, f32::to_bits;
}

/// Words of pinned host memory, zero at first.
pub struct PinnedBuffer<T> {
    device: Device,
    host: NonNull<T>,
    address: u64,
    length: usize,
}

// SAFETY: plain memory, reached through atomics alone.
unsafe impl<T: Word> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for PinnedBuffer<T> {}

impl<T: Word> PinnedBuffer<T> {
    /// Allocates `length` words.
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers.
    pub fn new(device: &Device, length: usize) -> Result<Self, CudaError> {
        device.inner.bind()?;
        // The driver refuses an allocation of nothing.
        let bytes = length.saturating_mul(size_of::<T>()).max(16);
        let _quiet = device.inner.quiet();
        let mut host: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: stores an address, freed with the device.
        let result = unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.inner.memory()?;
            return Err(CudaError::Memory { kind: "pinned host", bytes, free, total });
        }
        check("cuMemHostAlloc", result)?;
        let memory =
            NonNull::new(host.cast::<u8>()).expect("a successful allocation has an address");
        let mut address = 0;
        // SAFETY: the range was allocated above; stores an address.
        let mapped = unsafe {
            std::ptr::write_bytes(memory.as_ptr(), 0, bytes);
            sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0)
        };
        let buffer = Self { device: device.clone(), host: memory.cast(), address, length };
        check("cuMemHostGetDevicePointer", mapped)?;
        Ok(buffer)
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True without words.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The words `start..start + length`, for kernels and copies.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn span(&self, start: usize, length: usize) -> Span<T> {
        self.all().part(start, length)
    }

    /// All words, for kernels and copies.
    pub fn all(&self) -> Span<T> {
        Span::new(self.address, self.length)
    }

    /// All words, as what may change at any time.
    pub fn words(&self) -> &[T::Atomic] {
        // SAFETY: initialised memory of this value, page-aligned, of as many words of this size; the type allows
        // changes from elsewhere, and every other view of these bytes is of this type.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().cast(), self.length) }
    }

    /// Writes words from `start` on, for work that is queued afterwards: queueing it orders them (rule "handed over").
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn hand_over(&self, start: usize, values: impl IntoIterator<Item = T>) {
        let mut words = self.words()[start..].iter();
        for value in values {
            value.store(words.next().expect("no more values than words"));
        }
    }

    /// Reads words that work wrote whose end was awaited: awaiting it orders them (rule "collected").
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn collect(&self, range: Range<usize>) -> impl Iterator<Item = T> + Clone {
        inside("collected words", range.start, range.len(), 1, self.length);
        self.words()[range].iter().map(T::load)
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        self.device.inner.retire(Retired::Pinned(self.host.as_ptr().cast()));
    }
}

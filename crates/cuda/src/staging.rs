//! Copies between the device and ordinary memory of the process, by way of pinned memory and a stream of the device's
//! own.
//!
//! The driver copies ordinary memory itself, but keeps a lock of the context while it waits for such a copy, and orders
//! it with those of other engines. A running step of another engine that waits for its host then waits for a thread
//! that waits for this lock: two engines stood still for the 60 s of a step's patience. Calls that only queue or wait
//! for an event keep no lock.
//!
//! A large copy is made by several threads: one moves the 63 MiB of a state at 10 GB/s, a fifth of what the bus gives,
//! and the first token of an agent's turn waits for two of them.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::thread;

use cudarc::driver::sys;

use crate::CudaError;
use crate::device::{Inner, check};

/// Bytes of a half: copies of a state (63 MiB) have 63 parts, whose calls take less than a tenth of their time.
const HALF_BYTES: usize = 1 << 20;
/// Threads of a large copy.
const LANES: usize = 4;
/// Copies of fewer bytes are the caller's alone: they end before other threads have begun.
const SPREAD_BYTES: usize = 4 << 20;

/// Pinned memory and a stream for each thread of a copy.
pub(crate) struct Staging {
    lanes: [Lane; LANES],
}

/// Two halves of pinned memory: the device copies one while the processor copies the other.
struct Lane {
    stream: sys::CUstream,
    halves: [Half; 2],
}

struct Half {
    host: NonNull<u8>,
    /// The device's last copy from or to it.
    copied: sys::CUevent,
}

// SAFETY: handles of the driver, which any thread may use, and memory that nothing else refers to.
unsafe impl Send for Lane {}

impl Half {
    fn new() -> Result<Self, CudaError> {
        let mut host: *mut c_void = std::ptr::null_mut();
        // SAFETY: stores an address, freed by `Staging::free`.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut host, HALF_BYTES, 0) })?;
        let host = NonNull::new(host.cast()).expect("a successful allocation has an address");
        let mut copied = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: stores a handle, destroyed by `Staging::free`.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut copied, flags) })?;
        Ok(Self { host, copied })
    }

    fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: handles of ours.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.copied, stream) })
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: our handle.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.copied) })
    }
}

impl Lane {
    fn new() -> Result<Self, CudaError> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: stores a handle, destroyed by `free`.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Self { stream, halves: [Half::new()?, Half::new()?] })
    }

    /// # Safety
    /// As of [`Staging::read`].
    unsafe fn read(&mut self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        let lengths: Vec<usize> = to.chunks(HALF_BYTES).map(<[u8]>::len).collect();
        let queue = |part: usize| {
            let half = &self.halves[part % 2];
            let (host, from) = (half.host.as_ptr().cast(), from + (part * HALF_BYTES) as u64);
            // SAFETY: the caller's promise; the half has room for a part, and nothing reads it before the event.
            let queued =
                unsafe { sys::cuMemcpyDtoHAsync_v2(host, from, lengths[part], self.stream) };
            check("cuMemcpyDtoHAsync", queued)?;
            half.record(self.stream)
        };
        if !to.is_empty() {
            queue(0)?;
        }
        for (part, to) in to.chunks_mut(HALF_BYTES).enumerate() {
            if part + 1 < lengths.len() {
                queue(part + 1)?;
            }
            let half = &self.halves[part % 2];
            half.wait()?;
            // SAFETY: both have as many bytes, and the device's copy into the half has ended.
            unsafe { half.host.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        }
        Ok(())
    }

    /// # Safety
    /// As of [`Staging::write`].
    unsafe fn write(&mut self, from: &[u8], to: u64) -> Result<(), CudaError> {
        for (part, from) in from.chunks(HALF_BYTES).enumerate() {
            let half = &self.halves[part % 2];
            // An event that was never recorded has happened.
            half.wait()?;
            // SAFETY: the half has room for a part, and the device's copy from it has ended.
            unsafe { half.host.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            let (to, host) = (to + (part * HALF_BYTES) as u64, half.host.as_ptr().cast());
            // SAFETY: the caller's promise; nothing writes to the half before the event.
            let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(to, host, from.len(), self.stream) };
            check("cuMemcpyHtoDAsync", queued)?;
            half.record(self.stream)?;
        }
        self.halves.iter().try_for_each(Half::wait)
    }

    /// # Safety
    /// As of [`Staging::free`].
    unsafe fn free(&self) {
        // SAFETY: handles and memory of our own, not used any more; a failure changes nothing.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            for half in &self.halves {
                let _ = sys::cuEventDestroy_v2(half.copied);
                let _ = sys::cuMemFreeHost(half.host.as_ptr().cast());
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

impl Staging {
    /// Of the current context.
    ///
    /// # Errors
    /// The driver refused.
    pub(crate) fn new() -> Result<Self, CudaError> {
        Ok(Self { lanes: [Lane::new()?, Lane::new()?, Lane::new()?, Lane::new()?] })
    }

    /// Copies to ordinary memory and waits.
    ///
    /// # Safety
    /// `device`, whose staging this is, has as many bytes at `from`.
    pub(crate) unsafe fn read(
        &mut self,
        device: &Inner,
        from: u64,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        let part = part_bytes(to.len());
        let parts = to.chunks_mut(part).zip(&mut self.lanes).enumerate();
        spread(device, parts.collect(), |(index, (to, lane))| {
            // SAFETY: the caller's promise.
            unsafe { lane.read(from + (index * part) as u64, to) }
        })
    }

    /// Copies from ordinary memory and waits.
    ///
    /// # Safety
    /// `device`, whose staging this is, has room for as many bytes at `to`.
    pub(crate) unsafe fn write(
        &mut self,
        device: &Inner,
        from: &[u8],
        to: u64,
    ) -> Result<(), CudaError> {
        let part = part_bytes(from.len());
        let parts = from.chunks(part).zip(&mut self.lanes).enumerate();
        spread(device, parts.collect(), |(index, (from, lane))| {
            // SAFETY: the caller's promise.
            unsafe { lane.write(from, to + (index * part) as u64) }
        })
    }

    /// Gives all back.
    ///
    /// # Safety
    /// The context is current, nothing is used afterwards, and no copy is under way: each call has waited for its own.
    pub(crate) unsafe fn free(&self) {
        // SAFETY: the caller's promise.
        self.lanes.iter().for_each(|lane| unsafe { lane.free() });
    }
}

/// Bytes of each thread's part of a copy; no part is empty.
fn part_bytes(bytes: usize) -> usize {
    if bytes < SPREAD_BYTES { bytes.max(1) } else { bytes.div_ceil(LANES) }
}

/// Makes all parts of a copy, each on a thread of its own as far as there are some. The first failure is the copy's.
fn spread<T: Send>(
    device: &Inner,
    mut parts: Vec<T>,
    copy: impl Fn(T) -> Result<(), CudaError> + Sync,
) -> Result<(), CudaError> {
    let threads = parts.len().saturating_sub(1);
    if threads == 0 {
        return parts.pop().map_or(Ok(()), copy);
    }
    let (parts, failed) = (Mutex::new(parts), Mutex::new(None));
    let work = || {
        let made = device.bind().and_then(|()| {
            // Each part is taken once, and what a thread that panicked had taken ends with the panic of all.
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
            std::iter::from_fn(next).try_for_each(&copy)
        });
        if let Err(error) = made {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            // Without a thread, those that there are make its part.
            let named = thread::Builder::new().name("copy".to_owned());
            let _ = named.spawn_scoped(scope, work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

//! Memory that kernels can address: of the device, and of the host, pinned and mapped into the device.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use cudarc::driver::sys;

use crate::device::check;
use crate::{CudaError, Device};

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
    fn new(address: u64, length: usize) -> Self {
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
        assert!(start + length <= self.length, "{start} + {length} of {}", self.length);
        Self::new(self.address + (start * size_of::<T>()) as u64, length)
    }
}

/// Bytes of device memory, zero at first.
pub struct DeviceBuffer {
    device: Device,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates; zero bytes are rounded up to a few.
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let bytes = bytes.max(16);
        let mut address = 0;
        // SAFETY: stores an address, freed on drop.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.inner.memory()?;
            return Err(CudaError::Memory { kind: "device", bytes, free, total });
        }
        check("cuMemAlloc", result)?;
        let buffer = Self { device: device.clone(), address, bytes };
        // SAFETY: the range was allocated above.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(address, 0, bytes) })?;
        Ok(buffer)
    }

    /// `length` values from byte `offset`.
    ///
    /// # Panics
    /// When they are not all inside, or not aligned.
    pub fn span<T>(&self, offset: usize, length: usize) -> Span<T> {
        assert!(offset + length * size_of::<T>() <= self.bytes, "a span inside its buffer");
        Span::new(self.address + offset as u64, length)
    }

    /// Copies bytes to `offset` and waits.
    ///
    /// # Errors
    /// The device failed.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.bytes, "bytes inside their buffer");
        self.device.inner.bind()?;
        let to = self.address + offset as u64;
        // SAFETY: both ranges exist; the call returns when the source has been read.
        let copied = unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", copied)?;
        await_copies()
    }

    /// Copies bytes from `offset` to the host, once all streams that wrote them were waited for.
    ///
    /// # Errors
    /// The device failed.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.bytes, "bytes inside their buffer");
        self.device.inner.bind()?;
        let from = self.address + offset as u64;
        // SAFETY: both ranges exist; the call returns when the bytes are there.
        let copied = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        check("cuMemcpyDtoH", copied)
    }

    /// Copies f32 values to value `offset` and waits.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_values(&self, offset: usize, values: &[f32]) -> Result<(), CudaError> {
        let bytes = size_of_val(values);
        assert!(offset * 4 + bytes <= self.bytes, "values inside their buffer");
        self.device.inner.bind()?;
        let to = self.address + (offset * 4) as u64;
        // SAFETY: both ranges exist; the call returns when the source has been read.
        let copied = unsafe { sys::cuMemcpyHtoD_v2(to, values.as_ptr().cast(), bytes) };
        check("cuMemcpyHtoD", copied)?;
        await_copies()
    }

    /// Copies f32 values from value `offset` to the host, once all streams that wrote them were waited for.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&self, offset: usize, values: &mut [f32]) -> Result<(), CudaError> {
        let bytes = size_of_val(values);
        assert!(offset * 4 + bytes <= self.bytes, "values inside their buffer");
        self.device.inner.bind()?;
        let from = self.address + (offset * 4) as u64;
        // SAFETY: both ranges exist; any bits are an f32; the call returns when they are there.
        let copied = unsafe { sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), from, bytes) };
        check("cuMemcpyDtoH", copied)
    }
}

/// Waits for copies that a call has only staged: streams of ours do not wait for the default one, which carries them.
fn await_copies() -> Result<(), CudaError> {
    // SAFETY: null is the default stream.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: our allocation; freeing waits for the work that uses it. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _ = sys::cuMemFree_v2(self.address);
        }
    }
}

/// Pinned host memory that kernels can address, zero at first. Both sides touch it at the same time, so the host
/// sees it as atomics.
pub struct PinnedBuffer {
    device: Device,
    host: NonNull<u8>,
    address: u64,
    bytes: usize,
}

// SAFETY: plain memory, reached through atomics alone.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates; zero bytes are rounded up to a few.
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let bytes = bytes.max(16).next_multiple_of(8);
        let mut host: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: stores an address, freed on drop.
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
        let buffer = Self { device: device.clone(), host: memory, address, bytes };
        check("cuMemHostGetDevicePointer", mapped)?;
        Ok(buffer)
    }

    /// `length` values from byte `offset`, for kernels.
    ///
    /// # Panics
    /// When they are not all inside, or not aligned.
    pub fn span<T>(&self, offset: usize, length: usize) -> Span<T> {
        assert!(offset + length * size_of::<T>() <= self.bytes, "a span inside its buffer");
        Span::new(self.address + offset as u64, length)
    }

    /// All of it as 32-bit words.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: initialised memory of this value, page-aligned; the type allows changes from elsewhere.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().cast(), self.bytes / 4) }
    }

    /// All of it as 64-bit words.
    pub fn long_words(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().cast(), self.bytes / 8) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: our allocation. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _ = sys::cuMemFreeHost(self.host.as_ptr().cast());
        }
    }
}

/// Host memory of somebody else, pinned and mapped into the device while this value lives. The device only reads
/// it: there is no [`Span`] of it, which could be written to, and kernels read the records that its addresses
/// name. So whoever makes one cannot hand out write access to memory that is not theirs.
pub struct Registration {
    device: Device,
    host: *mut c_void,
    address: u64,
    bytes: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is only a name for the range when it is given back.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Pins the `bytes` at `host`, which `owner` keeps mapped. The driver refuses a range that is not mapped;
    /// pages stay pinned whatever their owner does, so the device never reads memory of others.
    ///
    /// # Errors
    /// The driver refused, usually for want of memory that may be locked.
    pub fn new(
        device: &Device,
        owner: Arc<dyn Any + Send + Sync>,
        host: *const u8,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let host: *mut c_void = host.cast_mut().cast();
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the driver checks the range; see above for its lifetime.
        let result = unsafe { sys::cuMemHostRegister_v2(host, bytes, flags) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.inner.memory()?;
            return Err(CudaError::Memory { kind: "pinned host", bytes, free, total });
        }
        check("cuMemHostRegister", result)?;
        let mut registration =
            Self { device: device.clone(), host, address: 0, bytes, _owner: owner };
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
        assert!(offset + length <= self.bytes, "a source inside its registration");
        Source(Span::new(self.address + offset as u64, length))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by `new`. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _ = sys::cuMemHostUnregister(self.host);
        }
    }
}

//! Order of work: streams, events between them, and graphs captured from a stream.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::abi::Mirrored;
use crate::device::check;
use crate::launch::Kernel;
use crate::{CudaError, Device, Source, Span};

/// Work that runs in the order in which it was given.
pub struct Stream {
    device: Device,
    handle: sys::CUstream,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Stream {}

/// A point in a stream.
pub struct Event {
    device: Device,
    handle: sys::CUevent,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}
// SAFETY: the driver's calls on events may be made from several threads at a time.
unsafe impl Sync for Event {}

/// Captured work that is launched as one.
pub struct Graph {
    device: Device,
    handle: sys::CUgraphExec,
}

// SAFETY: as for streams.
unsafe impl Send for Graph {}

impl Stream {
    /// A stream that does not wait for the default one.
    ///
    /// # Errors
    /// The device failed.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: stores a handle, destroyed on drop.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, flags) })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's name of it.
    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Copies between spans of equal length, of either side.
    ///
    /// # Errors
    /// The device failed.
    pub fn copy<T>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError> {
        assert_eq!(from.length, to.length, "copies keep the length");
        self.device.inner.bind()?;
        let bytes = from.length * size_of::<T>();
        // SAFETY: both ranges were checked when the spans were made.
        let queued = unsafe { sys::cuMemcpyAsync(to.address, from.address, bytes, self.handle) };
        check("cuMemcpyAsync", queued)
    }

    /// Copies registered host memory to a span of its length.
    ///
    /// # Errors
    /// The device failed.
    pub fn fetch(&self, from: Source, to: Span<u8>) -> Result<(), CudaError> {
        self.copy(from.0, to)
    }

    /// Sets all values to zero.
    ///
    /// # Errors
    /// The device failed.
    pub fn clear<T>(&self, span: Span<T>) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        let bytes = span.length * size_of::<T>();
        // SAFETY: the range was checked when the span was made.
        let queued = unsafe { sys::cuMemsetD8Async(span.address, 0, bytes, self.handle) };
        check("cuMemsetD8Async", queued)
    }

    /// Waits until everything given so far is done.
    ///
    /// # Errors
    /// The device failed, now or in a kernel before.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        // SAFETY: our handle.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) })
    }

    /// Lets what is given to this stream from now on wait for `event`.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        // SAFETY: handles of ours.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) })
    }

    /// Begins to record instead of to run.
    ///
    /// # Errors
    /// The device failed.
    pub fn begin_capture(&self) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: our handle.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.handle, mode) })
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Something was given meanwhile that cannot be captured; the device failed.
    pub fn end_capture(&self) -> Result<Graph, CudaError> {
        self.device.inner.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: stores a handle, destroyed below.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.handle, &mut graph) })?;
        let _quiet = self.device.inner.quiet();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the graph is complete; the executable one does not refer to it.
        let (made, destroyed) = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut handle, graph, 0);
            (made, sys::cuGraphDestroy(graph))
        };
        check("cuGraphInstantiate", made)?;
        check("cuGraphDestroy", destroyed)?;
        Ok(Graph { device: self.device.clone(), handle })
    }

    /// Runs a graph.
    ///
    /// # Errors
    /// The device failed.
    pub fn launch_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        // SAFETY: handles of ours.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.handle, self.handle) })
    }

    /// As [`Stream::launch`]; where the device can, blocks are placed while the work before still runs. The kernel
    /// must wait for that work itself (`await_inputs` in `kernels/common.cuh`).
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    pub(crate) unsafe fn launch_overlapping<A: Mirrored>(
        &self,
        kernel: Kernel,
        grid: (usize, usize, usize),
        threads: usize,
        shared: usize,
        arguments: &A,
    ) -> Result<(), CudaError> {
        assert_takes::<A>(kernel);
        if !self.device.overlaps() {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(kernel, grid, threads, shared, arguments) };
        }
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        self.device.inner.bind()?;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let configuration = sys::CUlaunchConfig {
            gridDimX: grid.0 as u32,
            gridDimY: grid.1 as u32,
            gridDimZ: grid.2 as u32,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.handle,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let function = self.device.inner.function(kernel);
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the structures during the call; the rest is the caller's promise.
        let queued = unsafe {
            sys::cuLaunchKernelEx(
                &raw const configuration,
                function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(kernel.name(), queued)
    }

    /// Launches a kernel with one argument structure.
    ///
    /// # Safety
    /// The addresses in `arguments` must hold what the kernel reads and writes. That the structure is the kernel's is
    /// checked here, and its layout by [`crate::abi`].
    pub(crate) unsafe fn launch<A: Mirrored>(
        &self,
        kernel: Kernel,
        grid: (usize, usize, usize),
        threads: usize,
        shared: usize,
        arguments: &A,
    ) -> Result<(), CudaError> {
        assert_takes::<A>(kernel);
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        self.device.inner.bind()?;
        let function = self.device.inner.function(kernel);
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the structure during the call; the rest is the caller's promise.
        let queued = unsafe {
            sys::cuLaunchKernel(
                function,
                grid.0 as u32,
                grid.1 as u32,
                grid.2 as u32,
                threads as u32,
                1,
                1,
                shared as u32,
                self.handle,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(kernel.name(), queued)
    }
}

/// Panics when the kernel takes another structure.
fn assert_takes<A: Mirrored>(kernel: Kernel) {
    let layout = &A::LAYOUT;
    assert!(layout.kernels.contains(&kernel), "{} does not take {}", kernel.name(), layout.name);
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: our handle. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _ = sys::cuStreamSynchronize(self.handle);
            let _ = sys::cuStreamDestroy_v2(self.handle);
        }
    }
}

impl Event {
    /// An event that has not happened in any stream yet, without timing.
    ///
    /// # Errors
    /// The device failed.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        device.inner.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: stores a handle, destroyed on drop.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Happens when the stream has done what it was given so far.
    ///
    /// # Errors
    /// The device failed.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        // SAFETY: handles of ours.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle) })
    }

    /// Waits until it has happened; one that was never recorded has.
    ///
    /// # Errors
    /// The device failed, now or in a kernel before.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.device.inner.bind()?;
        // SAFETY: our handle.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// True when it has happened.
    ///
    /// # Errors
    /// The device failed, now or in a kernel before.
    pub fn has_happened(&self) -> Result<bool, CudaError> {
        self.device.inner.bind()?;
        // SAFETY: our handle.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: our handle. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _ = sys::cuEventDestroy_v2(self.handle);
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: our handle. A failure here was reported before.
        unsafe {
            let _ = self.device.inner.bind();
            let _quiet = self.device.inner.quiet();
            let _ = sys::cuGraphExecDestroy(self.handle);
        }
    }
}

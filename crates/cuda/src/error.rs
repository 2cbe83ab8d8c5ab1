//! What can go wrong between us and a GPU.

use thiserror::Error;

/// A GPU that cannot be used, or a call that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "no NVIDIA driver: the library libcuda.so.1 cannot be loaded; install the driver (580 or newer), \
         or use --device cpu"
    )]
    NoDriver,
    /// The driver has no such device.
    #[error("no CUDA device {ordinal}: the driver offers {count}")]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices that there are.
        count: usize,
    },
    /// The device is older than the kernels.
    #[error("{name} has compute capability {major}.{minor}; 7.5 or newer is needed")]
    TooOld {
        /// Name of the device.
        name: String,
        /// Its capability.
        major: i32,
        /// Its capability.
        minor: i32,
    },
    /// An allocation failed.
    #[error("{kind} memory: {bytes} bytes were asked for and refused; {free} of {total} are free")]
    Memory {
        /// Of the device, or pinned on the host.
        kind: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Free bytes of device memory.
        free: usize,
        /// Bytes of device memory.
        total: usize,
    },
    /// A call of the driver failed. After a fault in a kernel every later call fails likewise.
    #[error("the GPU failed: {call}: {message} ({code})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its result.
        code: u32,
        /// What the driver says about it.
        message: String,
    },
}

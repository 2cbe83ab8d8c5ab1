//! What can go wrong between us and a GPU.

use thiserror::Error;

/// The driver's interface, as the system calls it.
const DRIVER_LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// A GPU that cannot be used, or a call that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "no NVIDIA driver: the library {library} cannot be loaded; install the driver (580 or newer), \
         or use --device cpu",
        library = DRIVER_LIBRARY
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
    /// The driver is older than the compiler of the kernels and refused them.
    #[error(
        "the NVIDIA driver speaks CUDA {}.{} and cannot load the kernels ({message}), which need CUDA {}.{}: \
         install driver 580 or newer, or use --device cpu", found.0, found.1, needed.0, needed.1
    )]
    OldDriver {
        /// What the driver speaks, major and minor.
        found: (i32, i32),
        /// What the kernels were compiled for.
        needed: (i32, i32),
        /// The driver's reason.
        message: String,
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
    /// A step waited a minute for a record, or the host ended first.
    #[error(
        "the GPU waited for experts that were not brought within a minute: is the drive still there? see the \
         kernel's log"
    )]
    NoAnswer,
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

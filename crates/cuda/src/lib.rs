//! The CUDA driver, loaded at run time, and the kernels of flashmoe.
//!
//! [`Device`] opens a GPU or says what is missing; [`DeviceBuffer`], [`PinnedBuffer`] and [`Registration`] are
//! memory that kernels can address, [`Span`] a typed part of any of them; [`Stream`], [`Event`] and [`Graph`]
//! order work; [`launch`] has one function per kernel, which checks lengths before it launches. Kernels are CUDA
//! C++ (`kernels/`), compiled ahead for every supported architecture and embedded: users need the driver alone.
//!
//! A span does not keep its memory alive, and kernels read addresses from tables: whoever launches keeps buffers
//! alive until the stream has passed the launch. What a stale address does is a fault of the device, reported as
//! [`CudaError::Call`] by a later call; host memory is only reachable where it was pinned for that.

mod device;
mod error;
pub mod launch;
mod matrix;
mod memory;
mod saving;
mod stream;

pub use device::{Device, DeviceInfo};
pub use error::CudaError;
pub use matrix::{ExpertShapes, Matrix};
pub use memory::{DeviceBuffer, PinnedBuffer, Registration, Source, Span};
pub use saving::Saving;
pub use stream::{Event, Graph, Stream};

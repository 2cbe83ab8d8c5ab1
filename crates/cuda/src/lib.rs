//! The CUDA driver, loaded at run time, and the kernels of flashmoe.
//!
//! [`Device`] opens a GPU or says what is missing; [`DeviceBuffer`], [`PinnedBuffer`] and [`Registration`] are
//! memory that kernels can address, [`Span`] a typed part of any of them; [`Stream`], [`Event`] and [`Graph`]
//! order work; [`launch`] has one function per kernel, which checks lengths before it launches. Kernels are CUDA
//! C++ (`kernels/`), compiled ahead for every supported architecture and embedded: users need the driver alone.
//!
//! A span has no lifetime, and kernels read addresses from tables: memory whose owner is dropped is therefore freed
//! only with the last clone of its device, and every stream, event and graph is one. A device that was closed has no
//! streams left; its spans are not to be used with those of another. What a wrong address does is a fault of the
//! device, reported as [`CudaError::Call`] by a later call; host memory is only reachable where it was pinned for that.

mod abi;
mod attended;
mod device;
mod error;
pub mod launch;
mod matrix;
mod memory;
mod pages;
mod pinned;
mod saving;
mod staging;
mod stream;

pub use attended::Attended;
pub use device::{Device, DeviceInfo};
pub use error::CudaError;
pub use matrix::{ExpertShapes, Matrix};
pub use memory::{DeviceBuffer, Registration, Source, Span};
pub use pages::{DevicePage, PAGE_BYTES};
pub use pinned::{PinnedBuffer, Word};
pub use saving::Saving;
pub use stream::{Event, Graph, Stream};

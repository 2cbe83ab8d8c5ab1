//! Any GPU that Vulkan or Metal reaches, through wgpu, and the kernels of flashmoe for it in generated WGSL.
//!
//! [`adapters`] says what there is, [`Gpu`] is one of them in use: memory, a queue of recorded work, errors in plain
//! words. What is computed is one file per operation in [`op`]; [`check`] holds the kernels against the scalar
//! reference. Nothing here knows of models or files.
//!
//! Sums are explicit fused multiply-adds in a fixed order that does not depend on how many tokens are computed at
//! once, so that on one device a token's bits do not depend on its batch. Between devices they differ in the last
//! bits.

mod adapter;
mod ahead;
mod buffer;
pub mod check;
mod compile;
#[cfg_attr(target_vendor = "apple", path = "metal.rs")]
#[cfg_attr(not(target_vendor = "apple"), path = "vulkan.rs")]
mod driver;
mod driver_options;
mod error;
mod footprint;
mod imported;
mod instance;
mod memory;
mod observer;
pub mod op;
mod profile;
mod queue;
mod slab;
mod source;
mod stream;
mod width;

pub use adapter::{Adapter, Kind, MemoryClass, adapters, choose};
pub use buffer::{Buffer, Span};
pub use driver_options::{DriverOptions, Import, Wait};
pub use error::GpuError;
pub use footprint::Footprint;
pub use imported::{HostMemory, HostSlabs};
pub use observer::Launch;
pub use profile::Timing;
pub use queue::Ask;
pub use slab::{Planes, Slabs, Trunk};
pub use stream::{Counts, Gpu, Handle};

//! Bytes on disk to bytes in memory.
//!
//! [`format`] opens a checkpoint (MLX, Hugging Face, native pack, the ancestor's folders) and says
//! where every tensor and every expert lies; `io` moves bytes; `cache` keeps expert records in slots.
//! This crate knows records, bytes, keys and time; it computes with no tensor.

pub mod format;
mod ids;
pub mod trunk;

pub use ids::{ExpertId, LayerId};

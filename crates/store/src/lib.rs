//! Bytes on disk to bytes in memory.
//!
//! [`format`] opens a checkpoint (MLX, Hugging Face, native pack, the ancestor's folders) and says
//! where every tensor and every expert lies; `io` moves bytes; `cache` keeps expert records in slots, [`rows`] reads
//! rows of tables.
//! This crate knows records, bytes, keys and time; it computes with no tensor.

pub mod arena;
pub mod cache;
pub mod format;
pub mod heap;
mod ids;
pub mod io;
pub mod pack;
pub mod record;
pub mod rows;
pub mod shown;
pub mod split_mix;
pub mod synthetic;
pub mod timeline;
pub mod trace;
pub mod trunk;

pub use cache::StoreError;
pub use ids::{ExpertId, LayerId};
pub(crate) use ids::{RecordKey, SlotId};

//! Which expert records are in a device's memory, and how the others get there.
//!
//! Three tiers hold records: slots of a device, pinned slots of the store in RAM, the checkpoint on disk. Nothing in
//! here knows a driver: a device is two ports (`port.rs`), a memory with slots and a running step that asks for records.
//!
//! - `placement.rs`: what the address table says of each record, and when a slot or a host copy may be written
//! - `misses.rs`: serving what a running step asks for
//! - `moves.rs`: what moves between device and host, and when; `moves/resize.rs`: when slots lose their memory
//! - `predictor.rs`, `copy_queue.rs`: how far guesses of the next layer are trusted, and which are copied next
//! - `cache_pages.rs`: which pages of keys and values need memory; `held_pages.rs`: which have copies in snapshots
//!
//! Arrows point one way: backends use this room, and it uses none of them.

pub(crate) mod cache_pages;
pub(crate) mod copy_queue;
pub(crate) mod held_pages;
pub(crate) mod misses;
pub(crate) mod moves;
pub(crate) mod placement;
pub(crate) mod port;
pub(crate) mod predictor;

/// Records that are in device memory and in the host tier at most, once the host tier is full: those on their way.
pub const RECORDS_IN_BOTH: usize = 2 * moves::FILLS_PER_STEP;
/// The part of the host tier that a prompt may take ([`store::cache::StoreOptions::prefill_part`]). Records pass
/// through it on their way to the staging area, so that a few waves are enough, and what else lies there the prompt
/// does not have to read: with 15 % of the experts in device memory and 20 % in RAM a sweep reads 67.5 % of them, with
/// a fourth as on the processor 68.6 (`moves/tests/simulation.rs`).
pub const PREFILL_PART: usize = 8;

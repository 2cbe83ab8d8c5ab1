//! The store of experts: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod cache_device;
mod cache_faults;
mod cache_files;
mod cache_interleavings;
mod cache_pieces;
mod cache_store;
mod cache_support;
#[path = "../../../../tests/long.rs"]
mod long;
mod rows;
mod trace_replay;

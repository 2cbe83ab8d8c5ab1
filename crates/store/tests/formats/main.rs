//! Checkpoint formats against files written byte by byte: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;
mod compressed;
mod input_major;
mod links;
#[path = "../../../../tests/long.rs"]
mod long;
mod malformed;
mod nvfp4;
mod open;
mod pack;
mod planted;
mod published;
mod requantise;
mod sweep;

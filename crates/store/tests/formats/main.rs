//! Checkpoint formats against files written byte by byte: one test binary, a module per subject.

mod common;
mod open;
mod pack;

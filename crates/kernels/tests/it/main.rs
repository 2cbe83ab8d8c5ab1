//! Kernels of every instruction set against the scalar reference: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod attention;
mod blocks;
mod combine;
mod common;
mod encodings;
mod floats;
mod kv_types;
#[path = "../../../../tests/long.rs"]
mod long;
mod products;
mod quantize;
mod rounded;
mod sequence;

/// The pool is no public part of the crate: it comes with the tests that its file carries.
#[path = "../../src/pool.rs"]
#[allow(dead_code, reason = "the crate uses what its tests do not")]
mod pool;

//! Kernels of every instruction set against the scalar reference: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod attention;
mod blocks;
mod common;
mod products;
mod rounded;
mod sequence;

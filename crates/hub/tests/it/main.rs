//! The hub's client against a hub of our own: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod full_disk;
mod hostile_cache;
mod pull;
mod support;
mod tls;

//! The engine against references and faults: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod config_families;
mod configuration;
mod constrained;
mod families;
mod faults;
mod gemma;
mod gguf_keys;
mod hashed_layers;
mod heads;
mod heads_cuda;
mod hosts;
#[path = "../../../../tests/long.rs"]
mod long;
mod nvidia;
mod processor;
mod rounds;
mod rounds_cuda;
mod routers;
mod sequences;
mod snapshots;
mod stages;
mod stages_cuda;
mod under_way;
mod weights_parts;

//! The server's protocols and its work: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod abuse;
mod bodies;
mod closing;
mod completions;
mod dialects;
mod drafts;
mod draining;
mod elsewhere;
mod engine_support;
mod golden;
mod gpu_lost;
mod kept;
mod kept_faults;
mod leaving;
mod liveness;
mod loading;
#[path = "../../../../tests/long.rs"]
mod long;
mod metrics;
mod mistakes;
mod models;
mod models_engine;
mod oracle;
mod owners;
mod panics;
mod pipeline;
mod pipes;
mod properties;
mod protocols;
mod replay;
mod scored_prompts;
mod shared;
mod slots;
mod support;
mod tls;
mod warm_equals_cold;
mod worker;

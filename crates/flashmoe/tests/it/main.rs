//! The program as a user runs it: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod ancestor;
mod bench;
mod cache;
mod cgroup;
mod check_reads;
mod deepseek_v4;
mod demo;
mod devices;
mod eval;
mod floor;
mod fp8;
mod gguf;
mod golden;
mod gptoss;
mod gpu_blocks;
mod gpu_launches;
mod hardening;
mod identity;
mod kv_type;
mod latent;
mod limits;
mod malformed;
mod memory;
mod models;
mod program;
mod rounded_cache;
mod serving;
mod supervisor;
mod support;
mod synth;
mod templates;
mod terminal;
mod tidy;
mod trace;
mod words;

//! The program as a user runs it: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod ancestor;
mod automatic;
mod bench;
mod cache;
mod cgroup;
mod chat;
mod check_reads;
mod chosen_rows;
mod deepseek_v4;
mod demo;
mod devices;
mod eval;
mod flash_next;
mod flash_next_gguf;
mod flash_next_rows;
mod floor;
mod fp8;
mod gguf;
mod golden;
mod gptoss;
mod gpu_blocks;
mod gpu_launches;
mod hardening;
mod heads;
mod hosts;
mod identity;
mod input_major;
mod kv_type;
mod latent;
mod limits;
#[path = "../../../../tests/long.rs"]
mod long;
mod malformed;
mod memory;
mod models;
mod no_numbers;
mod program;
mod published;
#[path = "../../../engine/tests/gpu/quantised.rs"]
mod quantised;
mod report;
mod rounded_cache;
mod serving;
mod shape;
mod stages;
mod supervisor;
mod support;
mod synth;
mod templates;
mod terminal;
mod tidy;
mod trace;
mod typed;
mod words;

//! The engine against references and faults: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod configuration;
mod constraint;
mod dialect_grammars;
mod faults;
mod generated;
mod hashed_layers;
mod mask_walk;
mod routers;
mod sampling_reference;
mod schema_check;
mod sequences;
mod snapshots;
mod text_answer;
mod text_deepseek_v4;
mod text_dialect_goldens;
mod text_dialects;
mod text_gguf;
mod text_golden;
mod text_hostile;
mod text_pieces;
mod text_reader;
mod text_replay;
mod text_safety;
mod text_support;
mod weights_parts;

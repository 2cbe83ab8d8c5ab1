//! Text against references and hostile input: one test binary, a module per subject.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod answer;
mod constraint;
mod constraint_support;
mod deepseek_v4;
mod dialect_goldens;
mod dialect_grammars;
mod dialects;
mod expressions;
mod full;
mod generated;
mod gguf;
mod golden;
mod hostile;
mod mask_walk;
mod pieces;
mod reader;
mod replay;
mod safety;
mod sampling_reference;
mod schema_check;
mod spaced;
mod support;

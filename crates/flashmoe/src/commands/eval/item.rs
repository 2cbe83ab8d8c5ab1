//! A question of a task file: one JSON object a line.
//!
//! `task`, `messages` and `tools` as in the chat completions protocol, `enable_thinking`, and `check`. The fuzzer
//! compiles this file and `check.rs` too, so they depend on nothing of the program.

use serde::Deserialize;
use serde_json::Value;

use super::check::Check;

/// One question.
#[derive(Debug, Deserialize)]
pub(super) struct Item {
    pub(super) task: String,
    pub(super) messages: Vec<Value>,
    #[serde(default)]
    pub(super) tools: Vec<Value>,
    pub(super) enable_thinking: Option<bool>,
    pub(super) check: Check,
}

/// Reads a line; `None` if it is blank.
pub(super) fn parse(line: &str) -> Result<Option<Item>, serde_json::Error> {
    if line.trim().is_empty() { Ok(None) } else { serde_json::from_str(line).map(Some) }
}

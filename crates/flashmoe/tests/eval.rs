//! `flashmoe eval` on the model that ships: tool calls and memory included.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::path::Path;

use support::flashmoe;

#[test]
fn the_demo_model_passes_its_first_questions() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let tasks = model.join("eval.jsonl");
    let (model, tasks) = (model.to_str().unwrap(), tasks.to_str().unwrap());
    let output = flashmoe(&["eval", model, tasks, "--only", "first_questions", "-o", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["all"], serde_json::json!({"passed": 10, "asked": 10}), "{found}");
    assert_eq!(found["tool_calls"], serde_json::json!({"made": 2, "valid": 2}), "{found}");
}

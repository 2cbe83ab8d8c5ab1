//! The demo model's tokenizer, tools and grammars: what tests of constraints share, with a model and without one.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use text::constraint::Grammars;
use text::{AnswerParser, Dialect, Tokenizer, collect};

pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(demo().join("tokenizer.json")).unwrap()
}

pub(crate) fn end_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    ["<|im_end|>", "<|endoftext|>"].iter().filter_map(|text| tokenizer.token_id(text)).collect()
}

pub(crate) fn grammars(dialect: Dialect) -> Grammars {
    let tokenizer = tokenizer();
    // Two rows of padding, as in many checkpoints.
    let vocabulary = tokenizer.vocabulary_size() + 2;
    Grammars::new(&tokenizer, dialect, &end_tokens(&tokenizer), vocabulary).unwrap()
}

pub(crate) fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["c", "f"]}, "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}},
            "required": ["city", "days"], "$defs": {"Place": {"type": "object", "properties": {
            "north": {"type": "boolean"}}, "required": ["north"], "additionalProperties": false}}}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

pub(crate) fn calls(dialect: Dialect, text: &str) -> Vec<(String, Value)> {
    let mut parser = AnswerParser::new(dialect, &tools(), false);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let message = collect(&events);
    assert_eq!(message.content, "", "{text:?}");
    let calls = message.tool_calls.into_iter();
    calls.map(|call| (call.name, Value::Object(call.arguments))).collect()
}

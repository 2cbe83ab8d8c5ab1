//! Items of the output: a stretch of thinking, of text, or a call.
//!
//! Identifiers are made of the response's own and the item's place, so that a stream and a whole answer name
//! their items alike.

use serde_json::{Value, json};

use super::Form;
use crate::protocol::{Call, Envelope, Gathered, Part, logprob_entries};
use crate::work::TokenLogprob;

/// The item at `index`, complete.
pub(super) fn item(envelope: &Envelope, form: &Form, index: usize, part: &Part) -> Value {
    match part {
        Part::Reasoning(text) => reasoning(&id(envelope, "rs", index), form, Some(text)),
        Part::Text(text, tokens) => {
            message(&id(envelope, "msg", index), "completed", vec![text_part(text, tokens)])
        }
        Part::Call(call) => self::call(call, "completed"),
    }
}

/// The items of a whole answer.
pub(super) fn all(envelope: &Envelope, form: &Form, gathered: &Gathered) -> Vec<Value> {
    let parts = gathered.parts.iter().enumerate();
    parts.map(|(index, part)| item(envelope, form, index, part)).collect()
}

/// An item's identifier.
pub(super) fn id(envelope: &Envelope, prefix: &str, index: usize) -> String {
    let bare = envelope.id.trim_start_matches("resp_");
    format!("{prefix}_{bare}_{index}")
}

/// An item of thinking; `text` is `None` at its beginning.
pub(super) fn reasoning(id: &str, form: &Form, text: Option<&str>) -> Value {
    let status = if text.is_some() { "completed" } else { "in_progress" };
    let mut item =
        json!({ "id": id, "type": "reasoning", "summary": [], "content": [], "status": status });
    if let Some(text) = text {
        if form.summary {
            item["summary"] = json!([{ "type": "summary_text", "text": text }]);
        } else {
            item["content"] = json!([{ "type": "reasoning_text", "text": text }]);
        }
    }
    if form.encrypted {
        item["encrypted_content"] = json!(text.unwrap_or_default());
    }
    item
}

pub(super) fn message(id: &str, status: &str, content: Vec<Value>) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    })
}

pub(super) fn text_part(text: &str, tokens: &[TokenLogprob]) -> Value {
    let logprobs = logprob_entries(tokens);
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

pub(super) fn call(call: &Call, status: &str) -> Value {
    json!({
        "id": call_item_id(&call.id),
        "type": "function_call",
        "status": status,
        "call_id": format!("call_{}", call.id),
        "name": call.name,
        "arguments": call.arguments,
    })
}

pub(super) fn call_item_id(id: &str) -> String {
    format!("fc_{id}")
}

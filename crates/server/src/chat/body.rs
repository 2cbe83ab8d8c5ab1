//! A chat completion in one piece.

use serde_json::{Value, json};

use super::request::ReasoningNames;
use super::{add_figures, call_id, finish_reason, logprobs, object};
use crate::protocol::{Envelope, Gathered};

/// The body. `with_logprobs` says whether they were asked for.
pub(super) fn body(
    envelope: &Envelope,
    names: ReasoningNames,
    with_logprobs: bool,
    gathered: &Gathered,
) -> Value {
    let calls: Vec<Value> = gathered
        .calls()
        .map(|call| {
            json!({
                "id": call_id(&call.id),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        })
        .collect();
    let text = gathered.text();
    // Null is for answers that are calls and nothing else.
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    let reasoning = gathered.reasoning();
    if !reasoning.is_empty() {
        if names.reasoning {
            message["reasoning"] = reasoning.clone().into();
        }
        if names.reasoning_content {
            message["reasoning_content"] = reasoning.into();
        }
    }
    let called = !calls.is_empty();
    if called {
        message["tool_calls"] = calls.into();
    }
    let reason = gathered.finish.as_ref().map(|finish| finish_reason(finish, called));
    let logprobs = if with_logprobs { logprobs(&gathered.logprobs) } else { Value::Null };
    let mut object = object(envelope, "chat.completion");
    object["choices"] = json!([
        { "index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason }
    ]);
    if let Some(finish) = &gathered.finish {
        add_figures(&mut object, finish);
    }
    object
}

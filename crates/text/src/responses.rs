//! Conversations for templates that print results of tools inside the turn that called them: Gemma-4's has no messages
//! of tools.
//!
//! A result becomes an entry of `tool_responses` in the message with its call, and an answer behind results becomes
//! that message's content: the model wrote all of it in one turn.

use serde_json::{Value, json};

use super::{Message, Role};

/// `values`, the messages as templates take them, with results in their turns. `value` marks what is not the
/// template's.
pub(super) fn joined(
    messages: &[Message],
    values: Vec<Value>,
    value: &dyn Fn(&Value) -> Value,
) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::with_capacity(values.len());
    for (message, fields) in messages.iter().zip(values) {
        let calls = |turn: &&mut Value| turn.get("tool_calls").is_some();
        match (message.role, turns.last_mut().filter(calls)) {
            (Role::Tool, Some(turn)) => {
                let name = name(turn, &fields);
                // A result that is an object is printed member by member.
                let response = match serde_json::from_str(&message.content) {
                    Ok(object @ Value::Object(_)) => value(&object),
                    _ => fields["content"].clone(),
                };
                let response = json!({ "name": name, "response": response });
                match turn.get_mut("tool_responses").and_then(Value::as_array_mut) {
                    Some(responses) => responses.push(response),
                    None => turn["tool_responses"] = json!([response]),
                }
            }
            (Role::Assistant, Some(turn))
                if message.tool_calls.is_empty()
                    && turn.get("tool_responses").is_some()
                    && turn["content"].as_str().is_some_and(str::is_empty) =>
            {
                turn["content"] = fields["content"].clone();
            }
            _ => turns.push(fields),
        }
    }
    turns
}

/// The function whose result a message is: as it says, else by its call's id, else that of the first call without one.
fn name(turn: &Value, result: &Value) -> Value {
    if let Some(name) = result.get("name") {
        return name.clone();
    }
    let calls = turn["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = result.get("tool_call_id");
    let named = calls.iter().find(|call| id.is_some() && call.get("id") == id);
    let answered = turn["tool_responses"].as_array().map_or(0, Vec::len);
    let call = named.or_else(|| calls.get(answered)).or_else(|| calls.last());
    call.map_or(Value::Null, |call| call["function"]["name"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_the_answer_behind_them_are_parts_of_the_calling_turn() {
        let message = |role, content: &str| Message::new(role, content);
        let messages = [
            message(Role::User, "?"),
            Message { tool_calls: Vec::new(), ..message(Role::Assistant, "") },
            message(Role::Tool, "{\"a\": 1}"),
            message(Role::Tool, "mild"),
            message(Role::Assistant, "Both."),
            message(Role::User, "!"),
        ];
        let call = |id: &str, name: &str| json!({ "id": id, "function": { "name": name } });
        let values = vec![
            json!({ "role": "user", "content": "?" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call("x", "f"), call("y", "g")] }),
            json!({ "role": "tool", "content": "{\"a\": 1}", "tool_call_id": "y" }),
            json!({ "role": "tool", "content": "mild" }),
            json!({ "role": "assistant", "content": "Both." }),
            json!({ "role": "user", "content": "!" }),
        ];
        let found = joined(&messages, values, &Value::clone);
        assert_eq!(found.len(), 3);
        let responses =
            json!([{ "name": "g", "response": { "a": 1 } }, { "name": "g", "response": "mild" }]);
        assert_eq!(found[1]["tool_responses"], responses);
        assert_eq!(found[1]["content"], "Both.");
    }
}

//! The conversation: items to the messages that templates take.
//!
//! What the model said in one turn comes back as several items: thinking, text, calls. They become one message
//! again, as the model wrote it. Calls of tools that only other servers run, and their results, are left out.

use serde_json::Value;
use store::shown::quoted;
use text::{Message, Role, ToolCall, parse_arguments};

use crate::http::ApiError;
use crate::protocol::Fields;

/// Items of tools that are never offered to this model, and of services that this server is not.
const FOREIGN: [&str; 14] = [
    "web_search_call",
    "file_search_call",
    "computer_call",
    "computer_call_output",
    "code_interpreter_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
];

/// All messages of `input`, without `instructions`.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let items = match fields.get("input") {
        Some(Value::String(text)) => return Ok(vec![Message::new(Role::User, text)]),
        Some(Value::Array(items)) if !items.is_empty() => items,
        Some(Value::Array(_)) => return Err(fields.error("input", "must not be empty")),
        Some(_) => return Err(fields.error("input", "must be a string or a list of items")),
        None => return Err(fields.error("input", "is missing")),
    };
    let mut turns = Turns::default();
    for (index, item) in items.iter().enumerate() {
        let item = Fields::at(item, &format!("input[{index}]"))?;
        match item.string("type")?.unwrap_or("message") {
            "message" => read_message(&item, &mut turns)?,
            "reasoning" => read_reasoning(&item, &mut turns)?,
            "function_call" => turns.assistant().tool_calls.push(read_call(&item)?),
            "function_call_output" => {
                let content = match item.get("output") {
                    None => String::new(),
                    Some(output) => read_text(output, &item.name("output"))?,
                };
                let mut message = Message::new(Role::Tool, content);
                message.tool_call_id = Some(item.required_string("call_id")?.to_owned());
                turns.push(message);
            }
            "item_reference" => {
                let problem = "items are not stored here; send the item itself";
                return Err(item.error("type", problem));
            }
            foreign if FOREIGN.contains(&foreign) => {}
            other => return Err(item.error("type", format!("{} is not supported", quoted(other)))),
        }
    }
    Ok(turns.messages)
}

/// Messages; the last may still grow.
#[derive(Default)]
struct Turns {
    messages: Vec<Message>,
    /// The last message is the model's and the turn goes on.
    open: bool,
}

impl Turns {
    fn push(&mut self, message: Message) {
        self.open = false;
        self.messages.push(message);
    }

    /// The model's message that is being put together.
    fn assistant(&mut self) -> &mut Message {
        if !self.open {
            self.messages.push(Message::new(Role::Assistant, ""));
            self.open = true;
        }
        self.messages.last_mut().expect("a message was just pushed or is open")
    }
}

fn read_message(item: &Fields<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    let content = item.get("content").ok_or_else(|| item.error("content", "is missing"))?;
    let text = read_text(content, &item.name("content"))?;
    match item.required_string("role")? {
        "user" => turns.push(Message::new(Role::User, text)),
        "system" | "developer" => turns.push(Message::new(Role::System, text)),
        "assistant" => turns.assistant().content.push_str(&text),
        other => {
            let problem =
                format!("{} is not one of user, assistant, system, developer", quoted(other));
            return Err(item.error("role", problem));
        }
    }
    Ok(())
}

/// Thinking begins a turn, unless the turn has only thought so far. Of the three places that may hold it the text
/// itself comes first; the last is ours alone.
fn read_reasoning(item: &Fields<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    let mut thought = String::new();
    for field in ["content", "summary"] {
        if !thought.is_empty() {
            break;
        }
        for (index, part) in item.list(field)?.into_iter().flatten().enumerate() {
            let part = Fields::at(part, &item.name(&format!("{field}[{index}]")))?;
            thought.push_str(part.string("text")?.unwrap_or_default());
        }
    }
    if thought.is_empty() {
        thought.push_str(item.string("encrypted_content")?.unwrap_or_default());
    }
    let message = turns.assistant();
    if !message.content.is_empty() || !message.tool_calls.is_empty() {
        turns.open = false;
    }
    if !thought.is_empty() {
        turns.assistant().reasoning.get_or_insert_default().push_str(&thought);
    }
    Ok(())
}

fn read_call(item: &Fields<'_>) -> Result<ToolCall, ApiError> {
    let arguments = item.get("arguments").unwrap_or(&Value::Null);
    let arguments =
        parse_arguments(arguments).map_err(|problem| item.error("arguments", problem))?;
    Ok(ToolCall {
        id: Some(item.required_string("call_id")?.to_owned()),
        name: item.required_string("name")?.to_owned(),
        arguments,
    })
}

/// A string, or parts of text.
fn read_text(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(path, "must be a string or a list of parts")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::at(part, &format!("{path}[{index}]"))?;
        match part.required_string("type")? {
            "input_text" | "output_text" | "text" => text.push_str(part.required_string("text")?),
            "refusal" => text.push_str(part.required_string("refusal")?),
            other => {
                let problem = format!("{} is not supported by this model; text is", quoted(other));
                return Err(part.error("type", problem));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_input(input: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({ "input": input });
        read(&Fields::of(body.as_object().expect("an object")))
    }

    #[test]
    fn items_of_a_turn_become_one_message_again() {
        let messages = read_input(json!([
            { "role": "developer", "content": "Rules." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Go" }] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "short" }],
              "content": [{ "type": "reasoning_text", "text": "long" }], "encrypted_content": "x" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Going." }] },
            { "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}" },
            { "type": "web_search_call", "id": "ws_1", "status": "completed" },
            { "type": "function_call", "call_id": "call_2", "name": "g", "arguments": "" },
            { "type": "function_call_output", "call_id": "call_1", "output": "one" },
            { "type": "function_call_output", "call_id": "call_2",
              "output": [{ "type": "input_text", "text": "two" }] },
            { "type": "reasoning", "summary": [], "encrypted_content": "kept" },
            { "type": "message", "role": "assistant", "content": "Done." },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "more" }] },
        ]))
        .expect("is read");
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        use Role::{Assistant, System, Tool, User};
        assert_eq!(roles, [System, User, Assistant, Tool, Tool, Assistant, Assistant]);
        assert_eq!(messages[2].reasoning.as_deref(), Some("long"));
        assert_eq!(messages[2].content, "Going.");
        assert_eq!(messages[2].tool_calls.len(), 2);
        assert_eq!(messages[4].content, "two");
        assert_eq!(messages[5].reasoning.as_deref(), Some("kept"));
        assert_eq!(messages[6].reasoning.as_deref(), Some("more"));
    }

    #[test]
    fn what_would_have_to_be_stored_is_refused() {
        for input in [
            json!([{ "type": "item_reference", "id": "x" }]),
            json!([{ "type": "no_such_item" }]),
            json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }]),
            json!([]),
            json!(7),
        ] {
            let error = read_input(input.clone()).expect_err("is refused");
            assert!(error.message().starts_with("input"), "{input}: {}", error.message());
        }
    }
}

//! The conversation: blocks to the messages that templates take.
//!
//! A user's turn may hold results of tools and text; each result becomes a tool message and each stretch of text a
//! user message, in their order. Blocks of text are set apart by a blank line, except the model's own, which
//! were one text before a call or thinking divided them.
//!
//! Claude Code puts a header with a number that changes at every request in front of its system prompt. It is
//! removed: with it, no two prompts would share a beginning.

use serde_json::Value;
use store::shown::quoted;
use text::{Message, Role, ToolCall, arrange_system, parse_arguments};

use crate::http::ApiError;
use crate::protocol::Fields;

const BILLING_HEADER: &str = "x-anthropic-billing-header:";
/// Between two blocks of text that were not one.
const BLANK_LINE: &str = "\n\n";

/// The system prompt and all messages.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    let system = match fields.get("system") {
        None => String::new(),
        Some(system) => text(system, "system", |text| without_billing_header(text))?,
    };
    if !system.is_empty() {
        messages.push(Message::new(Role::System, system));
    }
    let list = fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "must not be empty"));
    }
    for (index, message) in list.iter().enumerate() {
        let path = format!("messages[{index}]");
        let message = Fields::at(message, &path)?;
        let path = format!("{path}.content");
        let content =
            message.get("content").ok_or_else(|| message.error("content", "is missing"))?;
        match message.required_string("role")? {
            "user" => read_user(content, &path, &mut messages)?,
            "assistant" => messages.push(read_assistant(content, &path)?),
            "system" => {
                messages.push(Message::new(Role::System, text(content, &path, |text| text)?))
            }
            other => {
                let problem = format!("{} is not one of user, assistant, system", quoted(other));
                return Err(message.error("role", problem));
            }
        }
    }
    Ok(arrange_system(messages))
}

fn without_billing_header(text: &str) -> &str {
    if !text.starts_with(BILLING_HEADER) {
        return text;
    }
    text.split_once('\n').map_or("", |(_, rest)| rest.trim_start_matches('\n'))
}

/// A string, or blocks of text alone.
fn text(content: &Value, path: &str, clean: impl Fn(&str) -> &str) -> Result<String, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(clean(text).to_owned()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(path, "must be a string or a list of blocks")),
    };
    let mut joined = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::at(block, &path)?;
        let text = match block.required_string("type")? {
            "text" => block.required_string("text")?,
            "document" => document(&block)?,
            other => return Err(unsupported(&block, other)),
        };
        joined.push(clean(text));
    }
    joined.retain(|text| !text.is_empty());
    Ok(joined.join(BLANK_LINE))
}

/// A document of plain text; other kinds would need to be read by what this model is not.
fn document<'a>(block: &Fields<'a>) -> Result<&'a str, ApiError> {
    let source = block.object("source")?.ok_or_else(|| block.error("source", "is missing"))?;
    match source.required_string("type")? {
        "text" => source.required_string("data"),
        other => {
            let problem = format!("{} is not supported by this model; text is", quoted(other));
            Err(source.error("type", problem))
        }
    }
}

fn unsupported(block: &Fields<'_>, kind: &str) -> ApiError {
    block.error("type", format!("{} is not supported by this model; text is", quoted(kind)))
}

fn read_user(content: &Value, path: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let blocks = match content {
        Value::Array(blocks) => blocks,
        content => {
            messages.push(Message::new(Role::User, text(content, path, |text| text)?));
            return Ok(());
        }
    };
    let mut said = Vec::new();
    let flush = |said: &mut Vec<&str>, messages: &mut Vec<Message>| {
        if !said.is_empty() {
            messages.push(Message::new(Role::User, said.join(BLANK_LINE)));
            said.clear();
        }
    };
    for (index, value) in blocks.iter().enumerate() {
        let block = Fields::at(value, &format!("{path}[{index}]"))?;
        match block.required_string("type")? {
            "text" => said.push(block.required_string("text")?),
            "document" => said.push(document(&block)?),
            "tool_result" => {
                flush(&mut said, messages);
                messages.push(read_result(&block)?);
            }
            other => return Err(unsupported(&block, other)),
        }
    }
    if said.is_empty() && blocks.is_empty() {
        said.push("");
    }
    flush(&mut said, messages);
    Ok(())
}

fn read_result(block: &Fields<'_>) -> Result<Message, ApiError> {
    let content = match block.get("content") {
        None => String::new(),
        Some(content) => text(content, &block.name("content"), |text| text)?,
    };
    let failed = block.boolean("is_error")?.unwrap_or(false);
    // Templates have no place for the flag, so the model is told in words, unless the result says it.
    let told = content.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    let content = if failed && !told { format!("Error: {content}") } else { content };
    let mut message = Message::new(Role::Tool, content);
    message.tool_call_id = Some(block.required_string("tool_use_id")?.to_owned());
    Ok(message)
}

fn read_assistant(content: &Value, path: &str) -> Result<Message, ApiError> {
    let mut message = Message::new(Role::Assistant, "");
    let blocks = match content {
        Value::String(text) => {
            message.content.clone_from(text);
            return Ok(message);
        }
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(path, "must be a string or a list of blocks")),
    };
    for (index, value) in blocks.iter().enumerate() {
        let block = Fields::at(value, &format!("{path}[{index}]"))?;
        match block.required_string("type")? {
            "text" => message.content.push_str(block.required_string("text")?),
            "thinking" => {
                let thought = block.required_string("thinking")?;
                if !thought.is_empty() {
                    message.reasoning.get_or_insert_default().push_str(thought);
                }
            }
            "tool_use" => {
                let input = block.get("input").unwrap_or(&Value::Null);
                let arguments =
                    parse_arguments(input).map_err(|problem| block.error("input", problem))?;
                message.tool_calls.push(ToolCall {
                    id: block.string("id")?.map(str::to_owned),
                    name: block.required_string("name")?.to_owned(),
                    arguments,
                });
            }
            // Of servers that are not this one: encrypted thoughts, and tools that they ran.
            "redacted_thinking" | "server_tool_use" => {}
            other if other.ends_with("_tool_result") => {}
            other => return Err(unsupported(&block, other)),
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_value(body: &Value) -> Result<Vec<Message>, ApiError> {
        read(&Fields::of(body.as_object().expect("an object")))
    }

    #[test]
    fn results_and_text_of_one_turn_become_messages_in_order() {
        let body = json!({
            "system": [
                { "type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f3;" },
                { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
                { "type": "text", "text": "Be kind." },
            ],
            "messages": [
                { "role": "user", "content": "What is it?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "I ask.", "signature": "s" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "Asking." },
                    { "type": "tool_use", "id": "toolu_1", "name": "ask", "input": { "q": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
                      "content": [{ "type": "text", "text": "no answer" }] },
                    { "type": "text", "text": "Try" },
                    { "type": "text", "text": "again." },
                ] },
                { "role": "system", "content": "Late." },
            ],
        });
        let messages = read_value(&body).expect("is read");
        let told: Vec<(Role, &str)> =
            messages.iter().map(|message| (message.role, message.content.as_str())).collect();
        let expected = [
            (Role::System, "Be brief.\n\nBe kind."),
            (Role::User, "What is it?"),
            (Role::Assistant, "Asking."),
            (Role::Tool, "Error: no answer"),
            (Role::User, "Try\n\nagain."),
            (Role::User, "Late."),
        ];
        assert_eq!(told, expected);
        assert_eq!(messages[2].reasoning.as_deref(), Some("I ask."));
        assert_eq!(messages[2].tool_calls[0].arguments["q"], 1);
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("toolu_1"));
    }

    #[test]
    fn mistakes_are_named_by_their_place() {
        let cases = [
            (json!({}), "messages: "),
            (json!({ "messages": [] }), "messages: "),
            (json!({ "messages": [{ "content": "x" }] }), "messages[0].role: "),
            (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role: "),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content: "),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
                "messages[0].content[0].type: ",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content":
                    [{ "type": "tool_use", "name": "f", "input": [] }] }] }),
                "messages[0].content[0].input: ",
            ),
        ];
        for (body, place) in cases {
            let error = read_value(&body).expect_err("is refused");
            assert!(error.message().starts_with(place), "{body}: {}", error.message());
        }
    }
}

//! Conversations: what the protocols agree on once their envelopes are taken off.
//!
//! `from_openai` reads the message objects of the chat completions protocol with the mercy that real clients
//! need and templates lack: content that is null, a string or a list of text parts; `developer` for
//! `system`, `function` for `tool`; arguments as a JSON string, which becomes the mapping that templates iterate;
//! several system messages: the leading ones are merged and later ones become user messages (Qwen's
//! templates refuse a system message that is not first). The other protocols build `Message` directly.

use super::TextError;
use serde_json::{Map, Value};
use store::shown::quoted;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions; only as the first message.
    System,
    /// The person, or whatever speaks for them.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name that templates use.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A call that the model made earlier.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The identifier that links it to its result; templates of the supported families do not print it.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments, in order.
    pub arguments: Map<String, Value>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; for a tool, what it returned.
    pub content: String,
    /// The thinking before an assistant's answer. Pass it here and not inside `content`: tags in a content
    /// are text (see `ChatTemplate::render` for the one exception).
    pub reasoning: Option<String>,
    /// Calls made by an assistant.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// Name of the speaker or tool.
    pub name: Option<String>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Reads the `messages` of a chat completions request.
    pub fn from_openai(messages: &[Value]) -> Result<Vec<Self>, TextError> {
        let parsed: Result<Vec<Self>, TextError> =
            messages.iter().enumerate().map(|(index, value)| parse_message(index, value)).collect();
        Ok(arrange_system(parsed?))
    }
}

/// Merges leading system messages (a blank line between them) and turns later ones into user messages.
pub fn arrange_system(messages: Vec<Message>) -> Vec<Message> {
    let mut arranged: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in messages {
        if message.role == Role::System {
            match arranged.as_mut_slice() {
                [] => {}
                [first] if first.role == Role::System => {
                    if !first.content.is_empty() && !message.content.is_empty() {
                        first.content.push_str("\n\n");
                    }
                    first.content.push_str(&message.content);
                    continue;
                }
                _ => message.role = Role::User,
            }
        }
        arranged.push(message);
    }
    arranged
}

/// The mapping in an `arguments` field: a JSON object, or a string that holds one. Empty means no arguments.
pub fn parse_arguments(value: &Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(map) => Ok(map.clone()),
        Value::Null => Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(other) => Err(format!("must hold a JSON object, not {}", kind(&other))),
            Err(error) => Err(format!("does not hold a JSON object: {error}")),
        },
        other => {
            Err(format!("must be a JSON object or a string that holds one, not {}", kind(other)))
        }
    }
}

fn parse_message(index: usize, value: &Value) -> Result<Message, TextError> {
    let Value::Object(fields) = value else {
        return Err(TextError::message(
            index,
            "",
            format!("must be an object, not {}", kind(value)),
        ));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        Some(other) => {
            return Err(TextError::message(
                index,
                ".role",
                format!(
                    "{} is not one of system, developer, user, assistant, tool, function",
                    quoted(other)
                ),
            ));
        }
        None => return Err(TextError::message(index, ".role", "must be a string")),
    };
    let text = |field: &str| match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(TextError::message(
            index,
            format!(".{field}"),
            format!("must be a string, not {}", kind(other)),
        )),
    };
    let reasoning = match text("reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => text("reasoning")?,
    };
    Ok(Message {
        role,
        content: parse_content(index, fields.get("content"))?,
        reasoning: reasoning.filter(|_| role == Role::Assistant),
        tool_calls: parse_tool_calls(index, role, fields)?,
        tool_call_id: text("tool_call_id")?,
        name: text("name")?,
    })
}

/// Parts of text are joined without a separator, as templates do.
fn parse_content(index: usize, content: Option<&Value>) -> Result<String, TextError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let mut joined = String::new();
            for (part_index, part) in parts.iter().enumerate() {
                let field = || format!(".content[{part_index}]");
                if let Value::String(text) = part {
                    joined.push_str(text);
                    continue;
                }
                match part.get("type").and_then(Value::as_str) {
                    Some("text" | "input_text" | "output_text") => {
                        let text = part.get("text").and_then(Value::as_str).ok_or_else(|| {
                            TextError::message(index, field(), "has no string in its field text")
                        })?;
                        joined.push_str(text);
                    }
                    Some(other) => {
                        return Err(TextError::message(
                            index,
                            field(),
                            format!(
                                "type {} is not supported by this model; text is",
                                quoted(other)
                            ),
                        ));
                    }
                    None => return Err(TextError::message(index, field(), "has no type")),
                }
            }
            Ok(joined)
        }
        Some(other) => Err(TextError::message(
            index,
            ".content",
            format!("must be a string, null or a list of parts, not {}", kind(other)),
        )),
    }
}

fn parse_tool_calls(
    index: usize,
    role: Role,
    fields: &Map<String, Value>,
) -> Result<Vec<ToolCall>, TextError> {
    let calls = match fields.get("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(TextError::message(index, ".tool_calls", "must be a list")),
    };
    if role != Role::Assistant && !calls.is_empty() {
        return Err(TextError::message(index, ".tool_calls", "only an assistant calls tools"));
    }
    let call = |(call_index, call): (usize, &Value)| {
        let field = |rest: &str| format!(".tool_calls[{call_index}]{rest}");
        let function = call.get("function").unwrap_or(call);
        let name = function
            .get("name")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| TextError::message(index, field(".function.name"), "is missing"))?;
        let arguments = parse_arguments(function.get("arguments").unwrap_or(&Value::Null))
            .map_err(|problem| TextError::message(index, field(".function.arguments"), problem))?;
        let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
        Ok(ToolCall { id, name: name.to_owned(), arguments })
    };
    calls.iter().enumerate().map(call).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

//! The request.
//!
//! Tools that are no functions are skipped: Codex offers searching, patching by grammar and a shell to every server. A
//! conversation that this server would have to have stored is refused by name, and so is work in the background.
//! Without `max_output_tokens` an answer may go on to the end of the context, because Codex sends none and takes a
//! cut-off answer for a failure.

use serde_json::{Map, Value, json};
use store::shown::quoted;
use text::sampling::TOP_LOGPROBS_MAX;
use text::{Message, OnFull, Role, arrange_system};

use super::{Form, history};
use crate::http::ApiError;
use crate::protocol::{Choice, Defaults, Draft, Fields, check_tools, function_tool};
use crate::work::Constraint;

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) draft: Draft,
    pub(crate) stream: bool,
    pub(crate) form: Form,
}

impl Request {
    pub(super) fn read(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let mut draft = Draft::new(fields, defaults)?;
        let mut messages = Vec::new();
        if let Some(instructions) = fields.string("instructions")?.filter(|text| !text.is_empty()) {
            messages.push(Message::new(Role::System, instructions));
        }
        messages.extend(history::read(fields)?);
        draft.conversation.messages = arrange_system(messages);
        draft.max_tokens = fields.token_limit("max_output_tokens")?.or(draft.max_tokens);
        draft.note_limits(fields, &["max_output_tokens"])?;
        read_truncation(fields, &mut draft)?;
        let reasoning = fields.object("reasoning")?;
        let mut summary = false;
        if let Some(reasoning) = &reasoning {
            if let Some(effort) = reasoning.string("effort")? {
                draft.set_effort(effort, "reasoning.effort")?;
            }
            summary = reasoning.string("summary")?.is_some_and(|summary| summary != "none");
        }
        draft.set_format(read_format(fields)?)?;
        draft.set_tools(read_tools(fields)?, &read_choice(fields)?, "tool_choice")?;
        draft.output.parallel_tool_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let include = fields.strings("include")?;
        let included = |name: &str| include.iter().any(|item| item == name);
        if included("message.output_text.logprobs") {
            draft.top_logprobs = Some(read_top_logprobs(fields)?);
        }
        let form = Form {
            summary,
            encrypted: included("reasoning.encrypted_content"),
            echo: echo(fields, &draft),
        };
        Ok(Self { draft, stream: fields.boolean("stream")?.unwrap_or(false), form })
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    if fields.get("prompt").is_some() {
        return Err(fields.error("prompt", "templates are not stored here; use instructions"));
    }
    Ok(())
}

/// The protocol's own name for what `on_full` says, which wins.
fn read_truncation(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    let on_full = match fields.string("truncation")? {
        None => return Ok(()),
        Some("auto") => OnFull::DropOldest,
        Some("disabled") => OnFull::Stop,
        Some(other) => {
            let problem = format!("{} is not one of auto, disabled", quoted(other));
            return Err(fields.error("truncation", problem));
        }
    };
    draft.conversation.on_full.get_or_insert(on_full);
    Ok(())
}

fn read_top_logprobs(fields: &Fields<'_>) -> Result<u8, ApiError> {
    let top = fields.integer("top_logprobs")?.unwrap_or(0);
    let top = u8::try_from(top).ok().filter(|&top| usize::from(top) <= TOP_LOGPROBS_MAX);
    top.ok_or_else(|| fields.error("top_logprobs", format!("must be from 0 to {TOP_LOGPROBS_MAX}")))
}

fn read_format(fields: &Fields<'_>) -> Result<Option<(Constraint, String)>, ApiError> {
    let text = fields.object("text")?;
    let Some(format) = text.map(|text| text.object("format")).transpose()?.flatten() else {
        return Ok(None);
    };
    match format.required_string("type")? {
        "text" => Ok(None),
        "json_object" => Ok(Some((Constraint::JsonObject, format.name("type")))),
        "json_schema" => {
            let schema =
                format.get("schema").ok_or_else(|| format.error("schema", "is missing"))?;
            Ok(Some((Constraint::JsonSchema(schema.clone()), format.name("schema"))))
        }
        other => {
            let problem = format!("{} is not one of text, json_object, json_schema", quoted(other));
            Err(format.error("type", problem))
        }
    }
}

fn read_tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut tools = Vec::new();
    let list = fields.list("tools")?.map(Vec::as_slice).unwrap_or_default();
    check_tools(list)?;
    for (index, tool) in list.iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = Fields::at(tool, &path)?;
        if tool.required_string("type")? == "function" {
            let part = |name| tool.get(name);
            let tool = function_tool(&path, part("name"), part("description"), part("parameters"))?;
            tools.push(tool);
        }
    }
    Ok(tools)
}

fn read_choice(fields: &Fields<'_>) -> Result<Choice, ApiError> {
    let unknown = |other: &str| {
        fields.error(
            "tool_choice",
            format!("{} is not one of auto, none, required, function", quoted(other)),
        )
    };
    match fields.get("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => Err(unknown(other)),
        },
        Some(choice) => {
            let choice = Fields::at(choice, "tool_choice")?;
            match choice.required_string("type")? {
                "function" => Ok(Choice::Named(choice.required_string("name")?.to_owned())),
                other => Err(unknown(other)),
            }
        }
    }
}

/// What the response repeats. SDKs need these fields to be there.
fn echo(fields: &Fields<'_>, draft: &Draft) -> Map<String, Value> {
    let given = |name: &str, default: Value| fields.get(name).cloned().unwrap_or(default);
    let reasoning = fields.get("reasoning").and_then(Value::as_object);
    let part = |name: &str| reasoning.and_then(|part| part.get(name)).cloned();
    let fields = [
        ("instructions", given("instructions", Value::Null)),
        ("max_output_tokens", json!(draft.max_tokens)),
        ("metadata", given("metadata", json!({}))),
        ("parallel_tool_calls", json!(draft.output.parallel_tool_calls)),
        ("reasoning", json!({ "effort": part("effort"), "summary": part("summary") })),
        ("temperature", json!(draft.sampling.temperature)),
        ("text", given("text", json!({ "format": { "type": "text" } }))),
        ("tool_choice", given("tool_choice", json!("auto"))),
        ("tools", given("tools", json!([]))),
        ("truncation", given("truncation", json!("disabled"))),
        ("top_p", json!(draft.sampling.top_p)),
        ("user", given("user", Value::Null)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

//! The request: every field is honoured, refused by name, or is one that asks for nothing.
//!
//! Refused are fields whose neglect would make the answer another than the one asked for: several choices, audio,
//! tools that are no functions. Ignored are `user`, `metadata`, `store`, `service_tier` and whatever is unknown.

use serde_json::{Map, Value};
use store::shown::quoted;
use text::Message;
use text::sampling::TOP_LOGPROBS_MAX;

use crate::http::ApiError;
use crate::protocol::{Choice, Defaults, Draft, Fields, check_tools, text_error, tool_of_function};
use crate::work::Constraint;

/// Names under which thinking is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReasoningNames {
    /// `reasoning_content`: DeepSeek, llama.cpp.
    pub(crate) reasoning_content: bool,
    /// `reasoning`: vLLM since 0.16, Ollama, mlx.
    pub(crate) reasoning: bool,
}

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) draft: Draft,
    pub(crate) stream: bool,
    /// The last chunk has the usage and no choices.
    pub(crate) include_usage: bool,
    /// Chunks tell where the prefill is.
    pub(crate) return_progress: bool,
    pub(crate) names: ReasoningNames,
}

impl Request {
    pub(super) fn read(body: &Map<String, Value>, defaults: Defaults) -> Result<Self, ApiError> {
        let fields = Fields::of(body);
        refuse_unsupported(&fields)?;
        let mut draft = Draft::new(&fields, defaults)?;
        let messages =
            fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
        if messages.is_empty() {
            return Err(fields.error("messages", "must not be empty"));
        }
        draft.conversation.messages = Message::from_openai(messages).map_err(text_error)?;
        draft.max_tokens = match fields.token_limit("max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => fields.token_limit("max_tokens")?,
        };
        draft.set_stop(fields.strings("stop")?, "stop")?;
        draft.top_logprobs = read_logprobs(&fields)?;
        read_thinking(&fields, &mut draft)?;
        draft.constraint = read_format(&fields)?;
        draft.set_tools(read_tools(&fields)?, &read_choice(&fields)?, "tool_choice")?;
        draft.output.parallel_tool_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let stream_options = fields.object("stream_options")?;
        let include_usage = match stream_options {
            Some(options) => options.boolean("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Self {
            draft,
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage,
            return_progress: fields.boolean("return_progress")?.unwrap_or(false),
            names: read_names(&fields)?,
        })
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(n) = fields.integer("n")?.filter(|&n| n != 1) {
        return Err(fields.error("n", format!("is {n}; one answer at a time is served")));
    }
    if fields.get("audio").is_some() {
        return Err(fields.error("audio", "is not supported; answers are text"));
    }
    let modalities = fields.strings("modalities")?;
    if modalities.iter().any(|modality| modality != "text") {
        return Err(fields.error("modalities", "only text is supported"));
    }
    for field in ["functions", "function_call"] {
        if fields.get(field).is_some() {
            return Err(fields.error(field, "is not supported; use tools and tool_choice"));
        }
    }
    if fields.get("web_search_options").is_some() {
        return Err(
            fields.error("web_search_options", "is not supported; nothing is searched here")
        );
    }
    Ok(())
}

fn read_logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let top = fields.integer("top_logprobs")?;
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let limit = i64::try_from(TOP_LOGPROBS_MAX).unwrap_or(i64::MAX);
    if top.is_some_and(|top| !(0..=limit).contains(&top)) {
        return Err(fields.error("top_logprobs", format!("must be from 0 to {limit}")));
    }
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.error("top_logprobs", "needs logprobs to be true"));
    }
    Ok(wanted.then(|| u8::try_from(top.unwrap_or(0)).unwrap_or(u8::MAX)))
}

/// `reasoning_effort`, `thinking_budget` (the name of Qwen's own service) and `chat_template_kwargs`; the last is
/// nearer to the template and wins.
fn read_thinking(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    if let Some(effort) = fields.string("reasoning_effort")? {
        draft.set_effort(effort, "reasoning_effort")?;
    }
    draft.thinking_budget = fields.token_limit("thinking_budget")?;
    let Some(variables) = fields.object("chat_template_kwargs")? else { return Ok(()) };
    if let Some(thinking) = variables.boolean("enable_thinking")? {
        draft.conversation.thinking = Some(thinking);
    }
    for (name, value) in variables.map() {
        if name != "enable_thinking" {
            draft.conversation.template_variables.insert(name.clone(), value.clone());
        }
    }
    Ok(())
}

fn read_names(fields: &Fields<'_>) -> Result<ReasoningNames, ApiError> {
    let names = |reasoning_content, reasoning| ReasoningNames { reasoning_content, reasoning };
    match fields.string("reasoning_format")? {
        None | Some("auto" | "deepseek" | "reasoning_content") => Ok(names(true, false)),
        Some("reasoning") => Ok(names(false, true)),
        Some("both") => Ok(names(true, true)),
        // Thinking inside the text cannot be told from text, so that is not offered.
        Some(other) => {
            let problem = format!(
                "{} is not one of auto, deepseek, reasoning_content, reasoning, both",
                quoted(other)
            );
            Err(fields.error("reasoning_format", problem))
        }
    }
}

fn read_format(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.required_string("type")? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Constraint::JsonObject)),
        "json_schema" => {
            let outer = format
                .object("json_schema")?
                .ok_or_else(|| format.error("json_schema", "is missing"))?;
            let schema = outer.get("schema").ok_or_else(|| outer.error("schema", "is missing"))?;
            Ok(Some(Constraint::JsonSchema(schema.clone())))
        }
        other => {
            let problem = format!("{} is not one of text, json_object, json_schema", quoted(other));
            Err(format.error("type", problem))
        }
    }
}

fn read_tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = fields.list("tools")?.map(Vec::as_slice).unwrap_or_default();
    check_tools(tools)?;
    let read = |(index, tool): (usize, &Value)| {
        let path = format!("tools[{index}]");
        let tool = Fields::at(tool, &path)?;
        match tool.string("type")? {
            None | Some("function") => {}
            Some(other) => {
                let problem = format!("{} is not supported; function is", quoted(other));
                return Err(tool.error("type", problem));
            }
        }
        tool_of_function(&tool, &path)
    };
    tools.iter().enumerate().map(read).collect()
}

fn read_choice(fields: &Fields<'_>) -> Result<Choice, ApiError> {
    match fields.get("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => {
                let problem = format!("{} is not one of auto, none, required", quoted(other));
                Err(fields.error("tool_choice", problem))
            }
        },
        Some(choice) => {
            let choice = Fields::at(choice, "tool_choice")?;
            match choice.required_string("type")? {
                "function" => {
                    let function = choice.object("function")?;
                    let function =
                        function.ok_or_else(|| choice.error("function", "is missing"))?;
                    Ok(Choice::Named(function.required_string("name")?.to_owned()))
                }
                other => Err(choice.error("type", format!("{} is not supported", quoted(other)))),
            }
        }
    }
}

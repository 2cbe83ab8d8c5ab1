//! The request: every field is honoured, refused by name, or is one that asks for nothing.
//!
//! What becomes of fields that are not read here stands in `protocol::known`.

use serde_json::Value;
use store::shown::quoted;
use text::Message;
use text::sampling::TOP_LOGPROBS_MAX;

use crate::http::ApiError;
use crate::protocol::{
    Choice, Defaults, Draft, Fields, check_tools, read_thinking, response_format, text_error,
    tool_of_function,
};

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
    pub(super) fn read(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let mut draft = Draft::new(fields, defaults)?;
        let messages =
            fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
        if messages.is_empty() {
            return Err(fields.error("messages", "must not be empty"));
        }
        draft.conversation.messages = Message::from_openai(messages).map_err(text_error)?;
        // The newer name counts where both are given.
        let (newer, older) =
            (fields.token_limit("max_completion_tokens")?, fields.token_limit("max_tokens")?);
        draft.max_tokens = newer.or(older).or(draft.max_tokens);
        draft.note_limits(fields, &["max_completion_tokens", "max_tokens"])?;
        draft.set_stop(fields.strings("stop")?, "stop")?;
        draft.top_logprobs = read_logprobs(fields)?;
        read_thinking(fields, &mut draft)?;
        draft.set_format(response_format(fields)?)?;
        draft.set_tools(read_tools(fields)?, &read_choice(fields)?, "tool_choice")?;
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
            names: read_names(fields)?,
        })
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let modalities = fields.strings("modalities")?;
    if modalities.iter().any(|modality| modality != "text") {
        return Err(fields.error("modalities", "only text is supported"));
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

//! The request.
//!
//! Thinking is off unless it is asked for, as the protocol has it: its clients send short requests for titles with
//! few tokens to spend and none to think. Tools that Anthropic's servers would run are skipped, because
//! agents offer them to everybody; so are `metadata`, `context_management`, `service_tier` and every beta.

use serde_json::Value;
use store::shown::quoted;

use super::history;
use crate::http::ApiError;
use crate::protocol::{Choice, Defaults, Draft, Fields, Understand, check_tools, function_tool};
use crate::work::Constraint;

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) draft: Draft,
    pub(crate) stream: bool,
    /// False: blocks of thinking are there, but empty.
    pub(crate) show_thinking: bool,
}

impl Request {
    pub(super) fn read(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        let mut draft = Draft::new(fields, defaults)?;
        draft.conversation.messages = history::read(fields)?;
        draft.max_tokens = fields.token_limit("max_tokens")?.or(draft.max_tokens);
        draft.note_limits(fields, &["max_tokens"])?;
        draft.set_stop(fields.strings("stop_sequences")?, "stop_sequences")?;
        let show_thinking = read_thinking(fields, &mut draft)?;
        read_output(fields, &mut draft)?;
        read_tools(fields, &mut draft)?;
        if let (None, Some(metadata)) = (&draft.session, fields.object("metadata")?) {
            // Claude Code's contains the session; others name a person, which is as good a hint.
            draft.session = metadata.string("user_id")?.map(str::to_owned);
        }
        let stream = fields.boolean("stream")?.unwrap_or(false);
        Ok(Self { draft, stream, show_thinking })
    }
}

/// A request to count the tokens of a prompt: the same fields; those about the answer do not matter.
#[derive(Clone, Debug)]
pub(crate) struct Count(Draft);

impl Understand for Count {
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        Request::read(fields, defaults).map(|request| Self(request.draft))
    }

    fn draft(&self) -> &Draft {
        &self.0
    }

    fn draft_mut(&mut self) -> &mut Draft {
        &mut self.0
    }
}

fn read_thinking(fields: &Fields<'_>, draft: &mut Draft) -> Result<bool, ApiError> {
    let Some(thinking) = fields.object("thinking")? else {
        draft.conversation.thinking = Some(false);
        return Ok(true);
    };
    draft.thinking_budget = thinking.token_limit("budget_tokens")?;
    draft.conversation.thinking = match thinking.required_string("type")? {
        "enabled" | "adaptive" => Some(true),
        "disabled" => Some(false),
        other => {
            let problem = format!("{} is not one of enabled, adaptive, disabled", quoted(other));
            return Err(thinking.error("type", problem));
        }
    };
    Ok(thinking.string("display")? != Some("omitted"))
}

/// `output_config`, and `output_format` of its beta.
fn read_output(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    let config = fields.object("output_config")?;
    if let Some(config) = &config
        && let Some(effort) = config.string("effort")?
    {
        // How much to think, not whether to.
        let variables = &mut draft.conversation.template_variables;
        variables.insert("reasoning_effort".to_owned(), Value::String(effort.to_owned()));
    }
    let inner = config.map(|config| config.object("format")).transpose()?.flatten();
    let Some(format) =
        inner.map_or_else(|| fields.object("output_format"), |inner| Ok(Some(inner)))?
    else {
        return Ok(());
    };
    match format.required_string("type")? {
        "json_schema" => {
            let schema =
                format.get("schema").ok_or_else(|| format.error("schema", "is missing"))?;
            let constraint = Constraint::JsonSchema(schema.clone());
            draft.set_format(Some((constraint, format.name("schema"))))
        }
        other => {
            Err(format.error("type", format!("{} is not supported; json_schema is", quoted(other))))
        }
    }
}

fn read_tools(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    let mut tools = Vec::new();
    let list = fields.list("tools")?.map(Vec::as_slice).unwrap_or_default();
    check_tools(list)?;
    for (index, tool) in list.iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = Fields::at(tool, &path)?;
        if tool.string("type")?.is_some_and(|kind| kind != "custom") {
            continue;
        }
        let part = |name| tool.get(name);
        tools.push(function_tool(&path, part("name"), part("description"), part("input_schema"))?);
    }
    let mut choice = Choice::Auto;
    if let Some(given) = fields.object("tool_choice")? {
        choice = match given.required_string("type")? {
            "auto" => Choice::Auto,
            "any" => Choice::Required,
            "none" => Choice::None,
            "tool" => Choice::Named(given.required_string("name")?.to_owned()),
            other => {
                let problem = format!("{} is not one of auto, any, tool, none", quoted(other));
                return Err(given.error("type", problem));
            }
        };
        let single = given.boolean("disable_parallel_tool_use")?.unwrap_or(false);
        draft.output.parallel_tool_calls = !single;
    }
    draft.set_tools(tools, &choice, "tool_choice")
}

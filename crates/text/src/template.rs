//! The chat template of a checkpoint: a conversation to one prompt text, with its control tokens known.
//!
//! Templates are Jinja programs that come with the model. They run in minijinja, with the functions that transformers
//! gives them (`python.rs`), in a process of their own (`program/`). The result is compared byte for byte with
//! transformers in tests/text_golden.rs.
//!
//! **Text of users never becomes a control token.** Every string that is not the template's own is marked before
//! the template sees it: a Unicode noncharacter that occurs nowhere in the input is put inside each
//! occurrence of a control token's text. What is whole in the output is therefore the template's, and its place is
//! recorded; then the marks are removed. `Tokenizer::encode_rendered` makes tokens of the recorded
//! places only.
//!
//! The price is that a template cannot recognise control tokens in the text of users either. Qwen's templates do
//! so twice. A user message inside `<tool_response>` tags counts as a tool result there; here it is a
//! user message (send role `tool`). And an assistant content with `</think>` is split into thinking and
//! answer; that one is kept, by splitting before marking (`split_reasoning`).

use super::control::ControlTokens;
use super::program::{OutputLimit, Program, TemplateHost};
use super::replay::{self, Part, SampledTurn, Segment};
use super::{Dialect, Message, Role, TextError, python, responses, single};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::sync::Arc;

/// Longest known template: 20 KiB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Variables that a caller cannot set through `RenderOptions::extra`.
const RESERVED: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", python::CLOCK];

/// Special tokens that templates may print, from tokenizer_config.json.
#[derive(Debug, Clone, Default)]
pub struct TemplateTokens {
    /// Name (`bos_token`, `eos_token`, `pad_token`, ...) and text.
    tokens: Vec<(String, String)>,
}

impl TemplateTokens {
    /// Reads every field `*_token` that is a string or an object with a string `content`.
    pub fn from_config(config: &Value) -> Self {
        let mut tokens = Vec::new();
        for (name, value) in config.as_object().into_iter().flatten() {
            let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                tokens.push((name.clone(), text.to_owned()));
            }
        }
        Self { tokens }
    }
}

/// How a conversation is rendered.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Ends the prompt with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The template's variable `enable_thinking`; `None` leaves it undefined, which is the model's default.
    pub enable_thinking: Option<bool>,
    /// Further variables (`chat_template_kwargs` of a request).
    pub extra: Map<String, Value>,
    /// The time that `strftime_now` sees, in seconds since 1970 UTC; `None` is the present.
    pub now_s: Option<u64>,
    /// Most bytes of the prompt; `None` for the limit of all prompts.
    pub bytes_max: Option<usize>,
}

/// A control token in a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlSpan {
    /// Its bytes in the text.
    pub range: Range<usize>,
    /// Its token.
    pub id: u32,
}

/// Where a prompt leaves the model's thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The answer begins inside it (Qwen3.5 and later).
    Open,
    /// It was closed by the template: thinking is off.
    Closed,
    /// The prompt says nothing: the model may open it (Qwen3) or not think at all.
    Unopened,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    controls: Vec<ControlSpan>,
    replayed: Vec<ReplayedSpan>,
}

/// A sampled turn in a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedSpan {
    /// Its bytes in the text.
    pub range: Range<usize>,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

impl Rendered {
    /// The prompt as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The places of `text` that are sampled turns, in order: their tokens are given, not made from the text.
    pub fn replayed(&self) -> &[ReplayedSpan] {
        &self.replayed
    }

    /// The places of `text` that are control tokens of the template, in order. All the rest but the sampled turns is
    /// ordinary text, whatever it says.
    pub fn controls(&self) -> &[ControlSpan] {
        &self.controls
    }

    /// Whether the prompt ends with an open `<think>`, so that the answer begins inside the thinking.
    pub fn opens_reasoning(&self) -> bool {
        self.thinking() == Thinking::Open
    }

    /// Where the prompt leaves the model's thinking.
    pub fn thinking(&self) -> Thinking {
        let end = self.text.trim_end();
        let ends = |texts: [&str; 3]| texts.iter().any(|text| end.ends_with(text));
        if ends(["<think>", "<|channel|>analysis<|message|>", "<|channel>thought"]) {
            Thinking::Open
        } else if ends(["</think>", "<|channel|>final<|message|>", "<channel|>"]) {
            Thinking::Closed
        } else {
            Thinking::Unopened
        }
    }
}

/// A compiled chat template together with the control tokens of its tokenizer.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    program: Program,
    tokens: TemplateTokens,
    controls: Arc<ControlTokens>,
    /// The template puts pieces of control tokens together itself, so that the ends of strings matter too.
    builds_controls: bool,
    /// The template looks for thinking inside an assistant's content.
    splits_reasoning: bool,
    /// The source, to keep the mark out of it.
    source: String,
    wants: Wants,
}

/// What a template expects of messages, beyond what all do.
#[derive(Debug, Clone, Copy, Default)]
struct Wants {
    /// Thinking in a field `thinking`, and nothing else that is said before a call.
    thinking: bool,
    /// Arguments of calls as text, which it prints as it is.
    text_arguments: bool,
    /// One call a message: it prints no other.
    single_calls: bool,
    /// A description of every tool.
    descriptions: bool,
    /// Results of tools inside the turn that called them.
    responses: bool,
}

impl Wants {
    /// A tool as the template takes it.
    fn tool(self, tool: &Value) -> Value {
        let mut tool = tool.clone();
        if self.descriptions
            && let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut)
        {
            function.entry("description").or_insert_with(|| "".into());
        }
        tool
    }

    fn of(source: &str) -> Self {
        let dense: String = source.chars().filter(|c| !c.is_whitespace()).collect();
        let has = |texts: &[&str]| texts.iter().any(|text| dense.contains(text));
        let harmony = Dialect::of(source) == Dialect::Harmony;
        Self {
            thinking: has(&["message.thinking", "message['thinking']"]),
            text_arguments: has(&[
                "['arguments']+",
                ".arguments+",
                "+tool['function']['arguments']}",
            ]),
            descriptions: has(&["+tool.description"]),
            responses: has(&["message['tool_responses']", "message.tool_responses"])
                && !has(&["=='tool'", "==\"tool\""]),
            single_calls: harmony && has(&["message.tool_calls[0]", "['tool_calls'][0]"]),
        }
    }
}

impl ChatTemplate {
    /// Compiles a template, where `host` says.
    pub fn new(
        source: &str,
        tokens: TemplateTokens,
        controls: Arc<ControlTokens>,
        host: &TemplateHost,
    ) -> Result<Self, TextError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TextError::TemplateSyntax {
                problem: format!(
                    "{} bytes are more than the limit of {SOURCE_BYTES_MAX}",
                    source.len()
                ),
            });
        }
        let program = Program::compile(source, host)?;
        let unescaped = source.replace("\\n", "\n").replace("\\t", "\t");
        Ok(Self {
            builds_controls: controls.built_piecewise_in(&unescaped),
            splits_reasoning: source.contains("</think>"),
            program,
            tokens,
            controls,
            source: source.to_owned(),
            wants: Wants::of(source),
        })
    }

    /// Renders a conversation.
    ///
    /// An assistant content with `</think>` in it and no separate reasoning is split as Qwen's templates
    /// split it, if this template does. `tools` are passed as given (chat completions shape).
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
    ) -> Result<Rendered, TextError> {
        self.render_replaying(messages, tools, options, &mut |_| None)
    }

    /// [`ChatTemplate::render`] with the tokens of answers that were sampled here in the place of their messages:
    /// `sampled` is asked for every assistant message (`SampledTurns::find`).
    pub fn render_replaying(
        &self,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
        sampled: &mut dyn FnMut(&Message) -> Option<Arc<SampledTurn>>,
    ) -> Result<Rendered, TextError> {
        let [mark, sign] = self.choose_marks(messages, tools, options)?;
        let marker = Marker { controls: &self.controls, mark, at_start: self.builds_controls };
        let mut turns = Vec::new();
        let message = |message: &Message| {
            let turn = Some(message).filter(|message| message.role == Role::Assistant);
            let Some(turn) = turn.and_then(&mut *sampled) else {
                return self.message(message, &marker);
            };
            let mut fields = json!({ "role": message.role.name() });
            let stand_in = |part| replay::stand_in(sign, part, turns.len());
            fields["content"] = stand_in(Part::Content).into();
            if turn.thinks() {
                fields["reasoning_content"] = stand_in(Part::Reasoning).into();
            }
            turns.push(turn);
            fields
        };
        let given = messages;
        let single = if self.wants.single_calls { single::split(given) } else { None };
        let messages: Vec<Value> = single.as_deref().unwrap_or(given).iter().map(message).collect();
        let messages = match self.wants.responses {
            false => messages,
            true => responses::joined(given, messages, &|value| marker.value(value)),
        };
        let tools = match tools {
            [] => Value::Null,
            tools => marker.value(&tools.iter().map(|tool| self.wants.tool(tool)).collect()),
        };
        let mut context = Map::new();
        for (name, value) in &options.extra {
            if RESERVED.contains(&name.as_str()) {
                return Err(TextError::value(
                    format!("chat_template_kwargs.{name}"),
                    "cannot be set here",
                ));
            }
            context.insert(name.clone(), marker.value(value));
        }
        for (name, text) in &self.tokens.tokens {
            context.insert(name.clone(), Value::String(text.clone()));
        }
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), tools);
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        if let Some(now_s) = options.now_s {
            context.insert(python::CLOCK.to_owned(), now_s.into());
        }
        let limit = OutputLimit { text_bytes: options.bytes_max, marks: [mark, sign] };
        let output =
            self.program.run(Value::Object(context), limit).map_err(|error| match error {
                TextError::TemplateRefused { message } => {
                    TextError::TemplateRefused { message: message.replace(mark, "") }
                }
                other => other,
            })?;
        Ok(unmark(&output, [mark, sign], &self.controls, &turns))
    }

    /// One message as templates expect it, all strings marked.
    fn message(&self, message: &Message, marker: &Marker<'_>) -> Value {
        let mut content = marker.text(&message.content);
        let mut reasoning = message.reasoning.as_deref().map(|text| marker.text(text));
        if self.splits_reasoning
            && message.role == Role::Assistant
            && reasoning.is_none()
            && let Some((thought, answer)) = split_reasoning(&message.content)
        {
            reasoning = Some(marker.text(thought));
            content = marker.text(answer);
            // The templates trim before they split: white space after the tag is kept by them.
            if answer.starts_with(python::is_space) && !answer.chars().all(python::is_space) {
                content.insert(0, marker.mark);
            }
        }
        if self.wants.thinking && !message.tool_calls.is_empty() && reasoning.is_some() {
            // Such a template takes one of the two before a call, and prints either as thoughts.
            let said = std::mem::take(&mut content);
            reasoning = reasoning.map(|thought| match said.trim() {
                "" => thought,
                _ => thought + "\n\n" + &said,
            });
        }
        let mut fields = json!({ "role": message.role.name(), "content": content });
        if let Some(thinking) = reasoning.as_ref().filter(|_| self.wants.thinking) {
            fields["thinking"] = Value::String(thinking.clone());
        }
        if let Some(reasoning) = reasoning {
            fields["reasoning_content"] = Value::String(reasoning);
        }
        if !message.tool_calls.is_empty() {
            let call = |call: &super::ToolCall| {
                let mut arguments = marker.value(&Value::Object(call.arguments.clone()));
                if self.wants.text_arguments
                    && let Ok(text) = python::json(&arguments)
                {
                    arguments = Value::String(text);
                }
                let function = json!({ "name": marker.text(&call.name), "arguments": arguments });
                let mut fields = json!({ "type": "function", "function": function });
                if let Some(id) = &call.id {
                    fields["id"] = Value::String(marker.text(id));
                }
                fields
            };
            fields["tool_calls"] = message.tool_calls.iter().map(call).collect();
        }
        let optional = [("tool_call_id", &message.tool_call_id), ("name", &message.name)];
        for (key, text) in optional {
            if let Some(text) = text {
                fields[key] = Value::String(marker.text(text));
            }
        }
        fields
    }

    /// Two noncharacters (Unicode reserves 66 of them for use inside a process) that are nowhere in the input.
    fn choose_marks(
        &self,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
    ) -> Result<[char; 2], TextError> {
        let mut used = Vec::new();
        let mut note = |text: &str| {
            // All of them begin with 0xEF or a four-byte lead in UTF-8: most texts are done at once.
            if text.bytes().any(|byte| byte >= 0xef) {
                for c in text.chars().filter(|&c| python::is_noncharacter(c)) {
                    if !used.contains(&c) {
                        used.push(c);
                    }
                }
            }
        };
        note(&self.source);
        for token in self.controls.tokens() {
            note(&token.text);
        }
        for message in messages {
            note(&message.content);
            let optional = [&message.reasoning, &message.tool_call_id, &message.name];
            optional.into_iter().flatten().for_each(|text| note(text));
            for call in &message.tool_calls {
                note(&call.name);
                call.id.iter().for_each(|id| note(id));
                for_each_string(&call.arguments, &mut note);
            }
        }
        for tool in tools {
            for_each_string_in(tool, &mut note);
        }
        for_each_string(&options.extra, &mut note);
        let mut free = (0xfdd0..=0xfdef_u32)
            .chain((0..=0x10).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]))
            .filter_map(char::from_u32)
            .filter(|c| !used.contains(c));
        match (free.next(), free.next()) {
            (Some(mark), Some(sign)) => Ok([mark, sign]),
            _ => Err(TextError::value(
                "messages",
                "contain every Unicode noncharacter; remove two of them",
            )),
        }
    }
}

/// Thinking and answer of an assistant content, cut where Qwen's templates cut: the thinking ends at the first
/// `</think>` and begins after the last `<think>` before it, the answer begins after the last `</think>`.
fn split_reasoning(content: &str) -> Option<(&str, &str)> {
    let (before, _) = content.split_once("</think>")?;
    let (_, answer) = content.rsplit_once("</think>")?;
    let before = before.trim_end_matches('\n');
    let thought = before.rsplit_once("<think>").map_or(before, |(_, thought)| thought);
    Some((thought.trim_start_matches('\n'), answer.trim_start_matches('\n')))
}

/// Marks strings that are not the template's own.
struct Marker<'a> {
    controls: &'a ControlTokens,
    mark: char,
    at_start: bool,
}

impl Marker<'_> {
    fn text(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len() + 8);
        if self.at_start && self.controls.could_continue(text) {
            let blank = text.len() - text.trim_start_matches(python::is_space).len();
            marked.push_str(&text[..blank]);
            marked.push(self.mark);
            self.controls.mark(&text[blank..], self.mark, &mut marked);
        } else {
            self.controls.mark(text, self.mark, &mut marked);
        }
        marked
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (self.text(name), self.value(value)))
                .collect::<Map<String, Value>>()
                .into(),
            other => other.clone(),
        }
    }
}

/// Finds the control tokens that are whole, puts sampled turns in their places and removes the marks.
fn unmark(
    output: &str,
    [mark, sign]: [char; 2],
    controls: &ControlTokens,
    turns: &[Arc<SampledTurn>],
) -> Rendered {
    let mut rendered = Rendered {
        text: String::with_capacity(output.len()),
        controls: Vec::new(),
        replayed: Vec::new(),
    };
    for segment in replay::cut(output, sign) {
        match segment {
            Segment::Plain(plain) => unmark_plain(plain, mark, controls, &mut rendered),
            Segment::Sampled { turn, part } => {
                let Some(turn) = turns.get(turn) else { continue };
                let begin = rendered.text.len();
                if part == Part::Reasoning {
                    rendered.text.push_str(turn.reasoning());
                    continue;
                }
                rendered.text.push_str(turn.text(part));
                let tokens = turn.part(part).to_vec();
                let range = begin..rendered.text.len();
                rendered.replayed.push(ReplayedSpan { range, tokens });
            }
        }
    }
    rendered
}

fn unmark_plain(output: &str, mark: char, controls: &ControlTokens, rendered: &mut Rendered) {
    let text = &mut rendered.text;
    let mut start = 0;
    let plain = |piece: &str, text: &mut String| {
        text.extend(piece.split(mark));
    };
    for (range, index) in controls.find(output) {
        let token = &controls.tokens()[index];
        // A token of one character has no inside: its mark follows it.
        if token.text.chars().nth(1).is_none() && output[range.end..].starts_with(mark) {
            continue;
        }
        plain(&output[start..range.start], text);
        let begin = text.len();
        text.push_str(&output[range.clone()]);
        rendered.controls.push(ControlSpan { range: begin..text.len(), id: token.id });
        start = range.end;
    }
    plain(&output[start..], text);
}

fn for_each_string(map: &Map<String, Value>, visit: &mut impl FnMut(&str)) {
    for (name, value) in map {
        visit(name);
        for_each_string_in(value, visit);
    }
}

fn for_each_string_in(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| for_each_string_in(item, visit)),
        Value::Object(map) => for_each_string(map, visit),
        _ => {}
    }
}

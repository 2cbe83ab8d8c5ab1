//! The model's answer taken apart: thinking, visible text, tool calls.
//!
//! [`AnswerParser`] takes decoded text in any pieces and gives the same events, joined, for any way of cutting it. A
//! call begins as soon as it is certain that there is one and which function it calls; its arguments follow as
//! they are generated. How a family marks thinking and calls is its dialect's own file (`dialect.rs` lists them);
//! what they share is here and in `blocks.rs` (text and marked calls), `tagged.rs` (parameters in tags) and `calls.rs`
//! (arguments in JSON). Markers never appear in what is emitted, with one exception: what began as a call and is
//! none, or names no offered tool, is given back as text, so that nothing the model said is lost. A call inside the
//! thinking is made, and the text around it stays thinking.

mod bare;
mod blocks;
mod calls;
mod deepseek;
mod dialect;
mod dsml;
mod gemma;
mod glm;
mod harmony;
mod json;
mod kimi;
mod markers;
mod minimax;
mod out;
mod qwen;
mod reader;
mod row;
pub(crate) mod schema;
mod tagged;
mod tools;

use std::fmt;

use serde_json::Value;

use super::{Message, Role, ToolCall};
use out::Out;
use tools::Tools;

pub use dialect::Dialect;
pub use out::Repairs;
pub use reader::AnswerReader;
pub(crate) use row::{Body, CallForm, Lead};

const THINK_START: &str = "<think>";
const THINK_END: &str = "</think>";
/// The tags of thinking that most families have.
const THINK: [&str; 2] = [THINK_START, THINK_END];
/// Longest name of a function; more is prose. (OpenAI's limit is 64.)
const NAME_BYTES_MAX: usize = 256;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// Thinking.
    Reasoning(String),
    /// Visible text.
    Text(String),
    /// A call begins.
    CallStarted {
        /// Which call of the answer, from zero.
        index: usize,
        /// The function.
        name: String,
    },
    /// JSON text of the call's arguments; the pieces of a call join to one object.
    CallArguments {
        /// Which call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// A call is complete, its closing marker included.
    CallEnded {
        /// Which call.
        index: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Reasoning,
    Text,
}

/// What a step over the held text led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// More text is needed.
    More,
    /// Something was decided; there may be more to decide.
    Again,
    /// The call is over.
    Done,
}

/// What a dialect makes of an answer's text.
trait Reading: fmt::Debug + Send + Sync {
    /// Decides the beginning of what is held: [`Step::Again`] until more text is needed. `last` says that none will
    /// come.
    fn step(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step;

    /// Whether text that comes now is thinking.
    fn thinks(&self) -> bool;
}

/// Text that a model continues without a conversation.
#[derive(Debug)]
struct Verbatim;

impl Reading for Verbatim {
    fn step(&mut self, held: &mut String, _: bool, _: &Tools, out: &mut Out) -> Step {
        let text = std::mem::take(held);
        out.text(&text, false);
        Step::More
    }

    fn thinks(&self) -> bool {
        false
    }
}

/// Parses one answer as it is generated.
#[derive(Debug)]
pub struct AnswerParser {
    tools: Tools,
    reading: Box<dyn Reading>,
    /// Text that is not decided yet.
    held: String,
    out: Out,
}

impl AnswerParser {
    /// A parser for an answer that may call `tools` (objects of the chat completions protocol). `opens_reasoning` says
    /// that the prompt ended inside a thinking block.
    pub fn new(dialect: Dialect, tools: &[Value], opens_reasoning: bool) -> Self {
        Self::with(dialect.reading(opens_reasoning), tools)
    }

    /// A parser for text that a model continues without a conversation: all of it is text, tags too.
    pub fn verbatim() -> Self {
        Self::with(Box::new(Verbatim), &[])
    }

    fn with(reading: Box<dyn Reading>, tools: &[Value]) -> Self {
        Self { tools: Tools::new(tools), reading, held: String::new(), out: Out::default() }
    }

    /// Takes a piece of the answer.
    pub fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.held.push_str(text);
        self.run(false);
        std::mem::take(&mut self.out.events)
    }

    /// Ends the answer: what was held back is decided, and a call in progress is closed to valid JSON
    /// ([`AnswerParser::truncated_call`]).
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        self.run(true);
        std::mem::take(&mut self.out.events)
    }

    /// What the model got wrong in its calls so far, by kind.
    pub fn repairs(&self) -> &Repairs {
        &self.out.repairs
    }

    /// Whether the last call was closed by [`AnswerParser::finish`] and not by the model: its arguments are what had
    /// been generated, so that it should not be carried out without a look.
    pub fn truncated_call(&self) -> bool {
        self.out.truncated
    }

    /// Whether text that comes now is thinking.
    pub fn thinks(&self) -> bool {
        self.reading.thinks()
    }

    fn run(&mut self, last: bool) {
        while self.reading.step(&mut self.held, last, &self.tools, &mut self.out) != Step::More {}
    }
}

/// Events with neighbours of one kind joined: what an answer's events have in common however its text was cut.
pub fn joined(events: Vec<AnswerEvent>) -> Vec<AnswerEvent> {
    let mut joined: Vec<AnswerEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), &event) {
            (Some(AnswerEvent::Reasoning(text)), AnswerEvent::Reasoning(more))
            | (Some(AnswerEvent::Text(text)), AnswerEvent::Text(more)) => text.push_str(more),
            (
                Some(AnswerEvent::CallArguments { delta, .. }),
                AnswerEvent::CallArguments { delta: more, .. },
            ) => delta.push_str(more),
            _ => joined.push(event),
        }
    }
    joined
}

/// The whole answer as a message.
pub fn collect(events: &[AnswerEvent]) -> Message {
    let mut message = Message::new(Role::Assistant, "");
    let mut reasoning = String::new();
    let mut arguments = String::new();
    for event in events {
        match event {
            AnswerEvent::Reasoning(text) => reasoning.push_str(text),
            AnswerEvent::Text(text) => message.content.push_str(text),
            AnswerEvent::CallStarted { name, .. } => {
                arguments.clear();
                let name = name.clone();
                message.tool_calls.push(ToolCall { id: None, name, arguments: Default::default() });
            }
            AnswerEvent::CallArguments { delta, .. } => arguments.push_str(delta),
            AnswerEvent::CallEnded { .. } => {
                if let (Some(call), Ok(Value::Object(map))) =
                    (message.tool_calls.last_mut(), serde_json::from_str(&arguments))
                {
                    call.arguments = map;
                }
            }
        }
    }
    message.reasoning = (!reasoning.is_empty()).then_some(reasoning);
    message
}

//! The model's answer taken apart: thinking, visible text, tool calls.
//!
//! [`AnswerParser`] takes decoded text in any pieces and gives the same events, joined, for any way of cutting it. A
//! call begins as soon as it is certain that there is one and which function it calls; its arguments follow as
//! they are generated (`xml.rs`, `hermes.rs`). Either dialect is understood wherever a call's marker stands. Markers
//! (`<think>`, `<tool_call>`, ...) never appear in what is emitted, with one exception: what began as a call and is
//! none, or names no offered tool, is given back as text, so that nothing the model said is lost. A call inside the
//! thinking is made, and the text around it stays thinking.

mod hermes;
mod json;
mod out;
mod reader;
pub(crate) mod schema;
mod tools;
mod xml;

use serde_json::Value;

use super::{Message, Role, ToolCall};
use hermes::{Envelope, HermesCall, envelope};
use out::{Out, Repair};
use tools::Tools;
use xml::{FUNCTION_END, PARAMETER_START, XmlCall};

pub use out::Repairs;
pub use reader::AnswerReader;

const THINK_START: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL_START: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_START: &str = "<function=";
/// Longest name of a function; more is prose. (OpenAI's limit is 64.)
const NAME_BYTES_MAX: usize = 256;

/// How a family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>` (Qwen3-Coder, Qwen3.5 and later).
    QwenXml,
    /// `{"name": ..., "arguments": {...}}` (Hermes; Qwen2.5, Qwen3).
    Hermes,
}

impl Dialect {
    /// The dialect that a chat template teaches its model.
    pub fn of(template: &str) -> Self {
        if template.contains(FUNCTION_START) { Self::QwenXml } else { Self::Hermes }
    }
}

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

/// What the parser is in the middle of.
#[derive(Debug)]
enum State {
    /// Thinking or visible text.
    Text,
    /// A marker that may begin a call; all of it is held.
    Head,
    Xml(XmlCall),
    Hermes(HermesCall),
    /// What began as a call and is none: text, markers included, up to the call's end.
    Quote,
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

/// What a marker begins.
enum Head {
    /// More text will tell.
    Open,
    /// Nothing: so many bytes are text, and the rest is looked at afresh.
    Mention(usize),
    /// A block that is no call that can be made: so many bytes and all up to its end are text.
    NoCall(usize, Repair),
    /// A call whose body begins at the place.
    Xml { tool: usize, body: usize },
    /// A call whose arguments begin at the place.
    Json { name: String, at: usize },
    /// A call whose outer object ends at the place.
    JsonWhole { name: String, arguments: Option<String>, end: usize },
}

/// Parses one answer as it is generated.
#[derive(Debug)]
pub struct AnswerParser {
    dialect: Dialect,
    /// No tag means anything.
    verbatim: bool,
    tools: Tools,
    part: Part,
    state: State,
    /// Text that is not decided yet.
    held: String,
    /// Nothing of the current part has been emitted: leading line breaks are the template's.
    fresh: bool,
    out: Out,
}

impl AnswerParser {
    /// A parser for an answer that may call `tools` (objects of the chat completions protocol). `opens_reasoning` says
    /// that the prompt ended inside a thinking block.
    pub fn new(dialect: Dialect, tools: &[Value], opens_reasoning: bool) -> Self {
        Self {
            dialect,
            verbatim: false,
            tools: Tools::new(tools),
            part: if opens_reasoning { Part::Reasoning } else { Part::Text },
            state: State::Text,
            held: String::new(),
            fresh: true,
            out: Out::default(),
        }
    }

    /// A parser for text that a model continues without a conversation: all of it is text, tags too.
    pub fn verbatim() -> Self {
        Self { verbatim: true, ..Self::new(Dialect::QwenXml, &[], false) }
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

    fn run(&mut self, last: bool) {
        loop {
            let step = match &mut self.state {
                State::Text => self.text(last),
                State::Head => self.head(last),
                State::Quote => self.quote(last),
                State::Xml(call) => call.step(&mut self.held, last, &self.tools, &mut self.out),
                State::Hermes(call) => call.step(&mut self.held, last, &mut self.out),
            };
            match step {
                Step::More => return,
                Step::Again => {}
                Step::Done => {
                    if matches!(self.state, State::Xml(_) | State::Hermes(_)) {
                        self.out.end_call();
                    }
                    self.state = State::Text;
                }
            }
        }
    }

    fn text(&mut self, last: bool) -> Step {
        if self.verbatim {
            let text = std::mem::take(&mut self.held);
            self.out.text(&text, false);
            return Step::More;
        }
        let markers: &[&str] = match self.dialect {
            Dialect::QwenXml => &[THINK_END, THINK_START, CALL_END, CALL_START, FUNCTION_START],
            Dialect::Hermes => &[THINK_END, THINK_START, CALL_END, CALL_START],
        };
        let found = markers.iter().filter_map(|m| Some((self.held.find(m)?, *m))).min();
        let Some((at, marker)) = found else {
            // Line breaks before a marker are the template's, so they wait as well.
            let begun = markers.iter().map(|m| begun(&self.held, m)).max().unwrap_or(0);
            let sure = self.held.len() - if last { 0 } else { begun };
            let sure = self.held[..sure].trim_end_matches('\n').len();
            let text: String = self.held.drain(..sure).collect();
            self.emit(&text);
            if last {
                self.held.clear();
            }
            return Step::More;
        };
        let text = self.held[..at].trim_end_matches('\n').to_owned();
        self.emit(&text);
        self.held.drain(..at);
        if marker == CALL_START || marker == FUNCTION_START {
            self.state = State::Head;
            return Step::Again;
        }
        // A second end, or a start where thinking has begun already, says nothing.
        self.held.drain(..marker.len());
        match marker {
            THINK_END => self.enter(Part::Text),
            THINK_START => self.enter(Part::Reasoning),
            _ => {}
        }
        Step::Again
    }

    fn enter(&mut self, part: Part) {
        if self.part != part {
            self.part = part;
            self.fresh = true;
        }
    }

    fn head(&mut self, last: bool) -> Step {
        let marked = self.held.starts_with(CALL_START);
        match self.look_ahead(last) {
            Head::Open => return Step::More,
            Head::Mention(length) => {
                let text: String = self.held.drain(..length).collect();
                self.emit(&text);
                self.state = State::Text;
            }
            Head::NoCall(length, repair) => {
                self.out.repair(repair);
                let text: String = self.held.drain(..length).collect();
                self.emit(&text);
                self.state = State::Quote;
            }
            Head::Xml { tool, body } => {
                let name = self.tools.name(tool).to_owned();
                self.begin(&name, Dialect::QwenXml);
                if !marked {
                    self.out.repair(Repair::MissingCallStart);
                }
                self.held.drain(..body);
                self.state = State::Xml(XmlCall::new(tool, marked));
            }
            Head::Json { name, at } => {
                self.begin(&name, Dialect::Hermes);
                self.held.drain(..at);
                self.state = State::Hermes(HermesCall::new());
            }
            Head::JsonWhole { name, arguments, end } => {
                self.begin(&name, Dialect::Hermes);
                self.held.drain(..end);
                self.state = State::Hermes(HermesCall::whole(arguments.as_deref(), &mut self.out));
            }
        }
        Step::Again
    }

    fn begin(&mut self, name: &str, dialect: Dialect) {
        self.out.begin_call(name);
        if self.part == Part::Reasoning {
            self.out.repair(Repair::CallInThinking);
        }
        if dialect != self.dialect {
            self.out.repair(Repair::OtherDialect);
        }
    }

    /// What the marker at the beginning of what is held begins.
    fn look_ahead(&self, last: bool) -> Head {
        let marker = if self.held.starts_with(CALL_START) { CALL_START.len() } else { 0 };
        let body = self.held[marker..].trim_start();
        let start = self.held.len() - body.len();
        let mention = Head::Mention(if marker > 0 { marker } else { FUNCTION_START.len() });
        if marker > 0 && body.starts_with('{') {
            return match envelope(body) {
                Envelope::Open if last => Head::NoCall(self.held.len(), Repair::NoCall),
                Envelope::Open => Head::Open,
                Envelope::None => Head::NoCall(start, Repair::NoCall),
                Envelope::Begun { name, .. } | Envelope::Whole { name, .. }
                    if self.tools.find(&name).is_none() =>
                {
                    Head::NoCall(start, Repair::UnknownFunction)
                }
                Envelope::Begun { name, at } => Head::Json { name, at: start + at },
                Envelope::Whole { name, arguments, end } => Head::JsonWhole {
                    name,
                    arguments: arguments.map(|range| body[range].to_owned()),
                    end: start + end,
                },
            };
        }
        let Some(named) = body.strip_prefix(FUNCTION_START) else {
            let possible = FUNCTION_START.starts_with(body) && !last;
            return if possible { Head::Open } else { mention };
        };
        let Some(end) = named.find('>') else {
            let possible = named.len() <= NAME_BYTES_MAX && !named.contains(char::is_whitespace);
            return if possible && !last { Head::Open } else { mention };
        };
        let name = &named[..end];
        if end > NAME_BYTES_MAX || name.contains(char::is_whitespace) {
            return mention;
        }
        let inside = start + FUNCTION_START.len() + end + 1;
        let Some(tool) = self.tools.find(name) else {
            return Head::NoCall(inside, Repair::UnknownFunction);
        };
        // A name alone is no call: something of it must follow.
        let next = self.held[inside..].trim_start();
        let tags = [PARAMETER_START, FUNCTION_END, CALL_END];
        if tags.iter().any(|tag| next.starts_with(tag)) {
            Head::Xml { tool, body: inside }
        } else if !last && tags.iter().any(|tag| tag.starts_with(next)) {
            Head::Open
        } else {
            Head::NoCall(inside, Repair::NoCall)
        }
    }

    /// Gives back as text what is no call, up to its end or to the next marker.
    fn quote(&mut self, last: bool) -> Step {
        let markers = [CALL_END, CALL_START, THINK_END, THINK_START];
        let found = markers.iter().filter_map(|m| Some((self.held.find(m)?, *m))).min();
        let (sure, step) = match found {
            Some((at, CALL_END)) => (at + CALL_END.len(), Step::Done),
            Some((at, _)) => (at, Step::Done),
            None if last => (self.held.len(), Step::Done),
            None => {
                let begun = markers.iter().map(|m| begun(&self.held, m)).max().unwrap_or(0);
                (self.held.len() - begun, Step::More)
            }
        };
        let text: String = self.held.drain(..sure).collect();
        self.emit(&text);
        step
    }

    fn emit(&mut self, text: &str) {
        let text = if self.fresh { text.trim_start_matches('\n') } else { text };
        if !text.is_empty() {
            self.fresh = false;
            self.out.text(text, self.part == Part::Reasoning);
        }
    }
}

/// Drops text that belongs to nothing, up to the end of the call or to what begins something new.
fn skip(held: &mut String, last: bool) -> Step {
    let tags = [CALL_END, CALL_START, THINK_END];
    let found = tags.iter().filter_map(|tag| Some((held.find(tag)?, *tag))).min();
    if let Some((at, tag)) = found {
        held.drain(..at + if tag == CALL_END { tag.len() } else { 0 });
        return Step::Done;
    }
    if last {
        held.clear();
        return Step::Done;
    }
    let keep = tags.iter().map(|tag| begun(held, tag)).max().unwrap_or(0);
    held.drain(..held.len() - keep);
    Step::More
}

/// Length of the longest end of `text` that begins `marker`.
fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&length| text.ends_with(&marker[..length])).unwrap_or(0)
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

//! The model's answer taken apart: thinking, visible text, tool calls.
//!
//! [`AnswerParser`] takes decoded text in any pieces and gives the same events for any way of cutting it. Markers
//! (`<think>`, `<tool_call>`, ...) never appear in what it emits, with one exception: a call that cannot be understood,
//! or names no offered tool, is given back as visible text, so that nothing the model said is lost. A call is
//! emitted when it is complete (`calls.rs` reads it).

mod calls;
pub(crate) mod schema;

use serde_json::Value;

use super::{Message, Role, ToolCall};
use calls::Tools;

const THINK_START: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL_START: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_START: &str = "<function=";

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
    /// A call is complete.
    CallEnded {
        /// Which call.
        index: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Reasoning,
    Content,
    Call,
}

/// Parses one answer as it is generated.
#[derive(Debug)]
pub struct AnswerParser {
    dialect: Dialect,
    tools: Tools,
    part: Part,
    /// What the call in progress returns to.
    outer: Part,
    /// Text that is not decided yet.
    held: String,
    /// Nothing of the current part has been emitted: leading line breaks are the template's.
    fresh: bool,
    calls: usize,
    events: Vec<AnswerEvent>,
}

impl AnswerParser {
    /// A parser for an answer that may call `tools` (objects of the chat completions protocol). `opens_reasoning` says
    /// that the prompt ended inside a thinking block.
    pub fn new(dialect: Dialect, tools: &[Value], opens_reasoning: bool) -> Self {
        let part = if opens_reasoning { Part::Reasoning } else { Part::Content };
        Self {
            dialect,
            tools: Tools::new(tools),
            part,
            outer: part,
            held: String::new(),
            fresh: true,
            calls: 0,
            events: Vec::new(),
        }
    }

    /// Takes a piece of the answer.
    pub fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.held.push_str(text);
        while self.step(false) {}
        std::mem::take(&mut self.events)
    }

    /// Ends the answer: what was held back is decided.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        while self.step(true) {}
        std::mem::take(&mut self.events)
    }

    /// Decides the beginning of what is held; false when more text is needed.
    fn step(&mut self, last: bool) -> bool {
        match self.part {
            Part::Call => self.step_call(last),
            Part::Reasoning | Part::Content => self.step_text(last),
        }
    }

    fn step_text(&mut self, last: bool) -> bool {
        let markers = [THINK_END, THINK_START, CALL_END, CALL_START, FUNCTION_START];
        let found = markers.iter().filter_map(|m| Some((self.held.find(m)?, *m))).min();
        let Some((at, marker)) = found else {
            // Line breaks before a marker are the template's, so they wait as well.
            let begun = markers.iter().map(|m| begun(&self.held, m)).max().unwrap_or(0);
            let sure = self.held.len() - if last { 0 } else { begun };
            let sure = self.held[..sure].trim_end_matches('\n').len();
            let text: String = self.held.drain(..sure).collect();
            self.emit(text);
            if last {
                self.held.clear();
            }
            return false;
        };
        let text = self.held[..at].trim_end_matches('\n').to_owned();
        self.emit(text);
        self.held.drain(..at);
        match marker {
            CALL_START | FUNCTION_START => {
                self.outer = self.part;
                self.part = Part::Call;
            }
            // A second end, or a start where thinking has begun already, says nothing.
            _ => {
                self.held.drain(..marker.len());
                match marker {
                    THINK_END => self.enter(Part::Content),
                    THINK_START => self.enter(Part::Reasoning),
                    _ => {}
                }
            }
        }
        true
    }

    fn enter(&mut self, part: Part) {
        if self.part != part {
            self.part = part;
            self.fresh = true;
        }
    }

    fn step_call(&mut self, last: bool) -> bool {
        if let Some(marker) = self.hopeless() {
            // Text that only mentions a marker: the rest is looked at afresh.
            let text: String = self.held.drain(..marker).collect();
            self.part = self.outer;
            self.emit(text);
            return true;
        }
        let Some(end) = self.call_end(last) else { return false };
        let block: String = self.held.drain(..end).collect();
        let body = block.strip_prefix(CALL_START).unwrap_or(&block);
        let body = body.strip_suffix(CALL_END).unwrap_or(body);
        let call = calls::looks_complete(self.dialect, body)
            .then(|| calls::parse(self.dialect, body, &self.tools));
        match call.flatten() {
            Some(call) => {
                let index = self.calls;
                self.calls += 1;
                let delta = Value::Object(call.arguments).to_string();
                self.events.push(AnswerEvent::CallStarted { index, name: call.name });
                self.events.push(AnswerEvent::CallArguments { index, delta });
                self.events.push(AnswerEvent::CallEnded { index });
                // The model that calls has stopped thinking, whether it said so or not.
                self.enter(Part::Content);
            }
            None => {
                self.part = self.outer;
                self.emit(block);
            }
        }
        true
    }

    /// The length of the marker at the beginning of what is held when no call can follow it.
    fn hopeless(&self) -> Option<usize> {
        let marker = if self.held.starts_with(CALL_START) { CALL_START } else { "" };
        let body = &self.held[marker.len()..];
        let possible = calls::can_become_call(self.dialect, body);
        (!possible).then(|| if marker.is_empty() { FUNCTION_START.len() } else { marker.len() })
    }

    /// Where the call at the beginning of what is held ends: at the first marker before which a call can end, because
    /// a parameter may contain one. A call that was never closed ends where the next begins or with the answer,
    /// if it is whole by then; half a call is not made.
    fn call_end(&self, last: bool) -> Option<usize> {
        let inner = if self.held.starts_with(CALL_START) { CALL_START.len() } else { 0 };
        let complete = |end: usize| calls::looks_complete(self.dialect, &self.held[inner..end]);
        let closed = self.held.match_indices(CALL_END).map(|(at, _)| (at, at + CALL_END.len()));
        let next =
            self.held.match_indices(CALL_START).filter(|(at, _)| *at > 0).map(|(at, _)| (at, at));
        let mut ends: Vec<(usize, usize)> = closed.chain(next).collect();
        ends.sort_unstable();
        let found = ends.into_iter().find(|&(at, _)| complete(at)).map(|(_, end)| end);
        found.or_else(|| (last && !self.held.is_empty()).then_some(self.held.len()))
    }

    fn emit(&mut self, text: String) {
        let text = if self.fresh { text.trim_start_matches('\n').to_owned() } else { text };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        self.events.push(match self.part {
            Part::Reasoning => AnswerEvent::Reasoning(text),
            Part::Content | Part::Call => AnswerEvent::Text(text),
        });
    }
}

/// Length of the longest end of `text` that begins `marker`.
fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&length| text.ends_with(&marker[..length])).unwrap_or(0)
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

//! What the parsers of an answer write to: events, joined where they can be, and counts of what was repaired.

use super::AnswerEvent;

/// A deviation of the model that was put right, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Repair {
    /// A call without its opening marker.
    MissingCallStart,
    /// A parameter without its closing tag.
    MissingParameterEnd,
    /// A function without its closing tag.
    MissingFunctionEnd,
    /// A call without its closing marker.
    MissingCallEnd,
    /// A tag closed twice.
    RepeatedEnd,
    /// A parameter given twice; the first counts.
    DuplicateParameter,
    /// A call before the thinking had ended.
    CallInThinking,
    /// A value that is not of its schema's type and was passed on as a string.
    UnfittingValue,
    /// `True`, `False` or `None` where JSON has other names.
    PythonValue,
    /// JSON that is none: put right where possible, else closed at the place.
    MalformedJson,
    /// A call in the other family's form.
    OtherDialect,
    /// All arguments inside one parameter that the function does not have.
    WrappedArguments,
    /// Text between the parts of a call; dropped.
    StrayText,
    /// A call of a function that is not on offer; given back as text.
    UnknownFunction,
    /// Something that began as a call and is none; given back as text.
    NoCall,
    /// A call that the end of the answer cut off; closed.
    Truncated,
}

/// Names of the repairs, as `tool_parse_repairs_total{kind}` has them, in the order of `Repair`.
const NAMES: [&str; 16] = [
    "missing_call_start",
    "missing_parameter_end",
    "missing_function_end",
    "missing_call_end",
    "repeated_end",
    "duplicate_parameter",
    "call_in_thinking",
    "unfitting_value",
    "python_value",
    "malformed_json",
    "other_dialect",
    "wrapped_arguments",
    "stray_text",
    "unknown_function",
    "no_call",
    "truncated",
];

/// How often each kind of repair was needed in one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs([u32; NAMES.len()]);

impl Repairs {
    /// Every kind with its count, those of none as well.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().zip(&self.0).map(|(name, &count)| (*name, u64::from(count)))
    }

    /// The count of a kind by its name; zero for an unknown one.
    pub fn count(&self, kind: &str) -> u64 {
        self.iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| count)
    }
}

/// Events of an answer so far.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub(super) events: Vec<AnswerEvent>,
    pub(super) repairs: Repairs,
    /// Calls that have begun.
    pub(super) calls: usize,
    /// The last call was ended by the end of the answer.
    pub(super) truncated: bool,
}

impl Out {
    pub(super) fn repair(&mut self, repair: Repair) {
        self.repairs.0[repair as usize] += 1;
    }

    pub(super) fn begin_call(&mut self, name: &str) {
        self.events.push(AnswerEvent::CallStarted { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// A piece of the arguments of the call that began last.
    pub(super) fn arguments(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        if let Some(AnswerEvent::CallArguments { delta, .. }) = self.events.last_mut() {
            delta.push_str(piece);
            return;
        }
        let index = self.calls.saturating_sub(1);
        self.events.push(AnswerEvent::CallArguments { index, delta: piece.to_owned() });
    }

    pub(super) fn end_call(&mut self) {
        self.events.push(AnswerEvent::CallEnded { index: self.calls.saturating_sub(1) });
    }

    pub(super) fn text(&mut self, piece: &str, reasoning: bool) {
        if piece.is_empty() {
            return;
        }
        match (self.events.last_mut(), reasoning) {
            (Some(AnswerEvent::Reasoning(text)), true) => text.push_str(piece),
            (Some(AnswerEvent::Text(text)), false) => text.push_str(piece),
            (_, true) => self.events.push(AnswerEvent::Reasoning(piece.to_owned())),
            (_, false) => self.events.push(AnswerEvent::Text(piece.to_owned())),
        }
    }
}

/// Appends `text` to a JSON string that is being written, without quotes.
pub(super) fn escape_into(text: &str, json: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    json.push_str(&quoted[1..quoted.len() - 1]);
}

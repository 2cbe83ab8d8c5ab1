//! Harmony, the dialect of gpt-oss: an answer is a chain of messages, each with a header and a channel.
//!
//! `<|start|>assistant<|channel|>analysis<|message|>...<|end|>` is thinking, `final` is the visible answer,
//! `commentary` is visible text, and a message `to=functions.NAME` is a call with arguments in JSON; the recipient
//! stands in the role or behind the channel. The prompt ends with `<|start|>assistant`, so an answer begins inside a
//! header. `<|return|>` and `<|call|>` end answers, so they seldom come here.
//!
//! What models get wrong and is understood: a message without its `<|end|>`, one without a header or a channel, a
//! second `final`, a call in the channel of thoughts, a recipient without `functions.`.

use super::calls::{JsonCall, JsonForm};
use super::markers::{begun, first};
use super::out::{Out, Repair};
use super::row::{Body, CallForm, Lead, Row};
use super::tools::Tools;
use super::{Part, Reading, Step};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";
/// What ends the text of a message.
const ENDS: [&str; 6] = [END, RETURN, CALL, START, CHANNEL, MESSAGE];
const ROLE: &str = "assistant";
const RECIPIENT: &str = "to=";
const NAMESPACE: &str = "functions.";
/// Longest header; more is prose.
const HEADER_BYTES_MAX: usize = 512;
/// Between two messages of one part.
const GAP: &str = "\n\n";

const JSON: JsonForm = JsonForm { start: START, end: CALL, outer: false, open_ended: true };

pub(super) const ROW: Row = Row {
    name: "harmony",
    signs: &[CHANNEL],
    reading: |opens| Box::new(Harmony::new(opens)),
    calls: CallForm {
        lead: Lead::Channels,
        block: ["", ""],
        call: ["", ""],
        between: "",
        begins_block: false,
        body: Body::Json {
            before: &[
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.{name} json<|message|>",
                "<|channel|>commentary to=functions.{name}<|message|>",
                " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary json<|message|>",
                " to=functions.{name}<|channel|>commentary<|message|>",
            ],
            after: "",
        },
    },
    thinking: ["", ""],
    closing: "<|end|><|start|>assistant<|channel|>final<|message|>",
    ends: &[RETURN, CALL],
};

/// Where the reader is.
#[derive(Debug)]
enum State {
    /// In a header; all of it is held.
    Header,
    /// In the text of a message.
    Text(Part),
    Call(JsonCall),
    /// Behind a call, and whether there was text that belongs to nothing.
    Behind {
        stray: bool,
    },
}

/// The reader of an answer.
#[derive(Debug)]
struct Harmony {
    state: State,
    /// Whether each part, thinking and visible text, has text.
    spoken: [bool; 2],
    /// The message has text.
    begun: bool,
}

impl Harmony {
    fn new(opens_reasoning: bool) -> Self {
        let state = if opens_reasoning { State::Text(Part::Reasoning) } else { State::Header };
        Self { state, spoken: [false; 2], begun: false }
    }

    fn header(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        // An end without a message says nothing.
        let text = held.trim_start();
        if let Some(marker) = [END, RETURN, CALL].iter().find(|m| text.starts_with(**m)) {
            held.drain(..held.len() - text.len() + marker.len());
            return Step::Again;
        }
        if !begins_header(held) {
            if held.is_empty() || (!last && may_begin_header(held)) {
                return Step::More;
            }
            self.enter(Part::Text);
            return Step::Again;
        }
        let Some((at, marker)) = first(held, [MESSAGE, END, RETURN, CALL]) else {
            return self.unended_header(held, last);
        };
        if marker != MESSAGE {
            held.drain(..at);
            return Step::Again;
        }
        let header = Header::read(&held[..at]);
        let behind = at + MESSAGE.len();
        let Some(recipient) = header.recipient.filter(|to| to != "assistant" && to != "user")
        else {
            held.drain(..behind);
            self.enter(header.part);
            return Step::Again;
        };
        let name = recipient.strip_prefix(NAMESPACE).unwrap_or(&recipient);
        if tools.find(name).is_none() {
            out.repair(Repair::UnknownFunction);
            let text = format!("{RECIPIENT}{recipient} ");
            held.replace_range(..behind, &text);
            self.enter(header.part);
            return Step::Again;
        }
        // Arguments begin with a brace, or there are none.
        let body = held[behind..].trim_start();
        if body.is_empty() && !last {
            return Step::More;
        }
        let none =
            body.is_empty() || [END, RETURN, CALL, START].iter().any(|m| body.starts_with(m));
        if !none && !body.starts_with('{') {
            if !last && [END, RETURN, CALL, START].iter().any(|m| m.starts_with(body)) {
                return Step::More;
            }
            out.repair(Repair::NoCall);
            let text = format!("{RECIPIENT}{recipient} ");
            held.replace_range(..behind, &text);
            self.enter(header.part);
            return Step::Again;
        }
        out.begin_call(name);
        if header.part == Part::Reasoning {
            out.repair(Repair::CallInThinking);
        }
        held.drain(..behind);
        let call = if none { JsonCall::whole(&JSON, "{}", out) } else { JsonCall::new(&JSON) };
        self.state = State::Call(call);
        Step::Again
    }

    /// A header whose end is not in the text: it is awaited, within bounds.
    fn unended_header(&mut self, held: &mut String, last: bool) -> Step {
        if held.len() > HEADER_BYTES_MAX {
            self.enter(Part::Text);
            // The marker that the text begins with has no meaning any more.
            let marker = [START, CHANNEL, CONSTRAIN].into_iter().find(|m| held.starts_with(m));
            held.drain(..marker.map_or(0, str::len));
            return Step::Again;
        }
        if last {
            held.clear();
        }
        Step::More
    }

    fn enter(&mut self, part: Part) {
        self.state = State::Text(part);
        self.begun = false;
    }

    fn text(&mut self, part: Part, held: &mut String, last: bool, out: &mut Out) -> Step {
        if let Some((at, marker)) = first(held, ENDS) {
            let text: String = held.drain(..at).collect();
            self.emit(part, &text, out);
            // A header that follows at once is read with its marker.
            if marker == MESSAGE {
                held.drain(..marker.len());
            } else {
                self.state = State::Header;
            }
            return Step::Again;
        }
        let keep = ENDS.iter().map(|marker| begun(held, marker)).max().unwrap_or(0);
        let sure = held.len() - if last { 0 } else { keep };
        let text: String = held.drain(..sure).collect();
        self.emit(part, &text, out);
        Step::More
    }

    fn emit(&mut self, part: Part, text: &str, out: &mut Out) {
        if text.is_empty() {
            return;
        }
        let reasoning = part == Part::Reasoning;
        let spoken = &mut self.spoken[usize::from(reasoning)];
        if *spoken && !self.begun {
            out.text(GAP, reasoning);
        }
        (*spoken, self.begun) = (true, true);
        out.text(text, reasoning);
    }

    /// Drops what follows a call up to the next message; `stray` says that there was text.
    fn behind(&mut self, stray: bool, held: &mut String, last: bool, out: &mut Out) -> Step {
        let markers = [START, CHANNEL, END, RETURN, CALL];
        let found = first(held, markers);
        let keep = markers.iter().map(|marker| begun(held, marker)).max().unwrap_or(0);
        let until = held.len() - if last { 0 } else { keep };
        let dropped: String = held.drain(..found.map_or(until, |(at, _)| at)).collect();
        let strays = !dropped.trim().is_empty();
        if strays && !stray {
            out.repair(Repair::StrayText);
        }
        self.state = State::Behind { stray: stray || strays };
        match found {
            None => return Step::More,
            Some((_, START | CHANNEL)) => self.state = State::Header,
            Some((_, marker)) => drop(held.drain(..marker.len())),
        }
        Step::Again
    }
}

impl Reading for Harmony {
    fn step(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        match &mut self.state {
            State::Header => self.header(held, last, tools, out),
            State::Text(part) => {
                let part = *part;
                self.text(part, held, last, out)
            }
            State::Behind { stray } => {
                let stray = *stray;
                self.behind(stray, held, last, out)
            }
            State::Call(call) => {
                let step = call.step(held, last, out);
                if step != Step::Done {
                    return step;
                }
                out.end_call();
                self.state = State::Behind { stray: false };
                Step::Again
            }
        }
    }

    fn thinks(&self) -> bool {
        matches!(self.state, State::Text(Part::Reasoning))
    }
}

/// What a header says.
struct Header {
    part: Part,
    recipient: Option<String>,
}

impl Header {
    /// Reads a header up to `<|message|>`.
    fn read(text: &str) -> Self {
        let mut channel = "";
        let mut recipient = None;
        let (role, rest) = text.split_once(CHANNEL).unwrap_or((text, ""));
        for (index, part) in [role, rest].into_iter().enumerate() {
            let part = part.split(CONSTRAIN).next().unwrap_or_default();
            for (place, word) in part.split_whitespace().enumerate() {
                if let Some(name) = word.strip_prefix(RECIPIENT) {
                    recipient = name.split("<|").next().map(str::to_owned);
                } else if index == 1 && place == 0 {
                    channel = word;
                }
            }
        }
        let part = if channel.starts_with("analysis") { Part::Reasoning } else { Part::Text };
        Self { part, recipient }
    }
}

/// What a header may begin with.
const BEGINNINGS: [&str; 9] = [
    START,
    CHANNEL,
    CONSTRAIN,
    MESSAGE,
    RECIPIENT,
    "assistant<|channel|>",
    "assistant<|message|>",
    "assistant to=",
    "assistant<|constrain|>",
];

fn begins_header(held: &str) -> bool {
    let text = held.trim_start();
    BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
}

fn may_begin_header(held: &str) -> bool {
    let text = held.trim_start();
    let mut known = BEGINNINGS.iter().chain(&[END, RETURN, CALL, ROLE]);
    known.any(|beginning| beginning.starts_with(text))
}

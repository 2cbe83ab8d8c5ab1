//! Answers with thinking and calls between markers of their own: text, and where a call begins.
//!
//! All dialects but harmony are read here. A dialect's [`Syntax`] has its markers and says what one begins; from there
//! on a call is read by its form (`tagged.rs`, `calls.rs`, `bare.rs`).

use super::bare::{self, BareCall};
use super::calls::{JsonCall, JsonForm};
use super::markers::{begun, first};
use super::out::{Out, Repair};
use super::tagged::{TaggedCall, Tags};
use super::tools::Tools;
use super::{Part, Reading, Step};

/// How a dialect marks calls.
#[derive(Debug)]
pub(super) struct Syntax {
    /// Begins a call or a block of them.
    pub(super) start: &'static str,
    /// Ends it.
    pub(super) end: &'static str,
    /// Begins a call without `start`; empty for none.
    pub(super) function: &'static str,
    /// Begins and ends the thinking.
    pub(super) thinking: [&'static str; 2],
    /// Markers that say nothing of their own, such as those of a section of calls.
    pub(super) silent: &'static [&'static str],
    /// What stands at the beginning of the text; `last` says that no more will come.
    pub(super) look_ahead: fn(&Syntax, &str, bool, &Tools) -> Head,
}

/// What a marker begins.
#[derive(Debug)]
pub(super) enum Head {
    /// More text will tell.
    Open,
    /// Nothing: so many bytes are text, and the rest is looked at afresh.
    Mention(usize),
    /// A block that is no call that can be made: so many bytes and all up to its end are text.
    NoCall(usize, Repair),
    /// A call whose parameters begin at the place.
    Tagged { tool: usize, body: usize, tags: &'static Tags, foreign: bool },
    /// A call whose arguments, with bare keys, begin at the place.
    Bare { tool: usize, body: usize, form: &'static bare::Form },
    /// A call whose arguments begin at the place, or are given whole with the place behind them.
    Json { name: String, at: usize, whole: Option<String>, form: &'static JsonForm, foreign: bool },
}

/// What the reader is in the middle of.
#[derive(Debug)]
enum State {
    /// Thinking or visible text.
    Text,
    /// A marker that may begin a call; all of it is held.
    Head,
    Tagged(TaggedCall),
    Json(JsonCall),
    Bare(BareCall),
    /// What began as a call and is none: text, markers included, up to the call's end.
    Quote,
}

/// The reader of an answer.
#[derive(Debug)]
pub(super) struct Blocks {
    syntax: &'static Syntax,
    part: Part,
    state: State,
    /// Nothing of the current part has been emitted: leading line breaks are the template's.
    fresh: bool,
    /// A block that holds several calls has begun and not ended.
    in_block: bool,
}

impl Blocks {
    pub(super) fn new(syntax: &'static Syntax, opens_reasoning: bool) -> Self {
        Self {
            syntax,
            part: if opens_reasoning { Part::Reasoning } else { Part::Text },
            state: State::Text,
            fresh: true,
            in_block: false,
        }
    }

    fn text(&mut self, held: &mut String, last: bool, out: &mut Out) -> Step {
        let syntax = self.syntax;
        let [think_start, think_end] = syntax.thinking;
        let own = [think_end, think_start, syntax.end, syntax.start, syntax.function];
        let markers =
            || own.into_iter().chain(syntax.silent.iter().copied()).filter(|m| !m.is_empty());
        let Some((at, marker)) = first(held, markers()) else {
            // Line breaks before a marker are the template's, so they wait as well.
            let begun = markers().map(|m| begun(held, m)).max().unwrap_or(0);
            let sure = held.len() - if last { 0 } else { begun };
            let sure = held[..sure].trim_end_matches('\n').len();
            let text: String = held.drain(..sure).collect();
            self.emit(&text, out);
            if last {
                held.clear();
            }
            return Step::More;
        };
        let text = held[..at].trim_end_matches('\n').to_owned();
        self.emit(&text, out);
        held.drain(..at);
        if marker == syntax.start || marker == syntax.function {
            self.state = State::Head;
            return Step::Again;
        }
        // A second end, or a start where thinking has begun already, says nothing.
        held.drain(..marker.len());
        if marker == think_end {
            self.enter(Part::Text);
        } else if marker == think_start {
            self.enter(Part::Reasoning);
        } else {
            self.in_block = false;
        }
        Step::Again
    }

    fn enter(&mut self, part: Part) {
        if self.part != part {
            self.part = part;
            self.fresh = true;
        }
    }

    fn head(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        let marked = held.starts_with(self.syntax.start);
        match (self.syntax.look_ahead)(self.syntax, held, last, tools) {
            Head::Open => return Step::More,
            Head::Mention(length) => {
                let text: String = held.drain(..length).collect();
                self.emit(&text, out);
                self.state = State::Text;
            }
            Head::NoCall(length, repair) => {
                out.repair(repair);
                let text: String = held.drain(..length).collect();
                self.emit(&text, out);
                self.state = State::Quote;
            }
            Head::Tagged { tool, body, tags, foreign } => {
                self.begin(tools.name(tool), foreign, out);
                if !marked && !self.in_block {
                    out.repair(Repair::MissingCallStart);
                }
                self.in_block = tags.several;
                held.drain(..body);
                self.state = State::Tagged(TaggedCall::new(tags, tool, marked));
            }
            Head::Bare { tool, body, form } => {
                self.begin(tools.name(tool), false, out);
                held.drain(..body);
                self.state = State::Bare(BareCall::new(form, tool));
            }
            Head::Json { name, at, whole, form, foreign } => {
                self.begin(&name, foreign, out);
                held.drain(..at);
                self.state = State::Json(match whole {
                    Some(arguments) => JsonCall::whole(form, &arguments, out),
                    None => JsonCall::new(form),
                });
            }
        }
        Step::Again
    }

    fn begin(&self, name: &str, foreign: bool, out: &mut Out) {
        out.begin_call(name);
        if self.part == Part::Reasoning {
            out.repair(Repair::CallInThinking);
        }
        if foreign {
            out.repair(Repair::OtherDialect);
        }
    }

    /// Gives back as text what is no call, up to its end or to the next marker.
    fn quote(&mut self, held: &mut String, last: bool, out: &mut Out) -> Step {
        let end = self.syntax.end;
        let [think_start, think_end] = self.syntax.thinking;
        let markers = [end, self.syntax.start, think_end, think_start];
        let (sure, step) = match first(held, markers) {
            Some((at, marker)) if marker == end => (at + end.len(), Step::Done),
            Some((at, _)) => (at, Step::Done),
            None if last => (held.len(), Step::Done),
            None => {
                let begun = markers.iter().map(|m| begun(held, m)).max().unwrap_or(0);
                (held.len() - begun, Step::More)
            }
        };
        let text: String = held.drain(..sure).collect();
        self.emit(&text, out);
        step
    }

    fn emit(&mut self, text: &str, out: &mut Out) {
        let text = if self.fresh { text.trim_start_matches('\n') } else { text };
        if !text.is_empty() {
            self.fresh = false;
            out.text(text, self.part == Part::Reasoning);
        }
    }
}

impl Reading for Blocks {
    fn step(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        let step = match &mut self.state {
            State::Text => self.text(held, last, out),
            State::Head => self.head(held, last, tools, out),
            State::Quote => self.quote(held, last, out),
            State::Tagged(call) => call.step(held, last, tools, out),
            State::Json(call) => call.step(held, last, out),
            State::Bare(call) => call.step(held, last, tools, out),
        };
        if step != Step::Done {
            return step;
        }
        if matches!(self.state, State::Tagged(_) | State::Json(_) | State::Bare(_)) {
            out.end_call();
        }
        self.state = State::Text;
        Step::Again
    }

    fn thinks(&self) -> bool {
        self.part == Part::Reasoning
    }
}

//! A call whose arguments have bare keys and strings between tokens of their own, as Gemma-4 writes them: to one JSON
//! object, streamed.
//!
//! Strings are passed on as they come, other values when they are complete. A bare value that is no JSON is a string:
//! the tool can say more about it than we can.

use serde_json::Value as Json;

use super::Step;
use super::markers::{begun, first, skip};
use super::out::{Out, Repair, escape_into};
use super::schema::Types;
use super::tagged::KEY_BYTES_MAX;
use super::tools::{Tools, fitting};

/// Around a string.
pub(super) const QUOTE: &str = "<|\"|>";
/// Nesting of arguments that is followed.
const DEPTH_MAX: usize = 64;

/// The markers of a call.
#[derive(Debug)]
pub(super) struct Form {
    /// Begins the next call.
    pub(super) start: &'static str,
    /// Ends a call.
    pub(super) end: &'static str,
}

/// What the text is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the opening brace.
    Start,
    /// Before a key, or the end of an object.
    Key,
    /// Before a value, or the end of a list.
    Value,
    /// In a string.
    String,
    /// Behind a value.
    After,
    /// Behind the arguments.
    Tail,
    /// In text that belongs to nothing, up to the end of the call.
    Stray,
}

/// An object or a list in progress.
#[derive(Debug)]
struct Level {
    closes: char,
    /// Nothing was written in it.
    empty: bool,
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct BareCall {
    form: &'static Form,
    tool: usize,
    place: Place,
    levels: Vec<Level>,
    /// Keys of the call so far.
    keys: Vec<String>,
    /// The key whose value comes, as JSON with its colon; empty in lists.
    key: String,
    /// Types of the value that comes.
    types: Types,
    /// The value that comes was given before: it is not passed on.
    muted: usize,
}

impl BareCall {
    pub(super) fn new(form: &'static Form, tool: usize) -> Self {
        Self {
            form,
            tool,
            place: Place::Start,
            levels: Vec::new(),
            keys: Vec::new(),
            key: String::new(),
            types: Types::ANY,
            muted: 0,
        }
    }

    /// Decides the beginning of what is held. `last` says that no more text will come.
    pub(super) fn step(
        &mut self,
        held: &mut String,
        last: bool,
        tools: &Tools,
        out: &mut Out,
    ) -> Step {
        if self.place != Place::String {
            let blank = held.len() - held.trim_start().len();
            held.drain(..blank);
        }
        let step = match self.place {
            Place::Start => return self.start(held, out),
            Place::Tail => return self.tail(held, last, out),
            Place::Stray => return skip(held, last, self.form.end, self.form.start),
            Place::Key => self.key(held, tools, out),
            Place::Value => self.value(held, out),
            Place::String => self.string(held, last, out),
            Place::After => self.after(held, out),
        };
        if step == Step::More && last {
            held.clear();
            out.repair(Repair::Truncated);
            out.truncated = true;
            self.close(out);
            return Step::Again;
        }
        step
    }

    fn start(&mut self, held: &mut String, out: &mut Out) -> Step {
        if held.starts_with('{') {
            held.drain(..1);
            self.open('}', out);
            self.place = Place::Key;
        } else {
            out.arguments("{}");
            self.place = Place::Tail;
        }
        Step::Again
    }

    /// Whether the text begins with the call's end; `None` where more will tell.
    fn ends(&self, held: &str) -> Option<bool> {
        match held.starts_with(self.form.end) {
            false if self.form.end.starts_with(held) => None,
            found => Some(found),
        }
    }

    fn key(&mut self, held: &mut String, tools: &Tools, out: &mut Out) -> Step {
        if held.starts_with(['}', ',']) {
            return self.between(held, out);
        }
        match self.ends(held) {
            None => return Step::More,
            Some(true) => return self.broken(out),
            Some(false) => {}
        }
        let Some(at) = held.find([':', '{', '}', '\n']) else {
            return if held.len() > KEY_BYTES_MAX { self.broken(out) } else { Step::More };
        };
        if !held[at..].starts_with(':') || at > KEY_BYTES_MAX {
            return self.broken(out);
        }
        // Declarations quote their keys, and some answers do.
        let key = held[..at].trim().trim_matches('"').to_owned();
        let key = key
            .strip_prefix(QUOTE)
            .and_then(|it| it.strip_suffix(QUOTE))
            .unwrap_or(&key)
            .to_owned();
        held.drain(..=at);
        if key.is_empty() {
            return self.broken(out);
        }
        self.types = Types::ANY;
        if self.levels.len() == 1 {
            self.types = tools.types(self.tool, &key);
            if self.keys.contains(&key) {
                out.repair(Repair::DuplicateParameter);
                self.muted = 1;
            } else {
                self.keys.push(key.clone());
            }
        }
        self.key = String::from("\"");
        escape_into(&key, &mut self.key);
        self.key.push_str("\":");
        self.place = Place::Value;
        Step::Again
    }

    fn value(&mut self, held: &mut String, out: &mut Out) -> Step {
        if held.is_empty() || QUOTE.starts_with(held.as_str()) && *held != QUOTE {
            return Step::More;
        }
        if let Some(rest) = held.strip_prefix(QUOTE) {
            *held = rest.to_owned();
            self.begin(out);
            self.write("\"", out);
            self.place = Place::String;
            return Step::Again;
        }
        match held.chars().next() {
            Some('{') if self.levels.len() < DEPTH_MAX => {
                held.drain(..1);
                self.begin(out);
                self.open('}', out);
                self.place = Place::Key;
                return Step::Again;
            }
            Some('[') if self.levels.len() < DEPTH_MAX => {
                held.drain(..1);
                self.begin(out);
                self.open(']', out);
                return Step::Again;
            }
            Some(']') if self.key.is_empty() => return self.between(held, out),
            Some(',') if self.key.is_empty() => return self.between(held, out),
            Some('"') => return self.quoted(held, out),
            _ => {}
        }
        match self.ends(held) {
            None => return Step::More,
            Some(true) => return self.broken(out),
            Some(false) => {}
        }
        let Some(at) = held.find([',', '}', ']', '<']) else { return Step::More };
        let text: String = held.drain(..at).collect();
        if text.trim().is_empty() {
            return self.broken(out);
        }
        let json = match fitting(&text, self.types, out) {
            Some(json) => json,
            None => {
                let string = self.types.allows(Types::STRING);
                out.repair(if string { Repair::MalformedJson } else { Repair::UnfittingValue });
                Json::from(text.trim()).to_string()
            }
        };
        self.begin(out);
        self.write(&json, out);
        self.ended();
        Step::Again
    }

    /// A string in JSON's own quotes, which some answers have.
    fn quoted(&mut self, held: &mut String, out: &mut Out) -> Step {
        let mut escaped = false;
        let end = held.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else {
            return match held.find(self.form.end) {
                Some(_) => self.broken(out),
                None => Step::More,
            };
        };
        let text: String = held.drain(..=end).collect();
        out.repair(Repair::MalformedJson);
        let json = match serde_json::from_str::<String>(&text) {
            Ok(_) => text,
            Err(_) => Json::from(&text[1..text.len() - 1]).to_string(),
        };
        self.begin(out);
        self.write(&json, out);
        self.ended();
        Step::Again
    }

    fn string(&mut self, held: &mut String, last: bool, out: &mut Out) -> Step {
        let markers = [QUOTE, self.form.end];
        let found = first(held, markers);
        let keep = markers.iter().map(|marker| begun(held, marker)).max().unwrap_or(0);
        let until = held.len() - if last { 0 } else { keep };
        let text: String = held.drain(..found.map_or(until, |(at, _)| at)).collect();
        let mut json = String::new();
        escape_into(&text, &mut json);
        self.write(&json, out);
        match found {
            None => Step::More,
            Some((_, QUOTE)) => {
                held.drain(..QUOTE.len());
                self.write("\"", out);
                self.ended();
                Step::Again
            }
            // A control token is no text: the string was not closed.
            Some(_) => self.broken(out),
        }
    }

    fn after(&mut self, held: &mut String, out: &mut Out) -> Step {
        if held.is_empty() {
            return Step::More;
        }
        if held.starts_with([',', '}', ']']) {
            return self.between(held, out);
        }
        match self.ends(held) {
            None => Step::More,
            Some(_) => self.broken(out),
        }
    }

    /// A comma, or the end of an object or a list.
    fn between(&mut self, held: &mut String, out: &mut Out) -> Step {
        let Some(sign) = held.chars().next() else { return Step::More };
        let in_list = self.levels.last().is_some_and(|level| level.closes == ']');
        if sign == ',' {
            if self.place != Place::After {
                out.repair(Repair::MalformedJson);
            }
            held.drain(..1);
            self.key.clear();
            self.place = if in_list { Place::Value } else { Place::Key };
            return Step::Again;
        }
        if self.levels.last().is_none_or(|level| level.closes != sign) {
            return self.broken(out);
        }
        held.drain(..1);
        self.levels.pop();
        self.write(sign.encode_utf8(&mut [0; 4]), out);
        self.ended();
        if self.levels.is_empty() {
            self.place = Place::Tail;
        }
        Step::Again
    }

    /// What follows a value in progress.
    fn ended(&mut self) {
        self.place = Place::After;
        self.key.clear();
        self.types = Types::ANY;
        if self.levels.len() == 1 {
            self.muted = 0;
        }
    }

    /// Writes what stands before a value.
    fn begin(&mut self, out: &mut Out) {
        let key = std::mem::take(&mut self.key);
        if self.muted == 0
            && let Some(level) = self.levels.last_mut()
            && !std::mem::replace(&mut level.empty, false)
        {
            out.arguments(",");
        }
        self.write(&key, out);
    }

    fn open(&mut self, closes: char, out: &mut Out) {
        self.write(if closes == '}' { "{" } else { "[" }, out);
        self.levels.push(Level { closes, empty: true });
        self.key.clear();
        self.types = Types::ANY;
    }

    fn write(&self, json: &str, out: &mut Out) {
        if self.muted == 0 {
            out.arguments(json);
        }
    }

    /// Ends the arguments where they can be read no further.
    fn broken(&mut self, out: &mut Out) -> Step {
        out.repair(Repair::MalformedJson);
        self.close(out);
        self.place = Place::Stray;
        Step::Again
    }

    /// Writes the ends of what is open.
    fn close(&mut self, out: &mut Out) {
        if self.place == Place::String {
            self.write("\"", out);
        }
        while let Some(level) = self.levels.pop() {
            if self.levels.is_empty() {
                self.muted = 0;
            }
            self.write(level.closes.encode_utf8(&mut [0; 4]), out);
        }
        self.place = Place::Tail;
    }

    fn tail(&mut self, held: &mut String, last: bool, out: &mut Out) -> Step {
        let end = self.form.end;
        if held.starts_with(end) {
            held.drain(..end.len());
            return Step::Done;
        }
        if end.starts_with(held.as_str()) {
            if !last {
                return Step::More;
            }
            held.clear();
        }
        if !out.truncated {
            out.repair(Repair::MissingCallEnd);
        }
        Step::Done
    }
}

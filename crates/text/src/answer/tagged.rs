//! A call with its parameters in tags, after its name: parameters to one JSON object, streamed.
//!
//! A string is passed on as it comes, other types when they are complete. The end of a value is not simply its
//! closing tag, because values contain tags: a closing tag counts if what follows can follow it in a call; a value
//! without one ends where the next known parameter begins on a line of its own, or where the function and the call
//! are closed together. Whatever could still become an end is held back, so that the same text is passed on however
//! it was cut. Where values have lines of their own, a line break after the opening tag and one before the closing tag
//! are the template's.

use serde_json::Value as Json;

use super::markers::skip;
use super::out::{Out, Repair, escape_into};
use super::schema::Types;
use super::tools::{Form, Tools, fitting, form, typed};
use super::{Step, THINK_END};

/// Longest name of a parameter.
pub(super) const KEY_BYTES_MAX: usize = 256;

/// The tags of a dialect. An empty text is a tag that the dialect does not have.
#[derive(Debug)]
pub(super) struct Tags {
    /// Begins a call, or a block of several.
    pub(super) start: &'static str,
    /// Ends it.
    pub(super) end: &'static str,
    /// Begins a function.
    pub(super) function: &'static str,
    /// Ends it.
    pub(super) function_end: &'static str,
    /// Begins a parameter.
    pub(super) parameter: &'static str,
    /// Reads what follows: the parameter's name up to its value.
    pub(super) header: fn(&str) -> Header,
    /// Ends a parameter.
    pub(super) parameter_end: &'static str,
    /// A block has several functions, each a call of its own.
    pub(super) several: bool,
    /// Values stand on lines of their own.
    pub(super) lines: bool,
}

impl Tags {
    /// What may follow the closing tag of a parameter.
    fn followers(&self) -> impl Iterator<Item = &'static str> + Clone {
        let tags =
            [self.parameter, self.function_end, self.end, self.start, self.function, THINK_END];
        tags.into_iter().filter(|tag| !tag.is_empty())
    }
}

/// What follows the beginning of a parameter's tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// More text will tell.
    Open,
    /// No parameter.
    None,
    /// A parameter, whose value begins at the place.
    Named {
        key: String,
        value: usize,
        /// Whether its value is text, where the tag says it; else JSON.
        text: Option<bool>,
    },
}

/// The header of a tag that ends with `close` behind the name.
pub(super) fn named(rest: &str, close: &str) -> Header {
    let stop = close.chars().next().unwrap_or('>');
    let Some(at) = rest.find([stop, '\n']) else {
        return if rest.len() <= KEY_BYTES_MAX { Header::Open } else { Header::None };
    };
    let tail = &rest[at..];
    if tail.len() < close.len() && close.starts_with(tail) {
        return Header::Open;
    }
    if !tail.starts_with(close) || at > KEY_BYTES_MAX {
        return Header::None;
    }
    Header::Named { key: rest[..at].trim().to_owned(), value: at + close.len(), text: None }
}

/// Parameters that no schema has and that some answers put all others into.
const WRAPPERS: [&str; 3] = ["arguments", "parameters", "input"];

/// A call in progress.
#[derive(Debug)]
pub(super) struct TaggedCall {
    tags: &'static Tags,
    tool: usize,
    /// The call began with its marker, so that its end has one too.
    marked: bool,
    /// Parameters so far.
    keys: Vec<String>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Between parameters.
    Between,
    Value(Value),
    /// After the function's end: only the call's own is missing.
    After,
    /// In text that belongs to nothing, up to the end of the call.
    Stray,
}

/// A value in progress.
#[derive(Debug)]
struct Value {
    types: Types,
    /// Given before: not passed on.
    duplicate: bool,
    /// It holds all arguments: an object in the place of the parameters.
    wraps: bool,
    /// Nothing of it was seen, not even the line break before it.
    fresh: bool,
    /// Nothing of it was passed on or kept.
    empty: bool,
    /// What was passed on or kept ends with a line break.
    ends_line: bool,
    /// It is passed on as a string.
    streamed: bool,
    /// What is not passed on yet.
    text: String,
}

/// Whether text that follows a `<` ends a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    /// More text will tell.
    Perhaps,
    /// Yes, and its closing tag is so long.
    Tag(usize),
    /// Yes, without a closing tag.
    Missing,
}

impl TaggedCall {
    pub(super) fn new(tags: &'static Tags, tool: usize, marked: bool) -> Self {
        Self { tags, tool, marked, keys: Vec::new(), place: Place::Between }
    }

    /// Decides the beginning of what is held. `last` says that no more text will come.
    pub(super) fn step(
        &mut self,
        held: &mut String,
        last: bool,
        tools: &Tools,
        out: &mut Out,
    ) -> Step {
        match &mut self.place {
            Place::Between => self.between(held, last, tools, out),
            Place::Value(_) => self.value(held, last, tools, out),
            Place::After if self.tags.several => Step::Done,
            Place::After => after(self.tags, held, last, self.marked, out),
            Place::Stray => skip(held, last, self.tags.end, self.tags.start),
        }
    }

    fn between(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        let tags = self.tags;
        let blank = held.len() - held.trim_start().len();
        held.drain(..blank);
        if let Some(rest) = held.strip_prefix(tags.parameter) {
            return match (tags.header)(rest) {
                Header::Open if !last => Step::More,
                Header::Open | Header::None => self.stray(held, last, out),
                Header::Named { key, value, text } => {
                    held.drain(..tags.parameter.len() + value);
                    self.begin(key, text, tools, out);
                    Step::Again
                }
            };
        }
        let begins = |tag: &str| !tag.is_empty() && held.starts_with(tag);
        if begins(tags.function_end) {
            held.drain(..tags.function_end.len());
            self.finish(out);
            self.place = Place::After;
            return Step::Again;
        }
        if begins(tags.parameter_end) {
            held.drain(..tags.parameter_end.len());
            out.repair(Repair::RepeatedEnd);
            return Step::Again;
        }
        if [tags.end, tags.start, tags.function, THINK_END].into_iter().any(begins) {
            if !tags.function_end.is_empty() {
                out.repair(Repair::MissingFunctionEnd);
            }
            self.finish(out);
            self.place = Place::After;
            return Step::Again;
        }
        let mut known = tags.followers().chain([tags.parameter_end]);
        if !last && known.any(|tag| tag.starts_with(held.as_str())) {
            return Step::More;
        }
        self.stray(held, last, out)
    }

    /// What is held belongs to nothing that a call has: the call ends here.
    fn stray(&mut self, held: &str, last: bool, out: &mut Out) -> Step {
        let cut = last && (held.is_empty() || held.starts_with('<'));
        out.repair(if cut { Repair::Truncated } else { Repair::StrayText });
        out.truncated = cut;
        self.finish(out);
        self.place = Place::Stray;
        Step::Again
    }

    fn begin(&mut self, key: String, text: Option<bool>, tools: &Tools, out: &mut Out) {
        let duplicate = self.keys.contains(&key);
        if duplicate {
            out.repair(Repair::DuplicateParameter);
        }
        // What a tag says of its value counts as far as the schema allows it.
        let listed = tools.types(self.tool, &key);
        let types = match text {
            Some(true) if listed.allows(Types::STRING) => Types::STRING,
            Some(false) => listed.without(Types::STRING).unwrap_or(listed),
            _ => listed,
        };
        let unlisted = text.is_some() && self.keys.is_empty() && !tools.lists(self.tool, &key);
        let wraps = unlisted && WRAPPERS.contains(&key.as_str());
        if !duplicate {
            self.keys.push(key);
        }
        let mut value = Value {
            types: if wraps { Types::OBJECT } else { types },
            duplicate,
            wraps,
            fresh: self.tags.lines,
            empty: true,
            ends_line: false,
            streamed: false,
            text: String::new(),
        };
        if !duplicate && form("", value.types) == Form::String {
            self.open_string(&mut value, out);
        }
        self.place = Place::Value(value);
    }

    /// Writes the key of the parameter that began last, and what stands before it.
    fn write_key(&self, out: &mut Out) {
        let mut json = String::from(if self.keys.len() == 1 { "{\"" } else { ",\"" });
        escape_into(self.keys.last().map_or("", String::as_str), &mut json);
        json.push_str("\":");
        out.arguments(&json);
    }

    fn open_string(&self, value: &mut Value, out: &mut Out) {
        self.write_key(out);
        out.arguments("\"");
        value.streamed = true;
    }

    fn value(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        let Place::Value(value) = &mut self.place else { return Step::Again };
        if value.fresh {
            if held.is_empty() && !last {
                return Step::More;
            }
            if held.starts_with('\n') {
                held.drain(..1);
            }
            value.fresh = false;
        }
        let mut from = 0;
        let (at, end) = loop {
            let Some(found) = held[from..].find('<') else { break (held.len(), End::No) };
            let at = from + found;
            let end = self.end_at(held, at, last, tools);
            if end != End::No {
                break (at, end);
            }
            from = at + 1;
        };
        let mut sure = at;
        let lines = self.tags.lines;
        if lines && held[..at].ends_with('\n') && (end != End::No || !last) {
            sure -= 1;
        }
        let complete = matches!(end, End::Tag(_) | End::Missing);
        // A line break at the very end of a value that was cut off is the template's as well.
        if lines && last && !complete && held.ends_with('\n') {
            sure = held.len() - 1;
        }
        let piece: String = held.drain(..sure).collect();
        let Place::Value(mut value) = std::mem::replace(&mut self.place, Place::Between) else {
            return Step::Again;
        };
        self.push(&mut value, &piece, out);
        if !complete && !last {
            self.place = Place::Value(value);
            return Step::More;
        }
        self.end_value(value, complete, out);
        match end {
            End::Tag(length) => {
                let line_break = at - sure;
                held.drain(..line_break + length);
            }
            End::Missing => out.repair(Repair::MissingParameterEnd),
            End::No | End::Perhaps => held.clear(),
        }
        Step::Again
    }

    /// Takes a piece that belongs to the value for certain.
    fn push(&self, value: &mut Value, piece: &str, out: &mut Out) {
        value.empty &= piece.is_empty();
        if !piece.is_empty() {
            value.ends_line = piece.ends_with('\n') && !self.tags.lines;
        }
        if value.duplicate {
            return;
        }
        if !value.streamed {
            value.text.push_str(piece);
            if form(&value.text, value.types) == Form::String {
                self.open_string(value, out);
                let text = std::mem::take(&mut value.text);
                let mut json = String::new();
                escape_into(&text, &mut json);
                out.arguments(&json);
            }
            return;
        }
        let mut json = String::new();
        escape_into(piece, &mut json);
        out.arguments(&json);
    }

    fn end_value(&mut self, value: Value, complete: bool, out: &mut Out) {
        if value.duplicate {
            return;
        }
        if value.streamed {
            out.arguments("\"");
            return;
        }
        if value.wraps
            && let Ok(Json::Object(all)) = serde_json::from_str(value.text.trim())
        {
            out.repair(Repair::WrappedArguments);
            self.keys.pop();
            for (key, value) in all {
                self.keys.push(key);
                self.write_key(out);
                out.arguments(&value.to_string());
            }
            return;
        }
        // Half a list or number means something else than the whole: it is left out.
        let json = if complete || value.types.allows(Types::STRING) {
            Some(typed(&value.text, value.types, out))
        } else {
            fitting(&value.text, value.types, out)
        };
        match json {
            Some(json) => {
                self.write_key(out);
                out.arguments(&json);
            }
            None => drop(self.keys.pop()),
        }
    }

    /// Writes the end of the arguments.
    fn finish(&mut self, out: &mut Out) {
        out.arguments(if self.keys.is_empty() { "{}" } else { "}" });
    }

    /// Whether the `<` at `at` ends the value.
    fn end_at(&self, held: &str, at: usize, last: bool, tools: &Tools) -> End {
        let tags = self.tags;
        let rest = &held[at..];
        let Place::Value(value) = &self.place else { return End::No };
        let at_line = held[..at].ends_with('\n') || (at == 0 && (value.empty || value.ends_line));
        if let Some(after) = rest.strip_prefix(tags.parameter_end) {
            return follows(tags, after, last);
        }
        if let Some(rest) = rest.strip_prefix(tags.parameter) {
            if !at_line {
                return End::No;
            }
            return match (tags.header)(rest) {
                Header::Open if !last => End::Perhaps,
                Header::Open | Header::None => End::No,
                Header::Named { key, .. } => {
                    let new = !self.keys.contains(&key);
                    if new && tools.lists(self.tool, &key) { End::Missing } else { End::No }
                }
            };
        }
        if let Some(after) = rest.strip_prefix(tags.function_end).filter(|_| has(tags.function_end))
        {
            let next = if tags.several { tags.function } else { "" };
            return one_of(after.trim_start(), [tags.end, tags.start, next], last);
        }
        if let Some(after) = rest.strip_prefix(tags.end) {
            if at_line && after.starts_with('\n') {
                return End::Missing;
            }
            let next = after.trim_start();
            if let Some(inside) = next.strip_prefix(tags.start).filter(|_| has(tags.function)) {
                return match one_of(inside.trim_start(), [tags.function], false) {
                    End::Perhaps if last && inside.trim().is_empty() => End::Missing,
                    End::Perhaps if last => End::No,
                    other => other,
                };
            }
            return match one_of(next, [tags.start], last) {
                End::Missing if !next.is_empty() && has(tags.function) => End::No,
                other => other,
            };
        }
        let known = [tags.parameter_end, tags.parameter, tags.function_end, tags.end];
        let begins = known.iter().any(|tag| has(tag) && tag.starts_with(rest));
        if begins && !last { End::Perhaps } else { End::No }
    }
}

/// Whether a dialect has a tag.
fn has(tag: &str) -> bool {
    !tag.is_empty()
}

/// Whether a closing tag with `after` behind it ends a value.
fn follows(tags: &Tags, mut after: &str, last: bool) -> End {
    let end = tags.parameter_end;
    loop {
        let next = after.trim_start();
        if let Some(rest) = next.strip_prefix(end) {
            after = rest;
            continue;
        }
        return match one_of(next, tags.followers().chain([end]), last) {
            End::Missing => End::Tag(end.len()),
            other => other,
        };
    }
}

/// `Missing` if one of `tags` stands at the beginning of `text`, or its end is the answer's.
fn one_of<'a>(text: &str, tags: impl IntoIterator<Item = &'a str>, last: bool) -> End {
    let mut perhaps = false;
    for tag in tags.into_iter().filter(|tag| has(tag)) {
        if text.starts_with(tag) {
            return End::Missing;
        }
        perhaps |= tag.starts_with(text);
    }
    match (perhaps, last) {
        (true, true) => End::Missing,
        (true, false) => End::Perhaps,
        (false, _) => End::No,
    }
}

/// Takes the end of a call whose function has ended.
fn after(tags: &Tags, held: &mut String, last: bool, marked: bool, out: &mut Out) -> Step {
    let start = held.trim_start();
    let blank = held.len() - start.len();
    let known = [tags.end, tags.function_end, tags.parameter_end];
    let mut known = known.into_iter().filter(|tag| has(tag));
    if let Some(tag) = known.clone().find(|tag| start.starts_with(tag)) {
        held.drain(..blank + tag.len());
        if tag == tags.end {
            return Step::Done;
        }
        out.repair(Repair::RepeatedEnd);
        return Step::Again;
    }
    let begun = known.any(|tag| tag.starts_with(start));
    if begun && !last {
        return Step::More;
    }
    if last && begun {
        held.clear();
    }
    if marked && !out.truncated {
        out.repair(Repair::MissingCallEnd);
    }
    Step::Done
}

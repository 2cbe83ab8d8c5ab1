//! A call in the XML dialect, after its name: parameters to one JSON object, streamed.
//!
//! A string is passed on as it comes, other types when they are complete. The end of a value is not simply its
//! closing tag, because values contain tags: a closing tag counts if what follows can follow it in a call; a value
//! without one ends where the next known parameter begins on a line of its own, or where the function and the call
//! are closed together. Whatever could still become an end is held back, so that the same text is passed on however
//! it was cut. A line break after the opening tag and one before the closing tag are the template's.

use super::out::{Out, Repair, escape_into};
use super::schema::Types;
use super::tools::{Form, Tools, fitting, form, typed};
use super::{CALL_END, CALL_START, FUNCTION_START, Step, THINK_END, skip};

pub(super) const PARAMETER_START: &str = "<parameter=";
pub(super) const FUNCTION_END: &str = "</function>";
const PARAMETER_END: &str = "</parameter>";
/// Longest name of a parameter.
const KEY_BYTES_MAX: usize = 256;
/// What may follow the closing tag of a parameter.
const FOLLOWERS: [&str; 6] =
    [PARAMETER_START, FUNCTION_END, CALL_END, CALL_START, FUNCTION_START, THINK_END];

/// A call in progress.
#[derive(Debug)]
pub(super) struct XmlCall {
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
    /// Nothing of it was seen, not even the line break before it.
    fresh: bool,
    /// Nothing of it was passed on or kept.
    empty: bool,
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

impl XmlCall {
    pub(super) fn new(tool: usize, marked: bool) -> Self {
        Self { tool, marked, keys: Vec::new(), place: Place::Between }
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
            Place::After => after(held, last, self.marked, out),
            Place::Stray => skip(held, last),
        }
    }

    fn between(&mut self, held: &mut String, last: bool, tools: &Tools, out: &mut Out) -> Step {
        let blank = held.len() - held.trim_start().len();
        held.drain(..blank);
        if let Some(named) = held.strip_prefix(PARAMETER_START) {
            let Some(end) = named.find(['>', '\n']) else {
                if !last && named.len() <= KEY_BYTES_MAX {
                    return Step::More;
                }
                return self.stray(held, last, out);
            };
            if named.as_bytes()[end] != b'>' || end > KEY_BYTES_MAX {
                return self.stray(held, last, out);
            }
            let key = named[..end].trim().to_owned();
            held.drain(..PARAMETER_START.len() + end + 1);
            self.begin(key, tools, out);
            return Step::Again;
        }
        if held.starts_with(FUNCTION_END) {
            held.drain(..FUNCTION_END.len());
            self.finish(out);
            self.place = Place::After;
            return Step::Again;
        }
        if held.starts_with(PARAMETER_END) {
            held.drain(..PARAMETER_END.len());
            out.repair(Repair::RepeatedEnd);
            return Step::Again;
        }
        if [CALL_END, CALL_START, FUNCTION_START, THINK_END].iter().any(|tag| held.starts_with(tag))
        {
            out.repair(Repair::MissingFunctionEnd);
            self.finish(out);
            self.place = Place::After;
            return Step::Again;
        }
        let tags = [&FOLLOWERS[..], &[PARAMETER_END]].concat();
        if !last && tags.iter().any(|tag| tag.starts_with(held.as_str())) {
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

    fn begin(&mut self, key: String, tools: &Tools, out: &mut Out) {
        let duplicate = self.keys.contains(&key);
        if duplicate {
            out.repair(Repair::DuplicateParameter);
        }
        let types = tools.types(self.tool, &key);
        if !duplicate {
            self.keys.push(key);
        }
        let mut value = Value {
            types,
            duplicate,
            fresh: true,
            empty: true,
            streamed: false,
            text: String::new(),
        };
        if !duplicate && form("", types) == Form::String {
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
        if held[..at].ends_with('\n') && (end != End::No || !last) {
            sure -= 1;
        }
        let complete = matches!(end, End::Tag(_) | End::Missing);
        // A line break at the very end of a value that was cut off is the template's as well.
        if last && !complete && held.ends_with('\n') {
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
        let rest = &held[at..];
        let Place::Value(value) = &self.place else { return End::No };
        let at_line = held[..at].ends_with('\n') || (at == 0 && value.empty);
        if let Some(after) = rest.strip_prefix(PARAMETER_END) {
            return follows(after, last);
        }
        if let Some(named) = rest.strip_prefix(PARAMETER_START) {
            return match named.find(['>', '\n']) {
                _ if !at_line => End::No,
                None if last || named.len() > KEY_BYTES_MAX => End::No,
                None => End::Perhaps,
                Some(end) if named.as_bytes()[end] == b'>' => {
                    let key = named[..end].trim();
                    let new = !self.keys.iter().any(|known| known == key);
                    if new && tools.lists(self.tool, key) { End::Missing } else { End::No }
                }
                Some(_) => End::No,
            };
        }
        if let Some(after) = rest.strip_prefix(FUNCTION_END) {
            return one_of(after.trim_start(), &[CALL_END, CALL_START], last);
        }
        if let Some(after) = rest.strip_prefix(CALL_END) {
            if at_line && after.starts_with('\n') {
                return End::Missing;
            }
            let next = after.trim_start();
            if let Some(inside) = next.strip_prefix(CALL_START) {
                return match one_of(inside.trim_start(), &[FUNCTION_START], false) {
                    End::Perhaps if last && inside.trim().is_empty() => End::Missing,
                    End::Perhaps if last => End::No,
                    other => other,
                };
            }
            return match one_of(next, &[CALL_START], last) {
                End::Missing if !next.is_empty() => End::No,
                other => other,
            };
        }
        let tags = [PARAMETER_END, PARAMETER_START, FUNCTION_END, CALL_END];
        let begins = tags.iter().any(|tag| tag.starts_with(rest));
        if begins && !last { End::Perhaps } else { End::No }
    }
}

/// Whether a closing tag with `after` behind it ends a value.
fn follows(mut after: &str, last: bool) -> End {
    loop {
        let next = after.trim_start();
        if let Some(rest) = next.strip_prefix(PARAMETER_END) {
            after = rest;
            continue;
        }
        let all = [&FOLLOWERS[..], &[PARAMETER_END]].concat();
        return match one_of(next, &all, last) {
            End::Missing => End::Tag(PARAMETER_END.len()),
            other => other,
        };
    }
}

/// `Missing` if one of `tags` stands at the beginning of `text`, or its end is the answer's.
fn one_of(text: &str, tags: &[&str], last: bool) -> End {
    if tags.iter().any(|tag| text.starts_with(tag)) {
        return End::Missing;
    }
    match (tags.iter().any(|tag| tag.starts_with(text)), last) {
        (true, true) => End::Missing,
        (true, false) => End::Perhaps,
        (false, _) => End::No,
    }
}

/// Takes the end of a call whose function has ended.
fn after(held: &mut String, last: bool, marked: bool, out: &mut Out) -> Step {
    let start = held.trim_start();
    let blank = held.len() - start.len();
    for (tag, ends) in [(CALL_END, true), (FUNCTION_END, false), (PARAMETER_END, false)] {
        if start.starts_with(tag) {
            held.drain(..blank + tag.len());
            if !ends {
                out.repair(Repair::RepeatedEnd);
            }
            return if ends { Step::Done } else { Step::Again };
        }
    }
    let begun = [CALL_END, FUNCTION_END, PARAMETER_END].iter().any(|tag| tag.starts_with(start));
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

//! A call with its arguments in JSON: an object alone, or `{"name": ..., "arguments": {...}}`.
//!
//! [`envelope`] reads such an outer object until the name is known and the arguments have begun, in whichever order
//! they come; from there on [`JsonCall`] passes the arguments on as they come (`json.rs`). Arguments that are a string
//! with JSON inside, as some models write them, are read when they are complete.

use std::ops::Range;

use serde_json::Value;

use super::Step;
use super::json::{Fed, JsonStream};
use super::markers::skip;
use super::out::{Out, Repair};

/// How a dialect closes arguments in JSON.
#[derive(Debug)]
pub(super) struct JsonForm {
    /// Begins the next call.
    pub(super) start: &'static str,
    /// Ends a call.
    pub(super) end: &'static str,
    /// The arguments are part of an outer object.
    pub(super) outer: bool,
    /// A call that ends with the answer needs no end of its own.
    pub(super) open_ended: bool,
}

/// What the beginning of a call's body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Envelope {
    /// More text will tell.
    Open,
    /// No call.
    None,
    /// The name is known and arguments begin at `at`.
    Begun { name: String, at: usize },
    /// The object ended before `end`; its arguments, if any, are in the range.
    Whole { name: String, arguments: Option<Range<usize>>, end: usize },
}

/// Reads `body`, which begins with the opening brace.
pub(super) fn envelope(body: &str) -> Envelope {
    read(body)
        .unwrap_or_else(|end| if end == Stop::Broken { Envelope::None } else { Envelope::Open })
}

/// Why the envelope cannot be read on.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// The text ends.
    End,
    /// It is no such object.
    Broken,
}

fn read(body: &str) -> Result<Envelope, Stop> {
    let mut name: Option<String> = None;
    let mut arguments: Option<Range<usize>> = None;
    let mut at = 1;
    loop {
        at = skip_blank(body, at);
        match next(body, at)? {
            b'"' => {}
            b',' => {
                at += 1;
                continue;
            }
            b'}' => {
                let name = name.ok_or(Stop::Broken)?;
                return Ok(Envelope::Whole { name, arguments, end: at + 1 });
            }
            _ => return Err(Stop::Broken),
        }
        let key_end = string_end(body, at)?;
        let key = serde_json::from_str::<String>(&body[at..key_end]).map_err(|_| Stop::Broken)?;
        at = skip_blank(body, key_end);
        if next(body, at)? != b':' {
            return Err(Stop::Broken);
        }
        at = skip_blank(body, at + 1);
        let first = next(body, at)?;
        if key == "arguments" || key == "parameters" {
            if !matches!(first, b'{' | b'"' | b'n') {
                return Err(Stop::Broken);
            }
            if let Some(name) = name {
                return Ok(Envelope::Begun { name, at });
            }
            let end = value_end(body, at)?;
            arguments = Some(at..end);
            at = end;
        } else if key == "name" {
            if first != b'"' {
                return Err(Stop::Broken);
            }
            let end = string_end(body, at)?;
            let text = serde_json::from_str(&body[at..end]).map_err(|_| Stop::Broken)?;
            at = end;
            name = Some(text);
        } else {
            at = value_end(body, at)?;
        }
    }
}

fn skip_blank(body: &str, at: usize) -> usize {
    body.len() - body[at..].trim_start().len()
}

fn next(body: &str, at: usize) -> Result<u8, Stop> {
    body.as_bytes().get(at).copied().ok_or(Stop::End)
}

/// The place behind the string that begins at `at`.
fn string_end(body: &str, at: usize) -> Result<usize, Stop> {
    let mut escaped = false;
    for (index, byte) in body.bytes().enumerate().skip(at + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(index + 1),
            _ => {}
        }
    }
    Err(Stop::End)
}

/// The place behind the value that begins at `at`, by its brackets alone.
fn value_end(body: &str, at: usize) -> Result<usize, Stop> {
    let mut depth = 0_usize;
    let mut at = at;
    loop {
        match next(body, at)? {
            b'"' => {
                at = string_end(body, at)?;
                if depth == 0 {
                    return Ok(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Ok(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(at + 1);
                }
            }
            b',' | b'<' if depth == 0 => return Ok(at),
            _ => {}
        }
        at += 1;
    }
}

/// A call whose arguments are on their way.
#[derive(Debug)]
pub(super) struct JsonCall {
    form: &'static JsonForm,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Nothing of the arguments was read.
    Start,
    /// Inside an object.
    Object(JsonStream),
    /// Behind the arguments; the outer object is closed or not yet.
    Tail { closed: bool },
    /// In text that belongs to nothing, up to the end of the call.
    Stray,
}

impl JsonCall {
    /// A call whose arguments begin with what is held next.
    pub(super) fn new(form: &'static JsonForm) -> Self {
        Self { form, place: Place::Start }
    }

    /// Writes the arguments of a call that is complete.
    pub(super) fn whole(form: &'static JsonForm, arguments: &str, out: &mut Out) -> Self {
        write_arguments(arguments, out);
        Self { form, place: Place::Tail { closed: true } }
    }

    /// Decides the beginning of what is held. `last` says that no more text will come.
    pub(super) fn step(&mut self, held: &mut String, last: bool, out: &mut Out) -> Step {
        let form = self.form;
        match &mut self.place {
            Place::Start if !form.outer && held.starts_with(char::is_whitespace) => {
                let blank = held.len() - held.trim_start().len();
                held.drain(..blank);
                Step::Again
            }
            Place::Start if held.starts_with('{') => {
                self.place = Place::Object(JsonStream::new());
                Step::Again
            }
            Place::Start => {
                let end = value_end(held, 0).unwrap_or(if last { held.len() } else { 0 });
                if end == 0 && !last {
                    return Step::More;
                }
                let text: String = held.drain(..end).collect();
                if last && held.is_empty() {
                    out.truncated = true;
                    out.repair(Repair::Truncated);
                }
                write_arguments(&text, out);
                self.place = Place::Tail { closed: !form.outer };
                Step::Again
            }
            Place::Object(stream) => {
                let (used, fed) = feed(form, stream, held, last, out);
                held.drain(..used);
                match fed {
                    Fed::More if !last => return Step::More,
                    Fed::More => {
                        out.truncated = true;
                        out.repair(Repair::Truncated);
                        stream.close(out);
                        held.clear();
                    }
                    Fed::Broken => {
                        out.repair(Repair::MalformedJson);
                        stream.close(out);
                    }
                    Fed::Finished => {}
                }
                self.place = match fed {
                    Fed::Broken => Place::Stray,
                    _ => Place::Tail { closed: !form.outer },
                };
                Step::Again
            }
            // Members behind the arguments say nothing to us.
            Place::Tail { closed: false } if held.trim_start().starts_with(',') => {
                self.place = Place::Stray;
                Step::Again
            }
            Place::Tail { closed } => tail(form, held, last, closed, out),
            Place::Stray => skip(held, last, form.end, form.start),
        }
    }
}

/// Feeds what is held; the bytes used, and how it went on.
fn feed(
    form: &JsonForm,
    stream: &mut JsonStream,
    held: &str,
    last: bool,
    out: &mut Out,
) -> (usize, Fed) {
    for (at, c) in held.char_indices() {
        // A line break is not allowed in a string: with the call's end behind it, the string was not closed.
        if c == '\n' && stream.in_string() {
            let rest = &held[at + 1..];
            if rest.starts_with(form.end) {
                return (at, Fed::Broken);
            }
            if form.end.starts_with(rest) && !last {
                return (at, Fed::More);
            }
        }
        match stream.feed(c, out) {
            Fed::More => {}
            Fed::Finished => return (at + c.len_utf8(), Fed::Finished),
            Fed::Broken => return (at, Fed::Broken),
        }
    }
    (held.len(), Fed::More)
}

/// Writes complete arguments: an object, a string that holds one, or nothing.
fn write_arguments(text: &str, out: &mut Out) {
    let text = text.trim();
    let inner = match serde_json::from_str(text) {
        Ok(Value::String(inner)) => inner,
        Ok(Value::Null) => "{}".to_owned(),
        _ => text.to_owned(),
    };
    let inner = if inner.trim().is_empty() { "{}" } else { &inner };
    let mut stream = JsonStream::new();
    for c in inner.chars() {
        match stream.feed(c, out) {
            Fed::More => {}
            Fed::Finished => return,
            Fed::Broken => break,
        }
    }
    out.repair(Repair::MalformedJson);
    stream.close(out);
}

/// Takes the end of the outer object and of the call.
fn tail(form: &JsonForm, held: &mut String, last: bool, closed: &mut bool, out: &mut Out) -> Step {
    let end = form.end;
    let start = held.trim_start();
    let blank = held.len() - start.len();
    if start.starts_with('}') {
        held.drain(..blank + 1);
        if std::mem::replace(closed, true) {
            out.repair(Repair::MalformedJson);
        }
        return Step::Again;
    }
    // The closing fence of a block of code.
    if !form.outer && start.starts_with('`') {
        held.drain(..blank + 1);
        return Step::Again;
    }
    if end.starts_with(start) && start.len() < end.len() {
        if !last {
            return Step::More;
        }
        held.clear();
    }
    if !*closed && !out.truncated {
        out.repair(Repair::MalformedJson);
    }
    if held[blank.min(held.len())..].starts_with(end) {
        held.drain(..blank + end.len());
    } else if !(out.truncated || form.open_ended && last && held.trim().is_empty()) {
        out.repair(Repair::MissingCallEnd);
    }
    Step::Done
}

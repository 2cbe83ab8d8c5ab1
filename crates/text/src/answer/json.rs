//! JSON text of an object, passed on as it comes, valid whatever comes.
//!
//! Arguments in the JSON dialect are streamed before they are complete, so what was passed on must be
//! closable at any moment and can never be taken back. Structure is therefore written when it is certain: a key
//! with its value's first character, a comma with what follows it, numbers and names when they are complete.
//! Strings are decoded and encoded anew character by character. What is not JSON is put right where its meaning is
//! plain (line breaks in strings, unknown escapes, trailing commas, Python's names), else the object is closed
//! there.

use serde_json::Value;

use super::out::{Out, Repair, escape_into};

/// Nesting that readers of JSON commonly accept.
const DEPTH_MAX: usize = 100;
/// Longest number or name.
const SCALAR_BYTES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// The opening brace of the whole.
    Start,
    /// A value; the end of a list too if the flag is set.
    Value {
        or_end: bool,
    },
    /// A key or the end of the object.
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// Inside a string, which is a key or a value.
    Text {
        key: bool,
    },
    /// Inside a number or name.
    Scalar,
    Finished,
}

/// What a character led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// More is to come.
    More,
    /// It was the last of the object.
    Finished,
    /// No JSON goes on like this; the object should be closed.
    Broken,
}

/// An escape sequence in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Started,
    /// Digits of `\u` so far.
    Unicode(String),
}

/// An object on its way.
#[derive(Debug)]
pub(super) struct JsonStream {
    /// Open containers: whether an object, and whether something is in it.
    open: Vec<(bool, bool)>,
    expect: Expect,
    /// A key that waits for its value, or a scalar in progress.
    key: String,
    scalar: String,
    escape: Escape,
    /// The first half of a pair of surrogates.
    high: Option<u32>,
}

impl JsonStream {
    pub(super) fn new() -> Self {
        Self {
            open: Vec::new(),
            expect: Expect::Start,
            key: String::new(),
            scalar: String::new(),
            escape: Escape::None,
            high: None,
        }
    }

    /// Whether the next character belongs to a string.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.expect, Expect::Text { .. })
    }

    /// Takes a character.
    pub(super) fn feed(&mut self, c: char, out: &mut Out) -> Fed {
        match self.expect {
            Expect::Text { key } => {
                self.feed_text(c, key, out);
                return Fed::More;
            }
            Expect::Scalar => {
                let goes_on = !c.is_whitespace() && !",}]:\"{[<".contains(c);
                if goes_on {
                    self.scalar.push(c);
                    let short = self.scalar.len() <= SCALAR_BYTES_MAX;
                    return if short { Fed::More } else { Fed::Broken };
                }
                self.end_scalar(out);
            }
            _ => {}
        }
        if c.is_whitespace() {
            return Fed::More;
        }
        match (self.expect, c) {
            (Expect::Start, '{') => self.begin(true, out),
            (Expect::Value { .. }, '{') => self.begin(true, out),
            (Expect::Value { .. }, '[') => self.begin(false, out),
            (Expect::Value { or_end: true }, ']') => self.end(false, out),
            (Expect::Value { .. }, '"') => {
                self.place(out);
                out.arguments("\"");
                self.expect = Expect::Text { key: false };
                Fed::More
            }
            (Expect::Value { .. }, c) if c.is_alphanumeric() || c == '-' => {
                self.scalar.push(c);
                self.expect = Expect::Scalar;
                Fed::More
            }
            (Expect::KeyOrEnd, '"') => {
                self.key.clear();
                self.expect = Expect::Text { key: true };
                Fed::More
            }
            (Expect::KeyOrEnd, '}') => self.end(true, out),
            (Expect::Colon, ':') => {
                self.expect = Expect::Value { or_end: false };
                Fed::More
            }
            (Expect::CommaOrEnd, ',') => {
                let object = self.open.last().is_some_and(|top| top.0);
                self.expect =
                    if object { Expect::KeyOrEnd } else { Expect::Value { or_end: true } };
                Fed::More
            }
            (Expect::CommaOrEnd, '}') => self.end(true, out),
            (Expect::CommaOrEnd, ']') => self.end(false, out),
            _ => Fed::Broken,
        }
    }

    /// Writes what makes the object whole. Unfinished keys, numbers and names are left out.
    pub(super) fn close(&mut self, out: &mut Out) {
        if self.expect == Expect::Start {
            out.arguments("{}");
        }
        if self.expect == (Expect::Text { key: false }) {
            self.end_high(out);
            out.arguments("\"");
        }
        while let Some((object, _)) = self.open.pop() {
            out.arguments(if object { "}" } else { "]" });
        }
        self.expect = Expect::Finished;
    }

    fn begin(&mut self, object: bool, out: &mut Out) -> Fed {
        if self.open.len() == DEPTH_MAX {
            return Fed::Broken;
        }
        self.place(out);
        out.arguments(if object { "{" } else { "[" });
        self.open.push((object, false));
        self.expect = if object { Expect::KeyOrEnd } else { Expect::Value { or_end: true } };
        Fed::More
    }

    fn end(&mut self, object: bool, out: &mut Out) -> Fed {
        if self.open.last().is_none_or(|top| top.0 != object) {
            return Fed::Broken;
        }
        self.open.pop();
        out.arguments(if object { "}" } else { "]" });
        if self.open.is_empty() {
            self.expect = Expect::Finished;
            return Fed::Finished;
        }
        self.expect = Expect::CommaOrEnd;
        Fed::More
    }

    /// Writes the comma and key before a value.
    fn place(&mut self, out: &mut Out) {
        let Some((object, filled)) = self.open.last_mut() else { return };
        if std::mem::replace(filled, true) {
            out.arguments(",");
        }
        if *object {
            let mut text = String::from("\"");
            escape_into(&self.key, &mut text);
            text.push_str("\":");
            out.arguments(&text);
        }
    }

    fn end_scalar(&mut self, out: &mut Out) {
        let scalar = std::mem::take(&mut self.scalar);
        let json = match scalar.as_str() {
            "True" => Some("true"),
            "False" => Some("false"),
            "None" => Some("null"),
            other if serde_json::from_str::<Value>(other).is_ok() => None,
            _ => {
                out.repair(Repair::MalformedJson);
                self.place(out);
                out.arguments(&Value::from(scalar).to_string());
                self.expect = Expect::CommaOrEnd;
                return;
            }
        };
        if json.is_some() {
            out.repair(Repair::PythonValue);
        }
        self.place(out);
        out.arguments(json.unwrap_or(&scalar));
        self.expect = Expect::CommaOrEnd;
    }

    fn feed_text(&mut self, c: char, key: bool, out: &mut Out) {
        match std::mem::replace(&mut self.escape, Escape::None) {
            Escape::None => match c {
                '\\' => self.escape = Escape::Started,
                '"' => {
                    self.end_high_in(key, out);
                    if key {
                        self.expect = Expect::Colon;
                    } else {
                        out.arguments("\"");
                        self.expect = Expect::CommaOrEnd;
                    }
                }
                c => {
                    if c < ' ' {
                        out.repair(Repair::MalformedJson);
                    }
                    self.character(c, key, out);
                }
            },
            Escape::Started => {
                let plain = match c {
                    '"' | '\\' | '/' => c,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'u' => {
                        self.escape = Escape::Unicode(String::new());
                        return;
                    }
                    other => {
                        out.repair(Repair::MalformedJson);
                        self.character('\\', key, out);
                        other
                    }
                };
                self.character(plain, key, out);
            }
            Escape::Unicode(mut digits) => {
                if !c.is_ascii_hexdigit() {
                    out.repair(Repair::MalformedJson);
                    self.character(char::REPLACEMENT_CHARACTER, key, out);
                    return self.feed_text(c, key, out);
                }
                digits.push(c);
                if digits.len() < 4 {
                    self.escape = Escape::Unicode(digits);
                    return;
                }
                let unit = u32::from_str_radix(&digits, 16).unwrap_or(0);
                self.unit(unit, key, out);
            }
        }
    }

    /// A unit of UTF-16 from an escape.
    fn unit(&mut self, unit: u32, key: bool, out: &mut Out) {
        match (self.high, unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                self.high = None;
                let code = 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00);
                self.character(
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
                    key,
                    out,
                );
            }
            (_, 0xd800..=0xdbff) => {
                self.end_high_in(key, out);
                self.high = Some(unit);
            }
            (_, unit) => {
                let c = char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
                self.character(c, key, out);
            }
        }
    }

    fn character(&mut self, c: char, key: bool, out: &mut Out) {
        self.end_high_in(key, out);
        if key {
            self.key.push(c);
        } else {
            let mut json = String::new();
            escape_into(c.encode_utf8(&mut [0; 4]), &mut json);
            out.arguments(&json);
        }
    }

    /// Half a pair that stayed alone is no character.
    fn end_high_in(&mut self, key: bool, out: &mut Out) {
        if self.high.take().is_some() {
            out.repair(Repair::MalformedJson);
            if key {
                self.key.push(char::REPLACEMENT_CHARACTER);
            } else {
                out.arguments("\u{fffd}");
            }
        }
    }

    fn end_high(&mut self, out: &mut Out) {
        self.end_high_in(false, out);
    }
}

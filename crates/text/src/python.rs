//! What chat templates take for granted because they were written for Python.
//!
//! transformers renders templates with Jinja2 and adds `tojson` (json.dumps, nothing escaped for HTML),
//! `raise_exception`, `strftime_now` and a `{% generation %}` block; templates also call methods of Python's strings
//! and print Python's numbers. minijinja-contrib's `pycompat` has the methods; the rest is here. What remains
//! different: integers beyond 64 bits are floats (as JSON arrives here), and a list printed without `tojson` is
//! spelled minijinja's way.

use super::{TextError, clock};
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Context variable that overrides the clock.
pub(crate) const CLOCK: &str = "__now_s";
/// Nesting of values in `tojson`; requests are parsed with the same limit.
const DEPTH_MAX: usize = 160;
/// `{% generation %}` and its end, which only mark training data.
const GENERATION: [(&str, &str); 2] = [("generation", "if true"), ("endgeneration", "endif")];

/// Adds functions, filters and methods to an environment.
pub(crate) fn install(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| {
        if value.kind() == ValueKind::String { value.clone() } else { Value::from(print(value)) }
    });
    environment.add_filter("trim", |text: &Value, chars: Option<String>| {
        let text = print(text);
        Value::from(match chars {
            Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
            None => text.trim_matches(is_space).to_owned(),
        })
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        if value.is_number() && !value.is_integer() {
            return out.write_str(&print(value)).map_err(Error::from);
        }
        minijinja::escape_formatter(out, state, value)
    });
}

/// Python's `str.isspace` for one character: Unicode white space and four ASCII separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The 66 code points that Unicode sets aside for internal use.
pub(crate) fn is_noncharacter(c: char) -> bool {
    let code = u32::from(c);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// Turns `{% generation %}` blocks into blocks that are always taken; their white-space control is kept.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(length) = tag[2..].find("%}") else {
            rest = tag;
            break;
        };
        let end = 2 + length;
        let inner = &tag[2..end];
        let name = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match GENERATION.iter().find(|(from, _)| *from == name) {
            Some((from, to)) => {
                out.push_str("{%");
                out.push_str(&inner.replace(from, to));
                out.push_str("%}");
                rest = &tag[end + 2..];
            }
            None => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The message of a `raise_exception` at the bottom of an error.
pub(crate) fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return Some(message.clone());
        }
        cause = current.source();
    }
    None
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    let now_s = match state.lookup(CLOCK).and_then(|now| now.as_i64()) {
        Some(now_s) => u64::try_from(now_s).unwrap_or(0),
        None => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    clock::format_utc(format, now_s).map_err(|problem| invalid(&problem))
}

/// Python's methods; strip and its sides know Python's white space.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), []) = (value.as_str(), args) {
        match name {
            "strip" => return Ok(Value::from(text.trim_matches(is_space))),
            "lstrip" => return Ok(Value::from(text.trim_start_matches(is_space))),
            "rstrip" => return Ok(Value::from(text.trim_end_matches(is_space))),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.to_owned())
}

/// `str(value)` for what templates print.
fn print(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if value.is_number() && !value.is_integer() => float(number),
        _ => value.to_string(),
    }
}

/// `repr(float)`: shortest digits that read back, exponent outside 1e-4 .. 1e16.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn json(value: &serde_json::Value) -> Result<String, TextError> {
    let separators = (", ".to_owned(), ": ".to_owned());
    let writer = JsonWriter {
        item: separators.0,
        key: separators.1,
        indent: None,
        ascii: false,
        sort: false,
    };
    let mut out = String::new();
    writer
        .write(&Value::from(Serde(value)), 0, &mut out)
        .map_err(|error| TextError::TemplateFailed { problem: error.to_string() })?;
    Ok(out)
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (_, Some(width)) if width <= 64 => " ".repeat(width),
            _ => return Err(invalid("tojson: indent must be a string or at most 64")),
        }),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson: separators must be two strings")),
    };
    let writer = JsonWriter {
        item,
        key,
        indent,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

struct JsonWriter {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    sort: bool,
}

impl JsonWriter {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match print(value).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                number => number.to_owned(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(('[', ']'), items.len(), depth, out, |index, out| {
                    self.write(&items[index], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    entries.push((json_key(&key)?, item));
                }
                if self.sort {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.group(('{', '}'), entries.len(), depth, out, |index, out| {
                    let (key, item) = &entries[index];
                    self.string(key, out);
                    out.push_str(&self.key);
                    self.write(item, depth + 1, out)
                })?;
            }
            other => return Err(invalid(&format!("tojson: {other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn group(
        &self,
        (open, close): (char, char),
        len: usize,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for index in 0..len {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.new_line(depth + 1, out);
            write(index, out)?;
        }
        if len > 0 {
            self.new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                // Noncharacters carry the template's marks and must stay themselves.
                c if self.ascii && c > '~' && !is_noncharacter(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// json.dumps makes strings of keys that are numbers, booleans or None.
fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String | ValueKind::Number => Ok(print(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        other => Err(invalid(&format!("tojson: a key cannot be {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (number, text) in cases {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        let source = "a{%- generation -%}b{% endgeneration %}{% if x %}c{% endif %}{% broken";
        assert_eq!(
            without_generation_tags(source),
            "a{%- if true -%}b{% endif %}{% if x %}c{% endif %}{% broken"
        );
        assert_eq!(without_generation_tags("{%}{% x"), "{%}{% x");
    }
}

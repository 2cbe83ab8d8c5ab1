//! One tool call: what lies between its markers, to a name and typed arguments.
//!
//! In the XML dialect every value is text, so the tool's JSON schema decides its type: a string stays a string
//! even when it looks like a number; other types are read as JSON, with Python's `True`, `False` and `None`
//! understood. A value that does not fit its type stays text: the tool can say more about it than we can.

use serde_json::{Map, Value};

use super::Dialect;
use super::schema::{self, Types};

const PARAMETER_START: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_START: &str = super::FUNCTION_START;
const FUNCTION_END: &str = "</function>";

/// Longest name of a function (OpenAI's limit); more is prose.
const NAME_BYTES_MAX: usize = 64;

/// The functions on offer.
#[derive(Debug)]
pub(super) struct Tools(Vec<(String, Value)>);

/// A call that was understood.
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

impl Tools {
    /// Reads name and parameters of each tool; tools that are no functions are never called.
    pub(super) fn new(tools: &[Value]) -> Self {
        let function = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or_default()))
        };
        Self(tools.iter().filter_map(function).collect())
    }

    fn parameters(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, parameters)| parameters)
    }
}

/// Whether `body`, which follows a call's marker, is or can still become a call.
pub(super) fn can_become_call(dialect: Dialect, body: &str) -> bool {
    let start = body.trim_start();
    match dialect {
        Dialect::QwenXml => match start.strip_prefix(FUNCTION_START) {
            Some(named) => {
                let name = named.split('>').next().unwrap_or(named);
                name.len() <= NAME_BYTES_MAX && !name.contains(char::is_whitespace)
            }
            None => FUNCTION_START.starts_with(start),
        },
        Dialect::Hermes => start.is_empty() || start.starts_with('{'),
    }
}

/// Whether a call can end after `body`.
pub(super) fn looks_complete(dialect: Dialect, body: &str) -> bool {
    let body = body.trim();
    match dialect {
        Dialect::QwenXml => body.ends_with(FUNCTION_END) || body.ends_with(PARAMETER_END),
        Dialect::Hermes => serde_json::from_str::<Value>(body).is_ok(),
    }
}

/// The call in `body`, if it can be understood and names a tool on offer.
pub(super) fn parse(dialect: Dialect, body: &str, tools: &Tools) -> Option<Call> {
    match dialect {
        Dialect::QwenXml => parse_xml(body, tools),
        Dialect::Hermes => parse_json(body, tools),
    }
}

fn parse_json(body: &str, tools: &Tools) -> Option<Call> {
    let value: Value = serde_json::from_str(body.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    tools.parameters(&name)?;
    let arguments = crate::text::parse_arguments(value.get("arguments")?).ok()?;
    Some(Call { name, arguments })
}

fn parse_xml(body: &str, tools: &Tools) -> Option<Call> {
    let body = body.trim().strip_prefix(FUNCTION_START)?;
    let (name, mut rest) = body.split_once('>')?;
    let name = name.trim().to_owned();
    let parameters = tools.parameters(&name)?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        let Some(parameter) = rest.strip_prefix(PARAMETER_START) else { break };
        let (key, after) = parameter.split_once('>')?;
        let key = key.trim();
        let (value, after) = value_end(after);
        let schema = schema::property(parameters, key);
        let types = schema.map_or(Types::ANY, |schema| schema::types(schema, parameters));
        arguments.insert(key.to_owned(), typed(value, types));
        rest = after;
    }
    rest.trim().trim_end_matches(FUNCTION_END).trim().is_empty().then_some(Call { name, arguments })
}

/// Splits at the end of a parameter's value: at the first closing tag after which the call can go on, else where the
/// next parameter or the function's end begins.
fn value_end(text: &str) -> (&str, &str) {
    for (at, _) in text.match_indices(PARAMETER_END) {
        let mut after = &text[at + PARAMETER_END.len()..];
        // A tag closed twice.
        while let Some(rest) = after.trim_start().strip_prefix(PARAMETER_END) {
            after = rest;
        }
        let next = after.trim_start();
        if next.is_empty() || next.starts_with(PARAMETER_START) || next.starts_with(FUNCTION_END) {
            return (one_line_break_less(&text[..at]), after);
        }
    }
    let next = [text.find(&format!("\n{PARAMETER_START}")), text.rfind(FUNCTION_END)];
    let at = next.into_iter().flatten().min().unwrap_or(text.len());
    (one_line_break_less(&text[..at]), &text[at..])
}

/// The template puts one line break before and one after a value.
fn one_line_break_less(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// A value in the type that its schema names.
fn typed(text: &str, types: Types) -> Value {
    let trimmed = text.trim();
    let any = types == Types::ANY;
    if types.allows(Types::NULL) && matches!(trimmed, "null" | "None") {
        return Value::Null;
    }
    if types.allows(Types::STRING) && !any {
        return Value::String(text.to_owned());
    }
    let value = match trimmed {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        other => serde_json::from_str(other).ok(),
    };
    value.filter(|value| types.fits(value)).unwrap_or_else(|| Value::String(text.to_owned()))
}

//! The functions on offer, and their values: text to JSON by the type that a schema names.
//!
//! A string stays a string even when it looks like a number; other types are read as JSON, with Python's `True`,
//! `False` and `None` understood. A value that does not fit its type stays text: the tool can say more about it than
//! we can.

use serde_json::Value;

use super::out::{Out, Repair};
use super::schema::{self, Types};

/// The functions on offer.
#[derive(Debug)]
pub(super) struct Tools(Vec<(String, Value)>);

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

    /// The place of a function by its name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(known, _)| known == name)
    }

    /// The name of a function.
    pub(super) fn name(&self, tool: usize) -> &str {
        &self.0[tool].0
    }

    /// The types of a function's parameter; every type where the schema is silent.
    pub(super) fn types(&self, tool: usize, key: &str) -> Types {
        let parameters = &self.0[tool].1;
        let found = schema::property(parameters, key);
        found.map_or(Types::ANY, |found| schema::types(found, parameters))
    }

    /// Whether a function's schema lists a parameter.
    pub(super) fn lists(&self, tool: usize, key: &str) -> bool {
        schema::property(&self.0[tool].1, key).is_some()
    }
}

/// How a value that has begun with `text` goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// It is too early to tell.
    Open,
    /// A string for certain: it may be passed on as it comes.
    String,
    /// To be judged when it is complete.
    Whole,
}

/// What is known about a value of `types` from its beginning.
pub(super) fn form(text: &str, types: Types) -> Form {
    if !types.allows(Types::STRING) {
        return Form::Whole;
    }
    let others = [Types::NULL, Types::ARRAY, Types::OBJECT];
    if !others.iter().any(|&other| types.allows(other)) {
        return Form::String;
    }
    let start = text.trim_start();
    let Some(first) = start.chars().next() else { return Form::Open };
    let named = |names: &[&str]| names.iter().any(|name| begins_as(start, name));
    let other = (types.allows(Types::ARRAY) && first == '[')
        || (types.allows(Types::OBJECT) && first == '{')
        || (types == Types::ANY && (first == '"' || first == '-' || first.is_ascii_digit()));
    if other {
        return Form::Whole;
    }
    let name = (types.allows(Types::NULL) && named(&["null", "None"]))
        || (types == Types::ANY && named(&["true", "false", "True", "False"]));
    if name { Form::Open } else { Form::String }
}

/// Whether `text` is a beginning of `name`, or all of it with white space behind.
fn begins_as(text: &str, name: &str) -> bool {
    name.starts_with(text) || text.strip_prefix(name).is_some_and(|rest| rest.trim().is_empty())
}

/// A complete value as JSON.
pub(super) fn typed(text: &str, types: Types, out: &mut Out) -> String {
    if let Some(json) = fitting(text, types, out) {
        return json;
    }
    if !types.allows(Types::STRING) {
        out.repair(Repair::UnfittingValue);
    }
    Value::from(text).to_string()
}

/// A value as JSON of one of its types other than string; `None` makes it a string.
pub(super) fn fitting(text: &str, types: Types, out: &mut Out) -> Option<String> {
    let trimmed = text.trim();
    let python = match trimmed {
        "True" => Some((Types::BOOLEAN, "true")),
        "False" => Some((Types::BOOLEAN, "false")),
        "None" => Some((Types::NULL, "null")),
        _ => None,
    };
    let only_container = types.allows(Types::STRING) && types != Types::ANY;
    if let Some((named, json)) = python {
        let fits = types.allows(named) && (!only_container || named == Types::NULL);
        if fits {
            out.repair(Repair::PythonValue);
        }
        return fits.then(|| json.to_owned());
    }
    let value: Value = serde_json::from_str(trimmed).ok()?;
    let clear = matches!(value, Value::Array(_) | Value::Object(_) | Value::Null);
    if !types.fits(&value) || (only_container && !clear) {
        return None;
    }
    // Digits are kept: a number beyond 64 bits would lose some on the way through a value.
    Some(if value.is_number() { trimmed.to_owned() } else { value.to_string() })
}

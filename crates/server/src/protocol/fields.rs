//! Typed access to the fields of a JSON object, with the path of the field in every complaint.
//!
//! A field that is absent or null was not given. One of the wrong type is refused by name; numbers are not taken from
//! strings. What was asked for is remembered, so that no field of a request is passed over in silence (`unread`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::http::ApiError;

/// An object and where it is in the request.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Path of the object, with its final dot; empty for the body itself.
    path: String,
    /// Full names of all fields that were asked for, in this object and those that it was found in.
    read: Rc<RefCell<BTreeSet<String>>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new(), read: Rc::default() }
    }

    /// A value at `path` that must be an object.
    pub(crate) fn at(value: &'a Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: format!("{path}."), read: Rc::default() }),
            other => Err(ApiError::field(path, format!("must be an object, not {}", kind(other)))),
        }
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    pub(crate) fn error(&self, field: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.name(field), problem)
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        let value = self.map.get(field).filter(|value| !value.is_null())?;
        self.read.borrow_mut().insert(self.name(field));
        Some(value)
    }

    /// Whether a field of this object was asked for.
    pub(crate) fn was_read(&self, field: &str) -> bool {
        self.read.borrow().contains(&self.name(field))
    }

    fn typed<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let wrong = || self.error(field, format!("must be {expected}, not {}", kind(value)));
        read(value).ok_or_else(wrong).map(Some)
    }

    pub(crate) fn string(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(crate) fn required_string(&self, field: &str) -> Result<&'a str, ApiError> {
        self.string(field)?.ok_or_else(|| self.error(field, "is missing"))
    }

    pub(crate) fn boolean(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(crate) fn list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(field, "a list", Value::as_array)
    }

    pub(crate) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let object = Self::at(value, &self.name(field))?;
        Ok(Some(Self { read: Rc::clone(&self.read), ..object }))
    }

    /// The object itself.
    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// A number as the sampler takes it. Its range is checked with all the other options.
    pub(crate) fn number(&self, field: &str) -> Result<Option<f32>, ApiError> {
        Ok(self.typed(field, "a number", Value::as_f64)?.map(|number| number as f32))
    }

    pub(crate) fn integer(&self, field: &str) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_i64() {
            Some(integer) => Ok(Some(integer)),
            None => {
                Err(self.error(field, format!("must be a 64-bit integer, not {}", shown(value))))
            }
        }
    }

    /// A seed: any 64-bit integer, with a sign or without; -1 is for a random one, as llama.cpp's clients say it.
    pub(crate) fn seed(&self, field: &str) -> Result<Option<u64>, ApiError> {
        match self.get(field).map(|value| (value.as_u64(), value)) {
            Some((Some(seed), _)) => Ok(Some(seed)),
            _ => Ok(self.integer(field)?.filter(|&seed| seed != -1).map(i64::cast_unsigned)),
        }
    }

    /// A number of tokens: positive, or -1 for as many as there is room for.
    pub(crate) fn token_limit(&self, field: &str) -> Result<Option<usize>, ApiError> {
        match self.integer(field)? {
            None | Some(-1) => Ok(None),
            Some(limit) => match usize::try_from(limit) {
                Ok(limit) if limit > 0 => Ok(Some(limit)),
                _ => Err(self.error(field, format!("must be at least 1, not {limit}"))),
            },
        }
    }

    /// One string or a list of them.
    pub(crate) fn strings(&self, field: &str) -> Result<Vec<String>, ApiError> {
        let expected = "must be a string or a list of strings";
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .ok_or_else(|| self.error(field, expected)),
            Some(other) => Err(self.error(field, format!("{expected}, not {}", kind(other)))),
        }
    }
}

/// The type of a value, with its article.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A number as it was written, anything else by its type.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    }
}

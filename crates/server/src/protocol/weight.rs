//! How much memory a value of JSON takes, which is far more than its text when it is made of small parts.

use serde_json::Value;

/// An entry of a list or object: the value, its name and its place in the index.
const ENTRY_BYTES: usize = 200;

/// Bytes of memory, roughly and never too few.
pub(crate) fn weight(value: &Value) -> usize {
    ENTRY_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(map) => map.iter().map(|(name, value)| name.len() + weight(value)).sum(),
            _ => 0,
        }
}

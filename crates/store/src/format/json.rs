//! JSON as checkpoints use it, read strictly.
//!
//! A key that occurs twice is an error: readers disagree about which one counts, and a file that means
//! two things is not to be guessed at. Nesting is bounded by the JSON reader (128 levels), size by the
//! caller's limit on the file.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::files;

/// config.json and its kin: real ones are below 100 KB.
pub(crate) const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Indexes and manifests: one line per tensor, 140 thousand in the largest released model.
pub(crate) const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Reads and parses a JSON file.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Value, FormatError> {
    parse(path, &files::read_small(path, limit)?)
}

/// Parses the bytes of the file `path`.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Value, FormatError> {
    // Some editors put a byte order mark in front.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice::<Strict>(bytes)
        .map(|strict| strict.0)
        .map_err(|error| FormatError::invalid(path, "JSON", error.to_string(), DOWNLOAD_AGAIN))
}

/// A [`Value`] without repeated keys.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = access.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("key {key:?} occurs twice")));
            }
            let Strict(value) = access.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

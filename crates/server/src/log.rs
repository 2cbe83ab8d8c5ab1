//! Lines of the log: a level, a text, and fields for programs, written for people or as JSON.
//!
//! Nothing in a line is the text of a prompt or an answer. What others wrote (paths, ids, names) is cut and escaped
//! where the line is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::calendar::rfc3339;

/// How much a line matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed that should not.
    Error,
    /// Something is not as it should be, and goes on.
    Warn,
    /// What was asked and how it ended.
    #[default]
    Info,
    /// What monitors ask again and again.
    Debug,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Error, Self::Warn, Self::Info, Self::Debug];
        let found = all.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| "must be error, warn, info or debug".to_owned())
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// How much it matters.
    pub level: Level,
    /// For people: one line, cut and escaped.
    pub text: String,
    /// For programs: what the text says, and more.
    pub fields: Vec<(&'static str, Value)>,
}

impl Line {
    /// `2026-11-22T07:30:00.125Z info  TEXT`
    pub fn text_at(&self, time: SystemTime) -> String {
        format!("{} {:<5} {}", stamp(time), self.level.name(), self.text)
    }

    /// An object with `time`, `level`, `message` and the fields.
    pub fn json_at(&self, time: SystemTime) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), stamp(time).into());
        object.insert("level".to_owned(), self.level.name().into());
        object.insert("message".to_owned(), self.text.as_str().into());
        for (name, value) in &self.fields {
            object.insert((*name).to_owned(), value.clone());
        }
        Value::Object(object).to_string()
    }
}

/// A time in UTC, to the millisecond.
fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = rfc3339(since.as_secs());
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), since.subsec_millis())
}

/// Where lines go, up to a level.
#[derive(Clone)]
pub struct Log {
    sink: Arc<dyn Fn(&Line) + Send + Sync>,
    level: Level,
}

impl fmt::Debug for Log {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Log").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Default for Log {
    /// Nowhere.
    fn default() -> Self {
        Self::new(Level::Error, |_| {})
    }
}

impl Log {
    /// Lines up to `level` go to `sink`.
    pub fn new(level: Level, sink: impl Fn(&Line) + Send + Sync + 'static) -> Self {
        Self { sink: Arc::new(sink), level }
    }

    /// Whether lines of a level are wanted.
    pub(crate) fn takes(&self, level: Level) -> bool {
        level <= self.level
    }

    pub(crate) fn line(&self, line: &Line) {
        if self.takes(line.level) {
            (self.sink)(line);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_time_and_level_in_both_forms() {
        let time = UNIX_EPOCH + Duration::from_millis(1_709_251_199_042);
        let line = Line {
            level: Level::Warn,
            text: "slow".to_owned(),
            fields: vec![("status", 200.into()), ("id", "req_1".into())],
        };
        assert_eq!(line.text_at(time), "2024-02-29T23:59:59.042Z warn  slow");
        let found: Value = serde_json::from_str(&line.json_at(time)).unwrap();
        let wanted = serde_json::json!({ "time": "2024-02-29T23:59:59.042Z", "level": "warn",
            "message": "slow", "status": 200, "id": "req_1" });
        assert_eq!(found, wanted);
        assert_eq!(Level::from_str("debug"), Ok(Level::Debug));
        assert!(Level::from_str("all").is_err());
    }
}

//! What makes an answer right.

use serde::Deserialize;
use serde_json::Value;
use text::{Message, ToolCall};

/// A check of an answer. Every kind but `tool_calls` fails when a call was made.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Check {
    /// The content, trimmed, is this.
    Exact {
        /// The content.
        value: String,
    },
    /// The content contains all of these.
    Contains {
        /// The parts.
        values: Vec<String>,
    },
    /// The content is JSON that equals this.
    Json {
        /// The value; the order of keys does not matter.
        value: Value,
    },
    /// These calls were made, in this order.
    ToolCalls {
        /// The calls.
        calls: Vec<Call>,
    },
}

/// An expected call.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    name: String,
    arguments: Value,
}

impl Check {
    /// Whether `answer` is right.
    pub(super) fn passes(&self, answer: &Message) -> bool {
        let content = answer.content.trim();
        let silent = answer.tool_calls.is_empty();
        match self {
            Self::Exact { value } => silent && content == value.trim(),
            Self::Contains { values } => {
                silent && values.iter().all(|value| content.contains(value.as_str()))
            }
            Self::Json { value } => {
                silent && serde_json::from_str::<Value>(content).is_ok_and(|found| found == *value)
            }
            Self::ToolCalls { calls } => {
                calls.len() == answer.tool_calls.len()
                    && calls.iter().zip(&answer.tool_calls).all(|(expected, call)| {
                        expected.name == call.name
                            && expected.arguments == Value::Object(call.arguments.clone())
                    })
            }
        }
    }

    /// Whether the answer is JSON at all, where JSON is asked for.
    pub(super) fn json_is_valid(&self, answer: &Message) -> Option<bool> {
        matches!(self, Self::Json { .. })
            .then(|| serde_json::from_str::<Value>(answer.content.trim()).is_ok())
    }
}

/// What remains in an answer's text when a call could not be understood or names no offered tool.
const CALL_MARKERS: [&str; 2] = ["<tool_call>", "<function="];

fn has_call_in_text(answer: &Message) -> bool {
    CALL_MARKERS.iter().any(|marker| answer.content.contains(marker))
}

/// Whether the answer calls a tool or tries to.
pub(super) fn attempts_call(answer: &Message) -> bool {
    !answer.tool_calls.is_empty() || has_call_in_text(answer)
}

/// Whether every call was understood, names an offered tool and gives only parameters that it has, and all that it
/// requires.
pub(super) fn calls_are_valid(answer: &Message, tools: &[Value]) -> bool {
    let valid = |call: &ToolCall| {
        let function = |tool: &&Value| tool["function"]["name"].as_str() == Some(&call.name);
        let Some(tool) = tools.iter().find(function) else { return false };
        let parameters = &tool["function"]["parameters"];
        let known = |name: &String| parameters["properties"].get(name).is_some();
        let required = parameters["required"].as_array().cloned().unwrap_or_default();
        call.arguments.keys().all(known)
            && required
                .iter()
                .filter_map(Value::as_str)
                .all(|name| call.arguments.contains_key(name))
    };
    !has_call_in_text(answer) && answer.tool_calls.iter().all(valid)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use text::Role;

    use super::*;

    fn check(value: Value) -> Check {
        serde_json::from_value(value).unwrap()
    }

    fn said(content: &str) -> Message {
        Message::new(Role::Assistant, content)
    }

    #[test]
    fn each_kind_accepts_what_is_right_and_nothing_else() {
        let exact = check(json!({"kind": "exact", "value": "1, 2"}));
        assert!(exact.passes(&said(" 1, 2\n")) && !exact.passes(&said("1, 2, 3")));
        let contains = check(json!({"kind": "contains", "values": ["a", "b"]}));
        assert!(contains.passes(&said("bxa")) && !contains.passes(&said("bx")));
        let object = check(json!({"kind": "json", "value": {"a": 1, "b": "c"}}));
        assert!(object.passes(&said(r#"{"b": "c", "a": 1}"#)) && !object.passes(&said("{}")));
        let calls = json!([{"name": "f", "arguments": {"x": 1}}]);
        let called = check(json!({"kind": "tool_calls", "calls": calls}));
        let arguments = json!({"x": 1}).as_object().unwrap().clone();
        let mut answer = said("");
        answer.tool_calls.push(ToolCall { id: None, name: "f".into(), arguments });
        assert!(called.passes(&answer) && !called.passes(&said("f")));
        assert!(!contains.passes(&Message { content: "ab".into(), ..answer.clone() }));
        let tool = json!({"function": {"name": "f", "parameters": {"properties": {"x": {}}, "required": ["x"]}}});
        assert!(calls_are_valid(&answer, &[tool]) && !calls_are_valid(&answer, &[]));
        let broken = said("<tool_call>\n<function=g>\n</function>\n</tool_call>");
        assert!(attempts_call(&broken) && !calls_are_valid(&broken, &[]));
        assert!(attempts_call(&answer) && !attempts_call(&said("no call")));
        assert_eq!(object.json_is_valid(&said("{\"a\": 2}")), Some(true));
        assert_eq!(object.json_is_valid(&said("{'a': 2}")), Some(false));
        assert_eq!(exact.json_is_valid(&said("{}")), None);
        assert!(serde_json::from_value::<Check>(json!({"kind": "vague"})).is_err());
    }
}

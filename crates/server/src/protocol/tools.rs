//! Tools and the choice among them.
//!
//! Templates and the parser of answers take tools in the form of the chat completions protocol; the other protocols
//! are brought into it here. A tool's name becomes part of the prompt's markup, so it has the characters that
//! names have and no others.

use serde_json::{Map, Value, json};
use store::shown::quoted;

use super::fields::kind;
use super::weight;
use crate::http::ApiError;
use crate::protocol::Fields;
use crate::work::{CallConstraint, Constraint};

/// Longest name of a tool; OpenAI's limit is 64, and MCP's clients write longer ones.
const NAME_BYTES_MAX: usize = 128;

/// Most tools of a request; the largest known agents offer some two hundred.
const TOOLS_MAX: usize = 512;
/// JSON values and bytes of all tools, as `weight` has them: each tool's schema is compiled and copied.
const TOOLS_WEIGHT_MAX: usize = 4 << 20;

/// Refuses more tools than can be offered, before any is looked at.
pub(crate) fn check_tools(tools: &[Value]) -> Result<(), ApiError> {
    if tools.len() > TOOLS_MAX {
        let problem = format!("has {} entries, more than {TOOLS_MAX}", tools.len());
        return Err(ApiError::field("tools", problem));
    }
    let bytes: usize = tools.iter().map(weight).sum();
    if bytes > TOOLS_WEIGHT_MAX {
        let problem = format!("take {bytes} bytes of memory, more than {TOOLS_WEIGHT_MAX}");
        return Err(ApiError::field("tools", problem));
    }
    Ok(())
}

/// What a request says about calling tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The model decides.
    #[default]
    Auto,
    /// No call may be made.
    None,
    /// At least one must be made.
    Required,
    /// This one must be made.
    Named(String),
}

impl Choice {
    /// The constraint it amounts to; `param` is the field that has the choice.
    pub(crate) fn constraint(
        &self,
        tools: &[Value],
        param: &str,
    ) -> Result<Option<Constraint>, ApiError> {
        let constraint = match self {
            Self::Auto | Self::None => return Ok(None),
            Self::Required => CallConstraint::Any,
            Self::Named(name) => {
                let offered = |tool: &Value| tool["function"]["name"] == name.as_str();
                if !tools.iter().any(offered) {
                    return Err(ApiError::field(
                        param,
                        format!("no tool is named {}", quoted(name)),
                    ));
                }
                CallConstraint::Named(name.clone())
            }
        };
        if tools.is_empty() {
            return Err(ApiError::field(param, "a call is required, but tools is empty"));
        }
        Ok(Some(Constraint::Tool(constraint)))
    }
}

/// [`function_tool`] of a tool that has its parts in `function`, as chat completions and ollama write it.
pub(crate) fn tool_of_function(tool: &Fields<'_>, path: &str) -> Result<Value, ApiError> {
    let function = tool.object("function")?.ok_or_else(|| tool.error("function", "is missing"))?;
    let part = |name| function.get(name);
    let path = format!("{path}.function");
    function_tool(&path, part("name"), part("description"), part("parameters"))
}

/// A tool in the form of the chat completions protocol; `path` is where it is in the request.
pub(crate) fn function_tool(
    path: &str,
    name: Option<&Value>,
    description: Option<&Value>,
    parameters: Option<&Value>,
) -> Result<Value, ApiError> {
    let name_path = format!("{path}.name");
    let name = match name {
        Some(Value::String(name)) => name,
        None | Some(Value::Null) => return Err(ApiError::field(name_path, "is missing")),
        Some(other) => {
            return Err(ApiError::field(
                name_path,
                format!("must be a string, not {}", kind(other)),
            ));
        }
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
        let problem =
            format!("must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-', '.', ':' or '/'");
        return Err(ApiError::field(name_path, problem));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), Value::String(name.clone()));
    match description {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            function.insert("description".to_owned(), Value::String(text.clone()));
        }
        Some(other) => {
            let problem = format!("must be a string, not {}", kind(other));
            return Err(ApiError::field(format!("{path}.description"), problem));
        }
    }
    match parameters {
        None | Some(Value::Null) => {}
        Some(Value::Object(schema)) => {
            function.insert("parameters".to_owned(), Value::Object(schema.clone()));
        }
        Some(other) => {
            let problem = format!("must be a JSON schema object, not {}", kind(other));
            return Err(ApiError::field(format!("{path}.parameters"), problem));
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

//! Prompts of DeepSeek-V4, whose folders have no chat template: the rules of its own encoder.
//!
//! It takes the place of a template's program, with the same variables, and its strings are marked as theirs are
//! (`template.rs`), so text of users becomes no control token here either. System text stands bare behind the first
//! token, with the tools behind it; results of tools are blocks inside the next turn of the user, in the order of the
//! calls; thinking before the last turn is left out unless there are tools. The words around the tools and the effort
//! are those that the model was trained with. `answer/dsml.rs` reads the answers.

use std::collections::HashMap;

use serde_json::Value;
use store::format::config::{Configuration, keys};

use super::{TextError, python};

/// `model_type` of the family.
const FAMILY: &str = "deepseek_v4";
const BEGIN: &str = "<｜begin▁of▁sentence｜>";
const END: &str = "<｜end▁of▁sentence｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const THINK_START: &str = "<think>";
const THINK_END: &str = "</think>";
/// Between the parts of one turn.
const GAP: &str = "\n\n";

const EFFORT_MAX: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n\
    You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
    rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n\
    Explicitly write out your entire deliberation process, documenting every intermediate step, considered \
    alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
const RESPONSE_FORMAT: &str =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
const TOOLS: &str = "## Tools\n\n\
    You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
    \"<｜DSML｜tool_calls>\" block like the following:\n\n\
    <｜DSML｜tool_calls>\n\
    <｜DSML｜invoke name=\"$TOOL_NAME\">\n\
    <｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n\
    ...\n\
    </｜DSML｜invoke>\n\
    <｜DSML｜invoke name=\"$TOOL_NAME2\">\n\
    ...\n\
    </｜DSML｜invoke>\n\
    </｜DSML｜tool_calls>\n\n\
    String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, \
    arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n\
    If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
    <think>...</think> BEFORE any tool calls or final response.\n\n\
    Otherwise, output directly after </think> with tool calls or final response.\n\n\
    ### Available Tool Schemas\n\n";
const TOOLS_END: &str = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool \
    calls.\n";

/// Whether a model's prompts are written here, by its configuration.
pub(super) fn writes(config: &Configuration) -> bool {
    matches!(config.get(&keys::MODEL_TYPE), Ok(Some(FAMILY)))
}

/// A turn: that of the system, of the user with results of tools, or of the assistant.
enum Turn<'a> {
    System(&'a Value),
    User(Vec<Block<'a>>),
    Assistant(&'a Value),
}

/// A part of a user's turn.
enum Block<'a> {
    Text(&'a str),
    Result { call: &'a str, text: &'a str },
}

/// The prompt for the variables of a template.
pub(super) fn render(context: &Value) -> Result<String, TextError> {
    let flag = |name: &str| context.get(name).and_then(Value::as_bool);
    let given = |name: &str| context.get(name).filter(|value| !value.is_null());
    let thinks = flag("thinking").or(flag("enable_thinking")).unwrap_or(false);
    let effort = given("reasoning_effort").and_then(Value::as_str);
    let tools = given("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty());
    let messages = given("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let turns = turns(messages);
    let last = turns.iter().rposition(|turn| matches!(turn, Turn::User(_)));

    let mut out = String::from(BEGIN);
    if thinks && effort == Some("max") && !turns.is_empty() {
        out.push_str(EFFORT_MAX);
    }
    if let Some(Turn::System(message)) = turns.first() {
        out.push_str(text(message, "content"));
    }
    if let Some(tools) = tools {
        out.push_str(GAP);
        out.push_str(TOOLS);
        let each = tools.iter().map(|tool| python::json(tool.get("function").unwrap_or(tool)));
        out.push_str(&each.collect::<Result<Vec<_>, _>>()?.join("\n"));
        out.push_str(TOOLS_END);
    }
    if let Some(format) = given("response_format") {
        out.push_str(GAP);
        out.push_str(RESPONSE_FORMAT);
        out.push_str(&python::json(format)?);
    }
    for (index, turn) in turns.iter().enumerate() {
        match turn {
            // The first is in its place already; `arrange_system` leaves no other.
            Turn::System(_) => {}
            Turn::User(blocks) => {
                out.push_str(USER);
                for (place, block) in blocks.iter().enumerate() {
                    out.push_str(if place > 0 { GAP } else { "" });
                    match block {
                        Block::Text(text) => out.push_str(text),
                        Block::Result { text, .. } => {
                            out.extend(["<tool_result>", text, "</tool_result>"]);
                        }
                    }
                }
                let answered =
                    index + 1 < turns.len() || flag("add_generation_prompt") == Some(true);
                if answered {
                    let open = thinks && (tools.is_some() || Some(index) >= last);
                    out.extend([ASSISTANT, if open { THINK_START } else { THINK_END }]);
                }
            }
            Turn::Assistant(message) => {
                if thinks && (tools.is_some() || Some(index) > last) {
                    out.extend([text(message, "reasoning_content"), THINK_END]);
                }
                out.push_str(text(message, "content"));
                calls(message, &mut out)?;
                out.push_str(END);
            }
        }
    }
    Ok(out)
}

/// Messages as turns: neighbouring results and texts of the user are one.
fn turns(messages: &[Value]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    // The places of the last calls, by their ids.
    let mut order: HashMap<&str, usize> = HashMap::new();
    for message in messages {
        let block = match text(message, "role") {
            "system" => {
                turns.push(Turn::System(message));
                continue;
            }
            "assistant" => {
                let ids = called(message).map(|call| text(call, "id"));
                let ids: HashMap<&str, usize> = ids
                    .enumerate()
                    .filter(|(_, id)| !id.is_empty())
                    .map(|(at, id)| (id, at))
                    .collect();
                if called(message).next().is_some() {
                    order = ids;
                }
                turns.push(Turn::Assistant(message));
                continue;
            }
            "tool" => Block::Result {
                call: text(message, "tool_call_id"),
                text: text(message, "content"),
            },
            _ => Block::Text(text(message, "content")),
        };
        match turns.last_mut() {
            Some(Turn::User(blocks)) => blocks.push(block),
            _ => turns.push(Turn::User(vec![block])),
        }
        if let Some(Turn::User(blocks)) = turns.last_mut() {
            sort_results(blocks, &order);
        }
    }
    turns
}

/// Puts results into the order of their calls; texts stay where they are.
fn sort_results(blocks: &mut [Block<'_>], order: &HashMap<&str, usize>) {
    let place = |block: &Block<'_>| match block {
        Block::Result { call, .. } => Some(order.get(call).copied().unwrap_or(0)),
        Block::Text(_) => None,
    };
    // The last was put behind results that are in order.
    let mut at = blocks.len().saturating_sub(1);
    let Some(own) = blocks.last().and_then(place) else { return };
    for other in (0..at).rev() {
        match place(&blocks[other]) {
            Some(theirs) if theirs > own => {
                blocks.swap(other, at);
                at = other;
            }
            Some(_) => break,
            None => {}
        }
    }
}

fn called(message: &Value) -> impl Iterator<Item = &Value> {
    message.get("tool_calls").and_then(Value::as_array).into_iter().flatten()
}

fn calls(message: &Value, out: &mut String) -> Result<(), TextError> {
    if called(message).next().is_none() {
        return Ok(());
    }
    out.push_str("\n\n<｜DSML｜tool_calls>\n");
    for call in called(message) {
        let function = call.get("function").unwrap_or(call);
        out.extend(["<｜DSML｜invoke name=\"", text(function, "name"), "\">\n"]);
        let arguments = function.get("arguments").and_then(Value::as_object);
        let mut lines = Vec::new();
        for (key, value) in arguments.into_iter().flatten() {
            let (flag, value) = match value {
                Value::String(text) => ("true", text.clone()),
                other => ("false", python::json(other)?),
            };
            lines.push(format!(
                "<｜DSML｜parameter name=\"{key}\" string=\"{flag}\">{value}</｜DSML｜parameter>"
            ));
        }
        out.push_str(&lines.join("\n"));
        out.push_str("\n</｜DSML｜invoke>\n");
    }
    out.push_str("</｜DSML｜tool_calls>");
    Ok(())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

//! Kimi-K2's dialect: a section of calls, each with an id `functions.NAME:NUMBER` and its arguments in JSON.

use super::THINK;
use super::blocks::{Blocks, Syntax};
use super::calls::JsonForm;
use super::deepseek::look_ahead_of;
use super::row::{Body, CallForm, Lead, Row};

const START: &str = "<|tool_call_begin|>";
const END: &str = "<|tool_call_end|>";
const SEPARATOR: &str = "<|tool_call_argument_begin|>";

const JSON: JsonForm = JsonForm { start: START, end: END, outer: false, open_ended: false };
const SYNTAX: Syntax = Syntax {
    start: START,
    end: END,
    function: "",
    silent: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    thinking: THINK,
    look_ahead: |_, held, last, tools| look_ahead_of(&JSON, SEPARATOR, name, held, last, tools),
};

pub(super) const ROW: Row = Row {
    name: "kimi",
    signs: &["<|tool_calls_section_begin|>", START],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        call: [START, END],
        between: "",
        begins_block: false,
        body: Body::Json {
            before: &["functions.{name}:{number}<|tool_call_argument_begin|>"],
            after: "",
        },
    },
    thinking: THINK,
    closing: "</think>",
    ends: &[],
};

/// The function of an id; the prefix and the number may be left out.
fn name(id: &str) -> &str {
    let id = id.trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    id.rsplit_once(':').map_or(id, |(name, _)| name)
}

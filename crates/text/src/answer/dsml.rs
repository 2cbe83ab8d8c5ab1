//! DSML, DeepSeek's dialect since V3.2: functions in `<｜DSML｜invoke>` tags, several in one block, each parameter
//! with a flag that says whether its value is text or JSON.
//!
//! `text/dsml.rs` writes prompts for it. V3.2 calls the block `function_calls`, V4 `tool_calls`; either is understood.

use super::blocks::{Blocks, Head, Syntax};
use super::out::Repair;
use super::row::{Body, CallForm, Lead, Row};
use super::tagged::{Header, Tags, named};
use super::tools::Tools;
use super::{NAME_BYTES_MAX, THINK};

const TAGS: Tags = Tags {
    start: "<｜DSML｜tool_calls>",
    end: "</｜DSML｜tool_calls>",
    function: "<｜DSML｜invoke name=\"",
    function_end: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=\"",
    header,
    parameter_end: "</｜DSML｜parameter>",
    several: true,
    lines: false,
};
const SYNTAX: Syntax = Syntax {
    start: TAGS.start,
    end: TAGS.end,
    function: TAGS.function,
    silent: &["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"],
    thinking: THINK,
    look_ahead: |_, held, last, tools| look_ahead_of(&TAGS, held, last, tools),
};

pub(super) const ROW: Row = Row {
    name: "dsml",
    signs: &["｜DSML｜"],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"],
        call: ["", ""],
        between: "\n",
        begins_block: true,
        body: Body::Tagged {
            open: "<｜DSML｜invoke name=\"{name}\">\n",
            text: "<｜DSML｜parameter name=\"{key}\" string=\"true\">",
            json: "<｜DSML｜parameter name=\"{key}\" string=\"false\">",
            end: "</｜DSML｜parameter>\n",
            close: "</｜DSML｜invoke>",
        },
    },
    thinking: THINK,
    closing: "</think>",
    ends: &[],
};

/// `NAME" string="true">`: the flag may be left out.
fn header(rest: &str) -> Header {
    let forms =
        [("\" string=\"true\">", Some(true)), ("\" string=\"false\">", Some(false)), ("\">", None)];
    let mut open = false;
    for (close, flag) in forms {
        match named(rest, close) {
            Header::Named { key, value, .. } => return Header::Named { key, value, text: flag },
            Header::Open => open = true,
            Header::None => {}
        }
    }
    if open { Header::Open } else { Header::None }
}

/// A block of functions, or a function without its block.
pub(super) fn look_ahead_of(tags: &'static Tags, held: &str, last: bool, tools: &Tools) -> Head {
    let marker = if held.starts_with(tags.start) { tags.start.len() } else { 0 };
    let body = held[marker..].trim_start();
    let start = held.len() - body.len();
    let mention = Head::Mention(if marker > 0 { marker } else { tags.function.len() });
    let Some(rest) = body.strip_prefix(tags.function) else {
        let possible = tags.function.starts_with(body) && !last;
        return if possible { Head::Open } else { mention };
    };
    let Header::Named { key: name, value, .. } = named(rest, "\">") else {
        let possible = !last && matches!(named(rest, "\">"), Header::Open);
        return if possible { Head::Open } else { mention };
    };
    if name.len() > NAME_BYTES_MAX {
        return mention;
    }
    let inside = start + tags.function.len() + value;
    let Some(tool) = tools.find(&name) else {
        return Head::NoCall(inside, Repair::UnknownFunction);
    };
    let next = held[inside..].trim_start();
    let known = [tags.parameter, tags.function_end, tags.end];
    if known.iter().any(|tag| next.starts_with(tag)) {
        Head::Tagged { tool, body: inside, tags, foreign: false }
    } else if !last && known.iter().any(|tag| tag.starts_with(next)) {
        Head::Open
    } else {
        Head::NoCall(inside, Repair::NoCall)
    }
}

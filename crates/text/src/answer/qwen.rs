//! Qwen's two dialects, in the same markers: tags (Qwen3-Coder, Qwen3.5 and later) and Hermes' JSON (before).
//!
//! Either form is understood wherever a call's marker stands; one that the template does not teach is counted.

use super::blocks::{Blocks, Head, Syntax};
use super::calls::{Envelope, JsonForm, envelope};
use super::out::Repair;
use super::row::{Body, CallForm, Lead, Row};
use super::tagged::{Tags, named};
use super::tools::Tools;
use super::{NAME_BYTES_MAX, THINK};

const CALL_START: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_START: &str = "<function=";

const TAGS: Tags = Tags {
    start: CALL_START,
    end: CALL_END,
    function: FUNCTION_START,
    function_end: "</function>",
    parameter: "<parameter=",
    header: |rest| named(rest, ">"),
    parameter_end: "</parameter>",
    several: false,
    lines: true,
};
/// Shared with the dialects that have these markers.
pub(super) const JSON: JsonForm =
    JsonForm { start: CALL_START, end: CALL_END, outer: true, open_ended: false };
const XML_SYNTAX: Syntax = Syntax {
    start: CALL_START,
    end: CALL_END,
    function: FUNCTION_START,
    silent: &[],
    thinking: THINK,
    look_ahead,
};
const HERMES_SYNTAX: Syntax = Syntax { function: "", ..XML_SYNTAX };

pub(super) const XML: Row = Row {
    name: "qwen xml",
    signs: &[FUNCTION_START],
    reading: |opens| Box::new(Blocks::new(&XML_SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["", ""],
        call: ["<tool_call>\n", "\n</tool_call>"],
        between: "\n",
        begins_block: false,
        body: Body::Tagged {
            open: "<function={name}>\n",
            text: "<parameter={key}>\n",
            json: "<parameter={key}>\n",
            end: "\n</parameter>\n",
            close: "</function>",
        },
    },
    thinking: THINK,
    closing: "\n</think>\n\n",
    ends: &[],
};

pub(super) const HERMES: Row = Row {
    name: "hermes json",
    signs: &[],
    reading: |opens| Box::new(Blocks::new(&HERMES_SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["", ""],
        call: ["<tool_call>\n", "\n</tool_call>"],
        between: "\n",
        begins_block: false,
        body: Body::Json { before: &["{\"name\": {string}, \"arguments\": "], after: "}" },
    },
    thinking: THINK,
    closing: "\n</think>\n\n",
    ends: &[],
};

/// A call's outer object that begins at byte `start` of what is held.
pub(super) fn object(held: &str, start: usize, last: bool, tools: &Tools, foreign: bool) -> Head {
    let body = &held[start..];
    match envelope(body) {
        Envelope::Open if last => Head::NoCall(held.len(), Repair::NoCall),
        Envelope::Open => Head::Open,
        Envelope::None => Head::NoCall(start, Repair::NoCall),
        Envelope::Begun { name, .. } | Envelope::Whole { name, .. }
            if tools.find(&name).is_none() =>
        {
            Head::NoCall(start, Repair::UnknownFunction)
        }
        Envelope::Begun { name, at } => {
            Head::Json { name, at: start + at, whole: None, form: &JSON, foreign }
        }
        Envelope::Whole { name, arguments, end } => {
            let whole = arguments.map_or("{}", |range| &body[range]).to_owned();
            Head::Json { name, at: start + end, whole: Some(whole), form: &JSON, foreign }
        }
    }
}

fn look_ahead(syntax: &Syntax, held: &str, last: bool, tools: &Tools) -> Head {
    let marker = if held.starts_with(CALL_START) { CALL_START.len() } else { 0 };
    let body = held[marker..].trim_start();
    let start = held.len() - body.len();
    let mention = Head::Mention(if marker > 0 { marker } else { FUNCTION_START.len() });
    let hermes = syntax.function.is_empty();
    if marker > 0 && body.starts_with('{') {
        return object(held, start, last, tools, !hermes);
    }
    let Some(named) = body.strip_prefix(FUNCTION_START) else {
        let possible = FUNCTION_START.starts_with(body) && !last;
        return if possible { Head::Open } else { mention };
    };
    let Some(end) = named.find('>') else {
        let possible = named.len() <= NAME_BYTES_MAX && !named.contains(char::is_whitespace);
        return if possible && !last { Head::Open } else { mention };
    };
    let name = &named[..end];
    if end > NAME_BYTES_MAX || name.contains(char::is_whitespace) {
        return mention;
    }
    let inside = start + FUNCTION_START.len() + end + 1;
    let Some(tool) = tools.find(name) else {
        return Head::NoCall(inside, Repair::UnknownFunction);
    };
    // A name alone is no call: something of it must follow.
    let next = held[inside..].trim_start();
    let tags = [TAGS.parameter, TAGS.function_end, CALL_END];
    if tags.iter().any(|tag| next.starts_with(tag)) {
        Head::Tagged { tool, body: inside, tags: &TAGS, foreign: hermes }
    } else if !last && tags.iter().any(|tag| tag.starts_with(next)) {
        Head::Open
    } else {
        Head::NoCall(inside, Repair::NoCall)
    }
}

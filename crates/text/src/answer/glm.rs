//! GLM's dialect since 4.5: the function's name, then pairs of `<arg_key>` and `<arg_value>`.
//!
//! Its markers are Hermes', so a call in JSON between them is understood as well.

use super::blocks::{Blocks, Head, Syntax};
use super::out::Repair;
use super::qwen::object;
use super::row::{Body, CallForm, Lead, Row};
use super::tagged::{Header, KEY_BYTES_MAX, Tags};
use super::tools::Tools;
use super::{NAME_BYTES_MAX, THINK};

const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";

const TAGS: Tags = Tags {
    start: "<tool_call>",
    end: "</tool_call>",
    function: "",
    function_end: "",
    parameter: "<arg_key>",
    header,
    parameter_end: "</arg_value>",
    several: false,
    lines: false,
};
const SYNTAX: Syntax = Syntax {
    start: TAGS.start,
    end: TAGS.end,
    function: "",
    silent: &[],
    thinking: THINK,
    look_ahead,
};

pub(super) const ROW: Row = Row {
    name: "glm",
    signs: &["<arg_key>"],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["", ""],
        call: ["<tool_call>", "</tool_call>"],
        between: "\n",
        begins_block: false,
        body: Body::Tagged {
            open: "{name}\n",
            text: "<arg_key>{key}</arg_key>\n<arg_value>",
            json: "<arg_key>{key}</arg_key>\n<arg_value>",
            end: "</arg_value>\n",
            close: "",
        },
    },
    thinking: THINK,
    closing: "</think>\n",
    ends: &["<|user|>", "<|observation|>"],
};

/// `KEY</arg_key>`, a line break or none, `<arg_value>`.
fn header(rest: &str) -> Header {
    let open = |more: &str| rest.len() <= KEY_BYTES_MAX + more.len();
    let Some(at) = rest.find('<') else {
        return if open("") { Header::Open } else { Header::None };
    };
    let tail = &rest[at..];
    let Some(next) = tail.strip_prefix(KEY_END) else {
        return if KEY_END.starts_with(tail) { Header::Open } else { Header::None };
    };
    let begin = next.trim_start();
    if begin.starts_with(VALUE) && at <= KEY_BYTES_MAX {
        let value = rest.len() - begin.len() + VALUE.len();
        return Header::Named { key: rest[..at].trim().to_owned(), value, text: None };
    }
    if VALUE.starts_with(begin) && open(next) { Header::Open } else { Header::None }
}

fn look_ahead(_: &Syntax, held: &str, last: bool, tools: &Tools) -> Head {
    let body = held[TAGS.start.len()..].trim_start();
    let start = held.len() - body.len();
    let mention = Head::Mention(TAGS.start.len());
    if body.starts_with('{') {
        return object(held, start, last, tools, true);
    }
    let Some(end) = body.find(['<', '\n']) else {
        return if body.len() <= NAME_BYTES_MAX && !last { Head::Open } else { mention };
    };
    let name = body[..end].trim_end();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_whitespace) {
        return mention;
    }
    // A name alone is no call: something of it must follow.
    let inside = start + end;
    let next = held[inside..].trim_start();
    let known = [TAGS.parameter, TAGS.end];
    if !known.iter().any(|tag| next.starts_with(tag)) {
        let possible = !last && known.iter().any(|tag| tag.starts_with(next));
        return if possible { Head::Open } else { mention };
    }
    match tools.find(name) {
        Some(tool) => Head::Tagged { tool, body: inside, tags: &TAGS, foreign: false },
        None => Head::NoCall(inside, Repair::UnknownFunction),
    }
}

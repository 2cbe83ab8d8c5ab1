//! Gemma-4's dialect: thinking in a channel of its own, calls `call:NAME{key:<|"|>text<|"|>,n:1}` between markers.
//!
//! Arguments are no JSON: keys are bare at every level, and strings stand between tokens of their own, so that they may
//! hold quotes and braces as they are. `bare.rs` reads them.

use super::bare::QUOTE;
use super::blocks::{Blocks, Head, Syntax};
use super::out::Repair;
use super::row::{Body, CallForm, Lead, Row};
use super::tools::Tools;
use super::{NAME_BYTES_MAX, bare};

const START: &str = "<|tool_call>";
const END: &str = "<tool_call|>";
const CALL: &str = "call:";
/// Tokens around thinking; the channel's name follows the first.
const THINKING: [&str; 2] = ["<|channel>", "<channel|>"];

const SYNTAX: Syntax = Syntax {
    start: START,
    end: END,
    function: "",
    silent: &[],
    thinking: ["<|channel>thought", THINKING[1]],
    look_ahead,
};

pub(super) const ROW: Row = Row {
    name: "gemma",
    signs: &[START, "<|turn>"],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["", ""],
        call: [START, END],
        between: "",
        begins_block: false,
        body: Body::Bare { open: "call:{name}", quote: QUOTE },
    },
    thinking: THINKING,
    closing: "\n<channel|>",
    // The model waits for the answer of a tool behind its calls.
    ends: &["<turn|>", "<|tool_response>"],
};

/// `call:NAME{`; the name may have blanks around it.
fn look_ahead(_: &Syntax, held: &str, last: bool, tools: &Tools) -> Head {
    let mention = Head::Mention(START.len());
    let wait =
        |possible: bool| if possible && !last { Head::Open } else { Head::Mention(START.len()) };
    let body = held[START.len()..].trim_start();
    let Some(rest) = body.strip_prefix(CALL) else {
        return wait(CALL.starts_with(body));
    };
    let Some(end) = rest.find(['{', '<', '\n']) else {
        return wait(rest.len() <= NAME_BYTES_MAX);
    };
    let (name, behind) = (rest[..end].trim(), &rest[end..]);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_whitespace) {
        return mention;
    }
    let at = held.len() - behind.len();
    // A call without arguments may have no braces.
    if !behind.starts_with('{') && !behind.starts_with(END) {
        return if END.starts_with(behind) && !last { Head::Open } else { mention };
    }
    match tools.find(name) {
        Some(tool) => Head::Bare { tool, body: at, form: &FORM },
        None => Head::NoCall(at, Repair::UnknownFunction),
    }
}

const FORM: bare::Form = bare::Form { start: START, end: END };

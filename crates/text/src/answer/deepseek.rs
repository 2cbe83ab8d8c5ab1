//! The dialect of DeepSeek-V3, R1 and V3.1: a section of calls, each a name and arguments in JSON between tokens.
//!
//! V3 and R1 write the kind of tool first and put the arguments into a fenced block; V3.1 writes name and arguments
//! alone. Either is understood; what calls are held to is V3.1's.

use super::blocks::{Blocks, Head, Syntax};
use super::calls::JsonForm;
use super::out::Repair;
use super::row::{Body, CallForm, Lead, Row};
use super::tools::Tools;
use super::{NAME_BYTES_MAX, THINK};

const START: &str = "<｜tool▁call▁begin｜>";
const END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
/// What V3 and R1 write before the separator.
const KIND: &str = "function";
const FENCE: &str = "```json";

const JSON: JsonForm = JsonForm { start: START, end: END, outer: false, open_ended: false };
const SYNTAX: Syntax = Syntax {
    start: START,
    end: END,
    function: "",
    silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    thinking: THINK,
    look_ahead: |_, held, last, tools| {
        look_ahead_of(&JSON, SEPARATOR, str::trim, held, last, tools)
    },
};

pub(super) const ROW: Row = Row {
    name: "deepseek",
    signs: &["<｜tool▁calls▁begin｜>", START],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: [START, END],
        between: "",
        begins_block: false,
        body: Body::Json { before: &["{name}<｜tool▁sep｜>"], after: "" },
    },
    thinking: THINK,
    closing: "</think>",
    ends: &[],
};

/// A call of a name, a separator and an object. `name_of` takes the name from what stands before the separator.
pub(super) fn look_ahead_of(
    form: &'static JsonForm,
    separator: &str,
    name_of: fn(&str) -> &str,
    held: &str,
    last: bool,
    tools: &Tools,
) -> Head {
    let mention = Head::Mention(form.start.len());
    let wait = |possible: bool| {
        if possible && !last { Head::Open } else { Head::Mention(form.start.len()) }
    };
    let body = &held[form.start.len()..];
    // What is read letter by letter is decided by the call's end, or by too much without a separator, before one that
    // comes later is seen: that one is another call's.
    let near =
        |at: &usize| at + separator.len() <= NAME_BYTES_MAX + 1 && !body[..*at].contains(form.end);
    let found = body.find(separator);
    let Some(end) = found.filter(near) else {
        let none = found.is_none() && body.len() <= NAME_BYTES_MAX;
        return wait(none && !body.contains(form.end));
    };
    let first = name_of(&body[..end]);
    let behind = &body[end + separator.len()..];
    // With the kind first, the name is the line behind the separator.
    let fenced = first == KIND && tools.find(KIND).is_none();
    let (name, rest) = if fenced {
        match behind.split_once('\n') {
            Some((name, rest)) if name.len() <= NAME_BYTES_MAX => (name.trim(), rest),
            None => return wait(behind.len() <= NAME_BYTES_MAX),
            Some(_) => return mention,
        }
    } else {
        (first, behind)
    };
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return mention;
    }
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix(FENCE) {
        Some(rest) => rest.trim_start(),
        None if !rest.is_empty() && FENCE.starts_with(rest) && !last => return Head::Open,
        None => rest,
    };
    let at = held.len() - rest.len();
    if tools.find(name).is_none() {
        return Head::NoCall(at, Repair::UnknownFunction);
    }
    let name = name.to_owned();
    if rest.starts_with('{') {
        return Head::Json { name, at, whole: None, form, foreign: false };
    }
    if rest.starts_with(form.end) {
        return Head::Json { name, at, whole: Some("{}".to_owned()), form, foreign: false };
    }
    if form.end.starts_with(rest) && !last { Head::Open } else { Head::NoCall(at, Repair::NoCall) }
}

//! Texts of a dialect's call form in the notation of grammars: control tokens by id, the rest as literals.

use serde_json::Value;

use crate::Tokenizer;

/// A piece of a text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Control(u32),
}

/// A text cut at the control tokens in it.
fn pieces<'a>(text: &'a str, tokenizer: &Tokenizer) -> Vec<Piece<'a>> {
    let controls = tokenizer.control_tokens();
    let mut found = Vec::new();
    let mut start = 0;
    for (range, index) in controls.find(text) {
        found.extend((start < range.start).then(|| Piece::Text(&text[start..range.start])));
        found.push(Piece::Control(controls.tokens()[index].id));
        start = range.end;
    }
    found.extend((start < text.len()).then(|| Piece::Text(&text[start..])));
    found
}

fn notation(pieces: &[Piece<'_>]) -> String {
    let each = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => quoted(text),
        Piece::Control(id) => format!("<[{id}]>"),
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A text as a sequence of symbols; empty for an empty text.
pub(super) fn literal(text: &str, tokenizer: &Tokenizer) -> String {
    notation(&pieces(text, tokenizer))
}

/// The first control token of a text.
pub(super) fn trigger(text: &str, tokenizer: &Tokenizer) -> Option<u32> {
    pieces(text, tokenizer).iter().find_map(|piece| match piece {
        Piece::Control(id) => Some(*id),
        Piece::Text(_) => None,
    })
}

/// What follows the first control token of a text, or all of it where it has none.
pub(super) fn after_trigger(text: &str, tokenizer: &Tokenizer) -> String {
    let pieces = pieces(text, tokenizer);
    let begin = pieces.iter().position(|piece| matches!(piece, Piece::Control(_)));
    notation(&pieces[begin.map_or(0, |at| at + 1)..])
}

/// Text of a call form with its places filled: the function's name, its name as JSON, a number.
pub(super) fn filled(form: &str, name: &str, tokenizer: &Tokenizer) -> String {
    let string = Value::from(name).to_string();
    let form = form.replace("{string}", &string).replace("{name}", name);
    let parts = form.split("{number}").map(|part| literal(part, tokenizer));
    parts.collect::<Vec<_>>().join(" NUMBER ")
}

/// Text of a call form before a value of parameter `key`.
pub(super) fn opened(form: &str, key: &str, tokenizer: &Tokenizer) -> String {
    literal(&form.replace("{key}", key), tokenizer)
}

/// Text of a call form before a value of any parameter.
pub(super) fn opened_any(form: &str, tokenizer: &Tokenizer) -> String {
    let (before, after) = form.split_once("{key}").unwrap_or((form, ""));
    format!("{} NAME {}", literal(before, tokenizer), literal(after, tokenizer))
}

/// The rule `name` for any text up to `end`, and `end`.
pub(super) fn text_until(name: &str, end: &str, tokenizer: &Tokenizer) -> String {
    let pieces = pieces(end, tokenizer);
    // No ordinary text has a control token: the text before the first is the last of the value.
    match pieces.as_slice() {
        [Piece::Text(before), rest @ ..] if !rest.is_empty() => {
            let before = escaped(before);
            format!("{name}: {name}-text {}\n{name}-text: /(.|\\n)*{before}/\n", notation(rest))
        }
        [Piece::Control(_), ..] => {
            format!("{name}: {name}-text? {}\n{name}-text: /(.|\\n)+/\n", notation(&pieces))
        }
        _ => format!("{name}[suffix={}]: /(.|\\n)*/\n", quoted(end)),
    }
}

/// A literal inside a regular expression.
fn escaped(text: &str) -> String {
    regex::escape(text).replace('/', "\\/").replace('\n', "\\n")
}

/// A string literal: JSON's, without the control character that the notation does not take raw.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

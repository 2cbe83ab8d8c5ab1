//! Rules about an answer's text as it stands: a grammar, a regular expression, one of some texts.

use super::spelling::quoted;
use super::{ConstraintError, Rule, SCHEMA_FIELD, gbnf};

/// What the answer is by, among the rules that are made.
pub(super) const NAME: &str = "plain";

/// Longest regular expression.
const REGEX_BYTES_MAX: usize = 16 << 10;
/// Bytes of all texts of a choice.
const TEXTS_BYTES_MAX: usize = 64 << 10;

/// The rules of an answer's text.
///
/// # Errors
/// What is wrong with them, as a mistake of the client.
pub(super) fn rules(rule: &Rule) -> Result<String, ConstraintError> {
    let made = match rule {
        Rule::Grammar(text) => {
            gbnf::translated(text).map(|rules| format!("{NAME}: {}\n{rules}", gbnf::NAME))
        }
        Rule::Regex(regex) => {
            pattern(regex).map(|regex| format!("{NAME}: TEXT\nTEXT: /{regex}/\n"))
        }
        Rule::OneOf(texts) => choice(texts).map(|texts| format!("{NAME}: TEXT\nTEXT: {texts}\n")),
        _ => Err("is no rule about text".to_owned()),
    };
    made.map_err(|problem| ConstraintError::Schema { field: SCHEMA_FIELD.to_owned(), problem })
}

/// A regular expression between two strokes. It is about the whole text: anchors at its ends say nothing.
fn pattern(regex: &str) -> Result<String, String> {
    if regex.len() > REGEX_BYTES_MAX {
        return Err(format!("has {} bytes, more than {REGEX_BYTES_MAX}", regex.len()));
    }
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    let regex = regex.strip_suffix('$').filter(|it| escapes(it) % 2 == 0).unwrap_or(regex);
    if regex.is_empty() {
        return Err("is empty".to_owned());
    }
    let mut out = String::with_capacity(regex.len());
    let mut escaped = false;
    for letter in regex.chars() {
        match letter {
            '/' if !escaped => out.push_str("\\/"),
            '\n' if escaped => out.push('n'),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
        escaped = letter == '\\' && !escaped;
    }
    Ok(out)
}

fn choice(texts: &[String]) -> Result<String, String> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes > TEXTS_BYTES_MAX {
        return Err(format!("has {bytes} bytes, more than {TEXTS_BYTES_MAX}"));
    }
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err("needs texts to choose from, none of them empty".to_owned());
    }
    Ok(texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | "))
}

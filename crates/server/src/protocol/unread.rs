//! Fields that an endpoint did not read: refused, mentioned or passed over, as the list of known fields has it.
//!
//! A name that is nearly a known one (`temprature`) was meant to be that: its sender is told so. Other unknown fields
//! are ignored, because clients send many that ask for nothing.

use serde_json::Value;

use super::fields::Fields;
use super::known::{Fate, KNOWN, fate};
use crate::http::ApiError;

/// Shorter names differ by a letter from too many others.
const SHORTEST: usize = 4;
const LONGEST: usize = 32;
/// Fields of a body that are looked at.
const LOOKED_AT: usize = 200;
/// What is said of fields at most.
const NOTES_MAX: usize = 4;

/// What is said of the fields of an object, and of ollama's options in it, that nothing has read.
///
/// # Errors
/// A field without which the answer is another one than was asked for.
pub(crate) fn judge(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let mut notes = Vec::new();
    let options = fields.object("options").ok().flatten();
    for fields in [Some(fields), options.as_ref()].into_iter().flatten() {
        for (name, value) in fields.map().iter().take(LOOKED_AT) {
            if value.is_null() || fields.was_read(name) {
                continue;
            }
            let full = fields.name(name);
            let note = match fate(name) {
                Some(Fate::Nothing) => None,
                Some(Fate::Refused(off, _)) if asks_nothing(value, off) => None,
                Some(Fate::Refused(_, why)) => {
                    return Err(fields.error(name, format!("is not supported: {why}")));
                }
                Some(Fate::Warned(why)) => Some(format!("{full} was ignored: {why}")),
                Some(Fate::Own | Fate::Served(_)) => {
                    Some(format!("{full} was ignored: it is no field of this endpoint"))
                }
                None => near_miss(name),
            };
            notes.extend(note);
        }
    }
    notes.truncate(NOTES_MAX);
    Ok(notes)
}

/// Whether a field with this value is as good as absent.
fn asks_nothing(value: &Value, off: &[i64]) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        // An empty object switches something on (`web_search_options`).
        Value::Bool(true) | Value::Object(_) => false,
        Value::Number(number) => {
            number.as_f64().is_some_and(|number| off.iter().any(|&off| off as f64 == number))
        }
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
    }
}

/// What is said of a name that is nearly a known one.
fn near_miss(name: &str) -> Option<String> {
    let plain =
        (SHORTEST..=LONGEST).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_graphic());
    if !plain {
        return None;
    }
    let most = if name.len() < 8 { 1 } else { 2 };
    let near = KNOWN.iter().filter(|known| known.fate == Fate::Own && known.name.len() >= SHORTEST);
    let (distance, known) =
        near.map(|known| (distance(name.as_bytes(), known.name.as_bytes()), known.name)).min()?;
    (distance <= most).then(|| format!("unknown field {name} was ignored; did you mean {known}?"))
}

/// Letters to change, insert, remove or swap with their neighbour to get from one word to another.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, &letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, &wanted) in other.iter().enumerate() {
            let mut least = (last[column] + usize::from(letter != wanted))
                .min(last[column + 1] + 1)
                .min(line[column] + 1);
            let swapped =
                row > 0 && column > 0 && letter == other[column - 1] && one[row - 1] == wanted;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            line.push(least);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[other.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(body: &Value) -> Result<Vec<String>, ApiError> {
        judge(&Fields::of(body.as_object().unwrap()))
    }

    #[test]
    fn slips_are_told_from_fields_of_others() {
        for (slip, meant) in [
            ("temprature", "temperature"),
            ("max_token", "max_tokens"),
            ("steam", "stream"),
            ("repition_penalty", "repetition_penalty"),
            ("mesages", "messages"),
            ("sotp", "stop"),
        ] {
            let found = judged(&json!({ slip: 1 })).unwrap();
            assert_eq!(found, [format!("unknown field {slip} was ignored; did you mean {meant}?")]);
        }
        for other in ["betas", "x", "tепperature", "a b c d", "user", "metadata"] {
            assert!(judged(&json!({ other: 1 })).unwrap().is_empty(), "{other}");
        }
    }

    #[test]
    fn what_would_change_the_answer_is_refused_unless_it_asks_for_nothing() {
        for off in [json!(0), json!(false), json!(null), json!([]), json!("")] {
            assert!(judged(&json!({ "mirostat": off })).unwrap().is_empty(), "{off}");
        }
        for on in [json!(1), json!(true), json!([1]), json!("2"), json!(0.5)] {
            let error = judged(&json!({ "mirostat": on })).unwrap_err();
            assert!(error.message().starts_with("mirostat: is not supported"), "{error:?}");
        }
        let error = judged(&json!({ "options": { "tfs_z": 0.5 } })).unwrap_err();
        assert!(error.message().starts_with("options.tfs_z"), "{error:?}");
        let notes = judged(&json!({ "n_cache_reuse": 9, "options": { "num_gpu": 3 } })).unwrap();
        assert!(notes[0].starts_with("n_cache_reuse was ignored"), "{notes:?}");
        assert!(notes[1].starts_with("options.num_gpu was ignored"), "{notes:?}");
        assert!(judged(&json!({ "options": 7 })).unwrap().is_empty(), "its reader refuses it");
    }
}

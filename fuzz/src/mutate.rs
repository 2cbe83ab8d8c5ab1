//! Damage to an input: bytes and lines of any text, and the tree of a JSON text.
//!
//! JSON is changed as a tree, because nearly every blind change of its bytes is refused by the JSON reader
//! and never meets the code behind it. A key that occurs twice is something that a tree cannot hold: it is
//! added to the text afterwards.

use serde_json::{Map, Number, Value};

use crate::random::Random;

/// Numbers at which code goes wrong.
const NUMBERS: [&str; 24] = [
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "8",
    "63",
    "64",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "0.5",
    "1e-320",
];

/// Texts at which code goes wrong.
const TEXTS: [&str; 16] = [
    "",
    " ",
    "\0",
    "\n",
    "..",
    "/",
    "\u{feff}",
    "\u{202e}",
    "é",
    "e\u{301}",
    "\u{1f600}",
    "\u{fffd}",
    "%00",
    "{{",
    "<|im_end|>",
    "</think>",
];

/// Changes an input a few times over; the bytes of `words` are sprinkled in.
pub(crate) fn bytes(random: &mut Random, input: &mut Vec<u8>, words: &[&str]) {
    for _ in 0..1 + random.below(4) {
        once(random, input, words);
    }
}

fn once(random: &mut Random, input: &mut Vec<u8>, words: &[&str]) {
    let at = random.below(input.len() + 1);
    let rest = input.len() - at;
    match random.below(10) {
        0 if rest > 0 => input[at] ^= 1 << random.below(8),
        1 if rest > 0 => input[at] = random.next() as u8,
        2 => input.insert(at, random.next() as u8),
        3 => input.truncate(at),
        4 => drop(input.drain(at..at + random.below(rest.min(64) + 1))),
        5 => {
            let length = random.below(rest.min(256) + 1);
            let copy = input[at..at + length].to_vec();
            let to = random.below(input.len() + 1);
            drop(input.splice(to..to, copy));
        }
        6 if rest >= 8 => {
            let word = [0, 1, u64::MAX, 1 << 63, 1 << 32, random.next()][random.below(6)];
            input[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        7 if rest >= 2 => {
            let word = [0, 1, u16::MAX, 0x8000][random.below(4)];
            input[at..at + 2].copy_from_slice(&u16::to_le_bytes(word));
        }
        8 if !words.is_empty() => drop(input.splice(at..at, random.pick(words).bytes())),
        _ => drop(input.splice(at..at, random.pick(&TEXTS).bytes())),
    }
}

/// Changes a JSON text as a tree; a text that is none is changed by its bytes.
pub(crate) fn json(random: &mut Random, input: &mut Vec<u8>, words: &[&str]) {
    let Ok(mut value) = serde_json::from_slice::<Value>(input) else {
        return bytes(random, input, words);
    };
    for _ in 0..1 + random.below(3) {
        change(random, &mut value, words);
    }
    let mut text = value.to_string();
    if random.once_in(12) {
        // Some key again, with another value, at the beginning of some object.
        if let Some(at) = nth(&text, '{', random) {
            text.insert_str(at + 1, &format!("\"{}\":0,", random.pick(words)));
        }
    }
    *input = text.into_bytes();
    if random.once_in(12) {
        once(random, input, words);
    }
}

fn nth(text: &str, wanted: char, random: &mut Random) -> Option<usize> {
    let places: Vec<usize> = text.match_indices(wanted).map(|(at, _)| at).collect();
    (!places.is_empty()).then(|| *random.pick(&places))
}

/// Walks down to some node and changes it. Shallow nodes are as likely as all below them.
fn change(random: &mut Random, value: &mut Value, words: &[&str]) {
    let size = match value {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    if size > 0 && !random.once_in(5) {
        let index = random.below(size);
        match value {
            Value::Array(list) => return change(random, &mut list[index], words),
            Value::Object(map) => {
                if let Some((_, inner)) = map.iter_mut().nth(index) {
                    return change(random, inner, words);
                }
            }
            _ => {}
        }
    }
    match (random.below(8), &mut *value) {
        (0, Value::Object(map)) if size > 0 => {
            let key = map.keys().nth(random.below(size)).cloned().unwrap_or_default();
            map.shift_remove(&key);
        }
        (1, Value::Object(map)) if size > 0 => {
            let key = map.keys().nth(random.below(size)).cloned().unwrap_or_default();
            if let Some(inner) = map.shift_remove(&key) {
                map.insert(random.pick(words).to_string(), inner);
            }
        }
        (2, Value::Object(map)) => {
            drop(map.insert(random.pick(words).to_string(), leaf(random, words)))
        }
        (0 | 1, Value::Array(list)) if size > 0 => drop(list.remove(random.below(size))),
        (2, Value::Array(list)) => list.push(leaf(random, words)),
        (3, Value::Array(list)) if size > 0 => {
            let again = list[random.below(size)].clone();
            list.insert(random.below(size + 1), again);
        }
        (4, Value::String(text)) => {
            let mut raw = std::mem::take(text).into_bytes();
            once(random, &mut raw, words);
            *text = String::from_utf8_lossy(&raw).into_owned();
        }
        (4 | 5, Value::Number(number)) => {
            let near = number.as_i64().unwrap_or(0).wrapping_add(random.below(5) as i64 - 2);
            *value = Value::Number(near.into());
        }
        (6, _) => {
            let inner = value.take();
            *value = if random.once_in(2) {
                Value::Array(vec![inner])
            } else {
                Value::Object(Map::from_iter([(random.pick(words).to_string(), inner)]))
            };
        }
        _ => *value = leaf(random, words),
    }
}

fn leaf(random: &mut Random, words: &[&str]) -> Value {
    match random.below(9) {
        0 => Value::Null,
        1 => Value::Bool(random.once_in(2)),
        2..=4 => random.pick(&NUMBERS).parse::<Number>().map_or(Value::Null, Value::Number),
        5 => Value::String(random.pick(&TEXTS).to_string()),
        6 => Value::String(random.pick(words).to_string()),
        7 => Value::Array(Vec::new()),
        _ => Value::String("x".repeat(1 << random.below(12))),
    }
}

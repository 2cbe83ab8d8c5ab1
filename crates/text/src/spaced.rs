//! Tokenizers whose tokens are pieces of text, with `▁` for a space and tokens of single bytes for characters without
//! one (SentencePiece's BPE, as Gemma has it), made byte-level ones.
//!
//! Such merging begins with characters and not with bytes. So merges that put the bytes of each character together come
//! before all others. UTF-8 says where a character begins: these merges cannot meet across two of them. What they make
//! on the way to a character of three or four bytes is no token; where no character came of it, it is its bytes again
//! ([`super::words::Words`]). Then every text has the ids that the library gives, and windows, limits and decoding
//! are those of all tokenizers.

use std::collections::HashSet;

use super::TextError;
use super::file::{Added, Spelled, Token};
use super::merges::Vocabulary;
use super::steps::flatten;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use store::shown::quoted;

/// What stands for a space.
pub(super) const SPACE: char = '▁';
/// Beginnings of characters that are no tokens: far above what all of Unicode has.
const BEGINNINGS_MAX: usize = 1 << 16;

/// A step, as far as such files have them.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: String,
    pattern: Option<Value>,
    content: Option<String>,
    behavior: Option<String>,
    invert: Option<bool>,
}

impl Step {
    fn replaces(&self, from: &str, to: &str) -> bool {
        self.kind == "Replace" && self.has(from) && self.content.as_deref() == Some(to)
    }

    fn has(&self, text: &str) -> bool {
        self.pattern.as_ref().and_then(|pattern| pattern.get("String")?.as_str()) == Some(text)
    }
}

fn steps(field: &str, raw: Option<&RawValue>) -> Result<Vec<(String, Step)>, TextError> {
    let read = |(field, raw): (String, &RawValue)| match serde_json::from_str(raw.get()) {
        Ok(step) => Ok((field, step)),
        Err(error) => Err(TextError::tokenizer(field, error.to_string())),
    };
    flatten(field, raw)?.into_iter().map(read).collect()
}

/// Whether a normalizer is that of such a tokenizer: spaces, and nothing else, become `▁`.
pub(super) fn is_meant(normalizer: Option<&RawValue>) -> bool {
    let steps = steps("normalizer", normalizer).unwrap_or_default();
    matches!(steps.as_slice(), [(_, step)] if step.replaces(" ", "▁"))
}

/// Refuses steps that are not those of such a tokenizer. Its division at spaces finds none once these are replaced.
pub(super) fn check_steps(
    pre_tokenizer: Option<&RawValue>,
    decoder: Option<&RawValue>,
) -> Result<(), TextError> {
    for (field, step) in steps("pre_tokenizer", pre_tokenizer)? {
        let divides = step.kind == "Split" && step.has(" ") && step.invert == Some(false);
        if !divides || step.behavior.as_deref() != Some("MergedWithPrevious") {
            let problem = "is not the division at spaces that a tokenizer with ▁ has";
            return Err(TextError::tokenizer(field, problem));
        }
    }
    for (field, step) in steps("decoder", decoder)? {
        let known = step.replaces("▁", " ") || matches!(&*step.kind, "ByteFallback" | "Fuse");
        if !known {
            let problem =
                format!("{} is not supported with tokens that have ▁", quoted(&step.kind));
            return Err(TextError::tokenizer(field, problem));
        }
    }
    Ok(())
}

/// Gives added tokens the text that they stand for, and says which of them no text has: those with `▁` that are looked
/// for in text whose spaces are still spaces. Merges make these.
pub(super) fn unspell(added: &mut [Added]) -> HashSet<u32> {
    let mut unmatched = HashSet::new();
    for token in added.iter_mut().filter(|token| token.content.contains(SPACE)) {
        token.content = token.content.replace(SPACE, " ");
        unmatched.extend((!token.normalized).then_some(token.id));
    }
    unmatched
}

/// `<0xE2>`
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let upper = digits.len() == 2 && !digits.contains(|c: char| c.is_ascii_lowercase() || c == '+');
    if upper { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Writes the bytes that a token stands for; every text has some.
pub(super) fn bytes(token: &str, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    for part in token.split_inclusive(SPACE) {
        match part.strip_suffix(SPACE) {
            None => bytes.extend_from_slice(part.as_bytes()),
            Some(text) => {
                bytes.extend_from_slice(text.as_bytes());
                bytes.push(b' ');
            }
        }
    }
    true
}

/// The bytes of a vocabulary whose ids are below `size`, and the merges that make characters of bytes.
pub(super) fn spell(vocab: &[Token<'_>], size: usize) -> Result<Spelled, TextError> {
    let wrong = |problem: String| TextError::tokenizer("model.vocab", problem);
    let mut single: Vec<(u32, u8)> = Vec::new();
    let mut own = Vocabulary::default();
    let mut characters: Vec<char> = Vec::new();
    let mut spelled = Vec::new();
    for (text, id) in vocab {
        if let Some(byte) = byte_of(text) {
            single.push((*id, byte));
            continue;
        }
        let mut all = text.chars();
        if let (Some(c), None) = (all.next(), all.next()) {
            characters.extend((c != SPACE && c.len_utf8() > 1).then_some(c));
        }
        bytes(text, &mut spelled);
        if own.insert(spelled.as_slice().into(), *id).is_some() {
            return Err(wrong(format!("{} has the text of another token", quoted(text))));
        }
    }
    let mut of_byte = [None; 256];
    for &(id, byte) in &single {
        if of_byte[usize::from(byte)].replace(id).is_some() {
            return Err(wrong(format!("has <0x{byte:02X}> twice")));
        }
    }
    let mut ids = [0; 256];
    for byte in 0..=255_u8 {
        // A character of one byte is its own token where there is one.
        let id = own.get([byte].as_slice()).copied().or(of_byte[usize::from(byte)]);
        ids[usize::from(byte)] = id.ok_or_else(|| {
            wrong(format!("byte 0x{byte:02x} has no token, so not every text could be encoded"))
        })?;
    }
    for byte in 0..=255_u8 {
        own.entry([byte].into()).or_insert(ids[usize::from(byte)]);
    }
    // In order, so that the same file gives the same merges.
    characters.sort_unstable();
    let (mut merges, mut beginnings) = (Vec::new(), Vec::new());
    let mut known: HashSet<Vec<u8>> = HashSet::new();
    for c in characters {
        let mut encoded = [0; 4];
        let encoded = c.encode_utf8(&mut encoded).as_bytes();
        for (place, &byte) in encoded.iter().enumerate().skip(1) {
            let (before, after) = (&encoded[..place], &encoded[..=place]);
            if !known.insert(after.to_vec()) {
                continue;
            }
            if place + 1 < encoded.len() {
                let parts = after.iter().map(|&byte| ids[usize::from(byte)]);
                let id = u32::try_from(size + beginnings.len()).unwrap_or(u32::MAX);
                beginnings.push(parts.collect());
                own.insert(after.into(), id);
            }
            merges.push([own[before], ids[usize::from(byte)], own[after]]);
        }
        if beginnings.len() > BEGINNINGS_MAX {
            return Err(wrong(format!("more than {BEGINNINGS_MAX} beginnings of characters")));
        }
    }
    Ok(Spelled { vocabulary: own, merges, bytes: single, beginnings })
}

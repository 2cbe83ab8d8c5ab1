//! Tokenizers whose tokens are pieces of text, with `▁` for a space and tokens of single bytes for characters without
//! one (SentencePiece's BPE, as Gemma has it), made byte-level ones.
//!
//! Such merging begins with characters and not with bytes. So merges that put the bytes of each character together come
//! before all others. UTF-8 says where a character begins: these merges cannot meet across two of them. What they make
//! on the way to a character of three or four bytes is no token; where no character came of it, it is its bytes again
//! ([`super::words::Words`]). Then every text has the ids that the library gives, and windows, limits and decoding
//! are those of all tokenizers.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use store::shown::quoted;
use tokenizers::models::bpe::Vocab;

use super::TextError;
use super::decode::{byte_to_char, to_byte_alphabet};
use super::file::{Added, Merge};
use super::steps::flatten;

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

/// A vocabulary in the byte alphabet.
pub(super) struct Spelled {
    /// Ids by spelling; those of beginnings follow all others.
    pub(super) vocab: Vocab,
    pub(super) merges: Vec<Merge>,
    /// Tokens of single bytes.
    pub(super) bytes: Vec<(u32, u8)>,
    /// For each beginning of a character, in order of their ids: the tokens of its bytes.
    pub(super) beginnings: Vec<Vec<u32>>,
}

/// `<0xE2>`
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let upper = digits.len() == 2 && !digits.contains(|c: char| c.is_ascii_lowercase() || c == '+');
    if upper { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A token's text in the byte alphabet.
fn spelled(token: &str) -> String {
    to_byte_alphabet(&token.replace(SPACE, " "))
}

/// Spells a vocabulary whose ids are below `size`.
pub(super) fn spell(vocab: &Vocab, merges: &[Merge], size: usize) -> Result<Spelled, TextError> {
    let wrong = |problem: String| TextError::tokenizer("model.vocab", problem);
    let mut bytes: Vec<(u32, u8)> = Vec::new();
    let mut own = Vocab::default();
    let mut characters: Vec<char> = Vec::new();
    for (text, &id) in vocab {
        if let Some(byte) = byte_of(text) {
            bytes.push((id, byte));
            continue;
        }
        let mut all = text.chars();
        if let (Some(c), None) = (all.next(), all.next()) {
            characters.extend((c != SPACE && c.len_utf8() > 1).then_some(c));
        }
        if own.insert(spelled(text), id).is_some() {
            return Err(wrong(format!("{} has the text of another token", quoted(text))));
        }
    }
    let mut of_byte = [None; 256];
    for &(id, byte) in &bytes {
        of_byte[usize::from(byte)] = Some(id);
    }
    let one = |byte: u8| String::from(byte_to_char(byte));
    let mut ids = [0; 256];
    for byte in 0..=255_u8 {
        // A character of one byte is its own token where there is one.
        let id = own.get(&one(byte)).copied().or(of_byte[usize::from(byte)]);
        ids[usize::from(byte)] = id.ok_or_else(|| {
            wrong(format!("byte 0x{byte:02x} has no token, so not every text could be encoded"))
        })?;
    }
    for byte in 0..=255_u8 {
        own.entry(one(byte)).or_insert(ids[usize::from(byte)]);
    }
    // In order, so that the same file gives the same merges.
    characters.sort_unstable();
    let (mut first, mut beginnings) = (Vec::new(), Vec::new());
    let mut known: HashSet<String> = HashSet::new();
    for c in characters {
        let mut encoded = [0; 4];
        let encoded = c.encode_utf8(&mut encoded).as_bytes();
        let mut before = one(encoded[0]);
        for (place, &byte) in encoded.iter().enumerate().skip(1) {
            let after = format!("{before}{}", one(byte));
            if known.insert(after.clone()) {
                first.push(Merge(before, one(byte)));
                if place + 1 < encoded.len() {
                    let parts = encoded[..=place].iter().map(|&byte| ids[usize::from(byte)]);
                    let id = u32::try_from(size + beginnings.len()).unwrap_or(u32::MAX);
                    beginnings.push(parts.collect());
                    own.insert(after.clone(), id);
                }
            }
            before = after;
        }
        if beginnings.len() > BEGINNINGS_MAX {
            return Err(wrong(format!("more than {BEGINNINGS_MAX} beginnings of characters")));
        }
    }
    first.extend(merges.iter().map(|Merge(a, b)| Merge(spelled(a), spelled(b))));
    Ok(Spelled { vocab: own, merges: first, bytes, beginnings })
}

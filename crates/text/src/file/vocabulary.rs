//! A vocabulary by the bytes of its tokens, and merges by ids: what a file spells, looked up.

use std::collections::HashSet;

use ahash::RandomState;
use store::shown::quoted;

use super::fields::{Added, Merge, Token};
use crate::TextError;
use crate::decode::char_to_byte;
use crate::merges::Vocabulary;
use crate::spaced;

/// The longest known token has 256 bytes, of spaces. A client may ask for the bytes of any token many times over, and
/// dividing a long word takes time that grows with the square of this.
const TOKEN_BYTES_MAX: usize = 512;
/// Threads that look merges up: a lookup waits for memory, and more than these wait for each other.
const THREADS_MAX: usize = 4;
/// Merges of one thread, at least.
const MERGES_EACH: usize = 16 << 10;

/// Refuses tokens that are too long, and a vocabulary without one of the bytes.
pub(super) fn check_tokens(vocabulary: &Vocabulary) -> Result<(), TextError> {
    if let Some(long) = vocabulary.keys().find(|token| token.len() > TOKEN_BYTES_MAX) {
        let text = String::from_utf8_lossy(long);
        let problem = format!("{} is longer than {TOKEN_BYTES_MAX} bytes", quoted(&text));
        return Err(TextError::tokenizer("model.vocab", problem));
    }
    for byte in 0..=255_u8 {
        if !vocabulary.contains_key([byte].as_slice()) {
            let problem =
                format!("byte 0x{byte:02x} has no token, so not every text could be encoded");
            return Err(TextError::tokenizer("model.vocab", problem));
        }
    }
    Ok(())
}

/// A vocabulary by the bytes of its tokens.
pub(crate) struct Spelled {
    pub(crate) vocabulary: Vocabulary,
    /// Merges that come before those of the file: left token, right token and what they become.
    pub(crate) merges: Vec<[u32; 3]>,
    /// Tokens of single bytes that are not spelled as such.
    pub(crate) bytes: Vec<(u32, u8)>,
    /// For each beginning of a character, in order of their ids: the tokens of its bytes.
    pub(crate) beginnings: Vec<Vec<u32>>,
}

/// A vocabulary that is spelled in the byte alphabet.
pub(super) fn byte_level(tokens: &[Token<'_>], added: &[Added]) -> Result<Spelled, TextError> {
    let added: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    let mut vocabulary = Vocabulary::with_capacity_and_hasher(tokens.len(), RandomState::new());
    let mut others: HashSet<&str> = HashSet::new();
    let mut bytes = Vec::new();
    for (text, id) in tokens {
        let is_new = if spell(text, &mut bytes) {
            vocabulary.insert(bytes.as_slice().into(), *id).is_none()
        } else if added.contains(&**text) {
            others.insert(text)
        } else {
            let problem =
                format!("token {} (id {id}) is not spelled in the byte alphabet", quoted(text));
            return Err(TextError::tokenizer("model.vocab", problem));
        };
        if !is_new {
            return Err(TextError::tokenizer("model.vocab", format!("has {} twice", quoted(text))));
        }
    }
    Ok(Spelled { vocabulary, merges: Vec::new(), bytes: Vec::new(), beginnings: Vec::new() })
}

/// Writes the bytes of a token in the byte alphabet; whether it is in that alphabet.
fn spell(text: &str, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    text.chars().all(|c| char_to_byte(c).map(|byte| bytes.push(byte)).is_some())
}

/// The bytes of each token by id, for ids below `size`; empty for others.
pub(super) fn by_id(vocabulary: &Vocabulary, size: usize) -> Vec<&[u8]> {
    let mut tokens: Vec<&[u8]> = vec![&[]; size];
    for (bytes, &id) in vocabulary {
        if let Some(token) = tokens.get_mut(id as usize) {
            *token = bytes;
        }
    }
    tokens
}

/// Where merges are looked up.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    pub(super) vocabulary: &'a Vocabulary,
    /// The same by id ([`by_id`]).
    pub(super) tokens: &'a [&'a [u8]],
    /// Spaces are spelled `▁`, not in the byte alphabet.
    pub(super) is_spaced: bool,
}

/// Appends the file's merges, as ids.
pub(super) fn resolve(
    mut ids: Vec<[u32; 3]>,
    merges: &[Merge<'_>],
    lookup: Lookup<'_>,
) -> Result<Vec<[u32; 3]>, TextError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let each = merges.len().div_ceil(threads).max(MERGES_EACH);
    let part = |number: usize| {
        let from = number * each;
        let merges = &merges[from..merges.len().min(from + each)];
        lookup.part(merges, from)
    };
    let parts = std::thread::scope(|scope| {
        let start = |number| {
            // Where there is no further thread, this one does it.
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || part(number));
            (number, thread.ok())
        };
        let others: Vec<_> = (1..merges.len().div_ceil(each)).map(start).collect();
        let mut parts = vec![part(0)];
        parts.extend(others.into_iter().map(|(number, thread)| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| part(number))
        }));
        parts
    });
    for part in parts {
        ids.append(&mut part?);
    }
    Ok(ids)
}

impl Lookup<'_> {
    /// Ids of merges, the first with number `from` in the file.
    fn part(self, merges: &[Merge<'_>], from: usize) -> Result<Vec<[u32; 3]>, TextError> {
        let mut ids = Vec::with_capacity(merges.len());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut likely = u32::MAX;
        for (index, Merge(a, b)) in (from..).zip(merges) {
            let unknown = |token: &str| {
                let problem = format!("{} is not in the vocabulary", quoted(token));
                TextError::tokenizer(format!("model.merges[{index}]"), problem)
            };
            let a_id = self.id(a, &mut left).ok_or_else(|| unknown(a))?;
            let b_id = self.id(b, &mut right).ok_or_else(|| unknown(b))?;
            left.extend_from_slice(&right);
            // Trainers number tokens in the order of their merges: the next id needs no lookup.
            let joined = match self.tokens.get(likely as usize) {
                Some(token) if *token == left => likely,
                _ => {
                    let found = self.vocabulary.get(left.as_slice()).copied();
                    found.ok_or_else(|| unknown(&format!("{a}{b}")))?
                }
            };
            likely = joined.wrapping_add(1);
            ids.push([a_id, b_id, joined]);
        }
        Ok(ids)
    }

    /// The id of a token as it is spelled; its bytes are left in `bytes`.
    fn id(self, text: &str, bytes: &mut Vec<u8>) -> Option<u32> {
        let is_spelled =
            if self.is_spaced { spaced::bytes(text, bytes) } else { spell(text, bytes) };
        if is_spelled { self.vocabulary.get(bytes.as_slice()).copied() } else { None }
    }
}

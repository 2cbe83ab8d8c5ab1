//! tokenizer.json, read without trust.
//!
//! The file is parsed into typed fields, so that nothing is buffered twice (a vocabulary of a quarter
//! million tokens takes most of the load time), and every condition under which the `tokenizers` crate would panic,
//! lose text or draw random numbers is refused here, by field name: merges of unknown or overlong tokens,
//! ids given twice or absurdly sparse, sub-word affixes, dropout, a missing byte.

use super::TextError;
use super::control::ControlToken;
use super::decode::{TokenTable, byte_to_char, char_to_byte};
use super::pieces::{Normal, Pieces};
use super::spaced::{self, Spelled};
use super::steps;
use super::words::Words;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use store::shown::quoted;
use tokenizers::models::bpe::{BpeBuilder, Vocab};

/// Far above any known file (12 MiB for 248 k tokens, 35 MB at most); bounds memory.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Four times the largest known vocabulary.
const TOKENS_MAX: usize = 1 << 20;
/// Several merges may make one token.
const MERGES_MAX: usize = 2 << 20;
/// Qwen has 33; bounds the search automata.
const ADDED_TOKENS_MAX: usize = 16 << 10;
/// The longest known control token has under 40 bytes.
const ADDED_TOKEN_BYTES_MAX: usize = 256;
/// All of them together: the search automata take a hundred times that. gpt-oss has 22 KB.
const ADDED_BYTES_MAX: usize = 256 << 10;
/// The longest known token has 256 bytes, of spaces. A client may ask for the bytes of any token many times over, and
/// dividing a long word takes time that grows with the square of this.
const TOKEN_BYTES_MAX: usize = 512;
/// Ids without a token that are tolerated beyond twice the number of tokens (reserved ranges).
const SPARE_IDS_MAX: usize = 4096;

/// What a tokenizer is made of.
pub(crate) struct Parts {
    pub(super) pieces: Pieces,
    pub(crate) table: TokenTable,
    pub(crate) controls: Vec<ControlToken>,
}

#[derive(Deserialize)]
struct File<'a> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    model: Model,
}

#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    ignore_merges: Option<bool>,
    byte_fallback: Option<bool>,
    #[serde(deserialize_with = "vocabulary")]
    vocab: Vocab,
    #[serde(deserialize_with = "merges")]
    merges: Vec<Merge>,
}

/// Ids by token, each token once.
fn vocabulary<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vocab, D::Error> {
    struct VocabularyVisitor;
    impl<'de> Visitor<'de> for VocabularyVisitor {
        type Value = Vocab;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of tokens and their ids")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
            let mut vocab = Vocab::default();
            while let Some((text, id)) = map.next_entry::<String, u32>()? {
                if vocab.len() == TOKENS_MAX {
                    let problem = format!("model.vocab has more than {TOKENS_MAX} tokens");
                    return Err(A::Error::custom(problem));
                }
                match vocab.entry(text) {
                    Entry::Vacant(place) => drop(place.insert(id)),
                    Entry::Occupied(place) => {
                        let problem = format!("model.vocab has {:?} twice", place.key());
                        return Err(A::Error::custom(problem));
                    }
                }
            }
            Ok(vocab)
        }
    }
    deserializer.deserialize_map(VocabularyVisitor)
}

fn merges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Merge>, D::Error> {
    struct MergesVisitor;
    impl<'de> Visitor<'de> for MergesVisitor {
        type Value = Vec<Merge>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of merges")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Merge>, A::Error> {
            let mut merges = Vec::new();
            while let Some(merge) = seq.next_element()? {
                if merges.len() == MERGES_MAX {
                    let problem = format!("model.merges has more than {MERGES_MAX} entries");
                    return Err(A::Error::custom(problem));
                }
                merges.push(merge);
            }
            Ok(merges)
        }
    }
    deserializer.deserialize_seq(MergesVisitor)
}

/// A merge is `["a", "b"]`, or `"a b"` in older files.
pub(super) struct Merge(pub(super) String, pub(super) String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a pair of strings, or one string with one space")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((a, b)) if !b.contains(' ') => Ok(Merge(a.to_owned(), b.to_owned())),
                    _ => Err(E::custom(format!(
                        "merge {} is not two tokens and one space",
                        quoted(text)
                    ))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let short = || A::Error::custom("a merge is a pair of strings");
                let a = seq.next_element()?.ok_or_else(short)?;
                let b = seq.next_element()?.ok_or_else(short)?;
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Merge(a, b)),
                    Some(_) => Err(short()),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

pub(crate) fn check_length(bytes: u64) -> Result<(), TextError> {
    if bytes > FILE_BYTES_MAX {
        return Err(TextError::tokenizer(
            "file",
            format!("{bytes} bytes are more than the limit of {FILE_BYTES_MAX}"),
        ));
    }
    Ok(())
}

/// Parses and checks a whole file.
pub(crate) fn load(bytes: &[u8]) -> Result<Parts, TextError> {
    check_length(bytes.len() as u64)?;
    let file: File<'_> = serde_json::from_slice(bytes)
        .map_err(|error| TextError::tokenizer("file", error.to_string()))?;
    if let Some(version) = file.version.as_deref().filter(|version| *version != "1.0") {
        return Err(TextError::tokenizer(
            "version",
            format!("{} is unknown; \"1.0\" is supported", quoted(version)),
        ));
    }
    let mut model = file.model;
    let size = check_ids(&model.vocab, &file.added_tokens)?;
    let (mut bytes, mut beginnings) = Default::default();
    let is_spaced = spaced::is_meant(file.normalizer);
    if is_spaced && model.byte_fallback != Some(true) {
        let problem = "is not true: characters without a token could not be encoded";
        return Err(TextError::tokenizer("model.byte_fallback", problem));
    }
    let (normal, pre_tokenizer) = if is_spaced {
        spaced::check_steps(file.pre_tokenizer, file.decoder)?;
        let spelled = spaced::spell(&model.vocab, &model.merges, size)?;
        Spelled { vocab: model.vocab, merges: model.merges, bytes, beginnings } = spelled;
        (Normal::Spaced, None)
    } else {
        // The library compiles expressions here.
        let steps = guarded("pre_tokenizer", || {
            let normalizer = steps::normalizer(file.normalizer)?;
            Ok((Normal::of(normalizer), Some(steps::pre_tokenizer(file.pre_tokenizer)?)))
        })?;
        steps::check_decoder(file.decoder)?;
        steps
    };
    check_model(&model)?;
    let mut added = file.added_tokens;
    let unmatched = if is_spaced { spaced::unspell(&mut added) } else { HashSet::new() };
    let table = build_table(&model.vocab, &bytes, &added, size)?;
    added.retain(|token| !unmatched.contains(&token.id));

    let (blank, control): (Vec<Added>, Vec<Added>) =
        added.into_iter().partition(|token| is_blank(&token.content));
    let pieces = guarded("model", || {
        let lengths = merged_lengths(&model.vocab, size + beginnings.len());
        let merges = model.merges.into_iter().map(|Merge(a, b)| (a, b)).collect();
        // The library's cache of words is one for each thread, up to 80 MB of a stranger's words in each.
        let bpe = BpeBuilder::new()
            .vocab_and_merges(model.vocab, merges)
            .ignore_merges(model.ignore_merges.unwrap_or(false))
            .cache_capacity(0)
            .build()
            .map_err(|error| TextError::tokenizer("model", error.to_string()))?;
        let blank = blank.into_iter().map(|token| {
            let normalized = token.normalized;
            (ControlToken { id: token.id, text: token.content, special: token.special }, normalized)
        });
        let words = Words::new(bpe, lengths).with_beginnings(size, beginnings);
        Pieces::new(normal, pre_tokenizer, blank.collect(), words)
    })?;
    let controls = control
        .into_iter()
        .map(|token| ControlToken { id: token.id, text: token.content, special: token.special })
        .collect();
    Ok(Parts { pieces, table, controls })
}

/// Runs code of the crate on data of the file; a panic there is a refusal of the file.
fn guarded<T>(field: &str, run: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(TextError::tokenizer(field, "the tokenizer library cannot process this content"))
    })
}

fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

fn check_model(model: &Model) -> Result<(), TextError> {
    if let Some(kind) = model.kind.as_deref().filter(|kind| *kind != "BPE") {
        return Err(TextError::tokenizer("model.type", format!("{} is not BPE", quoted(kind))));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(TextError::tokenizer(
            "model.dropout",
            "makes encoding random; it must be null or 0",
        ));
    }
    for (field, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if affix.as_deref().is_some_and(|affix| !affix.is_empty()) {
            return Err(TextError::tokenizer(field, "byte-level BPE has no affixes"));
        }
    }
    let vocab = &model.vocab;
    // Spelled in the byte alphabet: a character is a byte.
    if let Some(long) = vocab.keys().find(|token| token.chars().nth(TOKEN_BYTES_MAX).is_some()) {
        return Err(TextError::tokenizer(
            "model.vocab",
            format!("{} is longer than {TOKEN_BYTES_MAX} bytes", quoted(long)),
        ));
    }
    for byte in 0..=255u8 {
        if !vocab.contains_key(byte_to_char(byte).encode_utf8(&mut [0; 4]) as &str) {
            return Err(TextError::tokenizer(
                "model.vocab",
                format!("byte 0x{byte:02x} has no token, so not every text could be encoded"),
            ));
        }
    }
    let mut joined = String::new();
    for (index, Merge(a, b)) in model.merges.iter().enumerate() {
        joined.clear();
        joined.push_str(a);
        joined.push_str(b);
        for token in [a, b, &joined] {
            if !vocab.contains_key(token) {
                return Err(TextError::tokenizer(
                    format!("model.merges[{index}]"),
                    format!("{} is not in the vocabulary", quoted(token)),
                ));
            }
        }
    }
    Ok(())
}

/// Checks ids for uniqueness and density; returns one more than the largest.
fn check_ids(vocab: &Vocab, added: &[Added]) -> Result<usize, TextError> {
    if added.len() > ADDED_TOKENS_MAX {
        return Err(TextError::tokenizer(
            "added_tokens",
            format!("{} entries are more than the limit of {ADDED_TOKENS_MAX}", added.len()),
        ));
    }
    let ids = vocab.values().chain(added.iter().map(|token| &token.id));
    let size = ids.max().map_or(0, |&id| id as usize + 1);
    let limit = 2 * (vocab.len() + added.len()) + SPARE_IDS_MAX;
    if size > limit {
        return Err(TextError::tokenizer(
            "model.vocab",
            format!("id {} is far beyond the number of tokens, {}", size - 1, vocab.len()),
        ));
    }
    let mut owner: Vec<Option<&str>> = vec![None; size];
    for (text, &id) in vocab {
        if let Some(other) = owner[id as usize].replace(text) {
            return Err(TextError::tokenizer(
                "model.vocab",
                format!("id {id} is given to both {} and {}", quoted(other), quoted(text)),
            ));
        }
    }
    let mut texts: HashMap<&str, u32> = HashMap::new();
    for (index, token) in added.iter().enumerate() {
        let field = || format!("added_tokens[{index}]");
        let text = token.content.as_str();
        if text.is_empty() || text.len() > ADDED_TOKEN_BYTES_MAX {
            return Err(TextError::tokenizer(
                field(),
                format!("content must have 1 to {ADDED_TOKEN_BYTES_MAX} bytes"),
            ));
        }
        if token.single_word || token.lstrip || token.rstrip {
            return Err(TextError::tokenizer(
                field(),
                format!(
                    "{} sets single_word, lstrip or rstrip, which are not supported",
                    quoted(text)
                ),
            ));
        }
        if texts.insert(text, token.id).is_some_and(|other| other != token.id) {
            return Err(TextError::tokenizer(field(), format!("{} has two ids", quoted(text))));
        }
        // An added token may repeat an entry of the vocabulary, under the same id.
        let clash = match owner[token.id as usize].replace(text) {
            Some(other) => other != text,
            None => vocab.contains_key(text),
        };
        if clash {
            return Err(TextError::tokenizer(
                field(),
                format!("{} with id {} contradicts an earlier token", quoted(text), token.id),
            ));
        }
    }
    let bytes: usize = added.iter().map(|token| token.content.len()).sum();
    if bytes > ADDED_BYTES_MAX {
        let problem = format!("{bytes} bytes are more than the limit of {ADDED_BYTES_MAX}");
        return Err(TextError::tokenizer("added_tokens", problem));
    }
    Ok(size)
}

/// Bytes by id. Vocabulary entries are spelled in the byte alphabet, added tokens in plain text; `bytes` are tokens of
/// single bytes. Entries with ids of `size` and above are no tokens.
fn build_table(
    vocab: &Vocab,
    bytes: &[(u32, u8)],
    added: &[Added],
    size: usize,
) -> Result<TokenTable, TextError> {
    let mut tokens: Vec<(Vec<u8>, bool)> = vec![(Vec::new(), false); size];
    let added_texts: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    for &(id, byte) in bytes {
        tokens[id as usize].0 = vec![byte];
    }
    for (text, &id) in vocab.iter().filter(|(_, id)| (**id as usize) < size) {
        let bytes: Option<Vec<u8>> = text.chars().map(char_to_byte).collect();
        match bytes {
            Some(bytes) => tokens[id as usize].0 = bytes,
            None if added_texts.contains(text.as_str()) => {}
            None => {
                return Err(TextError::tokenizer(
                    "model.vocab",
                    format!("token {} (id {id}) is not spelled in the byte alphabet", quoted(text)),
                ));
            }
        }
    }
    for token in added {
        tokens[token.id as usize] = (token.content.as_bytes().to_vec(), !is_blank(&token.content));
    }
    Ok(TokenTable::new(tokens.iter().map(|(bytes, control)| (bytes.as_slice(), *control))))
}

/// Bytes of each token that merging can yield, by id.
fn merged_lengths(vocab: &Vocab, size: usize) -> Vec<u32> {
    let mut lengths = vec![0; size];
    for (text, &id) in vocab {
        // Spelled in the byte alphabet: a character is a byte.
        lengths[id as usize] = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    }
    lengths
}

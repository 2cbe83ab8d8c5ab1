//! tokenizer.json, read without trust.
//!
//! The file is parsed into typed fields that borrow its text (a vocabulary of a quarter million tokens takes most of
//! the load time), and every condition under which the `tokenizers` crate would panic, lose text or draw random numbers
//! is refused here, by field name: merges of unknown or overlong tokens, ids given twice or absurdly sparse, sub-word
//! affixes, dropout, a missing byte.

use super::TextError;
use super::control::ControlToken;
use super::decode::TokenTable;
use super::division::Division;
use super::merges::Merges;
use super::pieces::{Normal, Pieces};
use super::spaced;
use super::steps;
use super::words::Words;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use store::shown::quoted;

mod fields;
mod vocabulary;

pub(super) use fields::{Added, Token};
use fields::{File, Model};
pub(super) use vocabulary::Spelled;
use vocabulary::{Lookup, by_id, byte_level, check_tokens, resolve};

/// Far above any known file (12 MiB for 248 k tokens, 35 MB at most); bounds memory.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Qwen has 33; bounds the search automata.
const ADDED_TOKENS_MAX: usize = 16 << 10;
/// The longest known control token has under 40 bytes.
const ADDED_TOKEN_BYTES_MAX: usize = 256;
/// All of them together: the search automata take a hundred times that. gpt-oss has 22 KB.
const ADDED_BYTES_MAX: usize = 256 << 10;
/// Ids without a token that are tolerated beyond twice the number of tokens (reserved ranges).
const SPARE_IDS_MAX: usize = 4096;

/// What a tokenizer is made of.
pub(crate) struct Parts {
    pub(super) pieces: Pieces,
    pub(crate) table: TokenTable,
    pub(crate) controls: Vec<ControlToken>,
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
    let model = file.model;
    let size = check_ids(&model.vocab, &file.added_tokens)?;
    check_model(&model)?;
    let mut added = file.added_tokens;
    let is_spaced = spaced::is_meant(file.normalizer);
    if is_spaced && model.byte_fallback != Some(true) {
        let problem = "is not true: characters without a token could not be encoded";
        return Err(TextError::tokenizer("model.byte_fallback", problem));
    }
    let (normal, division, spelled, unmatched) = if is_spaced {
        spaced::check_steps(file.pre_tokenizer, file.decoder)?;
        let spelled = spaced::spell(&model.vocab, size)?;
        (Normal::Spaced, Division::default(), spelled, spaced::unspell(&mut added))
    } else {
        let normal = steps::normalizer(file.normalizer)?;
        // Expressions are compiled here.
        let steps = guarded("pre_tokenizer", || steps::pre_tokenizer(file.pre_tokenizer))?;
        steps::check_decoder(file.decoder)?;
        (normal, steps, byte_level(&model.vocab, &added)?, HashSet::new())
    };
    let Spelled { vocabulary, merges, bytes, beginnings } = spelled;
    check_tokens(&vocabulary)?;
    let mut tokens = by_id(&vocabulary, size);
    let lookup = Lookup { vocabulary: &vocabulary, tokens: &tokens, is_spaced };
    let merges = resolve(merges, &model.merges, lookup)?;
    for (id, byte) in &bytes {
        tokens[*id as usize] = std::slice::from_ref(byte);
    }
    let table = build_table(&tokens, &added);
    added.retain(|token| !unmatched.contains(&token.id));

    let (blank, control): (Vec<Added>, Vec<Added>) =
        added.into_iter().partition(|token| is_blank(&token.content));
    let mut of_byte = [0; 256];
    for (byte, id) in (0..=255_u8).zip(&mut of_byte) {
        *id = vocabulary.get([byte].as_slice()).copied().unwrap_or_default();
    }
    let pieces = guarded("model", || {
        let blank = blank.into_iter().map(|token| {
            let normalized = token.normalized;
            (ControlToken { id: token.id, text: token.content, special: token.special }, normalized)
        });
        let words = Words::new(vocabulary, Merges::new(of_byte, &merges), size)
            .with_whole_words(model.ignore_merges.unwrap_or(false))
            .with_beginnings(beginnings);
        Pieces::new(normal, division, blank.collect(), words)
    })?;
    let controls = control
        .into_iter()
        .map(|token| ControlToken { id: token.id, text: token.content, special: token.special })
        .collect();
    Ok(Parts { pieces, table, controls })
}

/// Compiles what the file says; a panic of a library there is a refusal of the file.
fn guarded<T>(field: &str, run: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(TextError::tokenizer(field, "cannot be compiled")))
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
    Ok(())
}

/// Checks ids for uniqueness and density; returns one more than the largest.
fn check_ids(vocab: &[Token<'_>], added: &[Added]) -> Result<usize, TextError> {
    if added.len() > ADDED_TOKENS_MAX {
        return Err(TextError::tokenizer(
            "added_tokens",
            format!("{} entries are more than the limit of {ADDED_TOKENS_MAX}", added.len()),
        ));
    }
    let ids = vocab.iter().map(|(_, id)| id).chain(added.iter().map(|token| &token.id));
    let size = ids.max().map_or(0, |&id| id as usize + 1);
    let limit = 2 * (vocab.len() + added.len()) + SPARE_IDS_MAX;
    if size > limit {
        return Err(TextError::tokenizer(
            "model.vocab",
            format!("id {} is far beyond the number of tokens, {}", size - 1, vocab.len()),
        ));
    }
    let mut owner: Vec<Option<&str>> = vec![None; size];
    for (text, id) in vocab {
        if let Some(other) = owner[*id as usize].replace(text) {
            let problem = if other == text {
                format!("has {} twice", quoted(text))
            } else {
                format!("id {id} is given to both {} and {}", quoted(other), quoted(text))
            };
            return Err(TextError::tokenizer("model.vocab", problem));
        }
    }
    check_added(vocab, added, owner)?;
    Ok(size)
}

/// Checks added tokens; `owner` has the token of the vocabulary by id.
fn check_added<'a>(
    vocab: &'a [Token<'_>],
    added: &'a [Added],
    mut owner: Vec<Option<&'a str>>,
) -> Result<(), TextError> {
    let contents: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    let repeated: HashSet<&str> =
        vocab.iter().map(|(text, _)| &**text).filter(|text| contents.contains(text)).collect();
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
            None => repeated.contains(text),
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
    Ok(())
}

/// Bytes by id: those of the vocabulary's tokens and of added ones.
fn build_table(tokens: &[&[u8]], added: &[Added]) -> TokenTable {
    let mut tokens: Vec<(&[u8], bool)> = tokens.iter().map(|bytes| (*bytes, false)).collect();
    for token in added {
        tokens[token.id as usize] = (token.content.as_bytes(), !is_blank(&token.content));
    }
    TokenTable::new(tokens.into_iter())
}

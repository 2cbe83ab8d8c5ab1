//! The tokenizer of a checkpoint: text to token ids and back, exactly and without trust.
//!
//! Encoding is byte-level BPE, word by word (`pieces.rs`, `merges.rs`), with the ids of the `tokenizers` crate. The
//! file is parsed into typed fields and checked first, and control tokens are kept out of what encodes text. `encode`
//! therefore cannot yield one, whatever the text says; only `encode_rendered` can, and only for what a template wrote
//! itself.
//! Decoding is a table of bytes by id, so that it is total and never splits UTF-8 (`DecodeStream`).
//!
//! Only byte-level BPE is accepted (all Qwen families, GPT-2 and Llama-3 styles), and BPE of characters with tokens of
//! bytes (Gemma), which is made that (`spaced.rs`): it alone makes every text encodable and every id a fixed string of
//! bytes. `truncation` and `padding` of the file are not
//! applied, as in transformers, where they are set per call.

use store::io::platform::{Links, read_regular};

use super::control::ControlTokens;
use super::decode::{DecodeStream, TokenTable, TokenTexts};
use super::file::{self, Parts};
use super::ids::{EncodeLimit, Ids};
use super::pieces::Pieces;
use super::{Rendered, TextError};
use std::path::Path;
use std::sync::Arc;

/// A loaded tokenizer. Cloning shares everything.
#[derive(Clone)]
pub struct Tokenizer {
    pieces: Arc<Pieces>,
    table: Arc<TokenTable>,
    controls: Arc<ControlTokens>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish()
    }
}

impl Tokenizer {
    /// Loads a tokenizer.json.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        let read = |source| TextError::Read { path: path.display().to_string(), source };
        let length = std::fs::metadata(path).map_err(read)?.len();
        file::check_length(length)?;
        Self::from_bytes(&read_regular(path, Links::Followed, length).map_err(read)?)
    }

    /// Loads the content of a tokenizer.json.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        let Parts { pieces, table, controls } = file::load(bytes)?;
        Ok(Self {
            pieces: Arc::new(pieces),
            table: Arc::new(table),
            controls: Arc::new(ControlTokens::new(controls)?),
        })
    }

    /// Token ids of a text. Control tokens spelled out in it are ordinary text.
    ///
    /// Fails only if white space in it runs on beyond what the regular expression takes.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_within(text, EncodeLimit::NONE)
    }

    /// As [`Tokenizer::encode`], up to a limit.
    ///
    /// # Errors
    /// [`TextError::TooManyTokens`] beyond it, [`TextError::Gone`] when the ids are not wanted any more.
    pub fn encode_within(&self, text: &str, limit: EncodeLimit<'_>) -> Result<Vec<u32>, TextError> {
        let mut ids = Ids::new(limit);
        self.pieces.encode(text, &mut ids)?;
        ids.finish()
    }

    /// As [`Tokenizer::encode_within`], with control tokens where their texts stand: for a prompt that its author
    /// wrote whole, markup included.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_marked(&self, text: &str, limit: EncodeLimit<'_>) -> Result<Vec<u32>, TextError> {
        let mut ids = Ids::new(limit);
        let mut start = 0;
        for (range, index) in self.controls.find(text) {
            self.pieces.encode(&text[start..range.start], &mut ids)?;
            ids.push(&[self.controls.tokens()[index].id])?;
            start = range.end;
        }
        self.pieces.encode(&text[start..], &mut ids)?;
        ids.finish()
    }

    /// Token ids of a rendered prompt: its control spans become their tokens, the rest is ordinary text.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
        Ok(self.encode_with_controls(rendered, EncodeLimit::NONE)?.0)
    }

    /// As [`Tokenizer::encode_rendered`], up to a limit, with the index of each control span's token.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_with_controls(
        &self,
        rendered: &Rendered,
        limit: EncodeLimit<'_>,
    ) -> Result<(Vec<u32>, Vec<usize>), TextError> {
        let text = rendered.text();
        let mut ids = Ids::new(limit);
        let mut places = Vec::with_capacity(rendered.controls().len());
        let mut start = 0;
        let mut replayed = rendered.replayed().iter().peekable();
        let mut replay_before = |end: usize, start: &mut usize, ids: &mut Ids<'_>| {
            while let Some(span) = replayed.next_if(|span| span.range.end <= end) {
                self.pieces.encode(&text[*start..span.range.start], ids)?;
                ids.push(&span.tokens)?;
                *start = span.range.end;
            }
            Ok::<_, TextError>(())
        };
        for span in rendered.controls() {
            replay_before(span.range.start, &mut start, &mut ids)?;
            self.pieces.encode(&text[start..span.range.start], &mut ids)?;
            places.push(ids.count());
            ids.push(&[span.id])?;
            start = span.range.end;
        }
        replay_before(text.len(), &mut start, &mut ids)?;
        self.pieces.encode(&text[start..], &mut ids)?;
        Ok((ids.finish()?, places))
    }

    /// Bytes of text that `tokens` tokens hold at most, control tokens and replayed turns included.
    pub fn text_bytes_max(&self, tokens: usize) -> usize {
        let plain = self.pieces.bytes_max(tokens);
        let control = self.controls.tokens().iter().map(|token| token.text.len()).max();
        plain.max(tokens.saturating_mul(control.unwrap_or(0)))
    }

    /// The text of token ids, control tokens included; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of one token; empty for an id without text (padding rows of the embedding).
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// The texts of all tokens, for a sampler that looks at them.
    pub fn texts(&self) -> TokenTexts {
        TokenTexts::new(Arc::clone(&self.table))
    }

    /// A decoder of one sequence of tokens.
    pub fn stream(&self) -> DecodeStream {
        DecodeStream::new(Arc::clone(&self.table))
    }

    /// One more than the largest id that has a text.
    pub fn vocabulary_size(&self) -> usize {
        self.table.len()
    }

    /// Refuses a tokenizer that can produce ids beyond the `rows` of the embedding matrix.
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        let size = self.vocabulary_size();
        if size > rows {
            let last_id = u32::try_from(size - 1).unwrap_or(u32::MAX);
            return Err(TextError::VocabularyTooLarge { last_id, rows });
        }
        Ok(())
    }

    /// The id of a token given by its exact text: a control token, or a token of the model.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let control = self.controls.tokens().iter().find(|token| token.text == text);
        control.map(|token| token.id).or_else(|| self.pieces.words().id(text.as_bytes()))
    }

    /// The control tokens: everything a user cannot write and a template can.
    pub fn control_tokens(&self) -> &Arc<ControlTokens> {
        &self.controls
    }

    /// Whether an id is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.table.is_control(id)
    }

    /// The ids that end an answer: `eos_token_id` (a number or a list) of a generation_config.json or config.json.
    pub fn end_tokens(&self, config: &serde_json::Value) -> Result<Vec<u32>, TextError> {
        let problem = || TextError::value("eos_token_id", "must be a token id or a list of them");
        let id = |value: &serde_json::Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(problem)?;
            if id as usize >= self.vocabulary_size() {
                return Err(TextError::value(
                    "eos_token_id",
                    format!("{id} is beyond the vocabulary of {}", self.vocabulary_size()),
                ));
            }
            Ok(id)
        };
        match config.get("eos_token_id") {
            None | Some(serde_json::Value::Null) => Ok(Vec::new()),
            Some(serde_json::Value::Array(ids)) => ids.iter().map(id).collect(),
            Some(value) => Ok(vec![id(value)?]),
        }
    }
}

//! Control tokens: the entries of the vocabulary that only a template or the model may produce.
//!
//! A control token is an added token of tokenizer.json whose text is more than white space, whether
//! the file calls it special or not: Qwen marks `<tool_call>` and `<think>` as not special, and they steer
//! the model all the same. (Added tokens of white space alone, which some tokenizers have, are ordinary text.)
//!
//! The type owns both directions of the promise "text of users never becomes a control token":
//! `mark` breaks every occurrence in untrusted text with a marker character before a template sees
//! it, `find` locates what is unbroken afterwards, which is the template's own.

use aho_corasick::{AhoCorasick, MatchKind};
use std::ops::Range;

/// One control token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlToken {
    /// Its id.
    pub id: u32,
    /// Its text, for example `<|im_end|>`.
    pub text: String,
    /// Whether tokenizer.json calls it special.
    pub special: bool,
}

/// The set of control tokens of a tokenizer, searchable.
#[derive(Debug, Clone)]
pub struct ControlTokens {
    tokens: Vec<ControlToken>,
    /// Leftmost-longest, as tokenizers match added tokens.
    finder: AhoCorasick,
    /// All occurrences, overlapping ones too: each must be broken.
    overlapping: AhoCorasick,
}

impl ControlTokens {
    /// Builds the search automata. Texts must not be empty (the caller has checked).
    pub fn new(tokens: Vec<ControlToken>) -> Result<Self, super::TextError> {
        let build = |kind| {
            AhoCorasick::builder()
                .match_kind(kind)
                .build(tokens.iter().map(|token| token.text.as_bytes()))
                .map_err(|error| super::TextError::tokenizer("added_tokens", error.to_string()))
        };
        let finder = build(MatchKind::LeftmostLongest)?;
        let overlapping = build(MatchKind::Standard)?;
        Ok(Self { tokens, finder, overlapping })
    }

    /// All control tokens in the order of the file.
    pub fn tokens(&self) -> &[ControlToken] {
        &self.tokens
    }

    /// Occurrences in `text`, left to right, not overlapping: byte range and index into `tokens()`.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (Range<usize>, usize)> + 'a {
        self.finder.find_iter(text).map(|found| (found.range(), found.pattern().as_usize()))
    }

    /// Appends `text` to `out` with `marker` inside every occurrence of a control token (after its first
    /// character), and after a trailing beginning of one, so that nothing that follows can complete it.
    pub(crate) fn mark(&self, text: &str, marker: char, out: &mut String) {
        let mut cuts: Vec<usize> = self
            .overlapping
            .find_overlapping_iter(text)
            .map(|found| found.start() + first_char_len(&text[found.start()..]))
            .collect();
        if let Some(cut) = self.trailing_prefix(text) {
            cuts.push(cut);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut start = 0;
        for cut in cuts {
            out.push_str(&text[start..cut]);
            out.push(marker);
            start = cut;
        }
        out.push_str(&text[start..]);
    }

    /// Whether `text`, put between two strings of the template, could be the inside or the end of a control token.
    pub(crate) fn could_continue(&self, text: &str) -> bool {
        let text = text.trim_start();
        self.tokens.iter().any(|token| {
            let inner = token.text.char_indices().skip(1).map(|(at, _)| &token.text[at..]);
            !text.is_empty()
                && inner.into_iter().any(|rest| rest.starts_with(text) || text.starts_with(rest))
        })
    }

    /// Whether a string literal of a template source may end in the beginning of a control token, so that
    /// a template could build one around the text of a user (`'<' ~ name ~ '>'`). Errs towards true.
    pub(crate) fn built_piecewise_in(&self, source: &str) -> bool {
        let ends = ["'", "\"", "{{", "{%", "{#"];
        ends.iter().any(|end| {
            source.match_indices(end).any(|(at, _)| self.trailing_prefix(&source[..at]).is_some())
        })
    }

    /// The end of the first character of the longest proper beginning of a control token at the end of `text`.
    /// Trailing white space does not count, because templates trim.
    fn trailing_prefix(&self, text: &str) -> Option<usize> {
        let text = text.trim_end();
        let mut best: Option<usize> = None;
        for token in &self.tokens {
            let proper = token.text.char_indices().skip(1).map(|(at, _)| at);
            for len in proper {
                if text.ends_with(&token.text[..len]) {
                    let start = text.len() - len;
                    best = Some(best.map_or(start, |other| other.min(start)));
                }
            }
        }
        best.map(|start| start + first_char_len(&text[start..]))
    }
}

fn first_char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

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
    /// The texts in order, to find beginnings.
    sorted: Vec<String>,
    /// What follows the first character or a later one of a text, in order: the token and the byte.
    rests: Vec<(u32, u32)>,
    /// Bytes of the longest.
    longest: usize,
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
        let mut sorted: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
        sorted.sort_unstable();
        let mut rests = Vec::new();
        for (index, token) in (0..).zip(&tokens) {
            // The file's limits keep texts short.
            let places = token.text.char_indices().skip(1).map(|(at, _)| (index, at as u32));
            rests.extend(places);
        }
        let rest = |&(token, at): &(u32, u32)| &tokens[token as usize].text[at as usize..];
        rests.sort_unstable_by(|a, b| rest(a).cmp(rest(b)));
        let longest = sorted.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { tokens, finder, overlapping, sorted, rests, longest })
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
        // Many may end at one place and begin at another: each place is noted once.
        let mut cuts = Vec::new();
        let mut noted = Vec::new();
        for found in self.overlapping.find_overlapping_iter(text) {
            if noted.is_empty() {
                noted.resize(text.len(), false);
            }
            if !std::mem::replace(&mut noted[found.start()], true) {
                cuts.push(found.start() + first_char_len(&text[found.start()..]));
            }
        }
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
        if text.is_empty() {
            return false;
        }
        let rest = |&(token, at): &(u32, u32)| &self.tokens[token as usize].text[at as usize..];
        let at = self.rests.partition_point(|place| rest(place) < text);
        let longer = self.rests.get(at).is_some_and(|place| rest(place).starts_with(text));
        let shorter = |end: usize| {
            text.is_char_boundary(end)
                && self.rests.binary_search_by(|place| rest(place).cmp(&text[..end])).is_ok()
        };
        longer || (1..=text.len().min(self.longest)).any(shorter)
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
        let begins_a_token = |&start: &usize| {
            text.is_char_boundary(start) && {
                let end = &text[start..];
                let at = self.sorted.partition_point(|token| token.as_str() <= end);
                // What begins with `end` and is longer follows it at once.
                self.sorted.get(at).is_some_and(|token| token.starts_with(end))
            }
        };
        let start = (text.len().saturating_sub(self.longest)..text.len()).find(begins_a_token)?;
        Some(start + first_char_len(&text[start..]))
    }
}

fn first_char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn controls(texts: &[String]) -> ControlTokens {
        let token =
            |(id, text): (u32, &String)| ControlToken { id, text: text.clone(), special: true };
        ControlTokens::new((0..).zip(texts).map(token).collect()).unwrap()
    }

    proptest! {
        #[test]
        fn beginnings_and_rests_are_found_as_by_trying_all(
            texts in proptest::collection::vec("[ab<天]{1,5}", 0..6), text in "[ab<天 ]{0,8}",
        ) {
            let controls = controls(&texts);
            let proper = |token: &str| token.char_indices().skip(1).map(|(at, _)| at).collect::<Vec<_>>();
            let end = text.trim_end();
            let all = texts.iter().flat_map(|token| proper(token).into_iter().map(|at| &token[..at]));
            let longest = all.filter(|start| end.ends_with(start)).map(str::len).max();
            let start = longest.map(|length| end.len() - length);
            let cut = start.map(|start| start + first_char_len(&end[start..]));
            prop_assert_eq!(controls.trailing_prefix(&text), cut);
            let begin = text.trim_start();
            let continues = !begin.is_empty() && texts.iter().any(|token| {
                let mut rests = proper(token).into_iter().map(|at| &token[at..]);
                rests.any(|rest| rest.starts_with(begin) || begin.starts_with(rest))
            });
            prop_assert_eq!(controls.could_continue(&text), continues);
        }
    }

    /// 250 tokens that all end at every place of a text: the places are noted once.
    #[test]
    fn tokens_inside_tokens_take_no_more_memory() {
        let texts: Vec<String> = (1..=250).map(|length| "a".repeat(length)).collect();
        let controls = controls(&texts);
        let mut marked = String::new();
        controls.mark(&"a".repeat(100_000), '\u{fdd0}', &mut marked);
        assert_eq!(marked, "a\u{fdd0}".repeat(100_000));
    }
}

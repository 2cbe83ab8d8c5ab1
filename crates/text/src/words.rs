//! Byte-pair encoding of one word, in memory that does not grow with the word.
//!
//! A word is what the pre-tokenizer does not divide. Most have a few bytes; a run of one letter has as many as its
//! author likes, and the library takes some 150 bytes of memory for each. So a long word is encoded window by
//! window, and what comes out is what encoding the whole gives.
//!
//! Why that is so: merging takes the pair of the lowest rank, of equals the leftmost. A place that no merge crosses
//! divides a word into parts that are encoded as if each were alone. Conversely, if a part ends with token `a`, the
//! next one begins with token `b`, and `ab` alone is encoded as these two, then no merge crosses the place between the
//! parts: until the first that did, `a` and `b` would have been made in the same order as in `ab` alone, where it would
//! have been done as well. A window shows the text up to its end and not what follows. But no token is longer than
//! the longest of the vocabulary, so one of the last `longest` places of the window is a place between tokens of the
//! whole word. A place further left that divides the text up to each of these divides the whole.

use super::TextError;
use super::ids::Ids;
use super::merges::{Merges, Vocabulary};

/// Bytes of a word that are encoded at once.
const WINDOW_BYTES: usize = 16 << 10;
/// Tokens of the longest length in a window, at least.
const WINDOW_TOKENS: usize = 16;
/// Looking for a cut takes some ten times the square of the longest token; the window begins at this part of that.
const WINDOW_SQUARE_PART: usize = 4;
/// The largest window; no place to cut was ever needed further away than a few tokens.
const WINDOW_BYTES_MAX: usize = 1 << 20;
/// Distances from a window's end at which a cut is tried, in tokens of the longest length.
const CUTS_TRIED: [usize; 4] = [2, 3, 5, 9];

/// A vocabulary and its merges.
pub(super) struct Words {
    vocabulary: Vocabulary,
    merges: Merges,
    /// Whole words that are tokens are taken as such, whatever merges say.
    whole_words: bool,
    /// Bytes of each token, by id.
    lengths: Vec<u32>,
    longest: usize,
    window: usize,
    /// Ids from here on are no tokens but beginnings of characters.
    tokens: usize,
    /// The tokens of the bytes of each beginning.
    beginnings: Vec<Vec<u32>>,
}

impl Words {
    /// `tokens` is one more than the largest id of the vocabulary that is a token; ids above are beginnings of
    /// characters.
    pub(super) fn new(vocabulary: Vocabulary, merges: Merges, tokens: usize) -> Self {
        let mut lengths = vec![0; tokens];
        for (bytes, &id) in &vocabulary {
            let id = id as usize;
            if id >= lengths.len() {
                lengths.resize(id + 1, 0);
            }
            lengths[id] = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        }
        let longest = lengths.iter().copied().max().unwrap_or(1).max(1) as usize;
        let least = WINDOW_BYTES.max(WINDOW_TOKENS * longest);
        let window = least.max(longest * longest / WINDOW_SQUARE_PART);
        Self {
            vocabulary,
            merges,
            whole_words: false,
            lengths,
            longest,
            window,
            tokens,
            beginnings: Vec::new(),
        }
    }

    /// The same with whole words that are tokens taken as such (`ignore_merges` of the file).
    pub(super) fn with_whole_words(self, whole_words: bool) -> Self {
        Self { whole_words, ..self }
    }

    /// The same with the tokens of the bytes of each beginning of a character.
    pub(super) fn with_beginnings(self, beginnings: Vec<Vec<u32>>) -> Self {
        Self { beginnings, ..self }
    }

    /// Appends what merging gave.
    fn push(&self, merged: &[u32], ids: &mut Ids<'_>) -> Result<(), TextError> {
        if self.beginnings.is_empty() {
            return ids.push(merged);
        }
        merged.iter().try_for_each(|&id| {
            let beginning = (id as usize).checked_sub(self.tokens);
            match beginning.and_then(|index| self.beginnings.get(index)) {
                None => ids.push(&[id]),
                Some(bytes) => ids.push(bytes),
            }
        })
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The id of a token of these bytes.
    pub(super) fn id(&self, bytes: &[u8]) -> Option<u32> {
        self.vocabulary.get(bytes).copied()
    }

    /// Encodes a word.
    pub(super) fn encode(&self, word: &[u8], ids: &mut Ids<'_>) -> Result<(), TextError> {
        if self.whole_words
            && word.len() <= self.longest
            && let Some(id) = self.id(word)
        {
            return self.push(&[id], ids);
        }
        let mut rest = word;
        let mut window = self.window;
        while rest.len() > window {
            let tokens = self.merges.encode(&rest[..window]);
            match self.cut(&rest[..window], &tokens) {
                Some((count, bytes)) => {
                    self.push(&tokens[..count], ids)?;
                    rest = &rest[bytes..];
                    window = self.window;
                }
                None if window < WINDOW_BYTES_MAX.max(self.window) => window *= 2,
                None => {
                    let problem =
                        format!("{window} bytes without white space depend on each other");
                    return Err(TextError::Encode { bytes: word.len(), problem });
                }
            }
        }
        self.push(&self.merges.encode(rest), ids)
    }

    /// A place in a window at which the whole word divides whatever follows: tokens and bytes before it.
    fn cut(&self, window: &[u8], tokens: &[u32]) -> Option<(usize, usize)> {
        for distance in CUTS_TRIED {
            let Some(limit) = window.len().checked_sub(distance * self.longest) else { break };
            let mut at = 0;
            let mut count = 0;
            for &token in tokens {
                let end = at + self.lengths[token as usize] as usize;
                if end > limit {
                    break;
                }
                (at, count) = (end, count + 1);
            }
            if count > 0 && self.divides(window, at, tokens[count - 1]) {
                return Some((count, at));
            }
        }
        None
    }

    /// Whether `at`, behind token `last`, divides the text up to each place where a token may end.
    fn divides(&self, window: &[u8], at: usize, last: u32) -> bool {
        let mut known: Vec<u32> = Vec::new();
        for end in window.len() - self.longest + 1..=window.len() {
            let Some(&next) = self.merges.encode(&window[at..end]).first() else { return false };
            if known.contains(&next) {
                continue;
            }
            let (left, right) = (self.lengths[last as usize], self.lengths[next as usize]);
            let both = &window[at - left as usize..at + right as usize];
            if self.merges.encode(both) != [last, next] {
                return false;
            }
            known.push(next);
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Merges in the order given, over the bytes of `alphabet`; every pair of tokens may be one.
    fn words(alphabet: &[u8], merges: &[(usize, usize)]) -> Words {
        let mut tokens: Vec<Vec<u8>> = alphabet.iter().map(|&byte| vec![byte]).collect();
        let mut rules = Vec::new();
        for &(left, right) in merges {
            let (left, right) = (left % tokens.len(), right % tokens.len());
            let joined = [tokens[left].as_slice(), &tokens[right]].concat();
            if joined.len() <= 9 {
                let known = tokens.iter().position(|token| *token == joined);
                rules.push([left, right, known.unwrap_or(tokens.len())].map(|id| id as u32));
                if known.is_none() {
                    tokens.push(joined);
                }
            }
        }
        let vocabulary: Vocabulary =
            (0..).zip(&tokens).map(|(id, token)| (token.clone().into(), id)).collect();
        let mut bytes = [0; 256];
        (0..).zip(alphabet).for_each(|(id, &byte)| bytes[usize::from(byte)] = id);
        Words::new(vocabulary, Merges::new(bytes, &rules), tokens.len())
    }

    fn in_windows(words: &Words, text: &[u8]) -> Option<Vec<u32>> {
        let mut ids = Ids::unbounded();
        words.encode(text, &mut ids).ok()?;
        Some(ids.finish().unwrap())
    }

    proptest! {
        #[test]
        fn windows_of_a_word_are_the_word(
            merges in proptest::collection::vec((0usize..40, 0usize..40), 0..60),
            unit in proptest::collection::vec(0usize..4, 1..40),
            repeated in 1usize..60,
            tail in proptest::collection::vec(0usize..4, 0..300),
        ) {
            let mut words = words(b"abcd", &merges);
            words.window = 16 * words.longest;
            let mut text: Vec<u8> = unit.repeat(repeated).iter().map(|&at| b"abcd"[at]).collect();
            text.extend(tail.iter().map(|&at| b"abcd"[at]));
            let whole = words.merges.encode(&text);
            let found = in_windows(&words, &text);
            prop_assert_eq!(found, Some(whole));
        }
    }

    #[test]
    fn a_run_of_one_letter_is_cut() {
        let merges = [(0, 0), (2, 2), (3, 3), (2, 0), (3, 2)];
        let words = words(b"ab", &merges);
        let run = vec![b'a'; 3 * WINDOW_BYTES + 5];
        assert_eq!(in_windows(&words, &run), Some(words.merges.encode(&run)));
    }
}

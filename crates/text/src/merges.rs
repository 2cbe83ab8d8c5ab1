//! Byte-pair encoding (Sennrich et al. 2016): the pairs of tokens that become one, in the order of their ranks.
//!
//! The `tokenizers` crate has the same, and every id is compared with its ids in tests. This one is here for what
//! happens at load: the crate keeps each token as two strings and each merge as two more until it has looked all of
//! them up. A vocabulary of 248 thousand tokens took twice as long to open with it (docs/benchmarks.md, "Loading and
//! packing").

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ahash::RandomState;

/// Ids of tokens by their bytes. The hash is seeded, since a file is written by a stranger.
pub(super) type Vocabulary = HashMap<Box<[u8]>, u32, RandomState>;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// What a pair of tokens becomes.
#[derive(Clone, Copy, Debug)]
struct Merged {
    rank: u32,
    token: u32,
}

/// The merges of a vocabulary.
#[derive(Debug)]
pub(super) struct Merges {
    /// The token of each byte.
    bytes: [u32; 256],
    pairs: HashMap<(u32, u32), Merged, RandomState>,
}

/// A token of a word that is being merged.
struct Symbol {
    token: u32,
    previous: u32,
    /// [`NONE`] at the end; the symbol's own place once it is part of another.
    next: u32,
}

/// A pair that may be merged, lowest rank and then leftmost first. It holds as long as the tokens are those.
type Candidate = Reverse<(u32, u32, [u32; 3])>;

impl Merges {
    /// `merges` are left token, right token and what they become, in the order of their ranks. Where a pair is there
    /// twice the last one holds, as in the crate.
    pub(super) fn new(bytes: [u32; 256], merges: &[[u32; 3]]) -> Self {
        let ranked = (0..).zip(merges);
        let pairs = ranked.map(|(rank, &[a, b, token])| ((a, b), Merged { rank, token })).collect();
        Self { bytes, pairs }
    }

    fn candidate(&self, symbols: &[Symbol], at: u32) -> Option<Candidate> {
        let symbol = &symbols[at as usize];
        let next = symbols.get(symbol.next as usize)?;
        let Merged { rank, token } = *self.pairs.get(&(symbol.token, next.token))?;
        Some(Reverse((rank, at, [symbol.token, next.token, token])))
    }

    /// The tokens of a word of at most 2^31 bytes.
    pub(super) fn encode(&self, word: &[u8]) -> Vec<u32> {
        let count =
            u32::try_from(word.len()).expect("a window of a word has at most some megabytes");
        let symbol = |(at, &byte): (u32, &u8)| Symbol {
            token: self.bytes[usize::from(byte)],
            previous: at.checked_sub(1).unwrap_or(NONE),
            next: if at + 1 < count { at + 1 } else { NONE },
        };
        let mut symbols: Vec<Symbol> = (0..).zip(word).map(symbol).collect();
        let mut queue: BinaryHeap<Candidate> =
            (0..count).filter_map(|at| self.candidate(&symbols, at)).collect();
        while let Some(Reverse((_, at, [left, right, joined]))) = queue.pop() {
            let Symbol { token, previous, next } = symbols[at as usize];
            let is_there = next != at && token == left;
            let Some(other) = symbols.get(next as usize).filter(|it| is_there && it.token == right)
            else {
                continue;
            };
            let behind = other.next;
            symbols[next as usize].next = next;
            symbols[at as usize] = Symbol { token: joined, previous, next: behind };
            if let Some(behind) = symbols.get_mut(behind as usize) {
                behind.previous = at;
            }
            queue.extend(self.candidate(&symbols, at));
            if previous != NONE {
                queue.extend(self.candidate(&symbols, previous));
            }
        }
        let is_left = |(at, symbol): &(u32, &Symbol)| symbol.next != *at;
        (0..).zip(&symbols).filter(is_left).map(|(_, symbol)| symbol.token).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use crate::decode::byte_to_char;
    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::bpe::BPE;

    fn spelled(bytes: &[u8]) -> String {
        bytes.iter().map(|&byte| byte_to_char(byte)).collect()
    }

    proptest! {
        /// Pairs that are there twice, several pairs of one token, and pairs whose parts come later are among them.
        #[test]
        fn tokens_are_those_of_the_library(
            merges in proptest::collection::vec((0usize..40, 0usize..40), 0..80),
            word in proptest::collection::vec(0usize..4, 0..120),
        ) {
            let mut tokens: Vec<Vec<u8>> = (b'a'..=b'd').map(|byte| vec![byte]).collect();
            let (mut strings, mut ids) = (Vec::new(), Vec::new());
            for (left, right) in merges {
                let (left, right) = (left % tokens.len(), right % tokens.len());
                let joined = [tokens[left].as_slice(), &tokens[right]].concat();
                if joined.len() > 9 {
                    continue;
                }
                let known = tokens.iter().position(|token| *token == joined);
                let id = known.unwrap_or_else(|| {
                    tokens.push(joined);
                    tokens.len() - 1
                });
                strings.push((spelled(&tokens[left]), spelled(&tokens[right])));
                ids.push([left, right, id].map(|id| id as u32));
            }
            let vocabulary: tokenizers::models::bpe::Vocab =
                (0..).zip(&tokens).map(|(id, token)| (spelled(token), id)).collect();
            let library = BPE::builder().vocab_and_merges(vocabulary, strings).build().unwrap();
            let word: Vec<u8> = word.into_iter().map(|at| b"abcd"[at]).collect();
            let expected = library.tokenize(&spelled(&word)).unwrap();
            let expected: Vec<u32> = expected.into_iter().map(|token| token.id).collect();
            let mut bytes = [NONE; 256];
            (0..).zip(b'a'..=b'd').for_each(|(id, byte)| bytes[usize::from(byte)] = id);
            prop_assert_eq!(Merges::new(bytes, &ids).encode(&word), expected);
        }
    }
}

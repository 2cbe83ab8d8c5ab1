//! Drafts from what was already written: the longest suffix of a text that occurs in it before, and what followed it.
//!
//! Suffixes of [`SHORTEST`] tokens are found by a table of their last occurrences, each with a link to the one before;
//! of the latest [`CANDIDATES`] the one that agrees longest wins, of equal ones the latest. A text only grows.

use std::collections::HashMap;

/// Tokens of the shortest suffix that is looked for.
pub const SHORTEST: usize = 4;
/// Occurrences that are compared.
const CANDIDATES: usize = 32;
/// Tokens up to which they are compared.
const LONGEST: usize = 64;

/// Occurrences of suffixes of one text.
#[derive(Debug, Default)]
pub struct SuffixIndex {
    /// End of the last occurrence of each passage of [`SHORTEST`] tokens.
    last: HashMap<[u32; SHORTEST], u32>,
    /// By end of an occurrence: the end of the one before; 0 for none.
    before: Vec<u32>,
}

impl SuffixIndex {
    /// What followed the longest suffix of `text` where it occurred before, up to `most` tokens; empty where it did
    /// not. Each call's text begins with that of the call before.
    pub fn propose(&mut self, text: &[u32], most: usize) -> Vec<u32> {
        let Some(end) = self.find(text) else { return Vec::new() };
        let mut drafts = Vec::with_capacity(most);
        for at in end..end + most {
            // What repeats itself goes on in its own drafts.
            let token = text.get(at).or_else(|| drafts.get(at - text.len()));
            drafts.extend(token.copied());
        }
        drafts
    }

    /// Where the best earlier occurrence ends.
    fn find(&mut self, text: &[u32]) -> Option<usize> {
        self.extend(text);
        let suffix = text.last_chunk::<SHORTEST>()?;
        let (mut best, mut agreed) = (None, 0);
        let mut end = self.last.get(suffix).copied().unwrap_or(0) as usize;
        for _ in 0..CANDIDATES {
            if end == 0 {
                break;
            }
            let pairs = text[..end].iter().rev().zip(text.iter().rev());
            let length = pairs.take(LONGEST).take_while(|(a, b)| a == b).count();
            if length > agreed {
                (best, agreed) = (Some(end), length);
            }
            end = self.before[end] as usize;
        }
        best
    }

    /// Takes up passages that end before the end of `text`: its suffix must not find itself.
    fn extend(&mut self, text: &[u32]) {
        for end in self.before.len()..text.len() {
            let passage = text[..end].last_chunk::<SHORTEST>();
            let before = passage.and_then(|it| self.last.insert(*it, end as u32));
            self.before.push(before.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_suffix_decides_and_of_equal_ones_the_latest() {
        let mut index = SuffixIndex::default();
        assert!(index.propose(&[], 7).is_empty());
        assert!(index.propose(&[1, 2, 3, 4, 5, 6], 7).is_empty(), "nothing twice");
        // Followed by 50 after `9 1 2 3 4`, by 60 and then 70 after `1 2 3 4` alone.
        let text = [9, 1, 2, 3, 4, 50, 1, 2, 3, 4, 60, 1, 2, 3, 4, 70, 9, 1, 2, 3, 4];
        assert_eq!(SuffixIndex::default().propose(&text, 2), [50, 1]);
        assert_eq!(SuffixIndex::default().propose(&text[..15], 3), [60, 1, 2]);
        assert!(SuffixIndex::default().propose(&text[..20], 0).is_empty());
        let short = [1, 2, 3, 7, 1, 2, 3];
        assert!(SuffixIndex::default().propose(&short, 7).is_empty(), "three tokens");
    }

    #[test]
    fn what_repeats_itself_goes_on() {
        let text = [0, 5, 6, 7, 5, 6, 7, 5, 6, 7];
        assert_eq!(SuffixIndex::default().propose(&text, 7), [5, 6, 7, 5, 6, 7, 5]);
    }

    #[test]
    fn a_text_that_grows_finds_what_one_at_once_finds() {
        let text: Vec<u32> = (0..400).map(|at: u32| at * at % 7 + at / 90 % 2).collect();
        let mut growing = SuffixIndex::default();
        for end in 0..=text.len() {
            let at_once = SuffixIndex::default().propose(&text[..end], 7);
            assert_eq!(growing.propose(&text[..end], 7), at_once, "{end}");
        }
    }
}

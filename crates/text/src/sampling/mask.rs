//! A set of tokens: which of a vocabulary may be drawn next.
//!
//! One bit a token, so that the mask of a constraint (`constraint`) for 150,000 tokens is 19 KB and applying it is
//! one pass over the logits.

/// Tokens that may be drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Bit `id % 32` of word `id / 32`. Ids beyond the words are not allowed.
    words: Vec<u32>,
}

impl Mask {
    /// A mask for `vocabulary` tokens that allows none.
    pub fn none(vocabulary: usize) -> Self {
        Self { words: vec![0; vocabulary.div_ceil(32)] }
    }

    /// Allows a token. Ids beyond the vocabulary are ignored: they have no logit.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    /// Whether a token may be drawn.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Tokens that may be drawn.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Replaces the set by that of `words`, in the layout of this type; what they lack is not allowed.
    pub(crate) fn set(&mut self, words: &[u32]) {
        let shared = words.len().min(self.words.len());
        self.words[..shared].copy_from_slice(&words[..shared]);
        self.words[shared..].fill(0);
    }

    /// Sets the logits of all other tokens to minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (index, chunk) in logits.chunks_mut(32).enumerate() {
            let word = self.words.get(index).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_has_no_logit() {
        let mut mask = Mask::none(70);
        for token in [0, 31, 32, 69, 4000] {
            mask.allow(token);
        }
        let mut logits = vec![1.0; 75];
        mask.apply(&mut logits);
        for (token, &logit) in logits.iter().enumerate() {
            let allowed = [0, 31, 32, 69].contains(&token);
            assert_eq!(logit == 1.0, allowed, "token {token}");
            assert_eq!(mask.allows(token as u32), allowed, "token {token}");
        }
        assert_eq!(mask.count(), 4);
        mask.set(&[5]);
        assert!(mask.allows(0) && mask.allows(2) && mask.count() == 2);
    }
}

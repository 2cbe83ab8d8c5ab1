//! Scores of keys that an indexer chooses by, and the choice: for rows of compressed attention and for units of keys.

use kernels::format::{Encoding, FloatType, Matrix};
use kernels::{Activations, Compute, KvType, MatmulJob, Tokens};

use crate::sequences::key_type;

/// Pages whose keys are scored at a time.
pub(super) const PAGES_TOGETHER: usize = 64;

/// The type in which keys of an indexer are read.
pub(super) fn float_of_keys(rows: KvType) -> FloatType {
    match key_type(rows) {
        Some(KvType::F16) => FloatType::F16,
        Some(KvType::Bf16) => FloatType::Bf16,
        _ => FloatType::F32,
    }
}

/// One token's queries, and the keys that they meet.
pub(super) struct Scoring<'a> {
    pub(super) compute: &'a Compute,
    /// Of the keys.
    pub(super) encoding: Encoding,
    /// Of all heads, prepared.
    pub(super) queries: &'a Activations,
    /// What each head weighs.
    pub(super) factors: &'a [f32],
    /// Values of a head.
    pub(super) dim: usize,
    /// Keys of a page.
    pub(super) per_page: usize,
}

impl Scoring<'_> {
    /// Scores of the keys of at most [`PAGES_TOGETHER`] pages: the sum over heads of a weight times the positive part of
    /// query times key. `keys` gives the first keys of a page; `head_scores` has room for those of all heads.
    pub(super) fn score<'k>(
        &self,
        keys: &dyn Fn(usize, usize) -> &'k [u8],
        head_scores: &mut [f32],
        scores: &mut [f32],
    ) {
        let heads = self.factors.len();
        let mut rest = &mut head_scores[..scores.len() * heads];
        let mut jobs = Vec::with_capacity(PAGES_TOGETHER);
        for (at, scores) in scores.chunks(self.per_page).enumerate() {
            let keys = keys(at, scores.len());
            let matrix = Matrix::new(self.encoding, scores.len(), self.dim, keys, &[], &[]);
            let matrix = matrix.expect("keys are whole rows");
            let (out, others) = rest.split_at_mut(scores.len() * heads);
            rest = others;
            jobs.push(MatmulJob { matrix, x: self.queries, tokens: Tokens::All, out });
        }
        self.compute.matmul(&mut jobs);
        drop(jobs);
        let mut rest = &head_scores[..];
        for scores in scores.chunks_mut(self.per_page) {
            let (of_heads, others) = rest.split_at(scores.len() * heads);
            rest = others;
            scores.fill(0.0);
            for (products, factor) in of_heads.chunks_exact(scores.len()).zip(self.factors) {
                for (score, product) in scores.iter_mut().zip(products) {
                    *score += factor * product.max(0.0);
                }
            }
        }
    }
}

/// Appends the numbers of the `top` best scores, ascending; of equal scores the first. There are more than `top`.
pub(super) fn choose_best(scores: &[f32], top: usize, chosen: &mut Vec<u32>) {
    chosen.extend(0..scores.len() as u32);
    chosen.select_nth_unstable_by(top - 1, |&a, &b| {
        scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b))
    });
    chosen.truncate(top);
    chosen.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is positive of four products is nothing for many keys: the cut then falls among zeros.
    #[test]
    fn of_equal_scores_the_first_are_chosen() {
        let mut chosen = Vec::new();
        choose_best(&[0.0, 3.0, 0.0, 1.0, 0.0, 3.0], 4, &mut chosen);
        assert_eq!(chosen, [0, 1, 3, 5]);
        chosen.clear();
        choose_best(&[0.0; 9], 5, &mut chosen);
        assert_eq!(chosen, [0, 1, 2, 3, 4]);
    }
}

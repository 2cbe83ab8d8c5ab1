//! The choice of experts: one function from a router's logits to ids and weights, for the layer itself, for what is
//! recorded of it and for guesses one layer early.

use kernels::Compute;

/// How a router's logits become a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// True when the chosen experts' weights are scaled to sum to one.
    pub normalise: bool,
}

impl Router {
    /// Chooses `k` experts for each token: ids, best first, and their weights, `[tokens, k]` each, of `logits
    /// [tokens, experts]`.
    pub fn choose(
        &self,
        compute: &Compute,
        logits: &[f32],
        (experts, k): (usize, usize),
        chosen: &mut [u16],
        weights: &mut [f32],
    ) {
        compute.softmax_top_k(logits, experts, k, self.normalise, chosen, weights);
    }
}

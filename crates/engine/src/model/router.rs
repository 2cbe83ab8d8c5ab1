//! The choice of experts: one function from a router's logits to ids and weights, for the layer itself, for what is
//! recorded of it and for guesses one layer early.

use kernels::Compute;

/// How a router's logits become a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// True when a bias is added to the logits.
    pub bias: bool,
    /// True when the chosen experts' weights are scaled to sum to one.
    pub normalise: bool,
}

impl Router {
    /// Chooses `k` experts for each token: ids, best first, and their weights, `[tokens, k]` each, of `logits
    /// [tokens, experts]` and the router's bias, which is added to them.
    pub fn choose(
        &self,
        compute: &Compute,
        (logits, bias): (&mut [f32], Option<&[f32]>),
        (experts, k): (usize, usize),
        chosen: &mut [u16],
        weights: &mut [f32],
    ) {
        if let Some(bias) = bias {
            for row in logits.chunks_exact_mut(experts) {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
            }
        }
        compute.softmax_top_k(logits, experts, k, self.normalise, chosen, weights);
    }
}

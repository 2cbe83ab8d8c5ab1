//! Likelihood of given tokens, and the distance between two distributions over the vocabulary.

/// Sums over predicted tokens, in f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// Tokens predicted.
    pub(super) tokens: usize,
    negative_log_likelihood: f64,
    /// Of the reference.
    reference_negative_log_likelihood: f64,
    divergence: f64,
    agreed: usize,
    /// Largest divergence of one token.
    pub(super) divergence_max: f64,
}

impl Sums {
    /// Adds the prediction of `token` by `logits`, and its distance from the reference's logits.
    pub(super) fn add(&mut self, logits: &[f32], token: usize, reference: Option<&[f32]>) {
        let normaliser = log_sum_exp(logits);
        self.tokens += 1;
        self.negative_log_likelihood += normaliser - f64::from(logits[token]);
        let Some(reference) = reference else { return };
        let reference_normaliser = log_sum_exp(reference);
        self.reference_negative_log_likelihood +=
            reference_normaliser - f64::from(reference[token]);
        // KL(reference || model) = sum p (log p - log q).
        let term = |(&p, &q): (&f32, &f32)| {
            let (p, q) = (f64::from(p) - reference_normaliser, f64::from(q) - normaliser);
            p.exp() * (p - q)
        };
        // Rounding can leave equal distributions a hair below zero.
        let divergence: f64 = reference.iter().zip(logits).map(term).sum::<f64>().max(0.0);
        self.divergence += divergence;
        self.divergence_max = self.divergence_max.max(divergence);
        let best = crate::commands::score::arg_max;
        self.agreed += usize::from(best(reference) == best(logits));
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }

    /// exp of the mean negative log-likelihood.
    pub(super) fn perplexity(&self) -> f64 {
        self.mean(self.negative_log_likelihood).exp()
    }

    /// The reference's perplexity.
    pub(super) fn reference_perplexity(&self) -> f64 {
        self.mean(self.reference_negative_log_likelihood).exp()
    }

    /// Mean Kullback-Leibler divergence of the model from the reference, in nats.
    pub(super) fn divergence(&self) -> f64 {
        self.mean(self.divergence)
    }

    /// Share of the tokens for which both find the same token most likely.
    pub(super) fn agreement(&self) -> f64 {
        self.mean(self.agreed as f64)
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&value| (f64::from(value) - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_distributions() {
        // Probabilities (1/2, 1/4, 1/4) and (1/4, 1/2, 1/4), shifted by any constant.
        let [half, quarter] = [0.5f32.ln(), 0.25f32.ln()];
        let reference = [half + 7.0, quarter + 7.0, quarter + 7.0];
        let model = [quarter - 3.0, half - 3.0, quarter - 3.0];
        let mut sums = Sums::default();
        sums.add(&model, 1, Some(&reference));
        assert!((sums.perplexity() - 2.0).abs() < 1e-5);
        assert!((sums.reference_perplexity() - 4.0).abs() < 1e-5);
        // 1/2 ln 2 - 1/4 ln 2
        assert!((sums.divergence() - 0.25 * 2f64.ln()).abs() < 1e-5, "{}", sums.divergence());
        assert_eq!(sums.agreement(), 0.0);
        sums.add(&model, 2, Some(&model));
        assert_eq!((sums.agreement(), sums.tokens), (0.5, 2));
        assert!((sums.divergence() - 0.125 * 2f64.ln()).abs() < 1e-5);
        assert!((sums.divergence_max - 0.25 * 2f64.ln()).abs() < 1e-5);
        // Differences of a hundred do not overflow.
        let mut far = Sums::default();
        far.add(&[0.0, 500.0], 0, Some(&[500.0, 0.0]));
        assert!((far.divergence() - 500.0).abs() < 1e-3);
    }
}

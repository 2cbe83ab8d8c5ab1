//! Decayed frequency with recency: a use counts 1 now and half after `half_life` steps.
//!
//! The value of an expert at step `t` is `sum over its uses u of 2^(-(t - u) / half_life)`. Between two
//! entries that are both left alone the order never changes, because all values shrink by the same
//! factor; so what is stored is the logarithm of the value scaled back to step 0,
//! `log2(sum 2^(u / half_life))`, which needs no updating while nothing happens and does not overflow.
//! A short half-life is LRU, an infinite one LFU.

use super::{History, Moment, Policy};

/// Steps after which a use counts half, by measurement on the routing traces (docs/experiments.tsv).
const HALF_LIFE_STEPS: f64 = 64.0;

/// Decayed frequency with recency.
#[derive(Clone, Copy, Debug)]
pub struct DecayedLfru {
    /// Steps after which a use counts half.
    pub half_life: f64,
}

impl Default for DecayedLfru {
    fn default() -> Self {
        Self { half_life: HALF_LIFE_STEPS }
    }
}

impl Policy for DecayedLfru {
    fn touch(&self, history: &mut History, now: Moment) {
        let present = now.step as f64 / self.half_life;
        // log2(2^present + 2^weight), without leaving the exponent's range.
        history.weight = if history.uses == 0 {
            present
        } else {
            let (high, low) = (present.max(history.weight), present.min(history.weight));
            high + (1.0 + (low - high).exp2()).log2()
        };
        history.last = now.sequence;
        history.uses = history.uses.saturating_add(1);
    }

    fn score(&self, history: &History) -> f64 {
        if history.uses == 0 { f64::NEG_INFINITY } else { history.weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_decayed_sum() {
        let policy = DecayedLfru { half_life: 7.0 };
        let mut history = History::default();
        let steps = [1u64, 2, 9, 30, 31, 100];
        for (index, &step) in steps.iter().enumerate() {
            policy.touch(&mut history, Moment { sequence: index as u64, step });
        }
        let value: f64 = steps.iter().map(|&u| (-(100.0 - u as f64) / 7.0).exp2()).sum();
        let stored = (policy.score(&history) - 100.0 / 7.0).exp2();
        assert!((stored - value).abs() < 1e-12 * value, "{stored} {value}");
    }
}

//! XTC, "exclude top choices": where several tokens are likely enough, all of them but the least likely are left out,
//! in a given share of the draws.
//!
//! The rule is that of its author (text-generation-webui, pull request 6335) with the names of llama.cpp, as that
//! applies it: to every token, the end of an answer too. It comes last, behind the truncations, as there.

use super::SamplingError;

/// How likely tokens are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct XtcOptions {
    /// The share of the draws in which it acts; 0 is off. In 0..=1.
    pub probability: f32,
    /// How likely a token must be to count. Above 0, at most 1; above 0.5 nothing is ever left out.
    pub threshold: f32,
}

impl Default for XtcOptions {
    /// Off; the threshold is that which its author recommends.
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

impl XtcOptions {
    /// Whether it changes anything.
    pub fn is_on(&self) -> bool {
        // Two tokens cannot both be more likely than half.
        self.probability != 0.0 && self.threshold <= 0.5
    }

    pub(super) fn validate(&self) -> Result<(), SamplingError> {
        let (probability, threshold) = (self.probability, self.threshold);
        if !(0.0..=1.0).contains(&probability) {
            return Err(SamplingError::parameter(
                "xtc_probability",
                probability,
                "between 0 and 1",
            ));
        }
        // Clients send the threshold along although it is off, as they have it.
        if probability != 0.0 && !(threshold > 0.0 && threshold <= 1.0) {
            return Err(SamplingError::parameter("xtc_threshold", threshold, "above 0, at most 1"));
        }
        Ok(())
    }

    /// Most tokens that can reach the threshold.
    pub(super) fn tokens_max(&self) -> usize {
        ((1.0 / self.threshold) as usize).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sampler, SamplingOptions, Xoshiro256};
    use super::*;

    /// Tokens that are left of a row, from the definition: by probability after the truncations.
    fn left(logits: &[f32], options: &SamplingOptions, acts: bool) -> Vec<usize> {
        let temperature = if options.temperature == 0.0 { 1.0 } else { options.temperature };
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |index: usize| f64::from((logits[index] - largest) / temperature).exp();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        if options.top_k > 0 {
            order.truncate(options.top_k);
        }
        let total: f64 = order.iter().map(|&index| weight(index)).sum();
        let mut held = 0.0;
        let nucleus = order.iter().take_while(|&&index| {
            let wanted = held < f64::from(options.top_p) * total;
            held += weight(index);
            wanted
        });
        let kept = nucleus.count();
        order.truncate(kept);
        order.retain(|&index| weight(index) >= f64::from(options.min_p));
        let total: f64 = order.iter().map(|&index| weight(index)).sum();
        let threshold = f64::from(options.xtc.threshold);
        let likely = order.iter().take_while(|&&index| weight(index) / total >= threshold).count();
        let excluded = if acts { likely.saturating_sub(1) } else { 0 };
        order.split_off(excluded)
    }

    #[test]
    fn draws_are_those_of_a_row_without_the_excluded_tokens() {
        let mut acted = 0;
        for case in 0..300 {
            let mut random = Xoshiro256::new(case);
            let vocabulary = [5, 40, 3000][random.below(3) as usize];
            let logits: Vec<f32> =
                (0..vocabulary).map(|_| random.below(1 << 20) as f32 / 100_000.0).collect();
            let options = SamplingOptions {
                temperature: [0.7, 1.0, 1.6][random.below(3) as usize],
                top_k: [0, 0, 12][random.below(3) as usize],
                top_p: [1.0, 0.9][random.below(2) as usize],
                min_p: [0.0, 0.02][random.below(2) as usize],
                xtc: XtcOptions { probability: 1.0, threshold: [0.1, 0.03][case as usize % 2] },
                seed: case,
                ..SamplingOptions::default()
            };
            let kept = left(&logits, &options, true);
            acted += usize::from(kept.len() < left(&logits, &options, false).len());
            let mut row = vec![f32::NEG_INFINITY; vocabulary];
            kept.iter().for_each(|&index| row[index] = logits[index]);
            // A reference that ranks as this one does, and knows nothing of what was left out.
            let plain = SamplingOptions {
                temperature: options.temperature,
                top_k: if options.top_k > 0 || options.top_p < 1.0 { vocabulary } else { 0 },
                seed: case,
                ..SamplingOptions::default()
            };
            let mut reference = Sampler::new(plain, vocabulary).unwrap();
            let mut sampler = Sampler::new(options.clone(), vocabulary).unwrap();
            for draw in 0..8 {
                // The number that decides whether XTC acts.
                reference.random.next_u64();
                let expected = reference.sample(&mut row.clone(), &[]).unwrap().token;
                let found = sampler.sample(&mut logits.clone(), &[]).unwrap().token;
                assert_eq!(found, expected, "case {case}, draw {draw}, {options:?}");
            }
        }
        assert!(acted > 100, "it acted in {acted} cases");
    }

    #[test]
    fn it_acts_in_its_share_of_the_draws_and_greedy_ones_take_the_best_that_is_left() {
        let logits = [3.0, 2.9, 2.5, -9.0];
        let xtc = XtcOptions { probability: 0.25, threshold: 0.2 };
        for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.99)] {
            let options = SamplingOptions { top_k, top_p, xtc, ..SamplingOptions::greedy() };
            let mut sampler = Sampler::new(options, 4).unwrap();
            assert!(
                !sampler.takes_most_likely()
                    && sampler.wants(false).is_none()
                    && sampler.wants(true).is_none()
            );
            let drawn: Vec<u32> = (0..4000)
                .map(|_| sampler.sample(&mut logits.clone(), &[]).unwrap().token)
                .collect();
            let third = drawn.iter().filter(|&&token| token == 2).count();
            assert!((850..1150).contains(&third), "{third} of 4000");
            assert_eq!(drawn.iter().filter(|&&token| token == 0).count(), 4000 - third);
        }
    }

    #[test]
    fn where_it_is_off_a_seed_gives_what_it_gave() {
        let logits: Vec<f32> = (0..500).map(|token| (token as f32).sin()).collect();
        let draws = |xtc: XtcOptions| {
            let options = SamplingOptions { xtc, seed: 3, ..SamplingOptions::default() };
            let mut sampler = Sampler::new(options, 500).unwrap();
            let draw = |_| sampler.sample(&mut logits.clone(), &[]).unwrap().token;
            (0..50).map(draw).collect::<Vec<_>>()
        };
        let plain = draws(XtcOptions::default());
        assert_eq!(draws(XtcOptions { probability: 0.0, threshold: 0.01 }), plain);
        assert_eq!(draws(XtcOptions { probability: 1.0, threshold: 0.6 }), plain);
        let refused = |xtc: XtcOptions| xtc.validate().is_err();
        assert!(refused(XtcOptions { probability: 1.5, threshold: 0.1 }));
        assert!(refused(XtcOptions { probability: 0.5, threshold: 0.0 }));
        assert!(!refused(XtcOptions { probability: 0.0, threshold: 0.0 }));
    }
}

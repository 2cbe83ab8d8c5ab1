//! Drawing from a row of logits that stays on a device.
//!
//! A draw looks at few tokens: with top-k at the k most likely, with top-p at the most likely ones and the sum of all
//! weights, else at the sums of blocks and then at one block. A device that ranks tokens and adds weights up (integers,
//! computed as here) lets the sampler draw the same token with the same numbers of its generator as from the row.
//! Under a mask the most likely tokens are those that it leaves of the most likely of all, where it leaves enough.

use super::sampler::{BLOCK, Weigh, min_p_weight, nucleus};
use super::select::Candidate;
use super::{Mask, Sampler};

/// Most likely tokens that a device gives.
pub const RANKED_TOKENS: usize = 64;
/// Tokens of each sum of weights that a device gives.
pub const SUM_TOKENS: usize = BLOCK;

/// What a sampler asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// The most likely tokens.
    Top,
    /// Also the sums of weights, `floor(2^40 e^((logit - largest) / temperature))`, those below `least` as 0.
    Weights {
        /// Above 0.
        temperature: f32,
        /// See above.
        least: u64,
    },
}

/// What a device gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    /// The [`RANKED_TOKENS`] most likely tokens and their logits, best first, equal ones by id; fewer where fewer are
    /// above minus infinity.
    pub top: Vec<(u32, f32)>,
    /// For every [`SUM_TOKENS`] tokens; empty unless asked for.
    pub sums: Vec<u64>,
}

impl Sampler {
    /// What this sampler needs of a row to draw without it, of all tokens or of those that a mask allows; `None` when
    /// it needs the row, or would take the most likely token anyway ([`Sampler::takes_most_likely`]).
    pub fn wants(&self, masked: bool) -> Option<Wanted> {
        let options = &self.options;
        if options.needs_row() {
            return None;
        }
        let temperature = options.temperature;
        if temperature == 0.0 {
            return masked.then_some(Wanted::Top);
        }
        match options.top_k {
            // The sums have the weights of tokens that are not allowed.
            0 if masked => None,
            0 if options.top_p < 1.0 => Some(Wanted::Weights { temperature, least: 0 }),
            0 => Some(Wanted::Weights { temperature, least: min_p_weight(options.min_p) }),
            1..=RANKED_TOKENS => Some(Wanted::Top),
            _ => None,
        }
    }

    /// Draws the token that [`Sampler::sample_allowed`] would draw, from what [`Sampler::wants`] asked for. `read`
    /// gives the row's logits from a token on. `None` when the row is needed after all: the nucleus is larger than
    /// what is ranked, too few of what is ranked are allowed, or nothing is above minus infinity.
    ///
    /// # Errors
    /// What `read` reports.
    pub fn sample_ranked<E>(
        &mut self,
        ranked: &Ranked,
        allowed: Option<&Mask>,
        read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Option<u32>, E> {
        if let Some(mask) = allowed {
            return Ok(self.sample_ranked_allowed(ranked, mask));
        }
        let Some(&(_, largest)) = ranked.top.first() else { return Ok(None) };
        let (k, temperature) = (self.options.top_k, self.options.temperature);
        let least = min_p_weight(self.options.min_p);
        if k == 0 && self.options.top_p == 1.0 {
            return self.draw_from_sums(ranked, Weigh { largest, temperature, least }, read);
        }
        let weigh = Weigh { largest, temperature, least: 0 };
        let kept = if k == 0 { ranked.top.len() } else { k.min(ranked.top.len()) };
        let tokens = ranked.top[..kept].iter();
        self.candidates.clear();
        self.candidates.extend(tokens.map(|&(id, logit)| Candidate { logit, id }));
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|candidate| weigh.of(candidate.logit)));
        let held: u64 = self.weights.iter().sum();
        if k > 0 {
            return Ok(Some(self.draw_ranked(held, least)));
        }
        let total: u64 = ranked.sums.iter().sum();
        let ends = held >= nucleus(total, self.options.top_p)
            || self.weights.last().is_some_and(|&weight| weight < least);
        Ok(ends.then(|| self.draw_ranked(total, least)))
    }

    /// Of the tokens that are allowed: the most likely one, or one of the k most likely.
    fn sample_ranked_allowed(&mut self, ranked: &Ranked, mask: &Mask) -> Option<u32> {
        let greedy = self.options.temperature == 0.0;
        let k = if greedy { 1 } else { self.options.top_k };
        let tokens = ranked.top.iter().filter(|&&(id, _)| mask.allows(id)).take(k);
        self.candidates.clear();
        self.candidates.extend(tokens.map(|&(id, logit)| Candidate { logit, id }));
        // Fewer than can be ranked are all that there are.
        let whole = self.candidates.len() == k || ranked.top.len() < RANKED_TOKENS;
        let first = self.candidates.first().filter(|_| whole)?;
        if greedy {
            return Some(first.id);
        }
        let weigh = Weigh { largest: first.logit, temperature: self.options.temperature, least: 0 };
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|candidate| weigh.of(candidate.logit)));
        let held: u64 = self.weights.iter().sum();
        Some(self.draw_ranked(held, min_p_weight(self.options.min_p)))
    }

    /// As from all tokens: a block by the sums, then a token of it.
    fn draw_from_sums<E>(
        &mut self,
        ranked: &Ranked,
        weigh: Weigh,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Option<u32>, E> {
        let mut point = self.random.below(ranked.sums.iter().sum());
        for (block, &sum) in ranked.sums.iter().enumerate() {
            if point >= sum {
                point -= sum;
                continue;
            }
            let start = block * BLOCK;
            let mut logits = [0.0; BLOCK];
            let logits = &mut logits[..BLOCK.min(self.vocabulary - start)];
            read(start, logits)?;
            for (token, &logit) in (start..).zip(logits.iter()) {
                let weight = weigh.of(logit);
                if point < weight {
                    return Ok(u32::try_from(token).ok());
                }
                point -= weight;
            }
        }
        // The device's sums were not those of its logits.
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::{SamplingOptions, Xoshiro256, XtcOptions};
    use super::*;

    /// What a device gives, from the definition.
    fn rank(logits: &[f32], wanted: Wanted) -> Ranked {
        let mut top: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        top.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
        top.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        let largest = top.first().map_or(0.0, |&(_, logit)| logit);
        top.truncate(RANKED_TOKENS);
        let sums = match wanted {
            Wanted::Top => Vec::new(),
            Wanted::Weights { temperature, least } => {
                let weigh = Weigh { largest, temperature, least };
                let sum = |block: &[f32]| block.iter().map(|&logit| weigh.of(logit)).sum();
                logits.chunks(SUM_TOKENS).map(sum).collect()
            }
        };
        Ranked { top, sums }
    }

    /// Logits of one of four spreads; about each twentieth is minus infinity.
    fn some_logits(random: &mut Xoshiro256, vocabulary: usize) -> Vec<f32> {
        let spread = [1, 8, 40, 4000][random.below(4) as usize];
        let logit = |_| match random.below(20) {
            0 => f32::NEG_INFINITY,
            _ => random.below(spread) as f32 / 7.0 - 3.0,
        };
        (0..vocabulary).map(logit).collect()
    }

    #[test]
    fn draws_what_the_row_would_give() {
        let mut drawn = [0; 3];
        for case in 0..400u64 {
            let mut random = Xoshiro256::new(case);
            let vocabulary = [50, 1000, 1024, 5000][random.below(4) as usize];
            let logits = some_logits(&mut random, vocabulary);
            let options = SamplingOptions {
                temperature: [0.3, 1.0, 1.7][random.below(3) as usize],
                top_k: [0, 0, 1, 20, 64][random.below(5) as usize],
                top_p: [1.0, 0.95, 0.3][random.below(3) as usize],
                min_p: [0.0, 0.0, 0.05][random.below(3) as usize],
                seed: case,
                ..SamplingOptions::default()
            };
            let mut reference = Sampler::new(options.clone(), vocabulary).unwrap();
            let mut sampler = Sampler::new(options.clone(), vocabulary).unwrap();
            let wanted = sampler.wants(false).expect("nothing here needs the row");
            let ranked = rank(&logits, wanted);
            for round in 0..6 {
                let expected = reference.sample(&mut logits.clone(), &[]).unwrap().token;
                let read = |start: usize, out: &mut [f32]| {
                    out.copy_from_slice(&logits[start..start + out.len()]);
                    Ok::<(), Infallible>(())
                };
                let found = match sampler.sample_ranked(&ranked, None, read).unwrap() {
                    Some(token) => token,
                    None => {
                        drawn[0] += 1;
                        sampler.sample(&mut logits.clone(), &[]).unwrap().token
                    }
                };
                drawn[1 + usize::from(options.top_k > 0)] += 1;
                assert_eq!(found, expected, "case {case} round {round} {options:?}");
            }
        }
        assert!(drawn.iter().all(|&count| count > 100), "each way was taken: {drawn:?}");
    }

    #[test]
    fn draws_what_the_row_would_give_of_what_a_mask_allows() {
        let mut drawn = [0; 3];
        for case in 0..600u64 {
            let mut random = Xoshiro256::new(case);
            let vocabulary = [50, 1000, 5000][random.below(3) as usize];
            let logits = some_logits(&mut random, vocabulary);
            let options = SamplingOptions {
                temperature: [0.0, 0.3, 1.7][random.below(3) as usize],
                top_k: [1, 5, 20, 64][random.below(4) as usize],
                top_p: [1.0, 0.95, 0.3][random.below(3) as usize],
                min_p: [0.0, 0.05][random.below(2) as usize],
                seed: case,
                ..SamplingOptions::default()
            };
            let mut mask = Mask::none(vocabulary);
            let share = [1, 10, 98][random.below(3) as usize];
            (0..vocabulary as u32)
                .filter(|_| random.below(100) < share)
                .for_each(|id| mask.allow(id));
            let mut reference = Sampler::new(options.clone(), vocabulary).unwrap();
            let mut sampler = Sampler::new(options.clone(), vocabulary).unwrap();
            let ranked = rank(&logits, sampler.wants(true).expect("the most likely are enough"));
            let unread = |_: usize, _: &mut [f32]| -> Result<(), Infallible> {
                unreachable!("what is allowed is not read")
            };
            for round in 0..6 {
                let expected = reference.sample_allowed(&mut logits.clone(), &[], Some(&mask));
                let found = sampler.sample_ranked(&ranked, Some(&mask), unread).unwrap();
                let whole = match found {
                    Some(token) => Ok(token),
                    None => {
                        drawn[0] += 1;
                        let drawn = sampler.sample_allowed(&mut logits.clone(), &[], Some(&mask));
                        drawn.map(|sampled| sampled.token)
                    }
                };
                drawn[1 + usize::from(found.is_some() && options.temperature > 0.0)] += 1;
                let expected = expected.map(|sampled| sampled.token);
                assert_eq!(whole, expected, "case {case} round {round} {options:?}");
            }
        }
        assert!(drawn.iter().all(|&count| count > 100), "each way was taken: {drawn:?}");
    }

    #[test]
    fn asks_for_the_row_where_more_than_a_draw_is_wanted() {
        let wants = |options| Sampler::new(options, 100).unwrap().wants(false);
        let plain = SamplingOptions::default();
        assert_eq!(wants(plain.clone()), Some(Wanted::Weights { temperature: 1.0, least: 0 }));
        assert_eq!(wants(SamplingOptions { top_k: 64, ..plain.clone() }), Some(Wanted::Top));
        for options in [
            SamplingOptions::greedy(),
            SamplingOptions { top_k: 65, ..plain.clone() },
            SamplingOptions { presence_penalty: 1.0, ..plain.clone() },
            SamplingOptions { logit_bias: vec![(3, 1.0)], ..plain.clone() },
            SamplingOptions {
                xtc: XtcOptions { probability: 0.5, ..XtcOptions::default() },
                ..plain.clone()
            },
            SamplingOptions { logprobs: Some(0), ..plain },
        ] {
            assert_eq!(wants(options.clone()), None, "{options:?}");
        }
        let masked = |options| Sampler::new(options, 100).unwrap().wants(true);
        assert_eq!(masked(SamplingOptions::greedy()), Some(Wanted::Top));
        assert_eq!(
            masked(SamplingOptions { top_k: 20, ..SamplingOptions::default() }),
            Some(Wanted::Top)
        );
        assert_eq!(masked(SamplingOptions::default()), None);
        assert_eq!(
            masked(SamplingOptions { logprobs: Some(0), ..SamplingOptions::greedy() }),
            None
        );
    }
}

//! The choice of experts: one function from a router's logits to ids and weights, for the layer itself, for what is
//! recorded of it and for guesses one layer early.

use kernels::Compute;
use store::format::config::keys;
use store::format::{Configuration, Family, FormatError};

/// How a router's logits become a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// What experts are chosen and weighed by.
    pub score: Score,
    /// True when there is a bias: of the logits where scores are [`Score::Softmax`], else of the choice alone.
    pub bias: bool,
    /// True when the chosen experts' weights are scaled to sum to one.
    pub normalise: bool,
}

/// What experts are chosen and weighed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// The softmax over all experts' logits.
    Softmax,
    /// The softmax over all experts' logits, where the bias moves the choice alone (reference: transformers
    /// `Ernie4_5_MoeTopKRouter`).
    BalancedSoftmax {
        /// The least sum that weights are divided by.
        least_sum: f32,
    },
    /// The sigmoid of each logit (reference: transformers `DeepseekV3TopkRouter`, `Glm4MoeTopkRouter`).
    Sigmoid {
        /// Which experts are eligible.
        groups: Groups,
        /// What weights are multiplied by in the end.
        scale: f32,
    },
    /// The square root of the softplus of each logit (reference: transformers `DeepseekV4TopKRouter`).
    SqrtSoftplus {
        /// What weights are multiplied by in the end.
        scale: f32,
    },
}

/// Experts in groups of one size, one after the other; of a token's groups only some are eligible: those whose best
/// two experts together score most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups, 1 to 64; they divide the experts.
    pub count: usize,
    /// Groups that stay.
    pub kept: usize,
}

impl Router {
    /// Chooses `k` experts for each token: ids, best first, and their weights, `[tokens, k]` each, of `logits
    /// [tokens, experts]`, which are overwritten, and the router's bias.
    ///
    /// # Panics
    /// If groups are none or too many, or hold fewer than `k` experts.
    pub fn choose(
        &self,
        compute: &Compute,
        (logits, bias): (&mut [f32], Option<&[f32]>),
        (experts, k): (usize, usize),
        chosen: &mut [u16],
        weights: &mut [f32],
    ) {
        match self.score {
            Score::Softmax => {
                if let Some(bias) = bias {
                    compute.add_to_rows(logits, bias);
                }
                compute.softmax_top_k(logits, experts, k, self.normalise, chosen, weights);
            }
            Score::BalancedSoftmax { least_sum } => {
                let places = chosen.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
                for (logits, (ids, weights)) in logits.chunks_exact_mut(experts).zip(places) {
                    // A number that is none is one in all probabilities, and so in all weights.
                    softmax(logits);
                    Groups { count: 1, kept: 1 }.choose(logits, bias, ids);
                    weigh(logits, ids, false, 1.0, weights);
                    let sum = weights.iter().sum::<f32>().max(least_sum);
                    weights.iter_mut().for_each(|weight| *weight /= sum);
                }
            }
            Score::SqrtSoftplus { scale } => {
                let places = chosen.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
                for (logits, (ids, weights)) in logits.chunks_exact_mut(experts).zip(places) {
                    let broken = logits.iter().any(|logit| logit.is_nan());
                    logits.iter_mut().for_each(|logit| *logit = sqrt_softplus(*logit));
                    Groups { count: 1, kept: 1 }.choose(logits, bias, ids);
                    weigh(logits, ids, self.normalise, scale, weights);
                    if broken {
                        // The fault stays visible.
                        weights.fill(f32::NAN);
                    }
                }
            }
            Score::Sigmoid { groups, scale } => {
                let places = chosen.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
                for (logits, (ids, weights)) in logits.chunks_exact_mut(experts).zip(places) {
                    let broken = logits.iter().any(|logit| logit.is_nan());
                    logits.iter_mut().for_each(|logit| *logit = 1.0 / (1.0 + (-*logit).exp()));
                    groups.choose(logits, bias, ids);
                    weigh(logits, ids, self.normalise, scale, weights);
                    if broken {
                        // The fault stays visible.
                        weights.fill(f32::NAN);
                    }
                }
            }
        }
    }
}

impl Router {
    /// Weighs experts that are given: of each token's `given [tokens, columns]` the `k` with the greatest scores, best
    /// first. Only for scores that are functions of each logit.
    ///
    /// # Panics
    /// If fewer than `k` are given, or one does not exist.
    pub fn weigh_given(
        &self,
        logits: &mut [f32],
        (experts, k): (usize, usize),
        given: &mut dyn Iterator<Item = &[u16]>,
        chosen: &mut [u16],
        weights: &mut [f32],
    ) {
        let (score, scale): (fn(f32) -> f32, f32) = match self.score {
            Score::SqrtSoftplus { scale } => (sqrt_softplus, scale),
            Score::Sigmoid { scale, .. } => (|logit| 1.0 / (1.0 + (-logit).exp()), scale),
            Score::Softmax | Score::BalancedSoftmax { .. } => {
                unreachable!("no family weighs given experts by a softmax")
            }
        };
        let places = chosen.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
        for (logits, (ids, weights)) in logits.chunks_exact_mut(experts).zip(places) {
            logits.iter_mut().for_each(|logit| *logit = score(*logit));
            let mut best = given.next().expect("experts of every token").to_vec();
            best.sort_by(|&a, &b| logits[usize::from(b)].total_cmp(&logits[usize::from(a)]));
            ids.copy_from_slice(&best[..k]);
            weigh(logits, ids, self.normalise, scale, weights);
        }
    }
}

fn softmax(logits: &mut [f32]) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - most).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
}

fn sqrt_softplus(logit: f32) -> f32 {
    // Beyond that the exponential adds nothing.
    let softplus = if logit > 20.0 { logit } else { logit.exp().ln_1p() };
    softplus.sqrt()
}

impl Groups {
    /// Refuses groups that do not hold `k` eligible of `experts`.
    pub(super) fn check(
        self,
        from: &Configuration,
        (experts, k): (usize, usize),
    ) -> Result<(), FormatError> {
        let Self { count, kept } = self;
        let of_groups = match from.supported_family()? {
            Family::KimiLinear => &keys::NUM_EXPERT_GROUP,
            _ => &keys::N_GROUP,
        };
        if !(1..=64).contains(&count) || !experts.is_multiple_of(count) {
            let found = format!("{count} groups of {experts} experts");
            return Err(from.invalid(of_groups, found));
        }
        if kept > count || k > kept * (experts / count) {
            let found = format!("{kept} of {count} groups, and {k} experts are chosen in them");
            return Err(from.invalid(&keys::TOPK_GROUP, found));
        }
        Ok(())
    }

    /// The ids of the best scores, those of the choice, within the groups that stay; of equal ones the lowest.
    fn choose(self, scores: &[f32], bias: Option<&[f32]>, ids: &mut [u16]) {
        let Self { count, kept } = self;
        let size = scores.len() / count;
        assert!(count <= 64 && size * count == scores.len(), "{count} groups of {}", scores.len());
        assert!(kept <= count && ids.len() <= kept * size, "{} of {kept} groups", ids.len());
        let score = |expert: usize| scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
        let mut eligible = if kept == count { u64::MAX } else { 0 };
        while eligible != u64::MAX && (eligible.count_ones() as usize) < kept {
            let open = (0..count).filter(|group| eligible & 1 << group == 0);
            let best = first_of_greatest(open, |group| {
                let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
                for expert in group * size..(group + 1) * size {
                    let score = score(expert);
                    (first, second) = (first.max(score), second.max(first.min(score)));
                }
                if size == 1 { first } else { first + second }
            });
            eligible |= 1 << best;
        }
        for index in 0..ids.len() {
            let open = (0..scores.len()).filter(|expert| {
                eligible & 1 << (expert / size) != 0 && !ids[..index].contains(&(*expert as u16))
            });
            ids[index] = first_of_greatest(open, score) as u16;
        }
    }
}

/// The first of the candidates with the greatest score; what is no number is less than any.
fn first_of_greatest(
    mut candidates: impl Iterator<Item = usize>,
    score: impl Fn(usize) -> f32,
) -> usize {
    let first = candidates.next().expect("more candidates than are chosen");
    let (mut best, mut most) = (first, score(first));
    for candidate in candidates {
        let score = score(candidate);
        if score > most || most.is_nan() && !score.is_nan() {
            (best, most) = (candidate, score);
        }
    }
    best
}

/// The weights of the chosen.
fn weigh(scores: &[f32], ids: &[u16], normalise: bool, scale: f32, weights: &mut [f32]) {
    for (weight, &id) in weights.iter_mut().zip(ids) {
        *weight = scores[usize::from(id)];
    }
    let sum: f32 = weights.iter().sum();
    let divisor = if normalise { sum + 1e-20 } else { 1.0 };
    weights.iter_mut().for_each(|weight| *weight = *weight / divisor * scale);
}

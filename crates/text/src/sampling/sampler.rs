//! The sampler of one sequence: options, generator state and scratch memory.
//!
//! See the module's page for the order of the steps. Probabilities are fixed point: a token whose logit is d below
//! the largest weighs floor(2^40 · exp(-d / temperature)), so the most likely token weighs 2^40, what is less likely
//! by 2^40 weighs nothing, and the sum over any vocabulary fits u64 exactly.

use super::dry::Dry;
use super::math::{exp_negative, ln_positive};
use super::select::{Candidate, argmax, top_k};
use super::{Mask, SamplingError, SamplingOptions, Xoshiro256};
use crate::TokenTexts;

/// Weight of the most likely token.
const ONE: f32 = (1u64 << 40) as f32;
/// Sizes tried for top-p alone before all tokens are ranked: most distributions end within the first.
const TOP_P_SIZES: [usize; 3] = [256, 4096, usize::MAX];
/// Steps of XTC's probability.
const CHANCES: u64 = 1 << 24;
/// Tokens per partial sum of a draw from the whole vocabulary.
pub(super) const BLOCK: usize = 1024;

/// A token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability in the model's own distribution.
    pub logprob: f32,
}

/// What was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability in the model's own distribution, if `SamplingOptions::logprobs` is set.
    pub logprob: Option<f32>,
}

/// Draws the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    pub(super) options: SamplingOptions,
    pub(super) vocabulary: usize,
    prompt_tokens: usize,
    pub(super) random: Xoshiro256,
    /// Occurrences by token, zero between calls; `[vocabulary]` if a penalty is on, else empty.
    counts: Vec<Occurrences>,
    touched: Vec<u32>,
    dry: Option<Dry>,
    /// Logits before they were changed, while log-probabilities are wanted.
    original: Vec<Candidate>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) weights: Vec<u64>,
    top: Vec<TokenLogprob>,
}

/// How often a token occurred: anywhere, and in the answer.
#[derive(Debug, Clone, Copy, Default)]
struct Occurrences {
    all: u32,
    answer: u32,
}

impl Sampler {
    /// A sampler for rows of `vocabulary` logits, that knows tokens by their numbers.
    ///
    /// # Errors
    /// Options out of range, and [`SamplingError::NoTexts`] for those that look at texts.
    pub fn new(options: SamplingOptions, vocabulary: usize) -> Result<Self, SamplingError> {
        Self::with_texts(options, vocabulary, None)
    }

    /// A sampler for rows of `vocabulary` logits, that knows the texts of tokens.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn with_texts(
        options: SamplingOptions,
        vocabulary: usize,
        texts: Option<TokenTexts>,
    ) -> Result<Self, SamplingError> {
        options.validate()?;
        let dry = match (options.dry.is_on(), texts) {
            (false, _) => None,
            (true, Some(texts)) => Some(Dry::new(options.dry.clone(), texts, vocabulary)),
            (true, None) => return Err(SamplingError::NoTexts),
        };
        for &(id, _) in &options.logit_bias {
            if id as usize >= vocabulary {
                return Err(SamplingError::BiasOutOfVocabulary { id, vocabulary });
            }
        }
        let counted = if options.penalises() { vocabulary } else { 0 };
        let weighed = if options.temperature > 0.0 { vocabulary.div_ceil(BLOCK) } else { 0 };
        Ok(Self {
            random: Xoshiro256::new(options.seed),
            counts: vec![Occurrences::default(); counted],
            touched: Vec::new(),
            dry,
            original: Vec::new(),
            candidates: Vec::with_capacity(2 * options.top_k.clamp(32, vocabulary.max(32))),
            weights: Vec::with_capacity(weighed.max(options.top_k.min(vocabulary))),
            top: Vec::new(),
            prompt_tokens: 0,
            vocabulary,
            options,
        })
    }

    /// Declares how many leading tokens of every `history` are the prompt. The repetition penalty counts them;
    /// presence and frequency penalties count the answer alone (OpenAI's meaning). 0 if never called.
    pub fn set_prompt_tokens(&mut self, prompt_tokens: usize) {
        self.prompt_tokens = prompt_tokens;
    }

    /// The options it was made with.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// True when [`Sampler::sample`] would take the most likely token of unchanged logits and nothing else is
    /// wanted of them, so that a device may choose.
    pub fn takes_most_likely(&self) -> bool {
        let options = &self.options;
        options.temperature == 0.0 && !options.needs_row()
    }

    /// The most likely tokens at the last call, best first; as many as `SamplingOptions::logprobs` asked for.
    pub fn top_logprobs(&self) -> &[TokenLogprob] {
        &self.top
    }

    /// The log-probability of a token that was given and not drawn, in the model's own distribution over `logits`
    /// `[vocabulary]`; [`Sampler::top_logprobs`] then has the alternatives.
    ///
    /// # Errors
    /// Logits without a finite maximum.
    pub fn judge(&mut self, logits: &[f32], token: u32) -> Result<f32, SamplingError> {
        self.top.clear();
        let log_sum = log_sum_exp(logits, argmax(logits)?.logit);
        self.report_top(logits, self.options.logprobs.unwrap_or(0), log_sum);
        Ok(logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_sum))
    }

    /// Draws the next token from `logits` `[vocabulary]`, which are changed in place by penalties and bias.
    ///
    /// `history` is all tokens so far, prompt and answer. Logits of minus infinity exclude a token.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
    ) -> Result<Sampled, SamplingError> {
        self.sample_allowed(logits, history, None)
    }

    /// [`Sampler::sample`] among the tokens that a mask allows. Log-probabilities stay those of the model, over
    /// all tokens: a forced token shows how unlikely it was.
    ///
    /// # Errors
    /// As [`Sampler::sample`], and [`SamplingError::NothingLeft`] if every allowed token is excluded.
    pub fn sample_allowed(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        allowed: Option<&Mask>,
    ) -> Result<Sampled, SamplingError> {
        if logits.len() != self.vocabulary {
            return Err(SamplingError::WrongLength {
                given: logits.len(),
                vocabulary: self.vocabulary,
            });
        }
        let biased = !self.options.logit_bias.is_empty();
        let changes = self.options.penalises() || self.dry.is_some() || biased;
        self.original.clear();
        self.top.clear();
        let mut best = None;
        let mut normaliser = None;
        if self.options.logprobs.is_some() || changes {
            let largest = argmax(logits)?;
            if let Some(count) = self.options.logprobs {
                let log_sum = log_sum_exp(logits, largest.logit);
                self.report_top(logits, count, log_sum);
                normaliser = Some(log_sum);
            }
            best = Some(largest);
        }
        if changes {
            self.penalise(logits, history);
            self.penalise_repetitions(logits, history);
            self.bias(logits);
            best = None;
        }
        if let Some(mask) = allowed {
            mask.apply(logits);
            best = best.filter(|best| mask.allows(best.id));
        }
        let best = match best {
            Some(best) => best,
            None => argmax(logits)?,
        };
        let token = match self.options.temperature {
            0.0 if !self.options.xtc.is_on() => best.id,
            _ => self.draw(logits, best.logit),
        };
        let logprob = normaliser.map(|log_sum| {
            let changed = self.original.iter().find(|candidate| candidate.id == token);
            changed.map_or(logits[token as usize], |candidate| candidate.logit) - log_sum
        });
        Ok(Sampled { token, logprob })
    }

    fn report_top(&mut self, logits: &[f32], count: usize, log_sum: f32) {
        top_k(logits, count, &mut self.candidates);
        let logprob = |c: &Candidate| TokenLogprob { token: c.id, logprob: c.logit - log_sum };
        self.top.extend(self.candidates.iter().map(logprob));
    }

    fn penalise(&mut self, logits: &mut [f32], history: &[u32]) {
        if !self.options.penalises() {
            return;
        }
        let window = self.options.penalty_window.unwrap_or(history.len());
        let start = history.len().saturating_sub(window);
        for (position, &id) in history.iter().enumerate().skip(start) {
            // An id without a logit cannot be drawn again; padding rows and images have such ids.
            let Some(count) = self.counts.get_mut(id as usize) else { continue };
            if count.all == 0 {
                self.touched.push(id);
            }
            count.all += 1;
            count.answer += u32::from(position >= self.prompt_tokens);
        }
        let SamplingOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.options;
        for id in self.touched.drain(..) {
            let count = std::mem::take(&mut self.counts[id as usize]);
            let logit = &mut logits[id as usize];
            self.original.push(Candidate { logit: *logit, id });
            *logit = if *logit > 0.0 {
                *logit / repetition_penalty
            } else {
                *logit * repetition_penalty
            };
            if count.answer > 0 {
                *logit -= count.answer as f32 * frequency_penalty + presence_penalty;
            }
        }
    }

    fn penalise_repetitions(&mut self, logits: &mut [f32], history: &[u32]) {
        for (id, penalty) in self.dry.iter_mut().flat_map(|dry| dry.penalties(history)) {
            let logit = &mut logits[id as usize];
            // The first entry of a token is the one that counts as original.
            self.original.push(Candidate { logit: *logit, id });
            *logit -= penalty;
        }
    }

    fn bias(&mut self, logits: &mut [f32]) {
        for &(id, bias) in &self.options.logit_bias {
            let logit = &mut logits[id as usize];
            self.original.push(Candidate { logit: *logit, id });
            *logit += bias;
        }
    }

    /// Temperature, truncations, XTC, draw. `largest` is finite.
    fn draw(&mut self, logits: &mut [f32], largest: f32) -> u32 {
        let SamplingOptions { temperature, top_k: k, top_p, min_p, .. } = self.options;
        // Greedy draws come here for XTC, which looks at the model's own distribution then.
        let temperature = if temperature == 0.0 { 1.0 } else { temperature };
        let weigh = Weigh { largest, temperature, least: min_p_weight(min_p) };
        if k > 0 {
            top_k(logits, k, &mut self.candidates);
            // min-p comes last: it must not take part in what top-p sees.
            let unfiltered = Weigh { least: 0, ..weigh };
            self.weights.clear();
            self.weights.extend(self.candidates.iter().map(|c| unfiltered.of(c.logit)));
            let total: u64 = self.weights.iter().sum();
            return self.draw_ranked(total, weigh.least);
        }
        if top_p < 1.0 {
            let unfiltered = Weigh { least: 0, ..weigh };
            let total: u64 = logits.iter().map(|&logit| unfiltered.of(logit)).sum();
            for size in TOP_P_SIZES {
                top_k(logits, size, &mut self.candidates);
                self.weights.clear();
                self.weights.extend(self.candidates.iter().map(|c| unfiltered.of(c.logit)));
                let held: u64 = self.weights.iter().sum();
                if held >= nucleus(total, top_p) {
                    break;
                }
            }
            return self.draw_ranked(total, weigh.least);
        }
        if self.excludes() {
            self.exclude_from_all(logits, weigh);
        }
        if self.options.temperature == 0.0 {
            // Others are left: XTC leaves out none but those above another one.
            return argmax(logits).map_or(0, |best| best.id);
        }
        self.draw_from_all(logits, weigh)
    }

    /// Whether XTC acts in this draw. Nothing is drawn for it where it is off, so that a seed gives what it gave.
    fn excludes(&mut self) -> bool {
        let xtc = self.options.xtc;
        xtc.is_on() && self.random.below(CHANCES) < (xtc.probability * CHANCES as f32) as u64
    }

    /// Leaves out what XTC does of tokens with these weights, best first; gives their number.
    fn excluded(&self, weights: &[u64], total: u64) -> usize {
        let least = nucleus(total, self.options.xtc.threshold).max(1);
        weights.iter().take_while(|&&weight| weight >= least).count().saturating_sub(1)
    }

    fn exclude_from_all(&mut self, logits: &mut [f32], weigh: Weigh) {
        let total: u64 = logits.iter().map(|&logit| weigh.of(logit)).sum();
        top_k(logits, self.options.xtc.tokens_max(), &mut self.candidates);
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|it| weigh.of(it.logit)));
        let excluded = self.excluded(&self.weights, total);
        for candidate in &self.candidates[..excluded] {
            logits[candidate.id as usize] = f32::NEG_INFINITY;
        }
    }

    /// Draws from `candidates`, best first with `weights`; `total` is what top-p is a fraction of.
    pub(super) fn draw_ranked(&mut self, total: u64, least: u64) -> u32 {
        let wanted = nucleus(total, self.options.top_p);
        let mut held = 0;
        let mut kept = 0;
        for &weight in &self.weights {
            if kept > 0 && (held >= wanted || weight < least) {
                break;
            }
            held += weight;
            kept += 1;
        }
        let excluded = match self.excludes() {
            true => self.excluded(&self.weights[..kept], held),
            false => 0,
        };
        if self.options.temperature == 0.0 {
            return self.candidates[excluded].id;
        }
        let held = held - self.weights[..excluded].iter().sum::<u64>();
        let mut point = self.random.below(held);
        let left = self.candidates[excluded..kept].iter().zip(&self.weights[excluded..kept]);
        for (candidate, &weight) in left {
            if point < weight {
                return candidate.id;
            }
            point -= weight;
        }
        unreachable!("the point is below the sum of the weights")
    }

    /// Draws without ranking: sums of blocks first, then within one block.
    fn draw_from_all(&mut self, logits: &[f32], weigh: Weigh) -> u32 {
        self.weights.clear();
        let sums =
            logits.chunks(BLOCK).map(|block| block.iter().map(|&x| weigh.of(x)).sum::<u64>());
        self.weights.extend(sums);
        let mut point = self.random.below(self.weights.iter().sum());
        for (block, &sum) in self.weights.iter().enumerate() {
            if point >= sum {
                point -= sum;
                continue;
            }
            for (index, &logit) in logits.iter().enumerate().skip(block * BLOCK) {
                let weight = weigh.of(logit);
                if point < weight {
                    return u32::try_from(index).expect("a vocabulary is smaller than 2^32");
                }
                point -= weight;
            }
        }
        unreachable!("the point is below the sum of the weights")
    }
}

/// From logits to fixed-point weights.
#[derive(Clone, Copy)]
pub(super) struct Weigh {
    pub(super) largest: f32,
    pub(super) temperature: f32,
    /// Smaller weights count as 0 (min-p).
    pub(super) least: u64,
}

impl Weigh {
    #[inline(always)]
    pub(super) fn of(self, logit: f32) -> u64 {
        let weight = (exp_negative((logit - self.largest) / self.temperature) * ONE) as u64;
        if weight >= self.least { weight } else { 0 }
    }
}

/// The smallest weight that min-p keeps, the largest being `ONE`.
pub(super) fn min_p_weight(min_p: f32) -> u64 {
    (min_p * ONE).ceil() as u64
}

/// The weight that a nucleus must reach: `top_p` of the total, rounded up.
pub(super) fn nucleus(total: u64, top_p: f32) -> u64 {
    const SCALE: f32 = (1u64 << 32) as f32;
    let fraction = (top_p * SCALE) as u128;
    let wanted = (u128::from(total) * fraction).div_ceil(1 << 32);
    u64::try_from(wanted).expect("a fraction of a u64")
}

/// ln of the sum of exponentials, by blocks: a plain f32 sum of a quarter million terms loses four digits.
fn log_sum_exp(logits: &[f32], largest: f32) -> f32 {
    let mut sum = 0.0f32;
    for block in logits.chunks(BLOCK) {
        let mut lanes = [0.0f32; 8];
        for (index, &logit) in block.iter().enumerate() {
            lanes[index % 8] += exp_negative(logit - largest);
        }
        sum += lanes.iter().sum::<f32>();
    }
    largest + ln_positive(sum)
}

//! How long a prefill chunk is where slots do not hold all experts.
//!
//! A chunk needs nearly every expert once, so a prompt moves what has no slot once per chunk; but a longer chunk's
//! activations take slots from decode. The chunk that moves the fewest records over both is chosen, for one
//! request of a fixed size: a function of sizes and options alone, so that the same command line gives the same
//! answer on every run. Measured (docs/benchmarks.md, CUDA): 4,096 tokens of the 35B shape from disk at 176 tok/s in
//! four chunks and at 796 in one.

use anyhow::Result;
use engine::backend::cpu::CpuOptions;
use engine::model::config::ModelConfig;
use store::cache::{SlotBudget, StorePlan};
use store::format::Checkpoint;

use super::requests::RequestPlan;
use super::{Seats, floor, stages};
use crate::arguments::ModelArguments;
use crate::failure::Failure;

/// Tokens of the request that the choice is made for: its prompt, as far as the context allows.
const PROMPT: usize = 4096;
/// And its answer.
const ANSWER: usize = 256;
/// Lengths to choose from.
const CHUNKS: [usize; 5] = [256, 512, 1024, 2048, LONGEST_CHUNK];
/// The longest chunk on a GPU, which computes a prompt faster than records come.
pub(super) const LONGEST_CHUNK: usize = 4096;
/// And on a processor, which computes 1,024 tokens in more time than a drive takes for all records between them: the
/// 35B shape in 6 GiB at 29 % of what the drive allows (docs/benchmarks.md).
pub(super) const LONGEST_ON_PROCESSORS: usize = 1024;
/// Steps whose experts have slots beside a longer chunk: reads go on while a layer is computed.
const STEPS_LEFT: usize = 4;

/// Hit rate of slots holding a share of the experts, as measured on real routing traces (Qwen3-30B,
/// decayed frequency with recency; docs/benchmarks.md): (share, hit rate).
const HIT_CURVE: [(f64, f64); 7] = [
    (0.0, 0.0),
    (0.0625, 0.40),
    (0.125, 0.61),
    (0.25, 0.82),
    (0.5, 0.96),
    (0.75, 0.99),
    (1.0, 1.0),
];

/// The curve at a share of slots, linear between its points.
pub(crate) fn hit_rate(share: f64) -> f64 {
    between(&HIT_CURVE, share)
}

/// A curve at `x`, linear between its points: two at least, in order.
pub(crate) fn between(curve: &[(f64, f64)], x: f64) -> f64 {
    let above = curve.iter().position(|&(at, _)| at >= x).unwrap_or(curve.len() - 1);
    if above == 0 {
        return curve[0].1;
    }
    let ((x0, y0), (x1, y1)) = (curve[above - 1], curve[above]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

/// A cap on memory, as far as the choice depends on it.
pub(super) struct Room<S> {
    /// Experts of the model.
    pub(super) experts: usize,
    /// Experts that a token uses, over all layers.
    pub(super) per_token: usize,
    /// Most tokens of a sequence.
    pub(super) context: usize,
    /// Most tokens of a chunk that are worth its memory.
    pub(super) longest: usize,
    /// Slots left beside a chunk of so many tokens; `None` when not even the chunk fits.
    pub(super) slots: S,
}

impl<S: Fn(usize) -> Option<usize>> Room<S> {
    /// The chunk that moves the fewest records, the longest of equal ones. `usual` where all experts have slots
    /// beside it, or where no other fits.
    pub(super) fn chunk(&self, usual: usize) -> usize {
        if (self.slots)(usual).is_some_and(|slots| slots >= self.experts) {
            return usual;
        }
        let lengths = CHUNKS.into_iter().map(|tokens| tokens.min(self.context).min(self.longest));
        let moved = lengths.filter_map(|tokens| Some((self.moved(tokens)?, tokens)));
        let least = moved.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        least.map_or(usual, |(_, tokens)| tokens)
    }

    /// Records that the request moves into slots.
    fn moved(&self, chunk: usize) -> Option<f64> {
        let slots = (self.slots)(chunk)?.min(self.experts);
        let sweeps = PROMPT.min(self.context).div_ceil(chunk);
        let missing = 1.0 - hit_rate(slots as f64 / self.experts as f64);
        Some((sweeps * (self.experts - slots)) as f64 + (ANSWER * self.per_token) as f64 * missing)
    }
}

/// The prefill chunk on processors where experts come from disk and the user asked for none: the usual one, or a longer
/// one that moves fewer records. `None` elsewhere.
pub(super) fn streaming_chunk(
    arguments: &ModelArguments,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    backend: &CpuOptions,
    constant: floor::Constant<'_>,
    budget: u64,
    seats: Seats,
) -> Result<Option<usize>> {
    let streams = arguments.storage.has_slots() && arguments.slots.is_none();
    if arguments.prefill_chunk.is_some() || !streams {
        return Ok(None);
    }
    let experts = StorePlan::resident(checkpoint).map_err(Failure::store)?.experts();
    let step = floor::step_slots(config, backend, backend.sequences);
    let checkpoints = stages::checkpoints(constant.stages);
    let slots = |batch_tokens: usize| {
        let options = CpuOptions { batch_tokens, ..backend.clone() };
        let fixed: u64 = floor::parts(config, &options, constant).iter().map(|it| it.bytes).sum();
        let requests = RequestPlan::of(seats, budget, &options).map_or(0, |plan| plan.bytes);
        let left = SlotBudget::Bytes(budget.checked_sub(fixed + requests)?);
        let plans = StorePlan::budget_over(&checkpoints, left, step).ok()?;
        let slots: usize = plans.iter().map(|(plan, _)| plan.slots()).sum();
        (slots >= STEPS_LEFT * step).then_some(slots)
    };
    let (context, per_token) = (backend.context, backend.top_k * config.mixtures());
    let room = Room { experts, per_token, context, longest: LONGEST_ON_PROCESSORS, slots };
    Ok(Some(room.chunk(backend.batch_tokens).max(backend.batch_tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hit_curve_goes_through_its_points_and_rises() {
        assert_eq!((hit_rate(0.0), hit_rate(0.125), hit_rate(1.0)), (0.0, 0.61, 1.0));
        let rates: Vec<f64> =
            (0..=100).map(|percent| hit_rate(f64::from(percent) / 100.0)).collect();
        assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    /// The 35B shape: 10,240 experts of 1.7 MiB, 0.27 MiB of activations a token.
    fn room(mebibytes: usize, context: usize) -> Room<impl Fn(usize) -> Option<usize>> {
        let slots = move |tokens: usize| {
            mebibytes.checked_sub(tokens * 27 / 100).map(|left| left * 10 / 17)
        };
        Room { experts: 10_240, per_token: 320, context, longest: 4096, slots }
    }

    #[test]
    fn a_prompt_is_one_sweep_where_that_leaves_decode_its_slots() {
        assert_eq!(room(4500, 16_384).chunk(1024), 4096);
        assert_eq!(room(12_000, 16_384).chunk(2048), 4096);
    }

    /// DeepSeek-V4-Flash of four layers in 3.6 GiB: 12.75 MiB a record, 0.9 MiB of activations a token.
    #[test]
    fn chunks_of_processors_are_long_enough_and_no_longer() {
        let slots = |tokens: usize| 1030_usize.checked_sub(tokens * 9 / 10).map(|left| left / 13);
        let longest = LONGEST_ON_PROCESSORS;
        let room = Room { experts: 1024, per_token: 24, context: 32_768, longest, slots };
        assert_eq!(room.chunk(128), 1024);
        let less = |tokens: usize| slots(tokens).filter(|&slots| slots >= 24);
        let room = Room { experts: 1024, per_token: 24, context: 32_768, longest, slots: less };
        assert_eq!(room.chunk(128), 512);
    }

    #[test]
    fn small_memory_keeps_slots_and_large_memory_its_usual_chunk() {
        assert!(room(700, 16_384).chunk(448) < 4096);
        assert_eq!(room(100, 16_384).chunk(448), 256);
        assert_eq!(room(10, 16_384).chunk(448), 448);
        assert_eq!(room(40_000, 16_384).chunk(1472), 1472);
    }

    #[test]
    fn no_chunk_is_longer_than_the_context() {
        assert_eq!(room(4500, 300).chunk(128), 300);
    }
}

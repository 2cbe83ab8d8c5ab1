//! Steps of several sequences: whether the kernels of `kernels/several.cu` serve them, and how many tokens at a time.
//!
//! They read each weight once for all tokens of a pass and give every token the bits of a step alone. What they do not
//! serve is launched as for one token, with a row of blocks for each.

use super::form::{StepForm, staged_bytes};
use super::{StepExpertArguments, StepInput, StepShared};
use crate::abi::{SEVERAL_TOKENS, STAGED_CHUNK, STEP_THREADS, UNIT};
use crate::launch::Kernel;
use crate::launch::experts::EndedArguments;
use crate::{Device, ExpertShapes, Matrix};

/// Shared memory of the kernels beside the staged vectors, at most, bytes.
const OWN_SHARED: usize = 40 << 10;
/// Products of a unit with different tokens that registers hold.
const SETS: usize = 4;

/// How the tokens of a step are shared out over passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passes {
    /// Tokens of a pass; the last may have fewer.
    pub(super) tokens: usize,
    /// How many there are.
    pub(super) count: usize,
}

impl Passes {
    /// As few passes as vectors of `columns` fit into `shared` bytes for, at most `limit` tokens each; `None` when each
    /// token would have its own.
    fn new(tokens: usize, limit: usize, columns: usize, shared: usize) -> Option<Self> {
        let fit = shared.saturating_sub(OWN_SHARED) / staged_bytes(StepForm::Affine, columns);
        let limit = limit.min(fit).min(SEVERAL_TOKENS);
        if tokens < 2 || limit < 2 {
            return None;
        }
        let count = tokens.div_ceil(limit);
        let tokens = tokens.div_ceil(count);
        (tokens > 1).then_some(Self { tokens, count })
    }

    /// Bytes of the staged vectors of a pass, and of the zeros behind them.
    pub(super) fn shared(&self, columns: usize) -> usize {
        self.tokens * staged_bytes(StepForm::Affine, columns)
    }
}

/// Widths that the kernels are compiled for.
fn is_usual(matrix: &Matrix) -> bool {
    matches!(matrix.bits, 4 | 8)
}

/// Tokens whose parts fit into one product with groups of this matrix.
fn tokens_of_product(matrix: &Matrix) -> usize {
    matrix.group as usize / 32
}

/// Products of a step: what their division into blocks depends on.
pub(super) struct Work<'a> {
    /// Tokens of the step.
    pub(super) tokens: usize,
    /// Of the vectors.
    pub(super) columns: usize,
    /// Row tiles of a block, one after another, for one token.
    pub(super) rounds: usize,
    /// Blocks of a pass by rounds.
    pub(super) blocks: &'a dyn Fn(usize) -> usize,
}

impl Work<'_> {
    /// Passes and rounds for products of `least` tokens each, such that all blocks of all passes run at the same time.
    /// A block stages the vectors of its pass before it multiplies, which takes about half as long as a round: passes
    /// of fewer tokens beside each other, with more rounds, pay although they read weights once each.
    fn share_out(
        &self,
        least: usize,
        shared: usize,
        multiprocessors: usize,
    ) -> Option<(Passes, usize)> {
        let divide = |count: usize| {
            let limit = self.tokens.div_ceil(count).clamp(2, SETS * least);
            let passes = Passes::new(self.tokens, limit, self.columns, shared)?;
            let fits = |&rounds: &usize| (self.blocks)(rounds) * passes.count <= multiprocessors;
            let rounds = (self.rounds..=MOST_ROUNDS * self.rounds).find(fits);
            let sets = passes.tokens.div_ceil(least).next_power_of_two();
            // What does not fit at the same time is cut as for one token.
            let rounds = rounds.unwrap_or(self.rounds);
            let waves = ((self.blocks)(rounds) * passes.count).div_ceil(multiprocessors);
            let cost = waves * (STAGING * passes.tokens + rounds * (ROUND + SET * sets));
            Some((cost, rounds, passes))
        };
        let best = (1..=self.tokens.div_ceil(2)).filter_map(divide);
        let best = best.min_by_key(|&(cost, rounds, _)| (cost, rounds));
        best.map(|(_, rounds, passes)| (passes, rounds))
    }
}

/// Times as many rounds as for one token, at most.
const MOST_ROUNDS: usize = 8;
/// What takes how long in a block, by measurements with an H200 of six products of two shapes (docs/experiments.tsv):
/// to stage a vector, a round, and a product of it with the vectors that share one.
const STAGING: usize = 20;
const ROUND: usize = 38;
const SET: usize = 3;

/// The kernel that multiplies `matrices` with several vectors, its passes, and the rounds of a block.
pub(super) fn linear(
    device: &Device,
    work: &Work,
    input: &StepInput,
    matrices: &[Matrix],
) -> Option<(Kernel, Passes, usize)> {
    if !matrices.iter().all(is_usual) {
        return None;
    }
    let least = matrices.iter().map(tokens_of_product).min()?;
    let (passes, rounds) =
        work.share_out(least, device.shared_limit(), device.info().multiprocessors)?;
    let normed = matches!(input, StepInput::Norm { .. });
    let kernel = match (passes.tokens.div_ceil(least), normed) {
        (0 | 1, false) => Kernel::SeveralLinear1,
        (2, false) => Kernel::SeveralLinear2,
        (_, false) => Kernel::SeveralLinear4,
        (0 | 1, true) => Kernel::SeveralNormed1,
        (2, true) => Kernel::SeveralNormed2,
        (_, true) => Kernel::SeveralNormed4,
    };
    Some((kernel, passes, rounds))
}

/// The kernel of the experts' first half, and its passes. `narrow`: columns are cut into eight shares instead of four.
pub(super) fn inner(
    device: &Device,
    tokens: usize,
    input: &StepInput,
    shapes: &ExpertShapes,
    narrow: bool,
) -> Option<(Kernel, Passes)> {
    let (gate, columns) = (&shapes.gate, shapes.gate.columns());
    if !is_usual(gate) || !matches!(input, StepInput::Norm { .. }) {
        return None;
    }
    let shares = if narrow { 8 } else { 4 };
    let wide = columns.is_multiple_of(2 * UNIT) && columns >= shares * 2 * UNIT;
    let kernel = match (gate.bits == 4 && gate.group == 64 && wide, narrow) {
        (true, true) => Kernel::SeveralInnerFourNarrow,
        (true, false) => Kernel::SeveralInnerFour,
        (false, true) => Kernel::SeveralInnerNarrow,
        (false, false) => Kernel::SeveralInner,
    };
    Some((kernel, Passes::new(tokens, SEVERAL_TOKENS, columns, device.shared_limit())?))
}

/// Bytes of shared memory of the experts' second half, which has a launch for every [`SEVERAL_TOKENS`]; `None` when it is
/// not served.
pub(super) fn outer(
    tokens: usize,
    shapes: &ExpertShapes,
    shared: Option<&StepShared>,
) -> Option<usize> {
    let same = shared.is_none_or(|shared| shared.down.bits == shapes.down.bits);
    let served = tokens >= 2 && is_usual(&shapes.down) && same;
    let units = if shapes.down.bits <= 4 { 2 } else { 1 };
    served.then_some((STEP_THREADS / 32 * units * 4 * STAGED_CHUNK + 16) * 4)
}

/// The experts' second half for as many tokens at a time as its kernel holds sums of.
pub(super) struct SecondHalves {
    all: StepExpertArguments,
    done: usize,
}

impl SecondHalves {
    pub(super) fn new(all: StepExpertArguments) -> Self {
        Self { all, done: 0 }
    }
}

impl Iterator for SecondHalves {
    type Item = StepExpertArguments;

    fn next(&mut self) -> Option<StepExpertArguments> {
        let (all, first) = (&self.all, self.done);
        let left = all.tokens as usize - first;
        if left == 0 {
            return None;
        }
        let tokens = left.min(SEVERAL_TOKENS);
        self.done += tokens;
        let floats = |address: u64, row: u32| match address {
            0 => 0,
            _ => address + (first * row as usize * size_of::<f32>()) as u64,
        };
        let mut pass = *all;
        pass.tokens = tokens as u32;
        pass.chosen = floats(all.chosen, all.k);
        pass.weights = floats(all.weights, all.k);
        pass.addresses = all.addresses + (first * all.k as usize * size_of::<u64>()) as u64;
        pass.inner = floats(all.inner, all.k * all.experts.down.columns);
        pass.shared_inner = floats(all.shared_inner, all.down.columns);
        pass.shared_gate = floats(all.shared_gate, 1);
        pass.out = floats(all.out, all.source.columns);
        if tokens < left {
            // The last pass says that the layer has ended.
            pass.ended = EndedArguments::new(None);
        }
        Some(pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_beside_each_other_run_at_the_same_time() {
        for tiles in [1, 16, 41, 64, 98, 193, 386, 3880] {
            let rounds = usize::div_ceil(tiles, 132);
            for tokens in 2..=8 {
                let work = Work {
                    tokens,
                    columns: 2048,
                    rounds,
                    blocks: &|rounds| tiles.div_ceil(rounds),
                };
                let (passes, rounds) = work.share_out(2, 227 << 10, 132).expect("they fit");
                assert!((2..=tokens).contains(&passes.tokens) && rounds >= work.rounds);
                assert!(passes.count * (work.blocks)(rounds) <= 132, "{tiles} {tokens}");
            }
        }
    }

    #[test]
    fn measured_divisions_are_chosen() {
        let best = |tiles: usize, columns, rounds| {
            let work =
                Work { tokens: 8, columns, rounds, blocks: &|rounds| tiles.div_ceil(rounds) };
            let (passes, rounds) = work.share_out(2, 227 << 10, 132).expect("they fit");
            (rounds, passes.tokens)
        };
        // Input projections of the 35B shape, its output projections, those of the 397B shape, the head.
        assert_eq!(best(193, 2048, 2), (3, 4));
        assert_eq!(best(64, 4096, 1), (2, 2));
        assert_eq!(best(128, 8192, 1), (2, 4));
        assert_eq!(best(15_520 / 4, 2048, 30), (30, 8));
    }

    #[test]
    fn passes_hold_all_tokens_and_fit() {
        for shared in [99 << 10, 163 << 10, 227 << 10] {
            for columns in [128, 2048, 4096, 8192, 12_288] {
                for limit in [1, 2, 4, 8, 16] {
                    for tokens in 1..=8 {
                        let Some(passes) = Passes::new(tokens, limit, columns, shared) else {
                            let single =
                                2 * staged_bytes(StepForm::Affine, columns) > shared - OWN_SHARED;
                            assert!(tokens < 3 || limit < 2 || single);
                            continue;
                        };
                        assert!(passes.tokens * passes.count >= tokens);
                        assert!(passes.tokens * (passes.count - 1) < tokens, "no pass is empty");
                        assert!((2..=limit).contains(&passes.tokens));
                        assert!(passes.shared(columns) + OWN_SHARED <= shared);
                    }
                }
            }
        }
    }
}

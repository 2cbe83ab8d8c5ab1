//! Steps of several tokens: whether the kernels of `kernels/several.cu` and `kernels/several_blocks.cu` serve them, and
//! how many tokens at a time.
//!
//! They read each weight once for all tokens of a pass and give every token the bits of a step alone. What they do not
//! serve is launched as for one token, with a row of blocks for each.

use super::form::{BlockSet, StepForm, staged_bytes};
use super::{StepInput, StepShared};
use crate::abi::{BlockKind, SEVERAL_TOKENS, STAGED_CHUNK, STEP_THREADS, UNIT};
use crate::launch::Kernel;
use crate::{Device, ExpertShapes, Matrix};

/// Shared memory of the kernels beside the staged vectors, at most, bytes.
const OWN_SHARED: usize = 40 << 10;
/// Products of a unit with different tokens that registers hold; of a unit of blocks each has one token.
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
    fn new(
        tokens: usize,
        limit: usize,
        (form, columns): (StepForm, usize),
        shared: usize,
    ) -> Option<Self> {
        let fit = shared.saturating_sub(OWN_SHARED) / staged_bytes(form, columns);
        let limit = limit.min(fit).min(SEVERAL_TOKENS);
        if tokens < 2 || limit < 2 {
            return None;
        }
        let count = tokens.div_ceil(limit);
        let tokens = tokens.div_ceil(count);
        (tokens > 1).then_some(Self { tokens, count })
    }
}

/// A launch for several tokens.
#[derive(Clone, Copy)]
pub(super) struct Several {
    pub(super) kernel: Kernel,
    pub(super) passes: Passes,
    /// Bytes of shared memory: the staged vectors of a pass, and zeros behind them.
    pub(super) shared: usize,
}

impl Several {
    fn new(kernel: Kernel, passes: Passes, (form, columns): (StepForm, usize)) -> Self {
        Self { kernel, passes, shared: passes.tokens * staged_bytes(form, columns) }
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
    /// Of the matrices.
    pub(super) form: StepForm,
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
        let time = if self.form == StepForm::Affine { AFFINE_TIME } else { BLOCKS_TIME };
        let divide = |count: usize| {
            let limit = self.tokens.div_ceil(count).clamp(2, SETS * least);
            let passes = Passes::new(self.tokens, limit, (self.form, self.columns), shared)?;
            let fits = |&rounds: &usize| (self.blocks)(rounds) * passes.count <= multiprocessors;
            let rounds = (self.rounds..=MOST_ROUNDS * self.rounds).find(fits);
            let sets = passes.tokens.div_ceil(least).next_power_of_two();
            // What does not fit at the same time is cut as for one token.
            let rounds = rounds.unwrap_or(self.rounds);
            let waves = ((self.blocks)(rounds) * passes.count).div_ceil(multiprocessors);
            let cost = waves * time.of_block(passes.tokens, rounds, sets);
            Some((cost, rounds, passes))
        };
        let best = (1..=self.tokens.div_ceil(2)).filter_map(divide);
        let best = best.min_by_key(|&(cost, rounds, _)| (cost, rounds));
        best.map(|(_, rounds, passes)| (passes, rounds))
    }
}

/// Times as many rounds as for one token, at most.
const MOST_ROUNDS: usize = 8;
/// What takes how long in a block.
struct BlockTime {
    /// Whatever it does.
    fixed: usize,
    /// To stage a vector.
    staging: usize,
    /// A round, and a product of it with the vectors that share one.
    round: usize,
    set: usize,
}

impl BlockTime {
    fn of_block(&self, tokens: usize, rounds: usize, sets: usize) -> usize {
        self.fixed + self.staging * tokens + rounds * (self.round + self.set * sets)
    }
}

/// By measurements with an H200 of six products of two shapes, and of four of one shape in Q4_K and Q6_K
/// (docs/experiments.tsv).
const AFFINE_TIME: BlockTime = BlockTime { fixed: 0, staging: 20, round: 38, set: 3 };
const BLOCKS_TIME: BlockTime = BlockTime { fixed: 40, staging: 4, round: 10, set: 11 };

/// The launch that multiplies `matrices` with several vectors, and the rounds of a block.
pub(super) fn linear(
    device: &Device,
    work: &Work,
    input: &StepInput,
    matrices: &[Matrix],
) -> Option<(Several, usize)> {
    let least = match work.form {
        StepForm::Affine if matrices.iter().all(is_usual) => {
            matrices.iter().map(tokens_of_product).min()?
        }
        StepForm::Blocks if BlockSet::of(matrices) == BlockSet::Usual => 1,
        _ => return None,
    };
    let (passes, rounds) =
        work.share_out(least, device.shared_limit(), device.info().multiprocessors)?;
    let normed = matches!(input, StepInput::Norm { .. });
    let kernel = match (passes.tokens.div_ceil(least), normed) {
        (tokens, _) if work.form == StepForm::Blocks => blocks(matrices, tokens <= 2),
        (0 | 1, false) => Kernel::SeveralLinear1,
        (2, false) => Kernel::SeveralLinear2,
        (_, false) => Kernel::SeveralLinear4,
        (0 | 1, true) => Kernel::SeveralNormed1,
        (2, true) => Kernel::SeveralNormed2,
        (_, true) => Kernel::SeveralNormed4,
    };
    Some((Several::new(kernel, passes, (work.form, work.columns)), rounds))
}

/// The kernel for matrices of blocks and of floats: of one format its own.
fn blocks(matrices: &[Matrix], two: bool) -> Kernel {
    let kinds = matrices.iter().map(Matrix::block_kind);
    let kind = kinds.reduce(|all, kind| all.filter(|_| all == kind)).flatten();
    let is = |it: BlockKind| kind == Some(it as u32);
    match two {
        true if is(BlockKind::Q4K) => Kernel::SeveralLinearQ4K2,
        true if is(BlockKind::Q5K) => Kernel::SeveralLinearQ5K2,
        true if is(BlockKind::Q6K) => Kernel::SeveralLinearQ6K2,
        true if is(BlockKind::Q8_0) => Kernel::SeveralLinearQ802,
        false if is(BlockKind::Q4K) => Kernel::SeveralLinearQ4K4,
        false if is(BlockKind::Q5K) => Kernel::SeveralLinearQ5K4,
        false if is(BlockKind::Q6K) => Kernel::SeveralLinearQ6K4,
        false if is(BlockKind::Q8_0) => Kernel::SeveralLinearQ804,
        _ => Kernel::SeveralLinearUsual4,
    }
}

/// The launch of the experts' first half. `narrow`: columns are cut into eight shares instead of four.
pub(super) fn inner(
    device: &Device,
    tokens: usize,
    input: &StepInput,
    shapes: &ExpertShapes,
    narrow: bool,
) -> Option<Several> {
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
    let form = (StepForm::Affine, columns);
    let passes = Passes::new(tokens, SEVERAL_TOKENS, form, device.shared_limit())?;
    Some(Several::new(kernel, passes, form))
}

/// The launch of the experts' second half, of `columns` in all for a token.
pub(super) fn outer(
    device: &Device,
    tokens: usize,
    shapes: &ExpertShapes,
    shared: Option<&StepShared>,
    (form, columns): (StepForm, usize),
) -> Option<Several> {
    if form == StepForm::Blocks {
        let downs = [&shapes.down].into_iter().chain(shared.map(|shared| &shared.down));
        if BlockSet::of(downs) != BlockSet::Usual {
            return None;
        }
        let passes = Passes::new(tokens, SEVERAL_TOKENS, (form, columns), device.shared_limit())?;
        return Some(Several::new(Kernel::SeveralOuterUsual, passes, (form, columns)));
    }
    let same = shared.is_none_or(|shared| shared.down.bits == shapes.down.bits);
    let served = form == StepForm::Affine && (2..=SEVERAL_TOKENS).contains(&tokens) && same;
    let units = if shapes.down.bits <= 4 { 2 } else { 1 };
    // A warp stages what it multiplies, one token after another.
    (served && is_usual(&shapes.down)).then_some(Several {
        kernel: Kernel::SeveralOuter,
        passes: Passes { tokens, count: 1 },
        shared: (STEP_THREADS / 32 * units * 4 * STAGED_CHUNK + 16) * 4,
    })
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
                    form: StepForm::Affine,
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
            let form = StepForm::Affine;
            let blocks = &|rounds| tiles.div_ceil(rounds);
            let work = Work { tokens: 8, form, columns, rounds, blocks };
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
    fn blocks_are_divided_as_measured() {
        let best = |tokens: usize| {
            // 12,352 rows of 2,048 columns, four row tiles at once.
            let blocks = &|rounds: usize| usize::div_ceil(193, rounds);
            let form = StepForm::Blocks;
            let work = Work { tokens, form, columns: 2048, rounds: 2, blocks };
            let (passes, rounds) = work.share_out(1, 227 << 10, 132).expect("they fit");
            (rounds, passes.tokens)
        };
        assert_eq!([2, 3, 4, 8].map(best), [(2, 2), (3, 2), (3, 2), (3, 4)]);
    }

    #[test]
    fn passes_hold_all_tokens_and_fit() {
        for shared in [99 << 10, 163 << 10, 227 << 10] {
            for columns in [128, 2048, 4096, 8192, 12_288] {
                for limit in [1, 2, 4, 8, 16] {
                    for tokens in 1..=8 {
                        let form = (StepForm::Affine, columns);
                        let Some(passes) = Passes::new(tokens, limit, form, shared) else {
                            let single = 2 * staged_bytes(form.0, columns) > shared - OWN_SHARED;
                            assert!(tokens < 3 || limit < 2 || single);
                            continue;
                        };
                        assert!(passes.tokens * passes.count >= tokens);
                        assert!(passes.tokens * (passes.count - 1) < tokens, "no pass is empty");
                        assert!((2..=limit).contains(&passes.tokens));
                        let staged = Several::new(Kernel::SeveralLinear4, passes, form).shared;
                        assert!(staged + OWN_SHARED <= shared);
                    }
                }
            }
        }
    }
}

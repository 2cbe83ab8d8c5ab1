//! Steps of several sequences: whether the kernels of `kernels/several.cu` serve them, and how many tokens at a time.
//!
//! They read each weight once for all tokens of a pass and give every token the bits of a step alone. What they do not
//! serve is launched as for one token, with a row of blocks for each.

use super::form::{StepForm, staged_bytes};
use super::{StepInput, StepShared};
use crate::abi::{SEVERAL_TOKENS, STAGED_CHUNK, STEP_THREADS, UNIT};
use crate::launch::Kernel;
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

/// Tokens of a pass when `blocks` of one leave multiprocessors idle: more passes beside each other stage fewer vectors
/// in each block, which takes longer than to read a weight twice. Two together cost little more than one.
fn tokens_beside(tokens: usize, blocks: usize, multiprocessors: usize) -> usize {
    tokens.div_ceil((multiprocessors / blocks.max(1)).max(1)).max(2)
}

/// The kernel that multiplies `matrices` with several vectors of `columns`, and its passes of `blocks` blocks.
pub(super) fn linear<'a>(
    device: &Device,
    tokens: usize,
    input: &StepInput,
    columns: usize,
    matrices: impl Iterator<Item = &'a Matrix> + Clone,
    blocks: usize,
) -> Option<(Kernel, Passes)> {
    if !matrices.clone().all(is_usual) {
        return None;
    }
    let least = matrices.map(tokens_of_product).min()?;
    let limit = (SETS * least).min(tokens_beside(tokens, blocks, device.info().multiprocessors));
    let passes = Passes::new(tokens, limit, columns, device.shared_limit())?;
    let normed = matches!(input, StepInput::Norm { .. });
    let kernel = match (passes.tokens.div_ceil(least), normed) {
        (0 | 1, false) => Kernel::SeveralLinear1,
        (2, false) => Kernel::SeveralLinear2,
        (_, false) => Kernel::SeveralLinear4,
        (0 | 1, true) => Kernel::SeveralNormed1,
        (2, true) => Kernel::SeveralNormed2,
        (_, true) => Kernel::SeveralNormed4,
    };
    Some((kernel, passes))
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

/// Bytes of shared memory of the experts' second half; `None` when it is not served.
pub(super) fn outer(
    tokens: usize,
    shapes: &ExpertShapes,
    shared: Option<&StepShared>,
) -> Option<usize> {
    let same = shared.is_none_or(|shared| shared.down.bits == shapes.down.bits);
    let served = (2..=SEVERAL_TOKENS).contains(&tokens) && is_usual(&shapes.down) && same;
    let units = if shapes.down.bits <= 4 { 2 } else { 1 };
    served.then_some((STEP_THREADS / 32 * units * 4 * STAGED_CHUNK + 16) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_beside_each_other_run_at_the_same_time() {
        for blocks in [1, 16, 41, 64, 98, 122, 132] {
            for tokens in 1..=8 {
                let each = tokens_beside(tokens, blocks, 132);
                assert!(each >= 2 && tokens.div_ceil(each) * blocks <= 132);
            }
        }
        assert_eq!([41, 64, 98].map(|blocks| tokens_beside(8, blocks, 132)), [3, 4, 8]);
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

//! Causal attention over a blocked key-value cache.
//!
//! Keys are walked in blocks of [`BLOCK_TOKENS`] absolute positions. Each block gives its own maximum,
//! sum and weighted values, and these are merged in ascending order of blocks: so the bits of a
//! token do not depend on how many tokens the call has, nor on who computed which block.
//! Within a block: one score is sixteen lane sums over the head's dimensions; the exponentials are
//! summed in sixteen lanes; values are added key by key.

use crate::attention::{BLOCK_TOKENS, KeyValueBlock, KeyValues};
use crate::generic::elementwise::{exp_shifted, load, store};
use crate::lanes::{LANES, Lanes, exp};

/// Heads of one task at most: their running maxima and sums live on the stack.
pub(crate) const TASK_HEADS: usize = 16;

/// Largest head dimension: the weighted values of one block live on the stack.
pub(crate) const MAX_HEAD_DIM: usize = 512;

/// Attention of one token for some query heads that share a key-value head.
pub(crate) struct AttentionTask<'a> {
    /// `[heads, head_dim]` of this token.
    pub(crate) q: &'a [f32],
    /// `[heads, head_dim]` of this token.
    pub(crate) out: &'a mut [f32],
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) key_value_head: usize,
    /// Keys that the token sees: its position plus one.
    pub(crate) visible: usize,
    pub(crate) blocks: &'a [KeyValueBlock<'a>],
}

/// Reads 16 elements of a key or value row.
#[inline(always)]
unsafe fn cached<L: Lanes, const HALF: bool>(base: *const u8, at: usize, count: usize) -> L {
    // SAFETY: the caller guarantees `count` elements at `base + at`.
    unsafe {
        if HALF {
            let from = base.add(2 * at);
            if count == LANES {
                return L::load_f16(from);
            }
            let mut lanes = [0u8; 2 * LANES];
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), 2 * count);
            L::load_f16(lanes.as_ptr())
        } else {
            load(base.add(4 * at).cast(), count)
        }
    }
}

/// `scores[j] = scale * dot(q, keys[j])` for the first `count` keys.
#[inline(always)]
unsafe fn scores<L: Lanes, const HALF: bool>(
    q: &[f32],
    keys: *const u8,
    scale: f32,
    scores: &mut [f32],
) {
    const TOGETHER: usize = 4;
    let dim = q.len();
    // SAFETY: the caller guarantees `scores.len()` rows of `dim` keys.
    unsafe {
        let mut first = 0;
        while first < scores.len() {
            // The last few keys are computed together with repeats of the last one.
            let key = |i: usize| (first + i).min(scores.len() - 1) * dim;
            let rows: [usize; TOGETHER] = std::array::from_fn(key);
            let mut sums = [L::splat(0.0); TOGETHER];
            let whole = dim / LANES * LANES;
            for at in (0..whole).step_by(LANES) {
                let query = L::load(q.as_ptr().add(at));
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = cached::<L, HALF>(keys, row + at, LANES).mul_add(query, *sum);
                }
            }
            if whole < dim {
                let query = L::load_first(q.as_ptr().add(whole), dim - whole);
                for (sum, row) in sums.iter_mut().zip(rows) {
                    let key = cached::<L, HALF>(keys, row + whole, dim - whole);
                    *sum = key.mul_add(query, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate().take(scores.len() - first) {
                scores[first + i] = sum.sum() * scale;
            }
            first += TOGETHER;
        }
    }
}

/// `out = sum_j weights[j] * values[j]`, `out` of the head's dimension.
#[inline(always)]
unsafe fn weighted_values<L: Lanes, const HALF: bool>(
    weights: &[f32],
    values: *const u8,
    out: &mut [f32],
) {
    /// Vectors of the output kept in registers.
    const WIDE: usize = 8;
    let dim = out.len();
    // SAFETY: the caller guarantees `weights.len()` rows of `dim` values.
    unsafe {
        let mut first = 0;
        while first + WIDE * LANES <= dim {
            let mut sums = [L::splat(0.0); WIDE];
            for (j, &weight) in weights.iter().enumerate() {
                let weight = L::splat(weight);
                for (i, sum) in sums.iter_mut().enumerate() {
                    let value = cached::<L, HALF>(values, j * dim + first + i * LANES, LANES);
                    *sum = value.mul_add(weight, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                sum.store(out.as_mut_ptr().add(first + i * LANES));
            }
            first += WIDE * LANES;
        }
        while first < dim {
            let n = (dim - first).min(LANES);
            let mut sum = L::splat(0.0);
            for (j, &weight) in weights.iter().enumerate() {
                let value = cached::<L, HALF>(values, j * dim + first, n);
                sum = value.mul_add(L::splat(weight), sum);
            }
            store(sum, out.as_mut_ptr().add(first), n);
            first += LANES;
        }
    }
}

/// `exp` of one number by the lanes' own exponential.
#[inline(always)]
unsafe fn exp_one<L: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array has 16 elements.
    unsafe { exp(L::splat(x)).store(lanes.as_mut_ptr()) };
    lanes[0]
}

/// One block for one head: its maximum, sum and weighted values.
#[inline(always)]
unsafe fn block_part<L: Lanes>(
    q: &[f32],
    block: &KeyValueBlock<'_>,
    key_value_head: usize,
    count: usize,
    scale: f32,
    part: &mut [f32],
) -> (f32, f32) {
    let mut weights = [0.0f32; BLOCK_TOKENS];
    let weights = &mut weights[..count];
    let start = key_value_head * BLOCK_TOKENS * q.len();
    // SAFETY: the caller has checked that the block holds every head; `count <= BLOCK_TOKENS`.
    unsafe {
        match block.keys {
            KeyValues::F32(keys) => {
                scores::<L, false>(q, keys[start..].as_ptr().cast(), scale, weights);
            }
            KeyValues::F16(keys) => {
                scores::<L, true>(q, keys[start..].as_ptr().cast(), scale, weights);
            }
        }
        let max = weights.iter().fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max });
        let mut exps = [0.0f32; BLOCK_TOKENS];
        let exps = &mut exps[..count];
        let sum = exp_shifted::<L>(weights, max, exps);
        match block.values {
            KeyValues::F32(values) => {
                weighted_values::<L, false>(exps, values[start..].as_ptr().cast(), part);
            }
            KeyValues::F16(values) => {
                weighted_values::<L, true>(exps, values[start..].as_ptr().cast(), part);
            }
        }
        (max, sum)
    }
}

/// Runs one task.
///
/// # Safety
///
/// The instruction set is available; at most [`TASK_HEADS`] heads of at most [`MAX_HEAD_DIM`]; every
/// visible block holds all key-value heads.
#[inline(always)]
pub(crate) unsafe fn attend<L: Lanes>(task: &mut AttentionTask<'_>) {
    let dim = task.head_dim;
    let mut maxima = [f32::NEG_INFINITY; TASK_HEADS];
    let mut sums = [0.0f32; TASK_HEADS];
    let mut part = [0.0f32; MAX_HEAD_DIM];
    let part = &mut part[..dim];
    for (index, block) in task.blocks.iter().enumerate() {
        let start = index * BLOCK_TOKENS;
        if start >= task.visible {
            break;
        }
        let count = (task.visible - start).min(BLOCK_TOKENS);
        for (head, out) in task.out.chunks_exact_mut(dim).enumerate() {
            let q = &task.q[head * dim..][..dim];
            // SAFETY: passed on to the caller; slices have the lengths of the head.
            unsafe {
                let (max, sum) =
                    block_part::<L>(q, block, task.key_value_head, count, task.scale, part);
                if index == 0 {
                    (maxima[head], sums[head]) = (max, sum);
                    out.copy_from_slice(part);
                    continue;
                }
                let merged = if max > maxima[head] { max } else { maxima[head] };
                let old = exp_one::<L>(maxima[head] - merged);
                let new = exp_one::<L>(max - merged);
                for (o, &p) in out.iter_mut().zip(part.iter()) {
                    *o = p.mul_add(new, *o * old);
                }
                maxima[head] = merged;
                sums[head] = sum.mul_add(new, sums[head] * old);
            }
        }
    }
    for (head, out) in task.out.chunks_exact_mut(dim).enumerate() {
        let inverse = 1.0 / sums[head];
        for o in out {
            *o *= inverse;
        }
    }
}

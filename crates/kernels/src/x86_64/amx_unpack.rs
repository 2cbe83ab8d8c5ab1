//! Activations and weights laid out for tiles.
//!
//! Columns are in an order of their own within each 64, the same for both: as activations were packed for the width
//! of affine weights, in column order for blocks. Groups of 16 and 32 stay together.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::amx_tiles::{DEPTH, Panel, Rows, TILE, ZERO_TILE, transpose};
use super::avx512_formats::Format;
use super::avx512_quantised::factors;
use super::avx512_unpack::{read_step, unpack};
use crate::activations::GROUP_LANES;
use crate::blocks::steps::{HALF, StepBlocks};
use crate::task::{Biases, IntegerTask};
use std::arch::x86_64::*;

/// Builds the panel of the tokens from `first`, packed as `PLANES` values a byte; missing tokens are zero.
#[inline(always)]
pub(super) unsafe fn build<const PLANES: usize>(
    task: &IntegerTask<'_>,
    group: usize,
    first: usize,
    panel: &mut Panel,
) {
    let columns = task.matrix.columns;
    let count = (task.count - first).min(TILE);
    panel.tiles.resize(columns.div_ceil(DEPTH), [ZERO_TILE; 2]);
    panel.factors.resize(columns / group, [[0.0; TILE]; 2]);
    // SAFETY: prepared activations hold two bytes for each column, padded to whole steps; the caller vouches for
    // the features.
    unsafe {
        let zero = _mm512_setzero_si512();
        for (index, parts) in panel.tiles.iter_mut().enumerate() {
            // A step of `PLANES` depths: high planes, then low planes, each of 64 bytes.
            let (step, within) = (index / PLANES, index % PLANES);
            for (half, part) in parts.iter_mut().enumerate() {
                let mut rows = [zero; TILE];
                for t in 0..count {
                    let step =
                        task.x.values(task.x_row(first + t)).as_ptr().add(step * PLANES * 128);
                    let at = step.add(half * PLANES * 64 + within * (64 / PLANES));
                    rows[t] = match PLANES {
                        1 => _mm512_load_si512(at.cast()),
                        2 => {
                            // Sixteen bytes of each plane in turns.
                            let both = _mm512_inserti64x4::<1>(
                                _mm512_castsi256_si512(_mm256_load_si256(at.cast())),
                                _mm256_load_si256(at.add(64).cast()),
                            );
                            _mm512_shuffle_i64x2::<0b11_01_10_00>(both, both)
                        }
                        _ => {
                            // Eight bytes of each plane in turns.
                            let plane = |p: usize| _mm_load_si128(at.add(64 * p).cast());
                            let low = _mm256_set_m128i(plane(1), plane(0));
                            let high = _mm256_set_m128i(plane(3), plane(2));
                            let all = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
                            _mm512_permutexvar_epi64(order, all)
                        }
                    };
                }
                let columns = transpose(rows);
                for k in 0..TILE {
                    _mm512_store_si512(part.0[k].as_mut_ptr().cast(), columns[k]);
                }
            }
        }
    }
    for t in 0..TILE {
        for (group, [scales, sums]) in panel.factors.iter_mut().enumerate() {
            let (scale, sum) = if t < count {
                let row = task.x_row(first + t);
                (task.x.scales(row)[group], task.x.sums(row)[group])
            } else {
                (0.0, 0.0)
            };
            (scales[t], sums[t]) = (scale, sum);
        }
    }
}

/// For each byte of 64 columns of three bits, in quarters that have the even columns and the odd ones in turns: the
/// byte of the stream that comes to its place, and where in its quadword the value begins.
static PAIRS: [[u8; DEPTH]; 2] = {
    let mut tables = [[0; DEPTH]; 2];
    let mut k = 0;
    while k < DEPTH {
        let odd = k / 16 % 2;
        let pair = k / 32 * 16 + k % 16;
        tables[0][k] = (pair / 8 * 6 + k % 8) as u8;
        tables[1][k] = (pair % 8 * 6 + odd * 3) as u8;
        k += 1;
    }
    tables
};

/// 64 columns of one row of affine weights as bytes, in the order of the panel.
#[inline(always)]
unsafe fn weights<const BITS: u8>(from: *const u8) -> __m512i {
    // SAFETY: reads `8 * BITS` bytes; the caller vouches for them and for the features.
    unsafe {
        let mask = _mm512_set1_epi8(((1u16 << BITS) - 1) as i8);
        match BITS {
            4 => {
                let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
                let each = _mm512_shuffle_i64x2::<0b01_01_00_00>(bytes, bytes);
                _mm512_and_si512(_mm512_mask_srli_epi16::<4>(each, 0xff00_ff00, each), mask)
            }
            2 => {
                let bytes = _mm512_castsi128_si512(_mm_loadu_si128(from.cast()));
                let order = _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1);
                let each = _mm512_permutexvar_epi64(order, bytes);
                let shifts = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
                _mm512_and_si512(_mm512_srlv_epi64(each, shifts), mask)
            }
            3 => {
                let stream = read_step::<BITS>(from, DEPTH / 8 * 3);
                let order = _mm512_loadu_si512(PAIRS[0].as_ptr().cast());
                let first = _mm512_loadu_si512(PAIRS[1].as_ptr().cast());
                let gathered = _mm512_permutexvar_epi8(order, stream);
                _mm512_and_si512(_mm512_multishift_epi64_epi8(first, gathered), mask)
            }
            _ => unpack::<BITS>(read_step::<BITS>(from, DEPTH / 8 * BITS as usize))[0],
        }
    }
}

/// Unpacks sixteen rows of affine weights from `row`. Rows that do not exist keep what was there: their sums are
/// not used.
#[inline(always)]
pub(super) unsafe fn affine_rows<const BITS: u8>(
    task: &IntegerTask<'_>,
    row: usize,
    to: &mut Rows,
) {
    let (_, group, float) = task.affine();
    let columns = task.matrix.columns;
    let groups = columns / group;
    let row_bytes = columns * BITS as usize / 8;
    let rows = task.rows.end.saturating_sub(row).min(TILE);
    to.tiles.resize(columns.div_ceil(DEPTH), ZERO_TILE);
    to.factors.resize(groups.next_multiple_of(GROUP_LANES), [[0.0; TILE]; 2]);
    // SAFETY: `Matrix` guarantees the bytes of each row; a last half depth is copied first; the caller vouches for the
    // features.
    unsafe {
        for r in 0..rows {
            let stream = task.matrix.weight.as_ptr().add((row + r) * row_bytes);
            let depth_bytes = DEPTH / 8 * BITS as usize;
            for index in 0..columns / DEPTH {
                let codes = weights::<BITS>(stream.add(index * depth_bytes));
                to.store(group, index, r, codes);
            }
            let whole = columns / DEPTH;
            if columns > whole * DEPTH {
                let mut copy = [0u8; 64];
                let from = stream.add(whole * depth_bytes);
                let bytes = row_bytes - whole * depth_bytes;
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes);
                to.store(group, whole, r, weights::<BITS>(copy.as_ptr()));
            }
            for start in (0..groups).step_by(GROUP_LANES) {
                let (at, count) = ((row + r) * groups + start, (groups - start).min(GROUP_LANES));
                let scales = factors(float, task.matrix.scales.as_ptr(), at, count);
                let biases = match task.biases() {
                    Biases::Factor(factor) => _mm512_mul_ps(scales, _mm512_set1_ps(factor)),
                    Biases::Zeros => {
                        _mm512_mul_ps(scales, _mm512_loadu_ps(task.zeros(at, count).as_ptr()))
                    }
                    Biases::Stored => factors(float, task.matrix.biases.as_ptr(), at, count),
                };
                _mm512_storeu_ps(to.factors[start + r][0].as_mut_ptr(), scales);
                _mm512_storeu_ps(to.factors[start + r][1].as_mut_ptr(), biases);
            }
        }
        by_group(to);
    }
}

/// Unpacks sixteen rows of blocks from `row`, as [`affine_rows`] does.
#[inline(always)]
pub(super) unsafe fn block_rows<F: Format, const GROUP: usize>(
    task: &IntegerTask<'_>,
    row: usize,
    to: &mut Rows,
) {
    let columns = task.matrix.columns;
    let halves = GROUP_LANES * GROUP / HALF;
    let rows = task.rows.end.saturating_sub(row).min(TILE);
    to.tiles.resize(columns.next_multiple_of(halves * HALF) / DEPTH, ZERO_TILE);
    to.factors.resize((columns / GROUP).next_multiple_of(GROUP_LANES), [[0.0; TILE]; 2]);
    // SAFETY: `StepBlocks` gives blocks that can be read; the caller vouches for the features.
    unsafe {
        let mut blocks = StepBlocks::new::<GROUP>(task);
        for r in 0..rows {
            for step in 0..columns.div_ceil(GROUP_LANES * GROUP) {
                let (from, scales_from) = blocks.sources(F::PLANES, row + r, step);
                let first = step * halves * (HALF / DEPTH);
                for h in 0..halves {
                    let codes = F::half(from[h]);
                    for v in 0..HALF / DEPTH {
                        to.store(GROUP, first + h * (HALF / DEPTH) + v, r, codes[v]);
                    }
                }
                let (scales, biases) = F::factors(scales_from);
                let factors = &mut to.factors[step * GROUP_LANES + r];
                _mm512_storeu_ps(factors[0].as_mut_ptr(), scales);
                _mm512_storeu_ps(factors[1].as_mut_ptr(), biases);
            }
        }
        by_group(to);
    }
}

/// Turns the factors of sixteen groups, one row after the other, to those of sixteen rows, one group after the other.
#[inline(always)]
unsafe fn by_group(to: &mut Rows) {
    for sixteen in to.factors.chunks_exact_mut(GROUP_LANES) {
        for which in 0..2 {
            // SAFETY: arrays of sixteen floats; the caller vouches for the features.
            unsafe {
                let mut rows = [_mm512_setzero_si512(); TILE];
                for r in 0..TILE {
                    rows[r] = _mm512_loadu_si512(sixteen[r][which].as_ptr().cast());
                }
                let groups = transpose(rows);
                for g in 0..GROUP_LANES {
                    _mm512_storeu_si512(sixteen[g][which].as_mut_ptr().cast(), groups[g]);
                }
            }
        }
    }
}

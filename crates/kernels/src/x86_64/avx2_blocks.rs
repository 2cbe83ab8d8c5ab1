//! Products of blocks with AVX2: 16-bit codes times 16-bit activations, as in `avx2_quantised.rs`.
//!
//! Every format unpacks to 32 codes of one byte in column order. Their even and odd columns become words by a mask and
//! a shift, so activations have the even columns of each 32 first. The sums of 32 columns stay in one register; its
//! halves belong to two groups of 16.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::avx2::Avx2Lanes;
use super::avx2_formats::Format;
use super::avx2_quantised::{in_order, sum_groups};
use crate::activations::{GROUP_LANES, Packing};
use crate::blocks::product::{TOKENS, block_rows};
use crate::blocks::steps::{HALF, StepBlocks};
use crate::format::nvfp4::Global;
use crate::lanes::Lanes;
use crate::task::IntegerTask;
use std::arch::x86_64::*;

/// Packing of activations for blocks.
pub(super) const PACKING: Packing = Packing::Words { per_word: 2 };

/// Vectors of codes in 256 columns.
const VECTORS: usize = HALF / 32;

/// Eight sums of the products of 32 codes with the activations at `x`.
#[inline(always)]
unsafe fn multiply(codes: __m256i, x: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 64 bytes of activations and for AVX2.
    unsafe {
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(255));
        let odd = _mm256_srli_epi16::<8>(codes);
        _mm256_add_epi32(
            _mm256_madd_epi16(even, _mm256_load_si256(x.cast())),
            _mm256_madd_epi16(odd, _mm256_load_si256(x.add(32).cast())),
        )
    }
}

/// Sums of the products of four vectors of codes from vector `v` on, in halves of a register: the first of sixteen
/// columns of each, then the second.
#[inline(always)]
unsafe fn four<F: Format>(from: *const u8, fields: &F::Fields, x: *const u8, v: usize) -> __m256i {
    // SAFETY: the caller vouches for blocks and activations of 256 columns and for the features.
    unsafe {
        let a = multiply(F::codes(from, fields, v), x.add(64 * v));
        let b = multiply(F::codes(from, fields, v + 1), x.add(64 * (v + 1)));
        let ab = _mm256_hadd_epi32(a, b);
        let c = multiply(F::codes(from, fields, v + 2), x.add(64 * (v + 2)));
        let d = multiply(F::codes(from, fields, v + 3), x.add(64 * (v + 3)));
        _mm256_hadd_epi32(ab, _mm256_hadd_epi32(c, d))
    }
}

/// Sums of the groups of 256 columns: of eight groups of 32 in the first register, of sixteen of 16 in both. They are
/// added up as they come, because sixteen registers do not hold the products of all.
#[inline(always)]
unsafe fn half_sums<F: Format, const GROUP: usize>(from: *const u8, x: *const u8) -> [__m256; 2] {
    // SAFETY: passed on to the caller.
    unsafe {
        let fields = F::fields(from);
        let (first, second) = (four::<F>(from, &fields, x, 0), four::<F>(from, &fields, x, 4));
        if GROUP == 32 {
            let sums = _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(first, second),
                _mm256_permute2x128_si256::<0x31>(first, second),
            );
            return [_mm256_cvtepi32_ps(sums), _mm256_setzero_ps()];
        }
        [_mm256_cvtepi32_ps(in_order(first, 2)), _mm256_cvtepi32_ps(in_order(second, 2))]
    }
}

/// Sums of sixteen groups from the products of each half.
#[inline(always)]
unsafe fn sums<const GROUP: usize>(units: &[[__m256i; VECTORS]; 2]) -> Avx2Lanes {
    // SAFETY: register operations; the caller vouches for AVX2.
    unsafe {
        let [first, second] = if GROUP == 32 {
            [sum_groups(&units[0], 1), sum_groups(&units[1], 1)]
        } else {
            let [a, b, c, d, e, f, g, h] = units[0];
            let zero = _mm256_setzero_si256();
            let four = |a, b, c, d| sum_groups(&[a, b, c, d, zero, zero, zero, zero], 2);
            [four(a, b, c, d), four(e, f, g, h)]
        };
        Avx2Lanes(_mm256_cvtepi32_ps(first), _mm256_cvtepi32_ps(second))
    }
}

/// Adds sixteen groups to the accumulation lanes.
#[inline(always)]
unsafe fn combine(
    lanes: Avx2Lanes,
    exact: Avx2Lanes,
    (d, sum): (*const f32, *const f32),
    (scale, bias): (Avx2Lanes, Avx2Lanes),
) -> Avx2Lanes {
    // SAFETY: the caller vouches for sixteen factors of the activations and for the features.
    unsafe {
        let lanes = exact.mul(Avx2Lanes::load(d)).mul_add(scale, lanes);
        Avx2Lanes::load(sum).mul_add(bias, lanes)
    }
}

/// Rows of a task for one token.
#[inline(always)]
unsafe fn rows_of_one<F: Format, const GROUP: usize>(task: &IntegerTask<'_>, token: usize) {
    let columns = task.matrix.columns;
    let halves = GROUP_LANES * GROUP / HALF;
    let mut blocks = StepBlocks::new::<GROUP>(task);
    let global = Global::of(task.matrix);
    let x_row = task.x_row(token);
    let values = task.x.values(x_row).as_ptr();
    let (scales, x_sums) = (task.x.scales(x_row).as_ptr(), task.x.sums(x_row).as_ptr());
    // SAFETY: `StepBlocks` gives blocks that can be read. Prepared activations are padded to 256 columns and to sixteen
    // groups. The caller vouches for features and output.
    unsafe {
        for row in task.rows.clone() {
            let mut lanes = Avx2Lanes::splat(0.0);
            for step in 0..columns.div_ceil(GROUP_LANES * GROUP) {
                let (from, scales_from) = blocks.sources(F::PLANES, row, step);
                let present = (columns - step * halves * HALF).div_ceil(HALF).min(halves);
                let x = values.add(2 * step * halves * HALF);
                let [first, mut second] = half_sums::<F, GROUP>(from[0], x);
                if GROUP == 32 && present == 2 {
                    [second, _] = half_sums::<F, GROUP>(from[1], x.add(2 * HALF));
                }
                let group = step * GROUP_LANES;
                let x = (scales.add(group), x_sums.add(group));
                let exact = Avx2Lanes(first, second);
                lanes = combine(lanes, exact, x, F::shared_factors(scales_from, global));
            }
            *task.out(token, row) = lanes.sum();
        }
    }
}

/// Rows of a task for `count` tokens, at most [`TOKENS`], starting with `first`: they share the codes.
#[inline(always)]
unsafe fn rows_of_some<F: Format, const GROUP: usize>(
    task: &IntegerTask<'_>,
    first: usize,
    count: usize,
) {
    let columns = task.matrix.columns;
    let halves = GROUP_LANES * GROUP / HALF;
    let mut blocks = StepBlocks::new::<GROUP>(task);
    let global = Global::of(task.matrix);
    // SAFETY: as in `rows_of_one`.
    unsafe {
        for row in task.rows.clone() {
            let mut lanes = [Avx2Lanes::splat(0.0); TOKENS];
            for step in 0..columns.div_ceil(GROUP_LANES * GROUP) {
                let (from, scales_from) = blocks.sources(F::PLANES, row, step);
                let present = (columns - step * halves * HALF).div_ceil(HALF).min(halves);
                let mut codes = [[_mm256_setzero_si256(); VECTORS]; 2];
                for h in 0..present {
                    let fields = F::fields(from[h]);
                    for v in 0..VECTORS {
                        codes[h][v] = F::codes(from[h], &fields, v);
                    }
                }
                let factors = F::shared_factors(scales_from, global);
                let group = step * GROUP_LANES;
                for t in 0..count {
                    let x_row = task.x_row(first + t);
                    let values = task.x.values(x_row).as_ptr();
                    let mut units = [[_mm256_setzero_si256(); VECTORS]; 2];
                    for h in 0..present {
                        let x = values.add(2 * (step * halves + h) * HALF);
                        for v in 0..VECTORS {
                            units[h][v] = multiply(codes[h][v], x.add(64 * v));
                        }
                    }
                    let (d, sum) = (task.x.scales(x_row), task.x.sums(x_row));
                    let x = (d.as_ptr().add(group), sum.as_ptr().add(group));
                    lanes[t] = combine(lanes[t], sums::<GROUP>(&units), x, factors);
                }
            }
            for t in 0..count {
                *task.out(first + t, row) = lanes[t].sum();
            }
        }
    }
}

/// All tokens of a task.
#[inline(always)]
unsafe fn all_tokens<F: Format, const GROUP: usize>(task: &IntegerTask<'_>) {
    for first in (0..task.count).step_by(TOKENS) {
        match TOKENS.min(task.count - first) {
            // SAFETY: passed on to the caller.
            1 => unsafe { rows_of_one::<F, GROUP>(task, first) },
            // SAFETY: passed on to the caller.
            count => unsafe { rows_of_some::<F, GROUP>(task, first, count) },
        }
    }
}

/// Runs a task of 4-bit floats in planes.
///
/// # Safety
///
/// As for [`block_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn plane_rows(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { all_tokens::<unpackers::Mxfp4Planes, 32>(task) }
}

/// Runs a task of 4-bit floats in groups of 16, in planes.
///
/// # Safety
///
/// As for [`block_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn nvfp4_rows(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { all_tokens::<unpackers::Nvfp4Planes, 16>(task) }
}

/// The unpackers of all formats.
mod unpackers {
    pub(in crate::x86_64) use crate::x86_64::avx2_codebooks::*;
    pub(in crate::x86_64) use crate::x86_64::avx2_formats::*;
    pub(in crate::x86_64) use crate::x86_64::avx2_grids::*;
}

crate::blocks::each_format!(block_rows, "avx2,fma,f16c");

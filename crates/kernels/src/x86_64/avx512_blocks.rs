//! Products of blocks with AVX-512 VNNI: two byte dot products for each code, as in `avx512_quantised.rs`.
//!
//! Every format unpacks to codes in column order, so all share one packing of activations and one core. A
//! format that stores 32 bytes for two or four runs of 32 columns costs no shuffle: a load fills both halves of a
//! register, and a shift of each half by its own amount gives 64 consecutive columns.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::avx512_formats::Format;
use super::avx512_quantised::{sum_blocks, sum_groups, sum_lanes};
use crate::activations::GROUP_LANES;
use crate::blocks::product::{TOKENS, block_rows};
use crate::blocks::steps::{HALF, StepBlocks};
use crate::each;
use crate::format::nvfp4::Global;
use crate::task::IntegerTask;
use std::arch::x86_64::*;

/// Exact sums of sixteen groups; `x` are the activations of each half.
#[inline(always)]
unsafe fn sums<const GROUP: usize>(codes: &[[__m512i; 4]; 2], x: [*const u8; 2]) -> __m512i {
    // SAFETY: the caller vouches for 256 prepared columns at each pointer that is used, and for AVX-512.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut quads = [zero; 4];
        for h in 0..if GROUP == 32 { 2 } else { 1 } {
            let mut units = [zero; 4];
            for v in 0..4 {
                let at = x[h].add(128 * v);
                let high = _mm512_dpbusd_epi32(zero, codes[h][v], _mm512_load_si512(at.cast()));
                let high = _mm512_slli_epi32::<8>(high);
                units[v] =
                    _mm512_dpbusd_epi32(high, codes[h][v], _mm512_load_si512(at.add(64).cast()));
            }
            quads[h] = sum_blocks(units[0], units[1], units[2], units[3]);
        }
        if GROUP == 32 { sum_groups::<2>(quads) } else { sum_groups::<4>(quads) }
    }
}

/// Rows of a task for `count` tokens, at most `MOST`, starting with `first`.
#[inline(always)]
unsafe fn rows<F: Format, const GROUP: usize, const MOST: usize>(
    task: &IntegerTask<'_>,
    first: usize,
    count: usize,
) {
    let columns = task.matrix.columns;
    let halves = GROUP_LANES * GROUP / HALF;
    let mut blocks = StepBlocks::new::<GROUP>(task);
    let global = Global::of(task.matrix);
    let x_row: [usize; MOST] = each(|t| task.x_row(first + if t < count { t } else { 0 }));
    let values: [_; MOST] = each(|t| task.x.values(x_row[t]).as_ptr());
    let scales: [_; MOST] = each(|t| task.x.scales(x_row[t]).as_ptr());
    let x_sums: [_; MOST] = each(|t| task.x.sums(x_row[t]).as_ptr());
    // SAFETY: `StepBlocks` gives blocks that can be read. Prepared activations are padded to 256 columns and to sixteen
    // groups. The caller vouches for features and output.
    unsafe {
        for row in task.rows.clone() {
            let mut lanes = [_mm512_setzero_ps(); MOST];
            for step in 0..columns.div_ceil(GROUP_LANES * GROUP) {
                let (from, scales_from) = blocks.sources(F::PLANES, row, step);
                let present = (columns - step * halves * HALF).div_ceil(HALF).min(halves);
                let first_half = F::half(from[0]);
                let codes = [first_half, if halves == 2 { F::half(from[1]) } else { first_half }];
                let (scale, bias) = F::shared_factors(scales_from, global);
                let group = step * GROUP_LANES;
                for t in 0..count {
                    let x = values[t].add(2 * step * halves * HALF);
                    // A half that does not exist has scales of zero; any activations will do.
                    let second = if present == 2 { x.add(2 * HALF) } else { x };
                    let exact = _mm512_cvtepi32_ps(sums::<GROUP>(&codes, [x, second]));
                    let d = _mm512_loadu_ps(scales[t].add(group));
                    let sum = _mm512_loadu_ps(x_sums[t].add(group));
                    lanes[t] = _mm512_fmadd_ps(_mm512_mul_ps(exact, d), scale, lanes[t]);
                    lanes[t] = _mm512_fmadd_ps(sum, bias, lanes[t]);
                }
            }
            for t in 0..count {
                *task.out(first + t, row) = sum_lanes(lanes[t]);
            }
        }
    }
}

/// All tokens of a task.
#[inline(always)]
pub(super) unsafe fn all_tokens<F: Format, const GROUP: usize>(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut token = 0;
        while token + 1 < task.count {
            let count = TOKENS.min(task.count - token);
            rows::<F, GROUP, TOKENS>(task, token, count);
            token += count;
        }
        if token < task.count {
            rows::<F, GROUP, 1>(task, token, 1);
        }
    }
}

/// Runs a task of 4-bit floats in planes.
///
/// # Safety
///
/// As for [`block_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[target_feature(enable = "gfni,avx2,fma,f16c")]
pub(super) unsafe fn plane_rows(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { all_tokens::<unpackers::Mxfp4Planes, 32>(task) }
}

/// Runs a task of 4-bit floats in groups of 16, in planes.
///
/// # Safety
///
/// As for [`block_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[target_feature(enable = "gfni,avx2,fma,f16c")]
pub(super) unsafe fn nvfp4_rows(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { all_tokens::<unpackers::Nvfp4Planes, 16>(task) }
}

/// The unpackers of all formats.
pub(super) mod unpackers {
    pub(in crate::x86_64) use crate::x86_64::avx512_codebooks::*;
    pub(in crate::x86_64) use crate::x86_64::avx512_formats::*;
}

crate::blocks::each_format!(
    block_rows,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,fma,f16c"
);

//! Products of blocks with NEON: two byte dot products for each sixteen codes, as in `neon_quantised.rs`.
//!
//! Every format unpacks to 32 codes of one byte in column order, so activations come in two planes of signed bytes.
//! Codes that need all eight bits are taken less 128, and 128 times the sum of the activations is added back: exact
//! too.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::neon::NeonLanes;
use super::neon_formats::Format;
use super::neon_quantised::dot;
use crate::activations::{GROUP_LANES, Packing};
use crate::blocks::product::{TOKENS, block_rows};
use crate::blocks::steps::{HALF, StepBlocks};
use crate::format::nvfp4::Global;
use crate::lanes::Lanes;
use crate::task::IntegerTask;
use std::arch::aarch64::*;

/// Packing of activations for blocks.
pub(super) const PACKING: Packing = Packing::Planes { per_byte: 1 };

/// Pairs of vectors of codes in 256 columns.
const PAIRS: usize = HALF / 32;

/// Sums of sixteen codes with the high bytes and the low bytes at `x`.
#[derive(Clone, Copy)]
struct Planes {
    high: int32x4_t,
    low: int32x4_t,
}

impl Planes {
    /// Adds the products of sixteen codes.
    #[inline(always)]
    unsafe fn add<const WIDE: bool>(self, codes: uint8x16_t, x: *const u8) -> Self {
        // SAFETY: the caller vouches for the activations at `x` and 64 bytes on, and for the features.
        unsafe {
            let high = vreinterpretq_s8_u8(vld1q_u8(x));
            let low = vreinterpretq_s8_u8(vld1q_u8(x.add(64)));
            if WIDE {
                // 128 * a = -(-128 * a)
                let codes = vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80)));
                let centre = vdupq_n_s8(-128);
                let zero = vdupq_n_s32(0);
                Self {
                    high: vsubq_s32(dot(self.high, codes, high), dot(zero, centre, high)),
                    low: vsubq_s32(dot(self.low, codes, low), dot(zero, centre, low)),
                }
            } else {
                let codes = vreinterpretq_s8_u8(codes);
                Self { high: dot(self.high, codes, high), low: dot(self.low, codes, low) }
            }
        }
    }

    /// Four sums that together are the exact sum.
    #[inline(always)]
    unsafe fn both(self) -> int32x4_t {
        // SAFETY: register operations; the caller vouches for NEON.
        unsafe { vaddq_s32(vshlq_n_s32::<8>(self.high), self.low) }
    }
}

/// The sums of the groups of 256 columns, not yet added up over the lanes; `x` are their activations.
#[inline(always)]
unsafe fn half_sums<F: Format, const GROUP: usize>(
    codes: &[[uint8x16_t; 2]; PAIRS],
    x: *const u8,
    units: &mut [int32x4_t],
) {
    // SAFETY: the caller vouches for 256 prepared columns and for the features.
    unsafe {
        let zero = Planes { high: vdupq_n_s32(0), low: vdupq_n_s32(0) };
        for v in 0..PAIRS {
            // Each 64 columns are 64 high bytes, then 64 low bytes.
            let x = x.add(v / 2 * 128 + v % 2 * 32);
            let first = match F::WIDE {
                true => zero.add::<true>(codes[v][0], x),
                false => zero.add::<false>(codes[v][0], x),
            };
            let before = if GROUP == 32 { first } else { zero };
            let second = match F::WIDE {
                true => before.add::<true>(codes[v][1], x.add(16)),
                false => before.add::<false>(codes[v][1], x.add(16)),
            };
            if GROUP == 32 {
                units[v] = second.both();
            } else {
                (units[2 * v], units[2 * v + 1]) = (first.both(), second.both());
            }
        }
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
    // SAFETY: `StepBlocks` gives blocks that can be read. Prepared activations are padded to 256 columns and to
    // sixteen groups. The caller vouches for features and output.
    unsafe {
        for row in task.rows.clone() {
            let mut lanes = [NeonLanes::splat(0.0); MOST];
            for step in 0..columns.div_ceil(GROUP_LANES * GROUP) {
                let (from, scales_from) = blocks.sources(F::PLANES, row, step);
                let present = (columns - step * halves * HALF).div_ceil(HALF).min(halves);
                let mut codes = [[[vdupq_n_u8(0); 2]; PAIRS]; 2];
                for h in 0..present {
                    for v in 0..PAIRS {
                        codes[h][v] = F::codes(from[h], v);
                    }
                }
                let (scale, bias) = F::shared_factors(scales_from, global);
                let group = step * GROUP_LANES;
                for t in 0..count {
                    let x_row = task.x_row(first + t);
                    let values = task.x.values(x_row).as_ptr();
                    let mut units = [vdupq_n_s32(0); GROUP_LANES];
                    for h in 0..present {
                        let x = values.add(2 * (step * halves + h) * HALF);
                        let units = &mut units[h * HALF / GROUP..][..HALF / GROUP];
                        half_sums::<F, GROUP>(&codes[h], x, units);
                    }
                    let exact = NeonLanes::from_sums(&units);
                    let d = NeonLanes::load(task.x.scales(x_row)[group..].as_ptr());
                    let sum = NeonLanes::load(task.x.sums(x_row)[group..].as_ptr());
                    lanes[t] = exact.mul(d).mul_add(scale, lanes[t]);
                    lanes[t] = sum.mul_add(bias, lanes[t]);
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
            1 => unsafe { rows::<F, GROUP, 1>(task, first, 1) },
            // SAFETY: passed on to the caller.
            count => unsafe { rows::<F, GROUP, TOKENS>(task, first, count) },
        }
    }
}

/// Runs a task of 4-bit floats in groups of 16, in planes.
///
/// # Safety
///
/// As for [`block_rows`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn nvfp4_rows(task: &IntegerTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { all_tokens::<unpackers::Nvfp4Planes, 16>(task) }
}

/// The unpackers of all formats.
mod unpackers {
    pub(in crate::aarch64) use crate::aarch64::neon_codebooks::*;
    pub(in crate::aarch64) use crate::aarch64::neon_formats::*;
}

crate::blocks::each_format!(block_rows, "neon,dotprod");

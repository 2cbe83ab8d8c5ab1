//! Integer products with NEON: byte dot products for 2 and 4 bits, word products for the other widths.
//!
//! Activations for 2 and 4 bits come in two planes of signed bytes, `high * 256 + low`, so that a group's sum
//! is `256 * dot(q, high) + dot(q, low)` with sixteen products an instruction. 8-bit weights would not fit the
//! signed dot product, and 3, 5 and 6 bits straddle bytes: both become words, the latter by a byte shuffle,
//! a multiplication that shifts each word left by its own amount, and one shift right.
//!
//! The sums of sixteen groups are combined at a time, in the order that `quantised.rs` states.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::neon::NeonLanes;
use crate::activations::{GROUP_LANES, Packing};
use crate::format::FloatType;
use crate::lanes::Lanes;
use crate::quantised::four_tokens_at_a_time;
use crate::task::{Biases, IntegerTask};
use std::arch::aarch64::*;
use std::arch::asm;

/// Bytes ahead of the reader that weights are prefetched.
const PREFETCH_BYTES: usize = 16 * 64;

/// Bytes of one plane of activations within a step.
const PLANE: usize = 64;

/// Packing of activations for weights of the given width.
pub(super) fn packing(bits: u8) -> Packing {
    match bits {
        4 => Packing::Planes { per_byte: 2 },
        2 => Packing::Planes { per_byte: 4 },
        _ => Packing::Natural,
    }
}

/// Byte shuffle that brings the two bytes around value `i` of eight into word `i`.
const fn word_order(bits: usize) -> [u8; 16] {
    let mut order = [0; 16];
    let mut i = 0;
    while i < 8 {
        let byte = i * bits / 8;
        order[2 * i] = byte as u8;
        order[2 * i + 1] = byte as u8 + 1;
        i += 1;
    }
    order
}

/// Factor that shifts value `i` of eight to the top of its word.
const fn word_factors(bits: usize) -> [u16; 8] {
    let mut factors = [0; 8];
    let mut i = 0;
    while i < 8 {
        factors[i] = 1 << (16 - bits - i * bits % 8);
        i += 1;
    }
    factors
}

static WORD_ORDER: [[u8; 16]; 7] =
    [[0; 16], [0; 16], [0; 16], word_order(3), [0; 16], word_order(5), word_order(6)];

static WORD_FACTORS: [[u16; 8]; 7] =
    [[0; 8], [0; 8], [0; 8], word_factors(3), [0; 8], word_factors(5), word_factors(6)];

/// `sums + ` four dot products of four signed bytes each. The intrinsic is not stable yet.
///
/// # Safety
///
/// The dot product extension must be available.
#[inline(always)]
pub(super) unsafe fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: an operation between registers; the caller vouches for the extension.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) a, in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Sixteen bytes at `from`; those from `end` on are taken as zero.
///
/// # Safety
///
/// Bytes from `from` up to `end` are readable.
#[inline(always)]
unsafe fn sixteen_bytes(from: *const u8, end: *const u8) -> uint8x16_t {
    // SAFETY: near the end the readable bytes are copied first.
    unsafe {
        let readable = end as usize - from as usize;
        if readable >= 16 {
            return vld1q_u8(from);
        }
        let mut copy = [0u8; 16];
        std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), readable);
        vld1q_u8(copy.as_ptr())
    }
}

/// Eight values in column order as words, from `BITS` bytes.
///
/// # Safety
///
/// NEON; bytes up to `end` are readable at `from`.
#[inline(always)]
unsafe fn eight_words<const BITS: u8>(from: *const u8, end: *const u8) -> int16x8_t {
    let bits = BITS as usize;
    // SAFETY: passed on to the caller; eight values of 8 bits are eight readable bytes.
    unsafe {
        if BITS == 8 {
            return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from)));
        }
        let order = vld1q_u8(WORD_ORDER[bits].as_ptr());
        let factors = vld1q_u16(WORD_FACTORS[bits].as_ptr());
        let words = vreinterpretq_u16_u8(vqtbl1q_u8(sixteen_bytes(from, end), order));
        let words = vmulq_u16(words, factors);
        vreinterpretq_s16_u16(match BITS {
            3 => vshrq_n_u16::<13>(words),
            5 => vshrq_n_u16::<11>(words),
            _ => vshrq_n_u16::<10>(words),
        })
    }
}

/// Group sums by words: `GROUP` columns from `column` on, for each token.
///
/// # Safety
///
/// The weights of the group start at `weight` and end before `end`; `x` are the values of whole rows.
#[inline(always)]
unsafe fn group_by_words<const BITS: u8, const GROUP: usize, const T: usize>(
    weight: *const u8,
    end: *const u8,
    x: [*const u8; T],
    column: usize,
) -> [i32; T] {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut sums = [vdupq_n_s32(0); T];
        for at in (0..GROUP).step_by(8) {
            let w = eight_words::<BITS>(weight.add(at * BITS as usize / 8), end);
            for t in 0..T {
                let x = vreinterpretq_s16_u8(vld1q_u8(x[t].add(2 * (column + at))));
                sums[t] = vmlal_s16(sums[t], vget_low_s16(w), vget_low_s16(x));
                sums[t] = vmlal_high_s16(sums[t], w, x);
            }
        }
        sums.map(|sums| vaddvq_s32(sums))
    }
}

/// Sums of the groups in the sixteen bytes at `weight` (32 or 64 columns from `column` on) by byte dot products:
/// lanes of four whole or part groups each.
///
/// # Safety
///
/// As for [`group_by_words`]; `column` is a multiple of the columns in sixteen bytes.
#[inline(always)]
unsafe fn sixteen_bytes_by_dots<const BITS: u8, const T: usize>(
    weight: *const u8,
    end: *const u8,
    x: [*const u8; T],
    column: usize,
    high: &mut [int32x4_t; T],
    low: &mut [int32x4_t; T],
) {
    let per_byte = 8 / BITS as usize;
    let step = column / (PLANE * per_byte);
    let at = step * 2 * per_byte * PLANE + column % (PLANE * per_byte) / per_byte;
    // SAFETY: passed on to the caller; activations are padded to whole steps.
    unsafe {
        let bytes = sixteen_bytes(weight, end);
        let mask = vdupq_n_u8((1 << BITS) - 1);
        for plane in 0..per_byte {
            let values = match (BITS, plane) {
                (_, 0) => vandq_u8(bytes, mask),
                (4, _) => vshrq_n_u8::<4>(bytes),
                (_, 1) => vandq_u8(vshrq_n_u8::<2>(bytes), mask),
                (_, 2) => vandq_u8(vshrq_n_u8::<4>(bytes), mask),
                _ => vshrq_n_u8::<6>(bytes),
            };
            let values = vreinterpretq_s8_u8(values);
            for t in 0..T {
                let place = x[t].add(at + plane * PLANE);
                let x_high = vreinterpretq_s8_u8(vld1q_u8(place));
                let x_low = vreinterpretq_s8_u8(vld1q_u8(place.add(per_byte * PLANE)));
                high[t] = dot(high[t], values, x_high);
                low[t] = dot(low[t], values, x_low);
            }
        }
    }
}

/// Writes the sums of up to sixteen groups from group `first` on; those that do not exist stay as they are.
///
/// # Safety
///
/// `weight` is the whole row, `end` the end of the matrix; `x` are the values of whole rows.
#[inline(always)]
unsafe fn sixteen_groups<const BITS: u8, const GROUP: usize, const T: usize>(
    weight: *const u8,
    end: *const u8,
    x: [*const u8; T],
    first: usize,
    count: usize,
    sums: &mut [[i32; GROUP_LANES]; T],
) {
    let group_bytes = GROUP * BITS as usize / 8;
    // SAFETY: passed on to the caller.
    unsafe {
        if BITS != 2 && BITS != 4 {
            for g in 0..count {
                let from = weight.add((first + g) * group_bytes);
                crate::prefetch(from.wrapping_add(PREFETCH_BYTES));
                let group = group_by_words::<BITS, GROUP, T>(from, end, x, (first + g) * GROUP);
                for t in 0..T {
                    sums[t][g] = group[t];
                }
            }
            return;
        }
        // Two groups of 32 columns share sixteen bytes of 2-bit weights.
        let together = if group_bytes < 16 { 2 } else { 1 };
        for g in (0..count).step_by(together) {
            let from = weight.add((first + g) * group_bytes);
            crate::prefetch(from.wrapping_add(PREFETCH_BYTES));
            let (mut high, mut low) = ([vdupq_n_s32(0); T], [vdupq_n_s32(0); T]);
            for at in (0..group_bytes * together).step_by(16) {
                let column = (first + g) * GROUP + at * 8 / BITS as usize;
                let from = from.add(at);
                sixteen_bytes_by_dots::<BITS, T>(from, end, x, column, &mut high, &mut low);
            }
            for t in 0..T {
                let both = vaddq_s32(vshlq_n_s32::<8>(high[t]), low[t]);
                if together == 2 {
                    let pairs = vpaddq_s32(both, both);
                    sums[t][g] = vgetq_lane_s32::<0>(pairs);
                    if g + 1 < count {
                        sums[t][g + 1] = vgetq_lane_s32::<1>(pairs);
                    }
                } else {
                    sums[t][g] = vaddvq_s32(both);
                }
            }
        }
    }
}

/// Rows of a task for `T` tokens starting with `first`.
///
/// # Safety
///
/// As for [`quantised_rows`].
#[inline(always)]
unsafe fn rows<const BITS: u8, const GROUP: usize, const T: usize>(
    task: &IntegerTask<'_>,
    first: usize,
) {
    let (_, _, float) = task.affine();
    let source = task.biases();
    let groups = task.matrix.columns / GROUP;
    let row_bytes = task.matrix.columns * BITS as usize / 8;
    let x: [usize; T] = std::array::from_fn(|t| task.x_row(first + t));
    let values = x.map(|row| task.x.values(row).as_ptr());
    let end = task.matrix.weight.as_ptr_range().end;
    // SAFETY: `Matrix` guarantees the bytes of each row; activations are padded; the caller vouches for
    // features and output.
    unsafe {
        for row in task.rows.clone() {
            let weight = task.matrix.weight.as_ptr().add(row * row_bytes);
            let mut lanes = [NeonLanes::splat(0.0); T];
            for sixteen in (0..groups).step_by(GROUP_LANES) {
                let count = (groups - sixteen).min(GROUP_LANES);
                let mut sums = [[0; GROUP_LANES]; T];
                sixteen_groups::<BITS, GROUP, T>(weight, end, values, sixteen, count, &mut sums);
                let at = row * groups + sixteen;
                let scale = factors(float, task.matrix.scales, at, count);
                let bias = match source {
                    Biases::Factor(factor) => scale.mul(NeonLanes::splat(factor)),
                    Biases::Zeros => scale.mul(NeonLanes::load(task.zeros(at, count).as_ptr())),
                    Biases::Stored => factors(float, task.matrix.biases, at, count),
                };
                for t in 0..T {
                    let exact = NeonLanes::from_integers(sums[t].as_ptr());
                    let d = NeonLanes::load(task.x.scales(x[t])[sixteen..].as_ptr());
                    let sum = NeonLanes::load(task.x.sums(x[t])[sixteen..].as_ptr());
                    lanes[t] = exact.mul(d).mul_add(scale, lanes[t]);
                    lanes[t] = sum.mul_add(bias, lanes[t]);
                }
            }
            for t in 0..T {
                *task.out(first + t, row) = lanes[t].sum();
            }
        }
    }
}

/// Sixteen scales or biases: `count` exist, the others are zero.
///
/// # Safety
///
/// NEON must be available.
#[inline(always)]
unsafe fn factors(float: FloatType, bytes: &[u8], first: usize, count: usize) -> NeonLanes {
    let size = float.bytes();
    let bytes = &bytes[first * size..(first + count) * size];
    let mut copy = [0u8; 4 * GROUP_LANES];
    let from = if count == GROUP_LANES {
        bytes.as_ptr()
    } else {
        copy[..bytes.len()].copy_from_slice(bytes);
        copy.as_ptr()
    };
    // SAFETY: sixteen values are readable in the slice or in the copy.
    unsafe {
        match float {
            FloatType::F32 => NeonLanes::load(from.cast()),
            FloatType::F16 => NeonLanes::load_f16(from),
            FloatType::Bf16 => NeonLanes::load_bf16(from),
        }
    }
}

/// Defines the function for one width and group.
macro_rules! width_and_group {
    ($name:ident, $bits:literal, $group:literal) => {
        four_tokens_at_a_time!("neon,dotprod", $name, $bits, $group);
    };
}

crate::quantised::by_width_and_group!(width_and_group);

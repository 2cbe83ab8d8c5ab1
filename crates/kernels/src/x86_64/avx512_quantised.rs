//! Integer products with AVX-512 VNNI.
//!
//! Activations are two signed bytes, so `S` of a group (see `quantised.rs`) is `256 * (q . high) +
//! (q . low)`, two byte dot products per weight byte. A *unit* is the run of columns whose dot products
//! are added up in one register; its sixteen lanes belong to one, two, four or eight whole groups. Units
//! are turned four at a time into one register by adding transposed halves, so that sixteen group
//! sums end up in sixteen lanes and meet their scales and biases without any broadcast: the
//! additions cost 2.6 instructions per unit and save the conversion, spread and multiplication of
//! each unit (docs/decisions.md).
//!
//! One row at a time, weights prefetched 48 cache lines ahead; up to four tokens share the unpacking.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::avx512_unpack::{planes, read_step, step_bytes, step_columns, unpack};
use crate::activations::{GROUP_LANES, Packing};
use crate::format::FloatType;
use crate::task::IntegerTask;
use std::arch::x86_64::*;

/// Bytes ahead of the reader that weights are prefetched.
const PREFETCH_BYTES: usize = 48 * 64;

/// Bytes ahead of the reader that scales and biases are prefetched: some rows, as for the weights.
const FACTORS_PREFETCH_BYTES: usize = 6 * 64;

/// Units reduced together.
const QUAD: usize = 4;

/// Packing of activations for weights of the given width.
pub(super) fn packing(bits: u8) -> Packing {
    Packing::Planes { per_byte: planes(bits) }
}

/// Columns of a unit: a step or a group, whichever is longer.
const fn unit_columns(bits: u8, group: usize) -> usize {
    if step_columns(bits) > group { step_columns(bits) } else { group }
}

/// Whole groups in a unit.
const fn unit_groups(bits: u8, group: usize) -> usize {
    unit_columns(bits, group) / group
}

/// Where group `g` of sixteen ends up after the reduction of units that hold `groups` groups.
const fn group_order(groups: usize) -> [i32; GROUP_LANES] {
    let mut order = [0; GROUP_LANES];
    let mut g = 0;
    while g < GROUP_LANES {
        let (unit, within) = (g / groups, g % groups);
        order[g] = match groups {
            1 => g,
            2 => (2 * (unit / QUAD) + within) * 4 + unit % QUAD,
            4 => within * 4 + unit,
            _ => within / 2 * 4 + 2 * unit + within % 2,
        } as i32;
        g += 1;
    }
    order
}

static ORDER: [[i32; GROUP_LANES]; 9] = [
    [0; GROUP_LANES],
    group_order(1),
    group_order(2),
    [0; GROUP_LANES],
    group_order(4),
    [0; GROUP_LANES],
    [0; GROUP_LANES],
    [0; GROUP_LANES],
    group_order(8),
];

/// Four vectors to one: 128-bit block `k` of the result holds the sums of block `k` of a, b, c, d.
#[inline(always)]
pub(super) unsafe fn sum_blocks(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    // SAFETY: register operations; the caller vouches for AVX-512.
    unsafe {
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

/// Adds neighbouring 128-bit blocks: a01, a23, b01, b23.
#[inline(always)]
unsafe fn sum_block_pairs(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: register operations; the caller vouches for AVX-512.
    unsafe {
        _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
        )
    }
}

/// Sixteen group sums in order from up to four reduced quads.
#[inline(always)]
pub(super) unsafe fn sum_groups<const GROUPS: usize>(quads: [__m512i; QUAD]) -> __m512i {
    // SAFETY: register operations; the caller vouches for AVX-512.
    unsafe {
        let sums = match GROUPS {
            1 => {
                let low = sum_block_pairs(quads[0], quads[1]);
                let high = sum_block_pairs(quads[2], quads[3]);
                return sum_block_pairs(low, high);
            }
            2 => sum_block_pairs(quads[0], quads[1]),
            _ => quads[0],
        };
        _mm512_permutexvar_epi32(_mm512_loadu_si512(ORDER[GROUPS].as_ptr().cast()), sums)
    }
}

/// Sixteen scales or biases: `count` exist, the others are zero.
#[inline(always)]
pub(super) unsafe fn factors(
    float: FloatType,
    base: *const u8,
    first: usize,
    count: usize,
) -> __m512 {
    let mask = if count >= 16 { u16::MAX } else { (1u16 << count) - 1 };
    // SAFETY: masked lanes are not accessed; the caller vouches for `count` values.
    unsafe {
        match float {
            FloatType::F32 => _mm512_maskz_loadu_ps(mask, base.add(4 * first).cast()),
            FloatType::F16 => {
                _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, base.add(2 * first).cast()))
            }
            FloatType::Bf16 => {
                let bits = _mm256_maskz_loadu_epi16(mask, base.add(2 * first).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
            }
        }
    }
}

/// Group sums of sixteen groups of one row for `T` tokens. `left` is what remains of the row in
/// bytes; with `TAIL` it may be less than sixteen groups.
#[inline(always)]
unsafe fn sixteen_groups<
    const BITS: u8,
    const GROUP: usize,
    const GROUPS: usize,
    const T: usize,
    const TAIL: bool,
>(
    weight: *const u8,
    left: usize,
    x: [*const u8; T],
) -> [__m512i; T] {
    let planes = planes(BITS);
    let steps = unit_columns(BITS, GROUP) / step_columns(BITS);
    let unit_bytes = steps * step_bytes(BITS);
    let x_step = planes * 128;
    let units = GROUP_LANES / GROUPS;
    let together = if units < QUAD { units } else { QUAD };
    // SAFETY: the caller vouches for `left` bytes of weights, for activations as long as the
    // padded columns, and for the features.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut quads = [[zero; QUAD]; T];
        for quad in 0..units / together {
            let first = quad * together;
            if TAIL && first * unit_bytes >= left {
                break;
            }
            let mut w = [[[zero; 4]; 2]; QUAD];
            for u in 0..together {
                for s in 0..steps {
                    let at = (first + u) * unit_bytes + s * step_bytes(BITS);
                    let remains = if TAIL { left.saturating_sub(at) } else { 64 };
                    let from = weight.wrapping_add(at);
                    // Every second of short steps: no line is left out, and fewer are asked for twice.
                    if step_bytes(BITS) > 32 || u % 2 == 0 {
                        crate::prefetch(from.wrapping_add(PREFETCH_BYTES));
                    }
                    w[u][s] = unpack::<BITS>(read_step::<BITS>(from, remains));
                }
            }
            for t in 0..T {
                let mut sums = [zero; QUAD];
                for u in 0..together {
                    // A unit past the end has zero weights; any activations will do.
                    let present = !TAIL || (first + u) * unit_bytes < left;
                    let unit = if present { first + u } else { 0 };
                    let (mut high, mut low) = (zero, zero);
                    for s in 0..steps {
                        let x = x[t].add((unit * steps + s) * x_step);
                        for p in 0..planes {
                            let h = _mm512_load_si512(x.add(p * 64).cast());
                            let l = _mm512_load_si512(x.add((planes + p) * 64).cast());
                            high = _mm512_dpbusd_epi32(high, w[u][s][p], h);
                            low = _mm512_dpbusd_epi32(low, w[u][s][p], l);
                        }
                    }
                    sums[u] = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
                }
                quads[t][quad] = if GROUPS == 8 {
                    // Two units of eight groups, two lanes each.
                    let a = _mm512_castsi512_ps(sums[0]);
                    let b = _mm512_castsi512_ps(sums[1]);
                    _mm512_add_epi32(
                        _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, b)),
                        _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, b)),
                    )
                } else {
                    sum_blocks(sums[0], sums[1], sums[2], sums[3])
                };
            }
        }
        let mut out = [zero; T];
        for t in 0..T {
            out[t] = sum_groups::<GROUPS>(quads[t]);
        }
        out
    }
}

/// Rows of a task for `T` tokens starting with `first`.
#[inline(always)]
unsafe fn rows<const BITS: u8, const GROUP: usize, const GROUPS: usize, const T: usize>(
    task: &IntegerTask<'_>,
    first: usize,
) {
    let (_, _, float) = task.affine();
    let bias_factor = task.bias_factor();
    let columns = task.matrix.columns;
    let groups = columns / GROUP;
    let row_bytes = columns * BITS as usize / 8;
    let block_bytes = GROUP_LANES * GROUP * BITS as usize / 8;
    let x: [usize; T] = std::array::from_fn(|t| task.x_row(first + t));
    let values = x.map(|row| task.x.values(row).as_ptr());
    let scales = x.map(|row| task.x.scales(row).as_ptr());
    let sums = x.map(|row| task.x.sums(row).as_ptr());
    // SAFETY: `Matrix` guarantees the bytes of each row; prepared activations are padded to whole
    // blocks of groups and steps of columns; the caller vouches for features and output.
    unsafe {
        for row in task.rows.clone() {
            let weight = task.matrix.weight.as_ptr().add(row * row_bytes);
            let mut lanes = [_mm512_setzero_ps(); T];
            for block in 0..groups.div_ceil(GROUP_LANES) {
                let group = block * GROUP_LANES;
                let left = row_bytes - block * block_bytes;
                let from = weight.add(block * block_bytes);
                let x = values.map(|x| x.add(2 * group * GROUP));
                let whole = left >= block_bytes;
                let exact = if whole {
                    sixteen_groups::<BITS, GROUP, GROUPS, T, false>(from, left, x)
                } else {
                    sixteen_groups::<BITS, GROUP, GROUPS, T, true>(from, left, x)
                };
                let count = (groups - group).min(GROUP_LANES);
                let at = row * groups + group;
                let ahead = at * float.bytes() + FACTORS_PREFETCH_BYTES;
                crate::prefetch(task.matrix.scales.as_ptr().wrapping_add(ahead));
                crate::prefetch(task.matrix.biases.as_ptr().wrapping_add(ahead));
                let scale = factors(float, task.matrix.scales.as_ptr(), at, count);
                let bias = match bias_factor {
                    Some(factor) => _mm512_mul_ps(scale, _mm512_set1_ps(factor)),
                    None => factors(float, task.matrix.biases.as_ptr(), at, count),
                };
                for t in 0..T {
                    let d = _mm512_loadu_ps(scales[t].add(group));
                    let sum = _mm512_loadu_ps(sums[t].add(group));
                    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(exact[t]), d);
                    lanes[t] = _mm512_fmadd_ps(product, scale, lanes[t]);
                    lanes[t] = _mm512_fmadd_ps(sum, bias, lanes[t]);
                }
            }
            for t in 0..T {
                *task.out(first + t, row) = sum_lanes(lanes[t]);
            }
        }
    }
}

/// The tree of [`Lanes::sum`](crate::lanes::Lanes::sum).
#[inline(always)]
pub(super) unsafe fn sum_lanes(lanes: __m512) -> f32 {
    // SAFETY: register operations; the caller vouches for AVX-512 DQ.
    unsafe {
        let low = _mm512_castps512_ps256(lanes);
        super::avx2::sum_of_eight(_mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(lanes)))
    }
}

/// Defines the function for one width and group.
macro_rules! width_and_group {
    ($name:ident, $bits:literal, $group:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(task: &IntegerTask<'_>) {
            const GROUPS: usize = unit_groups($bits, $group);
            let mut token = 0;
            // Tokens outside, rows inside: the activations of a few tokens and the rows of a piece
            // both stay in the first-level cache.
            // SAFETY: passed on to the caller.
            unsafe {
                while token + 4 <= task.count {
                    rows::<$bits, $group, GROUPS, 4>(task, token);
                    token += 4;
                }
                if token + 2 <= task.count {
                    rows::<$bits, $group, GROUPS, 2>(task, token);
                    token += 2;
                }
                if token < task.count {
                    rows::<$bits, $group, GROUPS, 1>(task, token);
                }
            }
        }
    };
}

crate::quantised::by_width_and_group!(width_and_group);

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
//! One token is multiplied with several rows at a time, which share the loads of its activations; up to four tokens
//! take one row at a time and share its unpacking. Weights are prefetched 48 cache lines ahead.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::avx512_unpack::{planes, read_step, step_bytes, step_columns, unpack};
use crate::activations::{GROUP_LANES, Packing};
use crate::each;
use crate::format::FloatType;
use crate::task::{Biases, IntegerTask};
use std::arch::x86_64::*;

/// Bytes ahead of the reader that weights are prefetched.
const PREFETCH_BYTES: usize = 48 * 64;

/// Bytes ahead of the reader that scales and biases are prefetched: some rows, as for the weights.
const FACTORS_PREFETCH_BYTES: usize = 6 * 64;

/// Units reduced together.
const QUAD: usize = 4;

/// Rows that one token is multiplied with at a time.
const STEP_ROWS: usize = 2;

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
    // SAFETY: masked lanes are not accessed; the caller vouches for `count` values.
    unsafe {
        let wide = |bits| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
        let from = base.add(float.bytes() * first);
        if count >= GROUP_LANES {
            return match float {
                FloatType::F32 => _mm512_loadu_ps(from.cast()),
                FloatType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
                FloatType::Bf16 => wide(_mm256_loadu_si256(from.cast())),
            };
        }
        let mask = (1u16 << count) - 1;
        match float {
            FloatType::F32 => _mm512_maskz_loadu_ps(mask, from.cast()),
            FloatType::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.cast())),
            FloatType::Bf16 => wide(_mm256_maskz_loadu_epi16(mask, from.cast())),
        }
    }
}

/// What remains of rows: sixteen groups at least.
const WHOLE: u8 = 0;
/// Eight groups: the rows of many experts.
const HALF: u8 = 1;
/// Anything else.
const TAIL: u8 = 2;

/// Weights and activations of sixteen groups of `R` rows and `T` tokens, or of as many as remain. `left` is what
/// remains of a row in bytes.
#[derive(Clone, Copy)]
struct Sources<const R: usize, const T: usize> {
    weight: [*const u8; R],
    left: usize,
    x: [*const u8; T],
}

/// Group sums, spread over the lanes of a register for each row and token.
type Sums<const R: usize, const T: usize> = [[__m512i; T]; R];

/// Sums of one unit.
#[inline(always)]
unsafe fn unit<
    const BITS: u8,
    const GROUP: usize,
    const R: usize,
    const T: usize,
    const REST: u8,
>(
    index: usize,
    from: &Sources<R, T>,
) -> Sums<R, T> {
    let planes = planes(BITS);
    let steps = unit_columns(BITS, GROUP) / step_columns(BITS);
    let x_step = planes * 128;
    // A unit past the end has zero weights; any activations will do.
    let present = REST != TAIL || index * steps * step_bytes(BITS) < from.left;
    let x_index = if present { index } else { 0 };
    // SAFETY: the caller vouches for `left` bytes of weights, for activations as long as the
    // padded columns, and for the features.
    unsafe {
        let zero = _mm512_setzero_si512();
        let (mut high, mut low) = ([[zero; T]; R], [[zero; T]; R]);
        for s in 0..steps {
            let at = (index * steps + s) * step_bytes(BITS);
            let left = if REST == TAIL { from.left.saturating_sub(at) } else { step_bytes(BITS) };
            let mut w = [[zero; 4]; R];
            for r in 0..R {
                let weight = from.weight[r].wrapping_add(at);
                // Every second of short steps: no line is left out, and fewer are asked for twice.
                if step_bytes(BITS) > 32 || index.is_multiple_of(2) {
                    crate::prefetch(weight.wrapping_add(PREFETCH_BYTES));
                }
                w[r] = unpack::<BITS>(read_step::<BITS>(weight, left));
            }
            for p in 0..planes {
                for t in 0..T {
                    let x = from.x[t].add((x_index * steps + s) * x_step + p * 64);
                    let h = _mm512_load_si512(x.cast());
                    let l = _mm512_load_si512(x.add(planes * 64).cast());
                    for r in 0..R {
                        high[r][t] = _mm512_dpbusd_epi32(high[r][t], w[r][p], h);
                        low[r][t] = _mm512_dpbusd_epi32(low[r][t], w[r][p], l);
                    }
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                low[r][t] = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[r][t]), low[r][t]);
            }
        }
        low
    }
}

/// Sums of the units that are reduced together. Loops over these are written out: left to the compiler they would
/// keep their registers in memory.
#[inline(always)]
unsafe fn quad<
    const BITS: u8,
    const GROUP: usize,
    const GROUPS: usize,
    const R: usize,
    const T: usize,
    const REST: u8,
>(
    index: usize,
    from: &Sources<R, T>,
) -> Sums<R, T> {
    let first = index * QUAD;
    // SAFETY: passed on to the caller.
    unsafe {
        let a = unit::<BITS, GROUP, R, T, REST>(first, from);
        let zero = [[_mm512_setzero_si512(); T]; R];
        let half = REST == HALF;
        let mut b = zero;
        if !(half && GROUPS == 8) {
            b = unit::<BITS, GROUP, R, T, REST>(first + 1, from);
        }
        let mut sums = a;
        if GROUPS == 8 {
            for r in 0..R {
                for t in 0..T {
                    // Two units of eight groups, two lanes each.
                    let (a, b) = (_mm512_castsi512_ps(a[r][t]), _mm512_castsi512_ps(b[r][t]));
                    sums[r][t] = _mm512_add_epi32(
                        _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, b)),
                        _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, b)),
                    );
                }
            }
            return sums;
        }
        let (mut c, mut d) = (zero, zero);
        if !(half && GROUPS == 4) {
            c = unit::<BITS, GROUP, R, T, REST>(first + 2, from);
            d = unit::<BITS, GROUP, R, T, REST>(first + 3, from);
        }
        for r in 0..R {
            for t in 0..T {
                sums[r][t] = sum_blocks(a[r][t], b[r][t], c[r][t], d[r][t]);
            }
        }
        sums
    }
}

/// Sums of sixteen groups, in order.
#[inline(always)]
unsafe fn sixteen_groups<
    const BITS: u8,
    const GROUP: usize,
    const GROUPS: usize,
    const R: usize,
    const T: usize,
    const REST: u8,
>(
    from: &Sources<R, T>,
) -> Sums<R, T> {
    // SAFETY: passed on to the caller.
    unsafe {
        let first = quad::<BITS, GROUP, GROUPS, R, T, REST>(0, from);
        let zero = [[_mm512_setzero_si512(); T]; R];
        let (mut second, mut third, mut fourth) = (zero, zero, zero);
        if GROUPS == 1 || GROUPS == 2 && REST != HALF {
            second = quad::<BITS, GROUP, GROUPS, R, T, REST>(1, from);
        }
        if GROUPS == 1 && REST != HALF {
            third = quad::<BITS, GROUP, GROUPS, R, T, REST>(2, from);
            fourth = quad::<BITS, GROUP, GROUPS, R, T, REST>(3, from);
        }
        let mut sums = first;
        for r in 0..R {
            for t in 0..T {
                sums[r][t] =
                    sum_groups::<GROUPS>([first[r][t], second[r][t], third[r][t], fourth[r][t]]);
            }
        }
        sums
    }
}

/// Scales and biases of `count` groups from `group` on, of `R` rows from `row` on. They are read before the group sums
/// are formed: a branch between sums and their use would make the compiler keep activations in memory.
#[inline(always)]
unsafe fn weight_factors<const R: usize>(
    task: &IntegerTask<'_>,
    (row, group, count): (usize, usize, usize),
    groups: usize,
) -> [[__m512; 2]; R] {
    let (_, _, float) = task.affine();
    let source = task.biases();
    let (scales, biases) = (task.matrix.scales.as_ptr(), task.matrix.biases.as_ptr());
    // SAFETY: the caller vouches for these groups and for the features.
    unsafe {
        let mut both = [[_mm512_setzero_ps(); 2]; R];
        for r in 0..R {
            let at = (row + r) * groups + group;
            let ahead = at * float.bytes() + FACTORS_PREFETCH_BYTES;
            crate::prefetch(scales.wrapping_add(ahead));
            crate::prefetch(biases.wrapping_add(ahead));
            let scale = factors(float, scales, at, count);
            let bias = match source {
                Biases::Factor(factor) => _mm512_mul_ps(scale, _mm512_set1_ps(factor)),
                Biases::Zeros => {
                    _mm512_mul_ps(scale, _mm512_loadu_ps(task.zeros(at, count).as_ptr()))
                }
                Biases::Stored => factors(float, biases, at, count),
            };
            both[r] = [scale, bias];
        }
        both
    }
}

/// Adds group sums to the accumulation lanes; `x` are the factors of the activations, scales and sums, of each token,
/// taken from `group` on.
#[inline(always)]
unsafe fn combine<const R: usize, const T: usize>(
    lanes: &mut [[__m512; T]; R],
    exact: Sums<R, T>,
    weights: [[__m512; 2]; R],
    x: &[[*const f32; 2]; T],
    group: usize,
) {
    // SAFETY: the caller vouches for sixteen factors of the activations and for the features.
    unsafe {
        for t in 0..T {
            let [d, sum] = x[t];
            let (d, sum) = (_mm512_loadu_ps(d.add(group)), _mm512_loadu_ps(sum.add(group)));
            for r in 0..R {
                let [scale, bias] = weights[r];
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(exact[r][t]), d);
                lanes[r][t] = _mm512_fmadd_ps(product, scale, lanes[r][t]);
                lanes[r][t] = _mm512_fmadd_ps(sum, bias, lanes[r][t]);
            }
        }
    }
}

/// `R` rows of a task from `row` on, for `T` tokens starting with `first`.
#[inline(always)]
unsafe fn rows<
    const BITS: u8,
    const GROUP: usize,
    const GROUPS: usize,
    const R: usize,
    const T: usize,
>(
    task: &IntegerTask<'_>,
    row: usize,
    first: usize,
) {
    let columns = task.matrix.columns;
    let groups = columns / GROUP;
    let row_bytes = columns * BITS as usize / 8;
    let block_bytes = GROUP_LANES * GROUP * BITS as usize / 8;
    let values = each(|t| task.x.values(task.x_row(first + t)).as_ptr());
    let weight = each(|r| task.matrix.weight.as_ptr().wrapping_add((row + r) * row_bytes));
    let x = each(|t| {
        let row = task.x_row(first + t);
        [task.x.scales(row).as_ptr(), task.x.sums(row).as_ptr()]
    });
    // SAFETY: `Matrix` guarantees the bytes of each row; prepared activations are padded to whole
    // blocks of groups and steps of columns; the caller vouches for features and output.
    unsafe {
        let mut lanes = [[_mm512_setzero_ps(); T]; R];
        let mut group = 0;
        let mut from = Sources { weight, left: row_bytes, x: values };
        while groups - group >= GROUP_LANES {
            let factors = weight_factors::<R>(task, (row, group, GROUP_LANES), groups);
            let exact = sixteen_groups::<BITS, GROUP, GROUPS, R, T, WHOLE>(&from);
            combine(&mut lanes, exact, factors, &x, group);
            group += GROUP_LANES;
            from.left -= block_bytes;
            for weight in &mut from.weight {
                *weight = weight.wrapping_add(block_bytes);
            }
            for x in &mut from.x {
                *x = x.wrapping_add(2 * GROUP_LANES * GROUP);
            }
        }
        // Steps of the trunk and prompts seldom have such rows: one form less to compile for several tokens.
        if T == 1 && groups - group == GROUP_LANES / 2 {
            let factors = weight_factors::<R>(task, (row, group, GROUP_LANES / 2), groups);
            let exact = sixteen_groups::<BITS, GROUP, GROUPS, R, T, HALF>(&from);
            combine(&mut lanes, exact, factors, &x, group);
        } else if group < groups {
            let factors = weight_factors::<R>(task, (row, group, groups - group), groups);
            let exact = sixteen_groups::<BITS, GROUP, GROUPS, R, T, TAIL>(&from);
            combine(&mut lanes, exact, factors, &x, group);
        }
        for r in 0..R {
            for t in 0..T {
                *task.out(first + t, row + r) = sum_lanes(lanes[r][t]);
            }
        }
    }
}

/// All rows of a task for `T` tokens starting with `first`, `R` at a time.
#[inline(always)]
unsafe fn all_rows<
    const BITS: u8,
    const GROUP: usize,
    const GROUPS: usize,
    const R: usize,
    const T: usize,
>(
    task: &IntegerTask<'_>,
    first: usize,
) {
    let mut row = task.rows.start;
    // SAFETY: passed on to the caller.
    unsafe {
        while row + R <= task.rows.end {
            rows::<BITS, GROUP, GROUPS, R, T>(task, row, first);
            row += R;
        }
        while R > 1 && row < task.rows.end {
            rows::<BITS, GROUP, GROUPS, 1, T>(task, row, first);
            row += 1;
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
        #[target_feature(enable = "gfni,avx2,fma,f16c")]
        unsafe fn $name(task: &IntegerTask<'_>) {
            const GROUPS: usize = unit_groups($bits, $group);
            let mut token = 0;
            // Tokens outside, rows inside: the activations of a few tokens and the rows of a piece
            // both stay in the first-level cache.
            // SAFETY: passed on to the caller.
            unsafe {
                while token + 4 <= task.count {
                    all_rows::<$bits, $group, GROUPS, 1, 4>(task, token);
                    token += 4;
                }
                if token + 2 <= task.count {
                    all_rows::<$bits, $group, GROUPS, 1, 2>(task, token);
                    token += 2;
                }
                if token < task.count {
                    all_rows::<$bits, $group, GROUPS, STEP_ROWS, 1>(task, token);
                }
            }
        }
    };
}

crate::quantised::by_width_and_group!(width_and_group);

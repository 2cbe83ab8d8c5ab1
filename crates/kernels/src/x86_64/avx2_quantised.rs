//! Integer products with AVX2: 16-bit weights times 16-bit activations, and bytes for 2 bits.
//!
//! Byte products must keep clear of the saturation of `vpmaddubsw`, which wide weights do not; word products never
//! saturate, cost two instructions more per 32 bytes of 4-bit weights, and are the same for every width. Two bits are
//! small enough for bytes, whose products are added up as words. Four and two bits are shifted and masked where they
//! are; the other widths are brought to words by a byte shuffle, a multiplication that shifts each word left by its own
//! amount, and one shift right. Three bits come as pairs, six bits a word.
//!
//! A *unit* is a run of columns whose products are added up in one register; its eight lanes belong
//! to one, two or four whole groups. Units of eight groups are reduced together by horizontal additions. Sixteen groups
//! at a time are whole and in registers; what remains of a row, and what would be read past the matrix, goes by copies.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use crate::activations::{GROUP_LANES, Packing};
use crate::each;
use crate::format::FloatType;
use crate::lanes::Lanes;
use crate::quantised::four_tokens_at_a_time;
use crate::task::{Biases, IntegerTask};
use crate::x86_64::avx2::Avx2Lanes;
use std::arch::x86_64::*;

/// Bytes ahead of the reader that weights are prefetched.
const PREFETCH_BYTES: usize = 48 * 64;

/// Bytes that a step may read.
const READ_BYTES: usize = 32;

/// Packing of activations for weights of the given width.
pub(super) fn packing(bits: u8) -> Packing {
    match bits {
        4 => Packing::Words { per_word: 4 },
        3 => Packing::Words { per_word: 2 },
        2 => Packing::Planes { per_byte: 4 },
        _ => Packing::Natural,
    }
}

/// Columns that one unpacking gives.
const fn step_columns(bits: u8) -> usize {
    match bits {
        4 => 64,
        3 => 32,
        2 => 128,
        _ => 16,
    }
}

/// Columns of a unit: a step or a group, whichever is longer.
const fn unit_columns(bits: u8, group: usize) -> usize {
    if step_columns(bits) > group { step_columns(bits) } else { group }
}

/// Where the activations of the step at a column are.
#[inline(always)]
fn x_offset<const BITS: u8>(column: usize) -> usize {
    match BITS {
        // The vectors of 256 columns have 64 bytes: a half of each for a step.
        2 => column / 256 * 512 + column % 256 / 4,
        _ => 2 * column,
    }
}

/// Byte shuffle that brings the two bytes around field `i` of sixteen into word `i`.
const fn word_order(bits: usize) -> [u8; 32] {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 16 {
        let byte = i * bits / 8;
        order[2 * i] = byte as u8;
        order[2 * i + 1] = byte as u8 + 1;
        i += 1;
    }
    order
}

/// Factor that shifts field `i` of eight to the top of its word.
const fn word_factors(bits: usize) -> [u16; 16] {
    let mut factors = [0; 16];
    let mut i = 0;
    while i < 16 {
        factors[i] = 1 << (16 - bits - (i % 8) * bits % 8);
        i += 1;
    }
    factors
}

static WORD_ORDER: [[u8; 32]; 2] = [word_order(5), word_order(6)];

static WORD_FACTORS: [[u16; 16]; 2] = [word_factors(5), word_factors(6)];

/// Sixteen fields of 5, 6 or 8 bits in column order as words.
///
/// # Safety
///
/// AVX2; sixteen bytes are readable at `from`.
#[inline(always)]
unsafe fn sixteen_words<const FIELD: usize>(from: *const u8) -> __m256i {
    // SAFETY: passed on to the caller; the tables have 32 bytes.
    unsafe {
        let bytes = _mm_loadu_si128(from.cast());
        if FIELD == 8 {
            return _mm256_cvtepu8_epi16(bytes);
        }
        let order = _mm256_loadu_si256(WORD_ORDER[FIELD - 5].as_ptr().cast());
        let factors = _mm256_loadu_si256(WORD_FACTORS[FIELD - 5].as_ptr().cast());
        let words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
        let words = _mm256_mullo_epi16(words, factors);
        if FIELD == 5 { _mm256_srli_epi16::<11>(words) } else { _mm256_srli_epi16::<10>(words) }
    }
}

/// Adds the products of one step to the lanes of each token; `x` points at the step.
///
/// # Safety
///
/// AVX2; [`READ_BYTES`] are readable at `weight`, and the activations of a step at each of `x`.
#[inline(always)]
unsafe fn step<const BITS: u8, const T: usize>(
    weight: *const u8,
    x: [*const u8; T],
    sums: &mut [__m256i; T],
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut multiply = |p: usize, w: __m256i| {
            for t in 0..T {
                let x = _mm256_loadu_si256(x[t].add(32 * p).cast());
                sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(w, x));
            }
        };
        match BITS {
            4 => {
                let w = _mm256_loadu_si256(weight.cast());
                let mask = _mm256_set1_epi16(0x0f);
                multiply(0, _mm256_and_si256(w, mask));
                multiply(1, _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask));
                multiply(2, _mm256_and_si256(_mm256_srli_epi16::<8>(w), mask));
                multiply(3, _mm256_srli_epi16::<12>(w));
            }
            3 => {
                let pairs = sixteen_words::<6>(weight);
                multiply(0, _mm256_and_si256(pairs, _mm256_set1_epi16(7)));
                multiply(1, _mm256_srli_epi16::<3>(pairs));
            }
            2 => {
                let w = _mm256_loadu_si256(weight.cast());
                let mask = _mm256_set1_epi8(3);
                let planes = [
                    _mm256_and_si256(w, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<2>(w), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<6>(w), mask),
                ];
                for t in 0..T {
                    // Words of at most 4 * 2 * 3 * 128 in magnitude.
                    let mut high = _mm256_setzero_si256();
                    let mut low = high;
                    for p in 0..4 {
                        let h = _mm256_loadu_si256(x[t].add(64 * p).cast());
                        let l = _mm256_loadu_si256(x[t].add(256 + 64 * p).cast());
                        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(planes[p], h));
                        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(planes[p], l));
                    }
                    let high = _mm256_madd_epi16(high, _mm256_set1_epi16(256));
                    let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
                    sums[t] = _mm256_add_epi32(sums[t], _mm256_add_epi32(high, low));
                }
            }
            5 => multiply(0, sixteen_words::<5>(weight)),
            6 => multiply(0, sixteen_words::<6>(weight)),
            _ => multiply(0, sixteen_words::<8>(weight)),
        }
    }
}

/// Sums of the unit that begins `column` columns after `weight` and `x`.
///
/// # Safety
///
/// As for [`step`], for each step of the unit.
#[inline(always)]
unsafe fn unit<const BITS: u8, const GROUP: usize, const T: usize>(
    weight: *const u8,
    x: [*const u8; T],
    column: usize,
) -> [__m256i; T] {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); T];
        for s in (0..unit_columns(BITS, GROUP)).step_by(step_columns(BITS)) {
            let at = column + s;
            let x = each(|t| x[t].wrapping_add(x_offset::<BITS>(at)));
            step::<BITS, T>(weight.add(at * BITS as usize / 8), x, &mut sums);
        }
        sums
    }
}

/// Neighbours added up, in pairs of units, for each token.
#[inline(always)]
unsafe fn added<const T: usize>(a: [__m256i; T], b: [__m256i; T]) -> [__m256i; T] {
    let mut sums = a;
    for t in 0..T {
        // SAFETY: register operations; the caller vouches for AVX2.
        sums[t] = unsafe { _mm256_hadd_epi32(a[t], b[t]) };
    }
    sums
}

/// Sums of eight groups in order, from `column` on. The units are written out and added up as they come: all eight
/// would not stay in registers.
///
/// # Safety
///
/// As for [`step`], for each step of the groups.
#[inline(always)]
unsafe fn eight_groups<const BITS: u8, const GROUP: usize, const T: usize>(
    weight: *const u8,
    x: [*const u8; T],
    column: usize,
) -> [__m256i; T] {
    let length = unit_columns(BITS, GROUP);
    // SAFETY: passed on to the caller.
    unsafe {
        let a = unit::<BITS, GROUP, T>(weight, x, column);
        let b = unit::<BITS, GROUP, T>(weight, x, column + length);
        let mut sums = added(a, b);
        if length / GROUP == 4 {
            for t in 0..T {
                sums[t] = in_order(sums[t], 4);
            }
            return sums;
        }
        let c = unit::<BITS, GROUP, T>(weight, x, column + 2 * length);
        let d = unit::<BITS, GROUP, T>(weight, x, column + 3 * length);
        sums = added(sums, added(c, d));
        if length / GROUP == 2 {
            for t in 0..T {
                sums[t] = in_order(sums[t], 2);
            }
            return sums;
        }
        let a = unit::<BITS, GROUP, T>(weight, x, column + 4 * length);
        let b = unit::<BITS, GROUP, T>(weight, x, column + 5 * length);
        let late = added(a, b);
        let c = unit::<BITS, GROUP, T>(weight, x, column + 6 * length);
        let d = unit::<BITS, GROUP, T>(weight, x, column + 7 * length);
        let late = added(late, added(c, d));
        for t in 0..T {
            sums[t] = _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(sums[t], late[t]),
                _mm256_permute2x128_si256::<0x31>(sums[t], late[t]),
            );
        }
        sums
    }
}

/// Eight sums of units of `groups` groups, added up within halves, in the order of the groups.
#[inline(always)]
pub(super) unsafe fn in_order(sums: __m256i, groups: usize) -> __m256i {
    // SAFETY: register operations; the caller vouches for AVX2.
    unsafe {
        let order = if groups == 2 {
            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)
        } else {
            _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)
        };
        _mm256_permutevar8x32_epi32(sums, order)
    }
}

/// Eight group sums in order from the units of eight groups.
#[inline(always)]
pub(super) unsafe fn sum_groups(units: &[__m256i; 8], groups: usize) -> __m256i {
    // SAFETY: register operations; the caller vouches for AVX2.
    unsafe {
        let quad = |a, b, c, d| _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        match groups {
            1 => {
                let a = quad(units[0], units[1], units[2], units[3]);
                let b = quad(units[4], units[5], units[6], units[7]);
                _mm256_add_epi32(
                    _mm256_permute2x128_si256::<0x20>(a, b),
                    _mm256_permute2x128_si256::<0x31>(a, b),
                )
            }
            2 => in_order(quad(units[0], units[1], units[2], units[3]), 2),
            _ => in_order(_mm256_hadd_epi32(units[0], units[1]), 4),
        }
    }
}

/// Scales and biases of `count` groups, at most eight, from the one at `at` on.
#[inline(always)]
unsafe fn weight_factors(task: &IntegerTask<'_>, at: usize, count: usize) -> [__m256; 2] {
    let (_, _, float) = task.affine();
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        let scale = factors(float, task.matrix.scales, at, count);
        let bias = match task.biases() {
            Biases::Factor(factor) => _mm256_mul_ps(scale, _mm256_set1_ps(factor)),
            Biases::Zeros => _mm256_mul_ps(scale, _mm256_loadu_ps(task.zeros(at, count).as_ptr())),
            Biases::Stored => factors(float, task.matrix.biases, at, count),
        };
        [scale, bias]
    }
}

/// Adds eight groups to their lanes; `x` are the scales and the sums of the activations.
#[inline(always)]
unsafe fn combine(
    lanes: __m256,
    sums: __m256i,
    [scale, bias]: [__m256; 2],
    [d, sum]: [*const f32; 2],
) -> __m256 {
    // SAFETY: the caller vouches for eight factors of the activations and for AVX2.
    unsafe {
        let product = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(d));
        let lanes = _mm256_fmadd_ps(product, scale, lanes);
        _mm256_fmadd_ps(_mm256_loadu_ps(sum), bias, lanes)
    }
}

/// Sums of up to eight groups of a row from `column` on, by copies.
#[inline(always)]
unsafe fn last_groups<const BITS: u8, const GROUP: usize, const T: usize>(
    task: &IntegerTask<'_>,
    row: *const u8,
    x: [*const u8; T],
    first: usize,
) -> [__m256i; T] {
    let columns = task.matrix.columns;
    let length = unit_columns(BITS, GROUP);
    // SAFETY: the bytes of a row are copied before steps that might read past them; activations are padded to whole
    // steps. The caller vouches for row and features.
    unsafe {
        let mut units = [[_mm256_setzero_si256(); 8]; T];
        for (u, column) in (first..columns.min(first + 8 * GROUP)).step_by(length).enumerate() {
            for at in (column..columns.min(column + length)).step_by(step_columns(BITS)) {
                let mut copy = [0u8; READ_BYTES];
                let bytes = (columns - at).min(step_columns(BITS)) * BITS as usize / 8;
                let from = row.add(at * BITS as usize / 8);
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes);
                let mut sums = [_mm256_setzero_si256(); T];
                let x = each(|t| x[t].wrapping_add(x_offset::<BITS>(at)));
                step::<BITS, T>(copy.as_ptr(), x, &mut sums);
                for t in 0..T {
                    units[t][u] = _mm256_add_epi32(units[t][u], sums[t]);
                }
            }
        }
        let mut sums = [_mm256_setzero_si256(); T];
        for t in 0..T {
            sums[t] = sum_groups(&units[t], length / GROUP);
        }
        sums
    }
}

/// Rows of a task for `T` tokens starting with `first`.
#[inline(always)]
unsafe fn rows<const BITS: u8, const GROUP: usize, const T: usize>(
    task: &IntegerTask<'_>,
    first: usize,
) {
    let groups = task.matrix.columns / GROUP;
    let row_bytes = task.matrix.columns * BITS as usize / 8;
    let half_bytes = GROUP * BITS as usize;
    let values: [_; T] = each(|t| task.x.values(task.x_row(first + t)).as_ptr());
    let x: [_; T] = each(|t| {
        let row = task.x_row(first + t);
        [task.x.scales(row).as_ptr(), task.x.sums(row).as_ptr()]
    });
    let end = task.matrix.weight.as_ptr_range().end as usize;
    // SAFETY: `Matrix` guarantees the bytes of each row, and whole blocks are left to copies where their steps might
    // read past the last; activations are padded; the caller vouches for features and output.
    unsafe {
        for row in task.rows.clone() {
            let weight = task.matrix.weight.as_ptr().add(row * row_bytes);
            let mut lanes = [[_mm256_setzero_ps(); 2]; T];
            let mut group = 0;
            while groups - group >= 8 {
                let both = groups - group >= GROUP_LANES;
                let from = weight.add(group * GROUP * BITS as usize / 8);
                let bytes = if both { 2 * half_bytes } else { half_bytes };
                if end - (from as usize) < bytes + READ_BYTES {
                    break;
                }
                for line in 0..bytes.div_ceil(64) {
                    crate::prefetch(from.wrapping_add(PREFETCH_BYTES + 64 * line));
                }
                let at = row * groups + group;
                let factors = weight_factors(task, at, 8);
                let from_x = each(|t| values[t].wrapping_add(x_offset::<BITS>(group * GROUP)));
                let sums = eight_groups::<BITS, GROUP, T>(from, from_x, 0);
                for t in 0..T {
                    let x = each(|part| x[t][part].wrapping_add(group));
                    lanes[t][0] = combine(lanes[t][0], sums[t], factors, x);
                }
                if !both {
                    group += 8;
                    break;
                }
                let factors = weight_factors(task, at + 8, 8);
                let sums = eight_groups::<BITS, GROUP, T>(from, from_x, 8 * GROUP);
                for t in 0..T {
                    let x = each(|part| x[t][part].wrapping_add(group + 8));
                    lanes[t][1] = combine(lanes[t][1], sums[t], factors, x);
                }
                group += GROUP_LANES;
            }
            for eight in (group..groups).step_by(8) {
                let factors = weight_factors(task, row * groups + eight, (groups - eight).min(8));
                let sums = last_groups::<BITS, GROUP, T>(task, weight, values, eight * GROUP);
                for t in 0..T {
                    let x = each(|part| x[t][part].wrapping_add(eight));
                    let lanes = &mut lanes[t][eight % GROUP_LANES / 8];
                    *lanes = combine(*lanes, sums[t], factors, x);
                }
            }
            for t in 0..T {
                *task.out(first + t, row) = Avx2Lanes(lanes[t][0], lanes[t][1]).sum();
            }
        }
    }
}

/// Eight scales or biases: `count` exist, the others are zero.
#[inline(always)]
unsafe fn factors(float: FloatType, bytes: &[u8], first: usize, count: usize) -> __m256 {
    let size = float.bytes();
    let bytes = &bytes[first * size..(first + count) * size];
    // SAFETY: the copy has room for eight values of four bytes; the slice holds `count`.
    unsafe {
        let mut copy = [0u8; 32];
        let from = if count == 8 {
            bytes.as_ptr()
        } else {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_mut_ptr(), bytes.len());
            copy.as_ptr()
        };
        match float {
            FloatType::F32 => _mm256_loadu_ps(from.cast()),
            FloatType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            FloatType::Bf16 => {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
        }
    }
}

/// Defines the function for one width and group.
macro_rules! width_and_group {
    ($name:ident, $bits:literal, $group:literal) => {
        four_tokens_at_a_time!("avx2,fma,f16c", $name, $bits, $group);
    };
}

crate::quantised::by_width_and_group!(width_and_group);

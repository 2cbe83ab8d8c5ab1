//! Integer products with AVX2: 16-bit weights times 16-bit activations.
//!
//! Byte products would have to keep clear of the saturation of `vpmaddubsw`, which 8-bit weights do
//! not; word products never saturate, cost two instructions more per 32 bytes of 4-bit weights, and
//! are the same for every width. Four and two bits are shifted and masked as words; the other
//! widths are brought to words by a byte shuffle, a multiplication that shifts each word left by
//! its own amount, and one shift right.
//!
//! A *unit* is a run of columns whose products are added up in one register; its eight lanes belong
//! to one, two or four whole groups. Units of eight groups are reduced together by horizontal additions.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use crate::activations::{GROUP_LANES, Packing};
use crate::format::FloatType;
use crate::lanes::Lanes;
use crate::quantised::four_tokens_at_a_time;
use crate::task::IntegerTask;
use crate::x86_64::avx2::Avx2Lanes;
use std::arch::x86_64::*;

/// Bytes ahead of the reader that weights are prefetched.
const PREFETCH_BYTES: usize = 48 * 64;

/// Packing of activations for weights of the given width.
pub(super) fn packing(bits: u8) -> Packing {
    match bits {
        4 => Packing::Words { per_word: 4 },
        2 => Packing::Words { per_word: 8 },
        _ => Packing::Natural,
    }
}

/// Columns that one unpacking gives.
const fn step_columns(bits: u8) -> usize {
    match bits {
        4 => 64,
        2 => 128,
        _ => 16,
    }
}

/// Columns of a unit: a step or a group, whichever is longer.
const fn unit_columns(bits: u8, group: usize) -> usize {
    if step_columns(bits) > group { step_columns(bits) } else { group }
}

/// Byte shuffle that brings the two bytes around value `i` of eight into word `i`.
const fn word_order(bits: usize) -> [u8; 32] {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 16 {
        let byte = (i % 8) * bits / 8;
        order[2 * i] = byte as u8;
        order[2 * i + 1] = byte as u8 + 1;
        i += 1;
    }
    order
}

/// Factor that shifts value `i` of eight to the top of its word.
const fn word_factors(bits: usize) -> [u16; 16] {
    let mut factors = [0; 16];
    let mut i = 0;
    while i < 16 {
        factors[i] = 1 << (16 - bits - (i % 8) * bits % 8);
        i += 1;
    }
    factors
}

static WORD_ORDER: [[u8; 32]; 7] =
    [[0; 32], [0; 32], [0; 32], word_order(3), [0; 32], word_order(5), word_order(6)];

static WORD_FACTORS: [[u16; 16]; 7] =
    [[0; 16], [0; 16], [0; 16], word_factors(3), [0; 16], word_factors(5), word_factors(6)];

/// Sixteen values in column order as words, from `2 * BITS` bytes.
///
/// # Safety
///
/// AVX2; bytes up to `end` are readable at `from`, and the values end there at the latest.
#[inline(always)]
unsafe fn sixteen_words<const BITS: u8>(from: *const u8, end: *const u8) -> __m256i {
    let bits = BITS as usize;
    // SAFETY: the second load reaches `bits + 16` bytes; near the end the bytes are copied first.
    unsafe {
        if BITS == 8 {
            return _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
        }
        let mut copy = [0u8; 32];
        let from = if (end as usize) - (from as usize) < bits + 16 {
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), 2 * bits);
            copy.as_ptr()
        } else {
            from
        };
        let bytes =
            _mm256_set_m128i(_mm_loadu_si128(from.add(bits).cast()), _mm_loadu_si128(from.cast()));
        let order = _mm256_loadu_si256(WORD_ORDER[bits].as_ptr().cast());
        let factors = _mm256_loadu_si256(WORD_FACTORS[bits].as_ptr().cast());
        let words = _mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, order), factors);
        match BITS {
            3 => _mm256_srli_epi16::<13>(words),
            5 => _mm256_srli_epi16::<11>(words),
            _ => _mm256_srli_epi16::<10>(words),
        }
    }
}

/// Adds the products of one step to the lanes of each token; `x` points at the step.
#[inline(always)]
unsafe fn step<const BITS: u8, const T: usize>(
    weight: *const u8,
    end: *const u8,
    x: [*const u8; T],
    sums: &mut [__m256i; T],
) {
    // SAFETY: the caller vouches for a step of weights and activations and for AVX2.
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
            2 => {
                let w = _mm256_loadu_si256(weight.cast());
                let mask = _mm256_set1_epi16(0x03);
                multiply(0, _mm256_and_si256(w, mask));
                multiply(1, _mm256_and_si256(_mm256_srli_epi16::<2>(w), mask));
                multiply(2, _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask));
                multiply(3, _mm256_and_si256(_mm256_srli_epi16::<6>(w), mask));
                multiply(4, _mm256_and_si256(_mm256_srli_epi16::<8>(w), mask));
                multiply(5, _mm256_and_si256(_mm256_srli_epi16::<10>(w), mask));
                multiply(6, _mm256_and_si256(_mm256_srli_epi16::<12>(w), mask));
                multiply(7, _mm256_srli_epi16::<14>(w));
            }
            _ => multiply(0, sixteen_words::<BITS>(weight, end)),
        }
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
            2 => {
                let sums = quad(units[0], units[1], units[2], units[3]);
                _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
            }
            _ => {
                let sums = _mm256_hadd_epi32(units[0], units[1]);
                _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7))
            }
        }
    }
}

/// Rows of a task for `T` tokens starting with `first`.
#[inline(always)]
unsafe fn rows<const BITS: u8, const GROUP: usize, const T: usize>(
    task: &IntegerTask<'_>,
    first: usize,
) {
    let (_, _, float) = task.affine();
    let bias_factor = task.bias_factor();
    let columns = task.matrix.columns;
    let groups = columns / GROUP;
    let bits = BITS as usize;
    let row_bytes = columns * bits / 8;
    let (unit, step_size) = (unit_columns(BITS, GROUP), step_columns(BITS));
    let unit_groups = unit / GROUP;
    let x: [usize; T] = std::array::from_fn(|t| task.x_row(first + t));
    let values = x.map(|row| task.x.values(row).as_ptr());
    // SAFETY: `Matrix` guarantees the bytes of each row; a partial last step is copied to a padded
    // buffer; activations are padded; the caller vouches for features and output.
    unsafe {
        let matrix_end = task.matrix.weight.as_ptr_range().end;
        for row in task.rows.clone() {
            let weight = task.matrix.weight.as_ptr().add(row * row_bytes);
            let mut lanes = [[0.0f32; GROUP_LANES]; T];
            for eight in (0..groups).step_by(8) {
                let mut units = [[_mm256_setzero_si256(); 8]; T];
                for u in 0..8 / unit_groups {
                    let column = (eight + u * unit_groups) * GROUP;
                    if column >= columns {
                        break;
                    }
                    let mut sums = [_mm256_setzero_si256(); T];
                    for s in (0..unit).step_by(step_size) {
                        let at = column + s;
                        let from = weight.add(at * bits / 8);
                        if at * bits / 8 % 64 < step_size * bits / 8 {
                            crate::prefetch(from.wrapping_add(PREFETCH_BYTES));
                        }
                        let x = values.map(|x| x.add(2 * at));
                        if at + step_size > columns {
                            let mut copy = [0u8; 32];
                            let bytes = (columns - at) * bits / 8;
                            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes);
                            step::<BITS, T>(copy.as_ptr(), matrix_end, x, &mut sums);
                        } else {
                            step::<BITS, T>(from, matrix_end, x, &mut sums);
                        }
                    }
                    for t in 0..T {
                        units[t][u] = sums[t];
                    }
                }
                let count = (groups - eight).min(8);
                let at = row * groups + eight;
                let scale = factors(float, task.matrix.scales, at, count);
                let bias = match bias_factor {
                    Some(factor) => _mm256_mul_ps(scale, _mm256_set1_ps(factor)),
                    None => factors(float, task.matrix.biases, at, count),
                };
                for t in 0..T {
                    let exact = _mm256_cvtepi32_ps(sum_groups(&units[t], unit_groups));
                    let d = _mm256_loadu_ps(task.x.scales(x[t])[eight..eight + 8].as_ptr());
                    let sum = _mm256_loadu_ps(task.x.sums(x[t])[eight..eight + 8].as_ptr());
                    let place = lanes[t].as_mut_ptr().add(eight % GROUP_LANES);
                    let mut lane = _mm256_loadu_ps(place);
                    lane = _mm256_fmadd_ps(_mm256_mul_ps(exact, d), scale, lane);
                    lane = _mm256_fmadd_ps(sum, bias, lane);
                    _mm256_storeu_ps(place, lane);
                }
            }
            for t in 0..T {
                *task.out(first + t, row) = Avx2Lanes::load(lanes[t].as_ptr()).sum();
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

//! Blocks of ternary digits and floats of four bits with AVX2, as in `avx2_formats.rs`.

use super::avx2::Avx2Lanes;
use super::avx2_formats::*;
use crate::blocks::fields::read_u32;
use crate::blocks::tables::FP4;
use std::arch::x86_64::*;

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns and 64 bytes more; loads stay within these.

/// Digits of bytes whose powers of three are in the words of `powers`.
#[inline(always)]
unsafe fn digits(bytes: __m256i, powers: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let mask = _mm256_set1_epi16(255);
        // The integer part of three times the fraction `byte * power / 256`, of the lower byte of each word.
        let digit = |bytes| {
            let fraction = _mm256_and_si256(_mm256_mullo_epi16(bytes, powers), mask);
            _mm256_srli_epi16::<8>(_mm256_mullo_epi16(fraction, _mm256_set1_epi16(3)))
        };
        let even = digit(_mm256_and_si256(bytes, mask));
        let odd = digit(_mm256_srli_epi16::<8>(bytes));
        _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
    }
}

/// The powers of three of the digits of a byte.
static POWERS: [i16; 5] = [1, 3, 9, 27, 81];

unpacker!(
    Tq1_0,
    |from, v| {
        if v < 5 {
            return digits(load(from), _mm256_set1_epi16(POWERS[v]));
        }
        // Sixteen bytes of five digits, then four bytes of four digits.
        let sixteen = _mm_loadu_si128(from.add(32).cast());
        let power = |n: usize| _mm_set1_epi16(POWERS[n]);
        let (second, powers) = match v {
            5 => (sixteen, _mm256_set_m128i(power(1), power(0))),
            6 => (sixteen, _mm256_set_m128i(power(3), power(2))),
            _ => {
                let last = _mm_set1_epi32(read_u32(from.add(48)) as i32);
                let each = _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27);
                (last, _mm256_set_m128i(each, power(4)))
            }
        };
        digits(_mm256_set_m128i(second, sixteen), powers)
    },
    |from| with_offset(Avx2Lanes(half(from[0].add(52)), half(from[1].add(52))), 1.0)
);

unpacker!(Tq2_0, |from, v| pairs(from, v), |from| {
    with_offset(Avx2Lanes(half(from[0].add(64)), half(from[1].add(64))), 1.0)
});

/// Eight 8-bit floats, halved.
#[inline(always)]
unsafe fn small_floats(bytes: u64) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64));
        let unsigned = _mm256_and_si256(bytes, _mm256_set1_epi32(0x7f));
        let mantissa = _mm256_and_si256(bytes, _mm256_set1_epi32(7));
        let normal =
            _mm256_add_epi32(_mm256_slli_epi32::<20>(unsigned), _mm256_set1_epi32(119 << 23));
        let tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(mantissa), _mm256_set1_ps(1.0 / 1024.0));
        let small = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), unsigned));
        let scale = _mm256_blendv_ps(_mm256_castsi256_ps(normal), tiny, small);
        let none = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes, _mm256_set1_epi32(0x7f)));
        _mm256_andnot_ps(none, scale)
    }
}

unpacker!(
    Nvfp4,
    |from, v| {
        // Eight bytes hold sixteen columns: low nibbles, then high nibbles.
        let bytes = _mm_loadu_si128(from.add(36 * (v / 2) + 4 + 16 * (v % 2)).cast());
        let each = _mm256_permute4x64_epi64::<0b01_01_00_00>(_mm256_castsi128_si256(bytes));
        let shifted = _mm256_srlv_epi64(each, _mm256_setr_epi64x(0, 4, 0, 4));
        look_up(&FP4, _mm256_and_si256(shifted, _mm256_set1_epi8(15)))
    },
    |from| {
        let four = |block: usize| u64::from(read_u32(from[0].add(36 * block)));
        let (first, second) = (four(0) | four(1) << 32, four(2) | four(3) << 32);
        with_offset(Avx2Lanes(small_floats(first), small_floats(second)), 16.0)
    }
);

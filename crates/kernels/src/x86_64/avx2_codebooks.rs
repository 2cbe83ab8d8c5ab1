//! Blocks of grid points, ternary digits and floats of four bits with AVX2, as in `avx2_formats.rs`.
//!
//! Points are read one by one from tables of 2 to 16 KiB: gathers are slower on many processors of this level. Signs
//! become a mask of 32 columns.

use super::avx2::Avx2Lanes;
use super::avx2_formats::*;
use crate::blocks::fields::{self, read_u32, read_u64};
use crate::blocks::tables::FP4;
use std::arch::x86_64::*;

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns and 64 bytes more; loads stay within these.

/// Four points of eight coordinates, or four times two of four.
#[inline(always)]
unsafe fn eights(points: [u64; 4]) -> __m256i {
    let [a, b, c, d] = points;
    // SAFETY: see above.
    unsafe { _mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64) }
}

/// Magnitudes with signs as codes around 64; the mask has all bits of the bytes that are negative.
#[inline(always)]
unsafe fn signed(magnitudes: __m256i, minus: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let negated = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, minus), minus);
        _mm256_add_epi8(negated, _mm256_set1_epi8(64))
    }
}

/// The mask of 32 columns from four lanes that hold seven bits of signs each; the eighth makes their number even.
#[inline(always)]
unsafe fn even_signs(codes: __m128i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        // The highest bit where a number below 16 has an odd number of bits.
        let odd =
            _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
        let low = _mm_shuffle_epi8(odd, _mm_and_si128(codes, _mm_set1_epi8(15)));
        let high = _mm_shuffle_epi8(odd, _mm_srli_epi32::<4>(codes));
        let signs = _mm_or_si128(codes, _mm_xor_si128(low, high));
        let order = _mm256_setr_epi64x(
            0,
            0x0404_0404_0404_0404,
            0x0808_0808_0808_0808,
            0x0c0c_0c0c_0c0c_0c0c,
        );
        set_bits(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(signs), order))
    }
}

/// [`even_signs`] of the lowest 28 bits of a word.
#[inline(always)]
unsafe fn four_signs(word: u32) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let codes = _mm_srlv_epi32(_mm_set1_epi32(word as i32), _mm_setr_epi32(0, 7, 14, 21));
        even_signs(_mm_and_si128(codes, _mm_set1_epi32(127)))
    }
}

/// `(0.5 + small) * step * scale`, in the order of the reference.
#[inline(always)]
unsafe fn half_steps(small: [__m256i; 2], scale: [__m256; 2], step: f32) -> (Avx2Lanes, Avx2Lanes) {
    // SAFETY: see above.
    unsafe {
        let mut lanes = [_mm256_setzero_ps(); 2];
        for i in 0..2 {
            let small = _mm256_add_ps(_mm256_cvtepi32_ps(small[i]), _mm256_set1_ps(0.5));
            lanes[i] = _mm256_mul_ps(_mm256_mul_ps(scale[i], small), _mm256_set1_ps(step));
        }
        with_offset(Avx2Lanes(lanes[0], lanes[1]), 64.0)
    }
}

/// Sixteen nibbles of eight bytes.
#[inline(always)]
unsafe fn sixteen_nibbles(from: *const u8) -> [__m256i; 2] {
    // SAFETY: see above.
    unsafe {
        let bytes = _mm_loadl_epi64(from.cast());
        let both = _mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes));
        let nibbles = _mm_and_si128(both, _mm_set1_epi8(15));
        [_mm256_cvtepu8_epi32(nibbles), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(nibbles, nibbles))]
    }
}

/// The highest nibbles of eight quadwords.
#[inline(always)]
unsafe fn high_nibbles(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let low = _mm256_castsi256_ps(_mm256_srli_epi64::<60>(load(from)));
        let high = _mm256_castsi256_ps(_mm256_srli_epi64::<60>(load(from.add(32))));
        let both = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(both)
    }
}

unpacker!(
    Iq2Xxs,
    |from, v| {
        let (points, signs) = fields::iq2_xxs(from, v);
        signed(eights(points), four_signs(signs))
    },
    |from| {
        let small = [high_nibbles(from[0].add(2)), high_nibbles(from[1].add(2))];
        half_steps(small, [half(from[0]), half(from[1])], 0.25)
    }
);

unpacker!(
    Iq2Xs,
    |from, v| {
        let (points, words) = fields::iq2_xs(from, v);
        let codes = _mm_srli_epi16::<9>(_mm_cvtsi64_si128(words as i64));
        signed(eights(points), even_signs(_mm_cvtepu16_epi32(codes)))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(66)), [half(from[0]); 2], 0.25)
);

unpacker!(
    Iq2S,
    |from, v| {
        let signs = read_u32(from.add(34 + 4 * v));
        signed(eights(fields::iq2_s(from, v)), expanded(signs))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(74)), [half(from[0]); 2], 0.25)
);

unpacker!(
    Iq3Xxs,
    |from, v| {
        signed(eights(fields::iq3_xxs(from, v)), four_signs(read_u32(from.add(66 + 4 * v))))
    },
    |from| {
        let small = [
            _mm256_srli_epi32::<28>(load(from[0].add(66))),
            _mm256_srli_epi32::<28>(load(from[1].add(66))),
        ];
        half_steps(small, [half(from[0]), half(from[1])], 0.5)
    }
);

/// Eight scales of a block of IQ3_S.
#[inline(always)]
unsafe fn odd_nibbles(from: *const u8) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let word = _mm256_set1_epi32(read_u32(from.add(106)) as i32);
        let small = _mm256_and_si256(_mm256_srlv_epi32(word, places), _mm256_set1_epi32(15));
        let odd = _mm256_or_si256(_mm256_slli_epi32::<1>(small), _mm256_set1_epi32(1));
        _mm256_mul_ps(half(from), _mm256_cvtepi32_ps(odd))
    }
}

unpacker!(
    Iq3S,
    |from, v| {
        let signs = read_u32(from.add(74 + 4 * v));
        signed(eights(fields::iq3_s(from, v)), expanded(signs))
    },
    |from| with_offset(Avx2Lanes(odd_nibbles(from[0]), odd_nibbles(from[1])), 64.0)
);

/// Ternary points as codes around 16: eight times the coordinates, and what `shift` has for each.
#[inline(always)]
unsafe fn shifted(points: __m256i, shift: __m256i) -> __m256i {
    // SAFETY: see above. Coordinates are at most 2, so that no bit leaves its byte.
    unsafe { _mm256_add_epi8(_mm256_slli_epi16::<3>(points), shift) }
}

/// `(2 * small + 1) * scale / 8`, in the order of the reference.
#[inline(always)]
unsafe fn odd_eighths(small: [__m256i; 2], scale: [__m256; 2]) -> (Avx2Lanes, Avx2Lanes) {
    // SAFETY: see above.
    unsafe {
        let mut lanes = [_mm256_setzero_ps(); 2];
        for i in 0..2 {
            let odd = _mm256_or_si256(_mm256_slli_epi32::<1>(small[i]), _mm256_set1_epi32(1));
            let scale = _mm256_mul_ps(scale[i], _mm256_cvtepi32_ps(odd));
            lanes[i] = _mm256_mul_ps(scale, _mm256_set1_ps(0.125));
        }
        with_offset(Avx2Lanes(lanes[0], lanes[1]), 16.0)
    }
}

unpacker!(
    Iq1S,
    |from, v| {
        let (points, rest) = fields::iq1_s(from, v);
        let shift = 9 - 2 * (rest >> 15) as i8;
        shifted(eights(points), _mm256_set1_epi8(shift))
    },
    |from| {
        let mut small = [_mm256_setzero_si256(); 2];
        for i in 0..2 {
            let rest = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[i].add(34).cast()));
            let seven = _mm256_set1_epi32(7);
            small[i] = _mm256_and_si256(_mm256_srli_epi32::<12>(rest), seven);
        }
        odd_eighths(small, [half(from[0]), half(from[1])])
    }
);

unpacker!(
    Iq1M,
    |from, v| {
        let (points, nibbles) = fields::iq1_m(from, v);
        // The highest bit of each nibble says that the shift is down.
        let lanes = _mm256_set1_epi64x(nibbles as i64);
        let bits = _mm256_setr_epi64x(8, 0x80, 0x800, 0x8000);
        let minus = _mm256_cmpeq_epi64(_mm256_and_si256(lanes, bits), bits);
        let shift = _mm256_blendv_epi8(_mm256_set1_epi8(9), _mm256_set1_epi8(7), minus);
        shifted(eights(points), shift)
    },
    |from| {
        let words = read_u64(from[0].add(48));
        let bits = fields::iq1_m_scale(words);
        let scale = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))));
        // A word to four lanes, whose three bits begin at 0, 3, 6 and 9.
        let places = _mm256_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25);
        let mut small = [_mm256_setzero_si256(); 2];
        for (i, small) in small.iter_mut().enumerate() {
            let two = (words >> (32 * i)) as i32;
            let each = _mm256_srlv_epi32(_mm256_set1_epi32(two), places);
            *small = _mm256_and_si256(each, _mm256_set1_epi32(7));
        }
        odd_eighths(small, [scale; 2])
    }
);

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

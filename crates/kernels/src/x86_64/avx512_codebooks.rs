//! Blocks of grid points, ternary digits and floats of four bits with AVX-512, as in `avx512_formats.rs`.
//!
//! Points come by gathers from tables of 2 to 16 KiB. Signs become a mask of 64 columns: the sum of 64 and the
//! magnitude, or their difference where the mask is set.

use super::avx512_formats::*;
use super::{avx2_codebooks, avx2_formats};
use crate::blocks;
use crate::blocks::fields::{self, read_u64};
use crate::blocks::grids;
use crate::blocks::tables::FP4;
use std::arch::x86_64::*;

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns and 64 bytes more; loads stay within these. Indices of grids have as many bits as their
// tables have entries for.

/// Seven bits of signs to eight.
static EVEN_SIGNS: [u8; 128] = {
    let mut table = [0; 128];
    let mut code = 0;
    while code < 128 {
        table[code] = blocks::codebooks::even_signs(code as u32);
        code += 1;
    }
    table
};

/// A mask of 64 columns from eight bytes whose lower seven bits are codes of signs.
#[inline(always)]
unsafe fn sign_mask(codes: __m128i) -> u64 {
    // SAFETY: see above; the table has 128 bytes, and its look-up ignores the highest bit.
    unsafe {
        let low = _mm512_loadu_si512(EVEN_SIGNS.as_ptr().cast());
        let high = _mm512_loadu_si512(EVEN_SIGNS.as_ptr().add(64).cast());
        let signs = _mm512_permutex2var_epi8(low, _mm512_castsi128_si512(codes), high);
        _mm_cvtsi128_si64(_mm512_castsi512_si128(signs)) as u64
    }
}

/// Magnitudes with signs as codes around 64.
#[inline(always)]
unsafe fn signed(magnitudes: __m512i, minus: u64) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let zero = _mm512_set1_epi8(64);
        _mm512_mask_sub_epi8(_mm512_add_epi8(zero, magnitudes), minus, zero, magnitudes)
    }
}

/// Eight points of eight coordinates.
#[inline(always)]
unsafe fn eights<const COUNT: usize>(grid: &[u64; COUNT], indices: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_i64gather_epi64::<8>(indices, grid.as_ptr().cast()) }
}

/// Sixteen points of four coordinates.
#[inline(always)]
unsafe fn fours<const COUNT: usize>(grid: &[u64; COUNT], indices: __m512i) -> __m512i {
    // SAFETY: see above; a point lies in the lower half of its entry.
    unsafe { _mm512_i32gather_epi32::<8>(indices, grid.as_ptr().cast()) }
}

/// Eight bytes as indices.
#[inline(always)]
unsafe fn eight_indices(from: *const u8) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_cvtepu8_epi64(_mm_loadl_epi64(from.cast())) }
}

/// Bits of a word from eight places on, in eight lanes.
#[inline(always)]
unsafe fn shifted_by(word: u64, places: [i64; 8]) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let [a, b, c, d, e, f, g, h] = places;
        _mm512_srlv_epi64(_mm512_set1_epi64(word as i64), _mm512_setr_epi64(a, b, c, d, e, f, g, h))
    }
}

/// The low bits of each lane, cut by a mask, as bits 8 and up.
#[inline(always)]
unsafe fn high_bits(lanes: __m512i, mask: i64) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_slli_epi64::<8>(_mm512_and_si512(lanes, _mm512_set1_epi64(mask))) }
}

/// Eight words of four bytes, then eight others.
#[inline(always)]
unsafe fn words_of_both(from: [*const u8; 2], at: usize) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(from[0].add(at).cast()));
        _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(from[1].add(at).cast()))
    }
}

/// `(0.5 + small) * step * scale`, in the order of the reference.
#[inline(always)]
unsafe fn half_steps(small: __m512i, scale: __m512, step: f32) -> (__m512, __m512) {
    // SAFETY: see above.
    unsafe {
        let small = _mm512_add_ps(_mm512_cvtepi32_ps(small), _mm512_set1_ps(0.5));
        with_offset(_mm512_mul_ps(_mm512_mul_ps(scale, small), _mm512_set1_ps(step)), 64.0)
    }
}

/// Sixteen nibbles of eight bytes.
#[inline(always)]
unsafe fn sixteen_nibbles(from: *const u8) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let bytes = _mm_loadl_epi64(from.cast());
        let mask = _mm_set1_epi8(15);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
        _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(_mm_and_si128(bytes, mask), high))
    }
}

unpacker!(
    Iq2Xxs,
    |from, v| {
        // Four indices, a word of signs, twice.
        let two = _mm_loadu_si128(from.add(2 + 16 * v).cast());
        let order = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, -1, -1, -1, -1, -1, -1, -1, -1);
        let indices = _mm512_cvtepu8_epi64(_mm_shuffle_epi8(two, order));
        let places = _mm_set1_epi64x(0x352e_2720);
        let codes = _mm_shuffle_epi8(_mm_multishift_epi64_epi8(places, two), order);
        signed(eights(&grids::IQ2_XXS, indices), sign_mask(codes))
    },
    |from| {
        let a = _mm512_srli_epi64::<60>(_mm512_loadu_si512(from[0].add(2).cast()));
        let b = _mm512_srli_epi64::<60>(_mm512_loadu_si512(from[1].add(2).cast()));
        let low = _mm512_castsi256_si512(_mm512_cvtepi64_epi32(a));
        let small = _mm512_inserti64x4::<1>(low, _mm512_cvtepi64_epi32(b));
        half_steps(small, halves(from[0], from[1]), 0.25)
    }
);

unpacker!(
    Iq2Xs,
    |from, v| {
        let words = _mm_loadu_si128(from.add(2 + 16 * v).cast());
        let indices = _mm512_cvtepu16_epi64(_mm_and_si128(words, _mm_set1_epi16(511)));
        let codes = _mm_cvtepi16_epi8(_mm_srli_epi16::<9>(words));
        signed(eights(&grids::IQ2_XS, indices), sign_mask(codes))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(66)), half(from[0]), 0.25)
);

unpacker!(
    Iq2S,
    |from, v| {
        let high = read_u16(from.add(66 + 2 * v)) as u64;
        let high = high_bits(shifted_by(high, [0, 2, 4, 6, 8, 10, 12, 14]), 3);
        let indices = _mm512_or_si512(eight_indices(from.add(2 + 8 * v)), high);
        signed(eights(&grids::IQ2_S, indices), read_u64(from.add(34 + 8 * v)))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(74)), half(from[0]), 0.25)
);

unpacker!(
    Iq3Xxs,
    |from, v| {
        let indices = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.add(2 + 16 * v).cast()));
        let places = _mm_set1_epi64x(0x352e_2720_150e_0700);
        let words = _mm_loadl_epi64(from.add(66 + 8 * v).cast());
        let minus = sign_mask(_mm_multishift_epi64_epi8(places, words));
        signed(fours(&grids::IQ3_XXS, indices), minus)
    },
    |from| {
        let small = _mm512_srli_epi32::<28>(words_of_both(from, 66));
        half_steps(small, halves(from[0], from[1]), 0.5)
    }
);

unpacker!(
    Iq3S,
    |from, v| {
        let indices = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.add(2 + 16 * v).cast()));
        let ninth = read_u16(from.add(66 + 2 * v)) as u16;
        let indices = _mm512_mask_add_epi32(indices, ninth, indices, _mm512_set1_epi32(256));
        signed(fours(&grids::IQ3_S, indices), read_u64(from.add(74 + 8 * v)))
    },
    |from| {
        let places = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
        let [a, b] = [read_u32(from[0].add(106)), read_u32(from[1].add(106))];
        let nibbles = _mm512_srlv_epi32(eight_each(a, b), places);
        let twice = _mm512_slli_epi32::<1>(_mm512_and_si512(nibbles, _mm512_set1_epi32(15)));
        let small = _mm512_cvtepi32_ps(_mm512_or_si512(twice, _mm512_set1_epi32(1)));
        with_offset(_mm512_mul_ps(halves(from[0], from[1]), small), 64.0)
    }
);

/// Ternary points as codes around 16: eight times the coordinates, less one where a lane's bit is set, or plus one.
#[inline(always)]
unsafe fn shifted(points: __m512i, minus: __mmask8) -> __m512i {
    // SAFETY: see above. Coordinates are at most 2, so that no bit leaves its byte.
    unsafe {
        let shift = _mm512_mask_mov_epi64(_mm512_set1_epi8(9), minus, _mm512_set1_epi8(7));
        _mm512_add_epi8(_mm512_slli_epi16::<3>(points), shift)
    }
}

/// `(2 * small + 1) * scale / 8`, in the order of the reference.
#[inline(always)]
unsafe fn odd_eighths(small: __m512i, scale: __m512) -> (__m512, __m512) {
    // SAFETY: see above.
    unsafe {
        let odd = _mm512_or_si512(_mm512_slli_epi32::<1>(small), _mm512_set1_epi32(1));
        let scale = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(odd));
        with_offset(_mm512_mul_ps(scale, _mm512_set1_ps(0.125)), 16.0)
    }
}

unpacker!(
    Iq1S,
    |from, v| {
        let rest = u64::from(read_u32(from.add(34 + 4 * v)) as u32);
        let high = high_bits(shifted_by(rest, [0, 3, 6, 9, 16, 19, 22, 25]), 7);
        let indices = _mm512_or_si512(eight_indices(from.add(2 + 8 * v)), high);
        let minus = shifted_by(rest, [15, 15, 15, 15, 31, 31, 31, 31]);
        let minus = _mm512_test_epi64_mask(minus, _mm512_set1_epi64(1));
        shifted(eights(&grids::IQ1, indices), minus)
    },
    |from| {
        let a = _mm_loadu_si128(from[0].add(34).cast());
        let b = _mm_loadu_si128(from[1].add(34).cast());
        let rest = _mm512_cvtepu16_epi32(_mm256_set_m128i(b, a));
        let small = _mm512_and_si512(_mm512_srli_epi32::<12>(rest), _mm512_set1_epi32(7));
        odd_eighths(small, halves(from[0], from[1]))
    }
);

unpacker!(
    Iq1M,
    |from, v| {
        let nibbles = u64::from(read_u32(from.add(32 + 4 * v)) as u32);
        let nibbles = shifted_by(nibbles, [0, 4, 8, 12, 16, 20, 24, 28]);
        let indices = _mm512_or_si512(eight_indices(from.add(8 * v)), high_bits(nibbles, 7));
        let minus = _mm512_test_epi64_mask(nibbles, _mm512_set1_epi64(8));
        shifted(eights(&grids::IQ1, indices), minus)
    },
    |from| {
        let words = read_u64(from[0].add(48));
        let bits = fields::iq1_m_scale(words);
        let scale = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))));
        // Each word to four lanes, whose three bits begin at 0, 3, 6 and 9.
        let order = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6,
            7, 6, 7,
        );
        let each = _mm256_shuffle_epi8(_mm256_set1_epi64x(words as i64), order);
        let each = _mm256_srlv_epi16(each, _mm256_set1_epi64x(0x0009_0006_0003_0000));
        let small = _mm512_cvtepu16_epi32(_mm256_and_si256(each, _mm256_set1_epi16(7)));
        odd_eighths(small, scale)
    }
);

unpacker!(Tq2_0, |from, v| pairs(twice(from.add(v / 2 * 32)), v % 2), |from| {
    with_offset(halves(from[0].add(64), from[1].add(64)), 1.0)
});

unpacker!(
    Nvfp4,
    |from, v| {
        // Eight bytes hold sixteen columns: low nibbles, then high nibbles.
        let bytes = _mm256_loadu_si256(from.add(36 * v + 4).cast());
        let order = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
        let each = _mm512_permutexvar_epi64(order, _mm512_castsi256_si512(bytes));
        look_up(&FP4, nibbles(each, 0xf0f0_f0f0))
    },
    |from| {
        let from = from[0];
        let bytes = _mm_setr_epi32(
            read_u32(from),
            read_u32(from.add(36)),
            read_u32(from.add(72)),
            read_u32(from.add(108)),
        );
        let bytes = _mm512_cvtepu8_epi32(bytes);
        let unsigned = _mm512_and_si512(bytes, _mm512_set1_epi32(0x7f));
        let mantissa = _mm512_and_si512(bytes, _mm512_set1_epi32(7));
        let normal =
            _mm512_add_epi32(_mm512_slli_epi32::<20>(unsigned), _mm512_set1_epi32(119 << 23));
        let tiny = _mm512_mul_ps(_mm512_cvtepi32_ps(mantissa), _mm512_set1_ps(1.0 / 1024.0));
        let small = _mm512_cmplt_epi32_mask(unsigned, _mm512_set1_epi32(8));
        let scale = _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), small, tiny);
        let none = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(0x7f));
        with_offset(_mm512_mask_mov_ps(scale, none, _mm512_setzero_ps()), 16.0)
    }
);

unpacker!(
    Tq1_0,
    |from, v| {
        // Five digits to a byte leave no 64 columns together: two times 32, as AVX2 takes them.
        let low = <avx2_codebooks::Tq1_0 as avx2_formats::Format>::codes(from, &(), 2 * v);
        let high = <avx2_codebooks::Tq1_0 as avx2_formats::Format>::codes(from, &(), 2 * v + 1);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    },
    |from| with_offset(halves(from[0].add(52), from[1].add(52)), 1.0)
);

//! Blocks of grid points with AVX2, as in `avx2_formats.rs`.
//!
//! Points are read one by one from tables of 1 to 16 KiB: gathers are slower on many processors of this level. What
//! tells a point's place and its signs is found for 256 columns at once: for each group of 32 by itself this took as
//! many instructions as everything else.

use super::avx2::Avx2Lanes;
use super::avx2_formats::*;
use crate::blocks::fields::{self, read_u16, read_u32, read_u64};
use crate::blocks::grids::avx2::*;
use std::arch::x86_64::*;

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns and 64 bytes more; loads stay within these.

/// Bytes in both halves of a register: of four groups of 32 columns in the first, of the other four in the second.
type InBoth = [__m256i; 2];

#[inline(always)]
unsafe fn in_both(bytes: __m256i) -> InBoth {
    // SAFETY: see above.
    unsafe {
        [
            _mm256_permute2x128_si256::<0x00>(bytes, bytes),
            _mm256_permute2x128_si256::<0x11>(bytes, bytes),
        ]
    }
}

/// The four bytes of group `v`, eight times each.
#[inline(always)]
unsafe fn each_eight_times(bytes: &InBoth, v: usize) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let order = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let order = _mm256_add_epi8(order, _mm256_set1_epi8(4 * (v % 4) as i8));
        _mm256_shuffle_epi8(bytes[v / 4], order)
    }
}

/// Masks of group `v`: all bits of the columns whose sign is minus.
#[inline(always)]
unsafe fn minus(signs: &InBoth, v: usize) -> __m256i {
    // SAFETY: see above.
    unsafe { set_bits(each_eight_times(signs, v)) }
}

/// Places of points in their grid, 16 bits each: of four points in a word.
#[inline(always)]
unsafe fn place(places: &[__m256i], point: usize) -> usize {
    // SAFETY: see above. A register has the size of four words.
    unsafe {
        let words: [u64; 4] = std::mem::transmute(places[point / 16]);
        usize::from((words[point % 16 / 4] >> (16 * (point % 4))) as u16)
    }
}

/// Four points of eight coordinates.
#[inline(always)]
unsafe fn four_points(point: impl Fn(usize) -> u64) -> __m256i {
    // SAFETY: see above.
    unsafe {
        _mm256_setr_epi64x(point(0) as i64, point(1) as i64, point(2) as i64, point(3) as i64)
    }
}

/// Eight points of four coordinates.
#[inline(always)]
unsafe fn eight_points(point: impl Fn(usize) -> u32) -> __m256i {
    let p = |k| point(k) as i32;
    // SAFETY: see above.
    unsafe { _mm256_setr_epi32(p(0), p(1), p(2), p(3), p(4), p(5), p(6), p(7)) }
}

/// Codes around 64, as points have them, where the mask is empty; those of the negative value elsewhere.
#[inline(always)]
unsafe fn signed(points: __m256i, minus: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_blendv_epi8(points, _mm256_sub_epi8(_mm256_set1_epi8(-128), points), minus) }
}

/// Eight signs from each byte's lower seven: the eighth makes their number even.
#[inline(always)]
unsafe fn even_signs(codes: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        // The highest bit where a number below 16 has an odd number of bits.
        let odd =
            _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
        let (odd, nibble) = (_mm256_broadcastsi128_si256(odd), _mm256_set1_epi8(15));
        let low = _mm256_shuffle_epi8(odd, _mm256_and_si256(codes, nibble));
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
        let high = _mm256_shuffle_epi8(odd, high);
        _mm256_or_si256(codes, _mm256_xor_si256(low, high))
    }
}

/// Four numbers of seven bits from each double word, a byte each.
#[inline(always)]
unsafe fn sevens(words: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let low = _mm256_and_si256(words, _mm256_set1_epi32(0x3fff));
        let high = _mm256_slli_epi32::<2>(words);
        let high = _mm256_and_si256(high, _mm256_set1_epi32(0x3fff_0000));
        let fourteens = _mm256_or_si256(low, high);
        let low = _mm256_and_si256(fourteens, _mm256_set1_epi16(0x7f));
        let high = _mm256_slli_epi16::<1>(fourteens);
        _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi16(0x7f00)))
    }
}

/// The higher double words of eight quadwords.
#[inline(always)]
unsafe fn high_words(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let (low, high) = (load(from), load(from.add(32)));
        let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
        let both = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(both)
    }
}

/// For a shuffle: byte `byte` in four words.
const fn in_lanes(byte: u64) -> i64 {
    (0x8000_8000_8000_8000 + byte * 0x0001_0001_0001_0001) as i64
}

/// Sixteen places: bytes at `low`, and bits 8 and on from `high`, each word shifted left by a factor and masked.
#[inline(always)]
unsafe fn joined(low: *const u8, high: __m256i, factors: [i16; 4], mask: i16) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(low.cast()));
        let factors = i64::from_le_bytes(std::mem::transmute::<[i16; 4], [u8; 8]>(factors));
        let high = _mm256_mullo_epi16(high, _mm256_set1_epi64x(factors));
        _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi16(mask)))
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

/// A format of grid points: its fields, its codes and its factors.
macro_rules! grid {
    ($name:ident, $fields_type:ty, |$at:ident| $fields:expr,
        |$from:ident, $found:ident, $v:ident| $codes:expr, |$both:ident| $factors:expr) => {
        pub(super) struct $name;

        impl Format for $name {
            type Fields = $fields_type;

            #[inline(always)]
            unsafe fn fields($at: *const u8) -> $fields_type {
                // SAFETY: passed on to the caller.
                unsafe { $fields }
            }

            #[inline(always)]
            unsafe fn codes($from: *const u8, $found: &$fields_type, $v: usize) -> __m256i {
                // SAFETY: passed on to the caller.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn factors($both: [*const u8; 2]) -> (Avx2Lanes, Avx2Lanes) {
                // SAFETY: passed on to the caller.
                unsafe { $factors }
            }
        }
    };
}

grid!(
    Iq2Xxs,
    InBoth,
    |from| in_both(even_signs(sevens(high_words(from.add(2))))),
    |from, signs, v| {
        let places = read_u32(from.add(2 + 8 * v)) as usize;
        signed(four_points(|k| IQ2_XXS[places >> (8 * k) & 255]), minus(signs, v))
    },
    |from| {
        let small = [
            _mm256_srli_epi32::<28>(high_words(from[0].add(2))),
            _mm256_srli_epi32::<28>(high_words(from[1].add(2))),
        ];
        half_steps(small, [half(from[0]), half(from[1])], 0.25)
    }
);

grid!(
    Iq2Xs,
    InBoth,
    |from| {
        let first = _mm256_srli_epi16::<9>(load(from.add(2)));
        let second = _mm256_srli_epi16::<9>(load(from.add(34)));
        let codes = _mm256_packus_epi16(first, second);
        in_both(even_signs(_mm256_permute4x64_epi64::<0b11_01_10_00>(codes)))
    },
    |from, signs, v| {
        let words = read_u64(from.add(2 + 8 * v));
        let points = four_points(|k| IQ2_XS[(words >> (16 * k)) as usize & 511]);
        signed(points, minus(signs, v))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(66)), [half(from[0]); 2], 0.25)
);

grid!(
    Iq2S,
    [__m256i; 2],
    |from| {
        // A byte has two bits for each of four points.
        let high = _mm256_set1_epi64x(read_u64(from.add(66)) as i64);
        let mut places = [_mm256_setzero_si256(); 2];
        for (i, places) in places.iter_mut().enumerate() {
            let byte = |k| in_lanes(4 * i as u64 + k);
            let order = _mm256_setr_epi64x(byte(0), byte(1), byte(2), byte(3));
            let high = _mm256_shuffle_epi8(high, order);
            *places = joined(from.add(2 + 16 * i), high, [256, 64, 16, 4], 0x300);
        }
        places
    },
    |from, places, v| {
        let points = four_points(|k| IQ2_S[place(places, 4 * v + k)]);
        signed(points, expanded(read_u32(from.add(34 + 4 * v))))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(74)), [half(from[0]); 2], 0.25)
);

grid!(
    Iq3Xxs,
    InBoth,
    |from| in_both(even_signs(sevens(load(from.add(66))))),
    |from, signs, v| {
        let places = read_u64(from.add(2 + 8 * v));
        signed(eight_points(|k| IQ3_XXS[(places >> (8 * k)) as usize & 255]), minus(signs, v))
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

grid!(
    Iq3S,
    [__m256i; 4],
    |from| {
        // A byte has a bit for each of eight points.
        let factors =
            _mm256_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2, 256, 128, 64, 32, 16, 8, 4, 2);
        let mut places = [_mm256_setzero_si256(); 4];
        for (i, places) in places.iter_mut().enumerate() {
            let two = _mm256_set1_epi16(read_u16(from.add(66 + 2 * i)) as i16);
            let [first, second] = [in_lanes(0), in_lanes(1)];
            let order = _mm256_setr_epi64x(first, first, second, second);
            let high = _mm256_mullo_epi16(_mm256_shuffle_epi8(two, order), factors);
            *places = joined(from.add(2 + 16 * i), high, [1; 4], 0x100);
        }
        places
    },
    |from, places, v| {
        let points = eight_points(|k| IQ3_S[place(places, 8 * v + k)]);
        signed(points, expanded(read_u32(from.add(74 + 4 * v))))
    },
    |from| with_offset(Avx2Lanes(odd_nibbles(from[0]), odd_nibbles(from[1])), 64.0)
);

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

/// Words of 16 bits in four lanes each: words `4 * i` to `4 * i + 3` of eight. The fourth lane has the higher byte.
#[inline(always)]
unsafe fn in_four_lanes(from: *const u8, i: usize) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let four = _mm256_set1_epi64x(read_u64(from.add(8 * i)) as i64);
        let order = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 1, -1, 2, 3, 2, 3, 2, 3, 3, -1, 4, 5, 4, 5, 4, 5, 5, -1, 6, 7, 6, 7,
            6, 7, 7, -1,
        );
        _mm256_shuffle_epi8(four, order)
    }
}

grid!(
    Iq1S,
    ([__m256i; 2], __m256i),
    |from| {
        let mut places = [_mm256_setzero_si256(); 2];
        for (i, places) in places.iter_mut().enumerate() {
            let rest = in_four_lanes(from.add(34), i);
            *places = joined(from.add(2 + 16 * i), rest, [256, 32, 4, 128], 0x700);
        }
        // 9 or 7 for each group: points are around 16 in eighths.
        let rest = _mm_loadu_si128(from.add(34).cast());
        let minus = _mm_srai_epi16::<15>(rest);
        let shifts = _mm_add_epi8(_mm_set1_epi8(9), _mm_add_epi8(minus, minus));
        (places, _mm256_broadcastsi128_si256(shifts))
    },
    |_from, found, v| {
        let (places, shifts) = found;
        let points = four_points(|k| IQ1[place(places, 4 * v + k)]);
        let shift = _mm256_shuffle_epi8(*shifts, _mm256_set1_epi8(2 * v as i8));
        _mm256_add_epi8(points, shift)
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

grid!(
    Iq1M,
    ([__m256i; 2], InBoth),
    |from| {
        let mut places = [_mm256_setzero_si256(); 2];
        let mut shifts = [_mm256_setzero_si256(); 2];
        for i in 0..2 {
            let nibbles = in_four_lanes(from.add(32), i);
            let four = joined(from.add(16 * i), nibbles, [256, 16, 1, 16], 0xf00);
            places[i] = _mm256_and_si256(four, _mm256_set1_epi16(0x7ff));
            // The highest bit of each nibble says that the shift is down: 7 and not 9.
            let down = _mm256_and_si256(_mm256_srli_epi16::<10>(four), _mm256_set1_epi16(2));
            shifts[i] = _mm256_sub_epi16(_mm256_set1_epi16(9), down);
        }
        let shifts = _mm256_packus_epi16(shifts[0], shifts[1]);
        (places, in_both(_mm256_permute4x64_epi64::<0b11_01_10_00>(shifts)))
    },
    |_from, found, v| {
        let (places, shifts) = found;
        let points = four_points(|k| IQ1[place(places, 4 * v + k)]);
        _mm256_add_epi8(points, each_eight_times(shifts, v))
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

//! Blocks to codes, scales and biases with AVX2: one type for each format (`blocks/` has their layouts).

use super::avx2::Avx2Lanes;
use crate::blocks::fields::{self, read_u16, read_u32};
use crate::blocks::tables::{FP4, IQ4};
use crate::each;
use crate::format::nvfp4::Global;
use std::arch::x86_64::*;

/// How a format is taken apart. All methods ask for AVX2, FMA and F16C, and the blocks of 256 columns and
/// [`SLACK`](crate::blocks::steps::SLACK) bytes must be readable.
pub(super) trait Format {
    /// Whether scales are a plane of their own.
    const PLANES: bool = false;

    /// What [`Format::codes`] takes besides the blocks: found for 256 columns at once.
    type Fields;

    /// All fields of the blocks at `from`.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn fields(from: *const u8) -> Self::Fields;

    /// Codes of the columns from `32 * v` on, of the blocks at `from` and their fields.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn codes(from: *const u8, fields: &Self::Fields, v: usize) -> __m256i;

    /// Scale and bias of sixteen groups: of the exponents of eight at each pointer where they are planes, of the blocks
    /// at the first pointer in formats with groups of 16, of the blocks at both otherwise.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn factors(from: [*const u8; 2]) -> (Avx2Lanes, Avx2Lanes);

    /// [`Format::factors`], of a matrix whose scales share a number.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], _: Global) -> (Avx2Lanes, Avx2Lanes) {
        // SAFETY: passed on to the caller.
        unsafe { Self::factors(from) }
    }
}

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns, 84 to 272 bytes, and 64 bytes more; loads are unaligned and stay within these.

#[inline(always)]
pub(super) unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// All bytes of words shifted right; bits that come from the next byte are the caller's to mask.
#[inline(always)]
unsafe fn right(bytes: __m256i, by: usize) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_srlv_epi32(bytes, _mm256_set1_epi32(by as i32)) }
}

/// The bits of a mask, moved from place `from` to place `to` of each byte.
#[inline(always)]
unsafe fn moved(bytes: __m256i, from: usize, to: usize, mask: i8) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let moved = if from >= to {
            right(bytes, from - to)
        } else {
            _mm256_sllv_epi32(bytes, _mm256_set1_epi32((to - from) as i32))
        };
        _mm256_and_si256(moved, _mm256_set1_epi8(mask))
    }
}

/// Low nibbles of sixteen bytes, then their high nibbles.
#[inline(always)]
unsafe fn nibbles(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
        let shifted = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
        _mm256_and_si256(shifted, _mm256_set1_epi8(15))
    }
}

/// All bits of the bytes whose bit of a word is set.
#[inline(always)]
pub(super) unsafe fn expanded(word: u32) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let order = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        set_bits(_mm256_shuffle_epi8(_mm256_set1_epi32(word as i32), order))
    }
}

/// All bits of the bytes `8 k + j` whose bit `j` is set.
#[inline(always)]
pub(super) unsafe fn set_bits(bytes: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
    }
}

/// Adds 16 to the codes whose bit of the word at a place is set.
#[inline(always)]
unsafe fn with_fifth_bits(codes: __m256i, from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let fifth = _mm256_and_si256(expanded(read_u32(from)), _mm256_set1_epi8(16));
        _mm256_or_si256(codes, fifth)
    }
}

/// Looks each code up in a table of sixteen bytes.
#[inline(always)]
pub(super) unsafe fn look_up(table: &[u8; 16], codes: __m256i) -> __m256i {
    // SAFETY: see above; the table has sixteen bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, codes)
    }
}

/// The binary16 number at a place in eight lanes.
#[inline(always)]
pub(super) unsafe fn half(from: *const u8) -> __m256 {
    // SAFETY: see above.
    unsafe { _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(read_u16(from))))) }
}

/// The binary16 numbers at a byte of each of eight blocks of `BYTES` bytes.
#[inline(always)]
unsafe fn strided<const BYTES: usize>(from: *const u8, at: usize) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let value = |block: usize| i32::from(read_u16(from.add(block * BYTES + at)));
        let mut halves = _mm_cvtsi32_si128(value(0));
        halves = _mm_insert_epi16::<1>(halves, value(1));
        halves = _mm_insert_epi16::<2>(halves, value(2));
        halves = _mm_insert_epi16::<3>(halves, value(3));
        halves = _mm_insert_epi16::<4>(halves, value(4));
        halves = _mm_insert_epi16::<5>(halves, value(5));
        halves = _mm_insert_epi16::<6>(halves, value(6));
        halves = _mm_insert_epi16::<7>(halves, value(7));
        _mm256_cvtph_ps(halves)
    }
}

/// [`strided`] of the blocks of both halves.
#[inline(always)]
unsafe fn strided_of_both<const BYTES: usize>(from: [*const u8; 2], at: usize) -> Avx2Lanes {
    // SAFETY: see above.
    unsafe { Avx2Lanes(strided::<BYTES>(from[0], at), strided::<BYTES>(from[1], at)) }
}

/// Eight unsigned bytes as floats.
#[inline(always)]
unsafe fn unsigned(bytes: __m128i) -> __m256 {
    // SAFETY: see above.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

/// Sixteen signed bytes as floats, times a number.
#[inline(always)]
unsafe fn signed_times(bytes: __m128i, factor: __m256) -> Avx2Lanes {
    // SAFETY: see above.
    unsafe {
        let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
        Avx2Lanes(_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor))
    }
}

/// A scale, and the bias of codes with an offset.
#[inline(always)]
pub(super) unsafe fn with_offset(scale: Avx2Lanes, offset: f32) -> (Avx2Lanes, Avx2Lanes) {
    // SAFETY: see above.
    unsafe {
        let offset = _mm256_set1_ps(-offset);
        (scale, Avx2Lanes(_mm256_mul_ps(scale.0, offset), _mm256_mul_ps(scale.1, offset)))
    }
}

#[inline(always)]
unsafe fn negated(lanes: Avx2Lanes) -> Avx2Lanes {
    // SAFETY: see above.
    unsafe {
        let sign = _mm256_set1_ps(-0.0);
        Avx2Lanes(_mm256_xor_ps(lanes.0, sign), _mm256_xor_ps(lanes.1, sign))
    }
}

/// Implements [`Format`] by its codes and its factors.
macro_rules! unpacker {
    ($name:ident, |$from:ident, $v:ident| $codes:expr, |$both:ident| $factors:expr) => {
        pub(super) struct $name;

        impl $crate::x86_64::avx2_formats::Format for $name {
            type Fields = ();

            #[inline(always)]
            unsafe fn fields(_: *const u8) {}

            #[inline(always)]
            unsafe fn codes($from: *const u8, (): &(), $v: usize) -> __m256i {
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
pub(super) use unpacker;

unpacker!(Q4_0, |from, v| nibbles(from.add(18 * v + 2)), |from| {
    with_offset(strided_of_both::<18>(from, 0), 8.0)
});

unpacker!(Q4_1, |from, v| nibbles(from.add(20 * v + 4)), |from| {
    (strided_of_both::<20>(from, 0), strided_of_both::<20>(from, 2))
});

unpacker!(
    Q5_0,
    |from, v| with_fifth_bits(nibbles(from.add(22 * v + 6)), from.add(22 * v + 2)),
    |from| with_offset(strided_of_both::<22>(from, 0), 16.0)
);

unpacker!(
    Q5_1,
    |from, v| with_fifth_bits(nibbles(from.add(24 * v + 8)), from.add(24 * v + 4)),
    |from| (strided_of_both::<24>(from, 0), strided_of_both::<24>(from, 2))
);

unpacker!(
    Q8_0,
    |from, v| _mm256_xor_si256(load(from.add(34 * v + 2)), _mm256_set1_epi8(-128)),
    |from| with_offset(strided_of_both::<34>(from, 0), 128.0)
);

unpacker!(Iq4Nl, |from, v| look_up(&IQ4, nibbles(from.add(18 * v + 2))), |from| {
    with_offset(strided_of_both::<18>(from, 0), 128.0)
});

/// Powers of two of eight blocks of MXFP4.
#[inline(always)]
unsafe fn powers(from: *const u8) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let value = |block: usize| i32::from(from.add(17 * block).read());
        let exponent = _mm256_setr_epi32(
            value(0),
            value(1),
            value(2),
            value(3),
            value(4),
            value(5),
            value(6),
            value(7),
        );
        halves_of_powers(exponent)
    }
}

/// Halves of powers of two with these exponents.
#[inline(always)]
unsafe fn halves_of_powers(exponent: __m256i) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)));
        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponent);
        let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, small))
    }
}

unpacker!(Mxfp4, |from, v| look_up(&FP4, nibbles(from.add(17 * v + 1))), |from| {
    with_offset(Avx2Lanes(powers(from[0]), powers(from[1])), 16.0)
});

/// [`Mxfp4`] in planes: a byte holds neighbours.
pub(super) struct Mxfp4Planes;

impl Format for Mxfp4Planes {
    const PLANES: bool = true;
    type Fields = ();

    #[inline(always)]
    unsafe fn fields(_: *const u8) {}

    #[inline(always)]
    unsafe fn codes(from: *const u8, (): &(), v: usize) -> __m256i {
        // SAFETY: passed on to the caller.
        unsafe {
            let words = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.add(16 * v).cast()));
            let apart = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
            look_up(&FP4, _mm256_and_si256(apart, _mm256_set1_epi8(15)))
        }
    }

    #[inline(always)]
    unsafe fn factors(from: [*const u8; 2]) -> (Avx2Lanes, Avx2Lanes) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [first, second] = each(|half| {
                halves_of_powers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from[half].cast())))
            });
            with_offset(Avx2Lanes(first, second), 16.0)
        }
    }
}

/// [`Mxfp4Planes`] in groups of 16, with 8-bit floats as scales.
pub(super) struct Nvfp4Planes;

impl Format for Nvfp4Planes {
    const PLANES: bool = true;
    type Fields = ();

    #[inline(always)]
    unsafe fn fields(_: *const u8) {}

    #[inline(always)]
    unsafe fn codes(from: *const u8, fields: &(), v: usize) -> __m256i {
        // SAFETY: passed on to the caller.
        unsafe { Mxfp4Planes::codes(from, fields, v) }
    }

    #[inline(always)]
    unsafe fn factors(from: [*const u8; 2]) -> (Avx2Lanes, Avx2Lanes) {
        // SAFETY: passed on to the caller.
        unsafe { Self::shared_factors(from, Global::Factor(1.0)) }
    }

    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], global: Global) -> (Avx2Lanes, Avx2Lanes) {
        // SAFETY: passed on to the caller; the scales of sixteen groups are at the first pointer.
        unsafe { global.factors(from[0]) }
    }
}

/// Pairs of bits: of 32 bytes for each 128 columns.
#[inline(always)]
pub(super) unsafe fn pairs(from: *const u8, v: usize) -> __m256i {
    // SAFETY: see above.
    unsafe { moved(load(from.add(v / 4 * 32)), v % 4 * 2, 0, 3) }
}

unpacker!(Q2K, |from, v| pairs(from.add(16), v), |from| {
    let from = from[0];
    let small = _mm_loadu_si128(from.cast());
    let mask = _mm_set1_epi8(15);
    let high = _mm_and_si128(_mm_srli_epi16::<4>(small), mask);
    let scale = signed_times(_mm_and_si128(small, mask), half(from.add(80)));
    (scale, negated(signed_times(high, half(from.add(82)))))
});

unpacker!(
    Q3K,
    |from, v| _mm256_or_si256(pairs(from.add(32), v), moved(load(from), v, 2, 4)),
    |from| {
        let from = from[0];
        let mask = _mm_set1_epi8(15);
        let low = _mm_loadl_epi64(from.add(96).cast());
        let low = _mm_unpacklo_epi64(low, _mm_srli_epi16::<4>(low));
        let high = _mm_set1_epi32(read_u32(from.add(104)) as i32);
        let high = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
        let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
        let small = _mm_or_si128(_mm_and_si128(low, mask), high);
        let small = _mm_sub_epi8(small, _mm_set1_epi8(32));
        with_offset(signed_times(small, half(from.add(108))), 4.0)
    }
);

/// Eight scales and eight biases of a block of Q4_K or Q5_K.
#[inline(always)]
unsafe fn scales_and_minima(from: *const u8) -> (__m256, __m256) {
    // SAFETY: see above.
    unsafe {
        let (scales, minima) = fields::scales_and_minima(from);
        let scale = unsigned(_mm_cvtsi64_si128(scales as i64));
        let minimum = unsigned(_mm_cvtsi64_si128(minima as i64));
        let bias = _mm256_mul_ps(minimum, half(from.add(2)));
        (_mm256_mul_ps(scale, half(from)), _mm256_xor_ps(bias, _mm256_set1_ps(-0.0)))
    }
}

/// [`scales_and_minima`] of both halves.
#[inline(always)]
unsafe fn scales_and_minima_of_both(from: [*const u8; 2]) -> (Avx2Lanes, Avx2Lanes) {
    // SAFETY: see above.
    unsafe {
        let (first, second) = (scales_and_minima(from[0]), scales_and_minima(from[1]));
        (Avx2Lanes(first.0, second.0), Avx2Lanes(first.1, second.1))
    }
}

unpacker!(Q4K, |from, v| moved(load(from.add(16 + v / 2 * 32)), v % 2 * 4, 0, 15), |from| {
    scales_and_minima_of_both(from)
});

unpacker!(
    Q5K,
    |from, v| {
        let low = moved(load(from.add(48 + v / 2 * 32)), v % 2 * 4, 0, 15);
        _mm256_or_si256(low, moved(load(from.add(16)), v, 4, 16))
    },
    |from| scales_and_minima_of_both(from)
);

unpacker!(
    Q6K,
    |from, v| {
        let low = load(from.add(v / 4 * 64 + v % 2 * 32));
        let low = moved(low, v % 4 / 2 * 4, 0, 15);
        _mm256_or_si256(low, moved(load(from.add(128 + v / 4 * 32)), v % 4 * 2, 4, 0x30))
    },
    |from| {
        let small = _mm_loadu_si128(from[0].add(192).cast());
        with_offset(signed_times(small, half(from[0].add(208))), 32.0)
    }
);

/// Eight scales of a block of IQ4_XS.
#[inline(always)]
unsafe fn six_bits(from: *const u8) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let low = _mm256_set1_epi32(read_u32(from.add(4)) as i32);
        let high = _mm256_set1_epi32(i32::from(read_u16(from.add(2))));
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let small = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        _mm256_mul_ps(_mm256_cvtepi32_ps(small), half(from))
    }
}

unpacker!(Iq4Xs, |from, v| look_up(&IQ4, nibbles(from.add(8 + 16 * v))), |from| {
    with_offset(Avx2Lanes(six_bits(from[0]), six_bits(from[1])), 128.0)
});

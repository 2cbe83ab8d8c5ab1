//! Blocks to codes, scales and biases with AVX-512: one type for each format (`blocks/` has their layouts).

use super::avx512::Avx512Lanes;
use crate::blocks::tables::{FP4, IQ4};
use crate::each;
use crate::format::nvfp4::Global;
use std::arch::x86_64::*;

/// How a format is taken apart. All methods ask for AVX-512 BW, DQ, VL and VBMI, and the blocks of 256 columns and
/// [`SLACK`](crate::blocks::steps::SLACK) bytes must be readable.
pub(super) trait Format {
    /// Whether scales are a plane of their own.
    const PLANES: bool = false;

    /// Codes of the columns from `64 * v` on, of the blocks at `from`.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn codes(from: *const u8, v: usize) -> __m512i;

    /// Scale and bias of sixteen groups: of the exponents of eight at each pointer where they are planes, of the blocks
    /// at the first pointer in formats with groups of 16, of the blocks at both otherwise.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn factors(from: [*const u8; 2]) -> (__m512, __m512);

    /// [`Format::factors`], of a matrix whose scales share a number.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], _: Global) -> (__m512, __m512) {
        // SAFETY: passed on to the caller.
        unsafe { Self::factors(from) }
    }

    /// Codes of 256 columns.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn half(from: *const u8) -> [__m512i; 4] {
        // SAFETY: passed on to the caller.
        unsafe {
            [Self::codes(from, 0), Self::codes(from, 1), Self::codes(from, 2), Self::codes(from, 3)]
        }
    }
}

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the features and for the
// blocks of 256 columns, 84 to 272 bytes, and 64 bytes more; loads are unaligned and stay within these.

/// Words of the lower half, words of the upper half.
#[inline(always)]
pub(super) unsafe fn words(low: i16, high: i16) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_inserti64x4::<1>(_mm512_set1_epi16(low), _mm256_set1_epi16(high)) }
}

/// 32 bytes, twice.
#[inline(always)]
pub(super) unsafe fn twice(from: *const u8) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast())) }
}

/// 16 bytes of one place twice, then of another twice.
#[inline(always)]
pub(super) unsafe fn twice_each(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let first = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128(second.cast()))
    }
}

/// The low nibbles where the mask of words is clear, the high ones where it is set.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: __m512i, high: u32) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let shifted = _mm512_mask_srli_epi16::<4>(bytes, high, bytes);
        _mm512_and_si512(shifted, _mm512_set1_epi8(15))
    }
}

/// Words of the upper half of a register, and of the odd quarters.
const UPPER: u32 = 0xffff_0000;
pub(super) const ODD: u32 = 0xff00_ff00;

#[inline(always)]
pub(super) unsafe fn read_u16(from: *const u8) -> i32 {
    // SAFETY: see above.
    i32::from(unsafe { from.cast::<u16>().read_unaligned() })
}

#[inline(always)]
pub(super) unsafe fn read_u32(from: *const u8) -> i32 {
    // SAFETY: see above.
    unsafe { from.cast::<i32>().read_unaligned() }
}

/// Lanes 0 to 7 take value `low`, lanes 8 to 15 value `high`.
#[inline(always)]
pub(super) unsafe fn spread(values: __m128, low: i32, high: i32) -> __m512 {
    // SAFETY: see above.
    unsafe {
        let order = _mm512_inserti64x4::<1>(_mm512_set1_epi32(low), _mm256_set1_epi32(high));
        _mm512_permutexvar_ps(order, _mm512_castps128_ps512(values))
    }
}

/// The binary16 numbers at two places, in eight lanes each.
#[inline(always)]
pub(super) unsafe fn halves(first: *const u8, second: *const u8) -> __m512 {
    // SAFETY: see above.
    unsafe {
        let bits = _mm_cvtsi32_si128(read_u16(first) | read_u16(second) << 16);
        spread(_mm_cvtph_ps(bits), 0, 1)
    }
}

/// The binary16 number at a place in all lanes.
#[inline(always)]
pub(super) unsafe fn half(from: *const u8) -> __m512 {
    // SAFETY: see above.
    unsafe { _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(read_u16(from)))) }
}

#[inline(always)]
pub(super) unsafe fn bytes_to_floats(bytes: __m128i) -> __m512 {
    // SAFETY: see above.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)) }
}

/// A scale, and the bias of codes with an offset.
#[inline(always)]
pub(super) unsafe fn with_offset(scale: __m512, offset: f32) -> (__m512, __m512) {
    // SAFETY: see above.
    unsafe { (scale, _mm512_mul_ps(scale, _mm512_set1_ps(-offset))) }
}

/// Words of four bytes at a byte of each of sixteen blocks of `BYTES` bytes.
#[inline(always)]
unsafe fn strided<const BYTES: i32>(from: [*const u8; 2], at: usize) -> __m512i {
    // SAFETY: see above; the last word begins within the last block.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let order = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(BYTES));
        let a = _mm256_i32gather_epi32::<1>(from[0].add(at).cast(), order);
        let b = _mm256_i32gather_epi32::<1>(from[1].add(at).cast(), order);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
    }
}

/// The lower halves of words as binary16 numbers.
#[inline(always)]
unsafe fn low_halves(words: __m512i) -> __m512 {
    // SAFETY: see above.
    unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
}

/// The upper halves of words as binary16 numbers.
#[inline(always)]
unsafe fn high_halves(words: __m512i) -> __m512 {
    // SAFETY: see above.
    unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words))) }
}

/// Sixteen bytes of nibbles at a byte of blocks `2v` and `2v + 1`: 64 columns.
#[inline(always)]
unsafe fn block_nibbles<const BYTES: usize>(from: *const u8, at: usize, v: usize) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let first = from.add(2 * v * BYTES + at);
        nibbles(twice_each(first, first.add(BYTES)), ODD)
    }
}

/// The words of fifth bits of blocks `2v` and `2v + 1` as a mask of 64 columns.
#[inline(always)]
unsafe fn block_bits<const BYTES: usize>(from: *const u8, at: usize, v: usize) -> u64 {
    // SAFETY: see above.
    unsafe {
        let first = from.add(2 * v * BYTES + at);
        u64::from(read_u32(first) as u32) | u64::from(read_u32(first.add(BYTES)) as u32) << 32
    }
}

/// Adds a bit to the codes where a mask is set.
#[inline(always)]
unsafe fn add_bit(codes: __m512i, mask: u64, bit: i8) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_mask_add_epi8(codes, mask, codes, _mm512_set1_epi8(bit)) }
}

/// Looks each code up in a table of sixteen bytes.
#[inline(always)]
pub(super) unsafe fn look_up(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: see above; the table has sixteen bytes.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, codes)
    }
}

/// Implements [`Format`] by its codes and its factors.
macro_rules! unpacker {
    ($name:ident, |$from:ident, $v:ident| $codes:expr, |$both:ident| $factors:expr) => {
        pub(super) struct $name;

        impl $crate::x86_64::avx512_formats::Format for $name {
            #[inline(always)]
            unsafe fn codes($from: *const u8, $v: usize) -> __m512i {
                // SAFETY: passed on to the caller.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn factors($both: [*const u8; 2]) -> (__m512, __m512) {
                // SAFETY: passed on to the caller.
                unsafe { $factors }
            }
        }
    };
}
pub(super) use unpacker;

unpacker!(Q4_0, |from, v| block_nibbles::<18>(from, 2, v), |from| {
    with_offset(low_halves(strided::<18>(from, 0)), 8.0)
});

unpacker!(Q4_1, |from, v| block_nibbles::<20>(from, 4, v), |from| {
    let factors = strided::<20>(from, 0);
    (low_halves(factors), high_halves(factors))
});

unpacker!(
    Q5_0,
    |from, v| add_bit(block_nibbles::<22>(from, 6, v), block_bits::<22>(from, 2, v), 16),
    |from| with_offset(low_halves(strided::<22>(from, 0)), 16.0)
);

unpacker!(
    Q5_1,
    |from, v| add_bit(block_nibbles::<24>(from, 8, v), block_bits::<24>(from, 4, v), 16),
    |from| {
        let factors = strided::<24>(from, 0);
        (low_halves(factors), high_halves(factors))
    }
);

unpacker!(
    Q8_0,
    |from, v| {
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(from.add(68 * v + 2).cast()));
        let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(from.add(68 * v + 36).cast()));
        _mm512_xor_si512(both, _mm512_set1_epi8(-128))
    },
    |from| with_offset(low_halves(strided::<34>(from, 0)), 128.0)
);

unpacker!(Iq4Nl, |from, v| look_up(&IQ4, block_nibbles::<18>(from, 2, v)), |from| {
    with_offset(low_halves(strided::<18>(from, 0)), 128.0)
});

/// Halves of powers of two with these exponents, and what takes the offset off.
#[inline(always)]
unsafe fn powers(exponent: __m512i) -> (__m512, __m512) {
    // SAFETY: see above.
    unsafe {
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)));
        let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponent);
        let small = _mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(2));
        with_offset(_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, tiny)), 16.0)
    }
}

unpacker!(Mxfp4, |from, v| look_up(&FP4, block_nibbles::<17>(from, 1, v)), |from| {
    powers(_mm512_and_si512(strided::<17>(from, 0), _mm512_set1_epi32(255)))
});

/// [`Mxfp4`] in planes: a byte holds neighbours.
pub(super) struct Mxfp4Planes;

impl Format for Mxfp4Planes {
    const PLANES: bool = true;

    #[inline(always)]
    unsafe fn codes(from: *const u8, v: usize) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe {
            let words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.add(32 * v).cast()));
            let apart = _mm512_or_si512(words, _mm512_slli_epi16::<4>(words));
            look_up(&FP4, _mm512_and_si512(apart, _mm512_set1_epi8(15)))
        }
    }

    #[inline(always)]
    unsafe fn factors(from: [*const u8; 2]) -> (__m512, __m512) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [first, second] = each(|half| _mm_loadl_epi64(from[half].cast()));
            powers(_mm512_cvtepu8_epi32(_mm_unpacklo_epi64(first, second)))
        }
    }
}

/// [`Mxfp4Planes`] in groups of 16, with 8-bit floats as scales.
pub(super) struct Nvfp4Planes;

impl Format for Nvfp4Planes {
    const PLANES: bool = true;

    #[inline(always)]
    unsafe fn codes(from: *const u8, v: usize) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe { Mxfp4Planes::codes(from, v) }
    }

    #[inline(always)]
    unsafe fn factors(from: [*const u8; 2]) -> (__m512, __m512) {
        // SAFETY: passed on to the caller.
        unsafe { Self::shared_factors(from, Global::Factor(1.0)) }
    }

    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], global: Global) -> (__m512, __m512) {
        // SAFETY: passed on to the caller; the scales of sixteen groups are at the first pointer.
        unsafe {
            let (scale, bias) = global.factors::<Avx512Lanes>(from[0]);
            (scale.0, bias.0)
        }
    }
}

/// Pairs of bits of 32 bytes: vector `v` of two takes bits `4v` and up, then bits `4v + 2` and up.
#[inline(always)]
pub(super) unsafe fn pairs(bytes: __m512i, v: usize) -> __m512i {
    // SAFETY: see above.
    unsafe {
        let shift = 4 * v as i16;
        let shifted = _mm512_srlv_epi16(bytes, words(shift, shift + 2));
        _mm512_and_si512(shifted, _mm512_set1_epi8(3))
    }
}

/// A mask of the columns of vector `v` of four whose bit is set: bit `2v` of 32 bytes, then bit `2v + 1`.
#[inline(always)]
unsafe fn plane(bytes: __m512i, v: usize) -> u64 {
    // SAFETY: see above.
    unsafe {
        let low = _mm512_set1_epi8((1u8 << (2 * v)) as i8);
        let bits = _mm512_inserti64x4::<1>(low, _mm256_set1_epi8((2u8 << (2 * v)) as i8));
        _mm512_test_epi8_mask(bytes, bits)
    }
}

unpacker!(Q2K, |from, v| pairs(twice(from.add(16 + v / 2 * 32)), v % 2), |from| {
    let small = _mm_loadu_si128(from[0].cast());
    let low = _mm_and_si128(small, _mm_set1_epi8(15));
    let high = _mm_and_si128(_mm_srli_epi16::<4>(small), _mm_set1_epi8(15));
    let minimum = _mm512_mul_ps(bytes_to_floats(high), half(from[0].add(82)));
    let scale = _mm512_mul_ps(bytes_to_floats(low), half(from[0].add(80)));
    (scale, _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0)))
});

unpacker!(
    Q3K,
    |from, v| add_bit(pairs(twice(from.add(32 + v / 2 * 32)), v % 2), plane(twice(from), v), 4),
    |from| {
        let small = _mm_loadu_si128(from[0].add(96).cast());
        let low = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        let high = _mm_setr_epi8(8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11);
        let low = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(small, low));
        let high = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(small, high));
        let low_shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
        let high_shift = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
        let low = _mm512_and_si512(_mm512_srlv_epi32(low, low_shift), _mm512_set1_epi32(15));
        let high = _mm512_and_si512(_mm512_srlv_epi32(high, high_shift), _mm512_set1_epi32(3));
        let small = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
        let small = _mm512_cvtepi32_ps(_mm512_sub_epi32(small, _mm512_set1_epi32(32)));
        with_offset(_mm512_mul_ps(small, half(from[0].add(108))), 4.0)
    }
);

/// For each of sixteen scales and as many minima, the byte of two headers of sixteen bytes that holds its low
/// bits, the one that holds its high bits, where the low bits begin, and the masks of both.
static SMALL: [[u8; 32]; 5] = {
    let mut tables = [[0; 32]; 5];
    let mut k = 0;
    while k < 32 {
        let (minimum, g) = (k / 16, (k % 8) as u8);
        let header = (k % 16 / 8 * 16 + 4) as u8;
        let late = g >= 4;
        tables[0][k] = header + if late || minimum == 1 { g + 4 } else { g };
        tables[1][k] = header + if late && minimum == 0 { g - 4 } else { g };
        tables[2][k] = (k % 8 * 8) as u8 + if late && minimum == 1 { 4 } else { 0 };
        tables[3][k] = if late { 15 } else { 63 };
        tables[4][k] = if late { 0x30 } else { 0 };
        k += 1;
    }
    tables
};

/// Scales and biases of two blocks of Q4_K or Q5_K.
#[inline(always)]
unsafe fn scales_and_minima(from: [*const u8; 2]) -> (__m512, __m512) {
    // SAFETY: see above; the tables have 32 bytes.
    unsafe {
        let table = |k: usize| _mm256_loadu_si256(SMALL[k].as_ptr().cast());
        let (order, high_order, first) = (table(0), table(1), table(2));
        let (mask, high_mask) = (table(3), table(4));
        let (a, b) = (_mm_loadu_si128(from[0].cast()), _mm_loadu_si128(from[1].cast()));
        let headers = _mm256_set_m128i(b, a);
        let low = _mm256_multishift_epi64_epi8(first, _mm256_permutexvar_epi8(order, headers));
        let high = _mm256_srli_epi16::<2>(_mm256_permutexvar_epi8(high_order, headers));
        let small = _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_and_si256(high, high_mask));
        // d, minimum, d, minimum
        let factors = _mm_cvtph_ps(_mm_unpacklo_epi32(a, b));
        let scale = bytes_to_floats(_mm256_castsi256_si128(small));
        let minimum = bytes_to_floats(_mm256_extracti128_si256::<1>(small));
        let bias = _mm512_mul_ps(minimum, spread(factors, 1, 3));
        (_mm512_mul_ps(scale, spread(factors, 0, 2)), _mm512_xor_ps(bias, _mm512_set1_ps(-0.0)))
    }
}

unpacker!(Q4K, |from, v| nibbles(twice(from.add(16 + 32 * v)), UPPER), |from| scales_and_minima(
    from
));

unpacker!(
    Q5K,
    |from, v| {
        let low = nibbles(twice(from.add(48 + 32 * v)), UPPER);
        add_bit(low, plane(twice(from.add(16)), v), 16)
    },
    |from| scales_and_minima(from)
);

unpacker!(
    Q6K,
    |from, v| {
        let low = _mm512_loadu_si512(from.add(v / 2 * 64).cast());
        let high = twice(from.add(128 + v / 2 * 32));
        let mask = _mm512_set1_epi8(15);
        // The pair of bits of each column comes to bits 4 and 5.
        let (low, high) = if v.is_multiple_of(2) {
            (_mm512_and_si512(low, mask), _mm512_sllv_epi16(high, words(4, 2)))
        } else {
            let low = _mm512_and_si512(_mm512_srli_epi16::<4>(low), mask);
            (low, _mm512_srlv_epi16(high, words(0, 2)))
        };
        // (high & 0x30) | low
        _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x30), low)
    },
    |from| {
        let small = _mm512_cvtepi8_epi32(_mm_loadu_si128(from[0].add(192).cast()));
        let scale = _mm512_mul_ps(_mm512_cvtepi32_ps(small), half(from[0].add(208)));
        with_offset(scale, 32.0)
    }
);

/// A word in eight lanes, then another.
#[inline(always)]
pub(super) unsafe fn eight_each(first: i32, second: i32) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_inserti64x4::<1>(_mm512_set1_epi32(first), _mm256_set1_epi32(second)) }
}

unpacker!(
    Iq4Xs,
    |from, v| {
        let first = from.add(8 + 32 * v);
        look_up(&IQ4, nibbles(twice_each(first, first.add(16)), ODD))
    },
    |from| {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        let low = eight_each(read_u32(from[0].add(4)), read_u32(from[1].add(4)));
        let high = eight_each(read_u16(from[0].add(2)), read_u16(from[1].add(2)));
        let low = _mm512_srlv_epi32(low, _mm512_slli_epi32::<2>(lanes));
        let high = _mm512_srlv_epi32(high, _mm512_slli_epi32::<1>(lanes));
        let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
        let high = _mm512_slli_epi32::<4>(_mm512_and_si512(high, _mm512_set1_epi32(3)));
        let small = _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32));
        let scale = _mm512_mul_ps(_mm512_cvtepi32_ps(small), halves(from[0], from[1]));
        with_offset(scale, 128.0)
    }
);

//! AVX-512: sixteen lanes are one register.

use crate::lanes::Lanes;
use std::arch::x86_64::*;

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Lanes(pub(super) __m512);

/// Whether this processor has every feature that the table is compiled for.
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// A mask of the first `count < 16` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    (1u16 << count) - 1
}

// SAFETY (for every `unsafe` block below): the caller of each method vouches for AVX-512 and for 16
// elements at the pointer; masked accesses touch only the first `count`.
impl Lanes for Avx512Lanes {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above the impl.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see above the impl; AVX-512 includes AVX2.
        unsafe { Self(_mm512_cvtph_ps(super::avx2::halves_of_e4m3(from))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut i16) {
        // SAFETY: see above the impl.
        unsafe {
            let words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0));
            _mm256_storeu_si256(to.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_fmadd_ps(self.0, factor.0, term.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_roundscale_ps::<0>(self.0)) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above the impl.
        unsafe {
            let low = _mm512_castps512_ps256(self.0);
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            super::avx2::sum_of_eight(_mm256_add_ps(low, high))
        }
    }
    #[inline(always)]
    unsafe fn sum_each(vectors: &[[Self; 4]; 4], to: &mut [f32; 16]) {
        // SAFETY: see above the impl; `to` has 16 elements.
        unsafe {
            // Each level of the tree halves the lanes of a vector and joins two vectors into one.
            let zero = _mm512_setzero_ps();
            let (mut eight, mut four, mut two) = ([zero; 8], [zero; 4], [zero; 2]);
            for i in 0..8 {
                // Vectors that end side by side are four apart here: column by column.
                let (a, b) = (vectors[2 * i % 4][i / 2].0, vectors[(2 * i + 1) % 4][i / 2].0);
                let low = _mm512_shuffle_f32x4::<0x44>(a, b);
                eight[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a, b));
            }
            for i in 0..4 {
                let (a, b) = (eight[2 * i], eight[2 * i + 1]);
                let low = _mm512_shuffle_f32x4::<0x88>(a, b);
                four[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
            for i in 0..2 {
                let (a, b) = (four[2 * i], four[2 * i + 1]);
                let low = _mm512_shuffle_ps::<0x44>(a, b);
                two[i] = _mm512_add_ps(low, _mm512_shuffle_ps::<0xee>(a, b));
            }
            let low = _mm512_shuffle_ps::<0x88>(two[0], two[1]);
            let sums = _mm512_add_ps(low, _mm512_shuffle_ps::<0xdd>(two[0], two[1]));
            _mm512_storeu_ps(to.as_mut_ptr(), sums);
        }
    }
    #[inline(always)]
    unsafe fn max_magnitude_bits(self) -> u32 {
        // SAFETY: see above the impl.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff));
            _mm512_reduce_max_epu32(magnitude)
        }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm512_maskz_loadu_ps(first(count), from)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: see above the impl.
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
}

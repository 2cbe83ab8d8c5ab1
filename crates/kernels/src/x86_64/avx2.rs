//! AVX2 with FMA and F16C: sixteen lanes are two registers.

use crate::lanes::{LANES, Lanes};
use std::arch::x86_64::*;

/// Two 256-bit registers: lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes(pub(super) __m256, pub(super) __m256);

/// Whether this processor has every feature that the table is compiled for.
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// The rest of the tree of [`Lanes::sum`]: halves of eight, of four, of two.
///
/// # Safety
///
/// AVX must be available.
#[inline(always)]
pub(super) unsafe fn sum_of_eight(lanes: __m256) -> f32 {
    // SAFETY: passed on to the caller; no memory is touched.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        let one = _mm_add_ss(two, _mm_shuffle_ps::<0b01>(two, two));
        _mm_cvtss_f32(one)
    }
}

impl Avx2Lanes {
    /// # Safety
    ///
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn each(self, other: Self, f: impl Fn(__m256, __m256) -> __m256) -> Self {
        Self(f(self.0, other.0), f(self.1, other.1))
    }
}

// SAFETY (for every `unsafe` block below): the caller of each method vouches for AVX2, FMA and F16C
// and for 16 elements at the pointer.
impl Lanes for Avx2Lanes {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above the impl.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above the impl.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let half = |from: *const u8| {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            };
            Self(half(from), half(from.add(LANES)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(LANES).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let halves = halves_of_e4m3(from);
            Self(
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut i16) {
        // SAFETY: see above the impl.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packing works within 128-bit halves: put the quarters back in order.
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(words));
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_sub_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_mul_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_div_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_max_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(other, |a, b| _mm256_min_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, term.0),
                _mm256_fmadd_ps(self.1, factor.1, term.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let nearest =
                |x| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
            Self(nearest(self.0), nearest(self.1))
        }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let power = |n| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            };
            Self(power(self.0), power(self.1))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above the impl.
        unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn max_magnitude_bits(self) -> u32 {
        // SAFETY: see above the impl.
        unsafe {
            let mask = _mm256_set1_epi32(0x7fff_ffff);
            let a = _mm256_and_si256(_mm256_castps_si256(self.0), mask);
            let b = _mm256_and_si256(_mm256_castps_si256(self.1), mask);
            let eight = _mm256_max_epi32(a, b);
            let four =
                _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            _mm_cvtsi128_si32(one) as u32
        }
    }
}

/// Sixteen 8-bit floats as binary16 ([`f16_from_e4m3`](crate::float::f16_from_e4m3)).
#[inline(always)]
pub(super) unsafe fn halves_of_e4m3(from: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 16 bytes and for AVX2.
    unsafe {
        let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
        // The sign has come to the highest bit and the one below it.
        let halves = _mm256_and_si256(_mm256_slli_epi16::<7>(words), _mm256_set1_epi16(-0x4001));
        let all_set = _mm256_set1_epi16(0x3f80);
        let none = _mm256_cmpeq_epi16(_mm256_and_si256(halves, all_set), all_set);
        _mm256_or_si256(halves, _mm256_and_si256(none, _mm256_set1_epi16(0x4000)))
    }
}

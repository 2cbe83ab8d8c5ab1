//! NEON: sixteen lanes are four registers.

use crate::lanes::Lanes;
use std::arch::aarch64::*;
use std::arch::asm;

/// Four 128-bit registers: lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
#[derive(Clone, Copy)]
pub(crate) struct NeonLanes(pub(super) [float32x4_t; 4]);

/// Whether this processor has every feature that the table is compiled for.
pub(crate) fn available() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
        && std::arch::is_aarch64_feature_detected!("dotprod")
}

impl NeonLanes {
    /// # Safety
    ///
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn each(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self(self.0.map(f))
    }

    /// # Safety
    ///
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn zip(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// Exact integers as lanes.
    ///
    /// # Safety
    ///
    /// NEON; 16 values are readable.
    #[inline(always)]
    pub(super) unsafe fn from_integers(from: *const i32) -> Self {
        // SAFETY: passed on to the caller.
        Self(std::array::from_fn(|i| unsafe { vcvtq_f32_s32(vld1q_s32(from.add(4 * i))) }))
    }
}

impl NeonLanes {
    /// Sixteen integers, each the sum of four lanes.
    ///
    /// # Safety
    ///
    /// NEON must be available.
    #[inline(always)]
    pub(super) unsafe fn from_sums(units: &[int32x4_t; 16]) -> Self {
        // SAFETY: register operations; the caller vouches for NEON.
        unsafe {
            let four = |at: usize| {
                let low = vpaddq_s32(units[at], units[at + 1]);
                let high = vpaddq_s32(units[at + 2], units[at + 3]);
                vcvtq_f32_s32(vpaddq_s32(low, high))
            };
            Self([four(0), four(4), four(8), four(12)])
        }
    }
}

/// Four binary16 values widened. The intrinsic takes a type that is not stable yet.
///
/// # Safety
///
/// NEON must be available.
#[inline(always)]
unsafe fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: a conversion between registers; the caller vouches for NEON.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

// SAFETY (for every `unsafe` block below): the caller of each method vouches for NEON and for 16 elements
// at the pointer.
impl Lanes for NeonLanes {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above the impl.
        Self([unsafe { vdupq_n_f32(value) }; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above the impl.
        Self(std::array::from_fn(|i| unsafe { vld1q_f32(from.add(4 * i)) }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, quarter) in self.0.into_iter().enumerate() {
            // SAFETY: see above the impl.
            unsafe { vst1q_f32(to.add(4 * i), quarter) };
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        Self(std::array::from_fn(|i| unsafe {
            let bits = vreinterpret_u16_u8(vld1_u8(from.add(8 * i)));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
        }))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        Self(std::array::from_fn(|i| unsafe {
            widen_f16(vreinterpret_u16_u8(vld1_u8(from.add(8 * i))))
        }))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let codes = vreinterpretq_s8_u8(vld1q_u8(from));
            let words = [vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)];
            let halves = words.map(|words| {
                // The sign has come to the highest bit and the one below it.
                let halves =
                    vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(words)), vdupq_n_u16(0xbfff));
                let all_set = vdupq_n_u16(0x3f80);
                let none = vceqq_u16(vandq_u16(halves, all_set), all_set);
                vorrq_u16(halves, vandq_u16(none, vdupq_n_u16(0x4000)))
            });
            Self([
                widen_f16(vget_low_u16(halves[0])),
                widen_f16(vget_high_u16(halves[0])),
                widen_f16(vget_low_u16(halves[1])),
                widen_f16(vget_high_u16(halves[1])),
            ])
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            let bytes = vreinterpretq_s8_u8(vld1q_u8(from));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Self([
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut i16) {
        for (i, quarter) in self.0.into_iter().enumerate() {
            // SAFETY: see above the impl.
            unsafe {
                let words = vqmovn_s32(vcvtnq_s32_f32(quarter));
                vst1_u8(to.add(4 * i).cast(), vreinterpret_u8_s16(words));
            }
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vsubq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vmulq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vdivq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // Not the instruction for maxima: it gives NaN back where the reference gives `other`.
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.zip(other, |a, b| vbslq_f32(vcltq_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above the impl.
        Self(std::array::from_fn(|i| unsafe { vfmaq_f32(term.0[i], self.0[i], factor.0[i]) }))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above the impl.
        unsafe { self.each(|x| vrndnq_f32(x)) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: see above the impl.
        unsafe {
            self.each(|n| {
                let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
            })
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: see above the impl.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    unsafe fn max_magnitude_bits(self) -> u32 {
        // SAFETY: see above the impl.
        unsafe {
            let [a, b, c, d] = self.0.map(|x| vreinterpretq_u32_f32(vabsq_f32(x)));
            vmaxvq_u32(vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d)))
        }
    }
}

//! Products of blocks with NEON: codes as words, as 8-bit weights in `neon_quantised.rs`.
//!
//! Formats are unpacked by their scalar references, compiled for this instruction set.

use super::neon::NeonLanes;
use crate::blocks::VALUES_MAX;
use crate::blocks::product::{GroupSums, by_format};
use std::arch::aarch64::*;

struct NeonSums;

impl GroupSums for NeonSums {
    type Lanes = NeonLanes;

    #[inline(always)]
    unsafe fn sums<const GROUP: usize>(
        codes: &[u8; VALUES_MAX],
        x: &[i16; VALUES_MAX],
        sums: &mut [i32],
    ) {
        for (g, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the group lies within 256 columns; the caller vouches for NEON.
            unsafe {
                let (mut even, mut odd) = (vdupq_n_s32(0), vdupq_n_s32(0));
                for at in (0..GROUP).step_by(8) {
                    let column = g * GROUP + at;
                    let codes = vmovl_u8(vld1_u8(codes.as_ptr().add(column)));
                    let codes = vreinterpretq_s16_u16(codes);
                    let x = vld1q_s16(x.as_ptr().add(column));
                    even = vmlal_s16(even, vget_low_s16(codes), vget_low_s16(x));
                    odd = vmlal_high_s16(odd, codes, x);
                }
                *sum = vaddvq_s32(vaddq_s32(even, odd));
            }
        }
    }
}

by_format!([#[target_feature(enable = "neon,dotprod")]], NeonSums);

//! Products of blocks with AVX2: codes as words, as in `avx2_quantised.rs`.
//!
//! Formats are unpacked by their scalar references, compiled for this instruction set.

use super::avx2::Avx2Lanes;
use super::avx2_quantised::sum_groups;
use crate::blocks::VALUES_MAX;
use crate::blocks::product::{GroupSums, by_format};
use std::arch::x86_64::*;

struct Avx2Sums;

impl GroupSums for Avx2Sums {
    type Lanes = Avx2Lanes;

    #[inline(always)]
    unsafe fn sums<const GROUP: usize>(
        codes: &[u8; VALUES_MAX],
        x: &[i16; VALUES_MAX],
        sums: &mut [i32],
    ) {
        for (eight, sums) in sums.chunks_exact_mut(8).enumerate() {
            // SAFETY: eight groups lie within 256 columns; the caller vouches for AVX2.
            unsafe {
                let mut units = [_mm256_setzero_si256(); 8];
                for (g, unit) in units.iter_mut().enumerate() {
                    for at in (0..GROUP).step_by(16) {
                        let column = (8 * eight + g) * GROUP + at;
                        let codes = _mm_loadu_si128(codes.as_ptr().add(column).cast());
                        let x = _mm256_loadu_si256(x.as_ptr().add(column).cast());
                        let products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(codes), x);
                        *unit = _mm256_add_epi32(*unit, products);
                    }
                }
                _mm256_storeu_si256(sums.as_mut_ptr().cast(), sum_groups(&units, 1));
            }
        }
    }
}

by_format!([#[target_feature(enable = "avx2,fma,f16c")]], Avx2Sums);

//! Blocks of grid points, ternary digits and floats of four bits with NEON, as in `neon_formats.rs`.
//!
//! Points are read one by one from tables of 2 to 16 KiB. Signs become a mask of 32 columns.

use super::neon::NeonLanes;
use super::neon_formats::*;
use crate::blocks::codebooks;
use crate::blocks::fields::{self, read_u32, read_u64};
use crate::blocks::points;
use crate::blocks::tables::{FP4, half_of_e4m3};
use crate::float::f32_from_f16;
use crate::lanes::Lanes;
use std::arch::aarch64::*;

// SAFETY (for every `unsafe` block below): the caller of each function vouches for NEON and for the blocks of 256
// columns and 64 bytes more; loads stay within these.

/// Four points of eight coordinates, or four times two of four.
#[inline(always)]
unsafe fn eights([a, b, c, d]: [u64; 4]) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe {
        [vcombine_u8(vcreate_u8(a), vcreate_u8(b)), vcombine_u8(vcreate_u8(c), vcreate_u8(d))]
    }
}

/// Magnitudes with signs as codes around 64; the mask has all bits of the bytes that are negative.
#[inline(always)]
unsafe fn signed(magnitudes: [uint8x16_t; 2], minus: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    let ([a, b], [c, d]) = (magnitudes, minus);
    // SAFETY: see above.
    unsafe {
        let zero = vdupq_n_u8(64);
        [vaddq_u8(vsubq_u8(veorq_u8(a, c), c), zero), vaddq_u8(vsubq_u8(veorq_u8(b, d), d), zero)]
    }
}

/// The mask of 32 columns from four codes of seven bits.
#[inline(always)]
unsafe fn even_signs(codes: [u32; 4]) -> [uint8x16_t; 2] {
    let [a, b, c, d] = codes;
    let byte = |code: u32| u32::from(codebooks::even_signs(code));
    // SAFETY: see above.
    unsafe { expanded(byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24) }
}

/// [`even_signs`] of the lowest 28 bits of a word.
#[inline(always)]
unsafe fn four_signs(word: u32) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { even_signs([word, word >> 7, word >> 14, word >> 21]) }
}

/// `(0.5 + small) * step * scale`, in the order of the reference.
#[inline(always)]
unsafe fn half_steps(small: [u8; 16], scale: NeonLanes, step: f32) -> (NeonLanes, NeonLanes) {
    // SAFETY: see above; numbers below 16 are the same with a sign.
    unsafe {
        let small = NeonLanes::load_i8(small.as_ptr()).add(NeonLanes::splat(0.5));
        with_offset(scale.mul(small).mul(NeonLanes::splat(step)), 64.0)
    }
}

/// Sixteen nibbles of eight bytes.
#[inline(always)]
unsafe fn sixteen_nibbles(from: *const u8) -> [u8; 16] {
    let mut nibbles = [0; 16];
    // SAFETY: see above; the array has sixteen bytes.
    unsafe {
        let bytes = vld1_u8(from);
        let (low, high) = (vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8::<4>(bytes));
        let both = vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
        vst1q_u8(nibbles.as_mut_ptr(), both);
    }
    nibbles
}

/// The highest nibbles of sixteen words, eight of each block, `step` bytes apart.
#[inline(always)]
unsafe fn high_nibbles(from: [*const u8; 2], at: usize, step: usize) -> [u8; 16] {
    let mut nibbles = [0; 16];
    for (g, nibble) in nibbles.iter_mut().enumerate() {
        // SAFETY: see above.
        *nibble = unsafe { from[g / 8].add(at + g % 8 * step + 3).read() } >> 4;
    }
    nibbles
}

unpacker!(
    Iq2Xxs,
    |from, v| {
        let (points, signs) = points::iq2_xxs(from, v);
        signed(eights(points), four_signs(signs))
    },
    |from| half_steps(high_nibbles(from, 6, 8), halves(from[0], from[1]), 0.25)
);

unpacker!(
    Iq2Xs,
    |from, v| {
        let (points, words) = points::iq2_xs(from, v);
        let code = |k: usize| (words >> (16 * k + 9)) as u32;
        signed(eights(points), even_signs([code(0), code(1), code(2), code(3)]))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(66)), half(from[0]), 0.25)
);

unpacker!(
    Iq2S,
    |from, v| {
        let signs = read_u32(from.add(34 + 4 * v));
        signed(eights(points::iq2_s(from, v)), expanded(signs))
    },
    |from| half_steps(sixteen_nibbles(from[0].add(74)), half(from[0]), 0.25)
);

unpacker!(
    Iq3Xxs,
    |from, v| {
        signed(eights(points::iq3_xxs(from, v)), four_signs(read_u32(from.add(66 + 4 * v))))
    },
    |from| half_steps(high_nibbles(from, 66, 4), halves(from[0], from[1]), 0.5)
);

unpacker!(
    Iq3S,
    |from, v| {
        let signs = read_u32(from.add(74 + 4 * v));
        signed(eights(points::iq3_s(from, v)), expanded(signs))
    },
    |from| {
        let (first, second) = (read_u32(from[0].add(106)), read_u32(from[1].add(106)));
        let nibbles = (u64::from(first) | u64::from(second) << 32).to_le_bytes();
        let mut odd = sixteen_nibbles(nibbles.as_ptr());
        for small in &mut odd {
            *small = 2 * *small + 1;
        }
        with_offset(halves(from[0], from[1]).mul(NeonLanes::load_i8(odd.as_ptr())), 64.0)
    }
);

/// Ternary points as codes around 16: eight times the coordinates, and a shift for each point.
#[inline(always)]
unsafe fn shifted(points: [u64; 4], shift: [u64; 4]) -> [uint8x16_t; 2] {
    // SAFETY: see above. Coordinates are at most 2, so that no bit leaves its byte.
    unsafe {
        let ([a, b], [c, d]) = (eights(points), eights(shift));
        [vaddq_u8(vshlq_n_u8::<3>(a), c), vaddq_u8(vshlq_n_u8::<3>(b), d)]
    }
}

/// The shift of a point: an eighth up, or down.
const fn shift(minus: bool) -> u64 {
    if minus { 0x0707_0707_0707_0707 } else { 0x0909_0909_0909_0909 }
}

/// `(2 * small + 1) * scale / 8`, in the order of the reference.
#[inline(always)]
unsafe fn odd_eighths(odd: [u8; 16], scale: NeonLanes) -> (NeonLanes, NeonLanes) {
    // SAFETY: see above; numbers below 16 are the same with a sign.
    unsafe {
        let scale = scale.mul(NeonLanes::load_i8(odd.as_ptr()));
        with_offset(scale.mul(NeonLanes::splat(0.125)), 16.0)
    }
}

unpacker!(
    Iq1S,
    |from, v| {
        let (points, rest) = points::iq1_s(from, v);
        shifted(points, [shift(rest >> 15 == 1); 4])
    },
    |from| {
        let mut odd = [0; 16];
        for (g, odd) in odd.iter_mut().enumerate() {
            *odd = 2 * (from[g / 8].add(35 + g % 8 * 2).read() >> 4 & 7) + 1;
        }
        odd_eighths(odd, halves(from[0], from[1]))
    }
);

unpacker!(
    Iq1M,
    |from, v| {
        let (points, nibbles) = points::iq1_m(from, v);
        let minus = |k: usize| shift(nibbles >> (4 * k + 3) & 1 == 1);
        shifted(points, [minus(0), minus(1), minus(2), minus(3)])
    },
    |from| {
        let words = read_u64(from[0].add(48));
        let mut odd = [0; 16];
        for (g, odd) in odd.iter_mut().enumerate() {
            *odd = 2 * (words >> (g / 4 * 16 + g % 4 * 3) & 7) as u8 + 1;
        }
        odd_eighths(odd, NeonLanes::splat(f32_from_f16(fields::iq1_m_scale(words))))
    }
);

/// The powers of three of the digits of a byte.
static POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Digits of bytes: the integer part of three times the fraction `byte * power / 256`.
#[inline(always)]
unsafe fn digits(bytes: uint8x16_t, powers: uint8x16_t) -> uint8x16_t {
    // SAFETY: see above.
    unsafe {
        let fraction = vmulq_u8(bytes, powers);
        // All bits set is minus one.
        let (one, two) = (vcgeq_u8(fraction, vdupq_n_u8(86)), vcgeq_u8(fraction, vdupq_n_u8(171)));
        vsubq_u8(vsubq_u8(vdupq_n_u8(0), one), two)
    }
}

unpacker!(
    Tq1_0,
    |from, v| {
        let power = |n: usize| vdupq_n_u8(POWERS[n]);
        if v < 5 {
            let [a, b] = load(from);
            return [digits(a, power(v)), digits(b, power(v))];
        }
        // Sixteen bytes of five digits, then four bytes of four digits.
        let sixteen = vld1q_u8(from.add(32));
        if v < 7 {
            let n = 2 * (v - 5);
            return [digits(sixteen, power(n)), digits(sixteen, power(n + 1))];
        }
        let last = vreinterpretq_u8_u32(vdupq_n_u32(read_u32(from.add(48))));
        let each =
            vcombine_u8(vcreate_u8(0x0303_0303_0101_0101), vcreate_u8(0x1b1b_1b1b_0909_0909));
        [digits(sixteen, power(4)), digits(last, each)]
    },
    |from| with_offset(halves(from[0].add(52), from[1].add(52)), 1.0)
);

unpacker!(Tq2_0, |from, v| pairs(from, v), |from| {
    with_offset(halves(from[0].add(64), from[1].add(64)), 1.0)
});

unpacker!(
    Nvfp4,
    |from, v| {
        // Eight bytes hold sixteen columns: low nibbles, then high nibbles.
        let bytes = vld1q_u8(from.add(36 * (v / 2) + 4 + 16 * (v % 2)));
        let low = vandq_u8(bytes, vdupq_n_u8(15));
        let high = vshrq_n_u8::<4>(bytes);
        let columns = [
            vcombine_u8(vget_low_u8(low), vget_low_u8(high)),
            vcombine_u8(vget_high_u8(low), vget_high_u8(high)),
        ];
        look_up(&FP4, columns)
    },
    |from| {
        let mut scales = [0.0; 16];
        for (g, scale) in scales.iter_mut().enumerate() {
            *scale = half_of_e4m3(from[0].add(36 * (g / 4) + g % 4).read());
        }
        with_offset(NeonLanes::load(scales.as_ptr()), 16.0)
    }
);

//! Blocks to codes, scales and biases with NEON: one type for each format (`blocks/` has their layouts).

use super::neon::NeonLanes;
use crate::blocks::fields::{self, read_u16, read_u32};
use crate::blocks::tables::{FP4, IQ4};
use crate::float::f32_from_f16;
use crate::format::nvfp4::Global;
use crate::lanes::Lanes;
use std::arch::aarch64::*;

/// How a format is taken apart. All methods ask for NEON, and the blocks of 256 columns and
/// [`SLACK`](crate::blocks::steps::SLACK) bytes must be readable.
pub(super) trait Format {
    /// Whether codes need all eight bits.
    const WIDE: bool = false;
    /// Whether scales are a plane of their own.
    const PLANES: bool = false;

    /// Codes of the columns from `32 * v` on, of the blocks at `from`.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn codes(from: *const u8, v: usize) -> [uint8x16_t; 2];

    /// Scale and bias of sixteen groups: of the blocks at the first pointer in formats with groups of 16, of the
    /// blocks at both otherwise.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn factors(from: [*const u8; 2]) -> (NeonLanes, NeonLanes);

    /// [`Format::factors`], of a matrix whose scales share a number.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], _: Global) -> (NeonLanes, NeonLanes) {
        // SAFETY: passed on to the caller.
        unsafe { Self::factors(from) }
    }
}

// SAFETY (for every `unsafe` block below): the caller of each function vouches for NEON and for the blocks of 256
// columns, 84 to 272 bytes, and 64 bytes more; loads are unaligned and stay within these.

/// 32 bytes.
#[inline(always)]
pub(super) unsafe fn load(from: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { [vld1q_u8(from), vld1q_u8(from.add(16))] }
}

/// The bits of a mask, moved from place `from` to place `to` of each byte.
#[inline(always)]
pub(super) unsafe fn moved(bytes: uint8x16_t, from: usize, to: usize, mask: u8) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(to as i8 - from as i8)), vdupq_n_u8(mask)) }
}

/// [`moved`] of 32 bytes.
#[inline(always)]
pub(super) unsafe fn each_moved(
    [a, b]: [uint8x16_t; 2],
    from: usize,
    to: usize,
    mask: u8,
) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { [moved(a, from, to, mask), moved(b, from, to, mask)] }
}

#[inline(always)]
unsafe fn either([a, b]: [uint8x16_t; 2], [c, d]: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { [vorrq_u8(a, c), vorrq_u8(b, d)] }
}

/// Low nibbles of sixteen bytes, then their high nibbles.
#[inline(always)]
unsafe fn nibbles(from: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe {
        let bytes = vld1q_u8(from);
        [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
    }
}

/// All bits of the bytes whose bit of a word is set.
#[inline(always)]
pub(super) unsafe fn expanded(word: u32) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe {
        let bytes = vreinterpretq_u8_u32(vdupq_n_u32(word));
        let bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let low = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let high = vcombine_u8(vdup_n_u8(2), vdup_n_u8(3));
        [vtstq_u8(vqtbl1q_u8(bytes, low), bits), vtstq_u8(vqtbl1q_u8(bytes, high), bits)]
    }
}

/// Adds 16 to the codes whose bit of the word at a place is set.
#[inline(always)]
unsafe fn with_fifth_bits(codes: [uint8x16_t; 2], from: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { either(codes, each_moved(expanded(read_u32(from)), 0, 0, 16)) }
}

/// Looks each code up in a table of sixteen bytes.
#[inline(always)]
pub(super) unsafe fn look_up(table: &[u8; 16], [a, b]: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: see above; the table has sixteen bytes.
    unsafe {
        let table = vld1q_u8(table.as_ptr());
        [vqtbl1q_u8(table, a), vqtbl1q_u8(table, b)]
    }
}

/// The binary16 numbers at two places, in eight lanes each.
#[inline(always)]
pub(super) unsafe fn halves(first: *const u8, second: *const u8) -> NeonLanes {
    // SAFETY: see above.
    unsafe {
        let low = vdupq_n_f32(f32_from_f16(read_u16(first)));
        let high = vdupq_n_f32(f32_from_f16(read_u16(second)));
        NeonLanes([low, low, high, high])
    }
}

/// The binary16 number at a place in all lanes.
#[inline(always)]
pub(super) unsafe fn half(from: *const u8) -> NeonLanes {
    // SAFETY: see above.
    unsafe { NeonLanes::splat(f32_from_f16(read_u16(from))) }
}

/// The binary16 numbers at a byte of each of sixteen blocks of `BYTES` bytes.
#[inline(always)]
unsafe fn strided<const BYTES: usize>(from: [*const u8; 2], at: usize) -> NeonLanes {
    let mut halves = [0u16; 16];
    for (block, value) in halves.iter_mut().enumerate() {
        // SAFETY: see above.
        *value = unsafe { read_u16(from[block / 8].add(block % 8 * BYTES + at)) };
    }
    // SAFETY: see above; the array has sixteen numbers.
    unsafe { NeonLanes::load_f16(halves.as_ptr().cast()) }
}

/// Sixteen signed bytes as floats.
#[inline(always)]
unsafe fn signed(bytes: uint8x16_t) -> NeonLanes {
    let mut copy = [0u8; 16];
    // SAFETY: see above; the copy has sixteen bytes.
    unsafe {
        vst1q_u8(copy.as_mut_ptr(), bytes);
        NeonLanes::load_i8(copy.as_ptr())
    }
}

/// A scale, and the bias of codes with an offset.
#[inline(always)]
pub(super) unsafe fn with_offset(scale: NeonLanes, offset: f32) -> (NeonLanes, NeonLanes) {
    // SAFETY: see above.
    unsafe { (scale, scale.mul(NeonLanes::splat(-offset))) }
}

#[inline(always)]
unsafe fn negated(lanes: NeonLanes) -> NeonLanes {
    // SAFETY: see above.
    unsafe { lanes.mul(NeonLanes::splat(-1.0)) }
}

/// Implements [`Format`] by its codes and its factors; `true` if codes need all eight bits.
macro_rules! unpacker {
    ($name:ident $(, $wide:literal)?, |$from:ident, $v:ident| $codes:expr, |$both:ident| $factors:expr) => {
        pub(super) struct $name;

        impl $crate::aarch64::neon_formats::Format for $name {
            $(const WIDE: bool = $wide;)?

            #[inline(always)]
            unsafe fn codes($from: *const u8, $v: usize) -> [uint8x16_t; 2] {
                // SAFETY: passed on to the caller.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn factors($both: [*const u8; 2]) -> (NeonLanes, NeonLanes) {
                // SAFETY: passed on to the caller.
                unsafe { $factors }
            }
        }
    };
}
pub(super) use unpacker;

unpacker!(Q4_0, |from, v| nibbles(from.add(18 * v + 2)), |from| {
    with_offset(strided::<18>(from, 0), 8.0)
});

unpacker!(Q4_1, |from, v| nibbles(from.add(20 * v + 4)), |from| {
    (strided::<20>(from, 0), strided::<20>(from, 2))
});

unpacker!(
    Q5_0,
    |from, v| with_fifth_bits(nibbles(from.add(22 * v + 6)), from.add(22 * v + 2)),
    |from| with_offset(strided::<22>(from, 0), 16.0)
);

unpacker!(
    Q5_1,
    |from, v| with_fifth_bits(nibbles(from.add(24 * v + 8)), from.add(24 * v + 4)),
    |from| (strided::<24>(from, 0), strided::<24>(from, 2))
);

unpacker!(
    Q8_0,
    true,
    |from, v| {
        let [a, b] = load(from.add(34 * v + 2));
        let sign = vdupq_n_u8(0x80);
        [veorq_u8(a, sign), veorq_u8(b, sign)]
    },
    |from| with_offset(strided::<34>(from, 0), 128.0)
);

unpacker!(Iq4Nl, true, |from, v| look_up(&IQ4, nibbles(from.add(18 * v + 2))), |from| {
    with_offset(strided::<18>(from, 0), 128.0)
});

unpacker!(Mxfp4, |from, v| look_up(&FP4, nibbles(from.add(17 * v + 1))), |from| {
    let mut bits = [0u32; 16];
    for (block, bits) in bits.iter_mut().enumerate() {
        let exponent = u32::from(from[block / 8].add(block % 8 * 17).read());
        *bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
    }
    with_offset(NeonLanes::load(bits.as_ptr().cast()), 16.0)
});

/// 4-bit floats in planes: a byte holds neighbours, 8-bit floats are the scales of groups of 16.
pub(super) struct Nvfp4Planes;

impl Format for Nvfp4Planes {
    const PLANES: bool = true;

    #[inline(always)]
    unsafe fn codes(from: *const u8, v: usize) -> [uint8x16_t; 2] {
        // SAFETY: passed on to the caller.
        unsafe {
            let [low, high] = nibbles(from.add(16 * v));
            look_up(&FP4, [vzip1q_u8(low, high), vzip2q_u8(low, high)])
        }
    }

    #[inline(always)]
    unsafe fn factors(from: [*const u8; 2]) -> (NeonLanes, NeonLanes) {
        // SAFETY: passed on to the caller.
        unsafe { Self::shared_factors(from, Global::Factor(1.0)) }
    }

    #[inline(always)]
    unsafe fn shared_factors(from: [*const u8; 2], global: Global) -> (NeonLanes, NeonLanes) {
        // SAFETY: passed on to the caller; the scales of sixteen groups are at the first pointer.
        unsafe { global.factors(from[0]) }
    }
}

/// Pairs of bits: of 32 bytes for each 128 columns.
#[inline(always)]
pub(super) unsafe fn pairs(from: *const u8, v: usize) -> [uint8x16_t; 2] {
    // SAFETY: see above.
    unsafe { each_moved(load(from.add(v / 4 * 32)), v % 4 * 2, 0, 3) }
}

unpacker!(Q2K, |from, v| pairs(from.add(16), v), |from| {
    let from = from[0];
    let [low, high] = nibbles(from);
    let scale = signed(low).mul(half(from.add(80)));
    (scale, negated(signed(high).mul(half(from.add(82)))))
});

unpacker!(Q3K, |from, v| either(pairs(from.add(32), v), each_moved(load(from), v, 2, 4)), |from| {
    let from = from[0];
    let low = vld1_u8(from.add(96));
    let low = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8::<4>(low));
    let high = u128::from(read_u32(from.add(104)));
    let high = high | high >> 2 << 32 | high >> 4 << 64 | high >> 6 << 96;
    let high = high & 0x0303_0303_0303_0303_0303_0303_0303_0303;
    let high = vcombine_u8(vcreate_u8(high as u64), vcreate_u8((high >> 64) as u64));
    let small = vorrq_u8(low, vshlq_n_u8::<4>(high));
    with_offset(signed(vsubq_u8(small, vdupq_n_u8(32))).mul(half(from.add(108))), 4.0)
});

/// Scales and biases of two blocks of Q4_K or Q5_K.
#[inline(always)]
unsafe fn scales_and_minima(from: [*const u8; 2]) -> (NeonLanes, NeonLanes) {
    // SAFETY: see above.
    unsafe {
        let (first, second) =
            (fields::scales_and_minima(from[0]), fields::scales_and_minima(from[1]));
        let bytes = |a, b| vcombine_u8(vcreate_u8(a), vcreate_u8(b));
        let minimum = signed(bytes(first.1, second.1)).mul(halves(from[0].add(2), from[1].add(2)));
        (signed(bytes(first.0, second.0)).mul(halves(from[0], from[1])), negated(minimum))
    }
}

unpacker!(Q4K, |from, v| each_moved(load(from.add(16 + v / 2 * 32)), v % 2 * 4, 0, 15), |from| {
    scales_and_minima(from)
});

unpacker!(
    Q5K,
    |from, v| {
        let low = each_moved(load(from.add(48 + v / 2 * 32)), v % 2 * 4, 0, 15);
        either(low, each_moved(load(from.add(16)), v, 4, 16))
    },
    |from| scales_and_minima(from)
);

unpacker!(
    Q6K,
    |from, v| {
        let low = load(from.add(v / 4 * 64 + v % 2 * 32));
        let low = each_moved(low, v % 4 / 2 * 4, 0, 15);
        either(low, each_moved(load(from.add(128 + v / 4 * 32)), v % 4 * 2, 4, 0x30))
    },
    |from| {
        let small = vld1q_u8(from[0].add(192));
        with_offset(signed(small).mul(half(from[0].add(208))), 32.0)
    }
);

/// Eight scales of a block of IQ4_XS.
#[inline(always)]
unsafe fn six_bits(from: *const u8) -> uint8x8_t {
    // SAFETY: see above.
    unsafe {
        let low = vreinterpret_u8_u32(vdup_n_u32(read_u32(from.add(4))));
        let low = vzip1_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8::<4>(low));
        // Two bits to a byte: two bytes, shifted by 0, 2, 4 and 6.
        let high = vreinterpret_u8_u16(vdup_n_u16(read_u16(from.add(2))));
        let order = vcreate_u8(0x0101_0101_0000_0000);
        let shifts = vreinterpret_s8_u32(vdup_n_u32(0xfafc_fe00));
        let high = vshl_u8(vtbl1_u8(high, order), shifts);
        let high = vshl_n_u8::<4>(vand_u8(high, vdup_n_u8(3)));
        vsub_u8(vorr_u8(low, high), vdup_n_u8(32))
    }
}

unpacker!(Iq4Xs, true, |from, v| look_up(&IQ4, nibbles(from.add(8 + 16 * v))), |from| {
    let small = signed(vcombine_u8(six_bits(from[0]), six_bits(from[1])));
    with_offset(small.mul(halves(from[0], from[1])), 128.0)
});

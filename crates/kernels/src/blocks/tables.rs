//! Blocks whose 4-bit codes are indices of a table of values.

use super::legacy::nibbles;
use super::{Unpacked, half};

/// The values of IQ4_NL and IQ4_XS, plus 128.
pub(crate) const IQ4: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Twice the 4-bit floats (two bits of exponent, one of mantissa), plus 16.
pub(crate) const FP4: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

fn look_up(table: &[u8; 16], codes: &mut [u8]) {
    for code in codes {
        *code = table[usize::from(*code)];
    }
}

/// Scale, nibbles.
#[inline(always)]
pub(crate) fn iq4_nl(block: &[u8], out: &mut Unpacked) {
    out.scales[0] = half(block, 0);
    nibbles(&block[2..], &mut out.codes);
    look_up(&IQ4, &mut out.codes[..32]);
}

/// Scale, scales of 6 bits (two bytes of high pairs, four of low nibbles), nibbles of eight groups.
#[inline(always)]
pub(crate) fn iq4_xs(block: &[u8], out: &mut Unpacked) {
    let scale = half(block, 0);
    for g in 0..8 {
        let low = block[4 + g / 2] >> (g % 2 * 4) & 15;
        let high = block[2 + g / 4] >> (g % 4 * 2) & 3;
        out.scales[g] = scale * f32::from(i16::from(low | high << 4) - 32);
        nibbles(&block[8 + 16 * g..], &mut out.codes[32 * g..]);
    }
    look_up(&IQ4, &mut out.codes);
}

/// Exponent of half the scale, nibbles.
#[inline(always)]
pub(crate) fn mxfp4(block: &[u8], out: &mut Unpacked) {
    let exponent = u32::from(block[0]);
    // 2^(exponent - 128), which is subnormal for the two smallest.
    let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
    out.scales[0] = f32::from_bits(bits);
    nibbles(&block[1..], &mut out.codes);
    look_up(&FP4, &mut out.codes[..32]);
}

/// Four 8-bit floats, then for each 16 values eight bytes: value `j` below, value `j + 8` above.
#[inline(always)]
pub(crate) fn nvfp4(block: &[u8], out: &mut Unpacked) {
    for g in 0..4 {
        out.scales[g] = half_of_e4m3(block[g]);
        for j in 0..8 {
            let byte = block[4 + 8 * g + j];
            out.codes[16 * g + j] = byte & 15;
            out.codes[16 * g + j + 8] = byte >> 4;
        }
    }
    look_up(&FP4, &mut out.codes[..64]);
}

/// Half of a float of four bits of exponent (bias 7) and three of mantissa, whose sign bit has no meaning;
/// 0x7f, which would not be a number, is zero.
pub(crate) fn half_of_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), f32::from(byte & 7));
    match (byte, exponent) {
        (0 | 0x7f, _) => 0.0,
        // A mantissa counts steps of 2^-9; half of that.
        (_, 0) => mantissa * f32::from_bits((127 - 10) << 23),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 127 - 8) << 23),
    }
}

//! Blocks of 256 values whose groups of 16 or 32 have small integer scales, and one binary16 scale over these.

use super::{Unpacked, half};

/// Bits `2j` and `2j + 1` of byte `32n + m` belong to value `128n + 32j + m`.
fn pairs_of_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    }
}

/// Scales and minima of 4 bits (16 bytes), pairs of bits (64), scale, minimum.
#[inline(always)]
pub(crate) fn q2_k(block: &[u8], out: &mut Unpacked) {
    let (scale, minimum) = (half(block, 80), half(block, 82));
    for (g, &byte) in block[..16].iter().enumerate() {
        out.scales[g] = scale * f32::from(byte & 15);
        out.minima[g] = -(minimum * f32::from(byte >> 4));
    }
    pairs_of_bits(&block[16..80], &mut out.codes);
}

/// Third bits (32 bytes), pairs of bits (64), scales of 6 bits (12), scale.
#[inline(always)]
pub(crate) fn q3_k(block: &[u8], out: &mut Unpacked) {
    let (third, small) = (&block[..32], &block[96..108]);
    pairs_of_bits(&block[32..96], &mut out.codes);
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code |= (third[i % 32] >> (i / 32) & 1) << 2;
    }
    let scale = half(block, 108);
    for (g, out) in out.scales.iter_mut().enumerate() {
        let low = small[g % 8] >> (g / 8 * 4) & 15;
        let high = small[8 + g % 4] >> (g / 4 * 2) & 3;
        *out = scale * f32::from(i16::from(low | high << 4) - 32);
    }
}

/// Scale, minimum, and eight scales and minima of 6 bits in 12 bytes.
fn scales_and_minima(block: &[u8], out: &mut Unpacked) {
    let (scale, minimum, small) = (half(block, 0), half(block, 2), &block[4..16]);
    for g in 0..8 {
        let (s, m) = if g < 4 {
            (small[g] & 63, small[g + 4] & 63)
        } else {
            let (low, high) = (small[g + 4] & 15, small[g + 4] >> 4);
            (low | small[g - 4] >> 6 << 4, high | small[g] >> 6 << 4)
        };
        out.scales[g] = scale * f32::from(s);
        out.minima[g] = -(minimum * f32::from(m));
    }
}

/// The low nibble of byte `32c + m` belongs to value `64c + m`, the high one to value `64c + 32 + m`.
fn nibbles(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = bytes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    }
}

/// Scales and minima (16 bytes), nibbles (128).
#[inline(always)]
pub(crate) fn q4_k(block: &[u8], out: &mut Unpacked) {
    scales_and_minima(block, out);
    nibbles(&block[16..144], &mut out.codes);
}

/// Scales and minima (16 bytes), fifth bits (32), nibbles (128).
#[inline(always)]
pub(crate) fn q5_k(block: &[u8], out: &mut Unpacked) {
    scales_and_minima(block, out);
    nibbles(&block[48..176], &mut out.codes);
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
    }
}

/// Nibbles (128 bytes), pairs of bits (64), signed scales of 8 bits (16), scale.
#[inline(always)]
pub(crate) fn q6_k(block: &[u8], out: &mut Unpacked) {
    pairs_of_bits(&block[128..192], &mut out.codes);
    for (i, code) in out.codes.iter_mut().enumerate() {
        let nibble = block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        *code = *code << 4 | nibble;
    }
    let scale = half(block, 208);
    for (out, &small) in out.scales.iter_mut().zip(&block[192..208]) {
        *out = scale * f32::from(small as i8);
    }
}

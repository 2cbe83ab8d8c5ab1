//! Blocks of 32 values with one scale, and a minimum in some: the first formats of GGUF.

use super::{Unpacked, half};

/// Sixteen bytes of nibbles: byte `j` holds value `j` below and value `j + 16` above.
pub(super) fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (j, &byte) in bytes[..16].iter().enumerate() {
        codes[j] = byte & 15;
        codes[j + 16] = byte >> 4;
    }
}

/// Adds bit `i` of the little-endian word as the fifth bit of value `i`.
fn fifth_bits(word: &[u8], codes: &mut [u8]) {
    for (i, code) in codes[..32].iter_mut().enumerate() {
        *code |= (word[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Scale, nibbles.
#[inline(always)]
pub(crate) fn q4_0(block: &[u8], out: &mut Unpacked) {
    out.scales[0] = half(block, 0);
    nibbles(&block[2..], &mut out.codes);
}

/// Scale, minimum, nibbles.
#[inline(always)]
pub(crate) fn q4_1(block: &[u8], out: &mut Unpacked) {
    (out.scales[0], out.minima[0]) = (half(block, 0), half(block, 2));
    nibbles(&block[4..], &mut out.codes);
}

/// Scale, fifth bits, nibbles.
#[inline(always)]
pub(crate) fn q5_0(block: &[u8], out: &mut Unpacked) {
    out.scales[0] = half(block, 0);
    nibbles(&block[6..], &mut out.codes);
    fifth_bits(&block[2..6], &mut out.codes);
}

/// Scale, minimum, fifth bits, nibbles.
#[inline(always)]
pub(crate) fn q5_1(block: &[u8], out: &mut Unpacked) {
    (out.scales[0], out.minima[0]) = (half(block, 0), half(block, 2));
    nibbles(&block[8..], &mut out.codes);
    fifth_bits(&block[4..8], &mut out.codes);
}

/// Scale, signed bytes.
#[inline(always)]
pub(crate) fn q8_0(block: &[u8], out: &mut Unpacked) {
    out.scales[0] = half(block, 0);
    for (code, &byte) in out.codes.iter_mut().zip(&block[2..34]) {
        *code = byte ^ 0x80;
    }
}

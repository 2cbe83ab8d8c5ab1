//! Blocks of 256 values that are minus one, zero or one times a scale.

use super::{GROUPS_MAX, Unpacked, half};

/// Five digits to a byte (48 bytes), four to a byte (4), scale. Digit `n` of a byte is the integer part of
/// three times the fraction `byte * 3^n / 256`. Bytes 0 to 31 hold values 0 to 159, the first digit of
/// each, then the second; bytes 32 to 47 and the last four follow in the same way.
#[inline(always)]
pub(crate) fn tq1_0(block: &[u8], out: &mut Unpacked) {
    let mut codes = out.codes.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        let mut power = 1u8;
        for _ in 0..digits {
            for (&byte, code) in bytes.iter().zip(&mut codes) {
                *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
            power = power.wrapping_mul(3);
        }
    }
    out.scales = [half(block, 52); GROUPS_MAX];
}

/// Pairs of bits (64 bytes), scale: bits `2l` and `2l + 1` of byte `32c + m` belong to value `128c + 32l + m`.
#[inline(always)]
pub(crate) fn tq2_0(block: &[u8], out: &mut Unpacked) {
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code = block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    }
    out.scales = [half(block, 64); GROUPS_MAX];
}

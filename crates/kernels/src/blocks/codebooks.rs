//! Blocks of 256 values that choose points of a grid: 8 or 4 values to an index, with signs or a shift aside.

use super::{Unpacked, grids, half};
use crate::float::f32_from_f16;

/// What stands for zero in the codes of formats with signs.
const ZERO: u8 = 64;

/// Eight signs of seven bits: the eighth makes their number even.
pub(crate) fn even_signs(code: u32) -> u8 {
    let code = (code & 127) as u8;
    code | (code.count_ones() as u8 & 1) << 7
}

/// Writes the coordinates of a point, minus where a bit of `signs` is set.
fn signed(point: u64, signs: u8, codes: &mut [u8]) {
    for (j, code) in codes.iter_mut().enumerate() {
        let magnitude = (point >> (8 * j)) as u8;
        *code = if signs >> j & 1 == 0 { ZERO + magnitude } else { ZERO - magnitude };
    }
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Scale, then for each 32 values four indices and a word: four times seven bits of signs, four of scale.
#[inline(always)]
pub(crate) fn iq2_xxs(block: &[u8], out: &mut Unpacked) {
    let scale = half(block, 0);
    for g in 0..8 {
        let signs = word(block, 6 + 8 * g);
        out.scales[g] = scale * (0.5 + (signs >> 28) as f32) * 0.25;
        for l in 0..4 {
            let point = grids::IQ2_XXS[usize::from(block[2 + 8 * g + l])];
            signed(point, even_signs(signs >> (7 * l)), &mut out.codes[32 * g + 8 * l..][..8]);
        }
    }
}

/// Scale, 32 times nine bits of index and seven of signs, a nibble of scale for each 16 values.
#[inline(always)]
pub(crate) fn iq2_xs(block: &[u8], out: &mut Unpacked) {
    quarter_scales(half(block, 0), &block[66..74], out);
    for l in 0..32 {
        let index = short(block, 2 + 2 * l);
        let signs = even_signs(u32::from(index >> 9));
        signed(grids::IQ2_XS[usize::from(index & 511)], signs, &mut out.codes[8 * l..][..8]);
    }
}

/// Scale, low bytes of indices (32), signs (32), two high bits of each index (8), nibbles of scales (8).
#[inline(always)]
pub(crate) fn iq2_s(block: &[u8], out: &mut Unpacked) {
    quarter_scales(half(block, 0), &block[74..82], out);
    for l in 0..32 {
        let high = usize::from(block[66 + l / 4] >> (l % 4 * 2) & 3);
        let index = usize::from(block[2 + l]) | high << 8;
        signed(grids::IQ2_S[index], block[34 + l], &mut out.codes[8 * l..][..8]);
    }
}

/// Sixteen scales from as many nibbles.
fn quarter_scales(scale: f32, nibbles: &[u8], out: &mut Unpacked) {
    for (g, out) in out.scales.iter_mut().enumerate() {
        *out = scale * (0.5 + f32::from(nibbles[g / 2] >> (g % 2 * 4) & 15)) * 0.25;
    }
}

/// Scale, an index for each four values (64), then a word for each 32 as in IQ2_XXS.
#[inline(always)]
pub(crate) fn iq3_xxs(block: &[u8], out: &mut Unpacked) {
    let scale = half(block, 0);
    for g in 0..8 {
        let signs = word(block, 66 + 4 * g);
        out.scales[g] = scale * (0.5 + (signs >> 28) as f32) * 0.5;
        for l in 0..8 {
            let point = grids::IQ3_XXS[usize::from(block[2 + 8 * g + l])];
            let signs = even_signs(signs >> (7 * (l / 2))) >> (l % 2 * 4);
            signed(point, signs, &mut out.codes[32 * g + 4 * l..][..4]);
        }
    }
}

/// Scale, low bytes of indices (64), their ninth bits (8), signs (32), a nibble of scale for each 32 values (4).
#[inline(always)]
pub(crate) fn iq3_s(block: &[u8], out: &mut Unpacked) {
    let scale = half(block, 0);
    for g in 0..8 {
        let small = block[106 + g / 2] >> (g % 2 * 4) & 15;
        out.scales[g] = scale * f32::from(1 + 2 * small);
        for l in 0..8 {
            let high = usize::from(block[66 + g] >> l & 1);
            let point = grids::IQ3_S[usize::from(block[2 + 8 * g + l]) | high << 8];
            let signs = block[74 + 4 * g + l / 2] >> (l % 2 * 4);
            signed(point, signs, &mut out.codes[32 * g + 4 * l..][..4]);
        }
    }
}

/// Eight times the coordinates of a point, less or more one.
fn shifted(point: u64, minus: bool, codes: &mut [u8]) {
    for (j, code) in codes.iter_mut().enumerate() {
        // Levels 0, 1, 2 are the values -1, 0, 1, and 16 is the code of zero.
        let centre = 8 + 8 * (point >> (8 * j)) as u8;
        *code = if minus { centre - 1 } else { centre + 1 };
    }
}

/// Scale, low bytes of indices (32), then for each 32 values four times three high bits, three bits of scale and
/// the sign of a shift by an eighth.
#[inline(always)]
pub(crate) fn iq1_s(block: &[u8], out: &mut Unpacked) {
    let scale = half(block, 0);
    for g in 0..8 {
        let rest = short(block, 34 + 2 * g);
        out.scales[g] = scale * f32::from(2 * (rest >> 12 & 7) + 1) * 0.125;
        for l in 0..4 {
            let high = usize::from(rest >> (3 * l) & 7);
            let point = grids::IQ1[usize::from(block[2 + 4 * g + l]) | high << 8];
            shifted(point, rest & 0x8000 != 0, &mut out.codes[32 * g + 8 * l..][..8]);
        }
    }
}

/// Low bytes of indices (32), a nibble for each (three high bits, the sign of a shift by an eighth), and four
/// words: three bits of scale for each 16 values, and the scale in the four highest nibbles.
#[inline(always)]
pub(crate) fn iq1_m(block: &[u8], out: &mut Unpacked) {
    let words: [u16; 4] = std::array::from_fn(|k| short(block, 48 + 2 * k));
    let scale = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let scale = f32_from_f16(scale);
    for (g, out) in out.scales.iter_mut().enumerate() {
        *out = scale * f32::from(2 * (words[g / 4] >> (g % 4 * 3) & 7) + 1) * 0.125;
    }
    for l in 0..32 {
        let nibble = block[32 + l / 2] >> (l % 2 * 4) & 15;
        let point = grids::IQ1[usize::from(block[l]) | usize::from(nibble & 7) << 8];
        shifted(point, nibble & 8 != 0, &mut out.codes[8 * l..][..8]);
    }
}

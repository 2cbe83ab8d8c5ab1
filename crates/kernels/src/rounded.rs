//! Rounded rows of compressed attention, as DeepSeek-V4 was trained with them (its reference: `act_quant`,
//! `fp4_act_quant` and `rotate_activation`).
//!
//! Scales are powers of two with the exponent's byte (E8M0): the least that is not below the largest magnitude of the
//! block over the largest number of the format, that quotient computed in binary32 as a product with the rounded
//! reciprocal. Values over their scale are rounded to nearest, ties to even. A block with a value that is no finite
//! number gets the scale that is none, so all of it reads as NaN.

use crate::float::{bf16_from_f32, f32_from_bf16, f32_from_e4m3, f32_from_e8m0};

/// Values that share a scale in a row of 8-bit floats; the last block of a row may be shorter.
pub(crate) const E4M3_BLOCK: usize = 64;

/// Values that share a scale in a key of the indexer; the last block of a key may be shorter.
const FP4_BLOCK: usize = 32;

/// The largest number of E4M3, and the magnitude that scales of its blocks assume at least.
const E4M3_RANGE: (f32, f32) = (448.0, 1e-4);

/// The largest number of E2M1, and the magnitude that scales of its blocks assume at least: 6 * 2^-126.
const E2M1_RANGE: (f32, f32) = (6.0, f32::from_bits(0x0140_0000));

/// The scale that is no number.
const NO_SCALE: u8 = 255;

/// The largest scale that is used, 2^119: products with it stay finite.
const LARGEST_SCALE: u32 = 246;

/// Magnitudes of the eight codes of E2M1.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The byte of a block's scale.
fn scale_of(values: &[f32], (largest, floor): (f32, f32)) -> u8 {
    // Bit patterns of magnitudes are ordered as the magnitudes are, NaN and infinity above all.
    let bits = values.iter().fold(floor.to_bits(), |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    let quotient = (f32::from_bits(bits) * (1.0 / largest)).to_bits();
    let exponent = (quotient >> 23) + u32::from(quotient & 0x007f_ffff != 0);
    if exponent > LARGEST_SCALE { NO_SCALE } else { exponent as u8 }
}

/// The code of a number of magnitude 448 at the most.
#[inline]
fn e4m3_from_f32(value: f32) -> u8 {
    /// Its last bit is 2^-9, the step of the numbers below 2^-6: the addition itself rounds to nearest even.
    const STEPS: f32 = 16_384.0;
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
    let code = if magnitude < 0x3c80_0000 {
        (f32::from_bits(magnitude) + STEPS).to_bits() - STEPS.to_bits()
    } else {
        // Three bits of mantissa stay; the bias of the exponent goes from 127 to 7.
        ((magnitude + 0x7_ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | code as u8
}

/// The code of a number of magnitude 6 at the most.
#[inline]
fn e2m1_from_f32(value: f32) -> u8 {
    let (sign, x) = ((value.to_bits() >> 28) as u8 & 8, value.abs());
    // The middles between neighbours; a middle goes to the even code.
    let below = [x > 0.25, x >= 0.75, x > 1.25, x >= 1.75, x > 2.5, x >= 3.5, x > 5.0];
    sign | below.map(u8::from).iter().sum::<u8>()
}

#[inline]
fn f32_from_e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Bytes of a row of `dim` values; the last `rotated` of them stay in bfloat16.
pub(crate) const fn e4m3_bytes(dim: usize, rotated: usize) -> usize {
    let rounded = dim - rotated;
    rounded + rounded.div_ceil(E4M3_BLOCK) + 2 * rotated
}

/// The parts of such a row: codes, scales, and the values in bfloat16.
fn e4m3_parts(row: &mut [u8], (dim, rotated): (usize, usize)) -> [&mut [u8]; 3] {
    let (codes, rest) = row.split_at_mut(dim - rotated);
    let (scales, rest) = rest.split_at_mut(codes.len().div_ceil(E4M3_BLOCK));
    [codes, scales, rest]
}

/// Writes a row of `values`; the last `rotated` of them stay in bfloat16.
pub(crate) fn encode_e4m3(values: &[f32], rotated: usize, row: &mut [u8]) {
    let (rounded, plain) = values.split_at(values.len() - rotated);
    let [codes, scales, halves] = e4m3_parts(row, (values.len(), rotated));
    let blocks = rounded.chunks(E4M3_BLOCK).zip(codes.chunks_mut(E4M3_BLOCK));
    for ((values, codes), to) in blocks.zip(scales) {
        let (largest, byte) = (E4M3_RANGE.0, scale_of(values, E4M3_RANGE));
        let scale = f32_from_e8m0(byte);
        for (code, value) in codes.iter_mut().zip(values) {
            *code = e4m3_from_f32((value / scale).clamp(-largest, largest));
        }
        if byte == NO_SCALE {
            codes.fill(0);
        }
        *to = byte;
    }
    for (to, &value) in halves.as_chunks_mut::<2>().0.iter_mut().zip(plain) {
        let bits = bf16_from_f32(value);
        let finite = bits & 0x7f80 != 0x7f80;
        *to = if finite { bits } else { 0x7fc0 }.to_le_bytes();
    }
}

/// Reads a row that [`encode_e4m3`] wrote.
pub(crate) fn decode_e4m3(row: &[u8], rotated: usize, values: &mut [f32]) {
    let (rounded, plain) = values.split_at_mut(values.len() - rotated);
    let (codes, rest) = row.split_at(rounded.len());
    let (scales, halves) = rest.split_at(rounded.len().div_ceil(E4M3_BLOCK));
    let blocks = rounded.chunks_mut(E4M3_BLOCK).zip(codes.chunks(E4M3_BLOCK));
    for ((values, codes), &byte) in blocks.zip(scales) {
        let scale = f32_from_e8m0(byte);
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = f32_from_e4m3(code) * scale;
        }
    }
    for (value, &from) in plain.iter_mut().zip(halves.as_chunks::<2>().0) {
        *value = f32_from_bf16(u16::from_le_bytes(from));
    }
}

/// Bytes of a key of the indexer in 4-bit floats: two codes a byte, low one first, then a scale for 32 values.
pub const fn fp4_bytes(dim: usize) -> usize {
    dim.div_ceil(2) + dim.div_ceil(FP4_BLOCK)
}

/// Writes a key in 4-bit floats (E2M1).
///
/// # Panics
/// If `row` is not [`fp4_bytes`] long.
pub fn encode_fp4(values: &[f32], row: &mut [u8]) {
    assert_eq!(row.len(), fp4_bytes(values.len()), "bytes of a key");
    let (codes, scales) = row.split_at_mut(values.len().div_ceil(2));
    let blocks = values.chunks(FP4_BLOCK).zip(codes.chunks_mut(FP4_BLOCK / 2));
    for ((values, codes), to) in blocks.zip(scales) {
        let (largest, byte) = (E2M1_RANGE.0, scale_of(values, E2M1_RANGE));
        let scale = f32_from_e8m0(byte);
        let code = |value: &f32| match byte {
            NO_SCALE => 0,
            _ => e2m1_from_f32((value / scale).clamp(-largest, largest)),
        };
        for (to, values) in codes.iter_mut().zip(values.chunks(2)) {
            *to = code(&values[0]) | values.get(1).map_or(0, code) << 4;
        }
        *to = byte;
    }
}

/// Reads a key that [`encode_fp4`] wrote.
///
/// # Panics
/// If `row` is not [`fp4_bytes`] long.
pub fn decode_fp4(row: &[u8], values: &mut [f32]) {
    assert_eq!(row.len(), fp4_bytes(values.len()), "bytes of a key");
    let (codes, scales) = row.split_at(values.len().div_ceil(2));
    let blocks = values.chunks_mut(FP4_BLOCK).zip(codes.chunks(FP4_BLOCK / 2));
    for ((values, codes), &byte) in blocks.zip(scales) {
        let scale = f32_from_e8m0(byte);
        let table: [f32; 16] = std::array::from_fn(|code| f32_from_e2m1(code as u8) * scale);
        for (values, &pair) in values.chunks_mut(2).zip(codes) {
            values[0] = table[usize::from(pair & 15)];
            if let Some(second) = values.get_mut(1) {
                *second = table[usize::from(pair >> 4)];
            }
        }
    }
}

/// Rounds values as a key in 4-bit floats would hold them.
pub fn round_fp4(values: &mut [f32]) {
    for values in values.chunks_mut(FP4_BLOCK) {
        let (largest, scale) = (E2M1_RANGE.0, f32_from_e8m0(scale_of(values, E2M1_RANGE)));
        for value in values {
            let code = e2m1_from_f32((*value / scale).clamp(-largest, largest));
            *value = f32_from_e2m1(code) * scale;
        }
    }
}

/// The orthonormal Walsh-Hadamard transform, in place: neighbours first, then pairs of pairs.
///
/// # Panics
/// If the number of values is no power of two.
pub fn hadamard(values: &mut [f32]) {
    assert!(values.len().is_power_of_two(), "a power of two values");
    let mut half = 1;
    while half < values.len() {
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = (values.len() as f64).powf(-0.5) as f32;
    values.iter_mut().for_each(|value| *value *= scale);
}

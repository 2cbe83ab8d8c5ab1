//! How cached keys and values are stored: the types, the bytes of a row, and the reference conversions.
//!
//! A row is one head of one position. `f32`, `f16` and `bf16` rows are the values, little-endian, one after the
//! other. A `q8` row is a signed byte per value and then, for every [`Q8_GROUP`] of them, one binary16 scale: value
//! = byte * scale. Scales are `max |value| / 127` of their group; bytes are rounded to nearest, ties to even.
//! A `fp8` row is a byte per value (E4M3), a power of two (E8M0) for every 64 of them, and the last values of the row,
//! those that were rotated, as bfloat16 ([`crate::rounded`]).
//! Whatever a type cannot hold (an infinity, NaN, a half beyond 65504) becomes NaN: an infinite key could make a
//! score of minus infinity, which attention would take for a position of no weight, and the fault would be silent.

use crate::float::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};
use crate::rounded;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Values that share a scale in a [`KvType::Q8`] row; the last group of a row may be shorter.
pub const Q8_GROUP: usize = 32;

/// Largest magnitude of a [`KvType::Q8`] byte.
const Q8_MAX: f32 = 127.0;

/// Bits of the NaN that stands for what a half cannot hold.
const F16_NAN: u16 = 0x7e00;

/// Bits of the NaN that stands for what a bfloat16 cannot hold.
const BF16_NAN: u16 = 0x7fc0;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// binary32: as computed.
    F32,
    /// IEEE binary16: half the memory; magnitudes up to 65504.
    F16,
    /// bfloat16: half the memory, the range of binary32, an eighth of the precision of binary16.
    Bf16,
    /// Signed bytes with one binary16 scale for 32 values: about a quarter of the memory.
    Q8,
    /// 8-bit floats under powers of two, as DeepSeek-V4 was trained with its rows.
    Fp8 {
        /// Last values of a row, which stay in bfloat16.
        rotated: u16,
    },
}

/// A name that is no [`KvType`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown key-value type {name:?}; there are f32, f16, bf16 and q8")]
pub struct UnknownKvType {
    /// The beginning of the name.
    pub name: String,
}

impl KvType {
    /// All types that rows of any model can have.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Fp8 { .. } => "fp8",
        }
    }

    /// Bytes of one row: a head's `dim` keys or values of one position.
    pub const fn bytes_of_head(self, dim: usize) -> usize {
        match self {
            Self::F32 => 4 * dim,
            Self::F16 | Self::Bf16 => 2 * dim,
            Self::Q8 => dim + 2 * dim.div_ceil(Q8_GROUP),
            Self::Fp8 { rotated } => rounded::e4m3_bytes(dim, rotated as usize),
        }
    }

    /// Writes one row of `values.len()` dimensions.
    ///
    /// # Panics
    ///
    /// If `row` is not [`KvType::bytes_of_head`] long.
    pub fn encode(self, values: &[f32], row: &mut [u8]) {
        assert_eq!(row.len(), self.bytes_of_head(values.len()), "bytes of a key-value row");
        match self {
            Self::F32 => {
                for (to, value) in row.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *to = value.to_le_bytes();
                }
            }
            Self::F16 => {
                for (to, &value) in row.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *to = stored_f16(value).to_le_bytes();
                }
            }
            Self::Bf16 => {
                for (to, &value) in row.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    let bits = bf16_from_f32(value);
                    let held = bits & 0x7f80 != 0x7f80;
                    *to = if held { bits } else { BF16_NAN }.to_le_bytes();
                }
            }
            Self::Q8 => {
                let (bytes, scales) = row.split_at_mut(values.len());
                let groups = values.chunks(Q8_GROUP).zip(bytes.chunks_mut(Q8_GROUP));
                for ((values, bytes), to) in groups.zip(scales.as_chunks_mut::<2>().0) {
                    *to = encode_group(values, bytes).to_le_bytes();
                }
            }
            Self::Fp8 { rotated } => rounded::encode_e4m3(values, usize::from(rotated), row),
        }
    }

    /// Reads one row of `values.len()` dimensions.
    ///
    /// # Panics
    ///
    /// If `row` is not [`KvType::bytes_of_head`] long.
    pub fn decode(self, row: &[u8], values: &mut [f32]) {
        assert_eq!(row.len(), self.bytes_of_head(values.len()), "bytes of a key-value row");
        match self {
            Self::F32 => {
                for (value, &from) in values.iter_mut().zip(row.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(from);
                }
            }
            Self::F16 => {
                for (value, &from) in values.iter_mut().zip(row.as_chunks::<2>().0) {
                    *value = f32_from_f16(u16::from_le_bytes(from));
                }
            }
            Self::Bf16 => {
                for (value, &from) in values.iter_mut().zip(row.as_chunks::<2>().0) {
                    *value = f32_from_bf16(u16::from_le_bytes(from));
                }
            }
            Self::Q8 => {
                let (bytes, scales) = row.split_at(values.len());
                let groups = values.chunks_mut(Q8_GROUP).zip(bytes.chunks(Q8_GROUP));
                for ((values, bytes), &scale) in groups.zip(scales.as_chunks::<2>().0) {
                    let scale = f32_from_f16(u16::from_le_bytes(scale));
                    for (value, &byte) in values.iter_mut().zip(bytes) {
                        *value = f32::from(byte as i8) * scale;
                    }
                }
            }
            Self::Fp8 { rotated } => rounded::decode_e4m3(row, usize::from(rotated), values),
        }
    }
}

/// The half that is stored for `value`: NaN for what is not finite as a half.
fn stored_f16(value: f32) -> u16 {
    let bits = f16_from_f32(value);
    if bits & 0x7c00 == 0x7c00 { F16_NAN } else { bits }
}

/// Writes the bytes of one group and gives the bits of its scale.
fn encode_group(values: &[f32], bytes: &mut [u8]) -> u16 {
    // Bit patterns of magnitudes are ordered as the magnitudes are, NaN and infinity above all.
    let largest = values.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    let bits = stored_f16(f32::from_bits(largest) / Q8_MAX);
    let scale = f32_from_f16(bits);
    for (byte, value) in bytes.iter_mut().zip(values) {
        // Only a scale below the normal halves can be so much rounded that a quotient passes 127.
        let steps = if scale > 0.0 { value / scale } else { 0.0 };
        *byte = steps.round_ties_even().clamp(-Q8_MAX, Q8_MAX) as i8 as u8;
    }
    bits
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(name: &str) -> Result<Self, UnknownKvType> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownKvType { name: name.chars().take(100).collect() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn stored(kind: KvType, values: &[f32]) -> Vec<f32> {
        let mut row = vec![0xff; kind.bytes_of_head(values.len())];
        let mut back = vec![f32::NAN; values.len()];
        kind.encode(values, &mut row);
        kind.decode(&row, &mut back);
        back
    }

    #[test]
    fn names_are_read_back_and_others_refused() {
        for kind in KvType::ALL {
            assert_eq!(kind.name().parse::<KvType>().unwrap(), kind);
        }
        let refused = "int4".parse::<KvType>().unwrap_err().to_string();
        assert!(refused.contains("int4") && refused.contains("q8"), "{refused}");
        assert_eq!("x".repeat(1000).parse::<KvType>().unwrap_err().name.len(), 100);
    }

    #[test]
    fn a_head_of_256_takes_1024_512_512_and_272_bytes() {
        assert_eq!(KvType::ALL.map(|kind| kind.bytes_of_head(256)), [1024, 512, 512, 272]);
        // A head that is not whole groups has a short last one.
        assert_eq!(KvType::Q8.bytes_of_head(40), 44);
    }

    #[test]
    fn rows_come_back_within_half_a_step() {
        for dim in [256, 128, 40, 8] {
            let values: Vec<f32> =
                (0..dim).map(|i| (i as f32 * 0.7).sin() * 1.1f32.powi(i % 97)).collect();
            assert_eq!(stored(KvType::F32, &values), values);
            for (kind, step) in [(KvType::F16, 11), (KvType::Bf16, 8)] {
                for (&got, &want) in stored(kind, &values).iter().zip(&values) {
                    let limit = want.abs() * 0.5f32.powi(step);
                    assert!((got - want).abs() <= limit, "{kind}: {got} for {want}");
                }
            }
            let back = stored(KvType::Q8, &values);
            for (got, want) in back.chunks(Q8_GROUP).zip(values.chunks(Q8_GROUP)) {
                let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (&got, &want) in got.iter().zip(want) {
                    // Half a step, and what the scale's own rounding takes of the largest byte.
                    let limit = largest * (0.501 / 127.0 + 1.0 / 2048.0);
                    assert!((got - want).abs() <= limit, "q8: {got} for {want} of {largest}");
                }
            }
        }
    }

    #[test]
    fn q8_rounds_ties_to_even_and_uses_the_stored_scale() {
        // A largest value of 127 makes the scale 1.
        let mut values = [0.0; 32];
        values[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
        let mut row = [0; 34];
        KvType::Q8.encode(&values, &mut row);
        assert_eq!(
            row[..6].iter().map(|&byte| byte as i8).collect::<Vec<_>>(),
            [127, 0, 2, 2, 0, -2]
        );
        assert_eq!(row[32..], 0x3c00u16.to_le_bytes());
        assert_eq!(stored(KvType::Q8, &[0.0; 32]), [0.0; 32]);
        // Scales of subnormal halves lose digits, never more than the group's largest value.
        let tiny = [1.0e-5, -9.0e-6, 3.0e-7, 0.0];
        for (got, want) in stored(KvType::Q8, &tiny).iter().zip(tiny) {
            assert!((got - want).abs() < 1.0e-5, "{got} for {want}");
        }
    }

    #[test]
    fn what_a_type_cannot_hold_becomes_nan() {
        for (kind, value) in [
            (KvType::F16, 65_520.0),
            (KvType::F16, -1.0e9),
            (KvType::F16, f32::INFINITY),
            (KvType::Bf16, f32::MAX),
            (KvType::Bf16, f32::NEG_INFINITY),
            (KvType::Bf16, f32::NAN),
            (KvType::Q8, 1.0e7),
            (KvType::Q8, f32::NAN),
            (KvType::Q8, f32::INFINITY),
        ] {
            let back = stored(kind, &[1.0, value]);
            assert!(back[1].is_nan(), "{kind}: {value} came back as {}", back[1]);
        }
        assert_eq!(stored(KvType::F16, &[65_504.0, -65_519.0]), [65_504.0, -65_504.0]);
        assert_eq!(stored(KvType::Bf16, &[1.0e30])[0].to_bits() & 0xffff, 0);
    }
}

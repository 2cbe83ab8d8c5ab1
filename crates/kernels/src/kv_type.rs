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

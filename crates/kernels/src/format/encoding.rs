//! What an encoding is: its planes, its sizes and its names.

use crate::blocks::BlockFormat;
use crate::float::{f32_from_bf16, f32_from_e8m0, f32_from_f16};
use thiserror::Error;

/// A floating-point storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of binary32.
    Bf16,
}

impl FloatType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type's name: `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The type of a name; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|float| float.name() == name)
    }

    /// Decodes value `index` of a byte slice of this type.
    #[inline]
    pub fn decode(self, bytes: &[u8], index: usize) -> f32 {
        let half = || u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        match self {
            Self::F32 => {
                let at = &bytes[4 * index..4 * index + 4];
                f32::from_le_bytes([at[0], at[1], at[2], at[3]])
            }
            Self::F16 => f32_from_f16(half()),
            Self::Bf16 => f32_from_bf16(half()),
        }
    }
}

/// A storage type of the scales that whole tiles of a matrix share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// A float.
    Float(FloatType),
    /// A power of two: the byte is its exponent with bias 127, 255 is no number (E8M0).
    E8m0,
}

impl ScaleType {
    /// Bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float(float) => float.bytes(),
            Self::E8m0 => 1,
        }
    }

    /// The type's name: `f32`, `e8m0`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(float) => float.name(),
            Self::E8m0 => "e8m0",
        }
    }

    /// The type of a name; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        if name == Self::E8m0.name() {
            return Some(Self::E8m0);
        }
        FloatType::parse(name).map(Self::Float)
    }

    /// Decodes scale `index` of a byte slice of this type.
    #[inline]
    pub fn decode(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            Self::Float(float) => float.decode(bytes, index),
            Self::E8m0 => f32_from_e8m0(bytes[index]),
        }
    }
}

/// How the one number that all scales of a matrix share meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GlobalScale {
    /// Scales are multiplied by it (ModelOpt's `weight_scale_2`).
    Multiplies,
    /// Scales are divided by it (compressed-tensors' `weight_global_scale`).
    Divides,
}

/// How the values of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One float per value.
    Float(FloatType),
    /// Groups of `group` consecutive inputs share one scale and one bias of type `scale`.
    Affine {
        /// Bits of one value: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Values per group: 32, 64 or 128.
        group: u16,
        /// Storage type of scales and biases.
        scale: FloatType,
    },
    /// Blocks that hold their own scales: one plane.
    Block(BlockFormat),
    /// 4-bit floats in groups of 32 with a power of two each, in two planes, as gpt-oss is published: byte `j` of a
    /// group holds the values `2j` (low) and `2j + 1`; a scale is the exponent with bias 127. The values of
    /// [`BlockFormat::Mxfp4`] in another order.
    Mxfp4,
    /// Groups of consecutive inputs that share a scale and have no bias, in two planes: values are packed as in
    /// [`Encoding::Affine`], and `2^(bits - 1)` is taken off each (compressed-tensors' pack-quantized).
    Symmetric {
        /// Bits of one value: 4 or 8.
        bits: u8,
        /// Values per group: 32, 64 or 128.
        group: u16,
        /// Storage type of the scales.
        scale: FloatType,
    },
    /// 4-bit floats in groups of 16 with an 8-bit float (E4M3) each, in three planes: values as in
    /// [`Encoding::Mxfp4`], scales `[rows, columns / 16]`, and one binary32 number for the whole matrix. A value is the
    /// 4-bit float times the scale of its group, which is the 8-bit float times the number, or divided by it; each of
    /// the two steps rounds once to binary32 (ModelOpt's NVFP4, compressed-tensors' nvfp4-pack-quantized).
    Nvfp4 {
        /// What the number does to the scales.
        global: GlobalScale,
    },
    /// Groups of consecutive inputs that share a scale and a zero point, in three planes: values are packed as in
    /// [`Encoding::Affine`], a value is the integer less the zero point, times the scale (compressed-tensors'
    /// pack-quantized without symmetry). Zero points `[⌈rows * bits / 32⌉, columns / group]` are words of 32 bits that
    /// hold those of consecutive rows, low bits first.
    Zeroed {
        /// Bits of one value and of a zero point: 4 or 8.
        bits: u8,
        /// Values per group: 32, 64 or 128.
        group: u16,
        /// Storage type of the scales.
        scale: FloatType,
    },
    /// 8-bit floats (E4M3) with a scale for each row, or one for the whole matrix, in two planes (compressed-tensors'
    /// float-quantized by channel and by tensor, ModelOpt's FP8).
    Fp8Rows {
        /// Storage type of the scales.
        scale: FloatType,
        /// Whether one scale serves all rows.
        shared: bool,
    },
    /// 8-bit floats (E4M3: 4 bits of exponent, 3 of mantissa, no infinities) with a scale for each tile of [`FP8_TILE`]
    /// rows and columns, in two planes. Tiles at the lower and right edges may be partial.
    Fp8 {
        /// Storage type of the scales.
        scale: ScaleType,
    },
}

/// Rows, and columns, that share a scale in [`Encoding::Fp8`].
pub const FP8_TILE: usize = 128;

/// As manifests spell [`Encoding::Mxfp4`].
const MXFP4_NAME: &str = "mxfp4:planes";
/// What the names of [`Encoding::Fp8`] begin with; the type of the scales follows.
const FP8_NAME: &str = "fp8:128:";
/// Values that share a scale in [`Encoding::Mxfp4`].
const MXFP4_GROUP: usize = 32;
/// As manifests spell [`Encoding::Nvfp4`].
const NVFP4_NAMES: [(&str, GlobalScale); 2] =
    [("nvfp4:multiplied", GlobalScale::Multiplies), ("nvfp4:divided", GlobalScale::Divides)];
/// What the names of [`Encoding::Fp8Rows`] begin with, with a scale for each row and with one for all.
const FP8_ROWS_NAMES: [(&str, bool); 2] = [("fp8:rows:", false), ("fp8:whole:", true)];
/// Bits of the words that zero points are packed in.
const ZERO_WORD_BITS: usize = 32;
/// Values that share a scale in [`Encoding::Nvfp4`].
const NVFP4_GROUP: usize = 16;
/// Bytes of the number that all scales share.
const GLOBAL_BYTES: usize = 4;

/// A matrix description that does not fit its bytes or its encoding.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{what}: expected {expected}, found {found}")]
pub struct MatrixError {
    /// The quantity that is wrong.
    pub what: &'static str,
    /// The value that the shape and encoding ask for.
    pub expected: usize,
    /// The value found.
    pub found: usize,
}

impl Encoding {
    /// Runs of bytes that a matrix consists of: weights alone, weights and scales, or those and biases (or, where the
    /// whole matrix shares a number, that one).
    pub const fn planes(self) -> usize {
        match self {
            Self::Float(_) | Self::Block(_) => 1,
            Self::Mxfp4 | Self::Fp8 { .. } | Self::Fp8Rows { .. } | Self::Symmetric { .. } => 2,
            Self::Affine { .. } | Self::Nvfp4 { .. } | Self::Zeroed { .. } => 3,
        }
    }

    /// Columns of a matrix are a multiple of this many.
    pub const fn block_values(self) -> usize {
        match self {
            Self::Float(_) | Self::Fp8 { .. } | Self::Fp8Rows { .. } => 1,
            Self::Affine { group, .. }
            | Self::Symmetric { group, .. }
            | Self::Zeroed { group, .. } => group as usize,
            Self::Block(format) => format.values(),
            Self::Mxfp4 => MXFP4_GROUP,
            Self::Nvfp4 { .. } => NVFP4_GROUP,
        }
    }

    /// Bytes of one row of the first plane: packed values, or whole blocks.
    pub const fn weight_row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Float(float) => columns * float.bytes(),
            Self::Affine { bits, .. }
            | Self::Symmetric { bits, .. }
            | Self::Zeroed { bits, .. } => columns * bits as usize / 8,
            Self::Block(format) => columns / format.values() * format.bytes(),
            Self::Mxfp4 | Self::Nvfp4 { .. } => columns / 2,
            Self::Fp8 { .. } | Self::Fp8Rows { .. } => columns,
        }
    }

    /// Rows of the matrix that share a row of scales, or words of zero points: a part begins with the first of them.
    pub const fn rows_per_scale(self) -> usize {
        match self {
            Self::Fp8 { .. } => FP8_TILE,
            Self::Zeroed { bits, .. } => ZERO_WORD_BITS / bits as usize,
            _ => 1,
        }
    }

    /// Rows of scales of a matrix.
    pub const fn scale_rows(self, rows: usize) -> usize {
        match self {
            Self::Fp8 { .. } => rows.div_ceil(FP8_TILE),
            Self::Fp8Rows { shared: true, .. } => 1,
            _ => rows,
        }
    }

    /// Bytes of one row of scales, which [`Encoding::rows_per_scale`] rows share. Zero for encodings of one plane.
    pub const fn scale_row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Float(_) | Self::Block(_) => 0,
            Self::Affine { group, scale, .. }
            | Self::Symmetric { group, scale, .. }
            | Self::Zeroed { group, scale, .. } => columns / group as usize * scale.bytes(),
            Self::Fp8Rows { scale, .. } => scale.bytes(),
            Self::Mxfp4 => columns / MXFP4_GROUP,
            Self::Nvfp4 { .. } => columns / NVFP4_GROUP,
            Self::Fp8 { scale } => columns.div_ceil(FP8_TILE) * scale.bytes(),
        }
    }

    /// Bytes of one row of biases. Zero for encodings without that plane.
    pub const fn bias_row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Affine { .. } => self.scale_row_bytes(columns),
            _ => 0,
        }
    }

    /// Bytes of what all rows share, in each plane; zero for most encodings.
    pub const fn shared_bytes(self) -> [usize; 3] {
        match self {
            Self::Nvfp4 { .. } => [0, 0, GLOBAL_BYTES],
            Self::Fp8Rows { scale, shared: true } => [0, scale.bytes(), 0],
            _ => [0; 3],
        }
    }

    /// Bytes of each plane of a matrix: weights, scales, biases; zero for planes that it lacks. What all rows
    /// share is there however many there are.
    pub const fn plane_bytes(self, rows: usize, columns: usize) -> [usize; 3] {
        let scales = self.scale_rows(rows) * self.scale_row_bytes(columns);
        let biases = match self {
            Self::Nvfp4 { .. } => GLOBAL_BYTES,
            Self::Zeroed { bits, group, .. } => {
                let words = (rows * bits as usize).div_ceil(ZERO_WORD_BITS);
                words * (columns / group as usize) * (ZERO_WORD_BITS / 8)
            }
            _ => rows * self.bias_row_bytes(columns),
        };
        [rows * self.weight_row_bytes(columns), scales, biases]
    }

    /// Where some rows lie in each plane of their matrix.
    pub const fn part_bytes(
        self,
        first: usize,
        count: usize,
        columns: usize,
    ) -> [(usize, usize); 3] {
        let (from, to) =
            (self.plane_bytes(first, columns), self.plane_bytes(first + count, columns));
        let shared = self.shared_bytes();
        [(from[0] - shared[0], to[0]), (from[1] - shared[1], to[1]), (from[2] - shared[2], to[2])]
    }

    /// Bytes of a whole matrix: all planes.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> usize {
        let [weight, scales, biases] = self.plane_bytes(rows, columns);
        weight + scales + biases
    }

    /// The encoding as manifests spell it: `bf16`, `affine:BITS:GROUP:SCALETYPE`, `q4_k`, `mxfp4:planes`,
    /// `symmetric:BITS:GROUP:SCALETYPE`, `zeroed:BITS:GROUP:SCALETYPE`, `fp8:128:SCALETYPE`, `fp8:rows:SCALETYPE`,
    /// `fp8:whole:SCALETYPE`, `nvfp4:multiplied`, `nvfp4:divided`.
    pub fn name(self) -> String {
        match self {
            Self::Float(float) => float.name().to_owned(),
            Self::Affine { bits, group, scale } => {
                format!("affine:{bits}:{group}:{}", scale.name())
            }
            Self::Symmetric { bits, group, scale } => {
                format!("symmetric:{bits}:{group}:{}", scale.name())
            }
            Self::Zeroed { bits, group, scale } => {
                format!("zeroed:{bits}:{group}:{}", scale.name())
            }
            Self::Fp8Rows { scale, shared } => {
                format!("{}{}", FP8_ROWS_NAMES[usize::from(shared)].0, scale.name())
            }
            Self::Block(format) => format.name().to_owned(),
            Self::Mxfp4 => MXFP4_NAME.to_owned(),
            Self::Fp8 { scale } => format!("{FP8_NAME}{}", scale.name()),
            Self::Nvfp4 { global } => {
                let known = NVFP4_NAMES.iter().find(|(_, known)| *known == global);
                known.expect("a name for each").0.to_owned()
            }
        }
    }

    /// The encoding of a name; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        if name == MXFP4_NAME {
            return Some(Self::Mxfp4);
        }
        if let Some(&(_, global)) = NVFP4_NAMES.iter().find(|(known, _)| *known == name) {
            return Some(Self::Nvfp4 { global });
        }
        for (prefix, shared) in FP8_ROWS_NAMES {
            if let Some(scale) = name.strip_prefix(prefix) {
                return FloatType::parse(scale).map(|scale| Self::Fp8Rows { scale, shared });
            }
        }
        if let Some(scale) = name.strip_prefix(FP8_NAME) {
            return ScaleType::parse(scale).map(|scale| Self::Fp8 { scale });
        }
        let (kind, rest) = match name.split_once(':') {
            Some((kind @ ("affine" | "symmetric" | "zeroed"), rest)) => (kind, rest),
            _ => {
                let float = FloatType::parse(name).map(Self::Float);
                return float.or_else(|| BlockFormat::parse(name).map(Self::Block));
            }
        };
        let (bits, rest) = rest.split_once(':')?;
        let (group, scale) = rest.split_once(':')?;
        let (bits, group) = (bits.parse().ok()?, group.parse().ok()?);
        let scale = FloatType::parse(scale)?;
        let encoding = match kind {
            "affine" => Self::Affine { bits, group, scale },
            "zeroed" => Self::Zeroed { bits, group, scale },
            _ => Self::Symmetric { bits, group, scale },
        };
        // One spelling only ("04" is not 4), and only encodings that exist.
        (encoding.name() == name && encoding.check(0).is_ok()).then_some(encoding)
    }

    /// The encoding in few words, for people: `bf16`, `4-bit g64`, `q4_k`.
    pub fn label(self) -> String {
        match self {
            Self::Affine { bits, group, .. } => format!("{bits}-bit g{group}"),
            Self::Symmetric { bits, group, .. } => format!("int{bits} g{group}"),
            Self::Zeroed { bits, group, .. } => format!("uint{bits} g{group}"),
            Self::Float(_) | Self::Block(_) => self.name(),
            Self::Mxfp4 => "mxfp4".to_owned(),
            Self::Fp8 { .. } | Self::Fp8Rows { .. } => "fp8".to_owned(),
            Self::Nvfp4 { .. } => "nvfp4".to_owned(),
        }
    }

    /// Checks that the encoding exists and that `columns` is a whole number of groups or blocks.
    pub fn check(self, columns: usize) -> Result<(), MatrixError> {
        let what = match self {
            Self::Float(_) | Self::Fp8 { .. } | Self::Fp8Rows { .. } => return Ok(()),
            Self::Block(_) | Self::Mxfp4 | Self::Nvfp4 { .. } => "columns past the last block",
            Self::Affine { bits, group, .. }
            | Self::Symmetric { bits, group, .. }
            | Self::Zeroed { bits, group, .. } => {
                let known = match self {
                    Self::Symmetric { .. } | Self::Zeroed { .. } => matches!(bits, 4 | 8),
                    _ => matches!(bits, 2 | 3 | 4 | 5 | 6 | 8),
                };
                if !known {
                    let found = bits.into();
                    return Err(MatrixError { what: "bits per value", expected: 4, found });
                }
                if !matches!(group, 32 | 64 | 128) {
                    let found = group.into();
                    return Err(MatrixError { what: "group size", expected: 64, found });
                }
                "columns past the last group"
            }
        };
        match columns % self.block_values() {
            0 => Ok(()),
            found => Err(MatrixError { what, expected: 0, found }),
        }
    }
}

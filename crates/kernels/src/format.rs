//! How a weight matrix is encoded: float types and affine group quantisation.
//!
//! Affine quantisation is MLX's: `value = q * scale + bias`, `q` unsigned, groups along the input
//! dimension (docs/formats.md). Value `i` of a row occupies bits `[i*bits, (i+1)*bits)` of the row's
//! little-endian bit stream. Byte slices may start at any address: checkpoints written by MLX are
//! read in place and their tensors begin at odd file offsets.

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
}

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
    /// Bytes of one row of packed values (without scales and biases).
    pub const fn weight_row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Float(float) => columns * float.bytes(),
            Self::Affine { bits, .. } => columns * bits as usize / 8,
        }
    }

    /// Bytes of one row of scales; the biases take as many. Zero for float encodings.
    pub const fn scale_row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Float(_) => 0,
            Self::Affine { group, scale, .. } => columns / group as usize * scale.bytes(),
        }
    }

    /// Bytes of a whole matrix: values, scales and biases.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> usize {
        rows * (self.weight_row_bytes(columns) + 2 * self.scale_row_bytes(columns))
    }

    /// Checks that the encoding exists and that `columns` is a whole number of groups.
    pub fn check(self, columns: usize) -> Result<(), MatrixError> {
        let Self::Affine { bits, group, .. } = self else { return Ok(()) };
        if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
            return Err(MatrixError { what: "bits per value", expected: 4, found: bits.into() });
        }
        if !matches!(group, 32 | 64 | 128) {
            return Err(MatrixError { what: "group size", expected: 64, found: group.into() });
        }
        match columns % usize::from(group) {
            0 => Ok(()),
            rest => {
                Err(MatrixError { what: "columns past the last group", expected: 0, found: rest })
            }
        }
    }
}

/// A borrowed weight matrix `[rows, columns]`, row-major; a product maps `columns` inputs to `rows`
/// outputs.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Encoding of the values.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Packed values, `rows * weight_row_bytes(columns)`; any alignment.
    pub weight: &'a [u8],
    /// Scales `[rows, columns / group]`, or empty; any alignment.
    pub scales: &'a [u8],
    /// Biases `[rows, columns / group]`, or empty; any alignment.
    pub biases: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks every length against shape and encoding, so that kernels need not.
    pub fn new(
        encoding: Encoding,
        rows: usize,
        columns: usize,
        weight: &'a [u8],
        scales: &'a [u8],
        biases: &'a [u8],
    ) -> Result<Self, MatrixError> {
        encoding.check(columns)?;
        let expect = |what, expected, found| {
            if expected == found { Ok(()) } else { Err(MatrixError { what, expected, found }) }
        };
        expect("weight bytes", rows * encoding.weight_row_bytes(columns), weight.len())?;
        expect("scale bytes", rows * encoding.scale_row_bytes(columns), scales.len())?;
        expect("bias bytes", rows * encoding.scale_row_bytes(columns), biases.len())?;
        Ok(Self { encoding, rows, columns, weight, scales, biases })
    }
}

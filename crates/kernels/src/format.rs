//! How a weight matrix is encoded: float types and affine group quantisation.
//!
//! Affine quantisation is MLX's: `value = q * scale + bias`, `q` unsigned, groups along the input
//! dimension (docs/formats.md). Value `i` of a row occupies bits `[i*bits, (i+1)*bits)` of the row's
//! little-endian bit stream. Byte slices may start at any address: checkpoints written by MLX are
//! read in place and their tensors begin at odd file offsets.

use crate::float::{f32_from_bf16, f32_from_f16};
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

impl FloatType {
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

/// Unpacks `out.len()` values of `bits` bits each from a little-endian bit stream, starting with
/// the value at index `first`. The scalar reference of every unpacking kernel.
///
/// # Panics
///
/// If the stream is shorter than asked for.
pub fn unpack(stream: &[u8], bits: u8, first: usize, out: &mut [u8]) {
    let mask = ((1u16 << bits) - 1) as u8;
    for (i, value) in out.iter_mut().enumerate() {
        let bit = (first + i) * usize::from(bits);
        let (byte, shift) = (bit / 8, bit % 8);
        let low = u16::from(stream[byte]);
        let straddles = shift + usize::from(bits) > 8;
        let high = if straddles { u16::from(stream[byte + 1]) } else { 0 };
        *value = ((low | high << 8) >> shift) as u8 & mask;
    }
}

/// Packs values below `2^bits` into a little-endian bit stream of `values.len() * bits / 8` bytes.
///
/// # Panics
///
/// If `out` has another length.
pub fn pack(values: &[u8], bits: u8, out: &mut [u8]) {
    assert_eq!(out.len() * 8, values.len() * usize::from(bits), "length of the packed stream");
    out.fill(0);
    for (i, &value) in values.iter().enumerate() {
        let bit = i * usize::from(bits);
        let (byte, shift) = (bit / 8, bit % 8);
        let spread = u16::from(value) << shift;
        out[byte] |= spread as u8;
        if spread > 0xff {
            out[byte + 1] |= (spread >> 8) as u8;
        }
    }
}

/// Decodes `out.len()` values of one row, starting at column `first`: `q * scale + bias` in
/// binary32 for affine encodings.
///
/// # Panics
///
/// If row or columns lie outside the matrix.
pub fn decode_columns(matrix: &Matrix<'_>, row: usize, first: usize, out: &mut [f32]) {
    assert!(row < matrix.rows, "row {row} of {}", matrix.rows);
    assert!(first + out.len() <= matrix.columns, "columns past {}", matrix.columns);
    let row_bytes = matrix.encoding.weight_row_bytes(matrix.columns);
    let stream = &matrix.weight[row * row_bytes..(row + 1) * row_bytes];
    let (bits, group, scale_type) = match matrix.encoding {
        Encoding::Float(float) => {
            for (i, value) in out.iter_mut().enumerate() {
                *value = float.decode(stream, first + i);
            }
            return;
        }
        Encoding::Affine { bits, group, scale } => (bits, usize::from(group), scale),
    };
    let first_group = row * (matrix.columns / group);
    let mut quantised = [0u8; 32];
    let mut done = 0;
    while done < out.len() {
        // Pieces of at most 32 values that do not cross a group.
        let column = first + done;
        let count = (32 - column % 32).min(out.len() - done);
        unpack(stream, bits, column, &mut quantised[..count]);
        let scale = scale_type.decode(matrix.scales, first_group + column / group);
        let bias = scale_type.decode(matrix.biases, first_group + column / group);
        for (value, &q) in out[done..done + count].iter_mut().zip(&quantised) {
            *value = f32::from(q) * scale + bias;
        }
        done += count;
    }
}

/// Decodes one row: `out.len()` is the number of columns.
///
/// # Panics
///
/// If `row` lies outside the matrix or `out` has another length.
pub fn decode_row(matrix: &Matrix<'_>, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), matrix.columns, "length of a decoded row");
    decode_columns(matrix, row, 0, out);
}

//! How a weight matrix is encoded: float types, affine group quantisation, and blocks (`blocks/`).
//!
//! Affine quantisation is MLX's: `value = q * scale + bias`, `q` unsigned, groups along the input
//! dimension (docs/formats.md). Value `i` of a row occupies bits `[i*bits, (i+1)*bits)` of the row's
//! little-endian bit stream. Byte slices may start at any address: checkpoints written by MLX are
//! read in place and their tensors begin at odd file offsets.

mod bits;
mod encoding;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;

pub use crate::blocks::BlockFormat;
use crate::blocks::VALUES_MAX;
use crate::float::{E4M3_FACTOR, f16_from_e4m3, f32_from_f16};
pub use bits::{pack, unpack};
pub use encoding::{Encoding, FP8_TILE, FloatType, GlobalScale, MatrixError, ScaleType};

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
    /// Packed values or blocks, `rows * weight_row_bytes(columns)`; any alignment.
    pub weight: &'a [u8],
    /// Scales or exponents `[scale_rows, columns / group]` (rounded up for tiles), or empty; any alignment.
    pub scales: &'a [u8],
    /// Biases `[rows, columns / group]`, zero points, or the number that all rows share, or empty; any alignment.
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
        let planes = encoding.plane_bytes(rows, columns);
        expect("weight bytes", planes[0], weight.len())?;
        expect("scale bytes", planes[1], scales.len())?;
        expect("bias bytes", planes[2], biases.len())?;
        Ok(Self { encoding, rows, columns, weight, scales, biases })
    }

    /// `count` rows from `first` on.
    ///
    /// # Panics
    ///
    /// If they lie outside the matrix, or the first shares scales with the row before.
    #[must_use]
    pub fn part(&self, first: usize, count: usize) -> Self {
        let (encoding, columns) = (self.encoding, self.columns);
        assert!(first.is_multiple_of(encoding.rows_per_scale()), "row {first} within a tile");
        let places = encoding.part_bytes(first, count, columns);
        let part = |plane: &'a [u8], index: usize| &plane[places[index].0..places[index].1];
        Self {
            rows: count,
            weight: part(self.weight, 0),
            scales: part(self.scales, 1),
            biases: part(self.biases, 2),
            ..*self
        }
    }
}

/// Decodes `out.len()` values of one row, starting at column `first`: `q * scale + bias` in
/// binary32 for affine encodings, the float times the scale of its tile for 8-bit floats, the reference of its format
/// for blocks.
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
        Encoding::Block(format) => return decode_blocks(format, stream, first, out),
        Encoding::Mxfp4 => {
            let mut blocks = vec![0; mxfp4::row_bytes(matrix.columns)];
            mxfp4::to_blocks(matrix, row..row + 1, &mut blocks);
            return decode_blocks(BlockFormat::Mxfp4, &blocks, first, out);
        }
        Encoding::Nvfp4 { .. } => return nvfp4::decode_columns(matrix, row, first, out),
        Encoding::Fp8 { .. } | Encoding::Fp8Rows { .. } => {
            for (column, value) in (first..).zip(out) {
                *value =
                    f32_from_f16(f16_from_e4m3(stream[column])) * tile_factor(matrix, row, column);
            }
            return;
        }
        Encoding::Affine { bits, group, scale }
        | Encoding::Symmetric { bits, group, scale }
        | Encoding::Zeroed { bits, group, scale } => (bits, usize::from(group), scale),
    };
    let zeroed = matches!(matrix.encoding, Encoding::Zeroed { .. });
    let symmetric = matches!(matrix.encoding, Encoding::Symmetric { .. });
    let first_group = row * (matrix.columns / group);
    let mut quantised = [0u8; 32];
    let mut done = 0;
    while done < out.len() {
        // Pieces of at most 32 values that do not cross a group.
        let column = first + done;
        let count = (32 - column % 32).min(out.len() - done);
        unpack(stream, bits, column, &mut quantised[..count]);
        let scale = scale_type.decode(matrix.scales, first_group + column / group);
        if zeroed {
            let zero = zero_point(matrix, row, column / group);
            for (value, &q) in out[done..done + count].iter_mut().zip(&quantised) {
                *value = (f32::from(q) - zero) * scale;
            }
            done += count;
            continue;
        }
        let bias = match symmetric {
            true => scale * symmetric_offset(bits),
            false => scale_type.decode(matrix.biases, first_group + column / group),
        };
        for (value, &q) in out[done..done + count].iter_mut().zip(&quantised) {
            *value = f32::from(q) * scale + bias;
        }
        done += count;
    }
}

/// The bias of a group of [`Encoding::Symmetric`] over its scale: a power of two.
#[inline(always)]
pub(crate) fn symmetric_offset(bits: u8) -> f32 {
    -f32::from(1u8 << (bits - 1))
}

/// The zero point of a group of a row of [`Encoding::Zeroed`].
#[inline(always)]
pub(crate) fn zero_point(matrix: &Matrix<'_>, row: usize, group: usize) -> f32 {
    let Encoding::Zeroed { bits, group: size, .. } = matrix.encoding else {
        unreachable!("a matrix with zero points")
    };
    let (per_word, groups) = (32 / usize::from(bits), matrix.columns / usize::from(size));
    let at = (row / per_word * groups + group) * 4;
    let word = matrix.biases[at..at + 4].try_into().map(u32::from_le_bytes);
    let word = word.expect("four bytes");
    (word >> (row % per_word * usize::from(bits)) & ((1 << bits) - 1)) as f32
}

/// What [`f16_from_e4m3`] of a value of [`Encoding::Fp8`] or [`Encoding::Fp8Rows`] is multiplied with: its scale and
/// the power of two.
/// Infinite for scales of 2^120 and more, whose values would be beyond 2^120 as well but for the smallest codes.
#[inline(always)]
pub(crate) fn tile_factor(matrix: &Matrix<'_>, row: usize, column: usize) -> f32 {
    let scale = match matrix.encoding {
        Encoding::Fp8 { scale } => {
            let tiles = matrix.columns.div_ceil(FP8_TILE);
            scale.decode(matrix.scales, row / FP8_TILE * tiles + column / FP8_TILE)
        }
        Encoding::Fp8Rows { scale, shared } => {
            scale.decode(matrix.scales, if shared { 0 } else { row })
        }
        _ => unreachable!("a matrix of 8-bit floats"),
    };
    scale * E4M3_FACTOR
}

/// Decodes values of a row of blocks, starting at column `first`.
fn decode_blocks(format: BlockFormat, row: &[u8], first: usize, out: &mut [f32]) {
    let values = format.values();
    let mut decoded = [0.0; VALUES_MAX];
    let decoded = &mut decoded[..values];
    let mut done = 0;
    while done < out.len() {
        let column = first + done;
        let count = (values - column % values).min(out.len() - done);
        let block = column / values * format.bytes();
        format.decode(&row[block..block + format.bytes()], decoded);
        out[done..done + count].copy_from_slice(&decoded[column % values..column % values + count]);
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

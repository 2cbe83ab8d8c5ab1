//! 4-bit floats in two planes as blocks: the same values with the exponent before its nibbles, and the nibbles in the
//! order that every product of [`BlockFormat::Mxfp4`] unpacks. Rows are brought into that form a few at a time.

use std::ops::Range;

use super::Matrix;
use crate::blocks::BlockFormat;

/// Bytes of the nibbles of a group.
const NIBBLE_BYTES: usize = 16;

/// Bytes of a row as blocks.
pub(crate) const fn row_bytes(columns: usize) -> usize {
    columns / BlockFormat::Mxfp4.values() * BlockFormat::Mxfp4.bytes()
}

/// Writes some rows of a matrix of [`super::Encoding::Mxfp4`] as blocks.
///
/// # Panics
///
/// If `out` has another length than those rows take.
pub(crate) fn to_blocks(matrix: &Matrix<'_>, rows: Range<usize>, out: &mut [u8]) {
    let groups = matrix.columns / BlockFormat::Mxfp4.values();
    assert_eq!(out.len(), rows.len() * row_bytes(matrix.columns), "rows as blocks");
    let groups = rows.start * groups..rows.end * groups;
    let (nibbles, _) = matrix.weight.as_chunks::<NIBBLE_BYTES>();
    let (blocks, _) = out.as_chunks_mut::<{ NIBBLE_BYTES + 1 }>();
    let exponents = &matrix.scales[groups.clone()];
    for ((block, nibbles), &exponent) in blocks.iter_mut().zip(&nibbles[groups]).zip(exponents) {
        let [first, nibble_bytes @ ..] = block;
        *first = exponent;
        // Value `j` of the first half goes below value `j` of the second half.
        for pair in 0..NIBBLE_BYTES / 2 {
            let (low, high) = (nibbles[pair], nibbles[pair + NIBBLE_BYTES / 2]);
            nibble_bytes[2 * pair] = low & 15 | high << 4;
            nibble_bytes[2 * pair + 1] = low >> 4 | high & 0xf0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Encoding, decode_row};
    use super::*;

    /// The values of the codes, from the format's description.
    const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    #[test]
    fn both_planes_give_the_values_of_the_description() {
        let (rows, columns) = (3, 64);
        let weight: Vec<u8> = (0..rows * columns / 2).map(|i| (i * 37 + 11) as u8).collect();
        let scales: Vec<u8> = (0..rows * columns / 32).map(|i| 120 + 3 * i as u8).collect();
        let matrix =
            Matrix::new(Encoding::Mxfp4, rows, columns, &weight, &scales, &[]).expect("fits");
        let mut row = vec![0.0; columns];
        for r in 0..rows {
            decode_row(&matrix, r, &mut row);
            for (column, &value) in row.iter().enumerate() {
                let at = r * columns + column;
                let code = weight[at / 2] >> (4 * (at % 2)) & 15;
                let scale = 2f32.powi(i32::from(scales[at / 32]) - 127);
                let magnitude = VALUES[usize::from(code & 7)] * scale;
                let expected = if code & 8 == 0 { magnitude } else { -magnitude };
                assert_eq!(value, expected, "row {r}, column {column}");
            }
        }
    }
}

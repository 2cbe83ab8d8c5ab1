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

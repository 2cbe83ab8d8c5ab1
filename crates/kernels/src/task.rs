//! One product cut into pieces: some rows of a matrix for all of the product's tokens.
//!
//! What kind of product it is follows from the encoding of the matrix; what differs between integers and binary32
//! is the form of the activations.

use crate::activations::IntegerView;
use crate::blocks::BlockFormat;
use crate::format::{Encoding, FloatType, Matrix};
use std::ops::Range;

/// Some rows of one product for all of its tokens, with activations in the form `X`.
pub(crate) struct Task<'a, X> {
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) x: X,
    /// Rows of `x` to use, or `0..count` if empty.
    pub(crate) tokens: &'a [u32],
    pub(crate) count: usize,
    /// `[count, rows of the matrix]`
    pub(crate) out: *mut f32,
}

/// A product of affine weights or of blocks with 16-bit activations, prepared for the groups of the encoding.
pub(crate) type IntegerTask<'a> = Task<'a, IntegerView<'a>>;

/// A product with binary32 activations `[any, columns]`.
pub(crate) type FloatTask<'a> = Task<'a, &'a [f32]>;

impl<X> Task<'_, X> {
    /// Row of the activations of token `token` of this product.
    #[inline(always)]
    pub(crate) fn x_row(&self, token: usize) -> usize {
        if self.tokens.is_empty() { token } else { self.tokens[token] as usize }
    }

    /// Place of one output.
    #[inline(always)]
    pub(crate) fn out(&self, token: usize, row: usize) -> *mut f32 {
        self.out.wrapping_add(token * self.matrix.rows + row)
    }

    /// Bits, group and type of the scales of affine weights.
    #[inline(always)]
    pub(crate) fn affine(&self) -> (u8, usize, FloatType) {
        match self.matrix.encoding {
            Encoding::Affine { bits, group, scale } => (bits, group.into(), scale),
            _ => unreachable!("a product of affine weights"),
        }
    }

    /// Format of blocks.
    #[inline(always)]
    pub(crate) fn format(&self) -> BlockFormat {
        match self.matrix.encoding {
            Encoding::Block(format) => format,
            _ => unreachable!("a product of blocks"),
        }
    }
}

//! One product cut into pieces: some rows of a matrix for some of the product's tokens.
//!
//! What kind of product it is follows from the encoding of the matrix; what differs between integers and binary32
//! is the form of the activations.

use crate::activations::GROUP_LANES;
use crate::activations::IntegerView;
use crate::blocks::BlockFormat;
use crate::format::{Encoding, FloatType, Matrix, symmetric_offset, zero_point};
use std::ops::Range;

/// Some rows of one product for some of its tokens, with activations in the form `X`.
pub(crate) struct Task<'a, X> {
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) x: X,
    /// Rows of `x` to use, or `first..first + count` if empty.
    pub(crate) tokens: &'a [u32],
    /// 0 where `tokens` names the rows.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// `[count, rows of the matrix]`
    pub(crate) out: *mut f32,
}

/// Where the biases of groups come from.
#[derive(Clone, Copy)]
pub(crate) enum Biases {
    /// From their plane.
    Stored,
    /// From the scales, times this.
    Factor(f32),
    /// From the scales, times [`Task::zeros`].
    Zeros,
}

/// A product of affine weights or of blocks with 16-bit activations, prepared for the groups of the encoding.
pub(crate) type IntegerTask<'a> = Task<'a, IntegerView<'a>>;

/// A product with binary32 activations `[any, columns]`.
pub(crate) type FloatTask<'a> = Task<'a, &'a [f32]>;

impl<X> Task<'_, X> {
    /// Row of the activations of token `token` of this product.
    #[inline(always)]
    pub(crate) fn x_row(&self, token: usize) -> usize {
        if self.tokens.is_empty() { self.first + token } else { self.tokens[token] as usize }
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
            Encoding::Affine { bits, group, scale }
            | Encoding::Symmetric { bits, group, scale }
            | Encoding::Zeroed { bits, group, scale } => (bits, group.into(), scale),
            _ => unreachable!("a product of affine weights"),
        }
    }

    /// Where the biases of groups come from.
    #[inline(always)]
    pub(crate) fn biases(&self) -> Biases {
        match self.matrix.encoding {
            Encoding::Symmetric { bits, .. } => Biases::Factor(symmetric_offset(bits)),
            Encoding::Zeroed { .. } => Biases::Zeros,
            _ => Biases::Stored,
        }
    }

    /// What the scales of `count` groups, at most sixteen, are multiplied with to give their biases, from group `at`
    /// of all rows on: their zero points with the other sign.
    #[inline(always)]
    pub(crate) fn zeros(&self, at: usize, count: usize) -> [f32; GROUP_LANES] {
        let (_, group, _) = self.affine();
        let groups = self.matrix.columns / group;
        let (row, first) = (at / groups, at % groups);
        let mut zeros = [0.0; GROUP_LANES];
        for (index, zero) in zeros[..count].iter_mut().enumerate() {
            *zero = -zero_point(self.matrix, row, first + index);
        }
        zeros
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

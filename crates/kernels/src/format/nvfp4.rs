//! What a value of [`Encoding::Nvfp4`] is: the scales of its groups with the number that a whole matrix shares, and its
//! 4-bit floats. The scalar reference of the kernels of this encoding, which is the published definition
//! (docs/formats.md).

use super::{Encoding, FloatType, GlobalScale, Matrix};
use crate::blocks::tables::FP4;
use crate::float::{E4M3_FACTOR, f32_from_e4m3};
use crate::lanes::Lanes;

/// Values that share a scale.
pub(crate) const GROUP: usize = 16;

/// What is taken off the codes of [`FP4`], which are twice the floats.
const OFFSET: f32 = 16.0;

/// What all scales of a matrix are multiplied with, or divided by.
#[derive(Clone, Copy)]
pub(crate) enum Global {
    Factor(f32),
    Divisor(f32),
}

impl Global {
    /// That of a matrix; other encodings have one that changes nothing.
    #[inline(always)]
    pub(crate) fn of(matrix: &Matrix<'_>) -> Self {
        let Encoding::Nvfp4 { global } = matrix.encoding else { return Self::Factor(1.0) };
        let number = FloatType::F32.decode(matrix.biases, 0);
        match global {
            GlobalScale::Multiplies => Self::Factor(number),
            GlobalScale::Divides => Self::Divisor(number),
        }
    }

    /// The scale of a group by its 8-bit float.
    #[inline(always)]
    pub(crate) fn scale(self, byte: u8) -> f32 {
        match self {
            Self::Factor(factor) => f32_from_e4m3(byte) * factor,
            Self::Divisor(divisor) => f32_from_e4m3(byte) / divisor,
        }
    }

    /// Half of the scales of sixteen groups, because codes are twice the floats, and their biases.
    ///
    /// # Safety
    ///
    /// Sixteen bytes are readable; the instruction set is available.
    #[inline(always)]
    pub(crate) unsafe fn factors<L: Lanes>(self, from: *const u8) -> (L, L) {
        // SAFETY: passed on to the caller.
        unsafe {
            let scales = L::load_e4m3(from).mul(L::splat(E4M3_FACTOR));
            let scales = match self {
                Self::Factor(factor) => scales.mul(L::splat(factor)),
                Self::Divisor(divisor) => scales.div(L::splat(divisor)),
            };
            let halves = scales.mul(L::splat(0.5));
            (halves, halves.mul(L::splat(-OFFSET)))
        }
    }
}

/// A 4-bit float: 2 bits of exponent, one of mantissa; bit 3 is the sign, of zero as well.
fn float(code: u8) -> f32 {
    let value = (f32::from(FP4[usize::from(code & 7)]) - OFFSET) * 0.5;
    if code & 8 == 0 { value } else { -value }
}

/// Decodes values of a row, starting at column `first`.
pub(crate) fn decode_columns(matrix: &Matrix<'_>, row: usize, first: usize, out: &mut [f32]) {
    let global = Global::of(matrix);
    let codes = &matrix.weight[row * matrix.columns / 2..];
    let scales = &matrix.scales[row * matrix.columns / GROUP..];
    let mut known = (usize::MAX, 0.0);
    for (column, value) in (first..).zip(out) {
        if known.0 != column / GROUP {
            known = (column / GROUP, global.scale(scales[column / GROUP]));
        }
        *value = float(codes[column / 2] >> (column % 2 * 4) & 15) * known.1;
    }
}

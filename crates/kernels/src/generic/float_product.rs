//! Products of float weights, and of quantised weights decoded to binary32, with binary32 inputs.
//!
//! The order of operations of one output, on every instruction set and for every number of tokens:
//! 64 lane sums, lane `i` taking the columns congruent to `i` modulo 64 in ascending order, one
//! fused multiply-add each; then lanes `i, i+16, i+32, i+48` as `(a + b) + (c + d)`, then the tree of
//! [`Lanes::sum`]. Sixty-four lanes hide the latency of the additions with every vector width.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use crate::each;
use crate::format::{Encoding, FloatType, Matrix, decode_columns};
use crate::generic::elementwise::load;
use crate::generic::fp8_product;
use crate::lanes::{LANES, Lanes};
use crate::task::FloatTask;

/// Vectors of lane sums per output.
const SUMS: usize = 4;

/// Columns decoded at a time when the weights are quantised.
const PIECE: usize = 512;

/// Bytes ahead of the reader that a weight row is prefetched: 48 cache lines.
const PREFETCH_BYTES: usize = 48 * 64;

/// Reads 16 weights of one storage type.
trait Weights: Copy {
    /// Bytes of one value.
    const BYTES: usize;
    /// # Safety
    ///
    /// 16 values must be readable, and the instruction set of `L` available.
    unsafe fn load<L: Lanes>(from: *const u8) -> L;
}

#[derive(Clone, Copy)]
struct F32;
#[derive(Clone, Copy)]
struct F16;
#[derive(Clone, Copy)]
struct Bf16;

impl Weights for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        // SAFETY: passed on to the caller; unaligned loads.
        unsafe { L::load(from.cast()) }
    }
}
impl Weights for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        // SAFETY: passed on to the caller.
        unsafe { L::load_f16(from) }
    }
}
impl Weights for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        // SAFETY: passed on to the caller.
        unsafe { L::load_bf16(from) }
    }
}

/// Adds `columns` products to the lane sums of `T` tokens; `columns` starts at a multiple of 64.
///
/// # Safety
///
/// `weight` and each of `x` must hold `columns` values; the instruction set must be available.
#[inline(always)]
unsafe fn accumulate<L: Lanes, W: Weights, const T: usize>(
    weight: *const u8,
    x: [*const f32; T],
    columns: usize,
    sums: &mut [[L; SUMS]; T],
) {
    // SAFETY: all reads are within `columns`; prefetching any address is harmless.
    unsafe {
        let whole = columns / (SUMS * LANES) * (SUMS * LANES);
        for at in (0..whole).step_by(SUMS * LANES) {
            for s in 0..SUMS {
                let from = weight.wrapping_add((at + s * LANES) * W::BYTES);
                if (s * LANES * W::BYTES).is_multiple_of(64) {
                    crate::prefetch(from.wrapping_add(PREFETCH_BYTES));
                }
                let w: L = W::load(from);
                for t in 0..T {
                    sums[t][s] = L::load(x[t].add(at + s * LANES)).mul_add(w, sums[t][s]);
                }
            }
        }
        for s in 0..SUMS {
            let at = whole + s * LANES;
            if at >= columns {
                break;
            }
            let count = (columns - at).min(LANES);
            let mut bytes = [0u8; 4 * LANES];
            let from = weight.add(at * W::BYTES);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count * W::BYTES);
            let w: L = W::load(bytes.as_ptr());
            for t in 0..T {
                sums[t][s] = load::<L>(x[t].add(at), count).mul_add(w, sums[t][s]);
            }
        }
    }
}

/// One row times `T` tokens.
///
/// # Safety
///
/// The row lies within the matrix; the instruction set is available.
#[inline(always)]
unsafe fn row_times<L: Lanes, const T: usize>(
    matrix: &Matrix<'_>,
    row: usize,
    x: [*const f32; T],
) -> [f32; T] {
    // SAFETY: `Matrix` guarantees the bytes of each row; the caller guarantees the rest.
    unsafe {
        let mut sums = [[L::splat(0.0); SUMS]; T];
        let columns = matrix.columns;
        let row_bytes = matrix.encoding.weight_row_bytes(columns);
        let weight = matrix.weight.as_ptr().add(row * row_bytes);
        match matrix.encoding {
            Encoding::Float(FloatType::F32) => {
                accumulate::<L, F32, T>(weight, x, columns, &mut sums);
            }
            Encoding::Float(FloatType::F16) => {
                accumulate::<L, F16, T>(weight, x, columns, &mut sums);
            }
            Encoding::Float(FloatType::Bf16) => {
                accumulate::<L, Bf16, T>(weight, x, columns, &mut sums);
            }
            Encoding::Affine { .. }
            | Encoding::Block(_)
            | Encoding::Mxfp4
            | Encoding::Nvfp4 { .. }
            | Encoding::Symmetric { .. }
            | Encoding::Zeroed { .. }
            | Encoding::Fp8 { .. }
            | Encoding::Fp8Rows { .. } => {
                let mut piece = [0.0f32; PIECE];
                for first in (0..columns).step_by(PIECE) {
                    let piece = &mut piece[..PIECE.min(columns - first)];
                    decode_columns(matrix, row, first, piece);
                    let x = each(|t| x[t].add(first));
                    accumulate::<L, F32, T>(piece.as_ptr().cast(), x, piece.len(), &mut sums);
                }
            }
        }
        let mut out = [0.0; T];
        for (out, s) in out.iter_mut().zip(&sums) {
            *out = s[0].add(s[1]).add(s[2].add(s[3])).sum();
        }
        out
    }
}

/// All rows and tokens of a task.
///
/// # Safety
///
/// The instruction set is available; `out` is valid for the shape and no other thread writes the rows
/// of this task.
#[inline(always)]
pub(crate) unsafe fn float_rows<L: Lanes>(task: &FloatTask<'_>) {
    // SAFETY: the caller guarantees what is asked for.
    unsafe {
        if let Encoding::Fp8 { .. } | Encoding::Fp8Rows { .. } = task.matrix.encoding {
            return fp8_product::fp8_rows::<L>(task);
        }
        for row in task.rows.clone() {
            let columns = task.matrix.columns;
            let x_row = |token| task.x[task.x_row(token) * columns..][..columns].as_ptr();
            let mut token = 0;
            while token + 4 <= task.count {
                let x = each(|i| x_row(token + i));
                let y = row_times::<L, 4>(task.matrix, row, x);
                for (i, y) in y.into_iter().enumerate() {
                    *task.out(token + i, row) = y;
                }
                token += 4;
            }
            while token < task.count {
                let [y] = row_times::<L, 1>(task.matrix, row, [x_row(token)]);
                *task.out(token, row) = y;
                token += 1;
            }
        }
    }
}

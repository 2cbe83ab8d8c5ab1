//! Products of 8-bit floats with binary32 inputs ([`Encoding::Fp8`], [`Encoding::Fp8Rows`]).
//!
//! A weight is the float times the scale of its tile, rounded once to binary32: what the publisher's own code makes of
//! it. The order of operations of one output, on every instruction set and for every number of tokens: sixteen lane
//! sums, lane `i` taking the columns congruent to `i` modulo 16 in ascending order, one fused multiply-add each; then
//! the tree of [`Lanes::sum`]. Four rows at a time hide the latency of the additions. One token meets the weights as
//! they are decoded; several meet a piece of four rows that was decoded once for all of them.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use crate::each;
use crate::format::{Encoding, FP8_TILE, Matrix, tile_factor};
use crate::generic::elementwise::load;
use crate::lanes::{LANES, Lanes};
use crate::task::FloatTask;
use std::cell::RefCell;

/// Rows multiplied together; a divisor of [`FP8_TILE`], so that those of a block share their scales.
const ROWS: usize = 4;

/// Columns decoded at a time for several tokens: four rows of them fit the first-level cache with the inputs.
const PIECE: usize = 512;

/// Bytes ahead of the reader that each of the rows is prefetched.
const PREFETCH_BYTES: usize = 48 * 64 / ROWS;

/// What a worker keeps: a decoded piece of [`ROWS`] rows, and the lane sums of all tokens with them.
#[derive(Default)]
struct Scratch {
    weights: Vec<f32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Sixteen floats over 256 from column `at`; columns that do not exist are zero.
///
/// # Safety
///
/// `min(16, count)` bytes are readable; the instruction set is available.
#[inline(always)]
unsafe fn codes<L: Lanes>(from: *const u8, count: usize) -> L {
    // SAFETY: passed on to the caller; the copy has sixteen bytes.
    unsafe {
        if count >= LANES {
            return L::load_e4m3(from);
        }
        let mut bytes = [0u8; LANES];
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count);
        L::load_e4m3(bytes.as_ptr())
    }
}

/// What the floats of some rows of a tile's columns are multiplied with: rows of a tile share it.
///
/// # Safety
///
/// The rows lie within the matrix; the instruction set is available.
#[inline(always)]
unsafe fn factors<L: Lanes, const R: usize>(
    matrix: &Matrix<'_>,
    row: usize,
    column: usize,
) -> [L; R] {
    // SAFETY: passed on to the caller.
    unsafe {
        match matrix.encoding {
            Encoding::Fp8Rows { shared: false, .. } => {
                each(|r| L::splat(tile_factor(matrix, row + r, column)))
            }
            _ => [L::splat(tile_factor(matrix, row, column)); R],
        }
    }
}

/// Outputs of `R` rows from `row` for one token.
///
/// # Safety
///
/// The rows lie within the matrix and share their tiles, if any; `x` holds as many floats as there are columns; the
/// instruction set is available.
#[inline(always)]
unsafe fn one_token<L: Lanes, const R: usize>(
    matrix: &Matrix<'_>,
    row: usize,
    x: *const f32,
) -> [f32; R] {
    let columns = matrix.columns;
    // SAFETY: `Matrix` guarantees the bytes of each row; prefetching any address is harmless.
    unsafe {
        let weight = matrix.weight.as_ptr().add(row * columns);
        let mut sums = [L::splat(0.0); R];
        let whole = columns / FP8_TILE * FP8_TILE;
        for first in (0..whole).step_by(FP8_TILE) {
            let factors = factors::<L, R>(matrix, row, first);
            // Past the end of a row, what comes next is where the following block of rows begins.
            let skip = if first + PREFETCH_BYTES < columns { 0 } else { (R - 1) * columns };
            for r in 0..R {
                let ahead = weight.wrapping_add(r * columns + first + PREFETCH_BYTES + skip);
                crate::prefetch(ahead);
                crate::prefetch(ahead.wrapping_add(64));
            }
            for at in (first..first + FP8_TILE).step_by(LANES) {
                let x = L::load(x.add(at));
                for r in 0..R {
                    let w = L::load_e4m3(weight.add(r * columns + at)).mul(factors[r]);
                    sums[r] = x.mul_add(w, sums[r]);
                }
            }
        }
        if whole < columns {
            let factors = factors::<L, R>(matrix, row, whole);
            for at in (whole..columns).step_by(LANES) {
                let count = (columns - at).min(LANES);
                let x = load::<L>(x.add(at), count);
                for r in 0..R {
                    let w = codes::<L>(weight.add(r * columns + at), count).mul(factors[r]);
                    sums[r] = x.mul_add(w, sums[r]);
                }
            }
        }
        let mut out = [0.0; R];
        for r in 0..R {
            out[r] = sums[r].sum();
        }
        out
    }
}

/// Writes the weights of some columns of `R` rows as `[R, PIECE]` floats, zeros up to a whole vector.
///
/// # Safety
///
/// As for [`one_token`]; `first` is a multiple of [`FP8_TILE`] and `count` at most [`PIECE`]; there is room for them.
#[inline(always)]
unsafe fn decode<L: Lanes, const R: usize>(
    matrix: &Matrix<'_>,
    row: usize,
    (first, count): (usize, usize),
    to: *mut f32,
) {
    let columns = matrix.columns;
    // SAFETY: as above.
    unsafe {
        let weight = matrix.weight.as_ptr().add(row * columns + first);
        for tile in (0..count).step_by(FP8_TILE) {
            let factors = factors::<L, R>(matrix, row, first + tile);
            for at in (tile..count.min(tile + FP8_TILE)).step_by(LANES) {
                for r in 0..R {
                    let w = codes::<L>(weight.add(r * columns + at), count - at).mul(factors[r]);
                    w.store(to.add(r * PIECE + at));
                }
            }
        }
    }
}

/// Adds a decoded piece of `R` rows to the lane sums of `T` tokens, `[T, ROWS, 16]` floats.
///
/// # Safety
///
/// `weights` holds `[R, PIECE]` floats and each of `x` as many as `count`; the instruction set is available.
#[inline(always)]
unsafe fn add_piece<L: Lanes, const R: usize, const T: usize>(
    weights: *const f32,
    x: [*const f32; T],
    count: usize,
    to: *mut f32,
) {
    // SAFETY: as above.
    unsafe {
        let mut sums = [[L::splat(0.0); R]; T];
        for t in 0..T {
            for r in 0..R {
                sums[t][r] = L::load(to.add((t * ROWS + r) * LANES));
            }
        }
        let whole = count / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let mut inputs = [L::splat(0.0); T];
            for t in 0..T {
                inputs[t] = L::load(x[t].add(at));
            }
            for r in 0..R {
                let w = L::load(weights.add(r * PIECE + at));
                for t in 0..T {
                    sums[t][r] = inputs[t].mul_add(w, sums[t][r]);
                }
            }
        }
        for t in 0..T {
            for r in 0..R {
                if whole < count {
                    let w = L::load(weights.add(r * PIECE + whole));
                    let x = load::<L>(x[t].add(whole), count - whole);
                    sums[t][r] = x.mul_add(w, sums[t][r]);
                }
                sums[t][r].store(to.add((t * ROWS + r) * LANES));
            }
        }
    }
}

/// `R` rows from `row` for all tokens of a task.
///
/// # Safety
///
/// As for [`fp8_rows`]; the rows share their tiles.
#[inline(always)]
unsafe fn rows<L: Lanes, const R: usize>(task: &FloatTask<'_>, row: usize, scratch: &mut Scratch) {
    let (matrix, columns) = (task.matrix, task.matrix.columns);
    // SAFETY: passed on to the caller; the scratch has room for a piece and for all tokens.
    unsafe {
        if task.count == 1 {
            let x = task.x[task.x_row(0) * columns..][..columns].as_ptr();
            let out = one_token::<L, R>(matrix, row, x);
            for r in 0..R {
                *task.out(0, row + r) = out[r];
            }
            return;
        }
        let (weights, sums) = (scratch.weights.as_mut_ptr(), &mut scratch.sums);
        sums.fill(0.0);
        let sums = sums.as_mut_ptr();
        for first in (0..columns).step_by(PIECE) {
            let count = (columns - first).min(PIECE);
            decode::<L, R>(matrix, row, (first, count), weights);
            let mut token = 0;
            while L::WIDE && token + 4 <= task.count {
                let mut x = [std::ptr::null(); 4];
                for t in 0..4 {
                    x[t] = task.x[task.x_row(token + t) * columns + first..][..count].as_ptr();
                }
                let to = sums.add(token * ROWS * LANES);
                add_piece::<L, R, 4>(weights, x, count, to);
                token += 4;
            }
            while token < task.count {
                let x = task.x[task.x_row(token) * columns + first..][..count].as_ptr();
                let to = sums.add(token * ROWS * LANES);
                add_piece::<L, R, 1>(weights, [x], count, to);
                token += 1;
            }
        }
        for token in 0..task.count {
            for r in 0..R {
                let lanes = L::load(sums.add((token * ROWS + r) * LANES));
                *task.out(token, row + r) = lanes.sum();
            }
        }
    }
}

/// All rows and tokens of a task.
///
/// # Safety
///
/// The matrix has this encoding; the instruction set is available; `out` is valid for the shape and no other thread
/// writes the rows of this task.
#[inline(always)]
pub(super) unsafe fn fp8_rows<L: Lanes>(task: &FloatTask<'_>) {
    let mut scratch = SCRATCH.take();
    if task.count > 1 {
        scratch.weights.resize(ROWS * PIECE, 0.0);
        scratch.sums.resize(task.count * ROWS * LANES, 0.0);
    }
    let mut row = task.rows.start;
    // SAFETY: passed on to the caller; blocks of rows that begin at a multiple of their number share their tiles.
    unsafe {
        while row < task.rows.end {
            if row.is_multiple_of(ROWS) && row + ROWS <= task.rows.end {
                rows::<L, ROWS>(task, row, &mut scratch);
                row += ROWS;
            } else {
                rows::<L, 1>(task, row, &mut scratch);
                row += 1;
            }
        }
    }
    SCRATCH.set(scratch);
}

//! Products of blocks with 16-bit activations: the contract and its scalar reference.
//!
//! The order of operations of one output is that of affine weights (`quantised.rs`), with the groups of the
//! format: for each group `g` of 16 or 32 columns `S = sum of code * a`, an exact integer, then in lane `g % 16`
//! `lane = fma(S * d, scale, lane)` and `lane = fma(D, bias, lane)`. Scale and bias are what the block holds, in
//! binary32: products of its fields, without rounding; where codes have an offset, `bias = -offset * scale`.
//! At the end the tree of [`Lanes::sum`].

use super::{CodeRange, Unpacked};
use crate::lanes::{LANES, Lanes, ScalarLanes};
use crate::task::IntegerTask;

/// Tokens that share the unpacking of a step: the activations of so many stay in the first-level cache.
pub(crate) const TOKENS: usize = 8;

/// Defines `block_rows` of an instruction set: `all_tokens` compiled for each format in `unpackers` and for the
/// set's features, and the choice among them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! block_rows {
    ($features:literal; $($format:ident $group:literal),*) => {
        /// Runs a task.
        ///
        /// # Safety
        ///
        /// The features of the table are available; `out` is valid for the shape and no other thread writes the
        /// rows of this task.
        pub(super) unsafe fn block_rows(task: &IntegerTask<'_>) {
            match task.format() {
                $(crate::format::BlockFormat::$format => {
                    #[target_feature(enable = $features)]
                    unsafe fn rows(task: &IntegerTask<'_>) {
                        // SAFETY: passed on to the caller.
                        unsafe { all_tokens::<unpackers::$format, $group>(task) }
                    }
                    const { assert!(crate::format::BlockFormat::$format.group() == $group) };
                    // SAFETY: passed on to the caller.
                    unsafe { rows(task) }
                })*
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use block_rows;

/// The reference: activations in [`Packing::Natural`](crate::activations::Packing).
///
/// # Safety
///
/// `out` is valid for the shape and no other thread writes the rows of this task.
pub(crate) unsafe fn scalar_rows(task: &IntegerTask<'_>) {
    let format = task.format();
    let (group, groups) = (format.group(), format.values() / format.group());
    let row_bytes = task.matrix.encoding.weight_row_bytes(task.matrix.columns);
    let mut unpacked = Unpacked::EMPTY;
    for first in (0..task.count).step_by(TOKENS) {
        let count = TOKENS.min(task.count - first);
        for row in task.rows.clone() {
            let blocks = &task.matrix.weight[row * row_bytes..(row + 1) * row_bytes];
            let mut lanes = [[0.0f32; LANES]; TOKENS];
            for (index, block) in blocks.chunks_exact(format.bytes()).enumerate() {
                (format.layout().unpack)(block, &mut unpacked);
                let Unpacked { codes, scales, minima } = &unpacked;
                for (t, lanes) in lanes[..count].iter_mut().enumerate() {
                    let x_row = task.x_row(first + t);
                    for (within, codes) in codes.chunks(group).take(groups).enumerate() {
                        let g = index * groups + within;
                        let x = task.x.values(x_row)[2 * g * group..].chunks_exact(2);
                        let sum: i32 = codes
                            .iter()
                            .zip(x)
                            .map(|(&q, a)| {
                                i32::from(q) * i32::from(i16::from_le_bytes([a[0], a[1]]))
                            })
                            .sum();
                        let scale = scales[within];
                        let bias = match format.range() {
                            CodeRange::Offset(offset) => -f32::from(offset) * scale,
                            CodeRange::Minimum => minima[within],
                        };
                        let lane = &mut lanes[g % LANES];
                        *lane = (sum as f32 * task.x.scales(x_row)[g]).mul_add(scale, *lane);
                        *lane = task.x.sums(x_row)[g].mul_add(bias, *lane);
                    }
                }
            }
            for (t, lanes) in lanes[..count].iter().enumerate() {
                // SAFETY: scalar lanes need no instruction set; the caller guarantees the output.
                unsafe { *task.out(first + t, row) = ScalarLanes::load(lanes.as_ptr()).sum() };
            }
        }
    }
}

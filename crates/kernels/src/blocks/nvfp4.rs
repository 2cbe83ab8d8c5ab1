//! The scalar reference of products of [`Encoding::Nvfp4`](crate::format::Encoding::Nvfp4) with 16-bit activations.
//!
//! The order of operations of one output is that of blocks (`product.rs`) with groups of 16: codes are twice the 4-bit
//! floats plus 16, so that a group's factor is half of its scale, and its bias -16 times that half.

use super::tables::FP4;
use crate::format::nvfp4::{GROUP, Global};
use crate::lanes::{LANES, Lanes, ScalarLanes};
use crate::task::IntegerTask;

/// Runs a task: activations in [`Packing::Natural`](crate::activations::Packing).
///
/// # Safety
///
/// `out` is valid for the shape and no other thread writes the rows of this task.
pub(crate) unsafe fn scalar_rows(task: &IntegerTask<'_>) {
    let columns = task.matrix.columns;
    let groups = columns / GROUP;
    let global = Global::of(task.matrix);
    for row in task.rows.clone() {
        let codes = &task.matrix.weight[row * columns / 2..(row + 1) * columns / 2];
        let scales = &task.matrix.scales[row * groups..(row + 1) * groups];
        for token in 0..task.count {
            let x_row = task.x_row(token);
            let values = task.x.values(x_row);
            let mut lanes = [0.0f32; LANES];
            for (g, (codes, &scale)) in codes.chunks_exact(GROUP / 2).zip(scales).enumerate() {
                let x = values[2 * g * GROUP..].as_chunks::<2>().0;
                let sum: i32 = codes
                    .iter()
                    .flat_map(|byte| [byte & 15, byte >> 4])
                    .zip(x)
                    .map(|(code, &x)| {
                        i32::from(FP4[usize::from(code)]) * i32::from(i16::from_le_bytes(x))
                    })
                    .sum();
                let half = global.scale(scale) * 0.5;
                let lane = &mut lanes[g % LANES];
                *lane = (sum as f32 * task.x.scales(x_row)[g]).mul_add(half, *lane);
                *lane = task.x.sums(x_row)[g].mul_add(half * -16.0, *lane);
            }
            // SAFETY: scalar lanes need no instruction set; the caller guarantees the output.
            unsafe { *task.out(token, row) = ScalarLanes::load(lanes.as_ptr()).sum() };
        }
    }
}

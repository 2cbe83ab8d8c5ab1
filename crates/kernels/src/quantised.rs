//! Products of affine weights with 16-bit activations: the contract and its scalar reference.
//!
//! The order of operations of one output, on every instruction set and for every number of tokens.
//! For each group `g`: `S = sum of q * a` over the group, an exact integer of at most 31 bits. Then,
//! in sixteen lanes, lane `g % 16` in ascending order of `g`, with `d` the scale of the activations and
//! `D = d * sum(a)`: `lane = fma(S * d, scale, lane)`, then `lane = fma(D, bias, lane)`. At the end the tree
//! of [`Lanes::sum`](crate::lanes::Lanes::sum). Since only this combination rounds, kernels are free in
//! how they form `S`: bytes, words or tiles give the same bits, and the tests ask for equality.

use crate::activations::GROUP_LANES;
use crate::format::unpack;
use crate::lanes::{Lanes, ScalarLanes};
use crate::task::{Biases, IntegerTask};

/// Defines `quantised_rows` of an instruction set: `$define` makes the function of a name, a width and a group,
/// and each task goes to the one that is its own. Every set has the same widths and groups.
macro_rules! by_width_and_group {
    ($define:ident) => {
        $define!(rows_2_32, 2, 32);
        $define!(rows_2_64, 2, 64);
        $define!(rows_2_128, 2, 128);
        $define!(rows_3_32, 3, 32);
        $define!(rows_3_64, 3, 64);
        $define!(rows_3_128, 3, 128);
        $define!(rows_4_32, 4, 32);
        $define!(rows_4_64, 4, 64);
        $define!(rows_4_128, 4, 128);
        $define!(rows_5_32, 5, 32);
        $define!(rows_5_64, 5, 64);
        $define!(rows_5_128, 5, 128);
        $define!(rows_6_32, 6, 32);
        $define!(rows_6_64, 6, 64);
        $define!(rows_6_128, 6, 128);
        $define!(rows_8_32, 8, 32);
        $define!(rows_8_64, 8, 64);
        $define!(rows_8_128, 8, 128);

        /// Runs a task.
        ///
        /// # Safety
        ///
        /// The features of the table are available; `out` is valid for the shape and no other thread writes the
        /// rows of this task.
        pub(super) unsafe fn quantised_rows(task: &$crate::task::IntegerTask<'_>) {
            let (bits, group, _) = task.affine();
            let kernel = match (bits, group) {
                (2, 32) => rows_2_32,
                (2, 64) => rows_2_64,
                (2, _) => rows_2_128,
                (3, 32) => rows_3_32,
                (3, 64) => rows_3_64,
                (3, _) => rows_3_128,
                (4, 32) => rows_4_32,
                (4, 64) => rows_4_64,
                (4, _) => rows_4_128,
                (5, 32) => rows_5_32,
                (5, 64) => rows_5_64,
                (5, _) => rows_5_128,
                (6, 32) => rows_6_32,
                (6, 64) => rows_6_64,
                (6, _) => rows_6_128,
                (_, 32) => rows_8_32,
                (_, 64) => rows_8_64,
                (_, _) => rows_8_128,
            };
            // SAFETY: passed on to the caller.
            unsafe { kernel(task) }
        }
    };
}
pub(crate) use by_width_and_group;

/// Defines the function of a width and a group by `rows` of four tokens and of one.
macro_rules! four_tokens_at_a_time {
    ($features:literal, $name:ident, $bits:literal, $group:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(task: &IntegerTask<'_>) {
            let mut token = 0;
            // SAFETY: passed on to the caller.
            unsafe {
                while token + 4 <= task.count {
                    rows::<$bits, $group, 4>(task, token);
                    token += 4;
                }
                while token < task.count {
                    rows::<$bits, $group, 1>(task, token);
                    token += 1;
                }
            }
        }
    };
}
pub(crate) use four_tokens_at_a_time;

/// The reference: activations in [`Packing::Natural`](crate::activations::Packing).
///
/// # Safety
///
/// `out` is valid for the shape and no other thread writes the rows of this task.
pub(crate) unsafe fn scalar_rows(task: &IntegerTask<'_>) {
    let columns = task.matrix.columns;
    let (bits, group, float) = task.affine();
    let groups = columns / group;
    let row_bytes = task.matrix.encoding.weight_row_bytes(columns);
    let mut quantised = [0u8; 128];
    let quantised = &mut quantised[..group];
    for row in task.rows.clone() {
        let stream = &task.matrix.weight[row * row_bytes..(row + 1) * row_bytes];
        for token in 0..task.count {
            let x_row = task.x_row(token);
            let values = task.x.values(x_row);
            let (scales, sums) = (task.x.scales(x_row), task.x.sums(x_row));
            let mut lanes = [0.0f32; GROUP_LANES];
            for g in 0..groups {
                unpack(stream, bits, g * group, quantised);
                let values = values[2 * g * group..].chunks_exact(2);
                let sum: i32 = quantised
                    .iter()
                    .zip(values)
                    .map(|(&q, a)| i32::from(q) * i32::from(i16::from_le_bytes([a[0], a[1]])))
                    .sum();
                let scale = float.decode(task.matrix.scales, row * groups + g);
                let bias = match task.biases() {
                    Biases::Factor(factor) => scale * factor,
                    Biases::Zeros => scale * task.zeros(row * groups + g, 1)[0],
                    Biases::Stored => float.decode(task.matrix.biases, row * groups + g),
                };
                let lane = &mut lanes[g % GROUP_LANES];
                *lane = (sum as f32 * scales[g]).mul_add(scale, *lane);
                *lane = sums[g].mul_add(bias, *lane);
            }
            // SAFETY: scalar lanes need no instruction set; the caller guarantees the output.
            unsafe { *task.out(token, row) = ScalarLanes::load(lanes.as_ptr()).sum() };
        }
    }
}

//! Products of blocks with 16-bit activations: the contract, and the form of it that instruction sets share.
//!
//! The order of operations of one output is that of affine weights (`quantised.rs`), with the groups of the
//! format: for each group `g` of 16 or 32 columns `S = sum of code * a`, an exact integer, then in lane `g % 16`
//! `lane = fma(S * d, scale, lane)` and `lane = fma(D, bias, lane)`. Scale and bias are what the block holds, in
//! binary32: products of its fields, none of which rounds; where codes have an offset, `bias = -offset * scale`.
//! At the end the tree of [`Lanes::sum`].
//!
//! A row is taken in steps of sixteen groups. A step is unpacked once for up to [`TOKENS`] tokens.

use super::{BlockFormat, CodeRange, Unpacked, VALUES_MAX};
use crate::lanes::{LANES, Lanes, ScalarLanes};
use crate::task::IntegerTask;

/// Tokens that share the unpacking of a step: the activations of so many stay in the first-level cache.
pub(crate) const TOKENS: usize = 8;

/// Exact sums of groups with one instruction set.
pub(crate) trait GroupSums {
    /// What combines the sums.
    type Lanes: Lanes;

    /// Writes `VALUES_MAX / GROUP` sums of `code * a`. `x` are activations in `Packing::Natural`.
    ///
    /// # Safety
    ///
    /// The instruction set is available.
    unsafe fn sums<const GROUP: usize>(
        codes: &[u8; VALUES_MAX],
        x: &[i16; VALUES_MAX],
        sums: &mut [i32],
    );
}

/// Sixteen groups of a row, taken apart.
struct Step {
    /// 256 columns, or twice as many with groups of 32.
    codes: [[u8; VALUES_MAX]; 2],
    scales: [f32; LANES],
    biases: [f32; LANES],
}

/// All rows and tokens of a task; `unpack` is the format's.
///
/// # Safety
///
/// The instruction set of `K` is available and `GROUP` is the format's; `out` is valid for the shape and nobody
/// else writes the rows of this task.
#[inline(always)]
pub(crate) unsafe fn rows<K: GroupSums, const GROUP: usize>(
    task: &IntegerTask<'_>,
    unpack: impl Fn(&[u8], &mut Unpacked) + Copy,
) {
    let columns = task.matrix.columns;
    let row_bytes = task.matrix.encoding.weight_row_bytes(columns);
    let step_columns = LANES * GROUP;
    let step_bytes = step_columns / task.format().values() * task.format().bytes();
    let mut step = Step { codes: [[0; VALUES_MAX]; 2], scales: [0.0; LANES], biases: [0.0; LANES] };
    for first in (0..task.count).step_by(TOKENS) {
        let count = TOKENS.min(task.count - first);
        for row in task.rows.clone() {
            let blocks = &task.matrix.weight[row * row_bytes..(row + 1) * row_bytes];
            // SAFETY: the caller vouches for the instruction set and for the outputs.
            unsafe {
                let mut lanes = [K::Lanes::splat(0.0); TOKENS];
                for (index, blocks) in blocks.chunks(step_bytes).enumerate() {
                    read_step::<GROUP>(task.format(), unpack, blocks, &mut step);
                    let column = index * step_columns;
                    for (t, lanes) in lanes[..count].iter_mut().enumerate() {
                        let x_row = task.x_row(first + t);
                        let sums = step_sums::<K, GROUP>(&step, task.x.values(x_row), column);
                        let exact = K::Lanes::load(sums.map(|sum| sum as f32).as_ptr());
                        let d =
                            K::Lanes::load(task.x.scales(x_row)[index * LANES..][..LANES].as_ptr());
                        let sum =
                            K::Lanes::load(task.x.sums(x_row)[index * LANES..][..LANES].as_ptr());
                        let scale = K::Lanes::load(step.scales.as_ptr());
                        let bias = K::Lanes::load(step.biases.as_ptr());
                        *lanes = exact.mul(d).mul_add(scale, *lanes);
                        *lanes = sum.mul_add(bias, *lanes);
                    }
                }
                for (t, lanes) in lanes[..count].iter().enumerate() {
                    *task.out(first + t, row) = lanes.sum();
                }
            }
        }
    }
}

/// Sums of the sixteen groups of a step that begins at `column`. Activations are padded to 256 columns; a
/// second half that they lack has sums of zero.
///
/// # Safety
///
/// The instruction set of `K` is available.
#[inline(always)]
unsafe fn step_sums<K: GroupSums, const GROUP: usize>(
    step: &Step,
    values: &[u8],
    column: usize,
) -> [i32; LANES] {
    let mut sums = [0; LANES];
    let halves = values[2 * column..].chunks_exact(2 * VALUES_MAX);
    for ((x, codes), sums) in halves.zip(&step.codes).zip(sums.chunks_mut(VALUES_MAX / GROUP)) {
        // SAFETY: 512 bytes of prepared activations lie on cache lines; the caller vouches for the rest.
        unsafe { K::sums::<GROUP>(codes, &*x.as_ptr().cast::<[i16; VALUES_MAX]>(), sums) };
    }
    sums
}

/// Takes the blocks of up to sixteen groups apart; what they do not fill becomes zero.
#[inline(always)]
fn read_step<const GROUP: usize>(
    format: BlockFormat,
    unpack: impl Fn(&[u8], &mut Unpacked),
    blocks: &[u8],
    step: &mut Step,
) {
    let (values, groups) = (format.values(), format.values() / GROUP);
    let mut unpacked = Unpacked::EMPTY;
    let range = format.range();
    if blocks.len() / format.bytes() * groups < LANES {
        *step = Step { codes: [[0; VALUES_MAX]; 2], scales: [0.0; LANES], biases: [0.0; LANES] };
    }
    for (index, block) in blocks.chunks_exact(format.bytes()).enumerate() {
        unpack(block, &mut unpacked);
        let column = index * values;
        let codes = &mut step.codes[column / VALUES_MAX][column % VALUES_MAX..][..values];
        codes.copy_from_slice(&unpacked.codes[..values]);
        for g in 0..groups {
            step.scales[index * groups + g] = unpacked.scales[g];
            step.biases[index * groups + g] = match range {
                CodeRange::Offset(offset) => -f32::from(offset) * unpacked.scales[g],
                CodeRange::Minimum => unpacked.minima[g],
            };
        }
    }
}

/// Sums one product after the other: the reference.
pub(crate) struct ScalarSums;

impl GroupSums for ScalarSums {
    type Lanes = ScalarLanes;

    unsafe fn sums<const GROUP: usize>(
        codes: &[u8; VALUES_MAX],
        x: &[i16; VALUES_MAX],
        sums: &mut [i32],
    ) {
        for ((codes, x), sum) in codes.chunks(GROUP).zip(x.chunks(GROUP)).zip(sums) {
            *sum = codes
                .iter()
                .zip(x)
                .map(|(&code, &a)| i32::from(code) * i32::from(i16::from_le(a)))
                .sum();
        }
    }
}

/// The reference.
///
/// # Safety
///
/// `out` is valid for the shape and no other thread writes the rows of this task.
pub(crate) unsafe fn scalar_rows(task: &IntegerTask<'_>) {
    let unpack = task.format().layout().unpack;
    // SAFETY: scalar sums need no instruction set; the rest is passed on to the caller.
    unsafe {
        match task.format().group() {
            16 => rows::<ScalarSums, 16>(task, unpack),
            _ => rows::<ScalarSums, 32>(task, unpack),
        }
    }
}

/// Defines `block_rows` of an instruction set: `$kernel` compiled with its features, once for each format.
macro_rules! by_format {
    ([$(#[$feature:meta])*], $kernel:ty) => {
        /// Runs a task.
        ///
        /// # Safety
        ///
        /// The features of the table are available; `out` is valid for the shape and no other thread writes the
        /// rows of this task.
        pub(super) unsafe fn block_rows(task: &$crate::task::IntegerTask<'_>) {
            macro_rules! run {
                ($unpack:path, $group:literal) => {{
                    $(#[$feature])*
                    unsafe fn rows(task: &$crate::task::IntegerTask<'_>) {
                        // SAFETY: passed on to the caller.
                        unsafe { $crate::blocks::product::rows::<$kernel, $group>(task, $unpack) }
                    }
                    // SAFETY: passed on to the caller.
                    unsafe { rows(task) }
                }};
            }
            $crate::blocks::for_format!(task.format(), run)
        }
    };
}
pub(crate) use by_format;

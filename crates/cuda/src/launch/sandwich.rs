//! Launches of what some families do to the stream in addition to what blocks add to it (`kernels/sandwich.cu`).

use super::{Kernel, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

/// Most threads of a row of [`norm_rows`].
const ROW_THREADS: usize = 512;

#[derive(Clone, Copy)]
#[repr(C)]
struct NormRowsArguments {
    x: u64,
    weight: u64,
    out: u64,
    width: u32,
    epsilon: f32,
    add: u32,
    padding: u32,
}

/// RMS norm of rows `[rows, width]`, times `weight` `[width]` where there is one; stored, in place where `out` is `x`,
/// or added to `out`.
///
/// # Errors
/// The device failed.
pub fn norm_rows(
    stream: &Stream,
    (rows, width): (usize, usize),
    x: Span<f32>,
    weight: Option<Span<f32>>,
    epsilon: f32,
    out: Span<f32>,
    add: bool,
) -> Result<(), CudaError> {
    expect("rows of a norm", x.len(), rows * width);
    expect("normed rows", out.len(), rows * width);
    expect("weights of a norm", weight.map_or(width, |weight| weight.len()), width);
    let arguments = NormRowsArguments {
        x: x.address,
        weight: weight.map_or(0, |weight| weight.address),
        out: out.address,
        width: width as u32,
        epsilon,
        add: u32::from(add),
        padding: 0,
    };
    let threads = width.next_multiple_of(32).min(ROW_THREADS);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::NormRows, (rows, 1, 1), threads, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct BetweenArguments {
    branch: u64,
    branch_weight: u64,
    x: u64,
    first_weight: u64,
    second_weight: u64,
    first: u64,
    second: u64,
    zeros: u64,
    width: u32,
    epsilon: f32,
}

/// The norms between a dense network and a mixture that read the same stream; rows `[tokens, width]`.
#[derive(Clone, Copy)]
pub struct NormsBetween {
    /// What the dense network gave: its rows become their norms.
    pub branch: Span<f32>,
    /// Weight of that norm.
    pub branch_weight: Span<f32>,
    /// The stream.
    pub x: Span<f32>,
    /// Weights of two norms of the stream.
    pub weights: [Span<f32>; 2],
    /// Where these go.
    pub out: [Span<f32>; 2],
    /// What the mixture adds to: becomes zeros.
    pub zeros: Span<f32>,
    /// Added to mean squares.
    pub epsilon: f32,
}

/// All norms of `norms` at once.
///
/// # Errors
/// The device failed.
pub fn norm_between(stream: &Stream, tokens: usize, norms: &NormsBetween) -> Result<(), CudaError> {
    let width = norms.branch_weight.len();
    for span in [norms.branch, norms.x, norms.zeros].into_iter().chain(norms.out) {
        expect("rows of norms", span.len(), tokens * width);
    }
    norms.weights.iter().for_each(|weight| expect("weights of a norm", weight.len(), width));
    let arguments = BetweenArguments {
        branch: norms.branch.address,
        branch_weight: norms.branch_weight.address,
        x: norms.x.address,
        first_weight: norms.weights[0].address,
        second_weight: norms.weights[1].address,
        first: norms.out[0].address,
        second: norms.out[1].address,
        zeros: norms.zeros.address,
        width: width as u32,
        epsilon: norms.epsilon,
    };
    let grid = (tokens, 2, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::NormBetween, grid, ROW_THREADS, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct JoinArguments {
    x: u64,
    weight: u64,
    branch: u64,
    branch_weight: u64,
    out: u64,
    factor: u64,
    width: u32,
    epsilon: f32,
}

/// The end of a layer with two networks; rows `[tokens, width]`.
#[derive(Clone, Copy)]
pub struct NormsJoin {
    /// What the mixture gave.
    pub x: Span<f32>,
    /// Weight of its norm.
    pub weight: Span<f32>,
    /// To which that is added.
    pub branch: Span<f32>,
    /// Weight of the norm of the sum.
    pub branch_weight: Span<f32>,
    /// The stream, to which that is added.
    pub out: Span<f32>,
    /// One number, times which the stream then is.
    pub factor: Span<f32>,
    /// Added to mean squares.
    pub epsilon: f32,
}

/// `branch += norm(x)`, then `out = (out + norm(branch)) * factor`.
///
/// # Errors
/// The device failed.
pub fn norm_join(stream: &Stream, tokens: usize, join: &NormsJoin) -> Result<(), CudaError> {
    let width = join.weight.len();
    for span in [join.x, join.branch, join.out] {
        expect("rows of norms", span.len(), tokens * width);
    }
    expect("weights of a norm", join.branch_weight.len(), width);
    expect("a factor", join.factor.len(), 1);
    let arguments = JoinArguments {
        x: join.x.address,
        weight: join.weight.address,
        branch: join.branch.address,
        branch_weight: join.branch_weight.address,
        out: join.out.address,
        factor: join.factor.address,
        width: width as u32,
        epsilon: join.epsilon,
    };
    let grid = (tokens, 1, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::NormJoin, grid, ROW_THREADS, 0, &arguments) }
}

/// What values are multiplied by.
#[derive(Clone, Copy)]
pub enum Factor {
    /// A number in device memory.
    Stored(Span<f32>),
    /// This number.
    Constant(f32),
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ScaleArguments {
    x: u64,
    factor: u64,
    count: u64,
    constant: f32,
    padding: u32,
}

/// `x *= factor`
///
/// # Errors
/// The device failed.
pub fn scale(stream: &Stream, x: Span<f32>, factor: Factor) -> Result<(), CudaError> {
    let (factor, constant) = match factor {
        Factor::Stored(factor) => {
            expect("a factor", factor.len(), 1);
            (factor.address, 0.0)
        }
        Factor::Constant(constant) => (0, constant),
    };
    let count = x.len();
    let arguments =
        ScaleArguments { x: x.address, factor, count: count as u64, constant, padding: 0 };
    let grid = (count.div_ceil(256), 1, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::Scale, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CapArguments {
    x: u64,
    count: u64,
    cap: f32,
    padding: u32,
}

/// `x = cap tanh(x / cap)`
///
/// # Errors
/// The device failed.
pub fn cap(stream: &Stream, x: Span<f32>, cap: f32) -> Result<(), CudaError> {
    let count = x.len();
    let arguments = CapArguments { x: x.address, count: count as u64, cap, padding: 0 };
    let grid = (count.div_ceil(256), 1, 1);
    // SAFETY: the structure is the kernel's; the count is the span's.
    unsafe { stream.launch_overlapping(Kernel::Cap, grid, 256, 0, &arguments) }
}

mirrors! {
    NormRowsArguments as NormRowsArguments { x, weight, out, width, epsilon, add, padding } for NormRows;
    BetweenArguments as BetweenArguments {
        branch, branch_weight, x, first_weight, second_weight, first, second, zeros, width, epsilon
    } for NormBetween;
    JoinArguments as JoinArguments { x, weight, branch, branch_weight, out, factor, width, epsilon } for NormJoin;
    ScaleArguments as ScaleArguments { x, factor, count, constant, padding } for Scale;
    CapArguments as CapArguments { x, count, cap, padding } for Cap;
}

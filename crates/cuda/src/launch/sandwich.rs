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
    ScaleArguments as ScaleArguments { x, factor, count, constant, padding } for Scale;
    CapArguments as CapArguments { x, count, cap, padding } for Cap;
}

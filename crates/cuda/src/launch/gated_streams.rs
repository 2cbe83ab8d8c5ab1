//! Launches of residual streams that gates read, between the products with their matrices
//! (`kernels/gated_streams.cu`).

use super::{Kernel, STREAMS_LIMIT, Streams, expect};
use crate::abi::mirrors;
use crate::{CudaError, Matrix, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct NormStreamsArguments {
    x: u64,
    weight: u64,
    out: u64,
    hidden: u32,
    count: u32,
    epsilon: f32,
    padding: u32,
}

/// `out` = RMS norm of each stream by itself; `weight` `[count, hidden]`.
///
/// # Errors
/// The device failed.
pub fn norm_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    (weight, epsilon): (Span<f32>, f32),
    out: Span<f32>,
) -> Result<(), CudaError> {
    streams.check(tokens);
    expect("weights of a norm", weight.len(), streams.count * streams.hidden);
    expect("normed streams", out.len(), tokens * streams.count * streams.hidden);
    let arguments = NormStreamsArguments {
        x: streams.values.address,
        weight: weight.address,
        out: out.address,
        hidden: streams.hidden as u32,
        count: streams.count as u32,
        epsilon,
        padding: 0,
    };
    let grid = (streams.count, tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::NormStreams, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateStreamsArguments {
    values: u64,
    gates: u64,
    block: u64,
    width: u32,
    count: u32,
}

/// SiLU of every value divided by the number of streams, in place: what lies between the two matrices of a gate.
///
/// # Errors
/// The device failed.
pub fn activate_gates(stream: &Stream, values: Span<f32>, count: usize) -> Result<(), CudaError> {
    let arguments = GateStreamsArguments {
        values: values.address,
        gates: 0,
        block: 0,
        width: values.len() as u32,
        count: count as u32,
    };
    let grid = (values.len().div_ceil(256), 1, 1);
    // SAFETY: the structure is the kernel's, which stays within the values.
    unsafe { stream.launch_overlapping(Kernel::ActivateGates, grid, 256, 0, &arguments) }
}

/// `out` `[tokens, hidden]` = mean of the streams, each value times the sigmoid of its gate in `gates`, which are as
/// many as the values of the streams.
///
/// # Errors
/// The device failed.
pub fn merge_gated(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    gates: Span<f32>,
    out: Span<f32>,
) -> Result<(), CudaError> {
    expect("gates of streams", gates.len(), tokens * streams.count * streams.hidden);
    launch(stream, Kernel::MergeGated, (tokens, streams), gates, out)
}

/// Each stream += `output` `[tokens, hidden]` times twice the sigmoid of its weight in `weights` `[tokens, count]`
/// divided by the number of streams.
///
/// # Errors
/// The device failed.
pub fn inject_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    weights: Span<f32>,
    output: Span<f32>,
) -> Result<(), CudaError> {
    expect("weights of streams", weights.len(), tokens * streams.count);
    launch(stream, Kernel::InjectStreams, (tokens, streams), weights, output)
}

fn launch(
    stream: &Stream,
    kernel: Kernel,
    (tokens, streams): (usize, &Streams),
    gates: Span<f32>,
    block: Span<f32>,
) -> Result<(), CudaError> {
    streams.check(tokens);
    expect("rows of a block", block.len(), tokens * streams.hidden);
    let arguments = GateStreamsArguments {
        values: streams.values.address,
        gates: gates.address,
        block: block.address,
        width: streams.hidden as u32,
        count: streams.count as u32,
    };
    let grid = (streams.hidden.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernels'; lengths were checked above and by the caller.
    unsafe { stream.launch_overlapping(kernel, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StreamProductsArguments {
    x: u64,
    matrix: Matrix,
    out: u64,
}

/// True for matrices of few rows of floats, as [`stream_products`] multiplies them.
pub fn serves_stream_products(matrix: &Matrix) -> bool {
    matrix.rows() <= STREAMS_LIMIT && matrix.has_floats()
}

/// `out` `[tokens, rows]` = products of each token of `x` `[tokens, columns]`.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When [`serves_stream_products`] says no, or lengths do not fit.
pub fn stream_products(
    stream: &Stream,
    tokens: usize,
    x: Span<f32>,
    matrix: Matrix,
    out: Span<f32>,
) -> Result<(), CudaError> {
    assert!(serves_stream_products(&matrix), "few rows of floats");
    expect("inputs of products", x.len(), tokens * matrix.columns());
    expect("products", out.len(), tokens * matrix.rows());
    let arguments = StreamProductsArguments { x: x.address, matrix, out: out.address };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::StreamProducts, (tokens, 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GatherArguments {
    x: u64,
    rows: u64,
    out: u64,
    width: u32,
    padding: u32,
}

/// `out` `[rows.len(), width]` = rows `rows` of `x`, as wide.
///
/// # Errors
/// The device failed.
pub fn gather_rows(
    stream: &Stream,
    x: Span<f32>,
    width: usize,
    rows: Span<u32>,
    out: Span<f32>,
) -> Result<(), CudaError> {
    expect("gathered rows", out.len(), rows.len() * width);
    let arguments = GatherArguments {
        x: x.address,
        rows: rows.address,
        out: out.address,
        width: width as u32,
        padding: 0,
    };
    let grid = (rows.len(), 1, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above, chosen rows by the caller.
    unsafe { stream.launch_overlapping(Kernel::GatherRows, grid, 256, 0, &arguments) }
}

mirrors! {
    NormStreamsArguments as NormStreamsArguments { x, weight, out, hidden, count, epsilon, padding } for NormStreams;
    GateStreamsArguments as GateStreamsArguments { values, gates, block, width, count }
        for ActivateGates, MergeGated, InjectStreams;
    StreamProductsArguments as StreamProductsArguments { x, matrix, out } for StreamProducts;
    GatherArguments as GatherArguments { x, rows, out, width, padding } for GatherRows;
}

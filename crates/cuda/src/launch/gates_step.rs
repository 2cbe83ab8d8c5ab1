//! The gates of residual streams in a step, as two launches (`kernels/gates_step.cu`).

use super::{Kernel, STREAMS_LIMIT, Streams, expect, staged};
use crate::abi::{Kind, mirrors};
use crate::{CudaError, Matrix, Span, Stream};

/// Rows of the narrow matrix that a block has, and values of a stream that one of the second launch has
/// (`kernels/gates_step.cu`).
const ROWS: usize = 16;
const VALUES: usize = 8;

/// Matrices of a site.
#[derive(Clone, Copy)]
pub struct GateMatrices {
    /// `[rank, count * hidden]`
    pub down: Matrix,
    /// `[count, count * hidden]`: what each stream takes of a block's output.
    pub inject: Option<Matrix>,
    /// `[count * hidden, rank]`
    pub up: Matrix,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateStepArguments {
    x: u64,
    norm: u64,
    partial: u64,
    block: u64,
    inject: u64,
    down: Matrix,
    weights: Matrix,
    up: Matrix,
    hidden: u32,
    count: u32,
    rank: u32,
    epsilon: f32,
}

/// Values of the scratch of [`step_gates`].
fn scratch(tokens: usize, count: usize, rank: usize) -> usize {
    tokens * count * (rank + count + 1)
}

/// Threads of a block of the second launch.
fn wide_threads(count: usize, rank: usize) -> usize {
    VALUES * count * rank / 32
}

/// True for matrices that [`step_gates`] multiplies, of `count` streams.
pub fn step_serves_gates(matrices: &GateMatrices, count: usize) -> bool {
    let coded = |m: &Matrix| {
        m.kind == Kind::Affine as u32 && matches!(m.bits, 4 | 8) && m.group.is_multiple_of(32)
    };
    let GateMatrices { down, up, inject } = matrices;
    let rank = down.rows();
    coded(down)
        && coded(up)
        && (1..=STREAMS_LIMIT).contains(&count)
        && down.columns().is_multiple_of(32 * count)
        && rank.is_multiple_of(32)
        && wide_threads(count, rank) <= 1024
        && inject.is_none_or(|inject| !inject.has_blocks() && inject.rows() == count)
}

/// A site of streams in a step: its weights, and where what it makes goes.
#[derive(Clone, Copy)]
pub struct StepGates {
    /// `[count, hidden]` of the norm of each stream by itself.
    pub norm: Span<f32>,
    /// Of the norm.
    pub epsilon: f32,
    /// Which [`step_serves_gates`].
    pub matrices: GateMatrices,
    /// `[tokens, count]`: becomes what each stream will take of the block's output.
    pub inject: Span<f32>,
    /// `[tokens, hidden]`: becomes the block's input.
    pub block: Span<f32>,
    /// Scratch, with room for as many values as the streams.
    pub partial: Span<f32>,
}

/// What the gates of a site give of the normed streams: norm, narrow and wide matrix.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When [`step_serves_gates`] says no, or lengths do not fit.
pub fn step_gates(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    gates: &StepGates,
) -> Result<(), CudaError> {
    streams.check(tokens);
    let Streams { values, count, hidden } = *streams;
    let StepGates { norm, epsilon, matrices, inject, block, partial } = *gates;
    let (down, up) = (matrices.down, matrices.up);
    let rank = down.rows();
    assert!(step_serves_gates(&matrices, count), "gates served");
    assert!(
        down.columns() == count * hidden && up.rows() == count * hidden && up.columns() == rank
    );
    expect("weights of a norm", norm.len(), count * hidden);
    expect("a block's input", block.len(), tokens * hidden);
    expect("weights of streams", inject.len(), tokens * count);
    assert!(partial.len() >= scratch(tokens, count, rank), "room for sums of streams");
    let arguments = GateStepArguments {
        x: values.address,
        norm: norm.address,
        partial: partial.address,
        block: block.address,
        inject: if matrices.inject.is_some() { inject.address } else { 0 },
        down,
        weights: matrices.inject.unwrap_or(down),
        up,
        hidden: hidden as u32,
        count: count as u32,
        rank: rank as u32,
        epsilon,
    };
    let blocks = rank.div_ceil(ROWS) + if matrices.inject.is_some() { count } else { 0 };
    let threads = wide_threads(count, rank);
    // SAFETY: the structure is the kernels'; shapes and lengths were checked above.
    unsafe {
        let grid = (blocks, count, tokens);
        stream.launch_overlapping(Kernel::GateNarrow, grid, 256, staged(hidden), &arguments)?;
        let (grid, shared) = ((hidden.div_ceil(VALUES), tokens, 1), staged(rank) + 4 * threads);
        stream.launch_overlapping(Kernel::GateWide, grid, threads, shared, &arguments)
    }
}

mirrors! {
    GateStepArguments as GateStepArguments {
        x, norm, partial, block, inject, down, weights, up, hidden, count, rank, epsilon
    } for GateNarrow, GateWide;
}

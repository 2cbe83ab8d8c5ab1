//! Launches of what lies between the products: norms, gates, convolution.

use super::{Kernel, StepRuns, expect};
use crate::abi::{CONVOLVE_RUN, mirrors};
use crate::{CudaError, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct NormArguments {
    x: u64,
    weight: u64,
    out: u64,
    rows: u64,
    width: u32,
    epsilon: f32,
}

/// RMS norm of rows as wide as `weight`; with `chosen`, output row `i` is that of input row `chosen[i]`.
///
/// # Errors
/// The device failed.
pub fn rms_norm(
    stream: &Stream,
    rows: usize,
    x: Span<f32>,
    chosen: Option<Span<u32>>,
    weight: Span<f32>,
    epsilon: f32,
    out: Span<f32>,
) -> Result<(), CudaError> {
    let width = weight.len();
    expect("rows of a norm", out.len(), rows * width);
    match chosen {
        Some(chosen) => expect("chosen rows", chosen.len(), rows),
        None => expect("rows of a norm", x.len(), rows * width),
    }
    let arguments = NormArguments {
        x: x.address,
        weight: weight.address,
        out: out.address,
        rows: chosen.map_or(0, |span| span.address),
        width: width as u32,
        epsilon,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above, chosen rows by the caller.
    unsafe { stream.launch_overlapping(Kernel::RmsNorm, (rows, 1, 1), 512, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateArguments {
    x: u64,
    gate: u64,
    count: u32,
    padding: u32,
}

/// `x *= sigmoid(gate)` over `count` values.
///
/// # Errors
/// The device failed.
pub fn sigmoid_gate(
    stream: &Stream,
    count: usize,
    x: Span<f32>,
    gate: Span<f32>,
) -> Result<(), CudaError> {
    expect("gated values", x.len(), count);
    expect("gates", gate.len(), count);
    let arguments =
        GateArguments { x: x.address, gate: gate.address, count: count as u32, padding: 0 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::SigmoidGate, (count.div_ceil(256), 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateHeadsArguments {
    x: u64,
    gate: u64,
    dim: u32,
    count: u32,
}

/// Each head of `x`, `dim` values, times the sigmoid of its number in `gate`.
///
/// # Errors
/// The device failed.
pub fn gate_heads(
    stream: &Stream,
    dim: usize,
    x: Span<f32>,
    gate: Span<f32>,
) -> Result<(), CudaError> {
    let count = gate.len() * dim;
    expect("heads", x.len(), count);
    let arguments = GateHeadsArguments {
        x: x.address,
        gate: gate.address,
        dim: dim as u32,
        count: count as u32,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::GateHeads, (count.div_ceil(256), 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SplitArguments {
    both: u64,
    query: u64,
    gate: u64,
    dim: u32,
    count: u32,
}

/// The halves of `heads` heads `[2, dim]` in `both`.
///
/// # Errors
/// The device failed.
pub fn split_query_gate(
    stream: &Stream,
    heads: usize,
    dim: usize,
    both: Span<f32>,
    query: Span<f32>,
    gate: Span<f32>,
) -> Result<(), CudaError> {
    let count = heads * dim;
    expect("queries and gates", both.len(), 2 * count);
    expect("queries", query.len(), count);
    expect("gates", gate.len(), count);
    let arguments = SplitArguments {
        both: both.address,
        query: query.address,
        gate: gate.address,
        dim: dim as u32,
        count: count as u32,
    };
    let grid = (count.div_ceil(256), 1, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::SplitQueryGate, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RotateArguments {
    x: u64,
    weight: u64,
    frequencies: u64,
    positions: u64,
    heads: u32,
    dim: u32,
    rotary: u32,
    epsilon: f32,
    magnitude: f32,
    padding: u32,
}

/// Rotation by position of the first `2 * frequencies.len()` values of a head.
#[derive(Clone, Copy)]
pub struct Rotation {
    /// Of each pair of values.
    pub frequencies: Span<f32>,
    /// What rotated values are multiplied by.
    pub magnitude: f32,
}

/// Rotation of each head of `x` `[tokens, heads, dim]`, behind an RMS norm where there is one: its weight `[dim]` and
/// what is added to the mean square. One position per token.
///
/// # Errors
/// The device failed.
pub fn norm_and_rotate(
    stream: &Stream,
    (heads, dim): (usize, usize),
    x: Span<f32>,
    norm: Option<(Span<f32>, f32)>,
    rotation: Rotation,
    positions: Span<u32>,
) -> Result<(), CudaError> {
    let (tokens, frequencies) = (positions.len(), rotation.frequencies);
    expect("heads", x.len(), tokens * heads * dim);
    expect("weights of a norm", norm.map_or(dim, |(weight, _)| weight.len()), dim);
    assert!(2 * frequencies.len() <= dim, "rotated values within a head");
    let arguments = RotateArguments {
        x: x.address,
        weight: norm.map_or(0, |(weight, _)| weight.address),
        frequencies: frequencies.address,
        positions: positions.address,
        heads: heads as u32,
        dim: dim as u32,
        rotary: 2 * frequencies.len() as u32,
        epsilon: norm.map_or(0.0, |(_, epsilon)| epsilon),
        magnitude: rotation.magnitude,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe {
        stream.launch_overlapping(
            Kernel::NormAndRotate,
            (heads, tokens, 1),
            128,
            dim * 4,
            &arguments,
        )
    }
}

/// Which tokens a launch is about.
#[derive(Clone, Copy)]
pub struct TokenPlaces {
    /// Position of each token in its sequence.
    pub positions: Span<u32>,
    /// Sequence of each token.
    pub sequences: Span<u32>,
    /// True for a step, whose tokens are runs of their own unless `runs` says otherwise; false when all are one run.
    pub single: bool,
    /// Of a step where a run may have several tokens.
    pub runs: Option<StepRuns>,
    /// A position behind all tokens of a run; not used where every token is its own, whose launches are recorded.
    pub end: usize,
}

impl TokenPlaces {
    /// Those of `tokens` tokens from `start` on. Runs are known of all tokens of a step alone.
    pub fn part(&self, start: usize, tokens: usize) -> Self {
        Self {
            positions: self.positions.part(start, tokens),
            sequences: self.sequences.part(start, tokens),
            runs: self.runs.filter(|_| tokens == self.positions.len()),
            ..*self
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ConvolveArguments {
    x: u64,
    weight: u64,
    tail: u64,
    out: u64,
    sequences: u64,
    tokens: u32,
    channels: u32,
    kernel: u32,
    single: u32,
    tail_stride: u64,
}

/// SiLU of the causal convolution of `x` `[tokens, channels]`; the raw inputs before the run, `[taps, channels]`,
/// are kept in `tails`, one sequence every `stride` values.
///
/// # Errors
/// The device failed.
#[allow(clippy::too_many_arguments, reason = "what the kernel is told, in its order")]
pub fn convolve(
    stream: &Stream,
    channels: usize,
    places: &TokenPlaces,
    weight: Span<f32>,
    x: Span<f32>,
    tails: Span<f32>,
    stride: usize,
    out: Span<f32>,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let kernel = weight.len() / channels;
    expect("inputs of the convolution", x.len(), tokens * channels);
    expect("outputs of the convolution", out.len(), tokens * channels);
    expect("tail of the convolution", tails.len(), (kernel - 1) * channels);
    let arguments = ConvolveArguments {
        x: x.address,
        weight: weight.address,
        tail: tails.address,
        out: out.address,
        sequences: places.sequences.address,
        tokens: tokens as u32,
        channels: channels as u32,
        kernel: kernel as u32,
        single: u32::from(places.single),
        tail_stride: stride as u64,
    };
    let parts = if places.single { tokens } else { tokens.div_ceil(CONVOLVE_RUN) };
    let columns = channels.div_ceil(256);
    // SAFETY: the structure is both kernels'; lengths were checked above, sequences by the caller's batch.
    unsafe {
        stream.launch(Kernel::Convolve, (columns, parts, 1), 256, 0, &arguments)?;
        if places.single || parts == 1 {
            return Ok(());
        }
        stream.launch(Kernel::ConvolveTail, (columns, 1, 1), 256, 0, &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct JoinRowsArguments {
    first: u64,
    second: u64,
    third: u64,
    to: u64,
    first_width: u32,
    second_width: u32,
    third_width: u32,
    padding: u32,
}

/// `to` = of each token the rows of three registers, one behind the other.
///
/// # Errors
/// The device failed.
pub fn join_rows(
    stream: &Stream,
    tokens: usize,
    from: [(Span<f32>, usize); 3],
    to: Span<f32>,
) -> Result<(), CudaError> {
    let width: usize = from.iter().map(|(_, width)| width).sum();
    from.iter().for_each(|(rows, width)| expect("rows", rows.len(), tokens * width));
    expect("joined rows", to.len(), tokens * width);
    let arguments = JoinRowsArguments {
        first: from[0].0.address,
        second: from[1].0.address,
        third: from[2].0.address,
        to: to.address,
        first_width: from[0].1 as u32,
        second_width: from[1].1 as u32,
        third_width: from[2].1 as u32,
        padding: 0,
    };
    let grid = (width.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::JoinRows, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GatedNormArguments {
    x: u64,
    z: u64,
    weight: u64,
    dim: u32,
    epsilon: f32,
    by_sigmoid: u32,
    padding: u32,
}

/// RMS norm of `heads` heads of `x`, as wide as `weight`, times SiLU of `z`, or `by_sigmoid` the sigmoid of it.
///
/// # Errors
/// The device failed.
pub fn gated_norm(
    stream: &Stream,
    heads: usize,
    x: Span<f32>,
    (z, by_sigmoid): (Span<f32>, bool),
    weight: Span<f32>,
    epsilon: f32,
) -> Result<(), CudaError> {
    let dim = weight.len();
    expect("heads", x.len(), heads * dim);
    expect("gates", z.len(), heads * dim);
    let arguments = GatedNormArguments {
        x: x.address,
        z: z.address,
        weight: weight.address,
        dim: dim as u32,
        epsilon,
        by_sigmoid: u32::from(by_sigmoid),
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::GatedNorm, (heads, 1, 1), 32, 0, &arguments) }
}

mirrors! {
    NormArguments as NormArguments { x, weight, out, rows, width, epsilon } for RmsNorm;
    GateArguments as GateArguments { x, gate, count, padding } for SigmoidGate;
    GateHeadsArguments as GateHeadsArguments { x, gate, dim, count } for GateHeads;
    SplitArguments as SplitArguments { both, query, gate, dim, count } for SplitQueryGate;
    RotateArguments as RotateArguments {
        x, weight, frequencies, positions, heads, dim, rotary, epsilon, magnitude, padding
    } for NormAndRotate;
    ConvolveArguments as ConvolveArguments {
        x, weight, tail, out, sequences, tokens, channels, kernel, single, tail_stride
    } for Convolve, ConvolveTail;
    JoinRowsArguments as JoinRowsArguments {
        first, second, third, to, first_width, second_width, third_width, padding
    } for JoinRows;
    GatedNormArguments as GatedNormArguments { x, z, weight, dim, epsilon, by_sigmoid, padding } for GatedNorm;
}

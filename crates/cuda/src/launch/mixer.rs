//! Launches of what lies between the products: norms, gates, convolution, delta rule.

use super::{KEY_DIM_LIMIT, Kernel, RoundRing, StepRuns, expect};
use crate::abi::{CONVOLVE_RUN, DELTA_BATCH, DELTA_BATCHES, mirrors};
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
pub(super) struct DeltaArguments {
    mixed: u64,
    beta: u64,
    decay: u64,
    rate: u64,
    bias: u64,
    state: u64,
    out: u64,
    sequences: u64,
    state_stride: u64,
    ring: u64,
    positions: u64,
    starts: u64,
    lags: u64,
    ring_stride: u64,
    tokens: u32,
    channels: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    ring_row: u32,
}

/// Shape of the delta rule.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Values per key head, a multiple of 8.
    pub key_dim: usize,
    /// Values per value head.
    pub value_dim: usize,
    /// Whether value head `h` has key head `h % key_heads`, not `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

impl DeltaShape {
    /// Queries and keys of all heads, then values.
    pub(super) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// What the kernels of a step and of short runs are told, of so many tokens; `rounds` where there are such.
    pub(super) fn arguments(
        &self,
        places: &TokenPlaces,
        step: &DeltaStep,
        tokens: usize,
        rounds: Option<(&RoundRing, StepRuns)>,
    ) -> DeltaArguments {
        let (ring, runs) = rounds.unzip();
        DeltaArguments {
            mixed: step.mixed.address,
            beta: step.beta.address,
            decay: step.decay.address,
            rate: step.rate.address,
            bias: step.bias.address,
            state: step.states.address,
            out: step.out.address,
            sequences: places.sequences.address,
            state_stride: step.stride as u64,
            ring: ring.map_or(0, |ring| ring.values.address),
            positions: places.positions.address,
            starts: runs.map_or(0, |runs| runs.starts.address),
            lags: runs.map_or(0, |runs| runs.lags.address),
            ring_stride: ring.map_or(0, |ring| ring.stride as u64),
            tokens: tokens as u32,
            channels: self.channels() as u32,
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            tiled: u32::from(self.tiled),
            ring_row: ring.map_or(0, |ring| ring.row as u32),
        }
    }
}

/// Where [`delta_rule`] reads and writes; one row per token.
#[derive(Clone, Copy)]
pub struct DeltaStep {
    /// After the convolution: queries, keys, values; queries and keys may be normalised in place.
    pub mixed: Span<f32>,
    /// Write strengths before the sigmoid; a run of several tokens may replace them.
    pub beta: Span<f32>,
    /// Decays before the softplus; a run of several tokens may replace them.
    pub decay: Span<f32>,
    /// Rate of decay of each head.
    pub rate: Span<f32>,
    /// Added before the softplus.
    pub bias: Span<f32>,
    /// States `[value_heads, key_dim, value_dim]`, one sequence every `stride` values.
    pub states: Span<f32>,
    /// See `states`.
    pub stride: usize,
    /// `[tokens, value_heads, value_dim]`
    pub out: Span<f32>,
}

/// The gated delta rule, token after token.
///
/// # Errors
/// The device failed.
pub fn delta_rule(
    stream: &Stream,
    shape: &DeltaShape,
    places: &TokenPlaces,
    step: &DeltaStep,
) -> Result<(), CudaError> {
    let (tokens, channels) = (places.positions.len(), shape.channels());
    assert!(
        shape.key_dim <= KEY_DIM_LIMIT && shape.key_dim.is_multiple_of(8),
        "key heads within the kernels' limit"
    );
    expect("inputs of the delta rule", step.mixed.len(), tokens * channels);
    expect("write strengths", step.beta.len(), tokens * shape.value_heads);
    expect("decays", step.decay.len(), tokens * shape.value_heads);
    expect("outputs", step.out.len(), tokens * shape.value_heads * shape.value_dim);
    expect("state", step.states.len(), shape.value_heads * shape.key_dim * shape.value_dim);
    let arguments = shape.arguments(places, step, tokens, None);
    let capable = stream.device().info().capability.0 >= 8;
    if !places.single && capable && matches!(shape.key_dim, 128 | 256) {
        return delta_chunk(stream, shape, places, step);
    }
    let wide = shape.key_dim > 128;
    let blocks = |columns: usize| shape.value_dim.div_ceil(columns);
    // SAFETY: the structure is the kernels'; lengths were checked above, sequences by the caller's batch.
    unsafe {
        if places.single {
            let kernel = if wide { Kernel::DeltaStep32 } else { Kernel::DeltaStep16 };
            // One token alone needs all the blocks that there can be.
            let columns = if tokens > 1 && shape.value_dim.is_multiple_of(64) { 64 } else { 32 };
            let grid = (shape.value_heads, blocks(columns), tokens);
            return stream.launch_overlapping(kernel, grid, 256, 0, &arguments);
        }
        let grid = (shape.value_heads, blocks(16), 1);
        let heads = (2 * shape.key_heads, tokens, 1);
        stream.launch(Kernel::NormaliseQueryKey, heads, 32, 0, &arguments)?;
        let kernel = if wide { Kernel::DeltaRule32 } else { Kernel::DeltaRule16 };
        stream.launch(kernel, grid, 128, 0, &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaChunkArguments {
    mixed: u64,
    beta: u64,
    decay: u64,
    rate: u64,
    bias: u64,
    state: u64,
    out: u64,
    sequences: u64,
    state_stride: u64,
    tokens: u32,
    channels: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    padding: u32,
}

/// The tokens of one run, whose inputs are brought to shared memory ahead of them; write strengths and decays are
/// replaced by what they stand for. Lengths were checked by [`delta_rule`].
fn delta_chunk(
    stream: &Stream,
    shape: &DeltaShape,
    places: &TokenPlaces,
    step: &DeltaStep,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
    assert!(shape.value_dim.is_multiple_of(4), "value heads of the kernels");
    let arguments = DeltaChunkArguments {
        mixed: step.mixed.address,
        beta: step.beta.address,
        decay: step.decay.address,
        rate: step.rate.address,
        bias: step.bias.address,
        state: step.states.address,
        out: step.out.address,
        sequences: places.sequences.address,
        state_stride: step.stride as u64,
        tokens: tokens as u32,
        channels: channels as u32,
        key_heads: shape.key_heads as u32,
        value_heads: shape.value_heads as u32,
        key_dim: shape.key_dim as u32,
        value_dim: shape.value_dim as u32,
        tiled: u32::from(shape.tiled),
        padding: 0,
    };
    let shared = DELTA_BATCHES * DELTA_BATCH * (2 * shape.key_dim + 16 + 4) * 4;
    let kernel = if shape.key_dim > 128 { Kernel::DeltaChunk32 } else { Kernel::DeltaChunk16 };
    let grid = (shape.value_heads, shape.value_dim.div_ceil(16), 1);
    // SAFETY: the structure is both kernels'; lengths were checked, sequences by the caller's batch.
    unsafe {
        stream.launch(Kernel::DeltaPrepare, (tokens, 1, 1), 256, 0, &arguments)?;
        stream.launch(kernel, grid, 128, shared, &arguments)
    }
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
    SplitArguments as SplitArguments { both, query, gate, dim, count } for SplitQueryGate;
    RotateArguments as RotateArguments {
        x, weight, frequencies, positions, heads, dim, rotary, epsilon, magnitude, padding
    } for NormAndRotate;
    ConvolveArguments as ConvolveArguments {
        x, weight, tail, out, sequences, tokens, channels, kernel, single, tail_stride
    } for Convolve, ConvolveTail;
    DeltaArguments as DeltaArguments {
        mixed, beta, decay, rate, bias, state, out, sequences, state_stride, ring, positions, starts, lags, ring_stride,
        tokens, channels, key_heads, value_heads, key_dim, value_dim, tiled, ring_row
    } for NormaliseQueryKey, DeltaRule16, DeltaRule32, DeltaStep16, DeltaStep32, DeltaRound16, DeltaRound32;
    DeltaChunkArguments as DeltaChunkArguments {
        mixed, beta, decay, rate, bias, state, out, sequences, state_stride, tokens, channels, key_heads,
        value_heads, key_dim, value_dim, tiled, padding
    } for DeltaPrepare, DeltaChunk16, DeltaChunk32;
    GatedNormArguments as GatedNormArguments { x, z, weight, dim, epsilon, by_sigmoid, padding } for GatedNorm;
}

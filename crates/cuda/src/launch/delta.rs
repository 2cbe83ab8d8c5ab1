//! Launches of the gated delta rule of steps and of prompts (`kernels/mixer.cu`, `kernels/delta_chunk.cu`); that of
//! rounds is in `rounds.rs`.

use kernels::DeltaDecay;

use super::{CHANNELS_LIMIT, KEY_DIM_LIMIT, Kernel, RoundRing, StepRuns, TokenPlaces, expect};
use crate::abi::{DELTA_BATCH, DELTA_BATCHES, mirrors};
use crate::{CudaError, Span, Stream};

/// Columns of a head's state of a block of `delta_chunk`; so has `kernels/delta_chunk.cu`.
const DELTA_COLUMNS: usize = 32;

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
    decays: u32,
    bound: f32,
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
    /// What decays are of: of channels where `key_dim` is at most [`CHANNELS_LIMIT`].
    pub decay: DeltaDecay,
}

impl DeltaShape {
    /// Whether each channel of a key has a decay of its own.
    pub(super) fn by_channel(&self) -> bool {
        self.decay != DeltaDecay::Heads
    }

    /// Decays of a token.
    pub fn decays(&self) -> usize {
        self.value_heads * self.decay.of_head(self.key_dim)
    }

    /// The bound of decays of channels, as the kernels take it.
    fn bound(&self) -> f32 {
        match self.decay {
            DeltaDecay::BoundedChannels { bound } => bound,
            DeltaDecay::Heads | DeltaDecay::Channels => 0.0,
        }
    }

    /// True where the kernels serve heads of this shape.
    pub(super) fn serves(&self) -> bool {
        let limit = if self.by_channel() { CHANNELS_LIMIT } else { KEY_DIM_LIMIT };
        self.key_dim <= limit && self.key_dim.is_multiple_of(8)
    }

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
            decays: self.decay.of_head(self.key_dim) as u32,
            bound: self.bound(),
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
    assert!(shape.serves(), "key heads within the kernels' limit");
    expect("inputs of the delta rule", step.mixed.len(), tokens * channels);
    expect("write strengths", step.beta.len(), tokens * shape.value_heads);
    expect("decays", step.decay.len(), tokens * shape.decays());
    expect("outputs", step.out.len(), tokens * shape.value_heads * shape.value_dim);
    expect("state", step.states.len(), shape.value_heads * shape.key_dim * shape.value_dim);
    let arguments = shape.arguments(places, step, tokens, None);
    let capable = stream.device().info().capability.0 >= 8;
    let fast = capable && matches!(shape.key_dim, 128 | 256);
    if !places.single && (fast || shape.by_channel()) {
        return delta_chunk(stream, shape, places, step, fast);
    }
    let wide = shape.key_dim > 128;
    let blocks = |columns: usize| shape.value_dim.div_ceil(columns);
    // SAFETY: the structure is the kernels'; lengths were checked above, sequences by the caller's batch.
    unsafe {
        if places.single {
            let kernel = match (shape.by_channel(), wide) {
                (true, _) => Kernel::DeltaStepChannels,
                (false, true) => Kernel::DeltaStep32,
                (false, false) => Kernel::DeltaStep16,
            };
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
    decays: u32,
    bound: f32,
    padding: u32,
}

/// The tokens of one run; write strengths and decays are replaced by what they stand for. Where it is `fast` their
/// inputs are brought to shared memory ahead of them, else decays are those of channels. Lengths were checked by
/// [`delta_rule`].
fn delta_chunk(
    stream: &Stream,
    shape: &DeltaShape,
    places: &TokenPlaces,
    step: &DeltaStep,
    fast: bool,
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
        decays: shape.decay.of_head(shape.key_dim) as u32,
        bound: shape.bound(),
        padding: 0,
    };
    let factors = if shape.by_channel() { shape.key_dim } else { 0 };
    let shared =
        DELTA_BATCHES * DELTA_BATCH * (2 * shape.key_dim + DELTA_COLUMNS + 4 + factors) * 4;
    let kernel = match (shape.by_channel(), shape.key_dim > 128) {
        (true, _) => Kernel::DeltaChunkChannels,
        (false, true) => Kernel::DeltaChunk32,
        (false, false) => Kernel::DeltaChunk16,
    };
    let grid = |columns: usize| (shape.value_heads, shape.value_dim.div_ceil(columns), 1);
    // SAFETY: the structure is both kernels'; lengths were checked, sequences by the caller's batch.
    unsafe {
        stream.launch(Kernel::DeltaPrepare, (tokens, 1, 1), 256, 0, &arguments)?;
        if !fast {
            let plain = shape.arguments(places, step, tokens, None);
            return stream.launch(Kernel::DeltaRuleChannels, grid(16), 128, 0, &plain);
        }
        stream.launch(kernel, grid(DELTA_COLUMNS), 128, shared, &arguments)
    }
}

mirrors! {
    DeltaArguments as DeltaArguments {
        mixed, beta, decay, rate, bias, state, out, sequences, state_stride, ring, positions, starts, lags, ring_stride,
        tokens, channels, key_heads, value_heads, key_dim, value_dim, tiled, ring_row, decays, bound
    } for NormaliseQueryKey, DeltaRule16, DeltaRule32, DeltaStep16, DeltaStep32, DeltaRound16, DeltaRound32,
        DeltaRuleChannels, DeltaStepChannels, DeltaRoundChannels;
    DeltaChunkArguments as DeltaChunkArguments {
        mixed, beta, decay, rate, bias, state, out, sequences, state_stride, tokens, channels, key_heads,
        value_heads, key_dim, value_dim, tiled, decays, bound, padding
    } for DeltaPrepare, DeltaChunk16, DeltaChunk32, DeltaChunkChannels;
}

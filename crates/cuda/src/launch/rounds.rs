//! Steps whose runs may have several tokens of a sequence, and the first of them alone may be kept afterwards: what
//! keeps state token by token, the convolution and the delta rule of a round.
//!
//! State stays where a round began. A ring has, by position, what the round's tokens were fed; the next step of the
//! sequence first applies those that were kept ([`StepRuns::lags`]) and stores once. Rings have places for two rounds,
//! so that what a step reads is not what it writes. All other kernels of a step compute each token by itself.

use super::{DeltaShape, DeltaStep, Kernel, TokenPlaces, expect};
use crate::abi::{ROUND_PLACES, mirrors};
use crate::{CudaError, Span, Stream};

/// Runs of a step's tokens, which follow each other.
#[derive(Clone, Copy)]
pub struct StepRuns {
    /// Of each token: the index of its run's first token.
    pub starts: Span<u32>,
    /// Of each token: how many tokens its sequence has kept of its last round that the states do not have yet.
    pub lags: Span<u32>,
}

/// What delta layers were fed in rounds: `[ROUND_PLACES, row]` values of a layer, one sequence every `stride` values.
#[derive(Clone, Copy)]
pub struct RoundRing {
    /// From the layer's part of the first sequence on.
    pub values: Span<f32>,
    /// See above.
    pub stride: usize,
    /// Values of a position: [`round_row`].
    pub row: usize,
}

/// Values of a position in a [`RoundRing`]: raw inputs of all channels, convolved keys and values, strengths, decays.
pub fn round_row(shape: &DeltaShape) -> usize {
    let channels = shape.channels();
    let strengths = shape.value_heads + shape.decays();
    let again = channels - shape.key_heads * shape.key_dim + strengths;
    (channels + again).next_multiple_of(4)
}

impl RoundRing {
    fn check(&self, shape: &DeltaShape) {
        assert_eq!(self.row, round_row(shape), "values of a position");
        assert!(self.stride.is_multiple_of(4), "rings begin where four values do");
        expect("ring of a round", self.values.len(), ROUND_PLACES * self.row);
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ConvolveRunArguments {
    x: u64,
    weight: u64,
    tail: u64,
    ring: u64,
    out: u64,
    positions: u64,
    sequences: u64,
    starts: u64,
    lags: u64,
    tail_stride: u64,
    ring_stride: u64,
    ring_row: u32,
    queries: u32,
    tokens: u32,
    channels: u32,
    kernel: u32,
    padding: u32,
}

/// Convolution of a delta layer, of [`convolve_runs`].
#[derive(Clone, Copy)]
pub struct RunConvolution {
    /// `[channels, kernel]`, newest tap last.
    pub weight: Span<f32>,
    /// `[tokens, channels]`
    pub x: Span<f32>,
    /// `[kernel - 1, channels]`, one sequence every `stride` values.
    pub tails: Span<f32>,
    /// See `tails`.
    pub stride: usize,
    /// `[tokens, channels]`
    pub out: Span<f32>,
}

/// Runs of `places`, or (`applies`) of its first token only what its sequence has kept.
fn tokens_of(places: &TokenPlaces, applies: bool) -> (StepRuns, usize) {
    let runs = places.runs.expect("a step whose runs may have several tokens");
    let tokens = places.positions.len();
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("starts of runs", runs.starts.len(), tokens);
    expect("lags of runs", runs.lags.len(), tokens);
    (runs, if applies { 0 } else { tokens })
}

/// SiLU of the causal convolution of a step's runs. `applies`: no run, but what the sequence of the first token has
/// kept.
///
/// # Errors
/// The device failed.
pub fn convolve_runs(
    stream: &Stream,
    shape: &DeltaShape,
    places: &TokenPlaces,
    convolution: &RunConvolution,
    ring: &RoundRing,
    applies: bool,
) -> Result<(), CudaError> {
    let (runs, tokens) = tokens_of(places, applies);
    let (channels, RunConvolution { weight, x, tails, stride, out }) =
        (shape.channels(), *convolution);
    let kernel = weight.len() / channels;
    ring.check(shape);
    assert!(kernel >= 2, "a convolution of two taps or more");
    expect("inputs of the convolution", x.len(), tokens * channels);
    expect("outputs of the convolution", out.len(), tokens * channels);
    expect("tail of the convolution", tails.len(), (kernel - 1) * channels);
    let arguments = ConvolveRunArguments {
        x: x.address,
        weight: weight.address,
        tail: tails.address,
        ring: ring.values.address,
        out: out.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        starts: runs.starts.address,
        lags: runs.lags.address,
        tail_stride: stride as u64,
        ring_stride: ring.stride as u64,
        ring_row: ring.row as u32,
        queries: (shape.key_heads * shape.key_dim) as u32,
        tokens: tokens as u32,
        channels: channels as u32,
        kernel: kernel as u32,
        padding: 0,
    };
    let grid = (channels.div_ceil(256), tokens.max(1), 1);
    // SAFETY: the structure is the kernel's; lengths were checked above, positions, sequences and runs by the caller's
    // batch.
    unsafe { stream.launch_overlapping(Kernel::ConvolveRun, grid, 256, 0, &arguments) }
}

/// The gated delta rule of a step's runs. `applies`: as of [`convolve_runs`].
///
/// # Errors
/// The device failed.
pub fn delta_runs(
    stream: &Stream,
    shape: &DeltaShape,
    places: &TokenPlaces,
    step: &DeltaStep,
    ring: &RoundRing,
    applies: bool,
) -> Result<(), CudaError> {
    let (runs, tokens) = tokens_of(places, applies);
    ring.check(shape);
    assert!(shape.serves(), "key heads within the kernels' limit");
    expect("inputs of the delta rule", step.mixed.len(), tokens * shape.channels());
    expect("write strengths", step.beta.len(), tokens * shape.value_heads);
    expect("decays", step.decay.len(), tokens * shape.decays());
    expect("outputs", step.out.len(), tokens * shape.value_heads * shape.value_dim);
    expect("state", step.states.len(), shape.value_heads * shape.key_dim * shape.value_dim);
    let arguments = shape.arguments(places, step, tokens, Some((ring, runs)));
    let kernel = match (shape.by_channel(), shape.key_dim > 128) {
        (true, _) => Kernel::DeltaRoundChannels,
        (false, true) => Kernel::DeltaRound32,
        (false, false) => Kernel::DeltaRound16,
    };
    let grid = (shape.value_heads, shape.value_dim.div_ceil(32), tokens.max(1));
    // SAFETY: the structure is the kernel's; lengths were checked above, positions, sequences and runs by the caller's
    // batch.
    unsafe { stream.launch_overlapping(kernel, grid, 256, 0, &arguments) }
}

mirrors! {
    ConvolveRunArguments as ConvolveRunArguments {
        x, weight, tail, ring, out, positions, sequences, starts, lags, tail_stride, ring_stride, ring_row, queries,
        tokens, channels, kernel, padding
    } for ConvolveRun;
}

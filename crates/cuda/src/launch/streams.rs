//! Launches of several residual streams: their weights, what a block reads, and the mixture (`kernels/streams.cu`).

use super::{Kernel, STREAMS_LIMIT, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

/// Residual streams of a batch.
#[derive(Clone, Copy)]
pub struct Streams {
    /// `[tokens, count, hidden]`
    pub values: Span<f32>,
    /// Streams of a token.
    pub count: usize,
    /// Width of a stream.
    pub hidden: usize,
}

/// How products of the streams with a site's matrix become weights.
#[derive(Clone, Copy)]
pub struct StreamSite {
    /// `[outputs]`: added to the products.
    pub base: Span<f32>,
    /// Factors of the weights of the input, of the output and of the mixture; the first alone at the last site.
    pub scale: Span<f32>,
    /// Passes that balance rows and columns; `None` at the last site, which has weights of the input alone.
    pub iterations: Option<usize>,
    /// Added to weights and to the sums that they are divided by.
    pub epsilon: f32,
    /// Added to the mean square of the streams.
    pub norm_epsilon: f32,
}

impl Streams {
    /// Weights of a site: of the input, of the output, and the mixture by rows; or of the input alone.
    fn outputs(&self, reads_alone: bool) -> usize {
        if reads_alone { self.count } else { self.count * (2 + self.count) }
    }

    pub(super) fn check(&self, tokens: usize) {
        assert!(self.count <= STREAMS_LIMIT, "streams within the kernels' limit");
        expect("streams", self.values.len(), tokens * self.count * self.hidden);
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct WeighStreamsArguments {
    streams: u64,
    weights: u64,
    base: u64,
    scale: u64,
    hidden: u32,
    count: u32,
    iterations: u32,
    reads_alone: u32,
    epsilon: f32,
    norm_epsilon: f32,
}

/// Turns the products of each token's streams with a site's matrix, `weights` `[tokens, outputs]`, into weights.
///
/// # Errors
/// The device failed.
pub fn weigh_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    site: &StreamSite,
    weights: Span<f32>,
) -> Result<(), CudaError> {
    let outputs = streams.outputs(site.iterations.is_none());
    streams.check(tokens);
    expect("weights of streams", weights.len(), tokens * outputs);
    expect("base of a site", site.base.len(), outputs);
    expect("scale of a site", site.scale.len(), if site.iterations.is_none() { 1 } else { 3 });
    let arguments = WeighStreamsArguments {
        streams: streams.values.address,
        weights: weights.address,
        base: site.base.address,
        scale: site.scale.address,
        hidden: streams.hidden as u32,
        count: streams.count as u32,
        iterations: site.iterations.unwrap_or(0) as u32,
        reads_alone: u32::from(site.iterations.is_none()),
        epsilon: site.epsilon,
        norm_epsilon: site.norm_epsilon,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::WeighStreams, (tokens, 1, 1), 1024, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StreamsArguments {
    streams: u64,
    weights: u64,
    block: u64,
    hidden: u32,
    count: u32,
    outputs: u32,
    padding: u32,
}

impl StreamsArguments {
    fn new(streams: &Streams, weights: Span<f32>, block: Span<f32>, outputs: usize) -> Self {
        Self {
            streams: streams.values.address,
            weights: weights.address,
            block: block.address,
            hidden: streams.hidden as u32,
            count: streams.count as u32,
            outputs: outputs as u32,
            padding: 0,
        }
    }
}

/// `out` `[tokens, hidden]` = the streams' sum by the weights of the input, which begin each row of `weights`; those of
/// the last site are `reads_alone`.
///
/// # Errors
/// The device failed.
pub fn collapse_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    (weights, reads_alone): (Span<f32>, bool),
    out: Span<f32>,
) -> Result<(), CudaError> {
    let outputs = streams.outputs(reads_alone);
    streams.check(tokens);
    expect("weights of streams", weights.len(), tokens * outputs);
    expect("inputs of a block", out.len(), tokens * streams.hidden);
    let arguments = StreamsArguments::new(streams, weights, out, outputs);
    let grid = (streams.hidden.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::CollapseStreams, grid, 256, 0, &arguments) }
}

/// Every stream of a token = its row of `rows` `[tokens, hidden]`.
///
/// # Errors
/// The device failed.
pub fn spread_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    rows: Span<f32>,
) -> Result<(), CudaError> {
    streams.check(tokens);
    expect("rows of streams", rows.len(), tokens * streams.hidden);
    let arguments = StreamsArguments::new(streams, rows, rows, 0);
    let grid = (streams.hidden.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::SpreadStreams, grid, 256, 0, &arguments) }
}

/// Mixes the streams and gives each its part of a block's `output` `[tokens, hidden]`.
///
/// # Errors
/// The device failed.
pub fn mix_streams(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    weights: Span<f32>,
    output: Span<f32>,
) -> Result<(), CudaError> {
    let outputs = streams.outputs(false);
    streams.check(tokens);
    expect("weights of streams", weights.len(), tokens * outputs);
    expect("outputs of a block", output.len(), tokens * streams.hidden);
    let arguments = StreamsArguments::new(streams, weights, output, outputs);
    let grid = (streams.hidden.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::MixStreams, grid, 256, 0, &arguments) }
}

mirrors! {
    WeighStreamsArguments as WeighStreamsArguments {
        streams, weights, base, scale, hidden, count, iterations, reads_alone, epsilon, norm_epsilon
    } for WeighStreams;
    StreamsArguments as StreamsArguments { streams, weights, block, hidden, count, outputs, padding }
        for CollapseStreams, SpreadStreams, MixStreams;
}

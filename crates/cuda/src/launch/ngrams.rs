//! Launches of layers of hashed n-grams, behind the products of their rows (`kernels/ngrams.cu`).

use super::compressed::{SequenceRows, SequenceRowsArguments};
use super::{Kernel, Streams, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct GateValuesArguments {
    value: u64,
    streams: u64,
    key_norm: u64,
    query_norm: u64,
    norm: u64,
    values: u64,
    seen: u64,
    hidden: u32,
    count: u32,
    epsilon: f32,
    padding: u32,
}

/// What each stream takes of a token's value.
#[derive(Clone, Copy)]
pub struct NgramValues {
    /// `[tokens, hidden]`
    pub value: Span<f32>,
    /// `[tokens, count, hidden]`: a key for each stream; then what it takes of the value.
    pub values: Span<f32>,
    /// As `values`: the norm of that, which the convolution sees.
    pub seen: Span<f32>,
    /// Norms of keys, of the streams and of what is seen, `[count, hidden]`.
    pub norms: [Span<f32>; 3],
    /// Added to the mean squares.
    pub epsilon: f32,
}

/// Makes what each stream takes of the value, as it agrees with its key.
///
/// # Errors
/// The device failed.
pub fn gate_values(
    stream: &Stream,
    tokens: usize,
    streams: &Streams,
    ngrams: &NgramValues,
) -> Result<(), CudaError> {
    let wide = streams.count * streams.hidden;
    streams.check(tokens);
    expect("values of n-grams", ngrams.value.len(), tokens * streams.hidden);
    expect("keys of n-grams", ngrams.values.len(), tokens * wide);
    expect("what is seen of n-grams", ngrams.seen.len(), tokens * wide);
    ngrams.norms.iter().for_each(|norm| expect("weights of a norm", norm.len(), wide));
    let [key_norm, query_norm, norm] = ngrams.norms.map(|norm| norm.address);
    let arguments = GateValuesArguments {
        value: ngrams.value.address,
        streams: streams.values.address,
        key_norm,
        query_norm,
        norm,
        values: ngrams.values.address,
        seen: ngrams.seen.address,
        hidden: streams.hidden as u32,
        count: streams.count as u32,
        epsilon: ngrams.epsilon,
        padding: 0,
    };
    let grid = (streams.count, tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::GateValues, grid, 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MixNgramsArguments {
    rows: SequenceRowsArguments,
    values: u64,
    seen: u64,
    weight: u64,
    streams: u64,
    ids: u64,
    width: u32,
    kernel: u32,
    apart: u32,
    padding: u32,
}

/// The convolution of a run, and what it is added to.
#[derive(Clone, Copy)]
pub struct NgramMix {
    /// `[tokens, width]`: what each stream takes.
    pub values: Span<f32>,
    /// As `values`: what the convolution sees.
    pub seen: Span<f32>,
    /// `[width, kernel]`, newest tap last.
    pub weight: Span<f32>,
    /// As `values`: the streams.
    pub streams: Span<f32>,
    /// `[tokens]`
    pub ids: Span<u32>,
    /// Values of all streams of a token.
    pub width: usize,
    /// Tokens between taps.
    pub apart: usize,
}

/// `streams += values + SiLU(convolution of seen)`; then keeps what was seen, and the ids, of the run's last
/// `rows.window` tokens in the states of the sequences, `[rows.window, width + 1]` by position.
///
/// # Errors
/// The device failed.
pub fn mix_ngrams(stream: &Stream, rows: &SequenceRows, mix: &NgramMix) -> Result<(), CudaError> {
    let (tokens, kernel) = (rows.tokens(), mix.weight.len() / mix.width);
    for (what, span) in
        [("values", mix.values), ("seen values", mix.seen), ("streams", mix.streams)]
    {
        expect(what, span.len(), tokens * mix.width);
    }
    expect("ids", mix.ids.len(), tokens);
    assert!(rows.window >= mix.apart * (kernel - 1), "all that the convolution sees is kept");
    let arguments = MixNgramsArguments {
        rows: rows.arguments(),
        values: mix.values.address,
        seen: mix.seen.address,
        weight: mix.weight.address,
        streams: mix.streams.address,
        ids: mix.ids.address,
        width: mix.width as u32,
        kernel: kernel as u32,
        apart: mix.apart as u32,
        padding: 0,
    };
    let grid = |values: usize| (values.div_ceil(256), tokens, 1);
    // SAFETY: the structure is the kernels'; lengths were checked above, states by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::MixNgrams, grid(mix.width), 256, 0, &arguments)?;
        stream.launch_overlapping(Kernel::KeepNgrams, grid(mix.width + 1), 256, 0, &arguments)
    }
}

mirrors! {
    GateValuesArguments as GateValuesArguments {
        value, streams, key_norm, query_norm, norm, values, seen, hidden, count, epsilon, padding
    } for GateValues;
    MixNgramsArguments as MixNgramsArguments {
        rows, values, seen, weight, streams, ids, width, kernel, apart, padding
    } for MixNgrams, KeepNgrams;
}

//! Launches of the fused kernels of a step (`kernels/step.cu`): norm and products, heads of attention, the experts.
//!
//! They serve matrices of whole units on devices with tensor cores for f16 and a 16-wide product; [`step_serves`] says
//! whether, and the plain launches do the same one operation at a time. On devices of compute capability 9.0 and later
//! each is placed while the kernel before it still runs.

use self::form::{BlockSet, StepForm, bits_at_once, form_of, staged_bytes};
pub use self::form::{
    RecentDevice, StepDevice, step_serves, step_serves_experts, step_serves_pair,
};
pub use self::limited::{step_experts_limited, step_serves_limited};
pub use self::routed::step_serves_routing;
use self::routed::{StepRoutedArguments, routed};
use super::experts::{EndedArguments, Routing, route_arguments};
use super::{
    ExpertStep, Kernel, KeyValueCache, Rotation, STEP_JOBS, TOP_K_LIMIT, TokenPlaces, expect,
};
use crate::abi::{INNER_THREADS, JobKind, STEP_THREADS as THREADS, StageMode, UNIT};
use crate::{CudaError, Device, ExpertShapes, Matrix, Span, Stream};

mod form;
mod layout;
mod limited;
mod routed;
mod several;
mod split;
#[cfg(test)]
pub(super) use layout::LAYOUTS;
use split::{ExpertSplit, linear_blocks, split_work};

/// Bytes to which weights must be aligned for the fused kernels; scales to two.
pub const STEP_ALIGNMENT: usize = 16;

const LINEAR_OF_BLOCKS: [Kernel; 3] =
    [Kernel::StepLinearUsual, Kernel::StepLinearBlocks, Kernel::StepLinearGrids];
const INNER_OF_BLOCKS: [Kernel; 3] =
    [Kernel::StepInnerUsual, Kernel::StepInnerBlocks, Kernel::StepInnerGrids];
const OUTER_OF_BLOCKS: [Kernel; 3] =
    [Kernel::StepOuterUsual, Kernel::StepOuterBlocks, Kernel::StepOuterGrids];

/// Heads of this width can be normed while they are staged ([`StepInput::HeadNorm`]).
pub fn step_serves_head(dim: usize) -> bool {
    dim.is_power_of_two() && (16..=256).contains(&dim)
}

/// What a vector is before it is multiplied. Spans have a row per token.
#[derive(Clone, Copy)]
pub enum StepInput {
    /// As it is.
    Plain {
        /// `[tokens, columns]`
        x: Span<f32>,
    },
    /// RMS norm times `weight`.
    Norm {
        /// `[tokens, columns]`
        x: Span<f32>,
        /// `[columns]`
        weight: Span<f32>,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// RMS norm of each head times `weight`, and SiLU of the gate or its sigmoid.
    HeadNorm {
        /// `[tokens, heads, weight.len()]`
        x: Span<f32>,
        /// As `x`.
        gate: Span<f32>,
        /// One head wide.
        weight: Span<f32>,
        /// Added to the mean square.
        epsilon: f32,
        /// The sigmoid.
        sigmoid: bool,
    },
    /// Times the sigmoid of the second half of each head of `both`.
    Gated {
        /// `[tokens, heads, dim]`
        x: Span<f32>,
        /// `[tokens, heads, 2, dim]`
        both: Span<f32>,
        /// Width of a head.
        dim: usize,
    },
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Source {
    x: u64,
    norm: u64,
    gate: u64,
    columns: u32,
    mode: u32,
    dim: u32,
    epsilon: f32,
}

impl StepInput {
    fn source(&self, tokens: usize, columns: usize) -> Source {
        let (x, norm, gate, mode, dim, epsilon) = match *self {
            Self::Plain { x } => (x, 0, 0, StageMode::Plain, 1, 0.0),
            Self::Norm { x, weight, epsilon } => {
                expect("weights of a norm", weight.len(), columns);
                (x, weight.address, 0, StageMode::Norm, 1, epsilon)
            }
            Self::HeadNorm { x, gate, weight, epsilon, sigmoid } => {
                let dim = weight.len();
                assert!(step_serves_head(dim) && columns.is_multiple_of(dim), "whole heads");
                expect("gates", gate.len(), tokens * columns);
                let mode = if sigmoid { StageMode::HeadSigmoid } else { StageMode::HeadNorm };
                (x, weight.address, gate.address, mode, dim, epsilon)
            }
            Self::Gated { x, both, dim } => {
                assert!(dim.is_multiple_of(8) && columns.is_multiple_of(dim), "whole heads");
                expect("queries and gates", both.len(), 2 * tokens * columns);
                (x, 0, both.address, StageMode::Gated, dim, 0.0)
            }
        };
        expect("input of a product", x.len(), tokens * columns);
        let (columns, mode, dim) = (columns as u32, mode as u32, dim as u32);
        Source { x: x.address, norm, gate, columns, mode, dim, epsilon }
    }
}

/// A causal convolution that follows a product, for tokens that are runs of their own.
#[derive(Clone, Copy)]
pub struct StepConvolution {
    /// `[channels, kernel]`, newest tap last.
    pub weight: Span<f32>,
    /// `[kernel - 1, channels]`, one sequence every `stride` values.
    pub tails: Span<f32>,
    /// See `tails`.
    pub stride: usize,
    /// Sequence of each token.
    pub sequences: Span<u32>,
    /// Where sequences have rounds: what they were fed, the position of each token, and its lag.
    pub rounds: Option<(super::RoundRing, Span<u32>, Span<u32>)>,
}

/// What becomes of a product.
#[derive(Clone, Copy)]
pub enum StepJob {
    /// `out = matrix x`
    Store(Matrix, Span<f32>),
    /// `out += matrix x`
    Add(Matrix, Span<f32>),
    /// `out = SiLU(convolution of matrix x)`
    Convolve(Matrix, Span<f32>, StepConvolution),
    /// `out = SiLU(first x) * (second x)`
    SwiGlu(Matrix, Matrix, Span<f32>),
    /// Streams `[tokens, count, rows]` take `matrix x`, each by its weight in `[tokens, count]`, as
    /// [`super::inject_streams`] says.
    Inject(Matrix, Span<f32>, Span<f32>),
}

#[derive(Clone, Copy)]
#[repr(C)]
struct JobArguments {
    matrix: Matrix,
    second: Matrix,
    out: u64,
    first_block: u32,
    kind: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StepLinearArguments {
    source: Source,
    taps: u64,
    tail: u64,
    sequences: u64,
    tail_stride: u64,
    ring: u64,
    positions: u64,
    lags: u64,
    ring_stride: u64,
    ring_row: u32,
    padding: u32,
    kernel: u32,
    jobs: u32,
    tiles_shift: u32,
    rounds: u32,
    tokens: u32,
    per_pass: u32,
    job: [JobArguments; STEP_JOBS],
}

/// Products of one input with several matrices, and what follows each of them.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes, or [`step_serves`] would say no.
pub fn step_linear(
    stream: &Stream,
    tokens: usize,
    input: &StepInput,
    jobs: &[StepJob],
) -> Result<(), CudaError> {
    assert!((1..=STEP_JOBS).contains(&jobs.len()), "1 to {STEP_JOBS} matrices");
    let parts = |job: &StepJob| match *job {
        StepJob::Store(matrix, out) => (matrix, matrix, out, JobKind::Store),
        StepJob::Add(matrix, out) => (matrix, matrix, out, JobKind::Add),
        StepJob::Convolve(matrix, out, _) => (matrix, matrix, out, JobKind::Convolve),
        StepJob::Inject(matrix, out, _) => (matrix, matrix, out, JobKind::Inject),
        StepJob::SwiGlu(matrix, second, out) => (matrix, second, out, JobKind::SwiGlu),
    };
    let is_pair = |job: &StepJob| matches!(job, StepJob::SwiGlu(..));
    let columns = parts(&jobs[0]).0.columns();
    let matrices: Vec<_> = jobs.iter().flat_map(|job| [parts(job).0, parts(job).1]).collect();
    let form = form_of(stream.device(), &matrices).expect("matrices that one kernel serves");
    let (tiles, mut rounds) = {
        let rows: Vec<_> = jobs.iter().map(|job| (parts(job).0.rows(), is_pair(job))).collect();
        let bits = jobs.iter().map(|job| bits_at_once(&parts(job).0)).max().unwrap_or(8);
        split_work(&rows, columns, bits, stream.device().info().multiprocessors)
    };
    let empty = JobArguments {
        matrix: parts(&jobs[0]).0,
        second: parts(&jobs[0]).0,
        out: 0,
        first_block: 0,
        kind: JobKind::Store as u32,
    };
    let mut arguments = StepLinearArguments {
        source: input.source(tokens, columns),
        taps: 0,
        tail: 0,
        sequences: 0,
        tail_stride: 0,
        ring: 0,
        positions: 0,
        lags: 0,
        ring_stride: 0,
        ring_row: 0,
        padding: 0,
        kernel: 0,
        jobs: jobs.len() as u32,
        tiles_shift: tiles.trailing_zeros(),
        rounds: rounds as u32,
        tokens: tokens as u32,
        per_pass: 1,
        job: [empty; STEP_JOBS],
    };
    let usual = |job: &StepJob| matches!(parts(job).0.bits, 4 | 8);
    let blocks_of = |rounds| -> usize {
        let blocks = |job| linear_blocks(parts(job).0.rows(), is_pair(job), tiles, rounds);
        jobs.iter().map(blocks).sum()
    };
    let several = {
        let matrices: Vec<_> = jobs.iter().map(|job| parts(job).0).collect();
        let work = several::Work { tokens, form, columns, rounds, blocks: &blocks_of };
        several::linear(stream.device(), &work, input, &matrices)
    };
    let (kernel, passes, shared) = match several {
        Some((several, turns)) => {
            arguments.per_pass = several.passes.tokens as u32;
            rounds = turns;
            (several.kernel, several.passes.count, several.shared)
        }
        None => {
            let kernel = match (form, jobs.iter().all(usual)) {
                (StepForm::Blocks, _) => BlockSet::of(&matrices).kernel(LINEAR_OF_BLOCKS),
                (StepForm::Planes, _) => Kernel::StepLinearPlanes,
                (StepForm::Affine, true) => Kernel::StepLinear,
                (StepForm::Affine, false) => Kernel::StepLinearAny,
            };
            (kernel, tokens, staged_bytes(form, columns))
        }
    };
    arguments.rounds = rounds as u32;
    let mut blocks = 0;
    for (place, job) in arguments.job.iter_mut().zip(jobs) {
        let (matrix, second, out, kind) = parts(job);
        assert_eq!(matrix.columns(), columns, "products share their input");
        expect("output of a product", out.len(), tokens * matrix.rows());
        if let StepJob::SwiGlu(first, second, _) = job {
            assert!(step_serves_pair(stream.device(), first, second), "gate and up have one shape");
        }
        if let StepJob::Convolve(_, _, convolution) = job {
            let kernel = convolution.weight.len() / matrix.rows();
            assert!(kernel >= 2, "a convolution of two taps or more");
            expect(
                "tail of the convolution",
                convolution.tails.len(),
                (kernel - 1) * matrix.rows(),
            );
            expect("sequences of tokens", convolution.sequences.len(), tokens);
            arguments.taps = convolution.weight.address;
            arguments.tail = convolution.tails.address;
            arguments.sequences = convolution.sequences.address;
            arguments.tail_stride = convolution.stride as u64;
            arguments.kernel = kernel as u32;
            if let Some((ring, positions, lags)) = convolution.rounds {
                assert_eq!(tokens, 1, "runs of several tokens are convolved apart");
                expect("positions of tokens", positions.len(), tokens);
                expect("lags of runs", lags.len(), tokens);
                arguments.ring = ring.values.address;
                arguments.positions = positions.address;
                arguments.lags = lags.address;
                arguments.ring_stride = ring.stride as u64;
                arguments.ring_row = ring.row as u32;
            }
        }
        if let StepJob::Inject(_, streams, weights) = job {
            let count = weights.len() / tokens;
            assert!(
                jobs.len() == 1 && count <= super::STREAMS_LIMIT,
                "one product, streams served"
            );
            expect("streams", streams.len(), tokens * count * matrix.rows());
            arguments.taps = weights.address;
            arguments.kernel = count as u32;
        }
        let first_block = blocks as u32;
        let kind = kind as u32;
        *place = JobArguments { matrix, second, out: out.address, first_block, kind };
        blocks += linear_blocks(matrix.rows(), is_pair(job), tiles, rounds);
    }
    // SAFETY: the structure is the kernel's; lengths were checked above, sequences by the caller's batch.
    unsafe { stream.launch_overlapping(kernel, (blocks, passes, 1), THREADS, shared, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct HeadsArguments {
    query: u64,
    key: u64,
    value: u64,
    query_norm: u64,
    key_norm: u64,
    frequencies: u64,
    out: u64,
    cache_keys: u64,
    cache_values: u64,
    positions: u64,
    places: u64,
    sequences: u64,
    query_heads: u32,
    key_value_heads: u32,
    dim: u32,
    rotary: u32,
    context: u32,
    query_stride: u32,
    epsilon: f32,
    kv_type: u32,
    magnitude: f32,
    norm_values: u32,
}

/// Where [`attention_heads`] reads and writes; one row per token.
#[derive(Clone, Copy)]
pub struct HeadsStep {
    /// As projected: `[query_heads, 2, dim]` with an output gate, which is left alone, else `[query_heads, dim]`.
    pub projected: Span<f32>,
    /// Whether there is a gate.
    pub gated: bool,
    /// `[key_value_heads, dim]`
    pub keys: Span<f32>,
    /// `[key_value_heads, dim]`; `keys` where these, as projected, are the values.
    pub values: Span<f32>,
    /// Whether each head of the values is normed, without a weight.
    pub norm_values: bool,
    /// Positions of tokens in their sequences, by which heads turn.
    pub positions: Span<u32>,
    /// `[dim]`
    pub query_norm: Span<f32>,
    /// `[dim]`
    pub key_norm: Span<f32>,
    /// Behind the norm.
    pub rotation: Rotation,
    /// Added to the mean square.
    pub epsilon: f32,
    /// `[query_heads, dim]`
    pub queries: Span<f32>,
}

/// Norm and rotation of query and key heads; keys and values go to the cache, where `places` says.
///
/// # Errors
/// The device failed.
pub fn attention_heads(
    stream: &Stream,
    shape: &super::AttentionShape,
    places: &TokenPlaces,
    cache: &KeyValueCache,
    step: &HeadsStep,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let (queries, keys) = (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
    let stride = if step.gated { 2 * shape.dim } else { shape.dim };
    expect("projected queries", step.projected.len(), tokens * shape.query_heads * stride);
    expect("queries", step.queries.len(), tokens * queries);
    expect("keys", step.keys.len(), tokens * keys);
    expect("values", step.values.len(), tokens * keys);
    expect("norm of queries", step.query_norm.len(), shape.dim);
    expect("norm of keys", step.key_norm.len(), shape.dim);
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("positions of tokens", step.positions.len(), tokens);
    assert!(2 * step.rotation.frequencies.len() <= shape.dim, "rotated values within a head");
    let arguments = HeadsArguments {
        query: step.projected.address,
        key: step.keys.address,
        value: step.values.address,
        query_norm: step.query_norm.address,
        key_norm: step.key_norm.address,
        frequencies: step.rotation.frequencies.address,
        out: step.queries.address,
        cache_keys: cache.keys.address,
        cache_values: cache.values.address,
        positions: step.positions.address,
        places: places.positions.address,
        sequences: places.sequences.address,
        query_heads: shape.query_heads as u32,
        key_value_heads: shape.key_value_heads as u32,
        dim: shape.dim as u32,
        rotary: 2 * step.rotation.frequencies.len() as u32,
        context: cache.context as u32,
        query_stride: stride as u32,
        epsilon: step.epsilon,
        kv_type: super::attention::cache_type(cache.kv_type),
        magnitude: step.rotation.magnitude,
        norm_values: u32::from(step.norm_values),
    };
    let grid = (shape.query_heads + shape.key_value_heads, tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above, positions and sequences by the caller's
    // batch.
    unsafe {
        stream.launch_overlapping(Kernel::AttentionHeads, grid, 128, shape.dim * 4, &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StepExpertArguments {
    source: Source,
    chosen: u64,
    weights: u64,
    addresses: u64,
    answers: u64,
    status: u64,
    inner: u64,
    shared_inner: u64,
    shared_gate: u64,
    out: u64,
    copies: u64,
    experts: ExpertShapes,
    down: Matrix,
    ended: EndedArguments,
    k: u32,
    first_key: u32,
    rounds: u32,
    tiles_shift: u32,
    tokens: u32,
    per_pass: u32,
}

/// The second half of a shared expert for [`step_experts`]; its first half is a job of [`step_linear`].
#[derive(Clone, Copy)]
pub struct StepShared {
    /// `[hidden, shared]`
    pub down: Matrix,
    /// Its weight before the sigmoid, `[tokens]`.
    pub factor: Span<f32>,
    /// SwiGLU of its gate and up, `[tokens, shared]`.
    pub inner: Span<f32>,
}

/// What both halves of the experts are told, and how their rows are shared out.
fn expert_arguments(
    device: &Device,
    tokens: usize,
    input: &StepInput,
    step: &ExpertStep,
    shapes: &ExpertShapes,
    shared: Option<&StepShared>,
) -> (StepExpertArguments, ExpertSplit, StepForm) {
    let (hidden, inner, k) = (shapes.gate.columns(), shapes.inner(), step.k);
    let down = shared.map(|shared| &shared.down);
    let served = step_serves_experts(device, shapes, down);
    assert!(k <= TOP_K_LIMIT && served, "experts served");
    let form = form_of(device, [&shapes.gate]).expect("experts served");
    expect("output of the experts", step.out.len(), tokens * hidden);
    expect("inner values", step.inner.len(), tokens * k * inner);
    expect("words of status", step.status.len(), super::STATUS_WORDS);
    for length in [step.chosen.len(), step.weights.len(), step.addresses.len()] {
        expect("choices", length, tokens * k);
    }
    let width = shared.map_or(0, |shared| shared.down.columns());
    if let Some(shared) = shared {
        expect("factors of the shared expert", shared.factor.len(), tokens);
        expect("inner values of the shared expert", shared.inner.len(), tokens * width);
    }
    let multiprocessors = device.info().multiprocessors;
    let split = ExpertSplit::new(form, inner, hidden, k, tokens, multiprocessors);
    let arguments = StepExpertArguments {
        source: input.source(tokens, hidden),
        chosen: step.chosen.address,
        weights: step.weights.address,
        addresses: step.addresses.address,
        answers: step.answers.address,
        status: step.status.address,
        inner: step.inner.address,
        shared_inner: shared.map_or(0, |shared| shared.inner.address),
        shared_gate: shared.map_or(0, |shared| shared.factor.address),
        out: step.out.address,
        copies: step.copies.map_or(0, |span| span.address),
        experts: *shapes,
        down: shared.map_or(Matrix { rows: 0, ..shapes.down }, |shared| shared.down),
        ended: EndedArguments::new(step.ended.as_ref()),
        k: k as u32,
        first_key: step.first_key,
        rounds: split.rounds as u32,
        tiles_shift: split.tiles.trailing_zeros(),
        tokens: tokens as u32,
        per_pass: 1,
    };
    (arguments, split, form)
}

/// As [`super::experts`], of the stream `input`, which must not have changed since the kernel before routing. With
/// `routing`, which [`step_serves_routing`], the choice is made here as well, after the kernel of the router.
///
/// # Errors
/// The device failed.
pub fn step_experts(
    stream: &Stream,
    tokens: usize,
    input: &StepInput,
    step: &ExpertStep,
    shapes: &ExpertShapes,
    shared: Option<&StepShared>,
    routing: Option<&Routing>,
) -> Result<(), CudaError> {
    let (hidden, inner, k) = (shapes.gate.columns(), shapes.inner(), step.k);
    let (mut arguments, split, form) =
        expert_arguments(stream.device(), tokens, input, step, shapes, shared);
    let (inner_blocks, outer_blocks) = split.blocks(inner, hidden);
    let device = stream.device();
    let affine = form == StepForm::Affine;
    let several = affine.then(|| several::inner(device, tokens, input, shapes, split.narrow));
    let (first, first_grid, threads, first_shared) = match several.flatten() {
        Some(several) => {
            arguments.per_pass = several.passes.tokens as u32;
            let blocks = device.info().multiprocessors;
            (several.kernel, (blocks, several.passes.count, 1), THREADS, several.shared)
        }
        None => {
            let kernel = match (form, split.narrow) {
                (StepForm::Blocks, _) => BlockSet::of([&shapes.gate]).kernel(INNER_OF_BLOCKS),
                (StepForm::Planes, _) => Kernel::StepInnerPlanes,
                (StepForm::Affine, true) => Kernel::StepInnerNarrow,
                (StepForm::Affine, false) => Kernel::StepInner,
            };
            (kernel, (inner_blocks, k, tokens), INNER_THREADS, staged_bytes(form, hidden))
        }
    };
    let width = shared.map_or(0, |shared| shared.down.columns());
    let columns = k * inner.next_multiple_of(UNIT) + width;
    // Blocks have no passes in the first half.
    let mut last = arguments;
    let (second, second_grid, second_shared) =
        match several::outer(device, tokens, shapes, shared, (form, columns)) {
            Some(several) => {
                last.per_pass = several.passes.tokens as u32;
                (several.kernel, (outer_blocks, several.passes.count, 1), several.shared)
            }
            None => {
                let downs = [&shapes.down].into_iter().chain(shared.map(|shared| &shared.down));
                let kernel = match form {
                    StepForm::Affine => Kernel::StepOuter,
                    StepForm::Blocks => BlockSet::of(downs).kernel(OUTER_OF_BLOCKS),
                    StepForm::Planes => Kernel::StepOuterPlanes,
                };
                (kernel, (outer_blocks, tokens, 1), staged_bytes(form, columns))
            }
        };
    let route = routing.map(|routing| {
        assert!(step_serves_routing(device, shapes, routing), "routing served");
        route_arguments(tokens, routing)
    });
    // SAFETY: the structures are the kernels'; lengths were checked above; records lie where the table says.
    unsafe {
        match route {
            Some(route) => {
                let (first, both) = (routed(first), StepRoutedArguments { step: arguments, route });
                stream.launch_overlapping(first, first_grid, threads, first_shared, &both)?;
            }
            None => {
                stream.launch_overlapping(first, first_grid, threads, first_shared, &arguments)?
            }
        }
        stream.launch_overlapping(second, second_grid, THREADS, second_shared, &last)
    }
}

//! The CUDA backend: everything a step needs in device memory, the host only for what is missing there.
//!
//! Batches of a few tokens are *steps*: exact f32 products, experts through the address table, and, when every
//! token is a sequence's next one, a graph that is captured at the first such step of its size and replayed from
//! then on: only tokens and positions change, in pinned memory. Larger batches are *chunks*: tensor cores, and
//! experts grouped over all tokens. The mixture of the last layer of a step launches the whole graph; what it
//! could not find is served while it runs ([`misses`]), and its end is awaited when logits are asked for or the
//! next batch begins. Between steps the table changes ([`placement`]).
//!
//! Operations cannot fail; a failed launch is remembered and reported by the next operation that can.

mod buffers;
mod chunk;
mod experts;
mod fused;
mod misses;
mod placement;
mod requirements;
mod router;
mod snapshots;
mod speed;
mod step;
mod weights;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use cuda::launch::{self, DeltaShape, DeltaStep, TokenPlaces};
use cuda::{Device, DeviceBuffer, Matrix, Span, Stream};
use store::LayerId;
use store::cache::StoreCounters;
use store::format::ProjectionShape;
use store::trunk::LoadMode;

use self::buffers::{Buffers, Floats, Sizes};
use self::experts::Experts;
pub use self::experts::{ExpertMemory, LoadProgress};
pub use self::requirements::CudaRequirements;
pub use self::speed::{Bandwidths, bandwidths};
use self::step::Steps;
use self::weights::{check_limits, inverse_frequencies, load_trunk};
use super::pool::Pool;
use super::{Backend, Cancel, Register, Room, Run, SequenceId, Snapshot};
use crate::EngineError;
use crate::model::config::{Mixer, ModelConfig};
use crate::model::mixture::Mixture;
use crate::routing::Routing;
use crate::weights::{Catalog, MatrixId, VectorId};

pub use cuda::{CudaError, DeviceInfo};

/// Most tokens of a step.
pub(super) const STEP_TOKENS: usize = 8;
/// Alignment of weights in device memory.
const ALIGNMENT: usize = 256;
/// Address lists of prompts' waves in pinned memory: as many may be on their way to the device.
const WAVES: usize = 8;

/// Sizes of a CUDA backend.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Most tokens of one batch.
    pub batch_tokens: usize,
    /// Most tokens of one batch whose logits are asked for at once.
    pub logit_rows: usize,
    /// Most sequences at a time.
    pub sequences: usize,
    /// Most recurrent states kept by snapshots, in the process's memory.
    pub snapshots: usize,
    /// Most tokens of one sequence.
    pub context: usize,
    /// Experts per token; the trained number unless the user asked for fewer.
    pub top_k: usize,
}

/// Opens a device only to say what it is.
///
/// # Errors
/// What is missing.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, EngineError> {
    Ok(Device::open(ordinal)?.info().clone())
}

/// What is being done with the operations of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Launched as they come.
    Eager,
    /// Recorded; launched at the end.
    Capture,
    /// Known already; launched at the end.
    Replay,
}

/// Tokens of one sequence in the batch.
#[derive(Clone, Copy, Debug)]
struct Part {
    sequence: SequenceId,
    first: usize,
    tokens: usize,
}

/// Runs models on an NVIDIA GPU.
pub struct CudaBackend {
    config: ModelConfig,
    options: CudaOptions,
    sizes: Sizes,
    matrices: Vec<Matrix>,
    vectors: Vec<Span<f32>>,
    frequencies: Span<f32>,
    buffers: Buffers,
    experts: Experts,
    steps: Steps,
    routing: Routing,
    /// Recurrent states of snapshots.
    snapshots: Pool<Vec<f32>>,
    stream: Stream,
    /// Tokens of each sequence; `None` while it does not exist.
    lengths: Vec<Option<usize>>,
    parts: Vec<Part>,
    tokens: usize,
    /// True when every part is one token.
    single: bool,
    mode: Mode,
    failure: Option<CudaError>,
    /// For each layer, its index among those of its kind.
    index: Vec<usize>,
    host_logits: Vec<f32>,
    /// Address list of the next wave.
    wave_turn: Cell<usize>,
    /// Keeps the weights' memory.
    _trunk: DeviceBuffer,
    _vectors: Floats,
}

impl CudaBackend {
    /// Loads the dense weights into device memory and allocates everything that a batch needs; experts as
    /// `memory` says.
    ///
    /// # Errors
    /// A device that cannot be used or is too small, shapes that the kernels do not serve, a failed read.
    pub fn new(
        config: ModelConfig,
        catalog: &Catalog<'_>,
        mode: LoadMode,
        memory: ExpertMemory,
        expert_shapes: &[[ProjectionShape; 3]],
        routing: Routing,
        ordinal: usize,
        options: CudaOptions,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, EngineError> {
        check_limits(&config, &options)?;
        let device = Device::open(ordinal)?;
        let stream = Stream::new(&device)?;
        let sizes = Sizes::new(&config, &options);
        let (trunk, matrices, decoded) = load_trunk(&device, catalog, mode, progress)?;
        let inverse = inverse_frequencies(config.attention.rotary_dim, config.attention.rope_theta);
        let values: usize = decoded.iter().map(|v| padded(v.len() * 4) / 4).sum();
        let store = Floats::new(&device, values + inverse.len())?;
        let mut vectors = Vec::with_capacity(decoded.len());
        let mut at = 0;
        for vector in &decoded {
            store.write(at, vector)?;
            vectors.push(store.part(at, vector.len()));
            at += padded(vector.len() * 4) / 4;
        }
        store.write(at, &inverse)?;
        let frequencies = store.part(at, inverse.len());
        let buffers = Buffers::new(&device, &sizes, routing.replaces())?;
        let experts = Experts::load(&device, &sizes, &buffers, expert_shapes, memory, &options)?;
        let steps = Steps::new(&device, &sizes)?;
        let (mut attention, mut delta) = (0, 0);
        let index = config.layers.iter().map(|mixer| {
            let counter = match mixer {
                Mixer::Attention => &mut attention,
                Mixer::DeltaNet => &mut delta,
            };
            *counter += 1;
            *counter - 1
        });
        Ok(Self {
            index: index.collect(),
            lengths: vec![None; options.sequences],
            snapshots: snapshots::pool(&sizes, &options),
            host_logits: vec![0.0; sizes.logit_rows * sizes.vocabulary],
            wave_turn: Cell::new(0),
            parts: Vec::with_capacity(options.sequences),
            tokens: 0,
            single: false,
            mode: Mode::Eager,
            failure: None,
            config,
            options,
            sizes,
            matrices,
            vectors,
            frequencies,
            buffers,
            experts,
            steps,
            routing,
            stream,
            _trunk: trunk,
            _vectors: store,
        })
    }

    fn matrix(&self, id: MatrixId) -> Matrix {
        self.matrices[id.index()]
    }

    fn vector(&self, id: VectorId) -> Span<f32> {
        self.vectors[id.index()]
    }

    /// The rows of the batch in a register.
    fn register(&self, register: Register) -> Span<f32> {
        let all = &self.buffers.registers[register as usize];
        all.part(0, self.sizes.registers[register as usize] / self.sizes.tokens * self.tokens)
    }

    /// Words of the batch's inputs: tokens, positions and sequences in turn.
    fn input(&self, which: usize, first: usize, tokens: usize) -> Span<u32> {
        self.buffers.inputs.span((which * self.tokens + first) * 4, tokens)
    }

    /// The runs of the batch: all tokens at once when each is its own run.
    fn places(&self) -> Vec<(usize, TokenPlaces)> {
        let places = |first, tokens, single| TokenPlaces {
            positions: self.input(1, first, tokens),
            sequences: self.input(2, first, tokens),
            single,
        };
        if self.single {
            return vec![(0, places(0, self.tokens, true))];
        }
        self.parts.iter().map(|part| (part.first, places(part.first, part.tokens, false))).collect()
    }

    /// Products of one input, as the size of the batch asks for.
    fn products(
        &self,
        x: Span<f32>,
        jobs: &[(Matrix, Span<f32>)],
        add: bool,
    ) -> Result<(), CudaError> {
        if self.tokens <= STEP_TOKENS {
            return launch::linear(&self.stream, x, self.tokens, jobs, add);
        }
        for (matrix, out) in jobs {
            launch::tile_linear(&self.stream, x, self.tokens, *matrix, *out, add)?;
        }
        Ok(())
    }

    /// Waits until nothing is running.
    fn settle(&mut self) -> Result<(), EngineError> {
        self.finish_step()?;
        self.stream.wait()?;
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Bytes rounded up to the alignment of weights.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Backend for CudaBackend {
    fn create_sequence(&mut self) -> Result<SequenceId, EngineError> {
        let Some(free) = self.lengths.iter().position(Option::is_none) else {
            let count = self.lengths.len();
            let found = format!("all {count} sequences of the plan are in use");
            return Err(EngineError::Request(found));
        };
        self.settle()?;
        let (state, tail) = (self.sizes.state, self.sizes.tail);
        let layers = self.sizes.delta_layers;
        self.stream.clear(self.buffers.states.part(free * layers * state, layers * state))?;
        self.stream.clear(self.buffers.tails.part(free * layers * tail, layers * tail))?;
        self.lengths[free] = Some(0);
        Ok(SequenceId(free as u32))
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.lengths[sequence.0 as usize] = None;
    }

    fn sequence_length(&self, sequence: SequenceId) -> usize {
        self.lengths[sequence.0 as usize].unwrap_or(0)
    }

    fn snapshot(
        &mut self,
        sequence: SequenceId,
        _base: Option<&Snapshot>,
    ) -> Result<Snapshot, EngineError> {
        self.take_snapshot(sequence)
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), EngineError> {
        self.return_to(sequence, snapshot)
    }

    fn room(&self) -> Room {
        let states = if self.sizes.delta_layers == 0 { usize::MAX } else { self.snapshots.free() };
        Room { pages: usize::MAX, states }
    }

    /// Steps and chunks do not give the same bits, and keys and values stay in their sequence's place.
    fn cut_tokens(&self) -> usize {
        usize::MAX
    }

    fn begin(&mut self, runs: &[Run<'_>]) -> Result<(), EngineError> {
        self.finish_step()?;
        let total: usize = runs.iter().map(|run| run.tokens.len()).sum();
        super::check_batch(runs, self.options.batch_tokens, self.config.vocabulary)?;
        for run in runs {
            let (length, more) = (self.sequence_length(run.sequence), run.tokens.len());
            if length + more > self.options.context {
                let context = self.options.context;
                let found = format!("{length} + {more} tokens exceed the context of {context}");
                return Err(EngineError::Request(found));
            }
        }
        self.parts.clear();
        self.tokens = total;
        self.single = total <= STEP_TOKENS && runs.iter().all(|run| run.tokens.len() == 1);
        let words = self.buffers.pinned.inputs.words();
        let mut first = 0;
        for run in runs {
            let (position, tokens) = (self.sequence_length(run.sequence), run.tokens.len());
            for (index, &token) in run.tokens.iter().enumerate() {
                let at = first + index;
                words[at].store(token, Ordering::Relaxed);
                words[total + at].store((position + index) as u32, Ordering::Relaxed);
                words[2 * total + at].store(run.sequence.0, Ordering::Release);
            }
            self.parts.push(Part { sequence: run.sequence, first, tokens });
            first += tokens;
        }
        self.begin_step()
    }

    fn commit(&mut self) {
        for part in &self.parts {
            if let Some(length) = &mut self.lengths[part.sequence.0 as usize] {
                *length += part.tokens;
            }
        }
    }

    fn embed(&mut self, table: MatrixId) {
        self.run(|this| {
            let count = 3 * this.tokens;
            let from = this.buffers.pinned.inputs.span::<u32>(0, count);
            this.stream.copy(from, this.buffers.inputs.span(0, count))?;
            let tokens = this.input(0, 0, this.tokens);
            launch::embed(
                &this.stream,
                this.matrix(table),
                tokens,
                this.register(Register::Residual),
            )
        });
    }

    fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register) {
        self.run(|this| {
            let (x, out) = (this.register(from), this.register(to));
            let epsilon = this.config.rms_epsilon;
            launch::rms_norm(&this.stream, this.tokens, x, None, this.vector(weight), epsilon, out)
        });
    }

    fn linear(&mut self, from: Register, products: &[(MatrixId, Register)]) {
        self.run(|this| {
            let job =
                |&(matrix, to): &(MatrixId, Register)| (this.matrix(matrix), this.register(to));
            let jobs: Vec<_> = products.iter().map(job).collect();
            this.products(this.register(from), &jobs, false)
        });
    }

    fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register) {
        self.run(|this| {
            let job = (this.matrix(matrix), this.register(to));
            this.products(this.register(from), &[job], true)
        });
    }

    fn split_query_gate(&mut self) {
        self.run(|this| {
            let attention = &this.config.attention;
            let heads = this.tokens * attention.query_heads;
            let [both, query, gate] =
                [Register::QueryGate, Register::Query, Register::Gate].map(|r| this.register(r));
            launch::split_query_gate(&this.stream, heads, attention.head_dim, both, query, gate)
        });
    }

    fn norm_and_rotate(&mut self, heads: Register, weight: VectorId) {
        self.run(|this| {
            let count = match heads {
                Register::Query => this.config.attention.query_heads,
                _ => this.config.attention.key_value_heads,
            };
            let positions = this.input(1, 0, this.tokens);
            let (x, weight) = (this.register(heads), this.vector(weight));
            let epsilon = this.config.rms_epsilon;
            let frequencies = this.frequencies;
            launch::norm_and_rotate(&this.stream, count, x, weight, epsilon, frequencies, positions)
        });
    }

    fn attend(&mut self, layer: LayerId) {
        self.run(|this| {
            let shape = &this.sizes.attention;
            let cache = this.cache(layer);
            let (queries, keys) =
                (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
            for (first, places) in this.places() {
                let count = places.positions.len();
                let rows = |register, width: usize| {
                    this.buffers.registers[register as usize].part(first * width, count * width)
                };
                let (new_keys, values) = (rows(Register::Key, keys), rows(Register::Value, keys));
                launch::append(&this.stream, shape, &places, &cache, new_keys, values)?;
                let (query, out) =
                    (rows(Register::Query, queries), rows(Register::Context, queries));
                let scratch = this.buffers.attention.all();
                launch::attend(&this.stream, shape, &places, &cache, query, out, scratch)?;
            }
            Ok(())
        });
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) {
        self.run(|this| {
            let gate = this.register(gate);
            launch::sigmoid_gate(&this.stream, gate.len(), this.register(x), gate)
        });
    }

    fn convolve(&mut self, layer: LayerId, weight: VectorId) {
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let (channels, tail) = (delta.channels(), this.sizes.tail);
            let stride = this.sizes.delta_layers * tail;
            let start = this.index[layer.index()] * tail;
            let tails = this.buffers.tails.part(start, this.sizes.sequences * stride - start);
            for (first, places) in this.places() {
                let count = places.positions.len() * channels;
                let rows = |register| {
                    this.buffers.registers[register as usize].part(first * channels, count)
                };
                let (x, out) = (rows(Register::Mixed), rows(Register::Convolved));
                let weight = this.vector(weight);
                launch::convolve(&this.stream, channels, &places, weight, x, tails, stride, out)?;
            }
            Ok(())
        });
    }

    fn delta_rule(&mut self, layer: LayerId, decay_rate: VectorId, decay_bias: VectorId) {
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let shape = DeltaShape {
                key_heads: delta.key_heads,
                value_heads: delta.value_heads,
                key_dim: delta.key_dim,
                value_dim: delta.value_dim,
            };
            let stride = this.sizes.delta_layers * this.sizes.state;
            let start = this.index[layer.index()] * this.sizes.state;
            for (first, places) in this.places() {
                let count = places.positions.len();
                let rows = |register, width: usize| {
                    this.buffers.registers[register as usize].part(first * width, count * width)
                };
                let step = DeltaStep {
                    mixed: rows(Register::Convolved, delta.channels()),
                    beta: rows(Register::Beta, delta.value_heads),
                    decay: rows(Register::Decay, delta.value_heads),
                    rate: this.vector(decay_rate),
                    bias: this.vector(decay_bias),
                    states: this.buffers.states.part(start, this.sizes.sequences * stride - start),
                    stride,
                    out: rows(Register::Context, delta.value_width()),
                };
                launch::delta_rule(&this.stream, &shape, &places, &step)?;
            }
            Ok(())
        });
    }

    fn gated_norm(&mut self, weight: VectorId) {
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let heads = this.tokens * delta.value_heads;
            let (x, z) = (this.register(Register::Context), this.register(Register::Z));
            let epsilon = this.config.rms_epsilon;
            launch::gated_norm(&this.stream, heads, x, z, this.vector(weight), epsilon)
        });
    }

    fn mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        if self.tokens <= STEP_TOKENS {
            self.step_mixture(layer, None, mixture)
        } else {
            self.chunk_mixture(layer, mixture, cancel)
        }
    }

    fn norm_linear(&mut self, norm: VectorId, products: &[(MatrixId, Register)]) {
        self.fused_norm_linear(norm, products);
    }

    fn delta_inputs(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixed: MatrixId,
        others: &[(MatrixId, Register)],
        convolution: VectorId,
    ) {
        self.fused_delta_inputs(layer, norm, mixed, others, convolution);
    }

    fn delta_output(&mut self, norm: VectorId, matrix: MatrixId) {
        self.fused_delta_output(norm, matrix);
    }

    fn attend_heads(
        &mut self,
        layer: LayerId,
        gated: bool,
        query_norm: VectorId,
        key_norm: VectorId,
    ) {
        self.fused_attend_heads(layer, gated, query_norm, key_norm);
    }

    fn attention_output(&mut self, gated: bool, matrix: MatrixId) {
        self.fused_attention_output(gated, matrix);
    }

    fn norm_mixture(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        if self.fuses_mixture(layer, mixture) {
            return self.step_mixture(layer, Some(norm), mixture);
        }
        self.rms_norm(Register::Residual, norm, Register::Normed);
        self.mixture(layer, mixture, cancel)
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: VectorId,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        super::check_logit_rows(tokens.len(), self.sizes.logit_rows)?;
        let place = self.step_head(tokens, norm, head)?;
        let vocabulary = self.sizes.vocabulary;
        let out = &mut self.host_logits[..tokens.len() * vocabulary];
        self.buffers.logits.read(place * vocabulary, out)?;
        Ok(out)
    }

    fn most_likely(
        &mut self,
        token: usize,
        norm: VectorId,
        head: MatrixId,
    ) -> Option<Result<u32, EngineError>> {
        Some(self.step_most_likely(token, norm, head))
    }

    fn counters(&self) -> StoreCounters {
        self.experts.counters()
    }
}

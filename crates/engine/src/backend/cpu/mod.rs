//! The CPU backend: activations in plain memory, products by the `kernels` crate, experts from the store.
//!
//! Everything large is allocated in [`CpuBackend::new`] from the limits given there; a batch then runs
//! without growing anything but key-value pages, and those only in [`KvGrowth::Grow`].

mod ahead;
mod attention;
mod compressed;
mod compressed_state;
mod dense;
mod latent;
mod mixture;
mod registers;
mod requirements;
mod shared;
mod state;
mod streams;
mod tiled;

use std::io::Read;
use std::sync::Arc;

pub use kernels::KvType;
use kernels::{Activations, Compute, DeltaForm, DeltaInputs, DeltaShape, MatmulJob, Tokens};
use store::cache::{ExpertStore, StoreCounters};
use store::format::ProjectionShape;
use store::{ExpertId, LayerId};

use self::compressed::CompressedScratch;
use self::dense::DenseScratch;
use self::latent::LatentScratch;
use self::mixture::MixtureScratch;
use self::registers::Registers;
pub use self::requirements::Requirements;
use self::state::HostSequences;
pub use self::state::KvGrowth;
use self::streams::StreamScratch;
use self::tiled::Tiled;
use super::{
    Backend, Cancel, PAGE_TOKENS, Purpose, Register, Room, Run, SequenceId, Snapshot, Suspended,
};
use crate::EngineError;
use crate::model::compressed_attention::CompressedAttention;
use crate::model::config::{DeltaConfig, HeadOrder, ModelConfig};
use crate::model::dense::Dense;
use crate::model::hyper_connections::Site;
use crate::model::latent::LatentAttention;
use crate::model::mixture::Mixture;
use crate::routing::Routing;
use crate::sequences::{Part, Span};
use crate::weights::{MatrixId, TableId, VectorId, Weights};

/// Sizes and choices of a CPU backend.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Most tokens of one batch.
    pub batch_tokens: usize,
    /// Most tokens of one batch whose logits are asked for at once.
    pub logit_rows: usize,
    /// Most sequences at a time.
    pub sequences: usize,
    /// Most tokens of one sequence.
    pub context: usize,
    /// Most recurrent states kept by snapshots, beside those of the sequences.
    pub snapshots: usize,
    /// When key-value pages are allocated.
    pub kv_growth: KvGrowth,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// How the delta rule runs over several tokens.
    pub delta_form: DeltaForm,
    /// Experts per token; the trained number unless the user asked for fewer.
    pub top_k: usize,
}

/// Runs models on the CPU.
pub struct CpuBackend {
    config: ModelConfig,
    options: CpuOptions,
    weights: Weights,
    experts: Arc<ExpertStore>,
    /// By layer; index by projection. `None` for layers without experts.
    expert_shapes: Vec<Option<[ProjectionShape; 3]>>,
    compute: Compute,
    sequences: HostSequences,
    registers: Registers,
    /// Where value heads are in tiled order.
    tiled: Option<Tiled>,
    /// The input of the product in progress, prepared for its encodings.
    prepared: Activations,
    scratch: MixtureScratch,
    /// Where there are several residual streams.
    streams: Option<StreamScratch>,
    /// Where there is compressed attention.
    compressed: Option<CompressedScratch>,
    /// Where there are layers without experts.
    dense: Option<DenseScratch>,
    /// Where there is latent attention.
    latent: Option<LatentScratch>,
    routing: Routing,
    /// Output of a product that is added to a register, `[batch_tokens, hidden]`.
    projected: Vec<f32>,
    logits: Vec<f32>,
    inverse_frequencies: Vec<f32>,
    /// All expert ids, for reading a whole layer ahead.
    every_expert: Vec<ExpertId>,
    /// Layers of the model whose experts tables decide.
    given_layers: Vec<(LayerId, TableId)>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span>,
}

impl CpuBackend {
    /// Allocates everything that a batch needs.
    ///
    /// # Errors
    /// Limits that contradict the model.
    pub fn new(
        config: ModelConfig,
        weights: Weights,
        experts: Arc<ExpertStore>,
        expert_shapes: Vec<Option<[ProjectionShape; 3]>>,
        compute: Compute,
        options: CpuOptions,
    ) -> Result<Self, EngineError> {
        options.check(&config)?;
        let tokens = options.batch_tokens;
        Ok(Self {
            sequences: HostSequences::new(&config, &options),
            registers: Registers::new(&config, tokens),
            tiled: tiled_shape(&config).as_ref().map(Tiled::new),
            prepared: Activations::with_capacity(tokens, Registers::widest_input(&config)),
            scratch: MixtureScratch::new(&config, &options),
            streams: StreamScratch::new(&config, &options),
            compressed: CompressedScratch::new(&config, &options),
            dense: DenseScratch::new(&config, &options),
            latent: LatentScratch::new(&config, &options),
            routing: Routing::default(),
            projected: vec![0.0; tokens * config.hidden],
            logits: vec![0.0; options.logit_rows * config.vocabulary],
            inverse_frequencies: config.attention.rope.inverse_frequencies(),
            every_expert: (0..config.moe.experts as u16).map(ExpertId).collect(),
            given_layers: Vec::new(),
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            spans: Vec::with_capacity(options.sequences),
            config,
            options,
            weights,
            experts,
            expert_shapes,
            compute,
        })
    }

    /// Replaces or records the router's choices from now on.
    pub fn set_routing(&mut self, routing: Routing) {
        self.routing = routing;
    }

    /// Sets the batch to the runs that the sequences have begun, which have these tokens.
    fn set_batch(&mut self, tokens: impl Iterator<Item = u32>) {
        self.tokens.clear();
        self.tokens.extend(tokens);
        self.spans.clear();
        self.spans.extend_from_slice(self.sequences.spans());
        self.positions.clear();
        for span in &self.spans {
            self.positions.extend((span.position..span.end()).map(|position| position as u32));
        }
        self.registers.resize(self.tokens.len());
    }

    fn delta_config(&self) -> &DeltaConfig {
        self.config.delta.as_ref().expect("only called for families with delta layers")
    }
}

/// The shape of delta layers with value heads in tiled order; with one for each key head both orders are the same.
fn tiled_shape(config: &ModelConfig) -> Option<DeltaShape> {
    let tiled = |delta: &&DeltaConfig| {
        delta.order == HeadOrder::Tiled && delta.key_heads != delta.value_heads
    };
    config.delta.as_ref().filter(tiled).map(delta_shape)
}

/// The kernels' view of a delta layer.
fn delta_shape(config: &DeltaConfig) -> DeltaShape {
    DeltaShape {
        key_heads: config.key_heads,
        value_heads: config.value_heads,
        key_dim: config.key_dim,
        value_dim: config.value_dim,
    }
}

impl Backend for CpuBackend {
    fn create_sequence(&mut self) -> Result<SequenceId, EngineError> {
        let (sequences, memory) = self.sequences.split();
        sequences.create(memory)
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(sequence);
    }

    fn sequence_length(&self, sequence: SequenceId) -> usize {
        self.sequences.length(sequence)
    }

    fn snapshot(
        &mut self,
        sequence: SequenceId,
        _base: Option<&Snapshot>,
    ) -> Result<Snapshot, EngineError> {
        let (sequences, memory) = self.sequences.split();
        sequences.snapshot(memory, sequence)
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), EngineError> {
        let (sequences, memory) = self.sequences.split();
        sequences.restore(memory, sequence, snapshot)
    }

    fn room(&self) -> Room {
        self.sequences.room()
    }

    fn batch_pages(&self, tokens: usize) -> usize {
        self.sequences.batch_pages(tokens)
    }

    fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        self.sequences.snapshot_pages(sequence, length)
    }

    fn read_snapshot(&mut self, length: usize, input: &mut dyn Read) -> std::io::Result<Snapshot> {
        self.sequences.read(length, input)
    }

    fn cut_tokens(&self) -> usize {
        match self.options.delta_form {
            _ if self.config.delta.is_none() => 1,
            DeltaForm::Step => 1,
            DeltaForm::Chunked => usize::MAX,
        }
    }

    fn suspend(&mut self) -> Option<Suspended> {
        let residual = self.registers.get(Register::Residual).to_vec();
        Some(self.sequences.suspend(self.tokens.clone(), residual))
    }

    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        let (tokens, residual) = self.sequences.resume(suspended);
        self.set_batch(tokens.into_iter());
        self.registers.get_mut(Register::Residual).copy_from_slice(&residual);
        Ok(())
    }

    fn begin(&mut self, runs: &[Run<'_>], _purpose: Purpose) -> Result<(), EngineError> {
        super::check_batch(runs, self.options.batch_tokens, self.config.vocabulary)?;
        self.sequences.begin(runs)?;
        self.set_batch(runs.iter().flat_map(|run| run.tokens).copied());
        Ok(())
    }

    fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        self.sequences.mark(run)
    }

    fn check_files(&self) -> Result<(), EngineError> {
        self.weights.check()?;
        Ok(self.experts.check_files()?)
    }

    fn commit(&mut self) {
        let (sequences, memory) = self.sequences.split();
        let Ok(()) = sequences.commit(memory, false);
    }

    fn expect_given(&mut self, layers: &[(LayerId, TableId)]) {
        CpuBackend::expect_given(self, layers);
    }

    fn give_up(&mut self, layer: LayerId) {
        self.forget_ahead(layer);
    }

    fn take_marks(&mut self) -> Vec<Snapshot> {
        self.sequences.take_marks()
    }

    fn embed(&mut self, table: MatrixId) {
        let table = self.weights.matrix(table);
        let (hidden, width) = (self.config.hidden, self.registers.width(Register::Residual));
        let residual = self.registers.get_mut(Register::Residual);
        let tokens = &self.tokens;
        self.compute.each_row(residual, width, |index, row| {
            let (first, others) = row.split_at_mut(hidden);
            kernels::format::decode_row(&table, tokens[index] as usize, first);
            others.chunks_exact_mut(hidden).for_each(|other| other.copy_from_slice(first));
        });
    }

    fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register) {
        let (from, to) = self.registers.pair(from, to);
        let weight = self.weights.vector(weight);
        self.compute.rms_norm(from, weight, self.config.rms_epsilon, to);
    }

    fn linear(&mut self, from: Register, products: &[(MatrixId, Register)]) {
        let matrices = products.iter().map(|(matrix, _)| self.weights.matrix(*matrix));
        let matrices: Vec<_> = matrices.collect();
        let uses: Vec<_> = matrices.iter().map(|matrix| matrix.encoding).collect();
        let columns = matrices[0].columns;
        self.compute.prepare(self.registers.get(from), columns, &uses, &mut self.prepared);
        let outputs = self.registers.many(products.iter().map(|(_, register)| *register));
        let (x, tokens) = (&self.prepared, self.tokens.len());
        let jobs = matrices.into_iter().zip(outputs).map(|(matrix, out)| {
            // A register is as wide as any layer needs.
            let out = &mut out[..tokens * matrix.rows];
            MatmulJob { matrix, x, tokens: Tokens::All, out }
        });
        let mut jobs: Vec<_> = jobs.collect();
        self.compute.matmul(&mut jobs);
    }

    fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register) {
        let matrix = self.weights.matrix(matrix);
        let input = &self.registers.get(from)[..self.tokens.len() * matrix.columns];
        self.compute.prepare(input, matrix.columns, &[matrix.encoding], &mut self.prepared);
        let out = &mut self.projected[..self.tokens.len() * matrix.rows];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        let out = &self.projected[..self.tokens.len() * matrix.rows];
        self.compute.add(self.registers.get_mut(to), out);
    }

    fn split_query_gate(&mut self) {
        let dim = self.config.attention.head_dim;
        let (both, query, gate) =
            self.registers.three(Register::QueryGate, Register::Query, Register::Gate);
        for (first, to) in [(0, query), (dim, gate)] {
            self.compute.each_row(to, dim, |head, row| {
                row.copy_from_slice(&both[2 * dim * head + first..][..dim]);
            });
        }
    }

    fn norm_and_rotate(&mut self, heads: Register, weight: VectorId) {
        let x = self.registers.get_mut(heads);
        let weight = self.weights.vector(weight);
        self.compute.rms_norm_in_place(x, weight, self.config.rms_epsilon);
        self.rotate(heads);
    }

    fn rotate(&mut self, heads: Register) {
        let attention = &self.config.attention;
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let (dim, rotated) = (attention.head_dim, attention.rope.dims);
        let x = self.registers.get_mut(heads);
        let frequencies = &self.inverse_frequencies;
        self.compute.rope(x, count, dim, rotated, &self.positions, frequencies);
        let magnitude = attention.rope.magnitude();
        if magnitude != 1.0 {
            for head in x.chunks_exact_mut(dim) {
                head[..rotated].iter_mut().for_each(|value| *value *= magnitude);
            }
        }
    }

    fn add_bias(&mut self, register: Register, bias: VectorId) {
        self.compute.add_to_rows(self.registers.get_mut(register), self.weights.vector(bias));
    }

    fn attend(&mut self, layer: LayerId, sinks: Option<VectorId>) {
        self.run_attend(layer, sinks);
    }

    fn open_streams(&mut self, site: &Site, norm: VectorId) {
        self.run_open_streams(site, norm);
    }

    fn close_streams(&mut self, from: Register) {
        self.run_close_streams(from);
    }

    fn merge_streams(&mut self, site: &Site) -> Result<(), EngineError> {
        self.run_merge_streams(site);
        Ok(())
    }

    fn attend_compressed(&mut self, layer: LayerId, weights: &CompressedAttention) {
        self.run_compressed(layer, weights);
    }

    fn grouped_linear(&mut self, from: Register, matrix: MatrixId, to: Register) {
        self.run_grouped_linear(from, matrix, to);
    }

    fn norm_row(&mut self, register: Register, weight: VectorId) {
        let epsilon = self.latent_epsilon();
        let (x, weight) = (self.registers.get_mut(register), self.weights.vector(weight));
        self.compute.rms_norm_in_place(x, weight, epsilon);
    }

    fn attend_latent(&mut self, layer: LayerId, weights: &LatentAttention) {
        self.run_latent(layer, weights);
    }

    fn norm_dense(&mut self, norm: VectorId, dense: &Dense) {
        self.run_dense(norm, dense);
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) {
        let (gate, x) = self.registers.pair(gate, x);
        self.compute.scale_by_sigmoid(&mut x[..gate.len()], gate);
    }

    fn convolve(&mut self, layer: LayerId, weight: VectorId) {
        let shape = self.config.delta.as_ref().expect("a delta layer has a shape");
        let (channels, kernel) = (shape.channels(), shape.convolution_kernel);
        let weight = self.weights.vector(weight);
        for (run, span) in self.spans.iter().enumerate() {
            let tail = self.sequences.convolution_tail(span.sequence, layer);
            let rows = span.first * channels..(span.first + span.tokens) * channels;
            let (mixed, out) = self.registers.pair(Register::Mixed, Register::Convolved);
            let (x, out) = (&mixed[rows.clone()], &mut out[rows]);
            self.compute.causal_convolution(tail, x, weight, kernel, out);
            self.sequences.keep(layer, Part::Tail, run);
        }
    }

    fn delta_rule(&mut self, layer: LayerId, decay_rate: VectorId, decay_bias: VectorId) {
        let shape = delta_shape(self.delta_config());
        let (decay_rate, decay_bias) =
            (self.weights.vector(decay_rate), self.weights.vector(decay_bias));
        let config = self.config.delta.as_ref().expect("a delta layer has a shape");
        for (run, span) in self.spans.iter().enumerate() {
            let rows = |width: usize| span.first * width..(span.first + span.tokens) * width;
            let state = self.sequences.recurrent_state(span.sequence, layer);
            let (convolved, beta, decay, context) = self.registers.four(
                Register::Convolved,
                Register::Beta,
                Register::Decay,
                Register::Context,
            );
            let channels = config.channels();
            let convolved = &convolved[rows(channels)];
            let keys = config.key_heads * config.key_dim;
            let inputs = DeltaInputs {
                q: convolved,
                k: &convolved[keys..],
                v: &convolved[2 * keys..],
                qk_stride: channels,
                v_stride: channels,
                a: &decay[rows(config.value_heads)],
                b: &beta[rows(config.value_heads)],
                decay: decay_rate,
                dt_bias: decay_bias,
            };
            let out = &mut context[rows(config.value_width())];
            let form = self.options.delta_form;
            match &mut self.tiled {
                Some(tiled) => tiled.delta_rule(&self.compute, state, &inputs, form, out),
                None => self.compute.delta_rule(&shape, state, &inputs, form, out),
            }
            self.sequences.keep(layer, Part::State, run);
        }
    }

    fn gated_norm(&mut self, weight: VectorId) {
        let weight = self.weights.vector(weight);
        let (z, context) = self.registers.pair(Register::Z, Register::Context);
        let context = &mut context[..z.len()];
        self.compute.gated_rms_norm_in_place(context, weight, z, self.config.rms_epsilon);
    }

    fn mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.run_mixture(layer, mixture, cancel)
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: VectorId,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        super::check_logit_rows(tokens.len(), self.options.logit_rows)?;
        let (hidden, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let (norm, width) = (self.weights.vector(norm), self.registers.width(Register::Residual));
        let (residual, normed) = self.registers.pair(Register::Residual, Register::Normed);
        for (row, &token) in normed.chunks_exact_mut(hidden).zip(tokens) {
            let from = &residual[token * width..token * width + hidden];
            self.compute.rms_norm(from, norm, self.config.rms_epsilon, row);
        }
        let matrix = self.weights.matrix(head);
        let input = &normed[..tokens.len() * hidden];
        self.compute.prepare(input, hidden, &[matrix.encoding], &mut self.prepared);
        let out = &mut self.logits[..tokens.len() * vocabulary];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        self.check_files()?;
        Ok(&mut self.logits[..tokens.len() * vocabulary])
    }

    fn counters(&self) -> StoreCounters {
        self.experts.counters()
    }
}

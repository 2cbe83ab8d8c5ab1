//! The CPU backend: activations in plain memory, products by the `kernels` crate, experts from the store.
//!
//! Everything large is allocated in [`CpuBackend::new`] from the limits given there; a batch then runs
//! without growing anything but key-value pages, and those only in [`KvGrowth::Grow`].

mod ahead;
mod attention;
mod chosen_rows;
mod compressed;
mod dense;
mod gated_streams;
mod head;
mod indexed;
mod latent;
mod mixture;
mod ngrams;
mod ops;
mod pooled_rows;
mod recover;
mod registers;
mod replay;
mod requirements;
mod scoring;
mod shared;
mod state;
mod streams;
mod tiled;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use kernels::KvType;
use kernels::{Activations, Compute, DeltaForm, DeltaShape, MatmulJob, Tokens};
use store::cache::{ExpertStore, StoreCounters};
use store::format::ProjectionShape;
use store::rows::RowStore;
use store::{ExpertId, LayerId};

use self::compressed::CompressedScratch;
use self::dense::DenseScratch;
use self::head::HeadScratch;
use self::indexed::IndexScratch;
use self::latent::LatentScratch;
use self::mixture::MixtureScratch;
use self::ngrams::NgramRows;
use self::registers::Registers;
use self::replay::RoundScratch;
pub use self::requirements::Requirements;
use self::state::HostSequences;
use self::streams::StreamScratch;
use self::tiled::Tiled;
use super::{
    Backend, BatchRules, Cancel, Drafting, Incoming, LayerBorder, PAGE_TOKENS, Purpose, Register,
    Run, SequenceDevice, SequenceId, Sequences, SnapshotPart, Suspended,
};
use crate::EngineError;
use crate::model::config::{DeltaConfig, HeadOrder, ModelConfig};
use crate::model::program::{Program, Stage};
use crate::routing::Routing;
use crate::sequences::Span;
use crate::weights::{MatrixId, TableId, VectorId, Weights};

/// When key-value pages are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGrowth {
    /// Page by page, as sequences grow: a short answer never pays for the whole context. The plan counts the whole.
    #[default]
    Grow,
    /// All at once, before the first token: nothing grows while generating.
    Ahead,
}

/// Sizes and choices of a CPU backend.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// The layers of the model that it computes; the others are other backends'.
    pub layers: Range<usize>,
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
    /// Most tokens of a round of an answer: its next token with drafts behind it. 1 for no drafts.
    pub round_tokens: usize,
    /// Bytes of the cache of rows, for each table that has some.
    pub row_cache: u64,
}

/// Runs models on the CPU.
pub struct CpuBackend {
    config: ModelConfig,
    /// The operations of the model's layers.
    program: Arc<Program>,
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
    /// Where an indexer chooses keys.
    index: Option<IndexScratch>,
    /// Where there is a head.
    head: Option<HeadScratch>,
    /// Rows of layers of hashed n-grams.
    ngram_rows: NgramRows,
    routing: Routing,
    /// Time that choosing experts took: of prompts, of answers.
    routing_time: [Duration; 2],
    /// Where there are rounds, and delta layers.
    round: Option<RoundScratch>,
    /// Whether the batch is a step of answers, whose runs of several tokens are rounds.
    answers: bool,
    /// Output of a product that is added to a register, `[batch_tokens, hidden]`.
    projected: Vec<f32>,
    logits: Vec<f32>,
    inverse_frequencies: Vec<f32>,
    /// Those of layers with a window, where they have their own.
    windowed_frequencies: Option<Vec<f32>>,
    /// The weight of norms without one, as wide as the widest head.
    ones: Vec<f32>,
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
            index: IndexScratch::new(&config, &options),
            head: HeadScratch::new(&config, &options),
            ngram_rows: NgramRows::default(),
            routing: Routing::default(),
            routing_time: [Duration::ZERO; 2],
            round: RoundScratch::new(&config, &options),
            answers: false,
            projected: vec![0.0; tokens * config.hidden],
            logits: vec![0.0; options.logit_values(&config)],
            inverse_frequencies: config.attention.rope.inverse_frequencies(),
            windowed_frequencies: config.windowed.map(|it| it.rope.inverse_frequencies()),
            ones: vec![1.0; config.attentions().map(|it| it.head_dim).max().unwrap_or(0)],
            every_expert: (0..config.moe.experts as u16).map(ExpertId).collect(),
            given_layers: Vec::new(),
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            spans: Vec::with_capacity(options.sequences),
            config,
            program: Arc::default(),
            options,
            weights,
            experts,
            expert_shapes,
            compute,
        })
    }

    /// Looks rows of n-grams up in `stores`, one for each layer computed that does, in their order. Asked before the
    /// first batch.
    ///
    /// # Errors
    /// More stores or fewer than there are such layers.
    pub fn set_rows(&mut self, stores: Vec<RowStore>) -> Result<(), EngineError> {
        self.ngram_rows = NgramRows::new(&self.config, &self.options, stores)?;
        Ok(())
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

impl SequenceDevice for CpuBackend {
    fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError> {
        let (sequences, memory) = self.sequences.split();
        let created = sequences.create(memory, home)?;
        self.note_filled(created, 0);
        Ok(created)
    }

    fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    fn sequences_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let (sequences, memory) = self.sequences.split();
        sequences.keep_first(memory, sequence, tokens)?;
        self.sequences.cut_tails(sequence, tokens);
        Ok(())
    }

    fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError> {
        self.catch_up(sequence);
        self.fill_all(sequence);
        let (sequences, memory) = self.sequences.split();
        sequences.snapshot(memory, sequence)
    }

    fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        let (sequences, memory) = self.sequences.split();
        sequences.restore(memory, sequence, snapshot)?;
        self.note_filled(sequence, snapshot.length());
        Ok(())
    }

    fn suspend(&mut self) -> Option<Suspended> {
        let residual = self.registers.get(Register::Residual).to_vec();
        let mut suspended = self.sequences.suspend(self.tokens.clone(), residual);
        if let Some(index) = &self.index {
            suspended.chosen.extend_from_slice(index.choices_of(self.tokens.len()));
        }
        Some(suspended)
    }

    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        if let Some(index) = &mut self.index {
            index.take_choices(&suspended.chosen);
        }
        let (tokens, residual) = self.sequences.resume(suspended);
        self.answers = false;
        self.set_batch(tokens.into_iter());
        self.ngram_rows.forget();
        self.registers.get_mut(Register::Residual).copy_from_slice(&residual);
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn rules(&self) -> BatchRules {
        let cut_tokens = match self.options.delta_form {
            _ if self.config.delta.is_none() => 1,
            DeltaForm::Step => 1,
            DeltaForm::Chunked => usize::MAX,
        };
        let round_tokens = self.options.round_tokens.min(self.sequences.round_tokens());
        BatchRules { cut_tokens, round_tokens, ..BatchRules::default() }
    }

    fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        super::check_batch(runs, self.options.batch_tokens, self.config.vocabulary)?;
        self.sequences.begin(runs)?;
        self.set_batch(runs.iter().flat_map(|run| run.tokens).copied());
        self.answers = purpose == Purpose::Answers;
        if self.answers {
            let (sequences, memory) = self.sequences.split();
            let Ok(()) = sequences.begin_rounds(memory);
        } else {
            runs.iter().for_each(|run| self.catch_up(run.sequence));
        }
        self.ask_for_rows();
        Ok(())
    }

    fn check_files(&self) -> Result<(), EngineError> {
        self.weights.check()?;
        Ok(self.experts.check_files()?)
    }

    fn commit(&mut self) {
        self.keep_outputs();
        let (sequences, memory) = self.sequences.split();
        let Ok(()) = sequences.commit(memory, false);
    }

    fn expect_given(&mut self, layers: &[(LayerId, TableId)]) {
        CpuBackend::expect_given(self, layers);
    }

    fn give_up(&mut self, layer: LayerId) {
        self.forget_ahead(layer);
        self.ngram_rows.forget();
    }

    fn embed(&mut self, table: MatrixId) {
        let table = self.weights.matrix(table);
        let (hidden, width) = (self.config.hidden, self.registers.width(Register::Residual));
        let residual = self.registers.get_mut(Register::Residual);
        let (tokens, scale) = (&self.tokens, self.config.stream.embedding_scale);
        self.compute.each_row(residual, width, |index, row| {
            let (first, others) = row.split_at_mut(hidden);
            kernels::format::decode_row(&table, tokens[index] as usize, first);
            if scale != 1.0 {
                first.iter_mut().for_each(|value| *value *= scale);
            }
            others.chunks_exact_mut(hidden).for_each(|other| other.copy_from_slice(first));
        });
    }

    fn prepare(&mut self, program: Arc<Program>) {
        self.program = program;
    }

    fn run_stage(
        &mut self,
        layer: LayerId,
        stage: Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let program = Arc::clone(&self.program);
        let mut ops = program.layers[layer.index()].stage(stage).iter();
        ops.try_for_each(|op| self.run_op(layer, op, cancel))
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        super::check_logit_rows(tokens.len(), self.options.logit_rows)?;
        let (hidden, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let norm = norm.map(|norm| self.weights.vector(norm));
        let width = self.registers.width(Register::Residual);
        let (residual, normed) = self.registers.pair(Register::Residual, Register::Normed);
        for (row, &token) in normed.chunks_exact_mut(hidden).zip(tokens) {
            let from = &residual[token * width..token * width + hidden];
            match norm {
                Some(norm) => self.compute.rms_norm(from, norm, self.config.rms_epsilon, row),
                None => row.copy_from_slice(from),
            }
        }
        let matrix = self.weights.matrix(head);
        let input = &normed[..tokens.len() * hidden];
        self.compute.prepare(input, hidden, &[matrix.encoding], &mut self.prepared);
        let out = &mut self.logits[..tokens.len() * vocabulary];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        self.check_files()?;
        let logits = &mut self.logits[..tokens.len() * vocabulary];
        if let Some(cap) = self.config.stream.softcap {
            self.compute.each_row(logits, vocabulary, |_, row| {
                row.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
            });
        }
        Ok(logits)
    }

    fn counters(&self) -> StoreCounters {
        let mut counters = self.experts.counters();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let [prefill, decode] = self.routing_time.map(micros);
        (counters.prefill.routing_us, counters.decode.routing_us) = (prefill, decode);
        self.ngram_rows.count(&mut counters.rows);
        counters
    }

    fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.run_recover(live)
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        Some(self)
    }
}

impl LayerBorder for CpuBackend {
    fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        to.clear();
        to.extend_from_slice(self.registers.get(Register::Residual));
        Ok(())
    }

    fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError> {
        let from = from.values()?;
        self.registers.get_mut(Register::Residual).copy_from_slice(from);
        Ok(())
    }
}

impl Drafting for CpuBackend {
    fn draft(&mut self, sequence: SequenceId, token: u32, most: usize, drafts: &mut Vec<u32>) {
        self.run_draft(sequence, token, most, drafts);
    }

    fn draft_logits(&mut self) -> &[f32] {
        self.head.as_ref().map_or(&[], HeadScratch::logits)
    }
}

//! The CUDA backend: everything a step needs in device memory, the host only for what is missing there.
//!
//! The next tokens of answers are *steps*: exact f32 products, experts through the address table, and a graph that
//! is captured at the first step of its size and replayed from then on: only tokens and positions change, in
//! pinned memory. Prompts of any length are *chunks*: tensor cores, and experts grouped over all tokens. Both give
//! other bits, but what a chunk gives for a token does not depend on where the prompt was cut. The mixture of the last
//! layer of a step launches the whole graph; what it could not find is served while it runs (`residency/serving.rs`);
//! its end is awaited when logits are asked for or the next batch begins. Between steps the table changes
//! (`residency/moves.rs`).
//!
//! A backend may compute a range of the model's layers ([`crossing`]): its step's graph then begins behind the residual
//! stream that the device before has left, or ends with it.
//!
//! Operations cannot fail; a failed launch is remembered and reported by the next operation that can.

mod ahead;
mod attend;
mod batch;
mod buffers;
mod chosen_rows;
mod chunk;
mod compressed;
mod compressed_scratch;
mod crossing;
mod dense;
mod draw;
mod experts;
mod fuse;
mod fused;
mod gated_streams;
mod growth;
mod head;
mod indexed;
mod latent;
mod mixer;
mod ngrams;
mod ops;
mod prefetch;
mod products;
mod protocol;
mod requirements;
mod rounds;
mod router;
mod sandwich;
mod side_buffers;
mod slots;
mod speed;
mod state;
mod step;
mod weights;
mod window_attention;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use cuda::launch::{self, Factor};
use cuda::{Device, DeviceBuffer, Matrix, Span, Stream};
use store::LayerId;
use store::cache::StoreCounters;
use store::format::ProjectionShape;
use store::trunk::LoadMode;

use self::batch::Mode;
use self::buffers::{Buffers, Floats, Input, Sizes};
use self::compressed_scratch::Compressed;
use self::crossing::Crossings;
pub use self::experts::ExpertMemory;
use self::experts::Experts;
pub use self::fuse::describe;
use self::fuse::{Kind, Launch};
use self::growth::Growth;
use self::head::DraftMemory;
use self::ngrams::Ngrams;
use self::prefetch::Prefetch;
pub use self::requirements::{CudaOptions, CudaRequirements, SlotShare};
use self::rounds::DeltaWeights;
use self::side_buffers::Side;
pub use self::speed::{Bandwidths, bandwidths};
use self::state::PlaceBuffers;
use self::step::Steps;
use self::weights::{check_encodings, check_limits, load_trunk};
pub use self::weights::{check_model, check_rounds};
use super::prepared::Prepared;
use super::{
    Backend, BatchRules, Cancel, Crossing, Drafting, Incoming, LayerBorder, Purpose, Ranking,
    Register, Run, SequenceDevice, SequenceId, SnapshotPart, Suspended,
};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::program::{Program, Stage};
use crate::routing::Routing;
use crate::sequences::Sequences;
use crate::weights::{Catalog, MatrixId, TableId, VectorId};
use text::sampling::{Ranked, Wanted};

pub use crate::residency::predictor::Prediction;
pub use crate::residency::{PREFILL_PART, RECORDS_IN_BOTH};
pub use cuda::{CudaError, DeviceInfo};

/// Most tokens of a step; a server computes at most as many answers at once.
pub(super) const STEP_TOKENS: usize = 8;
/// Alignment of weights in device memory.
const ALIGNMENT: usize = 256;
/// Address lists of prompts' waves in pinned memory: as many may be on their way to the device.
const WAVES: usize = 8;

/// Opens a device only to say what it is.
///
/// # Errors
/// What is missing.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, EngineError> {
    Ok(Device::open(ordinal)?.info().clone())
}

/// Runs models on an NVIDIA GPU.
pub struct CudaBackend {
    config: ModelConfig,
    /// The launches of the model's layers.
    prepared: Arc<Prepared<Launch>>,
    /// By delta layer, in order.
    delta_weights: Vec<DeltaWeights>,
    options: CudaOptions,
    sizes: Sizes,
    matrices: Vec<Matrix>,
    vectors: Vec<Span<f32>>,
    frequencies: Span<f32>,
    /// Of layers with a window, where these have other heads.
    windowed_frequencies: Option<Span<f32>>,
    buffers: Buffers,
    /// Of models whose layers keep more than keys, values and recurrent states.
    place_buffers: PlaceBuffers,
    /// Of models with compressed attention.
    compressed: Option<Compressed>,
    /// Of models with layers of n-grams or of attention to chosen keys.
    side: Option<Side>,
    /// Of models with layers of n-grams, once their rows can be had.
    ngrams: Option<Ngrams>,
    /// Where keys and values share memory with experts' slots.
    growth: Option<Growth>,
    /// Next-layer prediction, where it was asked for and records can be outside device memory. Before `experts`: its
    /// copies read their memory until it is dropped.
    prefetch: Option<Prefetch>,
    experts: Experts,
    steps: Steps,
    crossings: Crossings,
    /// Where the model's head is here.
    drafts: Option<DraftMemory>,
    routing: Routing,
    sequences: Sequences,
    stream: Stream,
    tokens: usize,
    /// True for a step: every part is the next token of an answer, and maybe drafts behind it.
    single: bool,
    mode: Mode,
    /// The residual stream is here: not yet, or no more, while another stage of the model computes the batch.
    at_work: bool,
    failure: Option<CudaError>,
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
    #[allow(
        clippy::too_many_arguments,
        reason = "everything that outlives it, each of a type of its own"
    )]
    pub fn new(
        config: ModelConfig,
        catalog: &Catalog<'_>,
        mode: LoadMode,
        memory: ExpertMemory,
        expert_shapes: &[Option<[ProjectionShape; 3]>],
        routing: Routing,
        ordinal: usize,
        options: CudaOptions,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, EngineError> {
        check_limits(&config, &options)?;
        check_encodings(catalog, expert_shapes)?;
        let device = Device::open(ordinal)?;
        let stream = Stream::new(&device)?;
        let sizes = Sizes::new(&config, &options);
        let routing = routing.of_layers(&options.layers);
        let own = expert_shapes.iter().enumerate();
        let own = own.map(|(layer, it)| it.filter(|_| options.layers.contains(&layer)));
        let expert_shapes: &[_] = &own.collect::<Vec<_>>();
        let (trunk, matrices, decoded) = load_trunk(&device, catalog, mode, progress)?;
        let inverse = config.attentions().map(|it| it.rope.inverse_frequencies());
        let (count, all) = (decoded.len(), decoded.into_iter().chain(inverse).collect::<Vec<_>>());
        let values: usize = all.iter().map(|v| padded(v.len() * 4) / 4).sum();
        let store = Floats::new(&device, values)?;
        let mut vectors = Vec::with_capacity(all.len());
        let mut at = 0;
        for vector in &all {
            store.write(at, vector)?;
            vectors.push(store.part(at, vector.len()));
            at += padded(vector.len() * 4) / 4;
        }
        let inverse = vectors.split_off(count);
        let (frequencies, windowed_frequencies) = (inverse[0], inverse.get(1).copied());
        let share = memory.device_slots;
        let mut buffers = Buffers::new(&device, &sizes, routing.replaces(), share.grows())?;
        let compressed = Compressed::load(&device, &config, catalog, sizes.compressed.as_ref())?;
        let place_buffers = PlaceBuffers::new(&device, &sizes)?;
        let side = sizes.side.as_ref().map(|sizes| Side::new(&device, sizes)).transpose()?;
        let mut growth = Growth::where_shared(&device, &sizes, &options, &share, &mut buffers)?;
        let pages = growth.as_mut().map_or_else(Vec::new, Growth::take_spare);
        // A shared expert without a gate has the whole weight: the sigmoid of infinity is one.
        buffers.shared_factor.write(0, &vec![f32::INFINITY; sizes.tokens])?;
        buffers.pinned.status.hand_over(launch::PATIENCE, [protocol::PATIENCE_MS]);
        let (mut experts, rest) =
            Experts::load(&device, &sizes, &buffers, expert_shapes, memory, &options, pages)?;
        if let Some(growth) = &mut growth {
            growth.add_spare(rest);
        }
        let mut routers = routing.routers().to_vec();
        if let Some(head) = &sizes.head {
            experts.residency.expect_drafts(head.layer);
            // No step passes its layer, and none guesses what it will choose.
            routers.iter_mut().skip(head.layer.index()).for_each(|router| *router = None);
        }
        let steps = Steps::new(&device, &sizes)?;
        let drafts = DraftMemory::new(&device, &sizes)?;
        let prefetch = (options.prediction != Prediction::Off && experts.residency.can_move())
            .then(|| {
                let replaced = routing.replaces();
                Prefetch::new(&device, &sizes, &experts, &options, routers, replaced)
            })
            .transpose()?;
        Ok(Self {
            sequences: Sequences::new(Arc::clone(&sizes.layout), state::limits(&options)),
            host_logits: vec![0.0; sizes.logit_rows * sizes.vocabulary],
            wave_turn: Cell::new(0),
            tokens: 0,
            single: false,
            mode: Mode::Eager,
            at_work: false,
            failure: None,
            config,
            prepared: Arc::default(),
            delta_weights: Vec::new(),
            options,
            sizes,
            matrices,
            vectors,
            frequencies,
            windowed_frequencies,
            buffers,
            place_buffers,
            compressed,
            side,
            ngrams: None,
            growth,
            experts,
            prefetch,
            steps,
            crossings: Crossings::default(),
            drafts,
            routing,
            stream,
            _trunk: trunk,
            _vectors: store,
        })
    }
}

/// Bytes rounded up to the alignment of weights.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl SequenceDevice for CudaBackend {
    fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError> {
        self.settle()?;
        let (sequences, mut memory) = self.sequences_in();
        sequences.create(&mut memory, home)
    }

    fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    fn sequences_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError> {
        self.settle()?;
        self.catch_up(sequence)?;
        self.forget_outputs(sequence)?;
        let (sequences, mut memory) = self.sequences_in();
        sequences.snapshot(&mut memory, sequence)
    }

    fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        self.return_to(sequence, snapshot)
    }

    fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let (sequences, mut memory) = self.sequences_in();
        sequences.keep_first(&mut memory, sequence, tokens)
    }

    fn suspend(&mut self) -> Option<Suspended> {
        self.put_aside()
    }

    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.take_up(suspended)
    }
}

impl Backend for CudaBackend {
    fn rules(&self) -> BatchRules {
        // Where no record comes from a disk, a joint batch ends in the time of a few steps.
        let few = self.options.batch_tokens.min(launch::FEW_TOKENS);
        BatchRules {
            // Chunk kernels compute each token in an order that knows nothing of the others.
            cut_tokens: 1,
            // Steps are computed by other kernels than chunks.
            answers_replay: false,
            round_tokens: self.most_round_tokens().min(self.sequences.round_tokens()),
            joint_tokens: if self.experts.residency.can_miss() { 0 } else { few },
            // As the driver does where nothing has to be served.
            spins: true,
        }
    }

    fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        self.begin_batch(runs, purpose)
    }

    fn expect_given(&mut self, layers: &[(LayerId, TableId)]) {
        self.read_given(layers);
    }

    fn commit(&mut self) {
        self.end_batch();
    }

    fn embed(&mut self, table: MatrixId) {
        self.at_work = true;
        self.begin_recording();
        self.run(|this| {
            this.upload_inputs()?;
            let tokens = this.input(Input::Token, 0, this.tokens);
            launch::embed(&this.stream, this.matrix(table), tokens, this.embedded())?;
            let scale = this.config.stream.embedding_scale;
            if scale != 1.0 {
                launch::scale(&this.stream, this.embedded(), Factor::Constant(scale))?;
            }
            this.spread()
        });
    }

    fn prepare(&mut self, program: Arc<Program>) {
        self.prepared = Arc::new(self.prepare_program(&program));
        self.delta_weights = rounds::delta_layers(&program, &self.sizes.computed);
        if let Some(drafts) = &mut self.drafts {
            drafts.declare(program.head.clone());
        }
    }

    fn run_stage(
        &mut self,
        layer: LayerId,
        stage: Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let prepared = Arc::clone(&self.prepared);
        let kind = if self.single { Kind::Step } else { Kind::Chunk };
        let mut launches = prepared.of(kind as usize, layer, stage).iter();
        launches.try_for_each(|launch| self.launch(layer, launch, cancel))?;
        let last = self.sizes.is_last(layer) && stage == Stage::FeedForward;
        if last {
            self.fill_head()?;
        }
        if last && self.single { self.set_going() } else { Ok(()) }
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        super::check_logit_rows(tokens.len(), self.sizes.logit_rows)?;
        let first = self.step_head(tokens, norm, head)?;
        let vocabulary = self.sizes.vocabulary;
        let out = &mut self.host_logits[..tokens.len() * vocabulary];
        for (index, row) in out.chunks_exact_mut(vocabulary).enumerate() {
            let place = first.map_or(tokens[index], |first| first + index);
            self.buffers.logits.read(place * vocabulary, row)?;
        }
        Ok(out)
    }

    fn counters(&self) -> StoreCounters {
        let mut counters = self.experts.residency.counters();
        if let Some(prefetch) = &self.prefetch {
            prefetch.count(&mut counters.device.prefetched);
        }
        if let Some(ngrams) = &self.ngrams {
            ngrams.count(&mut counters.rows);
        }
        let all = || self.sizes.key_value_bytes();
        counters.device.cache_bytes = self.growth.as_ref().map_or_else(all, Growth::cache_bytes);
        counters
    }

    fn ranking(&mut self) -> Option<&mut dyn Ranking> {
        Some(self)
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        Some(self)
    }
}

impl LayerBorder for CudaBackend {
    fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        self.leave_residual(to)
    }

    fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError> {
        match from {
            Incoming::Values(values) => self.take_residual(values),
            Incoming::Ahead(crossing) => self.follow_crossing(crossing),
        }
    }

    fn residual_ahead(&mut self) -> Option<Crossing> {
        self.leaving_ahead()
    }

    fn await_step(&mut self) {
        self.serve_unasked();
    }
}

impl Ranking for CudaBackend {
    fn expect_rows(&mut self, rows: &[usize]) {
        if rows.len() <= self.sizes.logit_rows {
            self.steps.expect_rows(rows);
        }
    }

    fn most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<u32, EngineError> {
        self.step_most_likely(token, norm, head)
    }

    fn rank(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        self.ranks().then(|| self.rank_row(token, norm, head, wanted, out))
    }

    fn ranked_logits(&mut self, start: usize, out: &mut [f32]) -> Result<(), EngineError> {
        let row = self.steps.ranked_place * self.sizes.vocabulary;
        Ok(self.buffers.logits.read(row + start, out)?)
    }
}

impl Drafting for CudaBackend {
    fn draft(&mut self, sequence: SequenceId, token: u32, most: usize, drafts: &mut Vec<u32>) {
        self.run_draft(sequence, token, most, drafts);
    }

    fn draft_logits(&mut self) -> &[f32] {
        self.read_draft_logits()
    }
}

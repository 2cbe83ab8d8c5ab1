//! The backend for GPUs of any maker, through Vulkan or Metal: the plain form of every operation.
//!
//! Work is recorded and handed over in pieces while more is recorded. A step of answers is recorded to its end whether
//! its experts are there or not ([`step`]); the host waits for the token or the logits, and where an expert was
//! missing. Where many tokens share experts it waits for each layer's choice ([`experts`]). A token's sums have one
//! order whatever its batch, so prompts may be cut anywhere.
//! Answers leave the bits that a prompt leaves, except where prompts are computed by matrices ([`fused`]).
//!
//! Operations cannot fail; a failed launch is remembered and reported by the next operation that can.

mod attend;
mod chosen_rows;
mod compressed;
mod constants;
mod dense;
mod draw;
mod experts;
mod fuse;
mod fused;
mod given;
mod latent;
mod load;
mod mixture;
mod ops;
mod places;
mod prefetch;
mod replaced;
mod requirements;
mod running;
mod slots;
mod speed;
mod step;
mod streams;

use std::sync::Arc;

use gpu::op::{elementwise, product};
pub use gpu::{
    Adapter, DriverOptions, Gpu, GpuError, Handle, Import, Kind, MemoryClass, Wait, adapters,
    check, choose,
};
use gpu::{Buffer, Trunk};
use store::LayerId;
use store::cache::{Phase, StoreCounters};

use self::chosen_rows::ChoiceBuffers;
use self::compressed::CompressedBuffers;
use self::constants::Constants;
use self::draw::Head;
pub use self::experts::ExpertMemory;
use self::experts::MixtureBuffers;
pub use self::fuse::describe;
use self::fuse::{Facts, Launch, Shape, prepare};
use self::given::GivenTables;
use self::latent::LatentBuffers;
use self::places::Places;
use self::prefetch::Prefetch;
use self::replaced::Replaced;
use self::requirements::Sizes;
pub use self::requirements::{
    GpuOptions, GpuRequirements, Pieces, check_kv_type, check_model, slot_bytes,
};
use self::slots::GpuSlots;
pub use self::speed::bandwidths;
use self::step::{STEP_TOKENS, Steps};
use self::streams::StreamBuffers;
use super::prepared::Prepared;
use super::{
    Backend, BatchRules, Cancel, Incoming, LayerBorder, Purpose, Ranking, Register, Run,
    SequenceDevice, SequenceId, SnapshotPart, Suspended,
};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::program::{Product, Program, Stage};
use crate::residency::Residency;
pub use crate::residency::predictor::Prediction;
use crate::routing::Routing;
use crate::sequences::{Sequences, Span};
use crate::weights::{MatrixId, VectorId};
use text::sampling::{Ranked, Wanted};

/// Most slots of this size that an adapter can reach.
pub fn most_slots(adapter: &Adapter, slot_bytes: usize) -> usize {
    gpu::Slabs::most(adapter, slot_bytes)
}

/// Most tokens of a batch: devices count workgroups in 16 bits.
pub const BATCH_LIMIT: usize = 32768;

/// Cosine and sine of each pair's angle at these positions, as exact as the processor's.
fn turned_at(positions: &[usize], frequencies: &[f32], magnitude: f32) -> Vec<f32> {
    let mut angles = Vec::with_capacity(2 * positions.len() * frequencies.len());
    for &position in positions {
        for frequency in frequencies {
            let angle = f64::from(position as u32 as f32 * frequency);
            angles.extend([angle.cos(), angle.sin()].map(|it| it as f32 * magnitude));
        }
    }
    angles
}

/// Runs models on a GPU.
pub struct GpuBackend {
    config: ModelConfig,
    /// The launches of the model's layers.
    prepared: Arc<Prepared<Launch>>,
    options: GpuOptions,
    /// The GPU, its slots, and which record is where.
    residency: Residency<GpuSlots>,
    prefetch: Option<Prefetch>,
    /// Where routing is not the model's.
    replaced: Option<Replaced>,
    trunk: Trunk,
    vectors: Vec<Buffer>,
    registers: Vec<Buffer>,
    mixture: MixtureBuffers,
    latent: LatentBuffers,
    choice: ChoiceBuffers,
    streams: StreamBuffers,
    compressed: CompressedBuffers,
    given: GivenTables,
    constants: Constants,
    /// Angles and frequencies of layers with a window, where they have others.
    windowed: Option<(Buffer, Vec<f32>)>,
    sequences: Sequences,
    places: Places,
    /// Ids of the batch's tokens, and cosine and sine of each pair's angle at their positions.
    token_ids: Buffer,
    angles: Buffer,
    head: Head,
    steps: Steps,
    /// Rows in halves, where the GPU multiplies matrices of them.
    halves: Option<gpu::op::halves::Halves>,
    /// What blocks of a token's attention leave.
    partial: Buffer,
    frequencies: Vec<f32>,
    spans: Vec<Span>,
    ids: Vec<u32>,
    tokens: usize,
    /// The residual stream is here: not yet, or no more, while another stage of the model computes the batch.
    at_work: bool,
    phase: Phase,
    failure: Option<GpuError>,
}

impl GpuBackend {
    /// Routing that is not the model's alone; no batch has begun.
    ///
    /// # Errors
    /// No memory left on the device.
    pub fn set_routing(&mut self, routing: Routing) -> Result<(), EngineError> {
        if routing.replaces() {
            let sizes = Sizes::new(&self.config, &self.options);
            let shape = (self.options.layers.clone(), self.config.moe.experts);
            let gpu = &mut self.residency.device_mut().gpu;
            self.replaced = Some(Replaced::new(gpu, routing, &sizes, shape)?);
        }
        Ok(())
    }

    /// Runs what cannot fail, and remembers that it did.
    fn attempt(&mut self, run: impl FnOnce(&mut Self) -> Result<(), GpuError>) {
        if self.failure.is_none() {
            self.failure = run(self).err();
        }
    }

    /// What an operation that could not report it has met.
    fn settle(&self) -> Result<(), EngineError> {
        match &self.failure {
            Some(error) => Err(error.clone().into()),
            None => Ok(self.residency.device().gpu.check()?),
        }
    }

    /// What the second control word says: a token whose router gave something that is no number, plus one.
    fn check_finite(&self, broken: u32) -> Result<(), EngineError> {
        match (broken as usize).checked_sub(1) {
            None => Ok(()),
            Some(token) => Err(self.not_finite(token)),
        }
    }

    fn not_finite(&self, token: usize) -> EngineError {
        let spans = &self.spans;
        let span = spans.iter().find(|it| (it.first..it.first + it.tokens).contains(&token));
        let position = span.map_or(0, |span| span.position + token - span.first);
        EngineError::NotFinite { position }
    }

    /// The batch's tokens, and the angles of their positions.
    fn tell_batch(&mut self) -> Result<(), GpuError> {
        let positions: Vec<usize> =
            self.spans.iter().flat_map(|span| span.position..span.end()).collect();
        let turned = |frequencies: &[f32], magnitude| turned_at(&positions, frequencies, magnitude);
        let angles = turned(&self.frequencies, self.config.attention.rope.magnitude());
        let windowed = match (&self.windowed, &self.config.windowed) {
            (Some((to, frequencies)), Some(it)) => {
                Some((to, turned(frequencies, it.rope.magnitude())))
            }
            _ => None,
        };
        let gpu = &mut self.residency.device_mut().gpu;
        gpu.write_words(&self.token_ids, 0, &self.ids)?;
        self.compressed.tell(gpu, &positions)?;
        if let Some((to, angles)) = windowed {
            gpu.write_floats(to, 0, &angles)?;
        }
        gpu.write_floats(&self.angles, 0, &angles)
    }

    /// Says where the windows of the batch's sequences lie.
    fn place_windows(&mut self) -> Result<(), GpuError> {
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        self.sequences.place_windows(&mut memory, self.phase == Phase::Decode)?;
        self.spans = self.sequences.spans().to_vec();
        Ok(())
    }

    fn products(
        &mut self,
        from: Register,
        products: &[Product],
        add: bool,
    ) -> Result<(), GpuError> {
        if self.by_matrices() {
            return self.tiled_products(from, products, add);
        }
        for product in products {
            let matrix = self.trunk.matrix(product.matrix.index());
            let [x, y] = [from, product.to].map(|register| &self.registers[register as usize]);
            product::launch(&mut self.residency.device_mut().gpu, matrix, x, y, self.tokens, add)?;
        }
        Ok(())
    }
}

impl SequenceDevice for GpuBackend {
    fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError> {
        self.settle()?;
        self.end_step()?;
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        self.sequences.create(&mut memory, home)
    }

    fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    fn sequences_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError> {
        self.settle()?;
        self.end_step()?;
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        self.sequences.snapshot(&mut memory, sequence)
    }

    fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        self.settle()?;
        self.end_step()?;
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        self.sequences.restore(&mut memory, sequence, snapshot)
    }

    fn suspend(&mut self) -> Option<Suspended> {
        let mut residual = Vec::new();
        if self.at_work {
            let count = self.tokens * self.config.streams() * self.config.hidden;
            let from = &self.registers[Register::Residual as usize];
            residual = self.residency.device_mut().gpu.read_floats(from, 0, count).ok()?;
        }
        let chosen = self.chosen_of_batch().ok()?;
        let mut suspended = self.sequences.suspend(self.ids.clone(), residual);
        suspended.chosen = chosen;
        Some(suspended)
    }

    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.take_chosen(&suspended.chosen)?;
        let (ids, residual) = self.sequences.resume(suspended);
        (self.tokens, self.ids) = (ids.len(), ids);
        self.phase = Phase::Prefill;
        self.place_windows()?;
        self.tell_batch()?;
        self.residency.device_mut().gpu.clear_control();
        if let Some(replaced) = &mut self.replaced {
            replaced.resume();
        }
        self.at_work = !residual.is_empty();
        let to = &self.registers[Register::Residual as usize];
        Ok(self.residency.device_mut().gpu.write_floats(to, 0, &residual)?)
    }
}

impl Backend for GpuBackend {
    fn rules(&self) -> BatchRules {
        BatchRules { answers_replay: self.halves.is_none(), ..BatchRules::default() }
    }

    fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        self.settle()?;
        self.end_step()?;
        super::check_batch(runs, self.options.batch_tokens, self.config.vocabulary)?;
        self.spans = self.sequences.begin(runs)?.to_vec();
        self.ids = runs.iter().flat_map(|run| run.tokens).copied().collect();
        self.tokens = self.ids.len();
        self.at_work = false;
        self.phase = match purpose {
            Purpose::Prompt => Phase::Prefill,
            Purpose::Answers => Phase::Decode,
        };
        self.head.forget();
        self.begin_step(purpose)?;
        if let Some(replaced) = &mut self.replaced {
            replaced.begin(&mut self.residency.device_mut().gpu, self.tokens)?;
        }
        let few = self.tokens <= STEP_TOKENS && purpose == Purpose::Answers;
        let device = self.residency.device_mut();
        let waits_once = !self.steps.runs() || device.finds_all();
        device.gpu.begin_step(few && waits_once)?;
        self.place_windows()?;
        self.tell_batch()?;
        if self.options.layers.start == 0 {
            self.residency.device_mut().gpu.clear_control();
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), EngineError> {
        self.settle()?;
        Ok(self.residency.store().check_files()?)
    }

    fn commit(&mut self) {
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        if let Err(error) = self.sequences.commit(&mut memory, self.phase == Phase::Decode) {
            self.failure.get_or_insert(error);
        }
    }

    fn give_up(&mut self, layer: LayerId) {
        self.residency.store().forget_ahead(layer);
    }

    fn embed(&mut self, table: MatrixId) {
        self.at_work = true;
        self.attempt(|this| {
            this.launch_embed(table)?;
            if let Some(factor) = &this.constants.embedding_scale {
                let (count, rows) = (this.tokens * this.config.hidden, this.stream_rows().clone());
                let gpu = &mut this.residency.device_mut().gpu;
                elementwise::launch_scale(gpu, factor, &rows, count)?;
            }
            this.spread()
        });
    }

    fn prepare(&mut self, program: Arc<Program>) {
        let shape = |id: MatrixId| Shape::from(self.trunk.matrix(id.index()));
        let facts = Facts { config: &self.config, shape: &shape };
        self.prepared = Arc::new(prepare(&program, &self.options.layers, &facts));
    }

    fn run_stage(
        &mut self,
        layer: LayerId,
        stage: Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let prepared = Arc::clone(&self.prepared);
        let mut launches = prepared.of(self.kind() as usize, layer, stage).iter();
        launches.try_for_each(|launch| self.launch(layer, launch, cancel))
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        super::check_logit_rows(tokens.len(), self.options.logit_rows)?;
        self.settle()?;
        self.host_logits(tokens, (norm.expect(super::NORM_BEFORE_HEAD), head))
    }

    fn counters(&self) -> StoreCounters {
        self.all_counters()
    }

    fn ranking(&mut self) -> Option<&mut dyn Ranking> {
        Some(self)
    }
}

impl LayerBorder for GpuBackend {
    /// Ends the step, if the batch is one, with the residual stream behind it.
    fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        self.settle()?;
        let residual = self.registers[Register::Residual as usize].clone();
        let values = self.tokens * self.config.streams() * self.config.hidden;
        let bytes = 4 * values as u64;
        let bytes = self.finish(&mut |_| Ok(()), &[(&residual, 0, bytes)])?;
        to.clear();
        to.extend(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)));
        self.at_work = false;
        Ok(())
    }

    /// Before anything of the batch is recorded: what is recorded ahead begins behind it.
    fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError> {
        let from = from.values()?;
        let values = self.tokens * self.config.streams() * self.config.hidden;
        assert_eq!(from.len(), values, "stages have the same batch");
        self.at_work = true;
        let to = &self.registers[Register::Residual as usize];
        let gpu = &mut self.residency.device_mut().gpu;
        gpu.write_floats(to, 0, from)?;
        gpu.clear_control();
        Ok(())
    }
}

impl Ranking for GpuBackend {
    fn most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<u32, EngineError> {
        let norm = norm.expect(super::NORM_BEFORE_HEAD);
        self.settle()?;
        self.drawn(token, (norm, head))
    }

    /// The sums that are drawn from are the host's ([`draw`]).
    fn rank(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        let (top, norm) = (wanted == Wanted::Top, norm.expect(super::NORM_BEFORE_HEAD));
        top.then(|| self.settle().and_then(|()| self.ranked(token, (norm, head), out)))
    }

    fn ranked_logits(&mut self, _: usize, _: &mut [f32]) -> Result<(), EngineError> {
        Err(EngineError::Request("this device leaves no logits of what it ranks".to_owned()))
    }
}

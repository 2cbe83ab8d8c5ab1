//! Routed experts on a portable GPU: what runs when, and how prompts bring the records that have no slot.
//!
//! The device finds the experts of few tokens through the table, as they were recorded; what happens where one has no
//! slot is [`super::running`]. Of larger batches, and of prompts where a record can be missing, the choice is read
//! back: tokens share experts. Experts that have a slot run at once, while the store reads the others; those are
//! written into scratch slots ([`super::slots`]) as many as there are at a time, and run. Every pair of a token and an
//! expert has a row of its own and rows are added by ascending expert id, so that where records were shows in no bit.

use std::sync::Arc;

use gpu::op::experts::Layout;
use gpu::op::{experts, group, halves, tile};
use gpu::{Buffer, Gpu, GpuError, Import, Slabs};
use store::cache::{ExpertStore, LoadProgress, StorageMode};
use store::format::ProjectionShape;
use store::{ExpertId, LayerId};

use super::GpuOptions;
use super::requirements::layout;
use super::slots::{ARENA_SHIFT, GpuSlots, host_leads, scratch_slots, spare_slots};
use super::step::{STEP_TOKENS, flag_of};
use crate::EngineError;
use crate::model::activation::{Activation, GateUpRows};
use crate::model::config::{ModelConfig, MoeConfig};
use crate::residency::predictor::Prediction;
use crate::residency::{Dimensions, Residency};

/// Tiles of one launch: devices count workgroups in 16 bits.
const TILES_TOGETHER: usize = 32768;

/// Where records come from and go to.
pub struct ExpertMemory {
    /// The host tier. With a slot for every record it is only passed through.
    pub store: Arc<ExpertStore>,
    /// Bytes of a slot ([`super::slot_bytes`]).
    pub slot_bytes: usize,
    /// Slots in the GPU's memory.
    pub slots: usize,
    /// Told about the loading.
    pub progress: Option<LoadProgress>,
}

/// Pairs of one layer's batch by expert.
pub(super) struct Assignments {
    /// Experts, ascending, and where their pairs begin in `order`; one more start than experts.
    pub(super) experts: Vec<u32>,
    starts: Vec<usize>,
    pub(super) order: Vec<u32>,
}

impl Assignments {
    /// Sorts pairs by the expert that each has.
    pub(super) fn new(chosen: &[u32], experts: usize) -> Self {
        let mut of = vec![Vec::new(); experts];
        for (pair, &expert) in chosen.iter().enumerate() {
            of[expert as usize].push(pair as u32);
        }
        let (mut ids, mut starts, mut order) = (Vec::new(), vec![0], Vec::new());
        for (expert, pairs) in of.iter().enumerate().filter(|(_, pairs)| !pairs.is_empty()) {
            ids.push(expert as u32);
            order.extend(pairs);
            starts.push(order.len());
        }
        Self { experts: ids, starts, order }
    }

    /// Members whose records have slots, and the others.
    pub(super) fn parted(&self, slots: &GpuSlots, layer: LayerId) -> (Vec<usize>, Vec<usize>) {
        let key = |member: usize| slots.key(layer, ExpertId(self.experts[member] as u16));
        (0..self.experts.len()).partition(|&member| slots.has(key(member)))
    }

    /// Whether a member has more pairs than a tile.
    pub(super) fn has_tiles(&self, member: usize) -> bool {
        self.starts[member + 1] - self.starts[member] > experts::TILE_TOKENS as usize
    }

    /// Most pairs of an expert.
    fn most(&self) -> usize {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// Expert, first place and pairs of each tile of the members `of`.
    fn tiles(&self, of: &[usize], pairs: usize) -> Vec<u32> {
        let mut tiles = Vec::new();
        for &member in of {
            let (mut at, end) = (self.starts[member], self.starts[member + 1]);
            while at < end {
                let count = (end - at).min(pairs);
                tiles.extend([self.experts[member], at as u32, count as u32]);
                at += count;
            }
        }
        tiles
    }
}

/// Buffers of a mixture.
pub(super) struct MixtureBuffers {
    pub(super) router_logits: Buffer,
    /// Chosen experts: of a batch whose choice is read back, or of every layer of a step.
    pub(super) ids: Buffer,
    pub(super) weights: Buffer,
    /// As the router leaves them: each pair a tile, in their own order.
    pub(super) own_tiles: Buffer,
    pub(super) own_order: Buffer,
    /// As the host sorts them.
    tiles: Buffer,
    pub(super) order: Buffer,
    pub(super) inner: Buffer,
    pub(super) rows: Buffer,
    pub(super) shared_factor: Buffer,
    pub(super) shared_gate: Buffer,
    pub(super) shared_up: Buffer,
    pub(super) shared_rows: Buffer,
    /// By layer, of models whose experts have biases: those of gate and up, and of down; known once a layer was
    /// recorded.
    pub(super) biases: Vec<Option<[Buffer; 2]>>,
    moe: MoeConfig,
}

impl MixtureBuffers {
    pub(super) fn new(
        gpu: &mut Gpu,
        sizes: &super::requirements::Sizes,
        config: &ModelConfig,
    ) -> Result<Self, EngineError> {
        let mut numbers = |what: &str, count: usize| gpu.buffer(what, 4 * count as u64);
        let buffers = Self {
            router_logits: numbers("router logits", sizes.router_logits)?,
            ids: numbers("chosen experts", sizes.chosen)?,
            weights: numbers("weights of experts", sizes.pairs)?,
            own_tiles: numbers("pairs", 3 * sizes.pairs)?,
            own_order: numbers("pairs", sizes.pairs)?,
            tiles: numbers("pairs by expert", 3 * sizes.pairs)?,
            order: numbers("pairs by expert", sizes.pairs)?,
            inner: numbers("experts' inner rows", sizes.pair_inner)?,
            rows: numbers("experts' rows", sizes.pair_hidden)?,
            shared_factor: numbers("shared expert", sizes.shared_factor)?,
            shared_gate: numbers("shared expert", sizes.shared_inner)?,
            shared_up: numbers("shared expert", sizes.shared_inner)?,
            shared_rows: numbers("shared expert", sizes.shared_hidden)?,
            biases: vec![None; config.layers.len()],
            moe: config.moe,
        };
        let identity: Vec<u32> = (0..sizes.pairs as u32).collect();
        gpu.write_words(&buffers.own_order, 0, &identity)?;
        Ok(buffers)
    }

    /// What a layer's experts have between their matrices.
    pub(super) fn activation(&self, layer: LayerId) -> experts::Activation<'_> {
        let (alpha, limit) = match self.moe.activation {
            Activation::GeGlu => return experts::Activation::GeGlu,
            Activation::Clamped { alpha, limit } => (alpha, limit),
            Activation::Limited { limit } => return experts::Activation::Limited(limit),
            Activation::SwiGlu => return experts::Activation::SwiGlu,
        };
        let biases = self.biases[layer.index()].as_ref();
        let [gate_up, down] = biases.expect("clamped experts have biases, known before they run");
        let (in_turns, experts) = (self.moe.rows == GateUpRows::InTurns, self.moe.experts);
        let clamped = experts::Clamped { alpha, limit, in_turns, experts, gate_up, down };
        experts::Activation::Clamped(clamped)
    }
}

/// Where the planes of a record lie in a slot, by layer; of other devices' layers there are no records here.
fn own_layouts(
    shapes: &[Option<[ProjectionShape; 3]>],
    options: &GpuOptions,
) -> Vec<Option<Layout>> {
    let layout_of = |shapes: &[ProjectionShape; 3]| {
        layout(shapes).expect("`check_model` has asked for every layer's layout")
    };
    let layouts = shapes.iter().enumerate().map(|(layer, shapes)| {
        shapes.as_ref().filter(|_| options.layers.contains(&layer)).map(layout_of)
    });
    layouts.collect()
}

/// Allocates the slots and loads as many records as stay, evenly over the layers.
pub(super) fn load(
    mut gpu: Gpu,
    config: &ModelConfig,
    shapes: &[Option<[ProjectionShape; 3]>],
    memory: ExpertMemory,
    options: &GpuOptions,
) -> Result<Residency<GpuSlots>, EngineError> {
    let mut layouts = own_layouts(shapes, options);
    let (layers, experts) = (layouts.len(), config.moe.experts);
    let ExpertMemory { store, mut slot_bytes, mut slots, progress } = memory;
    let records = layouts.iter().flatten().count() * experts;
    let resident = store.report().mode == StorageMode::Resident;
    let insists = gpu.adapter().options.import == Import::On;
    if insists && slots < records && !resident {
        check_unguessed(options)?;
    }
    // Guesses are copied ahead to scratch slots; where nothing is guessed records are read in place.
    let imports = slots < records && (resident || insists);
    let imports = imports && gpu.adapter().host_alignment.is_some();
    let mut leads = None;
    if imports
        && options.prediction != Prediction::On
        && let Some((found, placed)) = host_leads(&store, &layouts, experts)
    {
        // Slots are as the host tier's: no larger than those that were planned, together.
        let largest = placed.iter().flatten().map(Layout::bytes).max().unwrap_or(0);
        let larger = largest.next_multiple_of(Gpu::ALIGNMENT as usize).max(slot_bytes);
        if slots * slot_bytes >= larger {
            (slots, slot_bytes) = (slots * slot_bytes / larger, larger);
            (leads, layouts) = (Some(found), placed);
        }
    }
    let slabs = Slabs::new(&mut gpu, slots, slot_bytes, layers * experts)?;
    let mut device = GpuSlots::new(gpu, slabs, Arc::clone(&store), layouts, experts);
    if imports {
        device.import(leads)?;
    }
    let scratch = match device.finds_all() {
        true => spare_slots(slots),
        false => scratch_slots(slots, records, options.top_k),
    };
    device.set_scratch(scratch);
    let kept = slots - scratch;
    let together = STEP_TOKENS.min(options.sequences.max(1)) * options.top_k;
    // Names alone: kernels read no address, and slots come before all of the host tier's.
    let bases = (1..=store.arenas().len() as u64).map(|arena| arena << ARENA_SHIFT).collect();
    let dimensions = Dimensions {
        layers,
        experts,
        per_layer: together.min(experts),
        slots: (1..=kept as u64).collect(),
        bases,
        can_move: slots < records,
    };
    let mut residency = Residency::new(store, device, dimensions);
    residency.load(|filled| {
        if let Some(tell) = &progress {
            tell((filled * slot_bytes) as u64, (kept * slot_bytes) as u64);
        }
    })?;
    residency.device_mut().forget_written();
    residency.device_mut().write_table()?;
    Ok(residency)
}

/// # Errors
/// Guesses, which are copied to slots, where RAM that is a cache of the disk is to be read in place.
fn check_unguessed(options: &GpuOptions) -> Result<(), GpuError> {
    if options.prediction == Prediction::Off {
        return Ok(());
    }
    let guesses = "--predict copies guesses to slots where RAM holds a part of the experts";
    Err(GpuError::NotInPlace(guesses.to_owned()))
}

/// What the experts of a layer are computed with.
#[derive(Clone, Copy)]
pub(super) struct Routed<'a> {
    pub(super) buffers: &'a MixtureBuffers,
    pub(super) normed: &'a Buffer,
    /// Rows in halves, where experts are computed by matrices.
    pub(super) halves: Option<&'a halves::Halves>,
    pub(super) tokens: usize,
    /// Experts of a token, and of a layer.
    pub(super) top_k: usize,
    pub(super) experts: usize,
}

impl Routed<'_> {
    /// Runs experts that have slots; the pairs of `work` were written in their order.
    pub(super) fn run_members(
        &self,
        slots: &mut GpuSlots,
        layer: LayerId,
        work: &Assignments,
        members: &[usize],
    ) -> Result<(), EngineError> {
        if members.is_empty() {
            return Ok(());
        }
        let pairs = match (self.halves, work.most()) {
            (Some(_), _) => tile::expert_tokens(work.order.len(), self.experts),
            (None, 1) => 1,
            (None, _) => experts::TILE_TOKENS,
        };
        let tiles = work.tiles(members, pairs as usize);
        slots.write_table()?;
        slots.gpu.write_words(&self.buffers.tiles, 0, &tiles)?;
        let launched = experts::Work {
            tiles: &self.buffers.tiles,
            first: 0,
            count: tiles.len() / 3,
            pairs,
            order: &self.buffers.order,
            k: self.top_k,
            table_start: layer.index() * self.experts,
            flag: flag_of(layer),
            activation: self.buffers.activation(layer),
        };
        self.run(slots, layer, launched)
    }

    /// Sorts the pairs of a batch on the device and runs them: every expert has a slot.
    pub(super) fn run_all(&self, slots: &mut GpuSlots, layer: LayerId) -> Result<(), EngineError> {
        let count = self.tokens * self.top_k;
        let pairs = match self.halves {
            Some(_) => tile::expert_tokens(count, self.experts),
            None => experts::TILE_TOKENS,
        };
        let buffers = self.buffers;
        let (lists, shape) = ((&buffers.tiles, &buffers.order), (count, self.experts));
        group::launch(&mut slots.gpu, &buffers.ids, lists, shape, pairs)?;
        let launched = experts::Work {
            tiles: &buffers.tiles,
            first: 0,
            count: group::tiles(count, self.experts, pairs),
            pairs,
            order: &buffers.order,
            k: self.top_k,
            table_start: layer.index() * self.experts,
            flag: flag_of(layer),
            activation: self.buffers.activation(layer),
        };
        self.run(slots, layer, launched)
    }

    fn run(
        &self,
        slots: &mut GpuSlots,
        layer: LayerId,
        work: experts::Work<'_>,
    ) -> Result<(), EngineError> {
        match self.halves {
            Some(halves) => self.run_matrices(slots, layer, work, halves),
            None => self.run_tiles(slots, layer, work),
        }
    }

    /// Both halves of the experts of some tiles, by matrices.
    fn run_matrices(
        &self,
        slots: &mut GpuSlots,
        layer: LayerId,
        work: experts::Work<'_>,
        of: &halves::Halves,
    ) -> Result<(), EngineError> {
        let record = slots.layout(layer).record_shape();
        let (gpu, slabs) = (&mut slots.gpu, &slots.slabs);
        let (inner, rows) = (&self.buffers.inner, &self.buffers.rows);
        let parts = (0..work.count).step_by(TILES_TOGETHER).map(|first| {
            let count = (work.count - first).min(TILES_TOGETHER);
            experts::Work { first, count, ..work }
        });
        halves::launch(gpu, self.normed, of, (self.tokens, record.hidden))?;
        for part in parts.clone() {
            tile::launch_experts(gpu, experts::Half::GateUp, &record, slabs, part, of, inner)?;
        }
        halves::launch(gpu, inner, of, (self.tokens * self.top_k, record.inner))?;
        for part in parts {
            tile::launch_experts(gpu, experts::Half::Down, &record, slabs, part, of, rows)?;
        }
        Ok(())
    }

    /// Both halves of the experts of some tiles.
    pub(super) fn run_tiles(
        &self,
        slots: &mut GpuSlots,
        layer: LayerId,
        work: experts::Work<'_>,
    ) -> Result<(), EngineError> {
        let record = slots.layout(layer).record_shape();
        let (gpu, slabs) = (&mut slots.gpu, &slots.slabs);
        let (inner, rows) = (&self.buffers.inner, &self.buffers.rows);
        for first in (0..work.count).step_by(TILES_TOGETHER) {
            let count = (work.count - first).min(TILES_TOGETHER);
            let part = experts::Work { first, count, ..work };
            experts::launch(gpu, experts::Half::GateUp, &record, slabs, part, self.normed, inner)?;
            experts::launch(gpu, experts::Half::Down, &record, slabs, part, inner, rows)?;
        }
        Ok(())
    }
}

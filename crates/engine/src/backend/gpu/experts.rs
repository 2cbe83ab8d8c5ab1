//! Routed experts on a portable GPU: what runs when, and how prompts bring the records that have no slot.
//!
//! The device finds the experts of few tokens through the table, as they were recorded; what happens where one has no
//! slot is [`super::running`]. Of larger batches, and of prompts where a record can be missing, the choice is read
//! back: tokens share experts. Experts that have a slot run at once, while the store reads the others; those are
//! written into scratch slots ([`super::slots`]) as many as there are at a time, and run. Every pair of a token and an
//! expert has a row of its own and rows are added by ascending expert id, so that where records were shows in no bit.

use std::sync::Arc;

use gpu::op::experts::Layout;
use gpu::op::{chosen, experts, fused, group, halves, plain, product, router, tile};
use gpu::{Buffer, Gpu, GpuError, Import, Slabs};
use store::cache::{ExpertStore, LoadProgress, Phase, QueueCounters, StorageMode, StoreCounters};
use store::format::ProjectionShape;
use store::{ExpertId, LayerId};

use super::super::{Cancel, Register};
use super::requirements::layout;
use super::slots::{ARENA_SHIFT, GpuSlots, host_leads, scratch_slots, spare_slots};
use super::step::{CONTROL_BYTES, CONTROL_WORDS, STEP_TOKENS, flag_of, words};
use super::{GpuBackend, GpuOptions};
use crate::EngineError;
use crate::model::activation::{Activation, GateUpRows};
use crate::model::config::{ModelConfig, MoeConfig};
use crate::model::mixture::{ExpertBiases, Mixture};
use crate::residency::predictor::Prediction;
use crate::residency::{Dimensions, Residency};
use crate::weights::VectorId;

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
    fn has_tiles(&self, member: usize) -> bool {
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
    own_tiles: Buffer,
    own_order: Buffer,
    /// As the host sorts them.
    tiles: Buffer,
    pub(super) order: Buffer,
    inner: Buffer,
    pub(super) rows: Buffer,
    pub(super) shared_factor: Buffer,
    pub(super) shared_gate: Buffer,
    pub(super) shared_up: Buffer,
    pub(super) shared_rows: Buffer,
    /// By layer, of models whose experts have biases: those of gate and up, and of down; known once a layer was
    /// recorded.
    biases: Vec<Option<[Buffer; 2]>>,
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

    /// What a layer's experts have between their matrices, where that is not SwiGLU.
    fn clamped(&self, layer: LayerId) -> Option<experts::Clamped<'_>> {
        let Activation::Clamped { alpha, limit } = self.moe.activation else { return None };
        let [gate_up, down] = self.biases[layer.index()].as_ref()?;
        let (in_turns, experts) = (self.moe.rows == GateUpRows::InTurns, self.moe.experts);
        Some(experts::Clamped { alpha, limit, in_turns, experts, gate_up, down })
    }
}

/// Allocates the slots and loads as many records as stay, evenly over the layers.
pub(super) fn load(
    mut gpu: Gpu,
    config: &ModelConfig,
    shapes: &[Option<[ProjectionShape; 3]>],
    memory: ExpertMemory,
    options: &GpuOptions,
) -> Result<Residency<GpuSlots>, EngineError> {
    let layouts = shapes.iter().map(|shapes| layout(shapes.as_ref()?));
    let layouts = layouts.collect::<Option<Vec<_>>>();
    let mut layouts = layouts.expect("`check_model` has asked for every layer's layout");
    let (layers, experts) = (layouts.len(), config.moe.experts);
    let ExpertMemory { store, mut slot_bytes, mut slots, progress } = memory;
    let records = layers * experts;
    let resident = store.report().mode == StorageMode::Resident;
    let insists = gpu.adapter().options.import == Import::On;
    if insists && slots < records && !resident && options.prediction != Prediction::Off {
        let guesses = "--predict copies guesses to slots where RAM holds a part of the experts";
        return Err(GpuError::NotInPlace(guesses.to_owned()).into());
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
        let largest = placed.iter().map(Layout::bytes).max().unwrap_or(0);
        let larger = largest.next_multiple_of(Gpu::ALIGNMENT as usize).max(slot_bytes);
        if slots * slot_bytes >= larger {
            (slots, slot_bytes) = (slots * slot_bytes / larger, larger);
            (leads, layouts) = (Some(found), placed);
        }
    }
    let slabs = Slabs::new(&mut gpu, slots, slot_bytes, records)?;
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
            clamped: self.buffers.clamped(layer),
        };
        self.run(slots, layer, launched)
    }

    /// Sorts the pairs of a batch on the device and runs them: every expert has a slot.
    fn run_all(&self, slots: &mut GpuSlots, layer: LayerId) -> Result<(), EngineError> {
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
            clamped: self.buffers.clamped(layer),
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
    fn run_tiles(
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

impl GpuBackend {
    /// `Residual += mixture(Normed)`, with the norm before where it is given.
    pub(super) fn run_mixture(
        &mut self,
        layer: LayerId,
        norm: Option<VectorId>,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.mixture_inputs(norm, mixture)?;
        if let Some(ExpertBiases { gate, down, .. }) = &mixture.biases {
            // The catalog has joined those of gate and up.
            let vector = |id: &VectorId| self.vectors[id.index()].clone();
            self.mixture.biases[layer.index()].get_or_insert_with(|| [gate, down].map(vector));
        }
        self.residency.device_mut().write_table()?;
        let joined = mixture.shared.as_ref().filter(|_| self.joins(mixture));
        let (tokens, k, phase) = (self.tokens, self.options.top_k, self.phase);
        let (by_matrices, alone) = (self.by_matrices(), self.alone());
        let moe = &self.config.moe;
        let (holds_all, step) = (!self.residency.can_move(), self.steps.runs());
        let record = self.residency.device().layout(layer).record_shape();
        // Where nothing can be missing nothing has to happen between the choice and the experts.
        let complete = holds_all || step && self.residency.device().finds_all();
        let (slots, buffers) = (self.residency.device_mut(), &self.mixture);
        let bias = mixture.router_bias;
        let (logits, added) = match &mut self.replaced {
            None => (buffers.router_logits.all(), bias.map(|bias| &self.vectors[bias.index()])),
            Some(it) => (it.logits(&mut slots.gpu, (layer, tokens), &buffers.router_logits)?, None),
        };
        let gpu = &mut slots.gpu;
        let normed = &self.registers[Register::Normed as usize];
        let own = (mixture.router, bias);
        let next = self.prefetch.as_mut().and_then(|it| it.next_router(layer, own));
        if let Some(((next, bias), to)) = next.filter(|_| step) {
            let next = self.trunk.matrix(next.index());
            product::launch(gpu, next, normed, to, tokens, false)?;
            if let Some(bias) = bias {
                let bias = &self.vectors[bias.index()];
                plain::launch_add_bias(gpu, (to, bias), (tokens, moe.experts))?;
            }
        }
        let ungrouped = step || holds_all && tokens <= STEP_TOKENS && !by_matrices;
        let choice = router::Choice {
            ids: &buffers.ids,
            first_id: if step { layer.index() * tokens * k } else { 0 },
            weights: &buffers.weights,
            tiles: &buffers.own_tiles,
            table_start: layer.index() * moe.experts,
            flag: if ungrouped { flag_of(layer) } else { 0 },
        };
        let shape = (tokens, moe.experts, k);
        let normalise = moe.router.normalise;
        let work = chosen::Work {
            record: &record,
            slabs: &slots.slabs,
            choice,
            shape: (moe.experts, k),
            shared: joined
                .map(|it| [it.gate, it.up, it.down].map(|id| self.trunk.matrix(id.index()))),
            inner: &buffers.inner,
        };
        // Biases of a router or of experts have kernels of their own.
        let plain = mixture.router_bias.is_none() && mixture.biases.is_none();
        let whole = plain && joined.is_some() == mixture.shared.is_some();
        if complete && alone && whole && work.is_served(gpu) {
            chosen::launch_gate_up(gpu, work, (logits, normalise), normed)?;
            let residual = &self.registers[Register::Residual as usize];
            chosen::launch_down(gpu, work, &buffers.shared_factor, residual)?;
            match step {
                true => self.step_routed(layer)?,
                false => self.note_ungrouped(phase, k),
            }
            self.steps.note_combine(&self.residency.device().gpu);
            return Ok(());
        }
        match joined {
            Some(shared) => {
                let matrices = [shared.gate, shared.up].map(|id| self.trunk.matrix(id.index()));
                let (to, of) = (&buffers.shared_gate, (logits, &slots.slabs, choice));
                let shape = (moe.experts, k);
                fused::launch_choose(gpu, matrices, (normed, to), of, shape, normalise)?;
            }
            None => {
                let of = (logits, added);
                router::launch(gpu, of, &slots.slabs, choice, shape, normalise)?;
            }
        }
        if !ungrouped && holds_all {
            let (residency, routed) = self.routed();
            routed.run_all(residency.device_mut(), layer)?;
            residency.note_prompt_hits(tokens * k);
            residency.note_prompt_layer();
            if layer.index() + 1 == self.config.layers.len() {
                // No layer before has looked.
                let gpu = &mut self.residency.device_mut().gpu;
                let control = gpu.control().clone();
                let found = words(&gpu.read(&[(&control, 0, CONTROL_BYTES)])?);
                self.check_finite(found[1])?;
            }
        } else if !ungrouped {
            self.run_grouped(layer, cancel)?;
        } else {
            if step {
                self.step_routed(layer)?;
            }
            let (residency, routed) = self.routed();
            let work = experts::Work {
                tiles: &routed.buffers.own_tiles,
                first: 0,
                count: tokens * k,
                pairs: 1,
                order: &routed.buffers.own_order,
                k,
                table_start: layer.index() * routed.experts,
                flag: flag_of(layer),
                clamped: routed.buffers.clamped(layer),
            };
            routed.run_tiles(residency.device_mut(), layer, work)?;
            if !step {
                self.note_ungrouped(phase, tokens * k);
            }
        }
        self.steps.note_combine(&self.residency.device().gpu);
        self.mixture_sum(mixture)
    }

    /// Counts a layer of few tokens whose records all have slots.
    fn note_ungrouped(&mut self, phase: Phase, pairs: usize) {
        match phase {
            Phase::Decode => self.residency.note_resident(1, pairs),
            Phase::Prefill => {
                self.residency.note_prompt_hits(pairs);
                self.residency.note_prompt_layer();
            }
        }
    }

    /// The parts that launches of experts and the copies of their records need.
    pub(super) fn routed(&mut self) -> (&mut Residency<GpuSlots>, Routed<'_>) {
        let routed = Routed {
            buffers: &self.mixture,
            normed: &self.registers[Register::Normed as usize],
            halves: self.halves.as_ref().filter(|_| self.phase == Phase::Prefill),
            tokens: self.tokens,
            top_k: self.options.top_k,
            experts: self.config.moe.experts,
        };
        (&mut self.residency, routed)
    }

    /// Reads the choice back and runs the experts in groups: those that have slots, then the others as they land.
    fn run_grouped(&mut self, layer: LayerId, cancel: &dyn Cancel) -> Result<(), EngineError> {
        let bytes = 4 * (self.tokens * self.options.top_k) as u64;
        let gpu = &mut self.residency.device_mut().gpu;
        let control = gpu.control().clone();
        let places = [(&control, 0, CONTROL_BYTES), (&self.mixture.ids, 0, bytes)];
        let words = words(&gpu.read(&places)?);
        let (control, chosen) = words.split_at(CONTROL_WORDS);
        self.check_finite(control[1])?;
        let (pairs, layers) = (chosen.len(), self.config.layers.len());
        let (phase, experts) = (self.phase, self.config.moe.experts);
        let (residency, routed) = self.routed();
        residency.begin_prompt_layer()?;
        residency.tell_words(GpuSlots::follow);
        let work = Assignments::new(chosen, experts);
        let slots = residency.device_mut();
        let (mut there, mut missing) = work.parted(slots, layer);
        let in_slot = |slots: &GpuSlots, member: usize| {
            slots.in_slot(slots.key(layer, ExpertId(work.experts[member] as u16)))
        };
        if slots.finds_all() && slots.has_scratch() {
            // Kernels of many tokens would read the record several times, or slowly.
            let tiles = |member| routed.halves.is_some() || work.has_tiles(member);
            (missing, there) = there.into_iter().partition(|&it| !in_slot(slots, it) && tiles(it));
        }
        slots.gpu.write_words(&routed.buffers.order, 0, &work.order)?;
        slots.note_used(layer, chosen);
        routed.run_members(slots, layer, &work, &there)?;
        // What runs already is queued before anything that is written from here on.
        slots.gpu.submit()?;
        let in_slots = there.iter().filter(|&&it| in_slot(slots, it)).count();
        residency.note_prompt_hits(in_slots);
        residency.note_prompt_reads(there.len() - in_slots);
        residency.note_prompt_layer();
        if missing.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = missing.iter().map(|&it| ExpertId(work.experts[it] as u16)).collect();
        let store = Arc::clone(residency.store());
        let mut visit = store.visit(layer, &ids, phase)?;
        let next = LayerId(layer.0 + 1);
        if residency.can_miss() && next.index() < layers && pairs >= 3 * experts {
            // A chunk of so many tokens needs nearly all of the next layer's records.
            residency.read_ahead(next);
        }
        let slots = residency.device_mut();
        slots.begin_group();
        let wanted = || !cancel.is_cancelled();
        let mut group = Vec::new();
        for place in visit.order().to_vec() {
            visit.wait_while(place, &wanted)?;
            let held = store.hold(layer, ids[place]).expect("the visit keeps the record");
            let key = slots.key(layer, ids[place]);
            if !slots.put(key, &held)? {
                routed.run_members(slots, layer, &work, &group)?;
                group.clear();
                slots.begin_group();
                slots.put(key, &held)?;
            }
            drop(held);
            visit.release(place);
            group.push(missing[place]);
        }
        routed.run_members(slots, layer, &work, &group)
    }

    /// What the store counted, with the uses that never reached it and what was handed over.
    pub(super) fn all_counters(&self) -> StoreCounters {
        let mut counters = self.residency.counters();
        if let Some(prefetch) = &self.prefetch {
            prefetch.count(&mut counters.device.prefetched);
        }
        let slots = self.residency.device();
        counters.device.copied = slots.written();
        counters.device.slots = slots.slabs.slots() as u64;
        let gpu::Counts { dispatches, ahead, submissions, waits, waited } = slots.gpu.counts();
        let waited_us = waited.as_micros() as u64;
        counters.device.queue = QueueCounters { dispatches, ahead, submissions, waits, waited_us };
        counters
    }
}

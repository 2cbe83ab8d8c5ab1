//! Routed experts on a portable GPU: which are in its memory, how the others get there, and what runs when.
//!
//! The device finds the experts of few tokens through the table, as they were recorded; what happens where one has no
//! slot is [`super::step`]. Of larger batches, and of prompts where a record can be missing, the choice is read back:
//! tokens share experts. Experts that have a slot run at once, while the store reads the others; those are written into
//! slots as many as there are at a time, and run. A slot is written behind everything that was recorded before, so it
//! is never taken from work that could still name it. Every pair of a token and an expert has a row of its own and rows
//! are added by ascending expert id, so that where records were shows in no bit.

use std::sync::Arc;

use gpu::op::{experts, halves, router, tile};
use gpu::{Buffer, Gpu, Slabs};
use store::cache::{DeviceCounters, ExpertStore, LoadProgress, Phase, StoreCounters};
use store::format::{Projection, ProjectionShape};
use store::{ExpertId, LayerId};

use super::super::{Cancel, Register};
use super::GpuBackend;
use super::requirements::layout;
use super::step::{CONTROL_BYTES, CONTROL_WORDS, STEP_TOKENS, flag_of, words};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::mixture::Mixture;
use crate::weights::VectorId;

/// Records that are asked for at once when all are loaded.
const LOADED_TOGETHER: usize = 8;

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

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Index of the record in the table.
    record: Option<usize>,
    used: u64,
}

/// Slots, their contents, and how records of each layer lie in them.
pub(super) struct Experts {
    pub(super) store: Arc<ExpertStore>,
    layouts: Vec<experts::Layout>,
    slabs: Slabs,
    slots: Vec<Slot>,
    /// Slot of each record.
    places: Vec<Option<u32>>,
    /// Experts of a layer.
    experts: usize,
    /// Advances with every group of experts that runs.
    clock: u64,
    counters: DeviceCounters,
}

/// Pairs of one layer's batch by expert.
struct Assignments {
    /// Experts, ascending, and where their pairs begin in `order`; one more start than experts.
    experts: Vec<u32>,
    starts: Vec<usize>,
    order: Vec<u32>,
}

impl Assignments {
    /// Sorts pairs by the expert that each has.
    fn new(chosen: &[u32], experts: usize) -> Self {
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
    order: Buffer,
    inner: Buffer,
    pub(super) rows: Buffer,
    pub(super) shared_factor: Buffer,
    pub(super) shared_gate: Buffer,
    pub(super) shared_up: Buffer,
    pub(super) shared_rows: Buffer,
}

impl MixtureBuffers {
    pub(super) fn new(
        gpu: &mut Gpu,
        sizes: &super::requirements::Sizes,
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
        };
        let identity: Vec<u32> = (0..sizes.pairs as u32).collect();
        gpu.write_words(&buffers.own_order, 0, &identity)?;
        Ok(buffers)
    }
}

impl Experts {
    /// Allocates the slots; with one for each record all are loaded.
    pub(super) fn new(
        gpu: &mut Gpu,
        config: &ModelConfig,
        shapes: &[Option<[ProjectionShape; 3]>],
        memory: ExpertMemory,
    ) -> Result<Self, EngineError> {
        let layouts = shapes.iter().map(|shapes| layout(shapes.as_ref()?));
        let layouts = layouts.collect::<Option<Vec<_>>>();
        let layouts = layouts.expect("`check_model` has asked for every layer's layout");
        let (count, slots) = (config.moe.experts, memory.slots);
        let records = shapes.len() * count;
        let mut experts = Self {
            store: memory.store,
            layouts,
            slabs: Slabs::new(gpu, slots, memory.slot_bytes, records)?,
            slots: vec![Slot { record: None, used: 0 }; slots],
            places: vec![None; records],
            experts: count,
            clock: 0,
            counters: DeviceCounters::default(),
        };
        if slots >= records {
            experts.load_all(gpu, memory.progress.as_deref())?;
        }
        Ok(experts)
    }

    fn load_all(
        &mut self,
        gpu: &mut Gpu,
        progress: Option<&(dyn Fn(u64, u64) + Send)>,
    ) -> Result<(), EngineError> {
        let store = Arc::clone(&self.store);
        let bytes = self.slabs.slot_bytes() as u64;
        for layer in 0..self.layouts.len() {
            for first in (0..self.experts).step_by(LOADED_TOGETHER) {
                let last = (first + LOADED_TOGETHER).min(self.experts);
                let ids: Vec<_> = (first..last).map(|expert| ExpertId(expert as u16)).collect();
                let mut visit = store.visit(LayerId(layer as u16), &ids, Phase::Prefill)?;
                for member in visit.order().to_vec() {
                    let record = layer * self.experts + first + member;
                    self.put(gpu, record, record, &visit.wait(member)?)?;
                    visit.release(member);
                }
                if let Some(tell) = progress {
                    let done = (layer * self.experts + last) as u64;
                    tell(done * bytes, self.places.len() as u64 * bytes);
                }
            }
        }
        self.counters = DeviceCounters::default();
        Ok(())
    }

    fn record(&self, layer: LayerId) -> experts::Record {
        self.layouts[layer.index()].record_shape()
    }

    pub(super) fn holds_all(&self) -> bool {
        self.slots.len() >= self.places.len()
    }

    /// Writes a record into a slot; what the slot held is forgotten.
    fn put(
        &mut self,
        gpu: &mut Gpu,
        slot: usize,
        record: usize,
        bytes: &store::cache::ExpertBytes<'_>,
    ) -> Result<(), EngineError> {
        if let Some(old) = self.slots[slot].record.take() {
            self.places[old] = None;
            self.slabs.name(gpu, old, None)?;
        }
        let planes = [Projection::Gate, Projection::Up, Projection::Down]
            .map(|which| [bytes.weight(which), bytes.scales(which), bytes.biases(which)]);
        let layout = &self.layouts[record / self.experts];
        self.slabs.fill(gpu, slot, &layout.record(planes))?;
        self.slabs.name(gpu, record, Some(slot))?;
        self.slots[slot] = Slot { record: Some(record), used: self.clock };
        self.places[record] = Some(slot as u32);
        self.counters.copied += 1;
        Ok(())
    }

    /// The slot that was used longest ago, and not by the group in the making.
    fn victim(&self) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.used < self.clock);
        idle.min_by_key(|(_, slot)| (slot.record.is_some(), slot.used)).map(|(index, _)| index)
    }

    /// Experts of a layer that were used from their slots: how many of the chosen there are, each once.
    pub(super) fn note_used(&mut self, layer: LayerId, chosen: &[u32]) -> usize {
        self.clock += 1;
        let first = layer.index() * self.experts;
        let mut found = 0;
        for &expert in chosen {
            let Some(slot) = self.places[first + expert as usize] else { continue };
            let slot = &mut self.slots[slot as usize];
            found += usize::from(slot.used != self.clock);
            slot.used = self.clock;
        }
        found
    }

    /// Members of a layer's work that have a slot, and those that have none.
    fn parted(&self, layer: LayerId, work: &Assignments) -> (Vec<usize>, Vec<usize>) {
        let first = layer.index() * self.experts;
        let found = |member: &usize| self.places[first + work.experts[*member] as usize].is_some();
        (0..work.experts.len()).partition(found)
    }

    /// What the store counted, with the uses that never reached it.
    pub(super) fn counters(&self) -> StoreCounters {
        let mut counters = self.store.counters();
        for (phase, found) in [
            (&mut counters.decode, self.counters.hits),
            (&mut counters.prefill, self.counters.resident),
        ] {
            phase.requests += found;
            phase.hits += found;
        }
        counters.device = self.counters;
        counters
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
        let (tokens, k, moe) = (self.tokens, self.options.top_k, &self.config.moe);
        let (gpu, buffers) = (&mut self.gpu, &self.mixture);
        let step = self.steps.runs();
        let ungrouped = step || self.experts.holds_all() && tokens <= STEP_TOKENS;
        let choice = router::Choice {
            ids: &buffers.ids,
            first_id: if step { layer.index() * tokens * k } else { 0 },
            weights: &buffers.weights,
            tiles: &buffers.own_tiles,
            table_start: layer.index() * moe.experts,
            flag: if ungrouped { flag_of(layer) } else { 0 },
        };
        let shape = (tokens, moe.experts, k);
        let (logits, slabs) = (&buffers.router_logits, &self.experts.slabs);
        router::launch(gpu, logits, slabs, choice, shape, moe.router.normalise)?;
        if !ungrouped {
            self.run_grouped(layer, cancel)?;
        } else if !step || !self.step_routed(layer, cancel)? {
            let (gpu, buffers) = (&mut self.gpu, &self.mixture);
            let work = experts::Work {
                tiles: &buffers.own_tiles,
                first: 0,
                count: tokens * k,
                pairs: 1,
                order: &buffers.own_order,
                k,
                table_start: layer.index() * self.config.moe.experts,
                flag: flag_of(layer),
            };
            let normed = &self.registers[Register::Normed as usize];
            run_tiles(gpu, &self.experts, layer, work, normed, buffers)?;
            if !step {
                self.count(tokens * k);
            }
        }
        self.steps.note_combine(&self.gpu);
        self.mixture_sum(mixture)
    }

    /// Uses of records that were in the GPU's memory.
    pub(super) fn count(&mut self, uses: usize) {
        match self.phase {
            Phase::Decode => self.experts.counters.hits += uses as u64,
            Phase::Prefill => self.experts.counters.resident += uses as u64,
        }
    }

    /// Reads the choice back and runs the experts in groups: those that have slots, then the others as they land.
    fn run_grouped(&mut self, layer: LayerId, cancel: &dyn Cancel) -> Result<(), EngineError> {
        let bytes = 4 * (self.tokens * self.options.top_k) as u64;
        let control = self.gpu.control().clone();
        let places = [(&control, 0, CONTROL_BYTES), (&self.mixture.ids, 0, bytes)];
        let words = words(&self.gpu.read(&places)?);
        let (control, chosen) = words.split_at(CONTROL_WORDS);
        self.check_finite(control[1])?;
        self.run_chosen(layer, chosen, true, cancel)
    }

    /// Loads what a layer missed and runs it; with `all`, before that what has slots.
    pub(super) fn run_chosen(
        &mut self,
        layer: LayerId,
        chosen: &[u32],
        all: bool,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let work = Assignments::new(chosen, self.config.moe.experts);
        let (there, missing) = self.experts.parted(layer, &work);
        self.gpu.write_words(&self.mixture.order, 0, &work.order)?;
        let used = self.experts.note_used(layer, chosen);
        self.count(used);
        if all {
            self.run_members(layer, &work, &there)?;
            // What runs already is queued before anything that is written from here on.
            self.gpu.submit()?;
        }
        self.load_members(layer, &work, &missing, cancel)
    }

    /// Loads records and runs their experts, as many at a time as there are slots.
    fn load_members(
        &mut self,
        layer: LayerId,
        work: &Assignments,
        missing: &[usize],
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        if missing.is_empty() {
            return Ok(());
        }
        let first = layer.index() * self.config.moe.experts;
        let store = Arc::clone(&self.experts.store);
        let ids: Vec<_> = missing.iter().map(|&it| ExpertId(work.experts[it] as u16)).collect();
        let mut visit = store.visit(layer, &ids, self.phase)?;
        let wanted = || !cancel.is_cancelled();
        let mut group = Vec::new();
        self.experts.clock += 1;
        for place in visit.order().to_vec() {
            let slot = match self.experts.victim() {
                Some(slot) => slot,
                None => {
                    self.run_members(layer, work, &group)?;
                    group.clear();
                    self.experts.clock += 1;
                    self.experts.victim().expect("a plan has a slot at least")
                }
            };
            let record = first + usize::from(ids[place].0);
            let bytes = visit.wait_while(place, &wanted)?;
            self.experts.put(&mut self.gpu, slot, record, &bytes)?;
            visit.release(place);
            group.push(missing[place]);
        }
        self.run_members(layer, work, &group)
    }

    /// Runs experts that have slots.
    fn run_members(
        &mut self,
        layer: LayerId,
        work: &Assignments,
        members: &[usize],
    ) -> Result<(), EngineError> {
        if members.is_empty() {
            return Ok(());
        }
        let pairs = match (self.by_matrices(), work.most()) {
            (true, _) => gpu::op::tile::EXPERT_TOKENS,
            (false, 1) => 1,
            (false, _) => experts::TILE_TOKENS,
        };
        let tiles = work.tiles(members, pairs as usize);
        let (gpu, buffers) = (&mut self.gpu, &self.mixture);
        gpu.write_words(&buffers.tiles, 0, &tiles)?;
        let launched = experts::Work {
            tiles: &buffers.tiles,
            first: 0,
            count: tiles.len() / 3,
            pairs,
            order: &buffers.order,
            k: self.options.top_k,
            table_start: layer.index() * self.config.moe.experts,
            flag: flag_of(layer),
        };
        let normed = &self.registers[Register::Normed as usize];
        match &self.halves {
            Some(halves) if self.phase == Phase::Prefill => {
                let shape = (self.tokens, self.options.top_k);
                let (record, slabs) = (self.experts.record(layer), &self.experts.slabs);
                run_matrices(gpu, &record, slabs, launched, normed, (buffers, halves), shape)
            }
            _ => run_tiles(gpu, &self.experts, layer, launched, normed, buffers),
        }
    }
}

/// Both halves of the experts of some tiles, by matrices: of `(tokens, k)`.
fn run_matrices(
    gpu: &mut Gpu,
    record: &experts::Record,
    slabs: &Slabs,
    work: experts::Work<'_>,
    normed: &Buffer,
    (buffers, of): (&MixtureBuffers, &halves::Halves),
    (tokens, k): (usize, usize),
) -> Result<(), EngineError> {
    let (inner, rows) = (&buffers.inner, &buffers.rows);
    let parts = (0..work.count).step_by(TILES_TOGETHER).map(|first| {
        let count = (work.count - first).min(TILES_TOGETHER);
        experts::Work { first, count, ..work }
    });
    halves::launch(gpu, normed, of, (tokens, record.hidden))?;
    for part in parts.clone() {
        tile::launch_experts(gpu, experts::Half::GateUp, record, slabs, part, of, inner)?;
    }
    halves::launch(gpu, inner, of, (tokens * k, record.inner))?;
    for part in parts {
        tile::launch_experts(gpu, experts::Half::Down, record, slabs, part, of, rows)?;
    }
    Ok(())
}

/// Both halves of the experts of some tiles.
fn run_tiles(
    gpu: &mut Gpu,
    of: &Experts,
    layer: LayerId,
    work: experts::Work<'_>,
    normed: &Buffer,
    buffers: &MixtureBuffers,
) -> Result<(), EngineError> {
    let record = of.layouts[layer.index()].record_shape();
    let (inner, rows) = (&buffers.inner, &buffers.rows);
    for first in (0..work.count).step_by(TILES_TOGETHER) {
        let count = (work.count - first).min(TILES_TOGETHER);
        let part = experts::Work { first, count, ..work };
        experts::launch(gpu, experts::Half::GateUp, &record, &of.slabs, part, normed, inner)?;
        experts::launch(gpu, experts::Half::Down, &record, &of.slabs, part, inner, rows)?;
    }
    Ok(())
}

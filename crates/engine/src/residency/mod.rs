//! Which expert records are in a device's memory, and how the others get there.
//!
//! Three tiers hold records: slots of a device, pinned slots of the store in RAM, the checkpoint on disk. [`Residency`]
//! is the one owner of what is known of the first two, and knows no driver: a device is two ports (`port.rs`), a memory
//! with slots ([`DeviceMemory`]) and a running step that asks for records ([`RunningStep`]).
//!
//! The way of a missing expert: [`Residency::begin_step`] gives room, the device finds no word for the record and asks,
//! `serving.rs` has it read and answers, [`Residency::end_step`] takes what the step used, [`Residency::learn`] plans
//! what to copy to the device, and the next `begin_step` begins the copies. What each file decides:
//!
//! - `placement.rs`: what the address table says of each record, and when a slot or a host copy may be written
//! - `serving.rs`: the loop of events while a step runs; `misses.rs`: what it learns, and the room it needs
//! - `moves.rs`: what moves between device and host, and when; `moves/resize.rs`: when slots lose their memory
//! - `drafts.rs`: what drafts of a head find, and what they leave out
//! - `predictor.rs`, `copy_queue.rs`: how far guesses of the next layer are trusted, and which are copied next
//! - `cache_pages.rs`: which pages of keys and values need memory
//!
//! Arrows point one way: backends use this room, and it uses none of them.

pub(crate) mod cache_pages;
pub(crate) mod copy_queue;
mod drafts;
mod misses;
mod moves;
mod placement;
mod port;
pub(crate) mod predictor;
mod serving;

use std::sync::Arc;

use store::cache::{ExpertStore, Held, Phase, PhaseCounters, StorageMode, StoreCounters};
use store::{ExpertId, LayerId};

use self::drafts::DraftUses;
use self::misses::MissService;
use self::moves::{FILLS_PER_STEP, Moves, Tiers};
use self::placement::{Fill, Placement};
pub(crate) use self::port::{DeviceMemory, Found, Request, RunningStep};
pub(crate) use self::serving::StepServer;
use crate::EngineError;

/// Records that are in device memory and in the host tier at most, once the host tier is full: those on their way.
pub const RECORDS_IN_BOTH: usize = 2 * FILLS_PER_STEP;
/// The part of the host tier that a prompt may take ([`store::cache::StoreOptions::prefill_part`]). Records pass
/// through it on their way to the staging area, so that a few waves are enough, and what else lies there the prompt
/// does not have to read: with 15 % of the experts in device memory and 20 % in RAM a sweep reads 67.5 % of them, with
/// a fourth as on the processor 68.6 (`moves/tests/simulation.rs`).
pub const PREFILL_PART: usize = 8;

/// Records, steps and slots that a residency is made for.
pub(crate) struct Dimensions {
    /// Layers of the model.
    pub(crate) layers: usize,
    /// Of each layer that has any.
    pub(crate) experts: usize,
    /// Experts that one layer of a step can ask for.
    pub(crate) per_layer: usize,
    /// Address of each slot in device memory.
    pub(crate) slots: Vec<u64>,
    /// Address of each of the store's arenas on the device.
    pub(crate) bases: Vec<u64>,
    /// Records may be outside device memory.
    pub(crate) can_move: bool,
}

/// Records by tier, and what moves them.
pub(crate) struct Residency<D: DeviceMemory> {
    store: Arc<ExpertStore>,
    /// Before what keeps records in their places: its copies end when it is dropped.
    device: D,
    placement: Placement<Held>,
    service: MissService,
    moves: Moves<D::Filling, D::Saving>,
    bases: Vec<u64>,
    can_miss: bool,
    can_move: bool,
    /// Slots that have memory.
    slots: usize,
    /// A prompt was processed since the table last named what the host tier holds.
    unnamed: bool,
    /// By layer: what the last step used, distinct, ascending.
    uses: Vec<Vec<ExpertId>>,
    /// By layer.
    has_experts: Vec<bool>,
    /// Of models with a head.
    drafts: Option<DraftUses>,
    /// What it was answered.
    answered: Vec<u32>,
    /// The last step's uses were not told to the policy yet.
    unlearned: bool,
    before: StoreCounters,
    /// Visits of layers by steps that could find everything in device memory, and what they used.
    resident_visits: u64,
    resident_uses: u64,
    /// Records of the host tier that were copied because a step asked for them.
    copied_for_steps: u64,
    prefill: PhaseCounters,
    /// Records of prompts that were read in the host tier without a visit.
    prompt_reads: u64,
}

impl<D: DeviceMemory> Residency<D> {
    /// Nothing is in device memory yet.
    pub(crate) fn new(store: Arc<ExpertStore>, device: D, dimensions: Dimensions) -> Self {
        let Dimensions { layers, experts, per_layer, slots, bases, can_move } = dimensions;
        let pool_slots = store.arenas().iter().map(|arena| arena.slots()).collect();
        let pool_of_layer =
            (0..layers).map(|layer| store.arena_of(LayerId(layer as u16))).collect::<Vec<_>>();
        let has_experts: Vec<bool> = pool_of_layer.iter().map(Option::is_some).collect();
        // Keys of layers without experts are never asked for.
        let pool_of_layer = pool_of_layer.into_iter().map(|pool| pool.unwrap_or(0)).collect();
        let can_miss = can_move && store.report().mode != StorageMode::Resident;
        Self {
            device,
            slots: slots.len(),
            placement: Placement::new(pool_of_layer, experts, slots),
            service: MissService::new(pool_slots, per_layer),
            moves: Moves::new(can_miss),
            bases,
            can_miss,
            can_move,
            unnamed: true,
            uses: vec![Vec::new(); layers],
            has_experts,
            drafts: None,
            answered: Vec::new(),
            unlearned: false,
            before: StoreCounters::default(),
            resident_visits: 0,
            resident_uses: 0,
            copied_for_steps: 0,
            prefill: PhaseCounters::default(),
            prompt_reads: 0,
            store,
        }
    }

    /// Fills the slots that have memory evenly over the layers, then names what the host tier holds where that stays.
    /// `filled` is told how many slots are.
    ///
    /// # Errors
    /// A failed read or copy.
    pub(crate) fn load(&mut self, mut filled: impl FnMut(usize)) -> Result<(), EngineError> {
        let store = Arc::clone(&self.store);
        let experts = self.placement.experts();
        let layers: Vec<usize> =
            (0..self.uses.len()).filter(|&layer| self.has_experts[layer]).collect();
        let mut slot = 0;
        for (index, &layer) in layers.iter().enumerate() {
            let id = LayerId(layer as u16);
            let count = self.slots / layers.len() + usize::from(index < self.slots % layers.len());
            let wanted: Vec<ExpertId> = (0..count.min(experts) as u16).map(ExpertId).collect();
            let mut visit = store.visit(id, &wanted, Phase::Prefill)?;
            for (member, &expert) in wanted.iter().enumerate() {
                visit.wait(member)?;
                let held = store.hold(id, expert).expect("the visit keeps the record in its slot");
                let key = self.placement.key(id, expert);
                self.device.load(&held, slot, key)?;
                self.placement.place(Fill { slot, key });
                if self.can_miss {
                    self.store.mark_on_device(std::iter::once((id, expert, true)));
                }
                drop(held);
                visit.release(member);
                slot += 1;
                filled(slot as usize);
            }
        }
        if self.can_move && !self.can_miss {
            self.name_host_copies();
        }
        self.before = self.store.counters();
        Ok(())
    }

    /// Slots that have memory.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The device's memory.
    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// As [`device`](Self::device), to change what is not the residency's.
    pub(crate) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The host tier.
    pub(crate) fn store(&self) -> &Arc<ExpertStore> {
        &self.store
    }

    /// True when records may be in neither memory.
    pub(crate) fn can_miss(&self) -> bool {
        self.can_miss
    }

    /// True when records may be outside device memory.
    pub(crate) fn can_move(&self) -> bool {
        self.can_move
    }

    /// True when slots hold every record.
    pub(crate) fn all_in_device(&self) -> bool {
        let layers = self.has_experts.iter().filter(|has| **has).count();
        self.placement.in_device_count() == layers * self.placement.experts()
    }

    /// Between steps: names what the host tier has and what was copied, begins to copy what is worth it, and makes room
    /// for what the step may miss.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn begin_step(&mut self) -> Result<(), EngineError> {
        if self.can_miss && std::mem::take(&mut self.unnamed) {
            self.name_host_copies();
        }
        let (moves, mut tiers, service, device) = self.parts();
        moves.between_steps(&mut tiers, service, device)
    }

    /// The words of the address table, by key, once after they have changed: the device's table has to be written.
    pub(crate) fn changed_words(&mut self) -> Option<&[u64]> {
        self.placement.take_changed().then(|| self.placement.words())
    }

    /// Tells a device the words of the address table, by key, once after they have changed.
    pub(crate) fn tell_words(&mut self, tell: impl FnOnce(&mut D, &[u64])) {
        if self.placement.take_changed() {
            tell(&mut self.device, self.placement.words());
        }
    }

    /// While a step runs: tells the policy what the one before has used, and plans what to copy before the next.
    pub(crate) fn learn(&mut self) {
        if std::mem::take(&mut self.unlearned) {
            let in_host = &self.service.in_host;
            self.copied_for_steps += in_host.len() as u64;
            self.answered.retain(|key| !in_host.contains(key));
            let head = self.drafts.as_ref().map(|drafts| drafts.layer);
            let uses = (&*self.uses, head);
            self.moves.learn(&self.store, &self.placement, uses, &self.answered);
        }
    }

    /// The device's memory, and what serves a running step.
    pub(crate) fn serving(&mut self) -> (&mut D, StepServer<'_>) {
        let tiers =
            Tiers { store: &self.store, placement: &mut self.placement, bases: &self.bases };
        let server = StepServer { service: &mut self.service, tiers, answered: &mut self.answered };
        (&mut self.device, server)
    }

    /// Keys that the last step was answered.
    pub(crate) fn answered(&self) -> &[u32] {
        &self.answered
    }

    /// A step has ended well that chose these experts of each layer, in any order, some of them several times. Of a
    /// head's layer drafts before it have.
    pub(crate) fn end_step<I: Iterator<Item = ExpertId>>(&mut self, chosen: impl Fn(usize) -> I) {
        for (layer, uses) in self.uses.iter_mut().enumerate() {
            uses.clear();
            if !self.has_experts[layer] {
                continue;
            }
            match self.drafts.as_mut().filter(|drafts| drafts.layer.index() == layer) {
                Some(drafts) => uses.append(&mut drafts.used),
                None => uses.extend(chosen(layer)),
            }
            uses.sort_unstable();
            uses.dedup();
        }
        if !self.device.reads_host() {
            // What was read and copied in time was not asked for again.
            let used = |key: &u32| {
                let (layer, expert) = self.placement.record(*key);
                self.uses[layer.index()].binary_search(&expert).is_ok()
            };
            self.service.note_uses_of_prefetched(used);
        }
        self.unlearned = true;
    }

    /// True when the table names a host copy of the record.
    pub(crate) fn in_host(&self, key: u32) -> bool {
        self.placement.in_host(key)
    }

    /// What each layer of the last step used, distinct, ascending.
    pub(crate) fn uses(&self) -> &[Vec<ExpertId>] {
        &self.uses
    }

    /// Before the experts of a prompt's layer: what steps hold would leave it few slots to read into. Waits for moves,
    /// and gives every host copy back to the store, which keeps the records as long as nothing else needs the slots.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn begin_prompt_layer(&mut self) -> Result<(), EngineError> {
        if !self.can_miss || std::mem::replace(&mut self.unnamed, true) {
            return Ok(());
        }
        let (moves, mut tiers, _, device) = self.parts();
        moves.settle(&mut tiers, device)?;
        for key in 0..self.placement.words().len() as u32 {
            drop(self.placement.remove_host(key));
        }
        Ok(())
    }

    /// Which experts of a layer are in device memory, with the addresses of their slots, and which are not.
    pub(crate) fn split(
        &self,
        layer: LayerId,
        experts: &[ExpertId],
    ) -> (Vec<(ExpertId, u64)>, Vec<ExpertId>) {
        let inside =
            |expert: &ExpertId| self.placement.in_device(self.placement.key(layer, *expert));
        let (inside, outside): (Vec<_>, Vec<_>) = experts.iter().copied().partition(inside);
        let words = self.placement.words();
        let address = |expert| words[self.placement.key(layer, expert) as usize];
        (inside.into_iter().map(|expert| (expert, address(expert))).collect(), outside)
    }

    /// Asks the store for all records of a layer that are not in device memory.
    pub(crate) fn read_ahead(&self, layer: LayerId) {
        let outside =
            |expert: &ExpertId| !self.placement.in_device(self.placement.key(layer, *expert));
        let all = (0..self.placement.experts() as u16).map(ExpertId);
        self.store.read_ahead(layer, &all.filter(outside).collect::<Vec<_>>());
    }

    /// Begins to read what the batch in progress will use for certain and no memory has, as far as the store has slots
    /// for it. In order of layers, with all that it will use of each.
    pub(crate) fn read_certain(&self, wanted: &[(LayerId, Vec<ExpertId>)]) {
        if !self.can_miss {
            return;
        }
        let words = self.placement.words();
        let outside = wanted.iter().map(|(layer, experts)| {
            let absent =
                |expert: &ExpertId| words[self.placement.key(*layer, *expert) as usize] == 0;
            (*layer, experts.iter().copied().filter(absent).collect())
        });
        self.store.read_certain(&outside.collect::<Vec<_>>());
    }

    /// Counts records of a prompt's layer that were in device memory.
    pub(crate) fn note_prompt_hits(&mut self, count: usize) {
        self.prefill.requests += count as u64;
        self.prefill.hits += count as u64;
    }

    /// Counts records of a prompt's layer that were read in the host tier.
    pub(crate) fn note_prompt_reads(&mut self, count: usize) {
        self.prompt_reads += count as u64;
    }

    /// Counts a layer of a prompt.
    pub(crate) fn note_prompt_layer(&mut self) {
        self.prefill.visits += 1;
    }

    /// Counts a step whose experts all were in device memory.
    pub(crate) fn note_resident(&mut self, layers: usize, per_layer: usize) {
        self.resident_visits += layers as u64;
        self.resident_uses += (layers * per_layer) as u64;
    }

    /// Between batches: the first `slots` slots keep their memory, and the records worth most. See [`Moves::shrink`].
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn shrink(&mut self, slots: usize) -> Result<(), EngineError> {
        let (moves, mut tiers, service, device) = self.parts();
        moves.shrink(&mut tiers, service, device, slots)?;
        self.slots = slots;
        Ok(())
    }

    /// Between batches: the first `slots` slots have memory, no fewer than before.
    pub(crate) fn grow(&mut self, slots: usize) {
        self.slots = slots;
        self.placement.resize(slots);
    }

    /// The store's counters with those of the device.
    pub(crate) fn counters(&self) -> StoreCounters {
        let mut counters = self.store.counters().since(&self.before);
        let moves = self.moves.counts();
        // Where kernels read slots alone, what was not asked for was in device memory.
        let over_bus =
            if self.device.reads_host() { moves.bus_hits } else { self.copied_for_steps };
        let inside = moves.device_hits + moves.bus_hits.saturating_sub(over_bus);
        counters.device.hits = inside + self.resident_uses;
        if !self.can_move {
            counters.decode.visits = self.resident_visits;
            counters.decode.requests = self.resident_uses;
            counters.decode.hits = self.resident_uses;
        }
        counters.prefill.visits += self.prefill.visits;
        counters.prefill.requests += self.prefill.requests + self.prompt_reads;
        counters.prefill.hits += self.prefill.hits + self.prompt_reads;
        counters.device.over_bus = over_bus;
        counters.device.copied = moves.filled;
        counters.device.returned = moves.returned;
        counters.device.given_up = moves.given_up;
        counters.device.slots = self.slots as u64;
        counters.device.resident = self.prefill.hits;
        let prefetched = &mut counters.device.prefetched;
        (prefetched.disk_read, prefetched.disk_used) = self.service.prefetch_reads();
        counters
    }

    /// Lets the table name every record that lies in the host tier, for which no slot is named where that may change.
    fn name_host_copies(&mut self) {
        for key in 0..self.placement.words().len() as u32 {
            let (layer, expert) = self.placement.record(key);
            if self.placement.in_host(key) || self.can_miss && self.placement.in_device(key) {
                continue;
            }
            if let Some(held) = self.store.hold(layer, expert) {
                let address = self.bases[held.arena()] + held.offset() as u64;
                self.placement.add_host(key, address, held);
            }
        }
    }

    /// What moves need, each apart.
    fn parts(
        &mut self,
    ) -> (&mut Moves<D::Filling, D::Saving>, Tiers<'_>, &mut MissService, &mut D) {
        let tiers =
            Tiers { store: &self.store, placement: &mut self.placement, bases: &self.bases };
        (&mut self.moves, tiers, &mut self.service, &mut self.device)
    }
}

//! The three tiers of expert records: slots in device memory, pinned slots of the store, the checkpoint on disk.
//!
//! The store's arenas are registered with the device, so a record in RAM is usable over the bus without a slot of
//! its own there. What decode uses is told to the store's policy after each step; the most wanted records are
//! copied to device memory on a stream of their own while later steps run, in place of the least wanted.

use std::sync::Arc;

use cuda::launch;
use cuda::{
    Device, DeviceBuffer, DevicePage, Event, ExpertShapes, Matrix, PAGE_BYTES, Registration,
    Saving, Source, Span, Stream,
};
use store::cache::{Admission, ExpertStore, Held, Phase, StorageMode, StoreCounters};
use store::format::ProjectionShape;
use store::record::Place;
use store::{ExpertId, LayerId};

use super::CudaOptions;
use super::STEP_TOKENS;
use super::buffers::{Buffers, Sizes};
use super::requirements::{STAGING_RECORDS, SlotShare};
use crate::EngineError;
use crate::residency::misses::MissService;
use crate::residency::moves::{Moves, Tiers};
use crate::residency::placement::{Fill, Placement};
use crate::residency::port::DeviceMemory;

/// Called while records are loaded: bytes loaded, bytes in all.
pub type LoadProgress = Box<dyn Fn(u64, u64) + Send>;

/// Where expert records will be.
pub struct ExpertMemory {
    /// The host tier. With a slot in device memory for every record it is only passed through.
    pub store: Arc<ExpertStore>,
    /// Bytes of a slot in device memory: those of the largest record, a multiple of 4096.
    pub slot_bytes: usize,
    /// Slots in device memory.
    pub device_slots: SlotShare,
    /// Told about the loading.
    pub progress: Option<LoadProgress>,
}

/// Records by tier, and what moves them.
pub(super) struct Experts {
    pub(super) store: Arc<ExpertStore>,
    /// This one and the next before `registrations`: copies use them until their streams are dropped.
    pub(super) copy_stream: Stream,
    /// Carries records back to the host tier, while `copy_stream` brings others.
    return_stream: Stream,
    pub(super) placement: Placement<Held>,
    pub(super) service: MissService,
    /// True when records may be in neither memory.
    pub(super) can_miss: bool,
    /// True when records may be outside device memory.
    pub(super) can_move: bool,
    pub(super) registrations: Vec<Registration>,
    /// Address of each arena on the device.
    pub(super) bases: Vec<u64>,
    slots: DeviceBuffer,
    /// Pages behind the part of the slots that always has memory.
    slot_pages: usize,
    moves: Moves<Event, Saving<Admission>>,
    /// Most slots, and how they share memory with keys and values.
    share: SlotShare,
    /// Slots that have memory.
    device_slots: usize,
    pub(super) slot_bytes: usize,
    /// Where the records of a prompt pass through, in two halves.
    pub(super) staging: DeviceBuffer,
    pub(super) shapes: Vec<ExpertShapes>,
    /// By layer: every record has its pieces where the fused kernels can read them.
    pub(super) aligned: Vec<bool>,
    before: StoreCounters,
    /// Visits of layers by steps that could find everything in device memory, and what they used.
    resident_visits: u64,
    resident_uses: u64,
    pub(super) prefill: store::cache::PhaseCounters,
}

/// Copies by two streams of the device.
struct Copies<'a> {
    slots: &'a DeviceBuffer,
    slot_bytes: usize,
    registrations: &'a [Registration],
    copy_stream: &'a Stream,
    return_stream: &'a Stream,
}

impl Copies<'_> {
    fn slot(&self, slot: u32) -> Span<u8> {
        self.slots.span(slot as usize * self.slot_bytes, self.slot_bytes)
    }
}

impl DeviceMemory for Copies<'_> {
    type Filling = Event;
    type Saving = Saving<Admission>;

    fn fill(&mut self, from: &Held, slot: u32) -> Result<Event, EngineError> {
        let from = host_source(self.registrations, self.slot_bytes, from);
        let event = Event::new(self.copy_stream.device())?;
        self.copy_stream.fetch(from, self.slot(slot).part(0, from.len()))?;
        event.record(self.copy_stream)?;
        Ok(event)
    }

    fn is_filled(&mut self, filling: &Event) -> Result<bool, EngineError> {
        Ok(filling.has_happened()?)
    }

    fn save(&mut self, slot: u32, to: Admission) -> Result<Saving<Admission>, EngineError> {
        Ok(self.return_stream.save(self.slot(slot), to, Admission::bytes)?)
    }

    fn is_saved(&mut self, saving: &Saving<Admission>) -> Result<bool, EngineError> {
        Ok(saving.has_ended()?)
    }

    fn finish(&mut self, saving: Saving<Admission>) -> Result<Admission, EngineError> {
        Ok(saving.finish()?)
    }

    fn wait_for(&mut self, filling: &Event) -> Result<(), EngineError> {
        Ok(filling.wait()?)
    }

    fn relocate(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        for &(from, to) in pairs {
            self.copy_stream.copy(self.slot(from), self.slot(to))?;
        }
        Ok(self.copy_stream.wait()?)
    }
}

/// A held record of registered memory as the source of a copy: as long as a slot where the arena goes on, else as it
/// is.
pub(super) fn host_source(
    registrations: &[Registration],
    slot_bytes: usize,
    held: &Held,
) -> Source {
    registrations[held.arena()].source(held.offset(), slot_bytes.min(held.bytes().len()))
}

impl Experts {
    /// Fills slots in device memory evenly over the layers, then names what the host tier holds.
    pub(super) fn load(
        device: &Device,
        sizes: &Sizes,
        buffers: &Buffers,
        expert_shapes: &[[ProjectionShape; 3]],
        memory: ExpertMemory,
        options: &CudaOptions,
        pages: Vec<DevicePage>,
    ) -> Result<(Self, Vec<DevicePage>), EngineError> {
        let ExpertMemory { store, slot_bytes, device_slots: share, progress } = memory;
        let (layers, experts) = (sizes.layers, sizes.experts);
        let total = layers * experts;
        let device_slots = share.start.min(total);
        let mut registrations = Vec::new();
        for arena in store.arenas() {
            registrations.push(Registration::new(device, Arc::clone(arena) as _)?);
        }
        let bases: Vec<u64> = registrations.iter().map(Registration::address).collect();
        let bytes = device_slots * slot_bytes;
        let slots = match share.grows() {
            true => DeviceBuffer::reserve(device, bytes, share.solid_pages * PAGE_BYTES)?,
            false => DeviceBuffer::new(device, bytes)?,
        };
        let can_move = share.full < total;
        let staged = if can_move { STAGING_RECORDS * slot_bytes } else { 0 };
        let addresses = (0..device_slots)
            .map(|slot| slots.span::<u8>(slot * slot_bytes, 1).address())
            .collect();
        let mut words: Vec<u8> = Vec::with_capacity(total * 36);
        let mut aligned = vec![true; layers];
        let mut equal: Vec<Option<[u32; 9]>> = Vec::with_capacity(layers);
        for (layer, aligned) in aligned.iter_mut().enumerate() {
            for expert in 0..experts {
                let places = store.places(LayerId(layer as u16), ExpertId(expert as u16));
                let places =
                    places.expect("the checkpoint's experts were checked against the shapes");
                let apart = |(index, place): (usize, &Place)| {
                    let unit = if index % 3 == 0 { launch::STEP_ALIGNMENT } else { 2 };
                    (place.start as usize).is_multiple_of(unit)
                };
                let starts = places.each_ref().map(|place| place.start);
                match equal.get(layer) {
                    None => equal.push(Some(starts)),
                    Some(Some(same)) if *same != starts => equal[layer] = None,
                    Some(_) => {}
                }
                *aligned &= places.iter().enumerate().all(apart);
                words.extend(places.iter().flat_map(|place| place.start.to_le_bytes()));
            }
        }
        buffers.places.write(0, &words)?;
        let shape = |layer: usize, shape: &[ProjectionShape; 3]| {
            let [gate, up, down] =
                shape.each_ref().map(|s| Matrix::shape(s.encoding, s.rows, s.columns));
            let places = buffers.places.span(layer * experts * 36, experts * 9);
            let shapes = ExpertShapes::new(gate, up, down, places);
            equal[layer].map_or(shapes, |same| shapes.with_equal_places(same))
        };
        let shapes = expert_shapes.iter().enumerate().map(|(i, s)| shape(i, s)).collect();
        let pool_slots = store.arenas().iter().map(|arena| arena.slots()).collect();
        let pool_of_layer = (0..layers)
            .map(|layer| store.arena_of(LayerId(layer as u16)).expect("every layer has experts"))
            .collect();
        let can_miss = can_move && store.report().mode != StorageMode::Resident;
        let minimum = (STEP_TOKENS.min(options.sequences.max(1)) * options.top_k).min(experts);
        let mut this = Self {
            service: MissService::new(pool_slots, minimum),
            placement: Placement::new(pool_of_layer, experts, addresses),
            can_miss,
            can_move,
            registrations,
            bases,
            slots,
            return_stream: Stream::new(device)?,
            moves: Moves::new(can_miss),
            slot_pages: 0,
            share,
            device_slots,
            slot_bytes,
            staging: DeviceBuffer::new(device, staged)?,
            shapes,
            aligned,
            copy_stream: Stream::new(device)?,
            before: StoreCounters::default(),
            resident_visits: 0,
            resident_uses: 0,
            prefill: store::cache::PhaseCounters::default(),
            store,
        };
        let rest = this.take_back_pages(pages)?;
        this.fill_slots(layers, experts, this.device_slots, progress.as_deref())?;
        if can_move && !can_miss {
            this.name_host_copies();
        }
        this.before = this.store.counters();
        Ok((this, rest))
    }

    /// Between batches: pages that keys and values need, from the last slots.
    pub(super) fn give_up_pages(&mut self, count: usize) -> Result<Vec<DevicePage>, EngineError> {
        let left = self.slot_pages.saturating_sub(count);
        let slots = self.share.slots_in(left, self.slot_bytes);
        self.with_moves(|moves, tiers, service, device| {
            moves.shrink(tiers, service, device, slots)
        })?;
        self.device_slots = slots;
        self.copy_stream.wait()?;
        self.return_stream.wait()?;
        let mut pages = Vec::with_capacity(count);
        while self.slot_pages > left {
            self.slot_pages -= 1;
            pages.push(self.slots.unmap(self.slot_pages)?);
        }
        Ok(pages)
    }

    /// Gives slots the memory of pages; gives those back that no slot needs.
    pub(super) fn take_back_pages(
        &mut self,
        mut pages: Vec<DevicePage>,
    ) -> Result<Vec<DevicePage>, EngineError> {
        let rest = pages.split_off(pages.len().min(self.slots.page_places() - self.slot_pages));
        let count = pages.len();
        self.slots.map(self.slot_pages, pages)?;
        self.slot_pages += count;
        if self.share.grows() {
            self.device_slots = self.share.slots_in(self.slot_pages, self.slot_bytes);
            self.placement.resize(self.device_slots);
        }
        Ok(rest)
    }

    fn fill_slots(
        &mut self,
        layers: usize,
        experts: usize,
        slots: usize,
        progress: Option<&(dyn Fn(u64, u64) + Send)>,
    ) -> Result<(), EngineError> {
        let store = Arc::clone(&self.store);
        let total = (slots * self.slot_bytes) as u64;
        let mut slot = 0;
        for layer in 0..layers {
            let id = LayerId(layer as u16);
            let count = slots / layers + usize::from(layer < slots % layers);
            let wanted: Vec<ExpertId> = (0..count.min(experts) as u16).map(ExpertId).collect();
            let mut visit = store.visit(id, &wanted, Phase::Prefill)?;
            for (member, &expert) in wanted.iter().enumerate() {
                visit.wait(member)?;
                let held = store.hold(id, expert).expect("the visit keeps the record in its slot");
                let from = self.host_source(&held);
                self.copy_stream.fetch(from, self.slot_span(slot).part(0, from.len()))?;
                self.copy_stream.wait()?;
                let key = self.placement.key(id, expert);
                self.placement.place(Fill { slot, key });
                if self.can_miss {
                    self.store.mark_on_device(std::iter::once((id, expert, true)));
                }
                drop(held);
                visit.release(member);
                slot += 1;
                if let Some(report) = progress {
                    report(u64::from(slot) * self.slot_bytes as u64, total);
                }
            }
        }
        Ok(())
    }

    /// Lets the table name every record that lies in the host tier, for which no slot is named where that may change.
    pub(super) fn name_host_copies(&mut self) {
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

    /// Before a prompt: waits for moves, and gives every host copy back to the store, which keeps the records as long
    /// as nothing else needs the slots.
    pub(super) fn release_host_copies(&mut self) -> Result<(), EngineError> {
        self.with_moves(|moves, tiers, _, device| moves.settle(tiers, device))?;
        for key in 0..self.placement.words().len() as u32 {
            drop(self.placement.remove_host(key));
        }
        Ok(())
    }

    /// Counts a step whose experts all were in device memory.
    pub(super) fn note_resident(&mut self, layers: usize, per_layer: usize) {
        self.resident_visits += layers as u64;
        self.resident_uses += (layers * per_layer) as u64;
    }

    /// The slots in device memory, those without memory of their own included.
    pub(super) fn all_slots(&self) -> Span<u8> {
        self.slots.span(0, self.share.start * self.slot_bytes)
    }

    fn slot_span(&self, slot: u32) -> Span<u8> {
        self.slots.span(slot as usize * self.slot_bytes, self.slot_bytes)
    }

    /// A held record as the source of a copy.
    pub(super) fn host_source(&self, held: &Held) -> Source {
        host_source(&self.registrations, self.slot_bytes, held)
    }

    /// Between steps: see [`Moves::between_steps`].
    pub(super) fn between_steps(&mut self) -> Result<(), EngineError> {
        self.with_moves(|moves, tiers, service, device| moves.between_steps(tiers, service, device))
    }

    /// Tells the policy what a step used: see [`Moves::learn`].
    pub(super) fn learn(&mut self, uses: &[Vec<ExpertId>], fetched: &[u32]) {
        self.moves.learn(&self.store, &self.placement, uses, fetched);
    }

    fn with_moves<T>(
        &mut self,
        act: impl FnOnce(
            &mut Moves<Event, Saving<Admission>>,
            &mut Tiers<'_>,
            &mut MissService,
            &mut Copies<'_>,
        ) -> T,
    ) -> T {
        let mut tiers =
            Tiers { store: &self.store, placement: &mut self.placement, bases: &self.bases };
        let mut copies = Copies {
            slots: &self.slots,
            slot_bytes: self.slot_bytes,
            registrations: &self.registrations,
            copy_stream: &self.copy_stream,
            return_stream: &self.return_stream,
        };
        act(&mut self.moves, &mut tiers, &mut self.service, &mut copies)
    }

    /// The store's counters with those of the device.
    pub(super) fn counters(&self) -> StoreCounters {
        let mut counters = self.store.counters().since(&self.before);
        let moves = self.moves.counts();
        counters.device.hits = moves.device_hits + self.resident_uses;
        if !self.can_move {
            counters.decode.visits = self.resident_visits;
            counters.decode.requests = self.resident_uses;
            counters.decode.hits = self.resident_uses;
        }
        counters.prefill.visits += self.prefill.visits;
        counters.prefill.requests += self.prefill.requests;
        counters.prefill.hits += self.prefill.hits;
        counters.device.over_bus = moves.bus_hits;
        counters.device.copied = moves.filled;
        counters.device.returned = moves.returned;
        counters.device.given_up = moves.given_up;
        counters.device.slots = self.device_slots as u64;
        counters.device.resident = self.prefill.hits;
        let prefetched = &mut counters.device.prefetched;
        (prefetched.disk_read, prefetched.disk_used) = self.service.prefetch_reads();
        counters
    }
}

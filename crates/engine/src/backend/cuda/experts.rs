//! The three tiers of expert records: slots in device memory, pinned slots of the store, the checkpoint on disk.
//!
//! The store's arenas are registered with the device, so a record in RAM is usable over the bus without a slot of
//! its own there. What decode uses is told to the store's policy after each step; the most wanted records are
//! copied to device memory on a stream of their own while later steps run, in place of the least wanted.

use std::sync::Arc;

use cuda::launch;
use cuda::{Device, DeviceBuffer, Event, ExpertShapes, Matrix, Registration, Source, Span, Stream};
use store::cache::{ExpertStore, Held, Phase, StorageMode, StoreCounters};
use store::format::ProjectionShape;
use store::record::Place;
use store::{ExpertId, LayerId};

use super::CudaOptions;
use super::STEP_TOKENS;
use super::buffers::{Buffers, Sizes};
use super::misses::MissService;
use super::placement::{Fill, Placement, choose_fills};
use super::requirements::STAGING_RECORDS;
use crate::EngineError;

/// Called while records are loaded: bytes loaded, bytes in all.
pub type LoadProgress = Box<dyn Fn(u64, u64) + Send>;

/// Where expert records will be.
pub struct ExpertMemory {
    /// The host tier. With a slot in device memory for every record it is only passed through.
    pub store: Arc<ExpertStore>,
    /// Bytes of a slot in device memory: those of the largest record, a multiple of 4096.
    pub slot_bytes: usize,
    /// Slots in device memory.
    pub device_slots: usize,
    /// Told about the loading.
    pub progress: Option<LoadProgress>,
}

/// Records whose copying to device memory begins between two steps, at most. With as many at every step instead of 16
/// at every second one, a cold start of the 35B shape with 19 % in device memory is a quarter faster (155 against 123
/// tok/s over 160 tokens, H200), and nothing is slower once warm: the margin below keeps copies few then.
const FILLS_PER_STEP: usize = 32;
/// How much more a record must be worth than the one it takes the place of, in units of the policy's score (for
/// decayed frequency: half a doubling). Without it, records of equal worth would change places for ever.
const MARGIN: f64 = 0.5;

/// Records by tier, and what moves them.
pub(super) struct Experts {
    pub(super) store: Arc<ExpertStore>,
    /// Before `registrations`: its copies read them until it is dropped.
    pub(super) copy_stream: Stream,
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
    device_slots: usize,
    pub(super) slot_bytes: usize,
    /// Where the records of a prompt pass through, in two halves.
    pub(super) staging: DeviceBuffer,
    pub(super) shapes: Vec<ExpertShapes>,
    /// By layer: every record has its pieces where the fused kernels can read them.
    pub(super) aligned: Vec<bool>,
    device: Device,
    planned: Vec<Fill>,
    copying: Vec<(Fill, Event)>,
    before: StoreCounters,
    /// Uses found in device memory, used over the bus, and copies into slots.
    device_hits: u64,
    bus_hits: u64,
    fills: u64,
    /// Visits of layers by steps that could find everything in device memory.
    resident_visits: u64,
    pub(super) prefill: store::cache::PhaseCounters,
    scores: Vec<f64>,
    records: Vec<(LayerId, ExpertId)>,
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
    ) -> Result<Self, EngineError> {
        let ExpertMemory { store, slot_bytes, device_slots, progress } = memory;
        let (layers, experts) = (sizes.layers, sizes.experts);
        let total = layers * experts;
        let device_slots = device_slots.min(total);
        let mut registrations = Vec::new();
        for arena in store.arenas() {
            registrations.push(Registration::new(device, Arc::clone(arena) as _)?);
        }
        let bases: Vec<u64> = registrations.iter().map(Registration::address).collect();
        let slots = DeviceBuffer::new(device, device_slots * slot_bytes)?;
        let can_move = device_slots < total;
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
            device_slots,
            slot_bytes,
            staging: DeviceBuffer::new(device, staged)?,
            shapes,
            aligned,
            copy_stream: Stream::new(device)?,
            device: device.clone(),
            planned: Vec::new(),
            copying: Vec::new(),
            before: StoreCounters::default(),
            device_hits: 0,
            bus_hits: 0,
            fills: 0,
            resident_visits: 0,
            prefill: store::cache::PhaseCounters::default(),
            scores: Vec::new(),
            records: Vec::new(),
            store,
        };
        this.fill_slots(layers, experts, device_slots, progress.as_deref())?;
        if can_move && !can_miss {
            this.name_host_copies();
        }
        this.before = this.store.counters();
        Ok(this)
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

    /// Lets the table name every record that lies in the host tier.
    pub(super) fn name_host_copies(&mut self) {
        for key in 0..self.placement.words().len() as u32 {
            let (layer, expert) = self.placement.record(key);
            if !self.placement.in_host(key)
                && let Some(held) = self.store.hold(layer, expert)
            {
                let address = self.bases[held.arena()] + held.offset() as u64;
                self.placement.add_host(key, address, held);
            }
        }
    }

    /// Gives every host copy back to the store, which keeps the records as long as nothing else needs the slots.
    pub(super) fn release_host_copies(&mut self) {
        for key in 0..self.placement.words().len() as u32 {
            drop(self.placement.remove_host(key));
        }
    }

    /// Counts a step whose experts all were in device memory.
    pub(super) fn note_resident(&mut self, layers: usize, per_layer: usize) {
        self.resident_visits += layers as u64;
        self.device_hits += (layers * per_layer) as u64;
    }

    /// The slots in device memory.
    pub(super) fn all_slots(&self) -> Span<u8> {
        self.slots.span(0, self.device_slots * self.slot_bytes)
    }

    fn slot_span(&self, slot: u32) -> Span<u8> {
        self.slots.span(slot as usize * self.slot_bytes, self.slot_bytes)
    }

    /// A held record as the source of a copy.
    pub(super) fn host_source(&self, held: &Held) -> Source {
        host_source(&self.registrations, self.slot_bytes, held)
    }

    /// Between steps: names what has been copied, takes the names of what will be overwritten away, makes room
    /// for misses.
    pub(super) fn between_steps(&mut self) -> Result<(), EngineError> {
        let mut index = 0;
        while index < self.copying.len() {
            if self.copying[index].1.has_happened()? {
                let (fill, _) = self.copying.swap_remove(index);
                self.placement.end_fill(fill);
            } else {
                index += 1;
            }
        }
        for fill in std::mem::take(&mut self.planned) {
            if self.placement.in_host(fill.key) && !self.placement.is_filling(fill.key) {
                self.placement.begin_fill(fill);
                self.copying.push((fill, Event::new(&self.device)?));
                self.start_copy(self.copying.len() - 1)?;
                self.fills += 1;
            }
        }
        if self.can_miss {
            self.service.make_room(&self.store, &mut self.placement);
        }
        Ok(())
    }

    /// No running step can name the slot: the one before has ended and the next one's table lacks it.
    fn start_copy(&mut self, index: usize) -> Result<(), EngineError> {
        let (fill, event) = &self.copying[index];
        let (layer, expert) = self.placement.record(fill.key);
        let held = self.store.hold(layer, expert).expect("a host copy is held");
        let from = self.host_source(&held);
        self.copy_stream.fetch(from, self.slot_span(fill.slot).part(0, from.len()))?;
        event.record(&self.copy_stream)?;
        Ok(())
    }

    /// Tells the policy what a step used (`[layers][count]` experts) and plans what to copy before the next.
    /// `fetched` are the keys that the step had to ask for.
    pub(super) fn learn(&mut self, uses: &[Vec<ExpertId>], fetched: &[u32]) {
        let mut wanted: Vec<(u32, f64)> = Vec::new();
        self.records.clear();
        let mut hits: Vec<ExpertId> = Vec::new();
        for (layer, experts) in uses.iter().enumerate() {
            let layer = LayerId(layer as u16);
            hits.clear();
            for &expert in experts {
                let key = self.placement.key(layer, expert);
                if self.placement.in_device(key) {
                    self.device_hits += 1;
                } else {
                    if !fetched.contains(&key) {
                        self.bus_hits += 1;
                    }
                    if self.placement.in_host(key) && !self.placement.is_filling(key) {
                        wanted.push((key, 0.0));
                        self.records.push((layer, expert));
                    }
                }
                if !fetched.contains(&key) {
                    hits.push(expert);
                }
            }
            self.store.note_uses(layer, &hits);
        }
        // Slots that are being copied into are neither held nor free, and their records are not wanted.
        if wanted.is_empty() || !self.planned.is_empty() {
            return;
        }
        self.store.scores(&self.records, &mut self.scores);
        wanted.iter_mut().zip(&self.scores).for_each(|(entry, &score)| entry.1 = score);
        let mut held: Vec<(u32, f64)> = Vec::new();
        self.records.clear();
        for (slot, key) in self.placement.held_slots() {
            held.push((slot, 0.0));
            self.records.push(self.placement.record(key));
        }
        self.store.scores(&self.records, &mut self.scores);
        held.iter_mut().zip(&self.scores).for_each(|(entry, &score)| entry.1 = score);
        let free = self.placement.free_slots();
        self.planned = choose_fills(&mut wanted, &mut held, free, MARGIN, FILLS_PER_STEP);
    }

    /// The store's counters with those of the device.
    pub(super) fn counters(&self) -> StoreCounters {
        let mut counters = self.store.counters().since(&self.before);
        if !self.can_move {
            counters.decode.visits = self.resident_visits;
            counters.decode.requests = self.device_hits;
            counters.decode.hits = self.device_hits;
        }
        counters.prefill.visits += self.prefill.visits;
        counters.prefill.requests += self.prefill.requests;
        counters.prefill.hits += self.prefill.hits;
        counters.device.hits = self.device_hits;
        counters.device.over_bus = self.bus_hits;
        counters.device.copied = self.fills;
        counters.device.resident = self.prefill.hits;
        let foretold = &mut counters.device.foretold;
        (foretold.disk_read, foretold.disk_used) = self.service.foretold_reads();
        counters
    }
}

//! Slots of expert records in a portable GPU's memory, and the copies between them and the host tier.
//!
//! Kernels read slots alone, so a record that a layer lacks has to be copied before the layer can be computed. It goes
//! to a *scratch slot*, that which was used longest ago; the others are *kept slots*, and the residency says what they
//! hold. A record that is to be kept is mostly in a scratch slot already: then both slots change their parts, and no
//! byte is copied. The table that kernels read names whatever lies in a slot of either kind.
//!
//! What is written lands behind all work that was recorded before, so a slot can be written at once, whatever may
//! still read it.
//!
//! Where the host tier holds every record and the device reads the process's memory, kernels read there what has no
//! slot ([`GpuSlots::import`]): nothing is missing then, and the device itself copies what slots get. Scratch slots are
//! for prompts, whose kernels would read a record several times.
//!
//! Where the host tier holds a part of the records, and the user wants it, kernels of steps read those there as well.
//! The residency keeps such a record in its place (`Held`) from the moment at which it is named until no step that may
//! read it runs, and the table follows it between batches ([`GpuSlots::follow`]).

use std::sync::Arc;

use gpu::op::experts::Layout;
use gpu::{Ask, Gpu, GpuError, HostMemory, HostSlabs, MemoryClass, Slabs};
use store::cache::{Admission, ExpertStore, Held, StorageMode};
use store::format::Projection;
use store::record::{PIECES, Piece, Place, piece_index};
use store::{ExpertId, LayerId};

use crate::EngineError;
use crate::residency::DeviceMemory;

/// What words of the table may count, in bytes, where kernels read the process's memory: a vector of four words at
/// least, and so much that 24 bits reach the largest binding.
const LEAD: usize = 256;
/// The bits of an address in the residency's words that count bytes of an arena; above them is its number plus one.
pub(super) const ARENA_SHIFT: u32 = 48;
/// Most scratch slots that few kept slots leave.
const SCRATCH_LIMIT: usize = 64;
/// The part of all slots that are scratch slots, where a token needs fewer.
const SCRATCH_PART: usize = 16;
/// Bytes of records on their way to the host tier at once. Where the GPU's memory is the host's, less was planned.
const SAVED_AT_ONCE: u64 = 64 << 20;
const SAVED_AT_ONCE_UNIFIED: u64 = 2 << 20;

/// Scratch slots among `slots` slots for `records` records: those of two layers of a token, so that one layer's can
/// arrive while another's are read.
pub(super) fn scratch_slots(slots: usize, records: usize, top_k: usize) -> usize {
    match slots < records {
        true => spare_slots(slots).max(2 * top_k).min(slots),
        false => 0,
    }
}

/// Scratch slots where only prompts need them.
pub(super) fn spare_slots(slots: usize) -> usize {
    (slots / SCRATCH_PART).min(SCRATCH_LIMIT)
}

/// A scratch slot.
#[derive(Clone, Copy)]
struct Scratch {
    slot: u32,
    used: u64,
}

/// A GPU with its slots.
pub(super) struct GpuSlots {
    pub(super) gpu: Gpu,
    pub(super) slabs: Slabs,
    store: Arc<ExpertStore>,
    /// By layer; `None` of those that another device computes.
    layouts: Vec<Option<Layout>>,
    /// Experts of a layer.
    experts: usize,
    /// By slot: the record that it has.
    contents: Vec<Option<u32>>,
    /// By record: the slot that has it.
    slots: Vec<Option<u32>>,
    /// By record: the word of the table for its place in the host tier, 0 while it has none. Empty where kernels read
    /// slots alone.
    homes: Vec<u32>,
    /// By record: [`host_leads`].
    leads: Vec<u32>,
    /// The host tier as the device copies from it, where it has every record for good: nothing is written there then.
    host: Option<HostSlabs>,
    /// By number of the residency: the slot.
    kept: Vec<u32>,
    scratch: Vec<Scratch>,
    /// Advances with every group of experts that runs.
    clock: u64,
    /// Bytes of records on their way to the host tier.
    saving: u64,
    /// Records that were written into slots.
    written: u64,
}

/// A record on its way to the host tier.
pub(super) struct Saving {
    to: Admission,
    key: u32,
    /// `None` once `to` has the record.
    ask: Option<Ask>,
}

/// The planes of a record as the store has it: weight, scales and biases of gate, up, down.
fn planes<'a>(bytes: &'a [u8], places: &[Place; PIECES]) -> [[&'a [u8]; 3]; 3] {
    let plane = |projection, piece| {
        let Place { start, length } = places[piece_index(projection, piece)];
        &bytes[start as usize..start as usize + length as usize]
    };
    [Projection::Gate, Projection::Up, Projection::Down].map(|projection| {
        [Piece::Weight, Piece::Scales, Piece::Biases].map(|piece| plane(projection, piece))
    })
}

/// By record: from which byte of its slot in the host tier on kernels read it; and how the records of each layer lie
/// from there on. `layouts` are their matrices. `None` where a layer's do not lie alike, or where kernels cannot read
/// them.
pub(super) fn host_leads(
    store: &ExpertStore,
    layouts: &[Option<Layout>],
    experts: usize,
) -> Option<(Vec<u32>, Vec<Option<Layout>>)> {
    let (mut all, mut placed) = (Vec::with_capacity(layouts.len() * experts), Vec::new());
    for (layer, layout) in layouts.iter().enumerate() {
        let Some(layout) = layout else {
            all.resize(all.len() + experts, 0);
            placed.push(None);
            continue;
        };
        let mut alike = None;
        for expert in 0..experts {
            let (layer, expert) = (LayerId(layer as u16), ExpertId(expert as u16));
            let places = store.places(layer, expert)?;
            let there = places.iter().filter(|place| place.length > 0);
            let first = there.map(|place| place.start as usize).min()?;
            let lead = first - first % LEAD;
            let mut starts = [[0; 3]; 3];
            for (start, place) in starts.as_flattened_mut().iter_mut().zip(places) {
                *start = (place.start as usize).saturating_sub(lead);
            }
            if *alike.get_or_insert(starts) != starts {
                return None;
            }
            all.push(lead as u32);
        }
        placed.push(Some(layout.placed(alike?)?));
    }
    Some((all, placed))
}

impl GpuSlots {
    /// Nothing is in any slot, and all are kept ones.
    pub(super) fn new(
        gpu: Gpu,
        slabs: Slabs,
        store: Arc<ExpertStore>,
        layouts: Vec<Option<Layout>>,
        experts: usize,
    ) -> Self {
        Self {
            contents: vec![None; slabs.slots()],
            slots: vec![None; layouts.len() * experts],
            homes: Vec::new(),
            leads: Vec::new(),
            host: None,
            kept: (0..slabs.slots() as u32).collect(),
            scratch: Vec::new(),
            clock: 1,
            saving: 0,
            written: 0,
            gpu,
            slabs,
            store,
            layouts,
            experts,
        }
    }

    /// The number of a record.
    pub(super) fn key(&self, layer: LayerId, expert: ExpertId) -> u32 {
        (layer.index() * self.experts + expert.index()) as u32
    }

    fn record(&self, key: u32) -> (LayerId, ExpertId) {
        let (layer, expert) = (key as usize / self.experts, key as usize % self.experts);
        (LayerId(layer as u16), ExpertId(expert as u16))
    }

    /// Lets kernels read records in the host tier, where they lie alike (`leads`), and the device copy them there,
    /// where that has all of them for good. Where the device cannot, the host copies.
    ///
    /// # Errors
    /// The device failed, or the user insists on what it cannot.
    pub(super) fn import(&mut self, leads: Option<Vec<u32>>) -> Result<(), EngineError> {
        let memory = |arena: &Arc<store::arena::SlotArena>| HostMemory {
            owner: Arc::clone(arena) as _,
            slot_bytes: arena.slot_bytes(),
            slots: arena.slots(),
        };
        let memories: Vec<_> = self.store.arenas().iter().map(memory).collect();
        let Some(host) = HostSlabs::new(&mut self.gpu, &memories)? else { return Ok(()) };
        let reads = leads.is_some() && self.slabs.read_host(&self.gpu, &host, LEAD);
        if let Some(leads) = leads.filter(|_| reads) {
            (self.homes, self.leads) = (vec![0; leads.len()], leads);
        }
        if self.holds_all() {
            self.host = Some(host);
            self.name_all();
        } else if !reads {
            let apart =
                "records of a layer lie differently in files, or RAM is more than it reaches";
            return Err(GpuError::NotInPlace(apart.to_owned()).into());
        }
        Ok(())
    }

    /// Names every record in the host tier, which has all of them for good.
    fn name_all(&mut self) {
        for key in 0..self.homes.len() as u32 {
            let (layer, expert) = self.record(key);
            if self.layouts[layer.index()].is_none() {
                continue;
            }
            let held = self.store.hold(layer, expert).expect("RAM has every record");
            self.set_home(key, self.home(key, held.arena(), held.offset()));
        }
    }

    /// The word of the table for a record in a slot of the host tier that begins at `offset`.
    fn home(&self, key: u32, arena: usize, offset: usize) -> u32 {
        self.slabs.host_word(arena, offset + self.leads[key as usize] as usize)
    }

    fn set_home(&mut self, key: u32, home: u32) {
        let index = key as usize;
        if std::mem::replace(&mut self.homes[index], home) != home && self.slots[index].is_none() {
            self.slabs.name(index, home);
        }
    }

    /// The record is where the residency's address says, and stays there until [`GpuSlots::follow`] says otherwise.
    pub(super) fn read_there(&mut self, key: u32, address: u64) {
        let home = match (address >> ARENA_SHIFT) as usize {
            0 => 0,
            arena => {
                let offset = address & ((1 << ARENA_SHIFT) - 1);
                self.home(key, arena - 1, offset as usize)
            }
        };
        self.set_home(key, home);
    }

    /// Between batches: the residency's words say anew where the host tier has records that kernels may read there.
    /// What is not named is given to other records, so that nothing may be handed over in between.
    pub(super) fn follow(&mut self, words: &[u64]) {
        if self.reads_in_place() && !self.holds_all() {
            for (key, &word) in words.iter().enumerate() {
                self.read_there(key as u32, word);
            }
        }
    }

    /// True where the host tier has every record for good.
    fn holds_all(&self) -> bool {
        self.store.report().mode == StorageMode::Resident
    }

    /// True where kernels find every record, in a slot or in the host tier.
    pub(super) fn finds_all(&self) -> bool {
        self.reads_in_place() && self.holds_all()
    }

    /// Records the copy of a record's planes to a slot. False where they do not lie at whole words.
    fn copy(&mut self, host: &HostSlabs, held: &Held, slot: u32, key: u32) -> bool {
        let (layer, expert) = self.record(key);
        let places = self.store.places(layer, expert).expect("a record of the store's");
        // From, to, and bytes; planes that follow each other in both are one.
        let mut runs: Vec<(usize, usize, usize)> = Vec::with_capacity(PIECES);
        for (start, place) in self.starts(layer).zip(places).filter(|(_, it)| it.length > 0) {
            let (from, to, bytes) = (place.start as usize, start as usize, place.length as usize);
            match runs.last_mut() {
                Some(last) if (last.0 + last.2, last.1 + last.2) == (from, to) => last.2 += bytes,
                _ => runs.push((from, to, bytes)),
            }
        }
        let whole = |&(from, to, bytes): &(usize, usize, usize)| (from | to | bytes) % 4 == 0;
        if !runs.iter().all(whole) {
            return false;
        }
        let (to, at) = self.slabs.place(slot as usize);
        for (from, start, bytes) in runs {
            let from = (held.arena(), held.offset() + from);
            host.copy(&mut self.gpu, from, (to, at + start as u64), bytes);
        }
        true
    }

    /// Where the planes of a layer's records begin in slots, in bytes.
    fn starts(&self, layer: LayerId) -> impl Iterator<Item = u32> {
        let places = self.layout(layer).record_shape().places.into_iter();
        places.flat_map(|it| [it.weight, it.scales, it.biases]).map(|word| 4 * word)
    }

    /// True where records can be brought to scratch slots.
    pub(super) fn has_scratch(&self) -> bool {
        !self.scratch.is_empty()
    }

    /// True where kernels read what has no slot in the host tier, if it is there.
    pub(super) fn reads_in_place(&self) -> bool {
        !self.homes.is_empty()
    }

    /// True where a record has no slot and RAM holds all of them, but the device can neither read nor copy them there.
    pub(super) fn host_copies(&self) -> bool {
        // A layer without experts has no record that could have a slot.
        let is_outside = |key: u32| {
            let (layer, _) = self.record(key);
            self.layouts[layer.index()].is_some() && self.slots[key as usize].is_none()
        };
        self.holds_all() && self.host.is_none() && (0..self.slots.len() as u32).any(is_outside)
    }

    /// The last `count` slots become scratch slots; nothing is in any yet.
    pub(super) fn set_scratch(&mut self, count: usize) {
        let slots = self.kept.split_off(self.kept.len() - count);
        self.scratch = slots.into_iter().map(|slot| Scratch { slot, used: 0 }).collect();
    }

    /// True when kernels find the record.
    pub(super) fn has(&self, key: u32) -> bool {
        self.in_slot(key) || self.homes.get(key as usize).is_some_and(|&home| home != 0)
    }

    /// True when a slot has the record.
    pub(super) fn in_slot(&self, key: u32) -> bool {
        self.slots[key as usize].is_some()
    }

    /// Lets the device know what the table says by now. Nothing that reads the table may be recorded before.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn write_table(&mut self) -> Result<(), EngineError> {
        Ok(self.slabs.write_table(&mut self.gpu)?)
    }

    /// How records of a layer lie in slots.
    pub(super) fn layout(&self, layer: LayerId) -> &Layout {
        self.layouts[layer.index()].as_ref().expect("a layer of this device")
    }

    /// Records that were written into slots so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// What was loaded so far is not counted.
    pub(super) fn forget_written(&mut self) {
        self.written = 0;
    }

    /// What [`GpuSlots::put`] writes from now on stays until the next group begins.
    pub(super) fn begin_group(&mut self) {
        self.clock += 1;
    }

    /// Records were used from their slots: those in scratch slots give way later.
    pub(super) fn note_used(&mut self, layer: LayerId, experts: &[u32]) {
        let first = layer.index() * self.experts;
        for scratch in &mut self.scratch {
            let key = self.contents[scratch.slot as usize].map(|key| key as usize);
            let expert = key.and_then(|key| key.checked_sub(first));
            if expert.is_some_and(|expert| experts.contains(&(expert as u32))) {
                scratch.used = self.clock;
            }
        }
    }

    /// Writes a record as the store has it into a scratch slot, unless a slot has it. False when all scratch slots are
    /// the group's.
    pub(super) fn put(&mut self, key: u32, held: &Held) -> Result<bool, EngineError> {
        if self.in_slot(key) {
            return Ok(true);
        }
        let Some(scratch) = self.oldest_scratch() else { return Ok(false) };
        self.scratch[scratch].used = self.clock;
        self.write(self.scratch[scratch].slot, key, held)?;
        Ok(true)
    }

    /// The scratch slot that was used longest ago, not by the group in the making.
    fn oldest_scratch(&self) -> Option<usize> {
        let idle = self.scratch.iter().enumerate().filter(|(_, it)| it.used < self.clock);
        let age = |it: &Scratch| (self.contents[it.slot as usize].is_some(), it.used);
        idle.min_by_key(|(_, it)| age(it)).map(|(index, _)| index)
    }

    /// Writes a record into a slot; what the slot had is forgotten.
    fn write(&mut self, slot: u32, key: u32, held: &Held) -> Result<(), EngineError> {
        let (layer, expert) = self.record(key);
        if let Some(old) = self.contents[slot as usize].take() {
            self.slots[old as usize] = None;
            self.slabs.name(old as usize, self.homes.get(old as usize).copied().unwrap_or(0));
        }
        let host = self.host.take();
        let copied = host.as_ref().is_some_and(|host| self.copy(host, held, slot, key));
        self.host = host;
        if !copied {
            let places = self.store.places(layer, expert).expect("a record of the store's");
            let record = self.layout(layer).record(planes(held.bytes(), places));
            self.slabs.fill(&mut self.gpu, slot as usize, &record)?;
        }
        self.slabs.name(key as usize, self.slabs.slot_word(slot as usize));
        self.contents[slot as usize] = Some(key);
        self.slots[key as usize] = Some(slot);
        self.written += 1;
        Ok(())
    }

    /// Writes a record as a slot has it to where the store wants its planes.
    fn restore(&self, key: u32, record: &[u8], to: &mut [u8]) {
        let (layer, expert) = self.record(key);
        let places = self.store.places(layer, expert).expect("a record that the store has");
        for (start, place) in self.starts(layer).zip(places) {
            let (start, length) = (start as usize, place.length as usize);
            let from = &record[start..start + length];
            to[place.start as usize..place.start as usize + length].copy_from_slice(from);
        }
    }
}

impl DeviceMemory for GpuSlots {
    type Filling = ();
    type Saving = Saving;

    fn reads_host(&self) -> bool {
        self.reads_in_place()
    }

    fn load(&mut self, from: &Held, slot: u32, key: u32) -> Result<(), EngineError> {
        self.write(self.kept[slot as usize], key, from)
    }

    fn fill(&mut self, from: &Held, slot: u32, key: u32) -> Result<(), EngineError> {
        if !self.reads_in_place() {
            self.begin_group();
            self.put(key, from)?;
        }
        let place = self.slots[key as usize];
        match self.scratch.iter_mut().find(|scratch| Some(scratch.slot) == place) {
            Some(scratch) => std::mem::swap(&mut scratch.slot, &mut self.kept[slot as usize]),
            None => self.write(self.kept[slot as usize], key, from)?,
        }
        Ok(())
    }

    fn is_filled(&mut self, (): &()) -> Result<bool, EngineError> {
        Ok(true)
    }

    /// Where too many are on their way, or one is larger than what was planned for, waits.
    fn save(&mut self, slot: u32, mut to: Admission) -> Result<Saving, EngineError> {
        let slot = self.kept[slot as usize] as usize;
        let key = self.contents[slot].expect("only what a slot holds is saved");
        let bytes = self.layout(self.record(key).0).bytes();
        let (buffer, start) = self.slabs.place(slot);
        let limit = match self.gpu.adapter().memory {
            MemoryClass::Unified => SAVED_AT_ONCE_UNIFIED,
            MemoryClass::Reachable | MemoryClass::Discrete => SAVED_AT_ONCE,
        };
        let total = bytes.next_multiple_of(4) as u64;
        if self.saving + total <= limit {
            let ask = self.gpu.ask(&[(buffer, start, total)])?;
            self.saving += total;
            return Ok(Saving { to, key, ask: Some(ask) });
        }
        let mut record = Vec::with_capacity(total as usize);
        while (record.len() as u64) < total {
            let at = record.len() as u64;
            let part = (total - at).min(SAVED_AT_ONCE_UNIFIED);
            record.extend(self.gpu.read(&[(buffer, start + at, part)])?);
        }
        self.restore(key, &record, to.bytes());
        Ok(Saving { to, key, ask: None })
    }

    fn is_saved(&mut self, saving: &Saving) -> Result<bool, EngineError> {
        match &saving.ask {
            Some(ask) => Ok(self.gpu.has_arrived(ask)?),
            None => Ok(true),
        }
    }

    fn finish(&mut self, saving: Saving) -> Result<Admission, EngineError> {
        let Saving { mut to, key, ask } = saving;
        if let Some(ask) = ask {
            let bytes = self.layout(self.record(key).0).bytes();
            self.saving -= bytes.next_multiple_of(4) as u64;
            let record = self.gpu.answer(ask)?;
            self.restore(key, &record, to.bytes());
        }
        Ok(to)
    }

    fn wait_for(&mut self, (): &()) -> Result<(), EngineError> {
        Ok(())
    }

    fn relocate(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        for &(from, to) in pairs {
            self.kept.swap(from as usize, to as usize);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::scratch_slots;

    #[test]
    fn scratch_slots_take_all_of_very_few_and_a_part_of_many() {
        for (slots, records, scratch) in
            [(1, 64, 1), (10, 64, 10), (20, 64, 16), (2048, 10240, 64), (64, 64, 0)]
        {
            assert_eq!(scratch_slots(slots, records, 8), scratch, "{slots} of {records}");
        }
    }
}

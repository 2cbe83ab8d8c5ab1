//! Which records move between device memory and the host tier, and when.
//!
//! What steps use most is copied into slots of the device, in place of what they use least. The two tiers hold
//! different records: once a slot has a record, its host copy goes back to the store, which lets it give way before
//! anything else; and a record that is to lose its slot is first copied to the host tier, unless the store still has
//! it, or its next use would be a read from disk. Where the host tier holds every record, all copies stay and nothing
//! is copied back.
//!
//! A move takes one gap between steps to begin and a later one to end. The copy to the host reads a slot that the table
//! names still; the slot is written only when that has ended, and after a step has begun that can no longer name it. So
//! a record is named somewhere all the time, and [`super::placement`] says what that takes.
//!
//! Who makes the copies is behind [`DeviceMemory`], so that all of this is tested without a device.

use store::cache::{ExpertStore, Held, Phase};
use store::{ExpertId, LayerId};

mod resize;

use super::misses::MissService;
use super::placement::{Fill, Placement, choose_fills};
use super::port::DeviceMemory;
use crate::EngineError;

/// Records whose copying to device memory begins between two steps, at most. With as many at every step instead of 16
/// at every second one, a cold start of the 35B shape with 19 % in device memory is a quarter faster (155 against 123
/// tok/s over 160 tokens, H200), and nothing is slower once warm: the margin below keeps copies few then.
pub(super) const FILLS_PER_STEP: usize = 32;
/// How much more a record must be worth than the one it takes the place of, in units of the policy's score (for
/// decayed frequency: half a doubling). Without it, records of equal worth would change places for ever.
const MARGIN: f64 = 0.5;
/// The part of a pool of the host tier that records on their way back may take: what a layer asks for must find room
/// beside them.
const RETURNING_PART: usize = 8;
/// The part of a pool of the host tier that sources of copies may take, for the same reason: a layer never asks for
/// more than half of the slots.
const SOURCES_PART: usize = 4;

/// The tiers between which records move.
pub(super) struct Tiers<'a> {
    pub(super) store: &'a ExpertStore,
    pub(super) placement: &'a mut Placement<Held>,
    /// Address of each of the store's arenas on the device.
    pub(super) bases: &'a [u64],
}

/// Moves under way and planned: `F` is a copy into a slot, `S` one out of a slot.
pub(super) struct Moves<F, S> {
    /// False where the host tier holds every record.
    exclusive: bool,
    planned: Vec<Fill>,
    filling: Vec<(Fill, F)>,
    /// Slots that are copied from before they are filled.
    leaving: Vec<(Fill, S)>,
    counts: MoveCounts,
    scores: Vec<f64>,
    records: Vec<(LayerId, ExpertId)>,
}

/// What was used where, and what was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MoveCounts {
    /// Uses found in device memory.
    pub(super) device_hits: u64,
    /// Uses over the bus.
    pub(super) bus_hits: u64,
    /// Copies into slots.
    pub(super) filled: u64,
    /// Copies to the host tier.
    pub(super) returned: u64,
    /// Records whose slots went to keys and values.
    pub(super) given_up: u64,
}

impl Tiers<'_> {
    /// The record may be named in the host tier while `held` lives.
    pub(super) fn add_host(&mut self, key: u32, held: Held) {
        let address = self.bases[held.arena()] + held.offset() as u64;
        self.placement.add_host(key, address, held);
    }

    fn mark(&self, key: u32, on_device: bool) {
        let (layer, expert) = self.placement.record(key);
        self.store.mark_on_device(std::iter::once((layer, expert, on_device)));
    }
}

impl<F, S> Moves<F, S> {
    /// No moves yet. `exclusive`: records are kept in one tier, as far as possible.
    pub(super) fn new(exclusive: bool) -> Self {
        Self {
            exclusive,
            planned: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
            counts: MoveCounts::default(),
            scores: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Everything counted so far.
    pub(super) fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Moves that have begun and not ended.
    fn under_way(&self) -> impl Iterator<Item = Fill> {
        let (filling, leaving) = (self.filling.iter(), self.leaving.iter());
        filling.map(|(fill, _)| *fill).chain(leaving.map(|(fill, _)| *fill))
    }

    /// Between steps: names what has been copied, takes the names of what will be overwritten away, makes room for
    /// misses.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn between_steps(
        &mut self,
        tiers: &mut Tiers<'_>,
        service: &mut MissService,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
    ) -> Result<(), EngineError> {
        self.end_copies(tiers, device)?;
        let mut leaving = Vec::new();
        for fill in std::mem::take(&mut self.planned) {
            if !tiers.placement.in_host(fill.key)
                || tiers.placement.is_filling(fill.key)
                || !self.has_room_for_source(tiers, fill.key, leaving.len())
            {
                continue;
            }
            if self.must_return(tiers, fill.slot) {
                tiers.placement.begin_return(fill);
                leaving.push(fill);
            } else if let Err(error) = self.begin_fill(tiers, device, fill) {
                for fill in leaving {
                    tiers.placement.end_return(fill);
                }
                return Err(error);
            }
        }
        if self.exclusive {
            service.make_room(tiers.store, tiers.placement);
        }
        // After a failure the others are not begun either, and keep their slots.
        let mut result = Ok(());
        for fill in leaving {
            let begun =
                if result.is_ok() { self.begin_return(tiers, device, fill) } else { Ok(false) };
            if matches!(begun, Ok(true)) {
                continue;
            }
            tiers.placement.end_return(fill);
            if result.is_ok() {
                result = begun.and_then(|_| self.begin_fill(tiers, device, fill));
            }
        }
        result
    }

    /// Begins to copy the record in a slot to the host tier. False when the store has no slot for it.
    fn begin_return(
        &mut self,
        tiers: &Tiers<'_>,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
        fill: Fill,
    ) -> Result<bool, EngineError> {
        let victim = tiers.placement.record_in(fill.slot).map(|key| tiers.placement.record(key));
        let admission = victim.and_then(|(layer, expert)| tiers.store.admit(layer, expert));
        let Some(admission) = admission else { return Ok(false) };
        self.leaving.push((fill, device.save(fill.slot, admission)?));
        self.counts.returned += 1;
        Ok(true)
    }

    /// True when the host copy of a record may be kept busy: misses must find slots to be read into.
    /// `leaving` more moves are about to begin.
    fn has_room_for_source(&self, tiers: &Tiers<'_>, key: u32, leaving: usize) -> bool {
        let pool_of = |key: u32| tiers.placement.pool(tiers.placement.record(key).0);
        let pool = pool_of(key);
        let busy = self.under_way().filter(|fill| pool_of(fill.key) == pool).count();
        !self.exclusive || busy + leaving < tiers.store.arenas()[pool].slots() / SOURCES_PART
    }

    /// True when the record in a slot has no copy in the host tier and should have one before it loses the slot.
    fn must_return(&mut self, tiers: &Tiers<'_>, slot: u32) -> bool {
        let Some(key) = tiers.placement.record_in(slot).filter(|_| self.exclusive) else {
            return false;
        };
        let record = tiers.placement.record(key);
        let pool = tiers.placement.pool(record.0);
        let room = tiers.store.arenas()[pool].slots() / RETURNING_PART;
        if tiers.placement.returning(pool) >= room || tiers.store.is_resident(record.0, record.1) {
            return false;
        }
        // What was never used is worth no more than what is on disk.
        tiers.store.scores(&[record], &mut self.scores);
        self.scores[0] > f64::NEG_INFINITY
    }

    /// Begins to fill a slot. No running step can name it: the one before has ended and the next one's table lacks it.
    fn begin_fill(
        &mut self,
        tiers: &mut Tiers<'_>,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
        fill: Fill,
    ) -> Result<(), EngineError> {
        let victim = tiers.placement.record_in(fill.slot);
        tiers.placement.begin_fill(fill);
        if let Some(key) = victim.filter(|_| self.exclusive) {
            tiers.mark(key, false);
            let (layer, expert) = tiers.placement.record(key);
            if !tiers.placement.in_host(key)
                && let Some(held) = tiers.store.hold(layer, expert)
            {
                tiers.add_host(key, held);
            }
        }
        let source = tiers.placement.host_hold(fill.key).expect("the source has a host copy");
        self.filling.push((fill, device.fill(source, fill.slot, fill.key)?));
        self.counts.filled += 1;
        Ok(())
    }

    /// Names what has been copied; slots whose records have returned are filled.
    fn end_copies(
        &mut self,
        tiers: &mut Tiers<'_>,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
    ) -> Result<(), EngineError> {
        let mut index = 0;
        while index < self.filling.len() {
            if device.is_filled(&self.filling[index].1)? {
                let (fill, _) = self.filling.swap_remove(index);
                self.end_fill(tiers, fill);
            } else {
                index += 1;
            }
        }
        let mut index = 0;
        while index < self.leaving.len() {
            if device.is_saved(&self.leaving[index].1)? {
                let (fill, saving) = self.leaving.swap_remove(index);
                let key = tiers.placement.end_return(fill);
                if let Some(held) = device.finish(saving)?.publish() {
                    tiers.add_host(key, held);
                }
                self.begin_fill(tiers, device, fill)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// The table names the slot from the next step on: nothing reads the host copy any more.
    fn end_fill(&self, tiers: &mut Tiers<'_>, fill: Fill) {
        tiers.placement.end_fill(fill);
        if self.exclusive {
            tiers.mark(fill.key, true);
            drop(tiers.placement.remove_host(fill.key));
        }
    }

    /// Between steps: waits for all copies. Records that were to lose their slots keep them; the copies that were made
    /// of them stay as long as nothing else needs the room.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn settle(
        &mut self,
        tiers: &mut Tiers<'_>,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
    ) -> Result<(), EngineError> {
        self.planned.clear();
        for (fill, filling) in std::mem::take(&mut self.filling) {
            device.wait_for(&filling)?;
            self.end_fill(tiers, fill);
        }
        for (fill, saving) in std::mem::take(&mut self.leaving) {
            tiers.placement.end_return(fill);
            drop(device.finish(saving)?.publish());
        }
        Ok(())
    }

    /// Tells the policy what a step used (`[layers][count]` experts), and of a head's layer what drafts did, and plans
    /// what to copy before the next. `fetched` are the keys that the step had to ask for.
    pub(super) fn learn(
        &mut self,
        store: &ExpertStore,
        placement: &Placement<Held>,
        (uses, head): (&[Vec<ExpertId>], Option<LayerId>),
        fetched: &[u32],
    ) {
        let mut wanted: Vec<(u32, f64)> = Vec::new();
        self.records.clear();
        let mut hits: Vec<ExpertId> = Vec::new();
        for (layer, experts) in uses.iter().enumerate() {
            let layer = LayerId(layer as u16);
            let drafts = head == Some(layer);
            if drafts && experts.is_empty() {
                continue;
            }
            hits.clear();
            for &expert in experts {
                let key = placement.key(layer, expert);
                if placement.in_device(key) {
                    self.counts.device_hits += u64::from(!drafts);
                } else {
                    if !fetched.contains(&key) {
                        self.counts.bus_hits += u64::from(!drafts);
                    }
                    if placement.in_host(key) && !placement.is_filling(key) {
                        wanted.push((key, 0.0));
                        self.records.push((layer, expert));
                    }
                }
                if !fetched.contains(&key) {
                    hits.push(expert);
                }
            }
            store.note_uses(layer, &hits, if drafts { Phase::Draft } else { Phase::Decode });
        }
        // Slots that are being copied from or into are neither held nor free, and their records are not wanted.
        if wanted.is_empty() || !self.planned.is_empty() {
            return;
        }
        store.scores(&self.records, &mut self.scores);
        wanted.iter_mut().zip(&self.scores).for_each(|(entry, &score)| entry.1 = score);
        let mut held: Vec<(u32, f64)> = Vec::new();
        self.records.clear();
        for (slot, key) in placement.held_slots() {
            held.push((slot, 0.0));
            self.records.push(placement.record(key));
        }
        store.scores(&self.records, &mut self.scores);
        held.iter_mut().zip(&self.scores).for_each(|(entry, &score)| entry.1 = score);
        let free = placement.free_slots();
        self.planned = choose_fills(&mut wanted, &mut held, free, MARGIN, FILLS_PER_STEP);
    }
}

#[cfg(test)]
mod tests;

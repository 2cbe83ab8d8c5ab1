//! Records held in their slots beyond a visit, for a device that addresses them by itself.
//!
//! A GPU looks experts up in a table of its own and reads them over the bus without asking. Whatever its
//! table names must neither move nor change, so each such record is a [`Held`]: a pin and a read lease, given
//! back on drop. What was used is told afterwards ([`ExpertStore::note_uses`]), so that one policy sees every
//! use, and what is least worth holding can be asked for ([`ExpertStore::scores`]).

use std::sync::Arc;

use crate::arena::{SlotArena, SlotReader};
use crate::cache::options::Phase;
use crate::cache::shared::{Shared, State};
use crate::cache::state::Load;
use crate::cache::store::ExpertStore;
use crate::record::{PIECES, Place};
use crate::{ExpertId, LayerId, SlotId};

/// A record that stays where it is until this value is dropped.
pub struct Held {
    shared: Arc<Shared>,
    slot: SlotId,
    arena: usize,
    offset: usize,
    lease: Option<SlotReader>,
}

impl Held {
    /// Which of [`ExpertStore::arenas`] it lies in.
    pub fn arena(&self) -> usize {
        self.arena
    }

    /// First byte of its slot within the arena.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The slot's bytes, alignment included.
    pub fn bytes(&self) -> &[u8] {
        self.lease.as_ref().map_or(&[], SlotReader::bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The lease ends before the slot can be claimed for another record.
        self.lease = None;
        self.shared.lock().residency.unpin(self.slot);
        self.shared.wake();
    }
}

impl Shared {
    /// Pins a ready slot for a device.
    pub(super) fn held(self: &Arc<Self>, state: &mut State, slot: SlotId) -> Held {
        let pool = state.residency.slots[slot.index()].pool;
        let used = state.residency.pin(slot, Phase::Decode);
        state.counters.ahead_used += u64::from(used);
        let (arena, offset) = self.place(slot, pool);
        Held { shared: Arc::clone(self), slot, arena, offset, lease: Some(self.reader(slot, pool)) }
    }
}

impl ExpertStore {
    /// The memory in which slots lie, for registration with a device; one arena per slot size.
    pub fn arenas(&self) -> &[Arc<SlotArena>] {
        self.shared.arenas()
    }

    /// Which of [`ExpertStore::arenas`] a layer's records go to; `None` for a layer without routed experts.
    pub fn arena_of(&self, layer: LayerId) -> Option<usize> {
        self.shared.records(layer).ok()?;
        self.shared.class(layer)
    }

    /// Where the pieces of a record lie within its slot, in the order of [`crate::record::piece_index`];
    /// `None` for an expert that the checkpoint does not have.
    pub fn places(&self, layer: LayerId, expert: ExpertId) -> Option<&[Place; PIECES]> {
        let records = self.shared.records(layer).ok()?;
        records.get(expert.index()).map(crate::record::RecordPlan::places)
    }

    /// Holds a record if it is in memory, all of it.
    pub fn hold(&self, layer: LayerId, expert: ExpertId) -> Option<Held> {
        self.shared.whole().ok()?;
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let slot = state.residency.find(state.residency.key(layer, expert))?;
        if state.residency.slots[slot.index()].load != Load::Ready {
            return None;
        }
        Some(self.shared.held(state, slot))
    }

    /// Tells the store which records a device with memory of its own has from now on, or no longer. Copies of what it
    /// has give way first.
    pub fn mark_on_device(&self, records: impl Iterator<Item = (LayerId, ExpertId, bool)>) {
        let mut state = self.shared.lock();
        for (layer, expert, on_device) in records {
            let key = state.residency.key(layer, expert);
            state.residency.mark_on_device(key, on_device);
        }
    }

    /// True when a record is in memory, all of it; of mapped files only the system knows, and this says that it is.
    pub fn is_resident(&self, layer: LayerId, expert: ExpertId) -> bool {
        if self.mapped().is_some() {
            return true;
        }
        let state = self.shared.lock();
        let slot = state.residency.find(state.residency.key(layer, expert));
        slot.is_some_and(|slot| state.residency.slots[slot.index()].load == Load::Ready)
    }

    /// Tells the policy of a step, or of drafts, that used `experts` of a layer and found them in memory.
    pub fn note_uses(&self, layer: LayerId, experts: &[ExpertId], phase: Phase) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.residency.step(layer);
        for &expert in experts {
            let key = state.residency.key(layer, expert);
            state.residency.touch(key);
        }
        let count = experts.len() as u64;
        let counters = state.counters.phase_mut(phase);
        counters.visits += 1;
        counters.requests += count;
        counters.hits += count;
    }

    /// How much each record is worth keeping by the store's policy, resident or not: the smallest goes first.
    pub fn scores(&self, records: &[(LayerId, ExpertId)], scores: &mut Vec<f64>) {
        let state = self.shared.lock();
        let score = |&(layer, expert): &(LayerId, ExpertId)| {
            state.residency.score(state.residency.key(layer, expert))
        };
        scores.clear();
        scores.extend(records.iter().map(score));
    }
}

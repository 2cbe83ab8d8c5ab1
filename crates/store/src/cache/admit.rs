//! Records that come back from a device instead of from disk.
//!
//! A device that gives a record up may be the only memory that has it. [`ExpertStore::admit`] sets a slot aside for
//! it; the caller writes the record into it, and [`Admission::publish`] makes it resident like one that was read. Until
//! then it is found nowhere, so that no visit waits for it, and an admission that is dropped leaves nothing behind.

use std::sync::Arc;

use crate::arena::Target;
use crate::cache::held::Held;
use crate::cache::shared::Shared;
use crate::cache::store::ExpertStore;
use crate::{ExpertId, LayerId, SlotId};

/// A slot set aside for a record.
pub struct Admission {
    shared: Arc<Shared>,
    slot: SlotId,
    /// The permission to write, until it is published.
    target: Option<Target>,
}

impl Admission {
    /// All bytes of the slot: the record has to be laid out as in [`Held::bytes`].
    pub fn bytes(&mut self) -> &mut [u8] {
        self.target.as_mut().map_or(&mut [], Target::as_mut_slice)
    }

    /// All bytes are written: the record is resident, and held. `None` when a visit began to read it from disk
    /// meanwhile; then the slot is free again.
    pub fn publish(mut self) -> Option<Held> {
        // The permission to write ends before anybody may read.
        self.target = None;
        let mut state = self.shared.lock();
        let held = state
            .residency
            .publish_admission(self.slot)
            .then(|| self.shared.held(&mut state, self.slot));
        drop(state);
        self.shared.wake();
        held
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.target.take().is_some() {
            self.shared.lock().residency.give_up_admission(self.slot);
            self.shared.wake();
        }
    }
}

impl ExpertStore {
    /// Sets a slot aside for a record that is not in memory, as for one that decode has to read. `None` when it is in
    /// memory or on its way, when no slot can be had, and for a record that the checkpoint does not have.
    pub fn admit(&self, layer: LayerId, expert: ExpertId) -> Option<Admission> {
        let records = self.shared.records(layer).ok()?;
        if expert.index() >= records.len() || self.mapped().is_some() {
            return None;
        }
        let pool = self.shared.class(layer)?;
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let key = state.residency.key(layer, expert);
        if state.residency.find(key).is_some() {
            return None;
        }
        let claim = state.residency.claim_admission(pool, key)?;
        state.counters.note_eviction(&claim);
        let target = Some(self.shared.target(claim.slot, pool));
        drop(guard);
        Some(Admission { shared: Arc::clone(&self.shared), slot: claim.slot, target })
    }
}

//! Reads without a waiting visit, taken back before they begin.
//!
//! Engines keep few reads in flight, so nearly all of what a layer asked for waits in a queue of the engine's. What is
//! in flight is left to end: if all of a record lands, it is there for the next visit; else its slot is free then.

use crate::cache::shared::State;
use crate::cache::state::{Load, Residency, Slot};
use crate::cache::store::{ExpertStore, Source};
use crate::{LayerId, RecordKey, SlotId};

impl ExpertStore {
    /// Gives up what is read ahead for a layer and has not begun to be read: it will not be visited.
    pub fn forget_ahead(&self, layer: LayerId) {
        if self.shared.records(layer).is_err() || self.mapped().is_some() {
            return;
        }
        let mut state = self.shared.lock();
        self.withdraw(&mut state, |residency, slot| {
            slot.ahead && slot.key != RecordKey::NONE && residency.record(slot.key).0 == layer
        });
        drop(state);
        self.shared.wake();
    }

    /// Takes back the reads that have not begun of slots that no visit waits for and that are `unwanted`. Slots
    /// without a read in flight are free at once, the others when it ends.
    pub(super) fn withdraw(&self, state: &mut State, unwanted: impl Fn(&Residency, &Slot) -> bool) {
        let Source::Engine(storage) = &self.source else { return };
        let residency = &state.residency;
        let mut withdrawn = Vec::new();
        storage.withdraw(
            &mut |tag| {
                let slot = &residency.slots[SlotId(tag).index()];
                slot.load == Load::Reading && slot.pins == 0 && unwanted(residency, slot)
            },
            &mut withdrawn,
        );
        for request in withdrawn {
            let slot = SlotId(request.tag);
            state.in_flight -= 1;
            // The lease on the memory ends before the slot can be claimed again.
            drop(request);
            state.counters.withdrawn += u64::from(!state.residency.slots[slot.index()].abandoned);
            state.residency.withdraw_read(slot);
            if state.residency.slots[slot.index()].pending == 0 {
                state.residency.discard(slot);
            }
        }
    }
}

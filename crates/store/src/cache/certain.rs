//! Reads that begin before the visits that will need them, for certain.
//!
//! Where token ids alone decide the experts of some layers, all their records are known before the first of these
//! layers is computed. Their reads begin at once, after all demand. What is in memory already is kept from giving way
//! to them: it would have to be read again for the same step.

use crate::cache::state::Purpose;
use crate::cache::store::ExpertStore;
use crate::{ExpertId, LayerId, SlotId};

impl ExpertStore {
    /// Begins to read what of `wanted` is not in memory, as far as slots are free for it. The layers are those that the
    /// caller will visit, in that order, with these experts and no others. Nothing is done where records are mapped, or
    /// given back after each visit.
    pub fn read_certain(&self, wanted: &[(LayerId, Vec<ExpertId>)]) {
        if self.mapped().is_some() || self.shared.whole().is_err() {
            return;
        }
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let awaited = state.starving > 0 || state.visits.iter().any(|visit| visit.unassigned > 0);
        if awaited || !state.residency.retains() {
            return;
        }
        let records = wanted.iter().flat_map(|(layer, experts)| {
            let count = self.shared.records(*layer).map_or(0, <[_]>::len);
            let existing = experts.iter().filter(move |expert| expert.index() < count);
            existing.map(|&expert| (*layer, expert))
        });
        let (mut sheltered, mut missing): (Vec<SlotId>, Vec<_>) = (Vec::new(), Vec::new());
        for (layer, expert) in records {
            match state.residency.find(state.residency.key(layer, expert)) {
                Some(slot) => {
                    state.residency.shelter(slot);
                    sheltered.push(slot);
                }
                None => missing.push((layer, expert)),
            }
        }
        for (layer, expert) in missing {
            if self.shared.start_read(state, layer, expert, Purpose::Ahead).is_none() {
                break;
            }
            state.counters.ahead_issued += 1;
        }
        sheltered.into_iter().for_each(|slot| state.residency.unpin(slot));
        self.submit(state);
    }
}

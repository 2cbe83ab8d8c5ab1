//! What is learned of records that steps had to ask for, and the room that is kept for the next ones.
//!
//! [`MissService::serve`] answers a running step ([`super::serving`]). A held slot cannot take another record. Before
//! each step some are given back so that its misses find room ([`MissService::make_room`]); should they run out,
//! records of layers that the step has passed are given back meanwhile: when the device asks in layer `l`, all kernels
//! of layers before `l` have ended, so nothing can read those records any more, and later steps see a table without
//! them.
//!
//! Requests may also be *prefetched*: the device guesses that a layer which has not chosen yet will want a record.
//! Such reads begin only while the step waits for none, and only as long as all that a layer may ask for would still
//! find room, so that they take nothing from what the step needs. Nothing waits for them: their failure is no error,
//! and those in flight when the step ends are dropped.

use std::collections::VecDeque;

use store::cache::{ExpertStore, Held};
use store::{ExpertId, LayerId};

use super::moves::Tiers;
use super::placement::Placement;
use super::port::RunningStep;
use super::serving::Serving;
use crate::EngineError;

/// Room for misses, learned from the steps before.
pub(super) struct MissService {
    /// Slots of each pool of the host tier.
    pub(super) slots: Vec<usize>,
    /// Experts that one layer of a step can ask for.
    pub(super) minimum: usize,
    /// Misses of late steps, averaged.
    recent: f64,
    pub(super) prefetched: Prefetched,
    /// What a step asked for although it was in the host tier when the step began: its device reads slots alone.
    pub(super) in_host: Vec<u32>,
    scores: Vec<f64>,
    order: Vec<(u32, f64)>,
    records: Vec<(LayerId, ExpertId)>,
}

/// Prefetched requests of a step, and what became of all of them.
#[derive(Default)]
pub(super) struct Prefetched {
    /// Requests of one layer whose reads have not begun, best first.
    pub(super) listed: VecDeque<u32>,
    /// Layers that have chosen: for them nothing is prefetched any more.
    chosen: u16,
    /// Records that were read and not asked for yet.
    pub(super) landed: Vec<u32>,
    /// Requests whose reads were to begin, in this step.
    pub(super) wanted: usize,
    /// The same of late steps, averaged.
    recent: f64,
    /// Reads that were begun.
    pub(super) read: u64,
    /// Of these, asked for.
    pub(super) used: u64,
}

/// Weight of the newest step in the average of misses.
const RECENT: f64 = 0.2;
/// Slots kept free for each miss expected.
const RESERVE: f64 = 1.5;

impl MissService {
    /// A service over a host tier with pools of `slots` slots; one layer of a step needs up to `minimum` of them.
    pub(super) fn new(slots: Vec<usize>, minimum: usize) -> Self {
        Self {
            slots,
            minimum,
            recent: 0.0,
            prefetched: Prefetched::default(),
            in_host: Vec::new(),
            scores: Vec::new(),
            order: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Prefetched reads that were begun, and those of them that were asked for, since the start.
    pub(super) fn prefetch_reads(&self) -> (u64, u64) {
        (self.prefetched.read, self.prefetched.used)
    }

    /// A step has ended: what was prefetched, and used without having been asked for.
    pub(super) fn note_uses_of_prefetched(&mut self, used: impl Fn(&u32) -> bool) {
        let count = self.prefetched.landed.iter().filter(|key| used(key)).count();
        self.prefetched.used += count as u64;
        self.prefetched.landed.clear();
    }

    /// Between steps: gives the records back that are worth least until the expected misses have room.
    pub(super) fn make_room(&mut self, store: &ExpertStore, placement: &mut Placement<Held>) {
        let expected = (self.recent * RESERVE) as usize;
        // Beside what a layer may ask for, which prefetched reads leave free.
        let prefetched = (self.prefetched.recent * RESERVE).ceil() as usize;
        for pool in 0..placement.pools() {
            let slots = self.slots[pool];
            let reserve = expected.max(self.minimum) + prefetched;
            let reserve = reserve.min((slots / 2).max(self.minimum));
            let excess = (placement.host_slots(pool) + reserve).saturating_sub(slots);
            self.give_back(store, placement, excess, pool, u16::MAX);
        }
    }

    /// Serves a step until it has ended; every key that it is answered goes to `answered`. Gives the number of records
    /// that had to be fetched because the step waited.
    ///
    /// # Errors
    /// The first record that could not be read, once the step has ended; a device that failed.
    pub(super) fn serve(
        &mut self,
        step: &mut dyn RunningStep,
        tiers: &mut Tiers<'_>,
        answered: &mut Vec<u32>,
    ) -> Result<usize, EngineError> {
        self.prefetched.begin_step();
        self.in_host.clear();
        let (misses, failure) = Serving::new(step, self, tiers, answered).run()?;
        self.recent += RECENT * (misses as f64 - self.recent);
        self.prefetched.recent += RECENT * (self.prefetched.wanted as f64 - self.prefetched.recent);
        failure.map_or(Ok(misses), Err)
    }

    /// Gives back the `count` host copies in `pool`, of layers below `layers`, that are worth least.
    pub(super) fn give_back(
        &mut self,
        store: &ExpertStore,
        placement: &mut Placement<Held>,
        count: usize,
        pool: usize,
        layers: u16,
    ) {
        if count == 0 {
            return;
        }
        self.order.clear();
        self.records.clear();
        for key in placement.idle_host_copies() {
            let record = placement.record(key);
            if record.0.0 < layers && placement.pool(record.0) == pool {
                self.order.push((key, 0.0));
                self.records.push(record);
            }
        }
        store.scores(&self.records, &mut self.scores);
        for ((_, score), &found) in self.order.iter_mut().zip(&self.scores) {
            *score = found;
        }
        let count = count.min(self.order.len());
        if count < self.order.len() && count > 0 {
            self.order.select_nth_unstable_by(count - 1, |a, b| a.1.total_cmp(&b.1));
        }
        for &(key, _) in &self.order[..count] {
            drop(placement.remove_host(key));
        }
    }
}

impl Prefetched {
    fn begin_step(&mut self) {
        self.listed.clear();
        self.landed.clear();
        self.chosen = 0;
        self.wanted = 0;
    }

    /// A request of `layer` has come: the layers before it have chosen, and it has as well unless it is prefetched.
    /// What is still listed for them either was asked for or never will be.
    pub(super) fn note_progress(&mut self, layer: LayerId, prefetched: bool) {
        let chosen = layer.0 + u16::from(!prefetched);
        if chosen > self.chosen {
            self.chosen = chosen;
            self.listed.clear();
        }
    }

    pub(super) fn list(&mut self, layer: LayerId, key: u32) {
        if layer.0 >= self.chosen {
            self.listed.push_back(key);
        }
    }

    /// The step asks for a record that is there.
    pub(super) fn note_use(&mut self, key: u32) {
        if let Some(place) = self.landed.iter().position(|&landed| landed == key) {
            self.landed.swap_remove(place);
            self.used += 1;
        }
    }
}

#[cfg(test)]
mod tests;

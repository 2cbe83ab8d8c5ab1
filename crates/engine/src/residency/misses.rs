//! Serving what a running step asks for: records that are neither in device memory nor in the host tier.
//!
//! The device posts the key of each missing record and goes on with what it has; blocks that need the record
//! wait for its answer. [`MissService::serve`] runs on the engine's thread until the step is done: it starts a
//! read for every request the moment it appears (the store's I/O threads read into pinned slots), answers
//! with the address at which the device can read the record over the bus, and holds the record from then on.
//!
//! A held slot cannot take another record. Before each step some are given back so that its misses find room
//! ([`MissService::make_room`]); should they run out, records of layers that the step has passed are given back
//! meanwhile: when the device asks in layer `l`, all kernels of layers before `l` have ended, so nothing can
//! read those records any more, and later steps see a table without them.
//!
//! Requests may also be *prefetched*: the device guesses that a layer which has not chosen yet will want a record.
//! Such reads begin only while the step waits for none, and only as long as all that a layer may ask for would still
//! find room, so that they take nothing from what the step needs. Nothing waits for them: their failure is no error,
//! and those in flight when the step ends are dropped.

use std::collections::VecDeque;

use store::cache::{ExpertStore, Held, Phase, Visit};
use store::{ExpertId, LayerId};

use super::placement::Placement;
use super::port::{Request, RunningStep};
use crate::EngineError;

/// Room for misses, learned from the steps before.
pub(crate) struct MissService {
    /// Slots of each pool of the host tier.
    slots: Vec<usize>,
    /// Experts that one layer of a step can ask for.
    minimum: usize,
    /// Misses of late steps, averaged.
    recent: f64,
    prefetched: Prefetched,
    scores: Vec<f64>,
    order: Vec<(u32, f64)>,
    records: Vec<(LayerId, ExpertId)>,
}

/// Prefetched requests of a step, and what became of all of them.
#[derive(Default)]
struct Prefetched {
    /// Requests of one layer whose reads have not begun, best first.
    listed: VecDeque<u32>,
    /// Layers that have chosen: for them nothing is prefetched any more.
    chosen: u16,
    /// Records that were read and not asked for yet.
    landed: Vec<u32>,
    /// Requests whose reads were to begin, in this step.
    wanted: usize,
    /// The same of late steps, averaged.
    recent: f64,
    /// Reads that were begun.
    read: u64,
    /// Of these, asked for.
    used: u64,
}

/// A record on its way.
struct Fetch<'s> {
    key: u32,
    visit: Visit<'s>,
    /// The step waits for it.
    demanded: bool,
    prefetched: bool,
    /// It was prefetched and has to be read: the store did not have it.
    counted: bool,
}

/// A step that is being served.
struct Serving<'s> {
    port: &'s mut dyn RunningStep,
    store: &'s ExpertStore,
    placement: &'s mut Placement<Held>,
    bases: &'s [u64],
    fetching: Vec<Fetch<'s>>,
    /// Reads that had ended when those being waited for were last looked at.
    looked: Option<u64>,
    failure: Option<EngineError>,
    misses: usize,
}

/// Weight of the newest step in the average of misses.
const RECENT: f64 = 0.2;
/// Slots kept free for each miss expected.
const RESERVE: f64 = 1.5;
/// Prefetched reads in flight. As many records of megabytes keep a drive busy; each more would delay the next one that
/// the step waits for.
const PREFETCH_AT_ONCE: usize = 4;

impl MissService {
    /// A service over a host tier with pools of `slots` slots; one layer of a step needs up to `minimum` of them.
    pub(crate) fn new(slots: Vec<usize>, minimum: usize) -> Self {
        Self {
            slots,
            minimum,
            recent: 0.0,
            prefetched: Prefetched::default(),
            scores: Vec::new(),
            order: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Prefetched reads that were begun, and those of them that were asked for, since the start.
    pub(crate) fn prefetch_reads(&self) -> (u64, u64) {
        (self.prefetched.read, self.prefetched.used)
    }

    /// Between steps: gives the records back that are worth least until the expected misses have room.
    pub(crate) fn make_room(&mut self, store: &ExpertStore, placement: &mut Placement<Held>) {
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

    /// Serves a step until it has ended. Gives the number of records that had to be fetched because the step waited.
    ///
    /// # Errors
    /// The first record that could not be read, once the step has ended; a device that failed.
    pub(crate) fn serve(
        &mut self,
        port: &mut dyn RunningStep,
        store: &ExpertStore,
        placement: &mut Placement<Held>,
        bases: &[u64],
    ) -> Result<usize, EngineError> {
        let mut step = Serving {
            port,
            store,
            placement,
            bases,
            fetching: Vec::new(),
            looked: None,
            failure: None,
            misses: 0,
        };
        self.prefetched.begin_step();
        loop {
            let mut idle = true;
            while let Some(Request { key, prefetched }) = step.port.take_request() {
                idle = false;
                let layer = step.placement.record(key).0;
                self.prefetched.note_progress(layer, prefetched);
                match step.placement.host_hold(key) {
                    Some(held) if prefetched => step.port.copy_ahead(layer, key, held),
                    None if prefetched => self.prefetched.list(layer, key),
                    _ => self.demand(&mut step, key),
                }
            }
            self.read_prefetched(&mut step);
            // Taken before the look: what ends during it is looked for again.
            let ended = Some(store.ended_reads());
            if std::mem::replace(&mut step.looked, ended) != ended {
                let mut index = 0;
                while index < step.fetching.len() {
                    if step.fetching[index].visit.is_ready(0) {
                        idle = false;
                        let fetch = step.fetching.swap_remove(index);
                        self.land(&mut step, fetch);
                    } else {
                        index += 1;
                    }
                }
            }
            if step.fetching.iter().all(|fetch| !fetch.demanded) && step.port.is_done()? {
                break;
            }
            if idle {
                std::thread::yield_now();
            }
        }
        // What was prefetched too late is still in the ring, and would be taken for requests of the next step.
        while step.port.take_request().is_some() {}
        for fetch in step.fetching.drain(..) {
            // The store withdraws what has not begun of a visit that was given up.
            let _ = fetch.visit.wait_while(0, &|| false);
        }
        let misses = step.misses;
        self.recent += RECENT * (misses as f64 - self.recent);
        self.prefetched.recent += RECENT * (self.prefetched.wanted as f64 - self.prefetched.recent);
        step.failure.map_or(Ok(misses), Err)
    }

    /// The step waits for a record.
    fn demand(&mut self, step: &mut Serving<'_>, key: u32) {
        if let Some(address) = step.placement.host_address(key) {
            self.prefetched.note_use(key);
            step.port.answer(key, Some(address));
        } else if let Some(fetch) = step.fetching.iter_mut().find(|fetch| fetch.key == key) {
            let first = !std::mem::replace(&mut fetch.demanded, true);
            self.prefetched.used += u64::from(first && fetch.counted);
        } else {
            self.fetch(step, key);
        }
    }

    /// Begins to read a record that the step waits for.
    fn fetch(&mut self, step: &mut Serving<'_>, key: u32) {
        let (layer, expert) = step.placement.record(key);
        let pool = step.placement.pool(layer);
        if step.taken(pool) >= self.slots[pool] {
            self.give_back(step.store, step.placement, 1, pool, layer.0);
        }
        match step.store.visit(layer, &[expert], Phase::Decode) {
            Ok(visit) => {
                let (demanded, prefetched, counted) = (true, false, false);
                step.fetching.push(Fetch { key, visit, demanded, prefetched, counted });
                step.looked = None;
            }
            Err(error) => {
                step.port.answer(key, None);
                step.failure.get_or_insert(error.into());
            }
        }
        step.misses += 1;
    }

    /// Begins to read what is listed while the step waits for nothing.
    fn read_prefetched(&mut self, step: &mut Serving<'_>) {
        if self.prefetched.listed.is_empty() || step.fetching.iter().any(|fetch| fetch.demanded) {
            return;
        }
        while step.fetching.len() < PREFETCH_AT_ONCE
            && let Some(key) = self.prefetched.listed.pop_front()
        {
            let known = step.fetching.iter().any(|fetch| fetch.key == key);
            if known || step.placement.in_host(key) {
                continue;
            }
            self.prefetched.wanted += 1;
            let (layer, expert) = step.placement.record(key);
            let pool = step.placement.pool(layer);
            // All that a layer may ask for finds room without this slot, which cannot be given back before its
            // own layer has passed.
            if step.taken(pool) + self.minimum >= self.slots[pool] {
                continue;
            }
            // A visit that is refused is refused again, with a reason, to the demand.
            if let Ok(visit) = step.store.visit(layer, &[expert], Phase::Decode) {
                let (demanded, prefetched, counted) = (false, true, !visit.is_hit(0));
                self.prefetched.read += u64::from(counted);
                step.fetching.push(Fetch { key, visit, demanded, prefetched, counted });
                step.looked = None;
            }
        }
    }

    /// A read has ended.
    fn land(&mut self, step: &mut Serving<'_>, fetch: Fetch<'_>) {
        let Fetch { key, visit, demanded, prefetched, counted } = fetch;
        let (layer, expert) = step.placement.record(key);
        let held = visit.wait(0).map(|_| step.store.hold(layer, expert));
        match held {
            Ok(Some(held)) => {
                let address = step.bases[held.arena()] + held.offset() as u64;
                step.placement.add_host(key, address, held);
                step.port.answer(key, Some(address));
                if counted && !demanded {
                    self.prefetched.landed.push(key);
                }
            }
            Ok(None) => unreachable!("the visit keeps the record in its slot"),
            Err(_) if prefetched => {
                // The slot that failed is free only after the visit.
                drop(visit);
                if demanded {
                    self.fetch(step, key);
                }
            }
            Err(error) => {
                step.port.answer(key, None);
                step.failure.get_or_insert(error.into());
            }
        }
    }

    /// Gives back the `count` host copies in `pool`, of layers below `layers`, that are worth least.
    fn give_back(
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
    fn note_progress(&mut self, layer: LayerId, prefetched: bool) {
        let chosen = layer.0 + u16::from(!prefetched);
        if chosen > self.chosen {
            self.chosen = chosen;
            self.listed.clear();
        }
    }

    fn list(&mut self, layer: LayerId, key: u32) {
        if layer.0 >= self.chosen {
            self.listed.push_back(key);
        }
    }

    /// The step asks for a record that is there.
    fn note_use(&mut self, key: u32) {
        if let Some(place) = self.landed.iter().position(|&landed| landed == key) {
            self.landed.swap_remove(place);
            self.used += 1;
        }
    }
}

impl Serving<'_> {
    /// Slots of a pool that cannot take another record.
    fn taken(&self, pool: usize) -> usize {
        let same =
            |fetch: &&Fetch<'_>| self.placement.pool(self.placement.record(fetch.key).0) == pool;
        self.placement.host_slots(pool) + self.fetching.iter().filter(same).count()
    }
}

#[cfg(test)]
mod tests;

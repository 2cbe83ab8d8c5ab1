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

use store::cache::{ExpertStore, Held, Phase, Visit};
use store::{ExpertId, LayerId};

use super::placement::Placement;
use crate::EngineError;

/// The way to a running step.
pub(super) trait StepPort {
    /// The next record asked for, if there is one: its key. The same record may be asked for more than once.
    fn take_request(&mut self) -> Option<u32>;
    /// Tells the step where a record is; `None` when it cannot be had, which ends the step soon.
    fn answer(&mut self, key: u32, address: Option<u64>);
    /// True when the step has ended.
    ///
    /// # Errors
    /// The device failed.
    fn is_done(&mut self) -> Result<bool, EngineError>;
}

/// Room for misses, learned from the steps before.
pub(super) struct MissService {
    /// Slots of each pool of the host tier.
    slots: Vec<usize>,
    /// Experts that one layer of a step can ask for.
    minimum: usize,
    /// Misses of late steps, averaged.
    recent: f64,
    scores: Vec<f64>,
    order: Vec<(u32, f64)>,
    records: Vec<(LayerId, ExpertId)>,
}

/// Weight of the newest step in the average of misses.
const RECENT: f64 = 0.2;
/// Slots kept free for each miss expected.
const RESERVE: f64 = 1.5;

impl MissService {
    /// A service over a host tier with pools of `slots` slots, of which one layer of a step needs up to `minimum`.
    pub(super) fn new(slots: Vec<usize>, minimum: usize) -> Self {
        Self {
            slots,
            minimum,
            recent: 0.0,
            scores: Vec::new(),
            order: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Between steps: gives the records back that are worth least until the expected misses have room.
    pub(super) fn make_room(&mut self, store: &ExpertStore, placement: &mut Placement<Held>) {
        let expected = (self.recent * RESERVE) as usize;
        for pool in 0..placement.pools() {
            let slots = self.slots[pool];
            let reserve = expected.max(self.minimum).min((slots / 2).max(self.minimum));
            let excess = (placement.host_copies(pool) + reserve).saturating_sub(slots);
            self.give_back(store, placement, excess, pool, u16::MAX);
        }
    }

    /// Serves a step until it has ended. Gives the number of records that had to be fetched.
    ///
    /// # Errors
    /// The first record that could not be read, once the step has ended; a device that failed.
    pub(super) fn serve(
        &mut self,
        port: &mut dyn StepPort,
        store: &ExpertStore,
        placement: &mut Placement<Held>,
        bases: &[u64],
    ) -> Result<usize, EngineError> {
        let mut fetching: Vec<(u32, Visit<'_>)> = Vec::new();
        let mut failure: Option<EngineError> = None;
        let mut misses = 0;
        let mut looked = None;
        loop {
            let mut idle = true;
            while let Some(key) = port.take_request() {
                idle = false;
                if let Some(address) = placement.host_address(key) {
                    port.answer(key, Some(address));
                } else if fetching.iter().all(|(known, _)| *known != key) {
                    let (layer, expert) = placement.record(key);
                    let pool = placement.pool(layer);
                    let same = |(other, _): &&(u32, Visit<'_>)| {
                        placement.pool(placement.record(*other).0) == pool
                    };
                    let taken = placement.host_copies(pool) + fetching.iter().filter(same).count();
                    if taken >= self.slots[pool] {
                        self.give_back(store, placement, 1, pool, layer.0);
                    }
                    match store.visit(layer, &[expert], Phase::Decode) {
                        Ok(visit) => {
                            fetching.push((key, visit));
                            looked = None;
                        }
                        Err(error) => {
                            port.answer(key, None);
                            failure.get_or_insert(error.into());
                        }
                    }
                    misses += 1;
                }
            }
            // Taken before the look: what ends during it is looked for again.
            let ended = Some(store.ended_reads());
            let news = std::mem::replace(&mut looked, ended) != ended;
            fetching.retain(|(key, visit)| {
                if !news || !visit.is_ready(0) {
                    return true;
                }
                idle = false;
                let (layer, expert) = placement.record(*key);
                let held = visit.wait(0).map(|_| store.hold(layer, expert));
                match held {
                    Ok(Some(held)) => {
                        let address = bases[held.arena()] + held.offset() as u64;
                        placement.add_host(*key, address, held);
                        port.answer(*key, Some(address));
                    }
                    Ok(None) => unreachable!("the visit keeps the record in its slot"),
                    Err(error) => {
                        port.answer(*key, None);
                        failure.get_or_insert(error.into());
                    }
                }
                false
            });
            if fetching.is_empty() && port.is_done()? {
                break;
            }
            if idle {
                std::thread::yield_now();
            }
        }
        self.recent += RECENT * (misses as f64 - self.recent);
        failure.map_or(Ok(misses), Err)
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use store::cache::{SlotBudget, StorageMode, StoreOptions};

    use super::*;

    /// A device that goes through the layers of one step: in each it wants some experts, asks for those that
    /// its table lacks, and goes on when all are answered.
    struct Device<'a> {
        table: Vec<u64>,
        layers: &'a [Vec<u32>],
        layer: usize,
        asked: Vec<u32>,
        waiting: Vec<u32>,
        /// What it read: key and address.
        seen: Vec<(u32, u64)>,
        failed: bool,
    }

    impl Device<'_> {
        fn enter(&mut self) {
            for &key in &self.layers[self.layer] {
                match self.table[key as usize] {
                    // Each missing record is asked for twice, as two tokens would.
                    0 => {
                        self.asked.extend([key, key]);
                        self.waiting.push(key);
                    }
                    address => self.seen.push((key, address)),
                }
            }
        }
    }

    impl StepPort for Device<'_> {
        fn take_request(&mut self) -> Option<u32> {
            self.asked.pop()
        }

        fn answer(&mut self, key: u32, address: Option<u64>) {
            let Some(place) = self.waiting.iter().position(|&waiting| waiting == key) else {
                return;
            };
            self.waiting.swap_remove(place);
            match address {
                Some(address) => self.seen.push((key, address)),
                None => self.failed = true,
            }
        }

        fn is_done(&mut self) -> Result<bool, EngineError> {
            while self.waiting.is_empty() && self.layer + 1 < self.layers.len() {
                self.layer += 1;
                self.enter();
            }
            Ok(self.waiting.is_empty() && self.asked.is_empty())
        }
    }

    fn open(slots: usize) -> (ExpertStore, usize, usize) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/qwen35-calm-mlx-mixed/model");
        let checkpoint = Arc::new(store::format::open(&folder).unwrap());
        let (layers, experts) = (
            checkpoint.experts.len(),
            checkpoint.experts.iter().flatten().map(|layer| layer.experts.len()).max().unwrap(),
        );
        let mut options = StoreOptions::new(StorageMode::Budget, slots);
        options.slots = SlotBudget::Slots(slots);
        (ExpertStore::open(checkpoint, options).unwrap(), layers, experts)
    }

    #[test]
    fn every_step_reads_its_own_records_even_with_the_fewest_slots() {
        let k = 2;
        for slots in [2 * k, 3 * k, 64] {
            let (store, layers, experts) = open(slots);
            // Mixed record sizes share the slots among pools; these count what there is.
            let pools: Vec<usize> = store.arenas().iter().map(|arena| arena.slots()).collect();
            let pool_of_layer =
                (0..layers).map(|layer| store.arena_of(LayerId(layer as u16)).unwrap()).collect();
            let bases: Vec<u64> = (1..=store.arenas().len() as u64).map(|i| i << 40).collect();
            let mut placement: Placement<Held> = Placement::new(pool_of_layer, experts, Vec::new());
            let mut service = MissService::new(pools.clone(), k);
            let mut state = 0xfeed_u64;
            for step in 0..200 {
                let wanted: Vec<Vec<u32>> = (0..layers)
                    .map(|layer| {
                        let mut keys = Vec::new();
                        while keys.len() < k {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let key =
                                (layer * experts) as u32 + (state >> 33) as u32 % experts as u32;
                            if !keys.contains(&key) {
                                keys.push(key);
                            }
                        }
                        keys
                    })
                    .collect();
                service.make_room(&store, &mut placement);
                let mut device = Device {
                    table: placement.words().to_vec(),
                    layers: &wanted,
                    layer: 0,
                    asked: Vec::new(),
                    waiting: Vec::new(),
                    seen: Vec::new(),
                    failed: false,
                };
                device.enter();
                service.serve(&mut device, &store, &mut placement, &bases).unwrap();
                assert!(!device.failed);
                let mut seen: Vec<u32> = device.seen.iter().map(|(key, _)| *key).collect();
                let mut all: Vec<u32> = wanted.concat();
                seen.sort_unstable();
                all.sort_unstable();
                assert_eq!(seen, all, "step {step}, {slots} slots");
                let last = wanted.last().unwrap();
                for &(key, address) in device.seen.iter().filter(|(key, _)| last.contains(key)) {
                    let (layer, expert) = placement.record(key);
                    let held = store.hold(layer, expert).expect("the last layer's are still there");
                    assert_eq!(address, bases[held.arena()] + held.offset() as u64);
                }
                for (pool, &slots) in pools.iter().enumerate() {
                    assert!(placement.host_copies(pool) <= slots);
                }
            }
        }
    }
}

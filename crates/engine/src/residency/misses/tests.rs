//! Steps of a simulated device, served from a real store over files that are read late, or badly.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use store::cache::{Phase, SlotBudget, StorageMode, StoreOptions};
use store::io::{FaultPlan, FaultRates, Simulator};

use super::super::port::{Found, Request};
use super::*;

mod script;

/// A tiny model whose layers have records of different sizes, each its pool of slots, and one with a single pool.
const MIXED: &str = "qwen35-calm-mlx-mixed";
const UNIFORM: &str = "qwen35-calm-hf";
/// Experts per token.
const K: usize = 2;
/// A store with its placement and service.
struct Host {
    store: ExpertStore,
    placement: Placement<Held>,
    service: MissService,
    bases: Vec<u64>,
    /// Slots of each pool.
    pools: Vec<usize>,
    layers: usize,
    experts: usize,
}

impl Host {
    fn open(model: &str, slots: usize, plan: FaultPlan) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(model);
        let folder = folder.join("model");
        let checkpoint = Arc::new(store::format::open(&folder).unwrap());
        let layers = checkpoint.experts.len();
        let experts =
            checkpoint.experts.iter().flatten().map(|layer| layer.experts.len()).max().unwrap();
        let mut options = StoreOptions::new(StorageMode::Budget, K);
        options.slots = SlotBudget::Slots(slots);
        options.storage = Some(Box::new(Simulator::new(plan, 1)));
        let store = ExpertStore::open(checkpoint, options).unwrap();
        // Mixed record sizes share the slots among pools; these count what there is.
        let pools: Vec<usize> = store.arenas().iter().map(|arena| arena.slots()).collect();
        let pool_of_layer =
            (0..layers).map(|layer| store.arena_of(LayerId(layer as u16)).unwrap()).collect();
        Self {
            bases: (1..=store.arenas().len() as u64).map(|i| i << 40).collect(),
            placement: Placement::new(pool_of_layer, experts, Vec::new()),
            service: MissService::new(pools.clone(), K),
            store,
            pools,
            layers,
            experts,
        }
    }

    fn serve(&mut self, port: &mut dyn RunningStep) -> Result<usize, EngineError> {
        let placement = &mut self.placement;
        let mut tiers = Tiers { store: &self.store, placement, bases: &self.bases };
        self.service.serve(port, &mut tiers, &mut Vec::new())
    }

    fn key(&self, layer: usize, expert: usize) -> u32 {
        (layer * self.experts + expert) as u32
    }

    /// Gives everything back: then all slots of all pools must be there for visits that hold them at once.
    fn settle(mut self) {
        for key in 0..self.placement.words().len() as u32 {
            drop(self.placement.remove_host(key));
        }
        let mut visits = Vec::new();
        for (pool, &slots) in self.pools.iter().enumerate() {
            let mut left = slots;
            for layer in (0..self.layers).map(|layer| LayerId(layer as u16)) {
                if self.placement.pool(layer) == pool {
                    let count = left.min(self.experts);
                    let all: Vec<ExpertId> = (0..count as u16).map(ExpertId).collect();
                    visits.push(self.store.visit(layer, &all, Phase::Decode).unwrap());
                    left -= count;
                }
            }
        }
        for visit in &visits {
            for member in 0..visit.len() {
                visit.wait(member).expect("no slot is lost");
            }
        }
    }
}

/// Random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    /// Distinct experts of a layer.
    fn choose(&mut self, host: &Host, layer: usize) -> Vec<u32> {
        let mut keys = Vec::new();
        while keys.len() < K {
            let key = host.key(layer, self.below(host.experts));
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }
}

/// A device that goes through the layers of one step: in each it wants some experts, asks for those that
/// its table lacks, prefetches what the next layer may want, and goes on when all are answered and a while has passed.
struct Device<'a> {
    table: Vec<u64>,
    layers: &'a [Vec<u32>],
    /// By layer: what is prefetched while the layer before computes.
    guesses: &'a [Vec<u32>],
    layer: usize,
    asked: VecDeque<Request>,
    waiting: Vec<u32>,
    answers: HashMap<u32, u64>,
    /// What it read: key and address.
    seen: Vec<(u32, u64)>,
    failed: bool,
    /// Looks until the layer's computation has ended.
    busy: usize,
    dice: Dice,
}

impl<'a> Device<'a> {
    fn new(table: &[u64], layers: &'a [Vec<u32>], guesses: &'a [Vec<u32>], seed: u64) -> Self {
        let mut device = Self {
            table: table.to_vec(),
            layers,
            guesses,
            layer: 0,
            asked: VecDeque::new(),
            waiting: Vec::new(),
            answers: HashMap::new(),
            seen: Vec::new(),
            failed: false,
            busy: 0,
            dice: Dice(seed),
        };
        device.enter();
        device
    }

    fn enter(&mut self) {
        let prefetch_first = self.dice.below(2) == 0;
        if prefetch_first {
            self.prefetch();
        }
        for &key in &self.layers[self.layer] {
            if self.table[key as usize] != 0 {
                self.seen.push((key, self.table[key as usize]));
                continue;
            }
            // Each missing record is asked for twice, as two tokens would, also one that was answered already.
            self.asked.extend([Request { key, prefetched: false }; 2]);
            match self.answers.get(&key) {
                Some(&address) => self.seen.push((key, address)),
                None => self.waiting.push(key),
            }
        }
        if !prefetch_first {
            self.prefetch();
        }
        self.busy = self.dice.below(400);
    }

    fn prefetch(&mut self) {
        let next = self.guesses.get(self.layer + 1).into_iter().flatten();
        let missing = next.filter(|&&key| self.table[key as usize] == 0);
        self.asked.extend(missing.map(|&key| Request { key, prefetched: true }));
    }
}

impl RunningStep for Device<'_> {
    /// Copies change nothing here.
    fn copy_ahead(&mut self, _layer: LayerId, _key: u32, _held: &Held) {}

    fn take_request(&mut self) -> Option<Request> {
        self.asked.pop_front()
    }

    fn answer(&mut self, key: u32, found: Option<Found<'_>>) {
        let Some(Found { address, .. }) = found else {
            self.failed = true;
            self.waiting.retain(|&waiting| waiting != key);
            return;
        };
        let known = self.answers.insert(key, address);
        assert!(known.is_none_or(|known| known == address), "an answer does not change");
        if let Some(place) = self.waiting.iter().position(|&waiting| waiting == key) {
            self.waiting.swap_remove(place);
            self.seen.push((key, address));
        }
    }

    fn is_done(&mut self) -> Result<bool, EngineError> {
        if !self.waiting.is_empty() {
            return Ok(false);
        }
        if self.busy > 0 {
            self.busy -= 1;
            return Ok(false);
        }
        if self.layer + 1 < self.layers.len() {
            self.layer += 1;
            self.enter();
            return Ok(false);
        }
        // A guess that comes too late is posted after the last look.
        self.prefetch();
        if let Some(last) = self.guesses.last() {
            self.asked.extend(last.iter().map(|&key| Request { key, prefetched: true }));
        }
        Ok(true)
    }
}

/// Serves `steps` steps whose guesses are right in `recall` of a hundred cases. Gives the prefetched reads begun and
/// used.
fn run(model: &str, slots: usize, recall: usize, steps: usize, seed: u64) -> (u64, u64) {
    let late =
        FaultRates { late: 700, latest: Duration::from_micros(200), ..FaultRates::default() };
    let mut host = Host::open(model, slots, late.plan(seed));
    let mut dice = Dice(seed);
    for step in 0..steps {
        let wanted: Vec<Vec<u32>> =
            (0..host.layers).map(|layer| dice.choose(&host, layer)).collect();
        let mut guesses = wanted.clone();
        for (layer, guesses) in guesses.iter_mut().enumerate() {
            for guess in guesses {
                while dice.below(100) >= recall && wanted[layer].contains(guess) {
                    *guess = host.key(layer, dice.below(host.experts));
                }
            }
        }
        host.service.make_room(&host.store, &mut host.placement);
        let words = host.placement.words().to_vec();
        let mut device = Device::new(&words, &wanted, &guesses, dice.0);
        host.serve(&mut device).unwrap();
        let place = format!("step {step}, {model}, {slots} slots, recall {recall} %, seed {seed}");
        assert!(!device.failed && device.asked.is_empty(), "{place}");
        let mut seen: Vec<u32> = device.seen.iter().map(|(key, _)| *key).collect();
        let mut all: Vec<u32> = wanted.concat();
        seen.sort_unstable();
        all.sort_unstable();
        assert_eq!(seen, all, "{place}");
        let last = wanted.last().unwrap();
        for &(key, address) in device.seen.iter().filter(|(key, _)| last.contains(key)) {
            let (layer, expert) = host.placement.record(key);
            let held = host.store.hold(layer, expert).expect("the last layer's are still there");
            assert_eq!(address, host.bases[held.arena()] + held.offset() as u64, "{place}");
        }
        for (pool, &slots) in host.pools.iter().enumerate() {
            assert!(host.placement.host_slots(pool) <= slots, "{place}");
        }
    }
    let counts = host.service.prefetch_reads();
    host.settle();
    counts
}

#[test]
fn every_step_reads_its_own_records_even_with_the_fewest_slots() {
    let fewest = 2 * K;
    for (model, slots) in [
        (MIXED, 4 * fewest),
        (MIXED, 4 * fewest + 2),
        (MIXED, 64),
        (UNIFORM, fewest),
        (UNIFORM, fewest + 1),
        (UNIFORM, 9),
        (UNIFORM, 14),
    ] {
        for recall in [0, 80, 100] {
            for seed in [0xfeed, 0xbeef] {
                let (read, used) = run(model, slots, recall, 40, seed);
                let place = format!("{model}, {slots} slots, recall {recall} %, seed {seed}");
                match recall {
                    0 => assert_eq!(used, 0, "{place}"),
                    100 => assert_eq!(used, read, "{place}"),
                    _ => assert!(used <= read, "{place}: {used} of {read}"),
                }
                assert!(read > 0 || slots <= fewest + 1, "{place}");
            }
        }
    }
}

#[test]
fn a_layer_that_asks_for_more_than_there_are_slots_is_refused_and_does_not_wait() {
    for (slots, wanted) in [(4, 4), (4, 5), (5, 6)] {
        let mut host = Host::open(UNIFORM, slots, FaultRates::default().plan(1));
        assert!(wanted <= host.experts);
        let keys = |layer: usize| (0..wanted).map(|expert| host.key(layer, expert)).collect();
        let layers: Vec<Vec<u32>> = (0..host.layers).map(keys).collect();
        let words = host.placement.words().to_vec();
        let mut device = Device::new(&words, &layers, &[], 7);
        let served = host.serve(&mut device);
        let exhausted = matches!(
            &served,
            Err(EngineError::Store(StoreError::Exhausted { layer: LayerId(0), slots: of })) if *of == slots
        );
        assert_eq!(exhausted, wanted > slots, "{wanted} of {slots} slots: {served:?}");
        host.settle();
    }
}

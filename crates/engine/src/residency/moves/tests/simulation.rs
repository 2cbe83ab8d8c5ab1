//! What exclusive tiers are for, in records read: the 35B shape with calibrated routing, part of its experts in device
//! memory and a fifth in the host tier.

use store::cache::PolicyKind;
use store::trace::generator::{LayerRouting, QWEN3_30B, trace};
use store::trace::replay::{Scope, replay};

use super::super::*;
use super::world::{Shape, World};
use crate::residency::RECORDS_IN_BOTH;

const LAYERS: usize = 40;
const EXPERTS: usize = 256;
const TOP_K: usize = 8;
const ALL: usize = LAYERS * EXPERTS;
/// Tokens after which the tiers have settled, and tokens that are counted.
const WARM_UP: usize = 256;
const COUNTED: usize = 192;

/// A world with so many percent of the experts in each tier.
fn world(device: usize, host: usize) -> World {
    let shape = Shape {
        layers: LAYERS,
        experts: EXPERTS,
        per_step: TOP_K,
        device_slots: ALL * device / 100,
        host_slots: ALL * host / 100,
        late: 2,
        guesses: 0,
        certain: 0,
        broken: 0,
    };
    World::open(shape, None, 1)
}

/// Decodes tokens of the calibrated generator.
struct Decode {
    world: World,
    routing: Vec<LayerRouting>,
}

impl Decode {
    fn new(device: usize, host: usize) -> Self {
        let layers = 0..LAYERS as u16;
        let routing = layers.map(|layer| LayerRouting::new(QWEN3_30B, 0, layer, EXPERTS));
        Self { world: world(device, host), routing: routing.collect() }
    }

    /// Records read for each of so many tokens. `check` is asked after each.
    fn run(&mut self, tokens: usize, check: impl Fn(&World)) -> f64 {
        let before = self.world.residency.store.counters().records_read;
        for _ in 0..tokens {
            let uses: Vec<Vec<u32>> = self
                .routing
                .iter_mut()
                .enumerate()
                .map(|(layer, routing)| {
                    let key = |&expert: &u16| (layer * EXPERTS + usize::from(expert)) as u32;
                    routing.choose(TOP_K).iter().map(key).collect()
                })
                .collect();
            self.world.step(&uses).unwrap();
            check(&self.world);
        }
        (self.world.residency.store.counters().records_read - before) as f64 / tokens as f64
    }

    /// The share of all records that a prompt which needs all of them reads.
    fn sweep(&mut self) -> f64 {
        let all = vec![(0..EXPERTS as u16).map(ExpertId).collect(); LAYERS];
        let before = self.world.residency.store.counters().records_read;
        self.world.prompt(&all, None).unwrap();
        (self.world.residency.store.counters().records_read - before) as f64 / ALL as f64
    }
}

/// Records that one cache with so many percent of the experts reads for a token: what the tiers would read if the host
/// tier had nothing but what device memory has (the smaller cache), and if no record was in both (the larger).
fn cache_reads(percent: usize) -> f64 {
    let mut trace = trace(QWEN3_30B, 0, LAYERS, EXPERTS, TOP_K, WARM_UP + COUNTED);
    trace.prompt_tokens = WARM_UP;
    let slots = Scope::Global(ALL * percent / 100);
    let rate = replay(&trace, slots, || PolicyKind::DecayedLfru.build());
    (rate.requests - rate.hits) as f64 / COUNTED as f64
}

#[test]
fn two_fifths_in_two_tiers_read_what_one_cache_of_both_would() {
    let mut decode = Decode::new(20, 20);
    decode.run(WARM_UP, |_| {});
    // Records on their way are in both tiers, and what has just arrived.
    let reads = decode.run(COUNTED, |world| {
        let both = world.residency.store.counters().device.in_both as usize
            + world.residency.moves.under_way().count();
        assert!(both <= RECORDS_IN_BOTH, "{both} records in both tiers");
    });
    let (apart, alone) = (cache_reads(40), cache_reads(20));
    assert!(alone > 50.0, "{alone:.1} with a fifth");
    assert!(reads < 18.0 && reads < 1.15 * apart, "{reads:.1}, {apart:.1} with two fifths");
    decode.world.end();
}

#[test]
fn a_prompt_reads_what_is_in_neither_tier() {
    for (device, most) in [(15, 0.68), (20, 0.63)] {
        let mut decode = Decode::new(device, 20);
        decode.run(WARM_UP, |_| {});
        for turn in 0..2 {
            let read = decode.sweep();
            assert!(read <= most, "{read:.3} of all at {device} %, prompt {turn}");
        }
        // What it takes from decode is little, and soon made up for.
        let reads = decode.run(64, |_| {});
        assert!(reads < 30.0, "{reads:.1} after the prompts at {device} %");
        decode.world.end();
        // Prompts alone, after loading: the first finds nothing but what was loaded.
        let mut prompts = Decode::new(device, 20);
        let (first, second) = (prompts.sweep(), prompts.sweep());
        assert!(first <= 1.0 - device as f64 / 100.0 && second <= most, "{first:.3} {second:.3}");
        prompts.world.end();
    }
}

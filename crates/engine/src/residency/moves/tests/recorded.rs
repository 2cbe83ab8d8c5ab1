//! The calls on the device of one scripted run, in their order, are those that were recorded.
//!
//! Placement, eviction and the order of copies are decided here, without a device; what a device is told follows from
//! them. `recorded.txt` has the calls of the first turns word for word and a digest of all. A change that is meant to
//! move code must leave it as it is; one that is meant to decide otherwise writes it anew with `UPDATE_RECORDED=1`.

use std::path::Path;

use super::super::*;
use super::world::{Dice, Shape, World, digest};

const LAYERS: usize = 4;
const EXPERTS: usize = 10;
/// Experts of a layer that a step uses.
const K: usize = 2;
const TURNS: usize = 600;
/// Turns whose calls can be read.
const SHOWN: usize = 40;

/// Distinct experts of each layer, low ones more often; which are low changes with `drift`.
fn uses(world: &World, dice: &mut Dice, drift: usize) -> Vec<Vec<u32>> {
    let layer = |layer: usize| {
        let mut keys = Vec::new();
        while keys.len() < K {
            let key =
                world.key(layer, (dice.below(EXPERTS).min(dice.below(EXPERTS)) + drift) % EXPERTS);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    };
    (0..LAYERS).map(layer).collect()
}

fn run() -> String {
    let shape = Shape {
        layers: LAYERS,
        experts: EXPERTS,
        per_step: K,
        device_slots: 12,
        host_slots: 20,
        late: 3,
        guesses: 0,
        certain: 0,
        broken: 4,
    };
    let mut world = World::open(shape, None, 0xca11);
    world.record();
    let mut dice = Dice(0xca11);
    let (mut shown, mut all) = (String::new(), String::new());
    for turn in 0..TURNS {
        let (what, ended) = match dice.below(20) {
            0 => {
                let wanted = vec![(0..EXPERTS as u16).map(ExpertId).collect(); LAYERS];
                // A layer behind the last is not reached; nothing is read ahead, whose reads end at any time.
                ("prompt", world.prompt(&wanted, Some(LAYERS)))
            }
            1 => ("resize", world.resize(4 + dice.below(9))),
            _ => {
                let uses = uses(&world, &mut dice, turn / 40);
                ("step", world.step(&uses).map(|_| ()))
            }
        };
        let failed = if ended.is_ok() { "" } else { " failed" };
        let line = format!("{turn} {what}{failed}: {}\n", world.calls().join("; "));
        if turn < SHOWN {
            shown.push_str(&line);
        }
        all.push_str(&line);
    }
    world.end();
    format!("{shown}{TURNS} turns: {:016x}\n", digest(all.bytes()))
}

#[test]
fn the_calls_on_the_device_are_those_that_were_recorded() {
    let found = run();
    if std::env::var_os("UPDATE_RECORDED").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/residency/moves/tests");
        std::fs::write(path.join("recorded.txt"), &found).unwrap();
        return;
    }
    assert_eq!(found, include_str!("recorded.txt"));
}

//! Any order of steps, prompts, cancels and failed reads: bytes are right, what a running step names is kept, and
//! nothing is lost. The world checks while it runs.

use std::time::Duration;

use store::io::FaultRates;

use super::super::*;
use super::world::{Dice, Shape, World};

const LAYERS: usize = 5;
const EXPERTS: usize = 12;
/// Experts of a layer that a step uses.
const K: usize = 2;

/// Distinct experts of each layer, low ones more often; which are low changes with `drift`.
fn uses(world: &World, dice: &mut Dice, drift: usize) -> Vec<Vec<u32>> {
    (0..LAYERS)
        .map(|layer| {
            let mut keys = Vec::new();
            while keys.len() < K {
                let rank = dice.below(EXPERTS).min(dice.below(EXPERTS)).min(dice.below(EXPERTS));
                let key = world.key(layer, (rank + drift) % EXPERTS);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            keys
        })
        .collect()
}

/// What a prompt uses of each layer: most experts.
fn wanted(dice: &mut Dice) -> Vec<Vec<ExpertId>> {
    let each = |_| (0..EXPERTS as u16).map(ExpertId).filter(|_| dice.below(8) > 0).collect();
    (0..LAYERS).map(each).collect()
}

/// Runs a world, with slots that lose and get memory where `sizes`; gives what it moved.
fn run(
    host_slots: usize,
    late: usize,
    guesses: usize,
    rates: Option<FaultRates>,
    seed: u64,
    sizes: bool,
) -> MoveCounts {
    let shape = Shape {
        layers: LAYERS,
        experts: EXPERTS,
        per_step: K,
        device_slots: 15,
        host_slots,
        late,
        guesses,
        certain: guesses.min(2),
        broken: if rates.is_some() { 10 } else { 0 },
    };
    let faulty = rates.is_some_and(|rates| rates.error > 0);
    let mut world = World::open(shape, rates.map(|rates| rates.plan(seed)), seed);
    let mut dice = Dice(seed);
    for turn in 0..300 {
        if dice.below(25) == 0 {
            let wanted = wanted(&mut dice);
            let give_up = (dice.below(3) == 0).then(|| dice.below(LAYERS));
            let ended = world.prompt(&wanted, give_up);
            assert!(ended.is_ok() || faulty || give_up.is_some(), "{ended:?}");
            continue;
        }
        if sizes && dice.below(12) == 0 {
            let ended = world.resize(4 + dice.below(12));
            assert!(ended.is_ok() || faulty, "{ended:?}");
        }
        let uses = uses(&world, &mut dice, turn / 20);
        let ended = world.step(&uses);
        assert!(ended.is_ok() || faulty, "{ended:?}");
    }
    let counts = world.residency.moves.counts();
    world.end();
    counts
}

#[test]
fn records_move_between_tiers_and_stay_what_they_are() {
    for (host_slots, seed) in [(8, 1), (12, 2), (16, 3), (20, 4), (30, 5), (60, 6)] {
        for (late, guesses) in [(1, 0), (2, 3), (5, 2)] {
            let counts = run(host_slots, late, guesses, None, seed, false);
            assert!(counts.filled > 20, "{host_slots} {late}: {counts:?}");
            // With slots for few records hardly any may be on their way back; with slots for all nothing is lost.
            let returns = (16..LAYERS * EXPERTS).contains(&host_slots);
            assert!(counts.returned > 0 || !returns, "{host_slots} {late}: {counts:?}");
        }
    }
}

/// A prompt's batch is put aside after each layer, with the next one's reads under way; steps run meanwhile and find
/// slots.
#[test]
fn steps_run_between_the_layers_of_a_prompt() {
    for (host_slots, seed) in [(8, 1), (12, 2), (20, 3), (60, 4)] {
        let shape = Shape {
            layers: LAYERS,
            experts: EXPERTS,
            per_step: K,
            device_slots: 15,
            host_slots,
            late: 3,
            guesses: 1,
            certain: 1,
            broken: 0,
        };
        let late =
            FaultRates { late: 500, latest: Duration::from_micros(300), ..FaultRates::default() };
        let mut world = World::open(shape, Some(late.plan(seed)), seed);
        let mut dice = Dice(seed);
        for turn in 0..40 {
            let wanted = wanted(&mut dice);
            let mut between = |world: &mut World| {
                for _ in 0..dice.below(3) {
                    let uses = uses(world, &mut dice, turn / 10);
                    world.step(&uses)?;
                }
                Ok(())
            };
            world.prompt_with(&wanted, None, &mut between).unwrap();
        }
        assert!(world.residency.moves.counts().filled > 0, "{host_slots}");
        world.end();
    }
}

#[test]
fn failed_reads_and_copies_leave_the_tiers_whole() {
    let latest = Duration::from_micros(300);
    for seed in 0..6 {
        let rates = FaultRates { error: 60, late: 300, latest, ..FaultRates::default() };
        let (host_slots, guesses) = (16 + seed as usize, seed as usize % 3);
        run(host_slots, 3, guesses, Some(rates), 0xabc + seed, false);
        run(host_slots, 3, guesses, Some(rates), 0xdef + seed, true);
    }
}

#[test]
fn slots_lose_their_memory_and_get_it_back_at_any_time() {
    for (host_slots, seed) in [(8, 1), (16, 2), (30, 3), (60, 4)] {
        for late in [1, 4] {
            let counts = run(host_slots, late, 1, None, seed, true);
            assert!(counts.filled > 20 && counts.given_up > 20, "{host_slots} {late}: {counts:?}");
        }
    }
}

#[test]
fn slots_that_go_take_the_records_of_least_worth_with_them() {
    let shape = Shape {
        layers: 1,
        experts: 16,
        per_step: 2,
        device_slots: 6,
        host_slots: 16,
        late: 1,
        guesses: 0,
        certain: 0,
        broken: 0,
    };
    let mut world = World::open(shape, None, 9);
    // Records 0 to 5 lie in slots of their own number; the last two and the first are used, those most.
    for keys in [vec![0, 1], vec![4, 5], vec![4, 5]] {
        world.step(&[keys]).unwrap();
    }
    let read = world.residency.store.counters().records_read;
    world.resize(2).unwrap();
    let mut held: Vec<(u32, u32)> = world.residency.placement.held_slots().collect();
    held.sort_unstable();
    assert_eq!(held.iter().map(|held| held.0).collect::<Vec<_>>(), [0, 1]);
    let mut kept: Vec<u32> = held.iter().map(|held| held.1).collect();
    kept.sort_unstable();
    assert_eq!((kept, world.residency.moves.counts().given_up), (vec![4, 5], 4));
    // What was used and lost its slot is in the host tier, or still there from the load.
    world.step(&[vec![0, 1]]).unwrap();
    assert_eq!(world.residency.store.counters().records_read, read);
    world.resize(6).unwrap();
    for _ in 0..4 {
        world.step(&[vec![0, 1]]).unwrap();
    }
    assert!([0, 1, 4, 5].iter().all(|&key| world.residency.placement.in_device(key)));
    world.end();
}

#[test]
fn a_record_that_loses_its_slot_is_named_somewhere_all_the_time() {
    let shape = Shape {
        layers: 1,
        experts: 16,
        per_step: 2,
        device_slots: 2,
        host_slots: 16,
        late: 3,
        guesses: 0,
        certain: 0,
        broken: 0,
    };
    let mut world = World::open(shape, None, 7);
    // The two that were loaded are used, then two others for long enough to take their slots.
    for _ in 0..4 {
        world.step(&[vec![0, 1]]).unwrap();
    }
    let mut read = world.residency.store.counters().records_read;
    for turn in 0..60 {
        world.step(&[vec![2, 3]]).unwrap();
        if turn == 0 {
            read += 2;
        }
        for key in 0..4 {
            assert_ne!(world.residency.placement.words()[key], 0, "record {key} at {turn}");
        }
    }
    assert!(world.residency.placement.in_device(2) && world.residency.placement.in_device(3));
    assert!(world.residency.placement.in_host(0) && world.residency.placement.in_host(1));
    // The step that comes back to them finds them.
    world.step(&[vec![0, 1]]).unwrap();
    assert_eq!(world.residency.store.counters().records_read, read);
    world.end();
}

#[test]
fn what_token_ids_decide_is_read_before_the_step_asks() {
    let shape = Shape {
        layers: LAYERS,
        experts: EXPERTS,
        per_step: K,
        device_slots: 5,
        host_slots: 20,
        late: 1,
        guesses: 0,
        certain: 3,
        broken: 0,
    };
    let mut world = World::open(shape, None, 1);
    let ahead = |world: &World| world.residency.store().counters().ahead_issued;
    let before = ahead(&world);
    let uses: Vec<Vec<u32>> =
        (0..LAYERS).map(|layer| vec![world.key(layer, 7), world.key(layer, 9)]).collect();
    assert_eq!(world.step(&uses).unwrap(), LAYERS * K, "asked for as ever");
    assert_eq!(ahead(&world) - before, 3 * K as u64);
    world.step(&uses).unwrap();
    assert_eq!(ahead(&world) - before, 3 * K as u64, "what is in memory is not read again");
    world.end();
}

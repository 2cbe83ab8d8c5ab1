//! Drafts between steps: they read what has a word and wait for nothing; what they left out is there later, and what
//! they use stays.

use super::super::*;
use super::world::{Dice, Shape, World};

const LAYERS: usize = 4;
const EXPERTS: usize = 12;
const K: usize = 2;
/// The layer of the head.
const HEAD: usize = LAYERS - 1;

/// Uses of the trunk's layers, by chance.
fn uses(world: &World, dice: &mut Dice) -> Vec<Vec<u32>> {
    let mut layer = |layer: usize| {
        let first = dice.below(EXPERTS);
        let second = (first + 1 + dice.below(EXPERTS - 1)) % EXPERTS;
        vec![world.key(layer, first), world.key(layer, second)]
    };
    let mut uses: Vec<_> = (0..HEAD).map(&mut layer).collect();
    uses.push(Vec::new());
    uses
}

#[test]
fn what_drafts_leave_out_is_there_later_and_stays() {
    for seed in 0..6 {
        let shape = Shape {
            layers: LAYERS,
            experts: EXPERTS,
            per_step: K,
            device_slots: 8,
            // With half of the records in RAM; where steps turn all of it over, drafts come too late.
            host_slots: 24,
            late: 4,
            guesses: 0,
            certain: 0,
            broken: 0,
        };
        let mut world = World::open(shape, None, seed);
        world.residency.expect_drafts(LayerId(HEAD as u16));
        let mut dice = Dice(seed);
        let wanted = [9, 11].map(|expert| world.key(HEAD, expert));
        assert_eq!(world.draft(&wanted), wanted, "nothing of them is loaded at first");
        let mut absent = 0;
        for turn in 0..200 {
            if turn % 40 == 30 {
                let all: Vec<ExpertId> = (0..EXPERTS as u16).map(ExpertId).collect();
                let mut layers = vec![all; HEAD];
                layers.push(Vec::new());
                world.prompt(&layers, None).unwrap();
            }
            let uses = uses(&world, &mut dice);
            world.step(&uses).unwrap();
            // Reads of records that nothing waits for end some time.
            std::thread::sleep(std::time::Duration::from_millis(1));
            absent += world.draft(&wanted).len();
            let other = [dice.below(EXPERTS)].map(|expert| world.key(HEAD, expert));
            world.draft(&other);
        }
        assert!(absent < 100, "{absent} of 400 left out");
        let counters = world.residency.counters();
        assert!(counters.draft.hits > 200 && counters.draft.misses == 0, "{counters:?}");
        // Uses of drafts are no uses of steps. The last step's were not told yet.
        let each = (HEAD * K) as u64;
        let requests = counters.decode.requests;
        assert!((199 * each..=200 * each).contains(&requests), "{requests}");
        world.end();
    }
}

//! The expert store over real files: right bytes in every mode, budgets, waves, protection.

use crate::cache_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cache_support::{Layout, checkpoint, ids, is_right};
use store::cache::{ExpertStore, Phase, SlotBudget, StorageMode, StoreError, StoreOptions, Visit};
use store::io::{Fault, Operation, Simulator};
use store::split_mix::SplitMix64;
use store::{ExpertId, LayerId};

const MODES: [StorageMode; 4] =
    [StorageMode::Resident, StorageMode::Budget, StorageMode::PageCache, StorageMode::Mmap];

fn options(mode: StorageMode, slots: usize, minimum: usize) -> StoreOptions {
    StoreOptions { slots: SlotBudget::Slots(slots), ..StoreOptions::new(mode, minimum) }
}

fn wait_for(visit: &Visit<'_>, members: usize) {
    for member in 0..members {
        visit.wait(member).unwrap();
    }
}

/// A small deterministic generator: the seed is all there is to report.
struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn experts(&mut self, of: u64, count: usize) -> Vec<ExpertId> {
        let mut chosen: Vec<u16> = Vec::new();
        while chosen.len() < count {
            let next = self.below(of) as u16;
            if !chosen.contains(&next) {
                chosen.push(next);
            }
        }
        chosen.sort_unstable();
        ids(&chosen)
    }
}

#[test]
fn every_mode_and_layout_returns_the_bytes_of_the_files() {
    for layout in [Layout::Native, Layout::Stacked] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = checkpoint(folder.path(), 3, 12, layout);
        for mode in MODES {
            let store = ExpertStore::open(Arc::clone(&checkpoint), options(mode, 9, 4)).unwrap();
            let mut random = Random(SplitMix64(7));
            for step in 0..60 {
                let layer = LayerId(step % 3);
                let experts = random.experts(12, 4);
                let visit = store.visit(layer, &experts, Phase::Decode).unwrap();
                for (member, &expert) in experts.iter().enumerate() {
                    let bytes = visit.wait(member).unwrap();
                    assert!(
                        is_right(&checkpoint, layer, expert, &bytes),
                        "{mode:?} {layout:?} step {step} {layer:?} {expert:?}"
                    );
                }
            }
            let counters = store.counters();
            assert_eq!(counters.decode.requests, 240);
            if mode != StorageMode::Mmap {
                assert_eq!(counters.decode.hits + counters.decode.misses, 240);
            }
            match mode {
                StorageMode::Resident => assert_eq!(counters.decode.misses, 0),
                StorageMode::Budget => assert!(counters.decode.hits > 0 && counters.evictions > 0),
                _ => assert_eq!(counters.decode.hits, 0),
            }
        }
    }
}

#[test]
fn a_union_larger_than_the_pool_is_served_in_waves() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 40, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 6, 4)).unwrap();
    let all: Vec<ExpertId> = (0..40).map(ExpertId).collect();
    for layer in [LayerId(0), LayerId(1)] {
        let before = store.counters();
        let mut visit = store.visit(layer, &all, Phase::Prefill).unwrap();
        for member in visit.order().to_vec() {
            let bytes = visit.wait(member).unwrap();
            assert!(is_right(&checkpoint, layer, all[member], &bytes));
            visit.release(member);
        }
        drop(visit);
        assert_eq!(store.counters().since(&before).records_read, 40, "each is read once");
    }
}

#[test]
fn a_visit_that_waits_in_its_own_order_is_served_too() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 40, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 6, 4)).unwrap();
    let all: Vec<ExpertId> = (0..40).map(ExpertId).collect();
    // Resident now: the last six, so that ascending order finds its hits at the end.
    let last = &all[34..];
    let visit = store.visit(LayerId(0), last, Phase::Decode).unwrap();
    wait_for(&visit, 6);
    drop(visit);
    let mut visit = store.visit(LayerId(0), &all, Phase::Prefill).unwrap();
    for (member, &expert) in all.iter().enumerate() {
        let bytes = visit.wait(member).unwrap();
        assert!(is_right(&checkpoint, LayerId(0), expert, &bytes));
        visit.release(member);
    }
    assert!(store.counters().given_up > 0);
}

/// Read-ahead that no visit wanted used to fill the share of prefill for good: the next prompt found its
/// hits at the end, no slot for its first expert, and gave up.
#[test]
fn read_ahead_in_vain_does_not_starve_the_next_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 40, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 16, 4)).unwrap();
    let all: Vec<ExpertId> = (0..40).map(ExpertId).collect();
    for part in all[28..].chunks(4) {
        let visit = store.visit(LayerId(0), part, Phase::Decode).unwrap();
        wait_for(&visit, 4);
    }
    store.read_ahead(LayerId(1), &all[..4]);
    for _ in 0..2 {
        let mut visit = store.visit(LayerId(0), &all, Phase::Prefill).unwrap();
        for (member, &expert) in all.iter().enumerate() {
            let bytes = visit.wait(member).unwrap();
            assert!(is_right(&checkpoint, LayerId(0), expert, &bytes));
            visit.release(member);
        }
        drop(visit);
        // The layer that was read ahead for wants another expert.
        let visit = store.visit(LayerId(1), &all[20..21], Phase::Prefill).unwrap();
        wait_for(&visit, 1);
    }
    let counters = store.counters();
    assert_eq!((counters.ahead_issued, counters.ahead_wasted), (4, 4));
}

#[test]
fn a_visit_that_releases_nothing_cannot_have_more_than_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 10, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 4, 4)).unwrap();
    let all: Vec<ExpertId> = (0..10).map(ExpertId).collect();
    let visit = store.visit(LayerId(0), &all, Phase::Decode).unwrap();
    wait_for(&visit, 4);
    let refused = visit.wait(4).unwrap_err();
    assert_eq!(refused, StoreError::Exhausted { layer: LayerId(0), slots: 4 });
}

#[test]
fn a_budget_below_one_step_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 10, Layout::Native);
    let refused = ExpertStore::open(checkpoint, options(StorageMode::Budget, 3, 4)).err().unwrap();
    let StoreError::Budget { asked, minimum_slots, .. } = refused else { panic!("{refused}") };
    assert_eq!((asked, minimum_slots), (SlotBudget::Slots(3), 4));
    assert!(refused.to_string().contains("needs 4 slots (2097152 bytes)"), "{refused}");
}

#[test]
fn malformed_visits_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 10, Layout::Native);
    let store = ExpertStore::open(checkpoint, options(StorageMode::Budget, 4, 4)).unwrap();
    for (layer, experts) in [(0, vec![3, 2]), (0, vec![2, 2]), (0, vec![10]), (1, vec![0])] {
        let refused = store.visit(LayerId(layer), &ids(&experts), Phase::Decode).err();
        assert!(matches!(refused, Some(StoreError::Visit { .. })), "{layer} {experts:?}");
    }
}

#[test]
fn what_was_read_ahead_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 16, Layout::Stacked);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 32, 4)).unwrap();
    let wanted = ids(&[1, 5, 9]);
    store.read_ahead(LayerId(1), &wanted);
    let visit = store.visit(LayerId(1), &wanted, Phase::Prefill).unwrap();
    for (member, &expert) in wanted.iter().enumerate() {
        let bytes = visit.wait(member).unwrap();
        assert!(is_right(&checkpoint, LayerId(1), expert, &bytes));
    }
    let counters = store.counters();
    assert_eq!((counters.ahead_issued, counters.ahead_used, counters.records_read), (3, 3, 3));
    assert_eq!(counters.prefill.misses, 0);
}

#[test]
fn prefill_leaves_most_of_the_decode_set_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 40, Layout::Native);
    let store = ExpertStore::open(checkpoint, options(StorageMode::Budget, 16, 4)).unwrap();
    let kept: Vec<ExpertId> = (0..16).map(ExpertId).collect();
    for part in kept.chunks(4).cycle().take(12) {
        let visit = store.visit(LayerId(0), part, Phase::Decode).unwrap();
        wait_for(&visit, 4);
    }
    let all: Vec<ExpertId> = (0..40).map(ExpertId).collect();
    for layer in [0, 1, 0, 1] {
        let mut visit = store.visit(LayerId(layer), &all, Phase::Prefill).unwrap();
        for member in visit.order().to_vec() {
            visit.wait(member).unwrap();
            visit.release(member);
        }
    }
    let before = store.counters();
    for part in kept.chunks(4) {
        let visit = store.visit(LayerId(0), part, Phase::Decode).unwrap();
        wait_for(&visit, 4);
    }
    let hits = store.counters().since(&before).decode.hits;
    assert!(hits >= 12, "prefill may take a quarter of 16 slots, {hits} were left");
}

#[test]
fn a_held_record_stays_until_it_is_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, 12, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 5, 4)).unwrap();
    let (layer, kept) = (LayerId(0), ExpertId(3));
    assert!(store.hold(layer, kept).is_none(), "nothing was read yet");
    let visit = store.visit(layer, &[kept], Phase::Decode).unwrap();
    visit.wait(0).unwrap();
    drop(visit);
    let held = store.hold(layer, kept).unwrap();
    let first = held.bytes().to_vec();
    let (base, length) = store.arenas()[held.arena()].span();
    assert_eq!(held.bytes().as_ptr() as usize, base as usize + held.offset());
    assert!(held.offset() + held.bytes().len() <= length);
    let mut random = Random(SplitMix64(11));
    for step in 0..40 {
        let experts = random.experts(12, 4);
        let visit = store.visit(LayerId(step % 2), &experts, Phase::Decode).unwrap();
        wait_for(&visit, 4);
    }
    assert_eq!(held.bytes(), first, "a held record moved or changed");
    let misses = store.counters().decode.misses;
    drop(store.visit(layer, &[kept], Phase::Decode).unwrap());
    assert_eq!(store.counters().decode.misses, misses, "a held record was read again");
    drop(held);
    for _ in 0..40 {
        let experts = random.experts(12, 4);
        wait_for(&store.visit(LayerId(1), &experts, Phase::Decode).unwrap(), 4);
    }
    assert!(store.hold(layer, kept).is_none(), "what was let go never gave way");
}

#[test]
fn uses_that_a_device_found_count_as_hits_and_raise_the_score() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 12, Layout::Native);
    let store = ExpertStore::open(checkpoint, options(StorageMode::Budget, 4, 4)).unwrap();
    let records = [(LayerId(0), ExpertId(1)), (LayerId(0), ExpertId(2))];
    for _ in 0..5 {
        store.note_uses(LayerId(0), &ids(&[2]), Phase::Decode);
    }
    let mut scores = Vec::new();
    store.scores(&records, &mut scores);
    assert!(scores[0] < scores[1], "{scores:?}");
    let counted = store.counters().decode;
    assert_eq!((counted.requests, counted.hits, counted.misses), (5, 5, 0));
}

#[test]
fn what_no_visit_waits_for_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Native, Layout::Stacked] {
        let root = folder.path().join(format!("{layout:?}"));
        std::fs::create_dir(&root).unwrap();
        let checkpoint = checkpoint(&root, 2, 32, layout);
        let slow = |_: &Operation| Fault::Late(Duration::from_millis(10));
        let simulator = Simulator::new(Box::new(slow), 1);
        let view = simulator.view();
        let options = StoreOptions {
            slots: SlotBudget::Slots(64),
            storage: Some(Box::new(simulator)),
            ..StoreOptions::new(StorageMode::Budget, 4)
        };
        let store = ExpertStore::open(Arc::clone(&checkpoint), options).unwrap();
        let all: Vec<ExpertId> = (0..32).map(ExpertId).collect();
        let begun = Instant::now();
        let visit = store.visit(LayerId(0), &all, Phase::Prefill).unwrap();
        store.read_ahead(LayerId(1), &all);
        // Another visit shares two of the experts: these are read to the end.
        let other = store.visit(LayerId(0), &all[20..22], Phase::Decode).unwrap();
        let wanted = || begun.elapsed() < Duration::from_millis(60);
        let result = visit.wait_while(31, &wanted);
        assert!(matches!(result, Err(StoreError::GivenUp)), "{layout:?}");
        drop(visit);
        store.forget_ahead(LayerId(1));
        for member in 0..2 {
            let bytes = other.wait(member).unwrap();
            assert!(is_right(&checkpoint, LayerId(0), all[20 + member], &bytes), "{layout:?}");
        }
        let pieces = if layout == Layout::Native { 1 } else { 9 };
        // Six are held by the simulator at a time, and twice that many may pass before the word is given.
        let operations = view.counters().operations;
        assert!(operations <= 2 * pieces + 24, "{layout:?}: {operations} reads");
        assert!(store.counters().withdrawn >= 40, "{layout:?}: {}", store.counters().withdrawn);
        drop(other);
        // No slot is lost, and what is asked for again is read whole.
        let again = store.visit(LayerId(0), &all[..16], Phase::Decode).unwrap();
        for (member, &expert) in all.iter().enumerate().take(16) {
            let bytes = again.wait(member).unwrap();
            assert!(is_right(&checkpoint, LayerId(0), expert, &bytes), "{layout:?}");
        }
        assert_eq!(store.counters().errors, 0);
    }
}

#[test]
fn a_visit_that_is_only_asked_whether_it_is_ready_gets_the_slots_of_dropped_reads() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 12, Layout::Stacked);
    let slow = |_: &Operation| Fault::Late(Duration::from_millis(1));
    let options = StoreOptions {
        slots: SlotBudget::Slots(4),
        storage: Some(Box::new(Simulator::new(Box::new(slow), 1))),
        ..StoreOptions::new(StorageMode::Budget, 4)
    };
    let store = ExpertStore::open(Arc::clone(&checkpoint), options).unwrap();
    let ended = store.ended_reads();
    let first = store.visit(LayerId(0), &ids(&[0, 1, 2, 3]), Phase::Decode).unwrap();
    let experts = ids(&[4, 5, 6, 7]);
    let second = store.visit(LayerId(0), &experts, Phase::Decode).unwrap();
    assert!((0..4).all(|member| !second.is_ready(member)), "all slots are being read into");
    // Giving up the first visit takes back what has not begun; the rest lands or comes to nothing.
    assert!(first.wait_while(3, &|| false).is_err());
    drop(first);
    let begun = Instant::now();
    while !(0..4).all(|member| second.is_ready(member)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the slots never came");
        std::thread::yield_now();
    }
    for (member, &expert) in experts.iter().enumerate() {
        let bytes = second.wait(member).unwrap();
        assert!(is_right(&checkpoint, LayerId(0), expert, &bytes));
    }
    assert!(store.ended_reads() >= ended + 4, "a loop that looks for news would have looked");
}

/// The three layers of a model whose token ids decide their experts: one call, and no visit waits or reads again.
#[test]
fn certain_reads_are_hits_and_push_out_nothing_that_the_step_needs() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 4, 40, Layout::Native);
    let store =
        ExpertStore::open(Arc::clone(&checkpoint), options(StorageMode::Budget, 16, 4)).unwrap();
    let settled = |wanted: &[(LayerId, Vec<ExpertId>)]| {
        let all = |(layer, experts): &(LayerId, Vec<ExpertId>)| {
            experts.iter().all(|&expert| store.is_resident(*layer, expert))
        };
        while !wanted.iter().all(all) {
            std::thread::yield_now();
        }
    };
    let wanted: Vec<_> = (0..3).map(|layer| (LayerId(layer), ids(&[1, 5, 9, 30]))).collect();
    store.read_certain(&wanted);
    settled(&wanted);
    for (layer, experts) in &wanted {
        let visit = store.visit(*layer, experts, Phase::Decode).unwrap();
        for (member, &expert) in experts.iter().enumerate() {
            let bytes = visit.wait(member).unwrap();
            assert!(visit.is_hit(member) && is_right(&checkpoint, *layer, expert, &bytes));
        }
    }
    let counters = store.counters();
    assert_eq!(
        (counters.decode.hits, counters.decode.stall_us, counters.records_read),
        (12, 0, 12)
    );
    assert_eq!((counters.ahead_issued, counters.ahead_used), (12, 12));
    // Twelve of sixteen slots have them. Four others, and four of the layer without a table.
    wait_for(&store.visit(LayerId(3), &ids(&[0, 1, 2, 3]), Phase::Decode).unwrap(), 4);
    // The next token: half of each layer's experts are there, and are the least recently used of all.
    let next: Vec<_> = (0..3).map(|layer| (LayerId(layer), ids(&[1, 5, 10, 31]))).collect();
    let before = store.counters();
    store.read_certain(&next);
    for (layer, experts) in &next {
        wait_for(&store.visit(*layer, experts, Phase::Decode).unwrap(), 4);
    }
    let read = store.counters().since(&before);
    assert_eq!((read.records_read, read.decode.misses + read.ahead_used), (6, 6));
    assert_eq!(
        (read.decode.hits + read.decode.joined + read.decode.misses, read.ahead_wasted),
        (12, 0)
    );
    // What does not exist is the visit's error, and mapped records and buffers have nothing ahead.
    store.read_certain(&[(LayerId(0), ids(&[40])), (LayerId(9), ids(&[0]))]);
    for mode in [StorageMode::Mmap, StorageMode::PageCache] {
        let store = ExpertStore::open(Arc::clone(&checkpoint), options(mode, 16, 4)).unwrap();
        store.read_certain(&next);
        assert_eq!(store.counters().ahead_issued, 0);
    }
}

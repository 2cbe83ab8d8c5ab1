//! Records that kernels read where the host tier has them: the same bits as from slots, nothing is missing and nothing
//! is waited for but the token; where the device cannot, they are copied as ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::backend::cpu::KvType;
use engine::backend::gpu::{Adapter, DriverOptions, Import, Pieces};
use engine::engine::Engine;
use engine::model::config::ModelConfig;
use engine::routing::Routing;
use store::cache::{SlotBudget, StorageMode, StoreOptions};
use store::io::Simulator;
use tempfile::TempDir;

use super::long::{is_long, part_from};
use super::steps::{Disk, STEPS, request, together};
use super::support::{ALL, CHUNK, STEPPED, adapter, all_records, engine_over, limits, opened};

/// A golden case as a native pack, whose records lie in files as in slots.
fn packed(case: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (source, _) = opened(case);
    let mut goes_on = |_| std::ops::ControlFlow::Continue(());
    let to = folder.path().join("pack");
    store::pack::pack(&source, &to, Default::default(), &mut goes_on).unwrap();
    folder
}

/// An engine whose host tier has every record.
fn engine(adapter: &Adapter, case: &str, pack: &TempDir, slots: usize) -> Engine {
    routed(adapter, case, pack, slots, Routing::default())
}

fn routed(adapter: &Adapter, case: &str, pack: &TempDir, slots: usize, routing: Routing) -> Engine {
    let checkpoint = Arc::new(store::format::open(&pack.path().join("pack")).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let options = StoreOptions::new(StorageMode::Resident, 3 * config.moe.top_k);
    let limits = limits(case, KvType::F16, Pieces::Adaptive);
    engine_over(adapter, (checkpoint, config), slots, limits, options, CHUNK, routing).0
}

/// Experts of a token, layers and records of a case, and the bits of one request and of three at once where all records
/// have slots.
fn whole(adapter: &Adapter, case: &str, pack: &TempDir) -> ([usize; 3], (Vec<u32>, Vec<u32>)) {
    let config = opened(case).1;
    let [layers, records] = all_records(&config);
    let mut engine = engine(adapter, case, pack, ALL);
    let bits = (request(&mut engine).unwrap(), together(&mut engine));
    ([config.moe.top_k, layers, records], bits)
}

#[test]
fn what_is_read_in_place_is_waited_for_once_a_token_and_shows_in_no_bit() {
    let Some(adapter) = adapter() else { return };
    let mut without = adapter.clone();
    without.host_alignment = None;
    for (number, case) in STEPPED.into_iter().enumerate() {
        let pack = packed(case);
        let ([k, layers, records], expected) = whole(&adapter, case, &pack);
        for slots in part_from(number, [1, k + 2, records / 5, records - 1], 4) {
            let context = format!("{case}, {slots} slots");
            for adapter in [&adapter, &without] {
                let mut found = engine(adapter, case, &pack, slots);
                let before = found.counters();
                let bits = request(&mut found).unwrap();
                let spent = found.counters().since(&before);
                assert!(bits == expected.0, "{context}");
                assert!(together(&mut found) == expected.1, "{context}: three at once");
                let device = spent.device;
                let in_place = adapter.host_alignment.is_some();
                // What is read in place is counted while the next step runs.
                let counted = STEPS - usize::from(in_place);
                let uses = (layers * k * counted) as u64;
                assert!(device.hits + device.over_bus == uses, "{context}: {device:?}");
                if !in_place {
                    continue;
                }
                // Once a layer of the prompt and once for its token, once a step.
                assert!(device.queue.waits <= (layers + 1 + STEPS) as u64, "{context}: {device:?}");
                let found = device.hits.max(1);
                assert!(found >= uses || device.over_bus > 0, "{context}: {device:?}");
                if slots == 1 {
                    assert!(device.over_bus >= uses - counted as u64, "{context}: {device:?}");
                }
            }
        }
    }
}

/// Records of a host tier that holds a part of them are read there, while others come from disk into its slots.
#[test]
fn what_a_small_host_tier_has_is_read_in_place_and_shows_in_no_bit() {
    let Some(adapter) = adapter() else { return };
    if adapter.host_alignment.is_none() {
        return;
    }
    let insists = DriverOptions { import: Import::On, ..DriverOptions::default() };
    let insists = adapter.clone().with(insists).unwrap();
    for (number, case) in STEPPED.into_iter().enumerate() {
        let pack = packed(case);
        let ([k, _, records], expected) = whole(&adapter, case, &pack);
        let ways = [
            (1, 3 * k),
            (k + 2, 3 * k + 1),
            (records / 5, (records / 4).max(3 * k)),
            (records / 5, (records / 2).max(3 * k)),
            (records - 1, 3 * k),
        ];
        for (slots, in_ram) in part_from(number, ways, 5) {
            let context = format!("{case}, {slots} slots, {in_ram} in RAM");
            let mut found = cached(&insists, case, &pack, (slots, in_ram), None);
            let before = found.counters();
            assert!(request(&mut found).unwrap() == expected.0, "{context}");
            let device = found.counters().since(&before).device;
            assert!(slots + 1 == records || device.over_bus > 0, "{context}: {device:?}");
            assert!(together(&mut found) == expected.1, "{context}: three at once");
            assert!(request(&mut found).unwrap() == expected.0, "{context}: once more");
        }
        // Reads that come late, and reads that fail: the next request has the same bits.
        let (disk, simulator) = Disk::new(3);
        let mut found = cached(&insists, case, &pack, (k + 2, 3 * k), Some(simulator));
        disk.late.store(1500, Ordering::SeqCst);
        assert!(request(&mut found).unwrap() == expected.0, "{case}: late reads");
        disk.late.store(0, Ordering::SeqCst);
        let mut failed = 0;
        for number in (0..100).step_by(if is_long() { 7 } else { 25 }) {
            disk.until.store(number, Ordering::SeqCst);
            let bits = request(&mut found);
            disk.until.store(-1, Ordering::SeqCst);
            failed += usize::from(bits.is_err());
            assert!(bits.is_err() || bits.is_ok_and(|bits| bits == expected.0), "{case}, {number}");
            assert!(request(&mut found).unwrap() == expected.0, "{case}, {number}: the next");
        }
        assert!(failed > if is_long() { 2 } else { 0 }, "{case}: {failed} requests failed");
    }
}

/// An engine whose host tier has a part of the records.
fn cached(
    adapter: &Adapter,
    case: &str,
    pack: &TempDir,
    (slots, in_ram): (usize, usize),
    storage: Option<Simulator>,
) -> Engine {
    let checkpoint = Arc::new(store::format::open(&pack.path().join("pack")).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Slots(in_ram);
    options.storage = storage.map(|it| Box::new(it) as _);
    let limits = limits(case, KvType::F16, Pieces::Adaptive);
    let routing = Routing::default();
    engine_over(adapter, (checkpoint, config), slots, limits, options, CHUNK, routing).0
}

/// A generator's choices are the same in steps and out of them.
#[test]
fn replaced_routing_is_the_same_wherever_records_are() {
    let Some(adapter) = adapter() else { return };
    let mut without = adapter.clone();
    without.host_alignment = None;
    for case in STEPPED {
        let (pack, config) = (packed(case), opened(case).1);
        let (layers, experts) = (config.layers.len(), config.moe.experts);
        let bits = |adapter, slots| {
            let routing = Routing::calibrated(5, layers, experts);
            request(&mut routed(adapter, case, &pack, slots, routing)).unwrap()
        };
        let expected = bits(&adapter, ALL);
        assert!(bits(&adapter, 3) == expected, "{case}: in place");
        assert!(bits(&without, 3) == expected, "{case}: copied");
        let own = request(&mut engine(&adapter, case, &pack, ALL)).unwrap();
        assert!(own != expected, "{case}: nothing was replaced");
    }
}

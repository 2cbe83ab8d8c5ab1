//! A store under a device with memory of its own: what the device has gives way first, what it gives up comes back.

use crate::cache_support;

use std::path::Path;
use std::sync::Arc;

use cache_support::{Layout, checkpoint, ids, is_right};
use store::cache::{ExpertStore, Phase, SlotBudget, StorageMode, StoreError, StoreOptions};
use store::format::Checkpoint;
use store::{ExpertId, LayerId};

const LAYER: LayerId = LayerId(0);

fn open(folder: &Path, slots: usize) -> (ExpertStore, Arc<Checkpoint>) {
    let checkpoint = checkpoint(folder, 1, 12, Layout::Native);
    let options = StoreOptions::new(StorageMode::Budget, 2);
    let options = StoreOptions { slots: SlotBudget::Slots(slots), ..options };
    (ExpertStore::open(Arc::clone(&checkpoint), options).unwrap(), checkpoint)
}

fn read(store: &ExpertStore, experts: &[u16], phase: Phase) {
    let visit = store.visit(LAYER, &ids(experts), phase).unwrap();
    (0..visit.len()).for_each(|member| assert!(visit.wait(member).is_ok()));
}

fn mark(store: &ExpertStore, expert: u16, on_device: bool) {
    store.mark_on_device(std::iter::once((LAYER, ExpertId(expert), on_device)));
}

fn resident(store: &ExpertStore) -> Vec<u16> {
    (0..12).filter(|&expert| store.is_resident(LAYER, ExpertId(expert))).collect()
}

#[test]
fn copies_of_what_a_device_has_give_way_before_colder_records() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path(), 4);
    for phase in [Phase::Prefill, Phase::Decode] {
        read(&store, &[0, 1, 2, 3], Phase::Decode);
        // The most used, one of them before it is marked and one after.
        mark(&store, 1, true);
        read(&store, &[1, 2], Phase::Decode);
        read(&store, &[1], Phase::Decode);
        mark(&store, 2, true);
        assert_eq!(store.counters().device.in_both, 2);
        // The one that the device will give up last goes first.
        read(&store, &[4], phase);
        assert_eq!((resident(&store), store.counters().device.in_both), (vec![0, 2, 3, 4], 1));
        read(&store, &[5], phase);
        assert_eq!((resident(&store), store.counters().device.in_both), (vec![0, 3, 4, 5], 0));
        mark(&store, 1, false);
        mark(&store, 2, false);
    }
}

#[test]
fn what_a_visit_or_a_device_holds_does_not_give_way_though_a_device_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path(), 3);
    read(&store, &[0, 1, 2], Phase::Decode);
    (0..3).for_each(|expert| mark(&store, expert, true));
    let held = store.hold(LAYER, ExpertId(0)).unwrap();
    let visit = store.visit(LAYER, &ids(&[1]), Phase::Decode).unwrap();
    assert_eq!(store.counters().device.in_both, 1);
    read(&store, &[7], Phase::Decode);
    assert_eq!(resident(&store), [0, 1, 7]);
    drop((held, visit));
    assert_eq!(store.counters().device.in_both, 2);
    // No longer on the device: worth what its uses say.
    mark(&store, 0, false);
    assert_eq!(store.counters().device.in_both, 1);
    read(&store, &[8], Phase::Decode);
    assert_eq!(resident(&store), [0, 7, 8]);
}

#[test]
fn a_record_that_comes_back_is_the_same_and_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (store, checkpoint) = open(folder.path(), 3);
    read(&store, &[5], Phase::Decode);
    let kept = store.hold(LAYER, ExpertId(5)).unwrap().bytes().to_vec();
    read(&store, &[0, 1, 2], Phase::Decode);
    assert_eq!(resident(&store), [0, 1, 2]);
    let reads = store.counters().records_read;
    let mut admission = store.admit(LAYER, ExpertId(5)).unwrap();
    assert_eq!(resident(&store).len(), 2, "a slot was taken for it");
    assert!(store.hold(LAYER, ExpertId(5)).is_none() && !store.is_resident(LAYER, ExpertId(5)));
    admission.bytes().copy_from_slice(&kept);
    let held = admission.publish().unwrap();
    assert_eq!(held.bytes(), kept);
    // While it is held it does not give way.
    read(&store, &[7, 8], Phase::Decode);
    assert_eq!(resident(&store), [5, 7, 8]);
    drop(held);
    let visit = store.visit(LAYER, &ids(&[5]), Phase::Decode).unwrap();
    assert!(visit.is_hit(0));
    assert!(is_right(&checkpoint, LAYER, ExpertId(5), &visit.wait(0).unwrap()));
    assert_eq!(store.counters().records_read, reads + 2);
}

#[test]
fn an_admission_that_ends_otherwise_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (store, checkpoint) = open(folder.path(), 3);
    // Given up.
    drop(store.admit(LAYER, ExpertId(5)).unwrap());
    assert!(resident(&store).is_empty());
    // Read meanwhile by a visit, which does not wait for the device.
    let mut late = store.admit(LAYER, ExpertId(5)).unwrap();
    late.bytes().fill(0xee);
    let visit = store.visit(LAYER, &ids(&[5]), Phase::Decode).unwrap();
    assert!(is_right(&checkpoint, LAYER, ExpertId(5), &visit.wait(0).unwrap()));
    assert!(late.publish().is_none());
    assert!(is_right(&checkpoint, LAYER, ExpertId(5), &visit.wait(0).unwrap()));
    drop(visit);
    // Already there, on its way twice, unknown, or without a slot left.
    assert!(store.admit(LAYER, ExpertId(5)).is_none());
    assert!(
        store.admit(LAYER, ExpertId(12)).is_none()
            && store.admit(LayerId(1), ExpertId(0)).is_none()
    );
    let held = store.hold(LAYER, ExpertId(5)).unwrap();
    let two = [store.admit(LAYER, ExpertId(6)).unwrap(), store.admit(LAYER, ExpertId(6)).unwrap()];
    assert!(store.admit(LAYER, ExpertId(7)).is_none());
    // A visit that has no slot to wait for says so instead of waiting for the device.
    let visit = store.visit(LAYER, &ids(&[7]), Phase::Decode).unwrap();
    assert!(matches!(visit.wait(0), Err(StoreError::Exhausted { .. })));
    let [first, second] = two;
    assert!(first.publish().is_some() && second.publish().is_none());
    drop((visit, held));
    // All slots are there again.
    read(&store, &[0, 1, 2], Phase::Decode);
    assert_eq!(resident(&store), [0, 1, 2]);
}

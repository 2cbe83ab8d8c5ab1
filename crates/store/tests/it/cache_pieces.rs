//! Goal: a record read in pieces is the record. Method: records of a megabyte; a visit lacks one or two of them, so
//! that the queue is shallow; the simulator counts the reads, and fails or shortens each of them in turn.

#[allow(dead_code, reason = "made for the small records of other tests")]
use crate::cache_support;

use std::sync::Arc;

use cache_support::{byte_at, described};
use store::cache::{
    ExpertStore, Phase, ReadCause, SlotBudget, StorageMode, StoreError, StoreOptions,
};
use store::format::{Checkpoint, ExpertExtents, Extent, FileId, Projection};
use store::io::{Fault, FaultPlan, IoEngine, Simulator};
use store::{ExpertId, LayerId};

/// Of one projection's weights; a record has three and nothing else.
const WEIGHT: u64 = 400 << 10;
const RECORD: u64 = 3 * WEIGHT;
const EXPERTS: u64 = 8;
const EIO: i32 = 5;

fn large_records(root: &std::path::Path) -> Arc<Checkpoint> {
    let at = |offset| Extent { file: FileId(0), offset, length: WEIGHT };
    let expert = |index: u64| ExpertExtents {
        weight: [0, 1, 2].map(|piece| at(index * RECORD + piece * WEIGHT)),
        scales_biases: [None; 3],
    };
    Arc::new(described(root, vec![((0..EXPERTS).map(expert).collect(), EXPERTS * RECORD)]))
}

fn open(checkpoint: &Arc<Checkpoint>, plan: Option<FaultPlan>, io: IoEngine) -> ExpertStore {
    let storage = plan.map(|plan| Box::new(Simulator::new(plan, 1)) as _);
    let slots = SlotBudget::Slots(4);
    let options = StoreOptions { slots, storage, io, ..StoreOptions::new(StorageMode::Budget, 4) };
    ExpertStore::open(Arc::clone(checkpoint), options).unwrap()
}

/// Visits experts and compares all bytes; the error of the first that failed.
fn visit(store: &ExpertStore, experts: &[u16]) -> Result<(), StoreError> {
    let ids: Vec<ExpertId> = experts.iter().copied().map(ExpertId).collect();
    let visit = store.visit(LayerId(0), &ids, Phase::Decode)?;
    for (member, &expert) in experts.iter().enumerate() {
        let bytes = visit.wait(member)?;
        let mut position = u64::from(expert) * RECORD;
        for projection in [Projection::Gate, Projection::Up, Projection::Down] {
            for &byte in bytes.weight(projection) {
                assert_eq!(byte, byte_at(0, position), "expert {expert} at {position}");
                position += 1;
            }
        }
    }
    Ok(())
}

#[test]
fn lonely_records_are_read_in_two_pieces_and_many_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = large_records(folder.path());
    let simulator = Simulator::new(Box::new(|_| Fault::None), 1);
    let view = simulator.view();
    let storage = Some(Box::new(simulator) as _);
    let slots = SlotBudget::Slots(4);
    let options = StoreOptions { slots, storage, ..StoreOptions::new(StorageMode::Budget, 4) };
    let store = ExpertStore::open(Arc::clone(&checkpoint), options).unwrap();
    let mut before = 0;
    for (experts, reads) in
        [(vec![0], 2), (vec![1, 2], 4), (vec![3, 4, 5], 3), (vec![0, 1, 6, 7], 4)]
    {
        visit(&store, &experts).unwrap();
        let now = view.counters().operations;
        assert_eq!(now - before, reads, "{experts:?}");
        before = now;
    }
    let counters = store.counters();
    assert_eq!((counters.records_read, counters.bytes_read), (10, 10 * RECORD));
}

#[test]
fn real_engines_deliver_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = large_records(folder.path());
    for io in [IoEngine::Auto, IoEngine::Pread] {
        let store = open(&checkpoint, None, io);
        for experts in [vec![0], vec![5, 6], vec![1, 2, 3], vec![7], vec![0, 4, 5, 6]] {
            visit(&store, &experts).unwrap();
        }
    }
}

#[test]
fn each_piece_can_fail_or_fall_short() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = large_records(folder.path());
    for k in 0..4 {
        let once = move |fault: Fault| -> Option<FaultPlan> {
            Some(Box::new(move |read| if read.number == k { fault } else { Fault::None }))
        };
        for fault in [Fault::Short(1), Fault::Short(4096), Fault::Short(300_000), Fault::Error(4)] {
            let store = open(&checkpoint, once(fault), IoEngine::Auto);
            visit(&store, &[2, 6]).unwrap();
            assert_eq!(
                (store.counters().errors, store.counters().retries),
                (0, 1),
                "{fault:?}, read {k}"
            );
        }
        let store = open(&checkpoint, once(Fault::Error(EIO)), IoEngine::Auto);
        let error = visit(&store, &[2, 6]).unwrap_err();
        let StoreError::Read { cause, offset, length, expert, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((cause, *length), (&ReadCause::System(EIO), RECORD / 2), "{error}");
        let within = *offset - u64::from(expert.0) * RECORD;
        assert!(within == 0 || within == RECORD / 2, "{error}");
        visit(&store, &[2, 6]).unwrap();
        assert_eq!(store.counters().errors, 1);
    }
}

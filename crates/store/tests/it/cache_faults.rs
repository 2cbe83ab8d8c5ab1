//! Goal: a failing disk costs the requests that needed it an error, and nothing else. Method: the seeded
//! simulator fails the k-th read for every k, then reads at random over hundreds of seeds; whatever a visit
//! returns is the file's bytes or a typed error, and afterwards the store serves everything, with every slot.

use crate::cache_support;
use crate::long::is_long;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cache_support::{
    Layout, checkpoint, checkpoint_with_checksums, ids, is_right, native_record_bytes,
};
use store::cache::{
    ExpertStore, Phase, ReadCause, SlotBudget, StorageMode, StoreError, StoreOptions,
};
use store::format::Checkpoint;
use store::io::{Fault, FaultPlan, FaultRates, Operation, Simulator, SimulatorView};
use store::{ExpertId, LayerId};

const LAYERS: u16 = 2;
const EXPERTS: u16 = 12;
const SLOTS: usize = 9;
const EIO: i32 = 5;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;

/// Opens a store over a simulated disk.
fn open(
    checkpoint: &Arc<Checkpoint>,
    mode: StorageMode,
    check_reads: bool,
    plan: FaultPlan,
    seed: u64,
) -> Result<(ExpertStore, SimulatorView), StoreError> {
    let simulator = Simulator::new(plan, seed);
    let view = simulator.view();
    let options = StoreOptions {
        slots: SlotBudget::Slots(SLOTS),
        storage: Some(Box::new(simulator)),
        check_reads,
        ..StoreOptions::new(mode, 4)
    };
    ExpertStore::open(Arc::clone(checkpoint), options).map(|store| (store, view))
}

/// Visits some experts and uses what arrives; counts the members that failed.
fn visit(
    checkpoint: &Checkpoint,
    store: &ExpertStore,
    layer: LayerId,
    experts: &[ExpertId],
    phase: Phase,
    context: &str,
) -> usize {
    let mut visit = store.visit(layer, experts, phase).unwrap();
    let mut failed = 0;
    for member in visit.order().to_vec() {
        match visit.wait(member) {
            Ok(bytes) => {
                let right = is_right(checkpoint, layer, experts[member], &bytes);
                assert!(right, "{context}: wrong bytes of {layer:?} {:?}", experts[member]);
            }
            Err(StoreError::Read { layer: named, expert, .. }) => {
                assert_eq!((named, expert), (layer, experts[member]), "{context}");
                failed += 1;
            }
            Err(other) => panic!("{context}: {other}"),
        }
        if phase == Phase::Prefill {
            visit.release(member);
        }
    }
    failed
}

/// Decode steps, a prefill sweep in waves, read-ahead used and unused. Returns failed members.
fn script(checkpoint: &Checkpoint, store: &ExpertStore, context: &str) -> usize {
    let all: Vec<ExpertId> = (0..EXPERTS).map(ExpertId).collect();
    let mut failed = 0;
    for step in 0..6u16 {
        let experts = ids(&[step % 4, 4 + step % 3, 7 + step % 2, 9 + step % 3]);
        failed +=
            visit(checkpoint, store, LayerId(step % LAYERS), &experts, Phase::Decode, context);
    }
    for layer in 0..LAYERS {
        store.read_ahead(LayerId(layer), &all[..3]);
        failed += visit(checkpoint, store, LayerId(layer), &all, Phase::Prefill, context);
    }
    store.read_ahead(LayerId(0), &all[5..9]);
    failed += visit(checkpoint, store, LayerId(0), &all[..2], Phase::Decode, context);
    // Nothing is left in flight: what fails later would be the next request's.
    failed + visit(checkpoint, store, LayerId(0), &all, Phase::Prefill, context)
}

/// The disk is well again: everything can be had, and all slots at once.
fn serves_everything(checkpoint: &Checkpoint, store: &ExpertStore, context: &str) {
    let all: Vec<ExpertId> = (0..EXPERTS).map(ExpertId).collect();
    for layer in 0..LAYERS {
        let layer = LayerId(layer);
        assert_eq!(visit(checkpoint, store, layer, &all, Phase::Prefill, context), 0, "{context}");
        // Decode holds what it visits: a leaked slot would leave the last member without one.
        let as_many = &all[..SLOTS];
        let pinned = store.visit(layer, as_many, Phase::Decode).unwrap();
        for (member, &expert) in as_many.iter().enumerate() {
            let bytes = pinned.wait(member).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(is_right(checkpoint, layer, expert, &bytes), "{context}");
        }
    }
}

#[test]
fn whichever_read_fails_the_store_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Native, Layout::Stacked] {
        let checkpoint = checkpoint(folder.path(), LAYERS.into(), EXPERTS.into(), layout);
        for mode in [StorageMode::Budget, StorageMode::PageCache] {
            for (fault, is_fatal) in [
                (Fault::Error(EIO), true),
                (Fault::Error(EINTR), false),
                (Fault::Error(EAGAIN), false),
                (Fault::Short(1), false),
                (Fault::Short(4096), false),
                (Fault::Short(5000), false),
                (Fault::Short(0), false),
            ] {
                // Reads of nine pieces each: every seventh of them is a sample of all kinds.
                let stride = match (layout, is_long()) {
                    (Layout::Native, true) => 1,
                    (Layout::Native, false) => 7,
                    (_, true) => 7,
                    (_, false) => 23,
                };
                for k in (0..).step_by(stride) {
                    let context = format!("{layout:?} {mode:?} {fault:?} at read {k}");
                    let over = Arc::new(AtomicBool::new(false));
                    let plan = until(&over, fail_number(k, fault));
                    let (store, view) = open(&checkpoint, mode, false, plan, k).unwrap();
                    let failed = script(&checkpoint, &store, &context);
                    let is_past = view.counters().operations <= k;
                    over.store(true, Ordering::SeqCst);
                    serves_everything(&checkpoint, &store, &context);
                    let counters = store.counters();
                    if !is_fatal {
                        assert_eq!((failed, counters.errors), (0, 0), "{context}");
                    }
                    assert!(counters.errors <= 1, "{context}");
                    if is_past {
                        break;
                    }
                }
            }
        }
    }
}

/// A disk that never recovers from a passing fault is given up with the right cause.
#[test]
fn faults_that_do_not_pass_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, 4, Layout::Native);
    let expected = native_record_bytes();
    let cases = [
        (Fault::Error(EIO), ReadCause::System(EIO)),
        (Fault::Error(EINTR), ReadCause::Interrupted(64)),
        (Fault::Short(0), ReadCause::Short { got: 0, expected }),
        (Fault::Short(100), ReadCause::Short { got: 100, expected }),
    ];
    for (fault, expected) in cases {
        let (store, view) =
            open(&checkpoint, StorageMode::Budget, false, Box::new(move |_| fault), 0).unwrap();
        let visit = store.visit(LayerId(0), &ids(&[2]), Phase::Decode).unwrap();
        let error = visit.wait(0).unwrap_err();
        let StoreError::Read { path, offset, cause, .. } = &error else { panic!("{error}") };
        assert_eq!((cause, path), (&expected, &checkpoint.files[0].path), "{fault:?}");
        assert_eq!(*offset, 2 * native_record_bytes());
        assert!(!error.to_string().contains('\n'));
        assert!(view.counters().operations <= 66, "{fault:?}: tried without end");
        // Asked again, it is read again: a failure is not remembered.
        drop(visit);
        let again = store.visit(LayerId(0), &ids(&[2]), Phase::Decode).unwrap();
        assert!(again.wait(0).is_err());
        assert_eq!(store.counters().errors, 2);
    }
}

/// `Resident` loads at open: there a failed read is an error of opening, unless it was read ahead only and
/// succeeds when it is asked for.
#[test]
fn a_model_that_cannot_be_loaded_is_an_error_of_opening() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), LAYERS.into(), EXPERTS.into(), Layout::Native);
    let records = u64::from(LAYERS * EXPERTS);
    let mut refused = 0;
    for k in 0..records {
        let plan = fail_number(k, Fault::Error(EIO));
        match open(&checkpoint, StorageMode::Resident, false, plan, k) {
            Err(StoreError::Read { cause, .. }) => {
                assert_eq!(cause, ReadCause::System(EIO));
                refused += 1;
            }
            Err(other) => panic!("read {k}: {other}"),
            Ok((store, view)) => {
                assert_eq!(view.counters().operations, records + 1, "read {k} was not repeated");
                serves_everything(&checkpoint, &store, "resident");
            }
        }
    }
    assert!(refused >= u64::from(EXPERTS) / 2, "{refused} refused");
    let plan: FaultPlan = Box::new(|_| Fault::Error(EIO));
    assert!(open(&checkpoint, StorageMode::Resident, false, plan, 0).is_err());
}

/// One fault, at the read with this number.
fn fail_number(number: u64, fault: Fault) -> FaultPlan {
    Box::new(move |read| if read.number == number { fault } else { Fault::None })
}

/// A plan that ends when the switch is thrown.
fn until(over: &Arc<AtomicBool>, mut plan: FaultPlan) -> FaultPlan {
    let over = Arc::clone(over);
    Box::new(move |read| if over.load(Ordering::SeqCst) { Fault::None } else { plan(read) })
}

#[test]
fn hundreds_of_bad_disks() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint_with_checksums(folder.path(), LAYERS.into(), EXPERTS.into());
    let rates = FaultRates {
        late: 60,
        latest: Duration::from_micros(200),
        error: 60,
        interrupted: 80,
        short: 120,
        empty: 60,
        flipped: 60,
    };
    let (mut errors, mut flipped) = (0, 0);
    for seed in 0..240 {
        let mode = if seed % 3 == 0 { StorageMode::PageCache } else { StorageMode::Budget };
        let over = Arc::new(AtomicBool::new(false));
        let plan = until(&over, rates.plan(seed));
        let (store, view) = open(&checkpoint, mode, true, plan, seed).unwrap();
        // Two requests at a time, as a server has them.
        std::thread::scope(|scope| {
            for part in 0..2 {
                let (checkpoint, store) = (&checkpoint, &store);
                scope.spawn(move || {
                    for step in 0..12u16 {
                        let first = (step * 5 + part * 3) % (EXPERTS - 3);
                        let experts = ids(&[first, first + 1, first + 3]);
                        let context = format!("seed {seed}, request {part}, step {step}");
                        let layer = LayerId((step + part) % LAYERS);
                        visit(checkpoint, store, layer, &experts, Phase::Decode, &context);
                    }
                });
            }
        });
        let context = format!("seed {seed}");
        script(&checkpoint, &store, &context);
        over.store(true, Ordering::SeqCst);
        serves_everything(&checkpoint, &store, &context);
        errors += store.counters().errors;
        flipped += view.counters().flipped;
    }
    assert!(errors > 1000 && flipped > 300, "{errors} errors and {flipped} flips are no test");
}

#[test]
fn the_same_seed_is_the_same_disk() {
    let rates = FaultRates { error: 300, short: 300, flipped: 100, ..FaultRates::default() };
    let read = |offset| Operation {
        number: 0,
        file: store::format::FileId(0),
        offset,
        length: 4096,
        repetition: 1,
    };
    let faults = |seed| {
        let mut plan = rates.plan(seed);
        (0..200).map(|at| plan(&read(at * 4096))).collect::<Vec<_>>()
    };
    assert_eq!(faults(5), faults(5));
    assert_ne!(faults(5), faults(6));
}

/// A flipped bit is found where reads are checked, and only there: the price is stated in the options.
#[test]
fn a_flipped_bit_is_found_when_reads_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint_with_checksums(folder.path(), 1, EXPERTS.into());
    for check_reads in [true, false] {
        let mut found = 0;
        for bit in 0..64 {
            let plan = move |_: &Operation| Fault::Flipped(bit * 7919);
            let (store, _) =
                open(&checkpoint, StorageMode::Budget, check_reads, Box::new(plan), 1).unwrap();
            let visit = store.visit(LayerId(0), &ids(&[3]), Phase::Decode).unwrap();
            match visit.wait(0) {
                Err(StoreError::Read { cause: ReadCause::Checksum { .. }, .. }) => found += 1,
                Err(other) => panic!("{other}"),
                Ok(_) => {}
            }
        }
        assert_eq!(found, if check_reads { 64 } else { 0 });
    }
}

/// Bytes read are records missed times record size, by the store's counters and by the disk's.
#[test]
fn bytes_read_are_misses_times_record_size() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), LAYERS.into(), EXPERTS.into(), Layout::Native);
    let plan: FaultPlan = Box::new(|_| Fault::None);
    let (store, view) = open(&checkpoint, StorageMode::Budget, false, plan, 3).unwrap();
    let all: Vec<ExpertId> = (0..EXPERTS).map(ExpertId).collect();
    for step in 0..40u16 {
        let experts = ids(&[step % 4, 4 + step % 3, 7 + step % 2, 9 + step % 3]);
        visit(&checkpoint, &store, LayerId(step % LAYERS), &experts, Phase::Decode, "decode");
        if step % 9 == 0 {
            visit(&checkpoint, &store, LayerId(step % LAYERS), &all, Phase::Prefill, "prefill");
        }
    }
    let counters = store.counters();
    let misses = counters.decode.misses + counters.prefill.misses;
    assert!(counters.decode.hits > 0 && misses > 60 && counters.given_up == 0);
    assert_eq!(counters.records_read, misses);
    assert_eq!(counters.bytes_read, misses * native_record_bytes());
    assert_eq!(view.counters().bytes, counters.bytes_read);
    assert_eq!(view.counters().operations, misses);
}

/// A panic under the store's lock may have left a record under the wrong slot: nothing is served by that bookkeeping
/// any more, and no caller waits for it.
#[test]
fn a_panic_during_a_change_of_the_bookkeeping_ends_service_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), LAYERS.into(), EXPERTS.into(), Layout::Native);
    let (store, _) =
        open(&checkpoint, StorageMode::Budget, false, Box::new(|_| Fault::None), 1).unwrap();
    let before = store.visit(LayerId(0), &ids(&[1, 2]), Phase::Decode).unwrap();
    let other = store.visit(LayerId(1), &ids(&[3]), Phase::Decode).unwrap();
    // It is asked under the lock whether a record is still wanted.
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        before.wait_while(0, &|| panic!("injected")).map(|_| ())
    }));
    assert!(asked.is_err());
    let interrupted = |result| matches!(result, Err(StoreError::Interrupted));
    assert!(interrupted(other.wait(0).map(|_| ())), "a visit that had begun");
    drop((before, other));
    assert!(interrupted(store.visit(LayerId(0), &ids(&[1]), Phase::Decode).map(|_| ())));
    assert!(store.hold(LayerId(0), ExpertId(1)).is_none());
    store.read_ahead(LayerId(1), &ids(&[4]));
}

//! Goal: whatever the order of visits, completions, failures and releases, bytes handed out are the file's and
//! no slot is lost. Method: a storage engine that completes a read only when the test says so; every sequence
//! of four actions in full, and longer ones by chance, each on a store of its own.
//!
//! The store's decisions are all made under one lock, so the order of events is all that threads could vary.

use crate::cache_support;
use crate::long::{is_long, part};

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cache_support::{Layout, checkpoint, ids, is_right};
use store::arena::{HugePages, SlotArena};
use store::cache::{ExpertStore, Phase, SlotBudget, StorageMode, StoreError, StoreOptions, Visit};
use store::format::Checkpoint;
use store::io::{CompletionSink, FileSet, Outcome, ReadRequest, Storage};
use store::split_mix::SplitMix64;
use store::{ExpertId, LayerId};

const SLOTS: usize = 3;
const EXPERTS: u16 = 4;
const LAYER: LayerId = LayerId(0);
const EIO: i32 = 5;

/// Reads that wait to be completed, and whom to tell.
#[derive(Clone, Default)]
struct Stepped(Arc<Mutex<Pending>>);

#[derive(Default)]
struct Pending {
    requests: Vec<ReadRequest>,
    ends: Option<(Arc<FileSet>, Arc<dyn CompletionSink>)>,
}

impl Stepped {
    fn len(&self) -> usize {
        self.0.lock().unwrap().requests.len()
    }

    /// Ends the read at `index`, if there is one.
    fn complete(&self, index: usize, failed: bool) {
        let (mut request, files, sink) = {
            let mut pending = self.0.lock().unwrap();
            if index >= pending.requests.len() {
                return;
            }
            let (files, sink) = pending.ends.clone().unwrap();
            (pending.requests.remove(index), files, sink)
        };
        let outcome = if failed {
            Outcome::Failed(EIO)
        } else {
            files.read(request.file, request.offset, &mut request.target)
        };
        assert!(sink.complete(request, outcome).is_none());
    }
}

impl Storage for Stepped {
    fn start(
        &mut self,
        files: Arc<FileSet>,
        _arenas: &[Arc<SlotArena>],
        sink: Arc<dyn CompletionSink>,
    ) -> std::io::Result<()> {
        self.0.lock().unwrap().ends = Some((files, sink));
        Ok(())
    }

    fn submit(&self, requests: &mut Vec<ReadRequest>) {
        self.0.lock().unwrap().requests.append(requests);
    }

    fn promote(&self, _tag: u32) {}

    /// The first request is what the system has begun.
    fn withdraw(&self, unwanted: &mut dyn FnMut(u32) -> bool, withdrawn: &mut Vec<ReadRequest>) {
        let mut pending = self.0.lock().unwrap();
        let begun = pending.requests.len().min(1);
        let waiting = pending.requests.split_off(begun);
        for request in waiting {
            let to = if unwanted(request.tag) { &mut *withdrawn } else { &mut pending.requests };
            to.push(request);
        }
    }

    fn name(&self) -> &'static str {
        "stepped"
    }

    fn stop(&mut self) {
        let mut pending = self.0.lock().unwrap();
        pending.requests.clear();
        // The sink holds what the store holds: without this, neither would ever go.
        pending.ends = None;
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Begins a visit of a kind, unless one is under way.
    Begin(usize),
    /// Ends a visit of a kind, with reads in flight or without.
    End(usize),
    CompleteFirst,
    CompleteLast,
    FailFirst,
    /// Waits for what is there, checks it, and lets prefill members go.
    Use,
    ReadAhead,
    /// Cancels a visit of a kind.
    GiveUp(usize),
    /// Takes the read-ahead back.
    ForgetAhead,
}

const ACTIONS: [Action; 11] = [
    Action::Begin(0),
    Action::Begin(1),
    Action::Begin(2),
    Action::End(0),
    Action::CompleteFirst,
    Action::CompleteLast,
    Action::FailFirst,
    Action::Use,
    Action::ReadAhead,
    Action::GiveUp(2),
    Action::ForgetAhead,
];

/// Kinds of visits: two that share an expert, and one larger than the pool.
const KINDS: [(&[u16], Phase); 3] =
    [(&[0, 1], Phase::Decode), (&[1, 2], Phase::Prefill), (&[0, 1, 2, 3], Phase::Prefill)];

struct Run<'s> {
    checkpoint: &'s Checkpoint,
    store: &'s ExpertStore,
    reads: &'s Stepped,
    visits: [Option<Visit<'s>>; 3],
}

impl Run<'_> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(kind) if self.visits[kind].is_none() => {
                let (experts, phase) = KINDS[kind];
                self.visits[kind] = Some(self.store.visit(LAYER, &ids(experts), phase).unwrap());
            }
            Action::Begin(_) => {}
            Action::End(kind) => self.visits[kind] = None,
            Action::CompleteFirst => self.reads.complete(0, false),
            Action::CompleteLast => self.reads.complete(self.reads.len().wrapping_sub(1), false),
            Action::FailFirst => self.reads.complete(0, true),
            Action::Use => (0..KINDS.len()).for_each(|kind| self.use_ready(kind)),
            Action::ReadAhead => self.store.read_ahead(LAYER, &ids(&[3])),
            Action::GiveUp(kind) => {
                if let Some(visit) = self.visits[kind].take() {
                    let last = KINDS[kind].0.len() - 1;
                    // A released member is an error of its own.
                    let result = visit.wait_while(last, &|| false);
                    assert!(matches!(result, Err(StoreError::GivenUp) | Ok(_)), "{result:?}");
                }
            }
            Action::ForgetAhead => self.store.forget_ahead(LAYER),
        }
    }

    fn use_ready(&mut self, kind: usize) {
        let Some(visit) = &mut self.visits[kind] else { return };
        let (experts, phase) = KINDS[kind];
        for (member, &expert) in experts.iter().enumerate() {
            if !visit.is_ready(member) {
                continue;
            }
            match visit.wait(member) {
                Ok(bytes) => assert!(is_right(self.checkpoint, LAYER, ExpertId(expert), &bytes)),
                Err(StoreError::Read { expert: named, .. }) => assert_eq!(named, ExpertId(expert)),
                Err(other) => panic!("{other}"),
            }
            if phase == Phase::Prefill {
                visit.release(member);
            }
        }
    }

    /// Ends everything; then all slots must be there for one visit, with the right bytes.
    fn settle(mut self) {
        self.visits = [None, None, None];
        while self.reads.len() > 0 {
            self.reads.complete(0, false);
        }
        let experts = ids(&[0, 2, 3]);
        assert_eq!(experts.len(), SLOTS);
        let visit = self.store.visit(LAYER, &experts, Phase::Decode).unwrap();
        while self.reads.len() > 0 {
            self.reads.complete(0, false);
        }
        for (member, &expert) in experts.iter().enumerate() {
            assert!(visit.is_ready(member), "a slot was lost");
            let bytes = visit.wait(member).unwrap();
            assert!(is_right(self.checkpoint, LAYER, expert, &bytes));
        }
    }
}

fn run(checkpoint: &Arc<Checkpoint>, mode: StorageMode, actions: &[Action]) {
    let reads = Stepped::default();
    let options = StoreOptions {
        slots: SlotBudget::Slots(SLOTS),
        storage: Some(Box::new(reads.clone())),
        huge_pages: HugePages::Never,
        ..StoreOptions::new(mode, SLOTS)
    };
    let store = ExpertStore::open(Arc::clone(checkpoint), options).unwrap();
    let mut run = Run { checkpoint, store: &store, reads: &reads, visits: [None, None, None] };
    for &action in actions {
        run.act(action);
    }
    run.settle();
}

/// Runs actions and says which they were when something is wrong.
fn check(checkpoint: &Arc<Checkpoint>, mode: StorageMode, actions: &[Action]) {
    let attempt = std::panic::AssertUnwindSafe(|| run(checkpoint, mode, actions));
    assert!(std::panic::catch_unwind(attempt).is_ok(), "{mode:?}: {actions:?}");
}

#[test]
fn every_short_sequence_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, EXPERTS.into(), Layout::Native);
    // An odd step: each storage mode has its half of them.
    for number in part(0..ACTIONS.len().pow(3), 3) {
        let digit = |place: u32| ACTIONS[number / ACTIONS.len().pow(place) % ACTIONS.len()];
        // Nothing happens before some visit or read-ahead begins.
        for first in [Action::Begin(0), Action::Begin(2)] {
            let actions = [first, digit(0), digit(1), digit(2)];
            let mode = [StorageMode::Budget, StorageMode::PageCache][number % 2];
            check(&checkpoint, mode, &actions);
        }
    }
}

#[test]
fn long_sequences_by_chance() {
    let folder = tempfile::tempdir().unwrap();
    // Records of one read, and of nine reads; some of the nine may be begun.
    let layouts = [Layout::Native, Layout::Stacked].map(|layout| {
        let root = folder.path().join(format!("{layout:?}"));
        std::fs::create_dir(&root).unwrap();
        checkpoint(&root, 1, EXPERTS.into(), layout)
    });
    let mut numbers = SplitMix64(1);
    let mut random = |below: usize| numbers.next_u64() as usize % below;
    for round in 0..if is_long() { 2000 } else { 600 } {
        let mut actions = Vec::new();
        for _ in 0..30 {
            actions.push(match random(ACTIONS.len() + 4) {
                0 => Action::End(1),
                1 => Action::End(2),
                2 => Action::GiveUp(0),
                3 => Action::GiveUp(1),
                other => ACTIONS[other - 4],
            });
        }
        let mode = [StorageMode::Budget, StorageMode::PageCache][round % 2];
        check(&layouts[round / 2 % 2], mode, &actions);
    }
}

/// Ends the next read, once it has begun; it gives up after ten seconds.
fn end_next(reads: &Stepped, failed: bool) {
    for _ in 0..10_000 {
        if reads.len() > 0 {
            return reads.complete(0, failed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A read that another visit or a guess has begun says nothing of one that begins now: who joined it and finds that it
/// failed reads the record itself, once.
#[test]
fn a_read_that_another_began_and_that_failed_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 1, EXPERTS.into(), Layout::Native);
    for case in 0..8 {
        let [ahead, polled, well] = [1, 2, 4].map(|bit| case & bit != 0);
        let reads = Stepped::default();
        let options = StoreOptions {
            slots: SlotBudget::Slots(SLOTS),
            storage: Some(Box::new(reads.clone())),
            huge_pages: HugePages::Never,
            ..StoreOptions::new(StorageMode::Budget, SLOTS)
        };
        let store = ExpertStore::open(Arc::clone(&checkpoint), options).unwrap();
        let first = (!ahead).then(|| store.visit(LAYER, &ids(&[1]), Phase::Decode).unwrap());
        if ahead {
            store.read_ahead(LAYER, &ids(&[1]));
        }
        let second = store.visit(LAYER, &ids(&[1]), Phase::Prefill).unwrap();
        assert_eq!(reads.len(), 1, "the second visit joins");
        reads.complete(0, true);
        if let Some(first) = &first {
            assert!(first.is_ready(0));
            let error = first.wait(0).unwrap_err();
            assert!(matches!(error, StoreError::Read { .. }), "its own read: {error}");
        }
        let context = format!("ahead {ahead}, polled {polled}, well {well}");
        if polled {
            assert!(!second.is_ready(0), "{context}");
            assert_eq!(reads.len(), 1, "{context}: it begins at once");
        }
        let result = std::thread::scope(|scope| {
            let ends = reads.clone();
            scope.spawn(move || end_next(&ends, !well));
            let bytes = second.wait(0)?;
            assert!(is_right(&checkpoint, LAYER, ExpertId(1), &bytes), "{context}");
            Ok(())
        });
        match result {
            Ok(()) => assert!(well, "{context}"),
            Err(StoreError::Read { .. }) => assert!(!well, "{context}"),
            Err(other) => panic!("{context}: {other}"),
        }
        assert_eq!(reads.len(), 0, "{context}: once");
        drop((first, second));
        Run { checkpoint: &checkpoint, store: &store, reads: &reads, visits: [None, None, None] }
            .settle();
    }
}

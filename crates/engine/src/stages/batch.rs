//! A batch on its way through the stages, and what threads of stages and the engine's thread say to each other.
//!
//! The engine's thread gives a batch to the first stage; each stage gives it to the next with the residual stream, and
//! the last one leaves it in the [`Mailbox`]. One that has failed goes the same way: every batch ends there once.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use store::cache::StoreCounters;

use super::command::Asked;
use super::wait::Waits;
use super::worker::Worker;
use crate::EngineError;
use crate::backend::{Cancel, Crossing, Purpose, Run, SequenceId};
use crate::model::StageTimes;
use crate::sequences::SnapshotShare;

/// Names a batch that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// The one behind another; the first of all behind none.
    pub(crate) fn next(last: Option<Self>) -> Self {
        Self(last.map_or(0, |last| last.0 + 1))
    }
}

/// What a panic carried.
pub(super) type Payload = Box<dyn Any + Send>;

/// Why a batch or a call failed.
pub(super) enum Failure {
    /// As an operation reports it.
    Error(EngineError),
    /// An operation panicked.
    Panic(Payload),
}

/// What a batch is, for all stages.
pub(super) struct Order {
    pub(super) ticket: Ticket,
    pub(super) runs: Vec<(SequenceId, Vec<u32>)>,
    pub(super) purpose: Purpose,
    /// Runs at whose end a snapshot is taken.
    pub(super) marks: Vec<usize>,
    /// Rounds whose first tokens alone are kept, before the batch begins.
    pub(super) kept: Vec<(SequenceId, usize)>,
    pub(super) cancelled: AtomicBool,
    /// Layers passed.
    pub(super) layers: AtomicUsize,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Order {
    /// Runs as devices take them.
    pub(super) fn runs(&self) -> Vec<Run<'_>> {
        self.runs.iter().map(|(sequence, tokens)| Run { sequence: *sequence, tokens }).collect()
    }

    /// Whose tokens they are.
    pub(super) fn sequences(&self) -> Vec<SequenceId> {
        self.runs.iter().map(|(sequence, _)| *sequence).collect()
    }
}

impl Cancel for Order {
    fn is_cancelled(&self) -> bool {
        self.mailbox.pulse.fetch_add(1, Ordering::Relaxed);
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Snapshots that a stage has made of the marks of a batch.
pub(super) type Marked = Vec<(SequenceId, Option<SnapshotShare>)>;

/// A batch between two stages.
pub(super) struct Moving {
    pub(super) order: Arc<Order>,
    /// What the last stage that computed it has left.
    pub(super) residual: Vec<f32>,
    /// Why no further stage computes it.
    pub(super) failure: Option<Failure>,
    /// Whether its sequences have changed on any stage.
    pub(super) changed: bool,
    /// Of each stage passed.
    pub(super) marks: Vec<Marked>,
    /// Where the time of all stages passed went.
    pub(super) times: StageTimes,
}

/// What a stage hears.
pub(super) enum Message {
    /// Something to do between two layers of prompts, and before any step that has not begun.
    Ask(Asked),
    /// The same as a closure, which no other process can be sent.
    Call(Box<dyn FnOnce(&mut Worker) + Send>),
    /// A step that the stage before has begun, and will send.
    Ahead(Arc<Order>),
    /// What that step will leave: the stage before computes it.
    Follow(Ticket, Crossing),
    /// A batch, from the engine's thread or the stage before.
    Batch(Box<Moving>),
    /// To the last stage: logits of this batch are not asked for any more.
    Release(Ticket),
}

/// What the last stage leaves for the engine's thread, and how far all are.
#[derive(Default)]
pub(super) struct Mailbox {
    /// At most as many as may be under way. Moved in and out whole.
    done: Mutex<VecDeque<Box<Moving>>>,
    changed: Condvar,
    /// Counts signs of life of all stages.
    pub(super) pulse: AtomicU64,
    /// Layers passed by any batch of a prompt.
    layers: AtomicU64,
    /// How many are in `done`.
    ended: AtomicUsize,
    /// How threads wait.
    pub(super) waits: Waits,
    /// Batches that some stage still has to compute.
    pub(super) under_way: AtomicUsize,
    /// Buffers for residual streams, of batches that are done.
    pub(super) spare: Mutex<Vec<Vec<f32>>>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// For a thread that waits so.
    pub(super) fn new(waits: Waits) -> Self {
        Self { waits, ..Self::default() }
    }

    /// Leaves a batch that has ended.
    pub(super) fn put(&self, moving: Box<Moving>) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let mut done = hold(&self.done);
        done.push_back(moving);
        self.ended.store(done.len(), Ordering::Relaxed);
        drop(done);
        self.changed.notify_all();
    }

    /// Says that a batch of a prompt has passed a layer.
    pub(super) fn note_layer(&self) {
        self.pulse.fetch_add(1, Ordering::Relaxed);
        // Under the lock, so that it does not happen between looking and sleeping.
        let done = hold(&self.done);
        self.layers.fetch_add(1, Ordering::Relaxed);
        drop(done);
        self.changed.notify_all();
    }

    /// Takes a batch that has ended; waits for one until a layer is passed, at most for `patience`.
    pub(super) fn take(&self, patience: Duration) -> Option<Box<Moving>> {
        let until = Instant::now() + patience;
        let layers = self.layers.load(Ordering::Relaxed);
        let changed = || {
            let ended = self.ended.load(Ordering::Relaxed) > 0;
            (ended || self.layers.load(Ordering::Relaxed) != layers).then_some(())
        };
        _ = self.waits.at_most(patience).look(changed);
        let mut done = hold(&self.done);
        loop {
            if let Some(moving) = done.pop_front() {
                self.ended.store(done.len(), Ordering::Relaxed);
                return Some(moving);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.layers.load(Ordering::Relaxed) != layers {
                return None;
            }
            let waited = self.changed.wait_timeout(done, left);
            done = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts batches back that were taken, before all others.
    pub(super) fn put_back(&self, movings: VecDeque<Box<Moving>>) {
        let mut done = hold(&self.done);
        movings.into_iter().rev().for_each(|moving| done.push_front(moving));
        self.ended.store(done.len(), Ordering::Relaxed);
    }

    /// A buffer for a residual stream.
    pub(super) fn buffer(&self) -> Vec<f32> {
        hold(&self.spare).pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&self, buffer: Vec<f32>) {
        if buffer.capacity() > 0 {
            hold(&self.spare).push(buffer);
        }
    }
}

/// What a stage has done since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Batches computed.
    pub batches: u64,
    /// Time in which it computed.
    pub busy: Duration,
    /// Time in which it had nothing to compute while other stages had: it waited for its neighbours.
    pub waited: Duration,
}

/// The same, as its thread counts it, with its experts' counters of the last batch.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) batches: AtomicU64,
    pub(super) busy_ns: AtomicU64,
    pub(super) waited_ns: AtomicU64,
    experts: Mutex<(StoreCounters, Option<Instant>)>,
}

/// Counters are copied no more often than this while batches follow each other.
const COUNTERS_AGE: Duration = Duration::from_millis(20);

impl Counted {
    pub(super) fn work(&self) -> StageWork {
        let time = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        StageWork {
            batches: self.batches.load(Ordering::Relaxed),
            busy: time(&self.busy_ns),
            waited: time(&self.waited_ns),
        }
    }

    /// What a stage in another process says of itself.
    pub(super) fn tell(&self, batches: u64, busy: Duration, waited: Duration) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.batches.store(batches, Ordering::Relaxed);
        self.busy_ns.store(nanos(busy), Ordering::Relaxed);
        self.waited_ns.store(nanos(waited), Ordering::Relaxed);
    }

    pub(super) fn add(sum: &AtomicU64, since: Instant) {
        let spent = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        sum.fetch_add(spent, Ordering::Relaxed);
    }

    /// The counters of a while ago.
    pub(super) fn experts(&self) -> StoreCounters {
        hold(&self.experts).0
    }

    /// Replaces the counters.
    pub(super) fn set(&self, counters: &StoreCounters) {
        *hold(&self.experts) = (*counters, Some(Instant::now()));
    }

    /// Replaces the counters where they are old.
    pub(super) fn renew(&self, counters: impl FnOnce() -> StoreCounters) {
        let old = hold(&self.experts).1.is_none_or(|then| then.elapsed() >= COUNTERS_AGE);
        if old {
            self.set(&counters());
        }
    }
}

//! What visits and I/O threads share: the bookkeeping under its one lock, and the end of every read.
//!
//! The lock is held for bookkeeping only, microseconds at most; reads happen on I/O threads and are
//! waited for on a condition variable, so that processors compute instead of spinning on a disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::arena::{SlotArena, SlotReader, SlotWriter, Target};
use crate::cache::StoreCounters;
use crate::cache::error::{ReadCause, StoreError};
use crate::cache::layout::StorePlan;
use crate::cache::members::{Scratch, VisitState};
use crate::cache::options::{StorageMode, StoreOptions};
use crate::cache::state::{Load, Purpose, Residency};
use crate::cache::verdict::{Verdict, judge};
use crate::format::{Checkpoint, record_checksum};
use crate::io::{CompletionSink, FileSet, Outcome, Priority, ReadRequest};
use crate::record::RecordPlan;
use crate::timeline;
use crate::{ExpertId, LayerId, RecordKey, SlotId};

/// Visits for which memory is set aside at open.
const EXPECTED_VISITS: usize = 8;

/// What visits and I/O threads share.
pub(super) struct Shared {
    checkpoint: Arc<Checkpoint>,
    check_reads: bool,
    files: Arc<FileSet>,
    plan: StorePlan,
    arenas: Vec<Arc<SlotArena>>,
    /// First slot of each pool.
    first_slots: Vec<SlotId>,
    state: Mutex<State>,
    changed: Condvar,
    /// Records whose reads have ended, well or not.
    pub(super) ended: AtomicU64,
}

/// What the lock protects.
pub(super) struct State {
    pub(super) residency: Residency,
    pub(super) visits: Vec<VisitState>,
    pub(super) spare: Vec<Scratch>,
    pub(super) requests: Vec<ReadRequest>,
    /// Requests that the engine has.
    pub(super) in_flight: usize,
    pub(super) counters: StoreCounters,
    /// Visits that sleep because no slot is left for them.
    pub(super) starving: usize,
}

impl State {
    fn new(plan: &StorePlan, options: &StoreOptions) -> Self {
        let experts = plan.layers.iter().flatten().map(|layer| layer.records.len()).max();
        let experts = experts.unwrap_or(0);
        let pools: Vec<usize> = plan.classes.iter().map(|class| class.slots).collect();
        let residency = Residency::new(
            plan.layers.len(),
            experts,
            &pools,
            options.minimum_slots,
            options.prefill_part,
            options.policy.build(),
            options.mode != StorageMode::PageCache,
        );
        let visits = (0..EXPECTED_VISITS).map(|_| VisitState::with_capacity(experts)).collect();
        let spare = (0..EXPECTED_VISITS).map(|_| Scratch::with_capacity(experts)).collect();
        Self {
            residency,
            visits,
            spare,
            requests: Vec::with_capacity(experts * crate::record::PIECES),
            in_flight: 0,
            counters: StoreCounters::default(),
            starving: 0,
        }
    }
}

impl Shared {
    /// Nothing resident yet. `arenas` and `first_slots` are by pool.
    pub(super) fn new(
        checkpoint: Arc<Checkpoint>,
        files: Arc<FileSet>,
        plan: StorePlan,
        (arenas, first_slots): (Vec<Arc<SlotArena>>, Vec<SlotId>),
        options: &StoreOptions,
    ) -> Self {
        Self {
            checkpoint,
            check_reads: options.check_reads,
            files,
            state: Mutex::new(State::new(&plan, options)),
            plan,
            arenas,
            first_slots,
            changed: Condvar::new(),
            ended: AtomicU64::new(0),
        }
    }

    /// The plan of all slots.
    pub(super) fn plan(&self) -> &StorePlan {
        &self.plan
    }

    /// The bookkeeping. After a panic that has cut a change of it short it still takes completions and gives slots
    /// back, so that no thread waits for ever and leases end: what lies in memory is guarded by the arena, not by this
    /// state. Nothing new is served from it: see [`whole`](Self::whole).
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to serve records by a bookkeeping that a panic has cut short: it may name the wrong slot.
    pub(super) fn whole(&self) -> Result<(), StoreError> {
        if self.state.is_poisoned() { Err(StoreError::Interrupted) } else { Ok(()) }
    }

    /// Sleeps until something has changed.
    pub(super) fn sleep<'g>(&self, state: MutexGuard<'g, State>) -> MutexGuard<'g, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something has changed, or for `time`.
    pub(super) fn doze<'g>(
        &self,
        state: MutexGuard<'g, State>,
        time: Duration,
    ) -> MutexGuard<'g, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all that sleep.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The record plans of a layer.
    pub(super) fn records(&self, layer: LayerId) -> Result<&[RecordPlan], StoreError> {
        match self.plan.layers.get(layer.index()) {
            Some(Some(plan)) => Ok(&plan.records),
            Some(None) => Err(StoreError::Visit { layer, what: "the layer has no routed experts" }),
            None => Err(StoreError::Visit { layer, what: "no such layer" }),
        }
    }

    /// Slots of the pool that a layer uses.
    pub(super) fn pool_slots(&self, layer: LayerId) -> usize {
        self.plan.class_of_layer[layer.index()].map_or(0, |class| self.plan.classes[class].slots)
    }

    /// Claims a slot for an expert and plans its reads into `state.requests`.
    pub(super) fn start_read(
        &self,
        state: &mut State,
        layer: LayerId,
        expert: ExpertId,
        purpose: Purpose,
    ) -> Option<SlotId> {
        let pool = self.plan.class_of_layer[layer.index()]?;
        let record = &self.plan.layers[layer.index()].as_ref()?.records[expert.index()];
        let key = state.residency.key(layer, expert);
        let claim = state.residency.claim(pool, key, purpose)?;
        state.counters.note_eviction(&claim);
        let mut writer = self.writer(claim.slot, pool);
        let priority = if purpose == Purpose::Ahead { Priority::Ahead } else { Priority::Demand };
        for read in record.reads() {
            state.requests.push(ReadRequest {
                file: read.file,
                offset: read.offset,
                target: writer.take(read.length as usize),
                present: read.present,
                tag: claim.slot.0,
                attempts: 0,
                priority,
            });
        }
        let slot = &mut state.residency.slots[claim.slot.index()];
        slot.pending = record.reads().len() as u32;
        slot.since = Some(Instant::now());
        state.counters.records_read += 1;
        Some(claim.slot)
    }

    /// The number of a slot within its arena.
    fn local(&self, slot: SlotId, pool: usize) -> usize {
        (slot.0 - self.first_slots[pool].0) as usize
    }

    /// Permission to write a claimed slot.
    fn writer(&self, slot: SlotId, pool: usize) -> SlotWriter {
        let local = self.local(slot, pool);
        self.arenas[pool].writer(local).expect("an evictable slot has no reader")
    }

    /// Permission to write all of a claimed slot.
    pub(super) fn target(&self, slot: SlotId, pool: usize) -> Target {
        self.writer(slot, pool).take(self.arenas[pool].slot_bytes())
    }

    /// A lease on a ready slot.
    pub(super) fn reader(&self, slot: SlotId, pool: u32) -> SlotReader {
        let local = self.local(slot, pool as usize);
        self.arenas[pool as usize].reader(local).expect("a ready slot has no writer")
    }

    /// The pool that a layer uses.
    pub(super) fn class(&self, layer: LayerId) -> Option<usize> {
        self.plan.class_of_layer.get(layer.index()).copied().flatten()
    }

    /// Arena and byte offset of a slot.
    pub(super) fn place(&self, slot: SlotId, pool: u32) -> (usize, usize) {
        let local = self.local(slot, pool as usize);
        (pool as usize, local * self.arenas[pool as usize].slot_bytes())
    }

    /// The slots' memory.
    pub(super) fn arenas(&self) -> &[Arc<SlotArena>] {
        &self.arenas
    }

    /// One read of a slot has ended; the last one publishes the record.
    fn finish(&self, request: ReadRequest, bytes: u64, mut failure: Option<ReadCause>) {
        let (slot, file, offset) = (SlotId(request.tag), request.file, request.offset);
        let length = request.target.len() as u64;
        // The lease on the memory ends before any thread is told that it can be read.
        drop(request);
        let mut state = self.lock();
        state.in_flight -= 1;
        state.counters.bytes_read += bytes;
        let entry = &mut state.residency.slots[slot.index()];
        let (key, pool) = (entry.key, entry.pool);
        debug_assert!(entry.load == Load::Reading && key != RecordKey::NONE);
        let whole = entry.pending == 1 && entry.error.is_none() && !entry.abandoned;
        if self.check_reads && whole && failure.is_none() {
            // All bytes are here and no other thread touches a slot that is being read: the checksum
            // is computed on this thread, without the lock.
            let (layer, expert) = state.residency.record(key);
            drop(state);
            failure = self.checksum_failure(layer, expert, &self.reader(slot, pool));
            state = self.lock();
        }
        let entry = &mut state.residency.slots[slot.index()];
        entry.pending -= 1;
        if let Some(cause) = failure
            && state.residency.slots[slot.index()].error.is_none()
        {
            let (layer, expert) = state.residency.record(key);
            let error = StoreError::Read {
                path: self.files.path(file).to_path_buf(),
                offset,
                length,
                layer,
                expert,
                cause,
            };
            state.residency.slots[slot.index()].error = Some(error);
        }
        let entry = &mut state.residency.slots[slot.index()];
        if entry.pending > 0 {
            return;
        }
        let error = entry.error.take();
        if entry.abandoned {
            // A failure of what no visit wants is no error of a visit.
            state.residency.discard(slot);
            drop(state);
            self.ended.fetch_add(1, Ordering::Release);
            self.wake();
            return;
        }
        if let Some(since) = entry.since.take() {
            state.counters.read_time.add(since.elapsed());
            let (layer, expert) = state.residency.record(key);
            let record =
                [("layer", layer.index() as u64), ("expert", expert.index() as u64), ("", 0)];
            timeline::flight("read", since, record);
        }
        state.counters.errors += u64::from(error.is_some());
        state.residency.publish(slot, error);
        drop(state);
        self.ended.fetch_add(1, Ordering::Release);
        self.wake();
    }
}

impl Shared {
    /// Compares a record with the checksum that its pack has for it, if it has one.
    fn checksum_failure(
        &self,
        layer: LayerId,
        expert: ExpertId,
        slot: &SlotReader,
    ) -> Option<ReadCause> {
        let expected = self.checkpoint.record_checksum(layer, expert)?;
        let record = &self.records(layer).ok()?[expert.index()];
        let found = record_checksum(&slot.bytes()[..record.read_bytes() as usize]);
        (found != expected).then_some(ReadCause::Checksum { expected, found })
    }
}

impl CompletionSink for Shared {
    fn complete(&self, request: ReadRequest, outcome: Outcome) -> Option<ReadRequest> {
        match judge(&self.files, request, outcome) {
            Verdict::Again { request, moved } => {
                let mut state = self.lock();
                state.counters.bytes_read += moved;
                state.counters.retries += 1;
                Some(request)
            }
            Verdict::Ended { request, bytes, failure } => {
                self.finish(request, bytes, failure);
                None
            }
        }
    }
}

//! What callers and I/O threads share: rows that were asked for, reads that wait and that are on their way, the cache.
//!
//! The lock is held for bookkeeping and for copies of some rows. A slot of the arena belongs to one read at a time;
//! when the read has ended, its thread copies the rows and begins the next one that waits, in the same slot.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::cache::RowCache;
use super::{RowCounters, micros};
use crate::StoreError;
use crate::arena::SlotArena;
use crate::cache::ReadCause;
use crate::cache::verdict::{Verdict, judge};
use crate::format::{Extent, FileId, RowTable};
use crate::io::{CompletionSink, FileSet, Outcome, Priority, ReadRequest};
use crate::record::block_bytes;

/// Bytes that a read takes while it waits.
pub(super) const READ_BYTES: usize = size_of::<PlannedRead>();

/// One read: rows of one batch that lie together, or a piece of each of them.
#[derive(Clone, Copy)]
struct PlannedRead {
    /// Whose rows.
    fetch: u64,
    /// Which piece.
    piece: usize,
    file: FileId,
    offset: u64,
    length: usize,
    /// Index of its first row among the batch's, and how many follow each other.
    first: usize,
    count: usize,
}

/// Rows that were asked for together.
struct Fetch {
    /// Ascending.
    rows: Vec<u64>,
    bytes: Vec<u8>,
    /// Of each row, pieces that have not come.
    missing: Vec<u8>,
    /// Reads that wait or are on their way.
    open: usize,
    error: Option<StoreError>,
    /// Nobody waits for them any more.
    abandoned: bool,
}

/// What the lock protects.
struct State {
    cache: RowCache,
    fetches: HashMap<u64, Fetch>,
    next: u64,
    waiting: VecDeque<PlannedRead>,
    /// By slot: the read that has it.
    flying: Vec<Option<PlannedRead>>,
    counters: RowCounters,
}

/// What callers and I/O threads share.
pub(super) struct Shared {
    table: RowTable,
    files: Arc<FileSet>,
    arena: Arc<SlotArena>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(
        table: RowTable,
        files: Arc<FileSet>,
        arena: Arc<SlotArena>,
        cache: RowCache,
    ) -> Self {
        let flying = vec![None; arena.slots()];
        let state = State {
            cache,
            fetches: HashMap::new(),
            next: 0,
            waiting: VecDeque::new(),
            flying,
            counters: RowCounters::default(),
        };
        Self { table, files, arena, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// After a panic under the lock reads still end, so that no caller waits for ever.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn table(&self) -> &RowTable {
        &self.table
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.table.row_bytes()
    }

    pub(super) fn counters(&self) -> RowCounters {
        self.lock().counters
    }

    /// Notes what is asked for, and gives the reads that begin at once.
    pub(super) fn ask(&self, rows: &[u64], requests: &mut Vec<ReadRequest>) -> u64 {
        let row_bytes = self.row_bytes();
        let mut distinct = rows.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let mut fetch = Fetch {
            bytes: vec![0; distinct.len() * row_bytes],
            missing: vec![0; distinct.len()],
            rows: distinct,
            open: 0,
            error: None,
            abandoned: false,
        };
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.counters.asked += rows.len() as u64;
        state.counters.distinct += fetch.rows.len() as u64;
        if let Some(&row) = fetch.rows.last().filter(|&&row| row >= self.table.rows) {
            fetch.error = Some(StoreError::NoRow { row, rows: self.table.rows });
            state.fetches.insert(number, fetch);
            return number;
        }
        let pieces = self.table.pieces();
        for (index, bytes) in fetch.bytes.chunks_exact_mut(row_bytes).enumerate() {
            match state.cache.find(fetch.rows[index]) {
                Some(found) => {
                    bytes.copy_from_slice(found);
                    state.counters.hits += 1;
                }
                None => fetch.missing[index] = pieces as u8,
            }
        }
        for piece in 0..pieces {
            self.plan(number, &fetch, piece, &mut state.waiting);
        }
        fetch.open = state.waiting.iter().filter(|read| read.fetch == number).count();
        state.fetches.insert(number, fetch);
        for slot in 0..self.arena.slots() {
            if state.flying[slot].is_none() {
                let Some(request) = self.begin_next(&mut state, slot) else { break };
                requests.push(request);
            }
        }
        number
    }

    /// Where a piece of a row lies, and how many of the row's bytes are before it.
    fn place(&self, row: u64, piece: usize) -> (Extent, usize) {
        let mut places = self.table.places(row).expect("the row exists");
        let before = places.by_ref().take(piece).map(|place| place.length as usize).sum();
        (places.next().expect("a piece of the row"), before)
    }

    /// Adds the reads of a piece of each row that is missing; what lies together is read together.
    fn plan(&self, number: u64, fetch: &Fetch, piece: usize, waiting: &mut VecDeque<PlannedRead>) {
        let mut last: Option<PlannedRead> = None;
        let missing = fetch.rows.iter().zip(&fetch.missing).enumerate();
        for (index, (&row, _)) in missing.filter(|(_, (_, missing))| **missing > 0) {
            let (place, _) = self.place(row, piece);
            let end = (place.offset + place.length).next_multiple_of(block_bytes());
            if let Some(read) = &mut last
                && read.file == place.file
                && read.first + read.count == index
                // Parts lie in any order in a file.
                && read.offset <= place.offset
                && end - read.offset <= self.arena.slot_bytes() as u64
            {
                read.count += 1;
                read.length = (end - read.offset) as usize;
                continue;
            }
            waiting.extend(last.take());
            let offset = place.offset / block_bytes() * block_bytes();
            let length = (end - offset) as usize;
            last = Some(PlannedRead {
                fetch: number,
                piece,
                file: place.file,
                offset,
                length,
                first: index,
                count: 1,
            });
        }
        waiting.extend(last);
    }

    /// Begins the next read that waits, in a free slot.
    fn begin_next(&self, state: &mut State, slot: usize) -> Option<ReadRequest> {
        let read = state.waiting.pop_front()?;
        let mut writer = self.arena.writer(slot).expect("a free slot is neither read nor written");
        state.flying[slot] = Some(read);
        state.counters.reads += 1;
        state.counters.long_reads += u64::from(read.length > block_bytes() as usize);
        let present = (self.files.length(read.file) - read.offset).min(read.length as u64);
        Some(ReadRequest {
            file: read.file,
            offset: read.offset,
            target: writer.take(read.length),
            present: present as u32,
            tag: slot as u32,
            attempts: 0,
            priority: Priority::Demand,
        })
    }

    /// Sleeps until the rows have come.
    pub(super) fn wait(
        &self,
        number: u64,
        begun: Instant,
    ) -> Result<(Vec<u64>, Vec<u8>), StoreError> {
        let mut state = self.lock();
        while state.fetches.get(&number).is_some_and(|fetch| fetch.open > 0) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.counters.wait_us += micros(begun.elapsed());
        let fetch = state.fetches.remove(&number).expect("a ticket is waited for once");
        match fetch.error {
            Some(error) => Err(error),
            None => Ok((fetch.rows, fetch.bytes)),
        }
    }

    /// Nobody waits for these rows: what has not begun is not read.
    pub(super) fn give_up(&self, number: u64) {
        let mut state = self.lock();
        Self::drop_waiting(&mut state, number);
        if let Some(fetch) = state.fetches.get_mut(&number) {
            fetch.abandoned = true;
            if fetch.open == 0 {
                state.fetches.remove(&number);
            }
        }
    }

    /// Forgets the reads of a batch that have not begun.
    fn drop_waiting(state: &mut State, number: u64) {
        let before = state.waiting.len();
        state.waiting.retain(|read| read.fetch != number);
        let dropped = before - state.waiting.len();
        if let Some(fetch) = state.fetches.get_mut(&number) {
            fetch.open -= dropped;
        }
    }

    /// One read has ended: its rows are copied, and the next one begins in its slot.
    fn finish(
        &self,
        request: ReadRequest,
        bytes: u64,
        failure: Option<ReadCause>,
    ) -> Option<ReadRequest> {
        let slot = request.tag as usize;
        // The lease on the memory ends before it is read.
        drop(request);
        let mut guard = self.lock();
        let state = &mut *guard;
        state.counters.bytes_read += bytes;
        let read = state.flying[slot].take().expect("a read that was begun");
        let row_bytes = self.row_bytes();
        if let Some(fetch) = state.fetches.get_mut(&read.fetch) {
            match failure {
                None => {
                    let reader = self.arena.reader(slot).expect("a slot whose read has ended");
                    for index in read.first..read.first + read.count {
                        let row = fetch.rows[index];
                        let (place, before) = self.place(row, read.piece);
                        let (start, length) =
                            ((place.offset - read.offset) as usize, place.length as usize);
                        let bytes = &mut fetch.bytes[index * row_bytes..][..row_bytes];
                        let found = &reader.bytes()[start..start + length];
                        bytes[before..before + length].copy_from_slice(found);
                        fetch.missing[index] -= 1;
                        if fetch.missing[index] == 0 {
                            state.cache.keep(row, bytes);
                        }
                    }
                }
                Some(cause) => {
                    state.counters.errors += 1;
                    let error = StoreError::Row {
                        path: self.files.path(read.file).to_path_buf(),
                        offset: read.offset,
                        length: read.length as u64,
                        row: fetch.rows[read.first],
                        cause,
                    };
                    fetch.error.get_or_insert(error);
                }
            }
            fetch.open -= 1;
            if fetch.error.is_some() {
                Self::drop_waiting(state, read.fetch);
            }
        }
        let ended = state.fetches.get(&read.fetch).is_some_and(|fetch| fetch.open == 0);
        if ended && state.fetches[&read.fetch].abandoned {
            state.fetches.remove(&read.fetch);
        }
        let next = self.begin_next(state, slot);
        drop(guard);
        if ended {
            self.changed.notify_all();
        }
        next
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
            Verdict::Ended { request, bytes, failure } => self.finish(request, bytes, failure),
        }
    }
}

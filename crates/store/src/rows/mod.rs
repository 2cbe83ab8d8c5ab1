//! Rows of a table that is too large for memory: a few for each token, known from token ids alone.
//!
//! Rows are not experts: there are hundreds of millions of them, each of some hundred bytes, anywhere in a file. A
//! [`RowStore`] is asked for the rows of a batch as soon as its tokens are known ([`RowStore::ask`]), and hands them
//! out when their layer needs them ([`RowStore::wait`]); in between an engine of its own reads the missing ones, at a
//! depth that drives need for reads of one block. What was asked for is sorted, each row once, and rows that lie
//! together are read together. A cache keeps rows, not blocks: the other rows of a block are hardly
//! ever asked for.
//!
//! Where bytes were found never changes what they are, and a failed read is an error of the batch that asked.

mod cache;
mod shared;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::format::{Matrix, decode_row};

use self::cache::RowCache;
use self::shared::Shared;
use crate::StoreError;
use crate::arena::{HugePages, SlotArena};
use crate::format::{CheckpointFile, RowTable};
use crate::io::{CompletionSink, DirectIo, FileSet, IoEngine, Storage, start_engine};
use crate::record::block_bytes;

/// Reads in flight: drives serve single blocks in parallel.
const QUEUE_DEPTH: usize = 64;

/// Pieces of a row, a read each: packed values, scales, biases.
const PLANES_MAX: usize = 3;

/// How a store of rows is opened.
pub struct RowOptions {
    /// The engine that reads.
    pub io: IoEngine,
    /// Whether reads bypass the page cache.
    pub direct: DirectIo,
    /// Whether reads that are not direct drop their pages from the page cache.
    pub drop_behind: bool,
    /// Bytes that the cache of rows may take.
    pub cache_bytes: u64,
    /// An engine to use instead of a real one.
    pub storage: Option<Box<dyn Storage>>,
}

impl Default for RowOptions {
    fn default() -> Self {
        Self {
            io: IoEngine::Auto,
            direct: DirectIo::Auto,
            drop_behind: true,
            cache_bytes: 0,
            storage: None,
        }
    }
}

/// Everything counted since a store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounters {
    /// Rows asked for.
    pub asked: u64,
    /// Of these, once for each batch.
    pub distinct: u64,
    /// Of these, found in the cache.
    pub hits: u64,
    /// Reads issued.
    pub reads: u64,
    /// Of these, reads of more than one block.
    pub long_reads: u64,
    /// Bytes that arrived.
    pub bytes_read: u64,
    /// Reads that were continued or repeated.
    pub retries: u64,
    /// Reads that failed.
    pub errors: u64,
    /// Time that callers slept for rows, microseconds.
    pub wait_us: u64,
}

impl RowCounters {
    /// Adds those of another store.
    pub fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.distinct += other.distinct;
        self.hits += other.hits;
        self.reads += other.reads;
        self.long_reads += other.long_reads;
        self.bytes_read += other.bytes_read;
        self.retries += other.retries;
        self.errors += other.errors;
        self.wait_us += other.wait_us;
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            asked: self.asked - earlier.asked,
            distinct: self.distinct - earlier.distinct,
            hits: self.hits - earlier.hits,
            reads: self.reads - earlier.reads,
            long_reads: self.long_reads - earlier.long_reads,
            bytes_read: self.bytes_read - earlier.bytes_read,
            retries: self.retries - earlier.retries,
            errors: self.errors - earlier.errors,
            wait_us: self.wait_us - earlier.wait_us,
        }
    }
}

/// The rows of a table.
pub struct RowStore {
    shared: Arc<Shared>,
    storage: Box<dyn Storage>,
}

/// Rows that were asked for. Dropped, those whose reads have not begun are not read.
pub struct Ticket {
    shared: Arc<Shared>,
    number: u64,
}

/// Rows that have come.
pub struct Rows {
    /// Ascending.
    numbers: Vec<u64>,
    bytes: Vec<u8>,
    row_bytes: usize,
    shared: Arc<Shared>,
}

impl Rows {
    /// The bytes of a row.
    ///
    /// # Panics
    /// If it was not asked for.
    pub fn row(&self, number: u64) -> &[u8] {
        let place = self.numbers.binary_search(&number).expect("a row that was asked for");
        &self.bytes[place * self.row_bytes..(place + 1) * self.row_bytes]
    }

    /// The values of a row, as many as `out` takes: all of them.
    ///
    /// # Panics
    /// As [`Rows::row`].
    pub fn decode(&self, number: u64, out: &mut [f32]) {
        let RowTable { encoding, shared, .. } = self.shared.table();
        let [weight, scales, _] = encoding.plane_bytes(1, out.len());
        let (weight, rest) = self.row(number).split_at(weight);
        let (scales, biases) = match shared.is_empty() {
            true => rest.split_at(scales),
            false => (&shared[..], rest),
        };
        let matrix = Matrix::new(*encoding, 1, out.len(), weight, scales, biases);
        decode_row(&matrix.expect("a row is whole"), 0, out);
    }
}

impl RowStore {
    /// Opens the files of a table and starts the engine.
    ///
    /// # Errors
    /// A file that cannot be opened or is another than when the checkpoint was, or no memory.
    pub fn open(
        files: &[CheckpointFile],
        table: &RowTable,
        mut options: RowOptions,
    ) -> Result<Self, StoreError> {
        let mut used = vec![false; files.len()];
        for file in table.files() {
            used[file.0 as usize] = true;
        }
        let files = FileSet::open(files, &used, options.direct, options.drop_behind)
            .map_err(|(path, cause)| StoreError::Open { path, cause: cause.to_string() })?;
        let files = Arc::new(files);
        let slot = slot_bytes(table.row_bytes());
        let arena = SlotArena::new(QUEUE_DEPTH, slot, HugePages::Never);
        let arena = arena.map_err(|cause| StoreError::Memory {
            bytes: SlotArena::bytes_for(QUEUE_DEPTH, slot) as u64,
            cause: cause.to_string(),
        })?;
        let cache = RowCache::new(options.cache_bytes, table.row_bytes());
        let arenas = [Arc::clone(&arena)];
        let shared = Shared::new(table.clone(), Arc::clone(&files), arena, cache);
        let shared = Arc::new(shared);
        let sink: Arc<dyn CompletionSink> = Arc::clone(&shared) as _;
        let started = match options.storage.take() {
            Some(mut storage) => storage.start(files, &arenas, sink).map(|()| storage),
            None => start_engine(options.io, QUEUE_DEPTH, &files, &arenas, &sink),
        };
        let engine = options.io.name();
        let storage =
            started.map_err(|cause| StoreError::Engine { engine, cause: cause.to_string() })?;
        Ok(Self { shared, storage })
    }

    /// Bytes that a store of rows of `row_bytes` holds, with its cache, while a batch of `rows` rows is on its way.
    pub fn required_bytes(row_bytes: usize, cache_bytes: u64, rows: usize) -> u64 {
        let arena = SlotArena::bytes_for(QUEUE_DEPTH, slot_bytes(row_bytes)) as u64;
        let batch = rows * (row_bytes + size_of::<u64>() + PLANES_MAX * shared::READ_BYTES);
        arena + cache_bytes + batch as u64
    }

    /// Bytes of a cache that holds `rows` rows of `row_bytes`.
    pub fn cache_bytes(row_bytes: usize, rows: u64) -> u64 {
        RowCache::bytes_for(row_bytes, rows)
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.shared.table().columns
    }

    /// Begins to bring rows, in any order and as often as they come. A row that does not exist is an error of
    /// [`RowStore::wait`].
    pub fn ask(&self, rows: &[u64]) -> Ticket {
        let mut requests = Vec::new();
        let number = self.shared.ask(rows, &mut requests);
        self.storage.submit(&mut requests);
        Ticket { shared: Arc::clone(&self.shared), number }
    }

    /// Waits for rows that were asked for.
    ///
    /// # Errors
    /// The first read that failed.
    pub fn wait(&self, ticket: Ticket) -> Result<Rows, StoreError> {
        let begun = Instant::now();
        let (numbers, bytes) = self.shared.wait(ticket.number, begun)?;
        let shared = Arc::clone(&self.shared);
        Ok(Rows { numbers, bytes, row_bytes: shared.row_bytes(), shared })
    }

    /// Everything counted since the store was opened.
    pub fn counters(&self) -> RowCounters {
        self.shared.counters()
    }
}

impl Drop for RowStore {
    fn drop(&mut self) {
        self.storage.stop();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.give_up(self.number);
    }
}

/// Bytes of one read: a row that begins anywhere in its first block.
fn slot_bytes(row_bytes: usize) -> usize {
    let block = block_bytes() as usize;
    (row_bytes + block - 1).next_multiple_of(block)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

//! Several connections, files that grow in order: who fetches what next, and when it may be written.
//!
//! Files are cut into segments that connections take in order. A segment that arrives before its predecessors waits
//! in memory, so that each file is at all times a prefix of itself: any tool can go on with it, and a kill loses no
//! more than the segments in flight. A connection waits when it would run too far ahead.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::HubError;
use crate::repository::RepositoryFile;
use crate::settings::Limits;
use crate::writer::{Begun, BlobWriter, Places};

/// How often a waiting connection looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Files shorter than so many of the largest segments have shorter ones, but for these bytes.
const FILE_SEGMENTS: u64 = 128;
const SEGMENT_BYTES_MIN: u64 = 256 << 10;

/// A file in progress.
pub(crate) struct Job {
    pub(crate) file: RepositoryFile,
    /// Where the hub's redirect led, while that works.
    pub(crate) url: Mutex<Option<String>>,
    written: AtomicU64,
    arrivals: Mutex<Arrivals>,
}

struct Arrivals {
    /// `None` once the blob is finished or given up.
    writer: Option<Box<BlobWriter>>,
    /// Segments whose predecessors are missing, by offset.
    early: BTreeMap<u64, Vec<u8>>,
}

/// A run of bytes of a file to fetch.
pub(crate) struct Segment {
    pub(crate) job: Arc<Job>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What all connections share.
pub(crate) struct Segments<'a> {
    places: &'a Places,
    limits: Limits,
    stop: &'a AtomicBool,
    order: Mutex<Order>,
    changed: Condvar,
    /// Bytes that are in the cache, those from before included.
    pub(crate) done: AtomicU64,
    /// Another program writes a file that we want.
    pub(crate) waits: AtomicBool,
}

struct Order {
    files: VecDeque<RepositoryFile>,
    current: Option<(Arc<Job>, u64)>,
    failed: Option<HubError>,
}

impl<'a> Segments<'a> {
    pub(crate) fn new(
        places: &'a Places,
        files: VecDeque<RepositoryFile>,
        limits: Limits,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            places,
            limits,
            stop,
            order: Mutex::new(Order { files, current: None, failed: None }),
            changed: Condvar::new(),
            done: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        }
    }

    /// The next segment; `None` when all are taken or the download has failed.
    pub(crate) fn take(&self) -> Option<Segment> {
        let mut order = locked(&self.order);
        loop {
            if order.failed.is_some() {
                return None;
            }
            if self.stop.load(Ordering::Relaxed) {
                order.failed = Some(HubError::Interrupted);
                return None;
            }
            let Some((job, next)) = order.current.clone() else {
                if order.files.is_empty() {
                    return None;
                }
                if let Err(error) = self.open_next(&mut order) {
                    order.failed = Some(error);
                } else if order.current.is_none() && self.waits.load(Ordering::Relaxed) {
                    order = self.wait(order);
                }
                continue;
            };
            let segment = self.segment_bytes(job.file.size);
            let window = segment * self.limits.connections as u64;
            if next.saturating_sub(job.written.load(Ordering::Relaxed)) >= window {
                order = self.wait(order);
                continue;
            }
            let length = segment.min(job.file.size - next);
            let end = next + length;
            order.current = (end < job.file.size).then(|| (Arc::clone(&job), end));
            return Some(Segment { job, offset: next, length });
        }
    }

    /// Bytes of a file's segments: a kill shall lose a small part of a small file too.
    fn segment_bytes(&self, size: u64) -> u64 {
        let most = self.limits.segment_bytes;
        (size / FILE_SEGMENTS).clamp(SEGMENT_BYTES_MIN.min(most), most)
    }

    /// Opens the first of the files that are left, unless it is there or busy.
    fn open_next(&self, order: &mut Order) -> Result<(), HubError> {
        let Some(file) = order.files.front().cloned() else { return Ok(()) };
        let writer = match BlobWriter::begin(self.places, &file)? {
            Begun::Busy => {
                self.waits.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Begun::There => {
                self.waits.store(false, Ordering::Relaxed);
                order.files.pop_front();
                self.done.fetch_add(file.size, Ordering::Relaxed);
                return Ok(());
            }
            Begun::Writer(writer) => writer,
        };
        self.waits.store(false, Ordering::Relaxed);
        order.files.pop_front();
        let written = writer.written();
        self.done.fetch_add(written, Ordering::Relaxed);
        if written == file.size {
            return writer.finish();
        }
        let job = Job {
            file,
            url: Mutex::new(None),
            written: AtomicU64::new(written),
            arrivals: Mutex::new(Arrivals { writer: Some(writer), early: BTreeMap::new() }),
        };
        order.current = Some((Arc::new(job), written));
        Ok(())
    }

    fn wait<'b>(&self, order: MutexGuard<'b, Order>) -> MutexGuard<'b, Order> {
        let waited = self.changed.wait_timeout(order, LOOK_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Takes the bytes of a segment, all or, when its download was given up, its first ones.
    pub(crate) fn deliver(&self, segment: &Segment, bytes: Vec<u8>) -> Result<(), HubError> {
        let job = &segment.job;
        let mut arrivals = locked(&job.arrivals);
        arrivals.early.insert(segment.offset, bytes);
        let Arrivals { writer, early } = &mut *arrivals;
        while let Some(open) = writer.as_mut()
            && let Some(bytes) = early.remove(&open.written())
            && !bytes.is_empty()
        {
            open.append(&bytes)?;
            job.written.store(open.written(), Ordering::Relaxed);
            self.done.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        if let Some(done) = writer.take_if(|open| open.written() == job.file.size) {
            done.finish()?;
        }
        drop(arrivals);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the download; the first reason counts.
    pub(crate) fn fail(&self, error: HubError) {
        locked(&self.order).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Whether the download has failed: connections then stop as well.
    pub(crate) fn has_failed(&self) -> bool {
        locked(&self.order).failed.is_some()
    }

    /// The reason of the end, when it was a failure.
    pub(crate) fn into_result(self) -> Result<(), HubError> {
        let order = self.order.into_inner().unwrap_or_else(PoisonError::into_inner);
        order.failed.map_or(Ok(()), Err)
    }
}

/// A lock whose holder may have panicked: the panic is told elsewhere.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

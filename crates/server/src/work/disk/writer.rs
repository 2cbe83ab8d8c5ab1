//! The thread that writes: one snapshot at a time and paced; to the drive of the experts only while the engine has
//! nothing to do.
//!
//! The engine's thread never waits for the disk: it hands over a snapshot (which shares its pages) or is told that
//! the queue is full. Writing is given up when the memory that a waiting snapshot holds is needed. At the server's end
//! all that is left is written without pause.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use engine::backend::Snapshot;

use super::super::lock::{hold, wait, wait_for};
use super::super::owner::Domain;
use super::format::Gate;

/// Snapshots that wait to be written; each holds memory of the pools.
const QUEUE: usize = 2;
/// Longest time that the engine waits for a write to be given up.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);

/// Takes lines of the log.
pub(super) type Log = Box<dyn Fn(&str) + Send + Sync>;

/// Why a snapshot is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is larger than the limit, or others' files leave no room.
    Full,
    /// The day's bytes are written.
    Daily,
    /// The file system has to keep its reserve.
    NoSpace,
}

impl Refused {
    /// As a label.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => "folder_full",
            Self::Daily => "daily_limit",
            Self::NoSpace => "disk_full",
        }
    }
}

/// Where snapshots are written to.
pub(super) trait Shelf: Send + Sync + 'static {
    /// Writing waits while the engine works: the drive is for experts.
    const WAITS: bool;

    /// Most bytes written in a second.
    fn rate(&self) -> u64;

    /// Whether there is a snapshot of exactly these tokens, as far as that is known without asking a disk.
    fn has(&self, domain: Domain, tokens: &[u32]) -> bool;

    /// Writes a snapshot and gives the bytes that this took. `gate` is asked before each part.
    ///
    /// # Errors
    /// Outer: the file system, or the gate. Inner: it may not be written now.
    fn write(
        &self,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
        gate: &mut Gate<'_>,
    ) -> io::Result<Result<u64, Refused>>;

    /// What the log says once.
    fn advice(refused: Refused) -> &'static str;
}

/// A snapshot on its way.
struct Waiting {
    domain: Domain,
    tokens: Vec<u32>,
    snapshot: Snapshot,
}

/// What became of snapshots.
#[derive(Clone, Debug, Default)]
pub(in crate::work) struct Counts {
    /// Bytes.
    pub(in crate::work) written: u64,
    /// By reason.
    pub(in crate::work) dropped: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Work {
    queue: VecDeque<Waiting>,
    /// One is being written.
    writing: bool,
    /// The engine has something to do: the disk is for experts.
    busy: bool,
    /// What is being written and what waits is to be let go.
    release: bool,
    /// No pause and no pace any more: the server ends.
    hurry: bool,
    /// The thread ends when all is written.
    closing: bool,
    /// The thread has ended.
    gone: bool,
    /// Snapshots that were let go, to be offered again.
    given_back: Vec<(Domain, Vec<u32>)>,
    counts: Counts,
}

/// What the engine's thread and the one that writes share.
pub(super) struct Writer<S> {
    pub(super) shelf: Arc<S>,
    /// Flags and whole snapshots, each changed by itself.
    work: Mutex<Work>,
    changed: Condvar,
    log: Log,
}

impl<S: Shelf> Writer<S> {
    pub(super) fn new(shelf: S, log: Log) -> Self {
        let (work, changed) = (Mutex::default(), Condvar::new());
        Self { shelf: Arc::new(shelf), work, changed, log }
    }

    /// Takes a snapshot to be written; false when too many wait.
    pub(super) fn offer(&self, domain: Domain, tokens: &[u32], snapshot: &Snapshot) -> bool {
        if self.shelf.has(domain, tokens) {
            return true;
        }
        let mut work = hold(&self.work);
        if work.queue.len() >= QUEUE {
            return false;
        }
        let (tokens, snapshot) = (tokens.to_vec(), snapshot.clone());
        work.queue.push_back(Waiting { domain, tokens, snapshot });
        drop(work);
        self.changed.notify_all();
        true
    }

    /// As [`Writer::offer`], waiting until there is room: when the server ends.
    pub(super) fn push(&self, domain: Domain, tokens: &[u32], snapshot: &Snapshot) {
        let mut work = hold(&self.work);
        while work.queue.len() >= QUEUE && !work.gone {
            work = wait(&self.changed, work);
        }
        drop(work);
        self.offer(domain, tokens, snapshot);
    }

    /// Says whether the engine has something to do.
    pub(super) fn set_busy(&self, busy: bool) {
        let mut work = hold(&self.work);
        if std::mem::replace(&mut work.busy, busy) != busy {
            drop(work);
            self.changed.notify_all();
        }
    }

    /// Lets go of every snapshot that waits or is being written; true when there was one.
    pub(super) fn release(&self) -> bool {
        let mut work = hold(&self.work);
        let waiting: Vec<_> =
            work.queue.drain(..).map(|waiting| (waiting.domain, waiting.tokens)).collect();
        let any = work.writing || !waiting.is_empty();
        work.given_back.extend(waiting);
        if !any {
            return false;
        }
        work.release = work.writing;
        self.changed.notify_all();
        let until = Instant::now() + RELEASE_PATIENCE;
        while work.writing && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            work = wait_for(&self.changed, work, left);
        }
        any
    }

    /// Domain and tokens of the snapshots that were let go since the last call.
    pub(super) fn given_back(&self) -> Vec<(Domain, Vec<u32>)> {
        std::mem::take(&mut hold(&self.work).given_back)
    }

    pub(super) fn counts(&self) -> Counts {
        hold(&self.work).counts.clone()
    }

    /// From now on everything is written at once.
    pub(super) fn hurry(&self) {
        hold(&self.work).hurry = true;
        self.changed.notify_all();
    }

    /// As [`Writer::hurry`], and nothing more is offered: the thread ends when nothing is left.
    pub(super) fn close(&self) {
        let mut work = hold(&self.work);
        (work.hurry, work.closing) = (true, true);
        drop(work);
        self.changed.notify_all();
    }

    /// Waits until the thread has ended, no longer than `patience`; false when it has not.
    pub(super) fn ended_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut work = hold(&self.work);
        while !work.gone {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            work = wait_for(&self.changed, work, left);
        }
        true
    }

    /// The thread's work.
    pub(super) fn run(&self) {
        let _gone = Gone(self);
        while let Some(waiting) = self.next() {
            let its = (waiting.domain, waiting.tokens.clone());
            let outcome = self.write(&waiting);
            // The memory is given back before anybody is told.
            drop(waiting);
            let mut work = hold(&self.work);
            work.writing = false;
            let released = std::mem::take(&mut work.release);
            let dropped = match outcome {
                Ok(Ok(bytes)) => {
                    work.counts.written += bytes;
                    None
                }
                Ok(Err(refused)) => Some((refused.name(), S::advice(refused).to_owned())),
                Err(_) if released => {
                    work.given_back.push(its);
                    None
                }
                Err(error) => {
                    let full = matches!(
                        error.kind(),
                        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                    );
                    let reason = if full { Refused::NoSpace.name() } else { "error" };
                    Some((reason, format!("a prompt could not be kept: {error}")))
                }
            };
            let mut line = None;
            if let Some((reason, why)) = dropped {
                let count = work.counts.dropped.entry(reason).or_default();
                *count += 1;
                line = (*count == 1).then_some(why);
            }
            drop(work);
            self.changed.notify_all();
            if let Some(line) = line {
                (self.log)(&line);
            }
        }
    }

    /// Sleeps until there is something to write; `None` at the end.
    fn next(&self) -> Option<Waiting> {
        let mut work = hold(&self.work);
        loop {
            if !(S::WAITS && work.busy) || work.hurry {
                if let Some(waiting) = work.queue.pop_front() {
                    work.writing = true;
                    drop(work);
                    self.changed.notify_all();
                    return Some(waiting);
                }
                if work.closing {
                    return None;
                }
            }
            work = wait(&self.changed, work);
        }
    }

    fn write(&self, waiting: &Waiting) -> io::Result<Result<u64, Refused>> {
        let Waiting { domain, tokens, snapshot } = waiting;
        let mut pace = Pace { rate: self.shelf.rate(), due: Instant::now() };
        let mut gate = |bytes: usize| self.pass(&mut pace, bytes);
        self.shelf.write(*domain, tokens, snapshot, &mut gate)
    }

    /// Waits for its turn to write `bytes`; an error when the snapshot is to be let go.
    fn pass(&self, pace: &mut Pace, bytes: usize) -> io::Result<()> {
        let mut work = hold(&self.work);
        loop {
            if work.release {
                return Err(io::Error::other("given up"));
            }
            if work.hurry {
                return Ok(());
            }
            let now = Instant::now();
            if S::WAITS && work.busy {
                work = wait(&self.changed, work);
            } else if pace.due > now {
                let left = pace.due - now;
                work = wait_for(&self.changed, work, left);
            } else {
                pace.spend(now, bytes);
                return Ok(());
            }
        }
    }
}

/// Tells those who wait that the thread has ended, however it ends.
struct Gone<'a, S>(&'a Writer<S>);

impl<S> Drop for Gone<'_, S> {
    fn drop(&mut self) {
        hold(&self.0.work).gone = true;
        self.0.changed.notify_all();
    }
}

/// How fast may be written.
struct Pace {
    rate: u64,
    /// When the next bytes may go.
    due: Instant,
}

impl Pace {
    fn spend(&mut self, now: Instant, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / self.rate.max(1) as f64);
        self.due = self.due.max(now) + time;
    }
}

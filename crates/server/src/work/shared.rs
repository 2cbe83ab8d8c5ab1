//! What the engine's thread and its callers share: the queue between them, the status, when the thread was seen last.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use text::SampledTurns;

use super::lock::{hold, wait_for};
use super::queue::Queue;
use super::{Failing, Status};
use crate::log::{Level, Line, Log};
use crate::throttle::Throttle;

/// Memory for answers with calls as they were sampled; a few hundred of usual length.
const TURNS_BYTES_MAX: usize = 16 << 20;

/// All of it; each part has a lock of its own.
pub(super) struct Shared {
    /// Jobs are put in and taken out whole; a panic while one is chosen leaves all.
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Numbers to be shown; a panic while they are copied leaves some of them old.
    status: Mutex<Status>,
    /// Set with the queue's lock held, so that no thread misses it between looking and sleeping.
    stopping: AtomicBool,
    /// Answers with calls, for conversations that come back. A cache: a panic can cost an entry or its count of bytes.
    turns: Mutex<SampledTurns>,
    log: Throttle,
    started: Instant,
    /// When the engine's thread was seen last, in milliseconds since then.
    beat_ms: AtomicU64,
}

impl Shared {
    pub(super) fn new(sequences: usize, log: Log) -> Self {
        Self {
            queue: Mutex::default(),
            wake: Condvar::new(),
            status: Mutex::new(Status { sequences, ..Status::default() }),
            stopping: AtomicBool::new(false),
            turns: Mutex::new(SampledTurns::new(TURNS_BYTES_MAX)),
            log: Throttle::new(log),
            started: Instant::now(),
            beat_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        hold(&self.queue)
    }

    pub(super) fn turns(&self) -> MutexGuard<'_, SampledTurns> {
        hold(&self.turns)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        hold(&self.status)
    }

    /// Sleeps until a job comes, or for `time`.
    pub(super) fn wait(&self, time: Duration) {
        let queue = self.queue();
        if queue.len() == 0 && queue.orders.is_empty() && !self.is_stopping() {
            drop(wait_for(&self.wake, queue, time));
        }
    }

    /// Ends the sleep of the engine's thread: there is a job.
    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn log(&self, level: Level, line: &str) {
        self.log.say(level, line);
    }

    /// Logs what becomes of a job, under the id that its request has in the log.
    pub(super) fn log_job(&self, level: Level, id: &str, text: &str) {
        let text = format!("{id}: {text}");
        self.log.line(Line { level, text, fields: vec![("id", id.into())] });
    }

    /// The engine's thread is at work, or waits for something that it looks at.
    pub(super) fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(now, Ordering::Relaxed);
    }

    /// Since the last sign of life of the engine's thread.
    pub(super) fn silence(&self) -> Duration {
        let beat = Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(beat)
    }

    /// Ends all waits: of clients for the thread, and of the thread for clients.
    pub(super) fn begin_to_stop(&self) {
        let queue = self.queue();
        self.stopping.store(true, Ordering::Release);
        drop(queue);
        self.wake.notify_all();
    }

    /// Tells how many lines of the log were left out, if any were.
    pub(super) fn tell_log(&self) {
        self.log.tell();
    }

    pub(super) fn publish(&self, status: &Status) {
        let mut published = self.status();
        let refused = published.refused;
        published.clone_from(status);
        published.refused = refused;
    }

    /// Says at once that requests fail; the rest of the status follows in its time.
    pub(super) fn publish_failing(&self, failing: Failing) {
        self.status().failing = Some(failing);
    }
}

//! The thread pool: a parallel region costs a fraction of a microsecond, because workers spin.
//!
//! A token passes through some hundred regions of 5 to 100 microseconds each; a general pool that
//! wakes sleeping threads costs 10 to 40 microseconds per region (docs/decisions.md, thread pool).
//! So a worker that finds no work spins for a while and only then parks. The caller is worker 0.
//!
//! Invariants: a region ends only after every worker has left it, so borrowed data may be used; a
//! panic in any worker is carried to the caller after the region has ended, and the pool stays
//! usable; regions never nest and run one at a time; dropping the pool joins its threads.
//!
//! Oversubscription: when a worker has lost its processor the caller waits long at the end of a
//! region, and spinning makes it worse. Every such wait halves the time that everyone spins; every
//! good region lengthens it again.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Longest time that a worker spins before it parks: regions of one token follow each other within
/// a few microseconds; 100 bridges the caller's serial work between them.
const SPIN_MAX_US: u32 = 100;

/// A wait at the end of a region longer than this means that some worker was not running.
const LATE_US: u128 = 300;

/// What a region runs: called once per worker with the worker's index.
type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// One worker's parking place.
struct Seat {
    parked: AtomicBool,
}

struct Shared {
    /// Number of regions started; a worker that sees it change runs `body`.
    epoch: AtomicU32,
    /// Workers still in the region.
    running: AtomicUsize,
    /// Written by the caller before `epoch` changes, read by workers after.
    body: UnsafeCell<Option<*const Body<'static>>>,
    /// The caller's thread, while it is parked at the end of a region.
    waiting: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    spin_us: AtomicU32,
    seats: Vec<Seat>,
}

// SAFETY: `body` is the only field that is not `Sync`. The caller writes it while no worker is in a
// region (it waited for `running == 0`) and publishes it by the release store of `epoch`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `body` is only used between the start and the end of a region, while the
// caller keeps its target alive.
unsafe impl Send for Shared {}

/// A fixed set of worker threads; see the module documentation.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held during a region, so that concurrent callers take turns.
    region: Mutex<()>,
}

/// Locks a mutex whose data no panic can leave half-changed: nothing at all (`region`), or one value that is set as a
/// whole (`panic`, `waiting`).
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts `workers - 1` threads; the caller of a region is the remaining worker.
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        let oversubscribed = thread::available_parallelism().is_ok_and(|n| n.get() < workers);
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            running: AtomicUsize::new(0),
            body: UnsafeCell::new(None),
            waiting: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            spin_us: AtomicU32::new(if oversubscribed { 0 } else { SPIN_MAX_US }),
            seats: (1..workers).map(|_| Seat { parked: AtomicBool::new(false) }).collect(),
        });
        let mut pool = Self { shared, threads: Vec::new(), region: Mutex::new(()) };
        for worker in 1..workers {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("compute-{worker}"));
            pool.threads.push(builder.spawn(move || work(&shared, worker))?);
        }
        Ok(pool)
    }

    /// Workers of a region, the caller included.
    pub(crate) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `body(worker)` once on every worker and returns when all have finished.
    ///
    /// # Panics
    ///
    /// With the panic of a worker, after every worker has finished.
    pub(crate) fn run(&self, body: &Body<'_>) {
        if self.threads.is_empty() {
            body(0);
            return;
        }
        let region = lock(&self.region);
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased; the pointer is dropped below, before `run` returns, and
        // no worker uses it after `running` has reached zero. No worker reads `body` now: the
        // previous region has ended and the epoch has not changed.
        unsafe {
            let body: *const Body<'_> = body;
            let body: *const Body<'static> = std::mem::transmute(body);
            *shared.body.get() = Some(body);
        }
        shared.running.store(self.threads.len(), Ordering::Relaxed);
        // Sequentially consistent against `parked`: either the worker sees the new epoch after it
        // said that it parks, or we see that it has parked.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (seat, thread) in shared.seats.iter().zip(&self.threads) {
            if seat.parked.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| body(0)));
        wait_for_workers(shared);
        let panic = lock(&shared.panic).take();
        drop(region);
        if let Some(payload) = own.err().or(panic) {
            resume_unwind(payload);
        }
    }

    /// Splits `0..total` into pieces of `piece` and runs them on all workers as they come free.
    /// Runs on the caller alone when there is only one piece.
    pub(crate) fn for_each(&self, total: usize, piece: usize, body: impl Fn(Range<usize>) + Sync) {
        let piece = piece.max(1);
        if total <= piece || self.threads.is_empty() {
            if total > 0 {
                body(0..total);
            }
            return;
        }
        let next = AtomicUsize::new(0);
        self.run(&|_| {
            loop {
                let start = next.fetch_add(piece, Ordering::Relaxed);
                if start >= total {
                    return;
                }
                body(start..(start + piece).min(total));
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its bodies; nothing else in it can panic.
            let _ = thread.join();
        }
    }
}

/// Spins until `done` holds or the time is over; says whether it holds.
fn spin_until(limit_us: u32, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        // Looking at the clock costs as much as several looks at the flag.
        for _ in 0..16 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= Duration::from_micros(limit_us.into()) {
            return done();
        }
    }
}

/// The caller's wait at the end of a region.
fn wait_for_workers(shared: &Shared) {
    let done = || shared.running.load(Ordering::Acquire) == 0;
    if done() {
        return;
    }
    let start = Instant::now();
    let spin_us = shared.spin_us.load(Ordering::Relaxed);
    // At least one scheduler quantum is not worth waiting for; a few microseconds always are.
    if !spin_until(spin_us.max(5), done) {
        *lock(&shared.waiting) = Some(thread::current());
        while shared.running.load(Ordering::SeqCst) != 0 {
            thread::park();
        }
        *lock(&shared.waiting) = None;
    }
    let adapted = if start.elapsed().as_micros() > LATE_US {
        spin_us / 2
    } else {
        (spin_us + 1 + spin_us / 16).min(SPIN_MAX_US)
    };
    shared.spin_us.store(adapted, Ordering::Relaxed);
}

/// A worker thread: waits for the epoch to change, runs the body, reports.
fn work(shared: &Shared, worker: usize) {
    let seat = &shared.seats[worker - 1];
    let mut seen = 0;
    loop {
        let changed = || shared.epoch.load(Ordering::SeqCst) != seen;
        if !spin_until(shared.spin_us.load(Ordering::Relaxed), changed) {
            seat.parked.store(true, Ordering::SeqCst);
            while !changed() {
                thread::park();
            }
            seat.parked.store(false, Ordering::SeqCst);
        }
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        seen = seen.wrapping_add(1);
        // SAFETY: the epoch changed, so the caller has written `body` and waits for us; its target
        // lives until `running` reaches zero, which is after our last use.
        let body = unsafe { (*shared.body.get()).map(|body| &*body) };
        if let Some(body) = body
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(worker)))
        {
            lock(&shared.panic).get_or_insert(payload);
        }
        if shared.running.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(caller) = &*lock(&shared.waiting)
        {
            caller.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_region_once() {
        for workers in [1, 2, 5] {
            let pool = Pool::new(workers).unwrap();
            let counts: Vec<_> = (0..workers).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2000 {
                pool.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                if round % 500 == 0 {
                    // Long enough for the workers to park.
                    thread::sleep(Duration::from_millis(2));
                }
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 2000));
        }
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let pool = Pool::new(3).unwrap();
        for (total, piece) in [(0, 4), (1, 4), (1000, 7), (64, 64), (65, 64)] {
            let hits: Vec<_> = (0..total).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each(total, piece, |range| {
                for i in range {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for culprit in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker| assert!(worker != culprit, "worker {culprit} fell"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("worker {culprit} fell"));
            let total = AtomicUsize::new(0);
            pool.run(&|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), 3);
        }
    }

    #[test]
    fn concurrent_callers_take_turns() {
        let pool = Pool::new(2).unwrap();
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        pool.run(&|worker| {
                            if worker == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                inside.fetch_sub(1, Ordering::SeqCst);
                            }
                        });
                    }
                });
            }
        });
    }
}

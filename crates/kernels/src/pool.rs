//! The thread pool: a parallel region costs a microsecond or two, because workers spin and a region does not wait for a
//! late one.
//!
//! A token passes through some hundred regions of 5 to 100 microseconds each; a general pool that
//! wakes sleeping threads costs 10 to 40 microseconds per region (docs/decisions.md, thread pool).
//! So a worker that finds no work spins for a while and only then parks. The caller is worker 0.
//!
//! A region is open from the moment that the caller has work until the caller itself finds no more of it. Workers that
//! come meanwhile enter; one that comes too late, because it was parked or had lost its processor, finds the region
//! closed and goes on waiting. So a region ends when its work is done, and not when the last worker has looked at it.
//! Workers that a region has no piece for do not touch it.
//!
//! Invariants: a region ends only after every worker that entered has left, so borrowed data may be used; a
//! panic in any worker is carried to the caller after the region has ended, and the pool stays
//! usable; regions never nest and run one at a time; dropping the pool joins its threads.
//!
//! Oversubscription: when a worker has lost its processor amid a piece the caller waits long at the end of a
//! region, and spinning makes it worse. Every such wait halves the time that everyone spins; every
//! good region lengthens it again.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Longest time that a worker spins before it parks: regions of one token follow each other within
/// a few microseconds; 100 bridges the caller's serial work between them.
const SPIN_MAX_US: u32 = 100;

/// A wait at the end of a region longer than this means that some worker was not running.
const LATE_US: u128 = 300;

/// What a region runs: takes pieces until there are none.
type Body<'a> = dyn Fn() + Sync + 'a;

/// The state of a region in one word, so that to enter and to learn whether it is open are one operation. From the
/// lowest bit on: workers inside, besides the caller.
const INSIDE: u64 = 0xffff;
/// Whether workers may enter.
const OPEN: u64 = 1 << 16;
/// From this bit on, fifteen bits: workers with an index below may enter, the caller counted.
const LIMIT_SHIFT: u32 = 17;
const LIMIT_MAX: usize = 0x7fff;
/// From this bit on: the number of regions begun.
const EPOCH_SHIFT: u32 = 32;

fn epoch(state: u64) -> u32 {
    (state >> EPOCH_SHIFT) as u32
}

fn limit(state: u64) -> usize {
    (state >> LIMIT_SHIFT) as usize & LIMIT_MAX
}

/// The word of [`INSIDE`] in cache lines of its own: everybody spins on it.
#[repr(align(128))]
struct State(AtomicU64);

/// One worker's parking place.
struct Seat {
    parked: AtomicBool,
}

struct Shared {
    state: State,
    /// Written by the caller while the region is closed and empty, read by workers that entered.
    body: UnsafeCell<Option<*const Body<'static>>>,
    /// The caller's thread, while it is parked at the end of a region.
    waiting: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    spin_us: AtomicU32,
    seats: Vec<Seat>,
}

// SAFETY: `body` is the only field that is not `Sync`. The caller writes it while the last region is closed and no
// worker is inside (it waited for that), and publishes it by the release operation that opens the next one; a worker
// reads it only after it entered an open region, by an acquire operation on the same word.
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
        if workers > LIMIT_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let oversubscribed = thread::available_parallelism().is_ok_and(|n| n.get() < workers);
        let shared = Arc::new(Shared {
            state: State(AtomicU64::new(0)),
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

    /// Runs `body` on the caller, and on those of the first `most` workers that come before the caller has returned
    /// from it: so it must take work from where all find it, and return when there is none. Returns when all have.
    ///
    /// # Panics
    ///
    /// With the panic of a worker, after every worker has finished.
    fn run(&self, most: usize, body: &Body<'_>) {
        let region = lock(&self.region);
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased; no worker uses the pointer after the last has left below, before `run`
        // returns. No worker reads `body` now: the previous region is closed and no worker is inside.
        unsafe {
            let body: *const Body<'_> = body;
            let body: *const Body<'static> = std::mem::transmute(body);
            *shared.body.get() = Some(body);
        }
        let most = most.min(self.workers());
        let state = &shared.state.0;
        // A late worker may be counted for the moment that it takes to see that it is late: `INSIDE` is left alone.
        let before = state.load(Ordering::Relaxed) & !INSIDE;
        let next = u64::from(epoch(before).wrapping_add(1)) << EPOCH_SHIFT;
        let next = next | (most as u64) << LIMIT_SHIFT | OPEN;
        // Sequentially consistent against `parked`: either the worker sees the new epoch after it
        // said that it parks, or we see that it has parked.
        state.fetch_add(next.wrapping_sub(before), Ordering::SeqCst);
        for (seat, thread) in shared.seats.iter().zip(&self.threads).take(most - 1) {
            if seat.parked.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(body));
        state.fetch_sub(OPEN, Ordering::SeqCst);
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
        self.run(total.div_ceil(piece), &|| {
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
        self.shared.state.0.fetch_add(1 << EPOCH_SHIFT, Ordering::SeqCst);
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

/// The caller's wait for those inside, at the end of a region that it has closed.
fn wait_for_workers(shared: &Shared) {
    let done = || shared.state.0.load(Ordering::SeqCst) & INSIDE == 0;
    if done() {
        return;
    }
    let start = Instant::now();
    let spin_us = shared.spin_us.load(Ordering::Relaxed);
    // At least one scheduler quantum is not worth waiting for; a few microseconds always are.
    if !spin_until(spin_us.max(5), done) {
        *lock(&shared.waiting) = Some(thread::current());
        while !done() {
            thread::park();
        }
        *lock(&shared.waiting) = None;
    }
    let adapted = if start.elapsed().as_micros() > LATE_US {
        spin_us / 2
    } else {
        (spin_us + 1 + spin_us / 16).min(SPIN_MAX_US)
    };
    if adapted != spin_us {
        shared.spin_us.store(adapted, Ordering::Relaxed);
    }
}

/// A worker thread: waits for a region that it may enter, enters, runs the body, leaves.
fn work(shared: &Shared, worker: usize) {
    let seat = &shared.seats[worker - 1];
    let state = &shared.state.0;
    let mut seen = 0;
    loop {
        let changed = || epoch(state.load(Ordering::SeqCst)) != seen;
        if !spin_until(shared.spin_us.load(Ordering::Relaxed), changed) {
            seat.parked.store(true, Ordering::SeqCst);
            while !changed() {
                thread::park();
            }
            seat.parked.store(false, Ordering::SeqCst);
        }
        let now = state.load(Ordering::SeqCst);
        // After the load: the end of the pool says `stop` before it changes the epoch, and no worker may take that
        // epoch for one that it has seen without having seen `stop`.
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        seen = epoch(now);
        if worker >= limit(now) || now & OPEN == 0 {
            continue;
        }
        // Counted before it is known whether the region is still open, or which it is.
        let entered = state.fetch_add(1, Ordering::SeqCst);
        if entered & OPEN != 0 {
            seen = epoch(entered);
            // SAFETY: the region was open when we were counted, so its caller has written `body` and waits for us
            // before it returns; the target lives until we have left, which is after our last use.
            let body = unsafe { (*shared.body.get()).map(|body| &*body) };
            if let Some(body) = body
                && let Err(payload) = catch_unwind(AssertUnwindSafe(body))
            {
                lock(&shared.panic).get_or_insert(payload);
            }
        }
        let left = state.fetch_sub(1, Ordering::SeqCst);
        if left & (INSIDE | OPEN) == 1
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
    fn every_piece_runs_once_in_every_region_and_only_the_first_workers_come() {
        for (workers, pieces) in [(1, 3), (2, 2), (5, 2), (5, 40)] {
            let pool = Pool::new(workers).unwrap();
            let counts: Vec<_> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            let seen = Mutex::new(std::collections::HashSet::new());
            for round in 0..2000 {
                pool.for_each(pieces, 1, |range| {
                    range.for_each(|i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
                    lock(&seen).insert(thread::current().id());
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == round + 1));
                if round % 500 == 0 {
                    // Long enough for the workers to park.
                    thread::sleep(Duration::from_millis(2));
                }
            }
            assert!(lock(&seen).len() <= workers.min(pieces));
        }
    }

    #[test]
    fn pools_end_whatever_their_workers_do() {
        for round in 0..400 {
            let pool = Pool::new(4).unwrap();
            for _ in 0..round % 5 {
                pool.for_each(4, 1, |_| ());
            }
        }
    }

    #[test]
    fn all_workers_take_part_in_long_regions() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..20 {
            // No worker leaves before all have come.
            let inside = AtomicUsize::new(0);
            pool.for_each(3, 1, |_| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 3 {
                    std::hint::spin_loop();
                }
            });
            assert_eq!(inside.into_inner(), 3);
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
                pool.for_each(3, 1, |piece| {
                    assert!(piece.start != culprit, "piece {culprit} fell")
                });
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("piece {culprit} fell"));
            let total = AtomicUsize::new(0);
            pool.for_each(9, 1, |_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), 9);
        }
    }

    #[test]
    fn concurrent_callers_take_turns() {
        const ROUNDS: usize = 300;
        let pool = &Pool::new(2).unwrap();
        let (last, changes) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        thread::scope(|scope| {
            for caller in 1..=3 {
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        pool.for_each(4, 1, |_| {
                            if last.swap(caller, Ordering::SeqCst) != caller {
                                changes.fetch_add(1, Ordering::SeqCst);
                            }
                        });
                    }
                });
            }
        });
        // Regions beside each other would change places more often than there are regions.
        assert!(changes.load(Ordering::SeqCst) <= 3 * ROUNDS);
    }
}

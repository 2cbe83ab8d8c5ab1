//! Keeps calls for which the driver waits until a device is idle out of the time in which kernels wait for the host.
//!
//! Engines of one process share a device's context. The driver allocates, pins, maps and frees memory and loads code
//! once the context's kernels have ended, and lets no other call of the process pass meanwhile. A step of another
//! engine that waits for a record then waits for a host that cannot even ask how far it is: two engines that load and
//! compute at a time stood still for the 60 s of a step's patience, and the step failed. So such calls are made while
//! no step is attended, and a step that has to be attended begins when none is made.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Device;
use crate::device::Inner;

/// What a call waits for steps at most: longer than a step waits for its host, so that steps that are not served any
/// more stop no other engine for good.
const LONGEST: Duration = Duration::from_secs(65);

/// Of all devices: such calls are rare.
static GATE: Gate = Gate::new();

thread_local! {
    /// This thread makes such a call.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Steps that are attended, and calls that wait for them or are made.
struct Counts {
    attended: usize,
    waiting: usize,
    made: bool,
}

struct Gate {
    counts: Mutex<Counts>,
    changed: Condvar,
}

impl Gate {
    const fn new() -> Self {
        let counts = Mutex::new(Counts { attended: 0, waiting: 0, made: false });
        Self { counts, changed: Condvar::new() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Each change is one number: a thread that panicked has made it or has not.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for calls that are made or wait, then counts a step.
    fn attend(&self) {
        let busy = |counts: &mut Counts| counts.made || counts.waiting > 0;
        let counts = self.changed.wait_while(self.counts(), busy);
        counts.unwrap_or_else(PoisonError::into_inner).attended += 1;
    }

    fn leave(&self) {
        self.counts().attended -= 1;
        self.changed.notify_all();
    }

    /// Waits until no step is attended, at most for `longest`, and no other such call is made.
    fn begin_call(&self, longest: Duration) {
        let mut counts = self.counts();
        counts.waiting += 1;
        let steps = |counts: &mut Counts| counts.attended > 0;
        let waited = self.changed.wait_timeout_while(counts, longest, steps);
        let counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        let counts = self.changed.wait_while(counts, |counts| counts.made);
        let mut counts = counts.unwrap_or_else(PoisonError::into_inner);
        counts.waiting -= 1;
        counts.made = true;
    }

    fn end_call(&self) {
        self.counts().made = false;
        self.changed.notify_all();
    }
}

/// A step whose kernels may wait for the host, which serves them until it has ended.
pub struct Attended {
    device: Device,
}

impl Device {
    /// Says so of a step that is about to begin; the value is kept until it has ended. It waits for calls of other
    /// engines that need an idle device.
    pub fn attend(&self) -> Attended {
        GATE.attend();
        self.inner.attended.fetch_add(1, Ordering::Relaxed);
        Attended { device: self.clone() }
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.device.inner.attended.fetch_sub(1, Ordering::Relaxed);
        GATE.leave();
    }
}

/// Calls that need an idle device may be made while this is kept.
pub(crate) struct Quiet {
    /// Of the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Quiet {
    /// Waits for steps of all engines. `None` on a thread that has one already.
    pub(crate) fn begin() -> Option<Self> {
        (!QUIET.replace(true)).then(|| {
            GATE.begin_call(LONGEST);
            Self { thread: PhantomData }
        })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(false);
        GATE.end_call();
    }
}

impl Inner {
    /// [`Quiet::begin`], but for calls of an engine whose own step is attended: the step would wait for this thread.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        (self.attended.load(Ordering::Relaxed) == 0).then(Quiet::begin).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn no_call_is_made_while_a_step_is_attended() {
        let (gate, steps, calls) = (Gate::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        let step = || {
            for _ in 0..500 {
                gate.attend();
                steps.fetch_add(1, Ordering::SeqCst);
                assert_eq!(calls.load(Ordering::SeqCst), 0, "a call while a step is attended");
                thread::yield_now();
                steps.fetch_sub(1, Ordering::SeqCst);
                gate.leave();
            }
        };
        let call = || {
            for _ in 0..500 {
                gate.begin_call(LONGEST);
                assert_eq!(calls.fetch_add(1, Ordering::SeqCst), 0, "two calls at a time");
                assert_eq!(steps.load(Ordering::SeqCst), 0, "a step while a call is made");
                thread::yield_now();
                calls.fetch_sub(1, Ordering::SeqCst);
                gate.end_call();
            }
        };
        thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(step)));
            (0..2).for_each(|_| drop(scope.spawn(call)));
        });
        let counts = gate.counts();
        assert_eq!((counts.attended, counts.waiting, counts.made), (0, 0, false));
    }

    #[test]
    fn a_step_that_is_never_ended_stops_calls_for_a_time_only() {
        let gate = Gate::new();
        gate.attend();
        gate.begin_call(Duration::from_millis(5));
        assert!(gate.counts().made);
        gate.end_call();
    }
}

//! Locks of the work room, taken whatever happened before.
//!
//! A thread that panics while it holds a lock poisons it. Here that must not make a second failure of the first: when
//! the engine's thread ends by a panic, callers still have to be told so, which takes the queue (to let its jobs go)
//! and the status. So poison is passed over, and in return every value behind a lock is changed in steps that leave it
//! whole; the value's own comment says what a panic can cost.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Takes a lock.
pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `changed` is told of.
pub(super) fn wait<'a, T>(changed: &Condvar, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(held).unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `changed` is told of, or for `time`.
pub(super) fn wait_for<'a, T>(
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    changed.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner).0
}

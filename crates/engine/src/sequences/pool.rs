//! Buffers of one size, at most so many at a time, that come back by themselves when their last holder drops them.
//!
//! Keys, values and recurrent states live in such buffers, shared between sequences and snapshots. A buffer that
//! comes back is kept for the next taker, so that memory does not grow and shrink while answers are made; in
//! builds with debug assertions its content is overwritten first, so that no code can use what is gone.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// What a pool holds.
pub(crate) trait Recycled: Send + 'static {
    /// Makes a content that shows in every result.
    fn spoil(&mut self);
}

impl Recycled for Vec<u8> {
    fn spoil(&mut self) {
        // NaN in every type.
        self.fill(0xff);
    }
}

impl Recycled for Vec<f32> {
    fn spoil(&mut self) {
        self.fill(f32::NAN);
    }
}

/// A source of buffers; a clone is the same source.
pub(crate) struct Pool<T: Recycled> {
    shared: Arc<Mutex<Shared<T>>>,
    make: Arc<dyn Fn() -> T + Send + Sync>,
    limit: usize,
}

impl<T: Recycled> Clone for Pool<T> {
    fn clone(&self) -> Self {
        let (shared, make) = (Arc::clone(&self.shared), Arc::clone(&self.make));
        Self { shared, make, limit: self.limit }
    }
}

struct Shared<T> {
    idle: Vec<T>,
    taken: usize,
}

/// A buffer of a pool.
pub(crate) struct Pooled<T: Recycled> {
    /// `None` only while it is being dropped.
    buffer: Option<T>,
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T: Recycled> Pool<T> {
    /// A pool of at most `limit` buffers made by `make`; all of them now when `ahead`, else when first needed.
    pub(crate) fn new(
        limit: usize,
        ahead: bool,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let idle = (0..if ahead { limit } else { 0 }).map(|_| make()).collect();
        let shared = Arc::new(Mutex::new(Shared { idle, taken: 0 }));
        Self { shared, make: Arc::new(make), limit }
    }

    /// A buffer with any content; `None` when all are taken.
    pub(crate) fn take(&self) -> Option<Pooled<T>> {
        let idle = {
            let mut shared = lock(&self.shared);
            if shared.taken == self.limit {
                return None;
            }
            shared.taken += 1;
            shared.idle.pop()
        };
        let buffer = idle.unwrap_or_else(|| (self.make)());
        Some(Pooled { buffer: Some(buffer), shared: Arc::clone(&self.shared) })
    }

    /// Buffers that can be taken now.
    pub(crate) fn free(&self) -> usize {
        self.limit - lock(&self.shared).taken
    }
}

/// The pool's state. Under the lock a count is changed and a buffer moved; neither can panic once the count is
/// right, so a panic of another thread cannot leave it half changed.
fn lock<T>(shared: &Mutex<Shared<T>>) -> std::sync::MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Recycled> Deref for Pooled<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.buffer.as_ref().expect("held until dropped")
    }
}

impl<T: Recycled> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.buffer.as_mut().expect("held until dropped")
    }
}

impl<T: Recycled> Drop for Pooled<T> {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        if cfg!(debug_assertions) {
            buffer.spoil();
        }
        let mut shared = lock(&self.shared);
        shared.taken -= 1;
        shared.idle.push(buffer);
    }
}

impl<T: Recycled> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pooled")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_limited_come_back_and_are_spoilt() {
        let pool = Pool::new(2, false, || vec![0.0f32; 4]);
        let first = pool.take().unwrap();
        let mut second = pool.take().unwrap();
        assert!(pool.take().is_none(), "a third of two");
        second.fill(7.0);
        drop(second);
        assert_eq!(pool.free(), 1);
        let again = pool.take().unwrap();
        assert!(again.iter().all(|value| value.is_nan()), "what is gone stays gone: {:?}", *again);
        drop((first, again));
        assert_eq!(pool.free(), 2);
    }
}

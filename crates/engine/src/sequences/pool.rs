//! Buffers of one size, at most so many at a time, that come back by themselves when their last holder drops them.
//!
//! Keys, values and recurrent states live in such buffers, shared between sequences and snapshots. A buffer that
//! comes back is kept for the next taker, so that memory does not grow and shrink while answers are made; in
//! builds with debug assertions its content is overwritten first, so that no code can use what is gone.
//!
//! Where making one takes long, a thread makes the next before it is asked for: 63 MiB of pages that are there take
//! 45 ms, and a turn's first token would wait for them.

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

/// When buffers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// All at the start.
    Ahead,
    /// When they are taken.
    Asked,
    /// So many before they are taken, by a thread of their own.
    Stocked(usize),
}

/// A source of buffers; a clone is the same source.
pub(crate) struct Pool<T: Recycled> {
    shared: Arc<Mutex<Shared<T>>>,
    make: Arc<dyn Fn() -> T + Send + Sync>,
    limit: usize,
    stock: usize,
}

impl<T: Recycled> Clone for Pool<T> {
    fn clone(&self) -> Self {
        let (shared, make) = (Arc::clone(&self.shared), Arc::clone(&self.make));
        Self { shared, make, limit: self.limit, stock: self.stock }
    }
}

struct Shared<T> {
    idle: Vec<T>,
    taken: usize,
    /// A thread fills the stock.
    stocking: bool,
}

/// A buffer of a pool.
pub(crate) struct Pooled<T: Recycled> {
    /// `None` only while it is being dropped.
    buffer: Option<T>,
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T: Recycled> Pool<T> {
    /// A pool of at most `limit` buffers made by `make`.
    pub(crate) fn new(
        limit: usize,
        made: Made,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let idle = (0..if made == Made::Ahead { limit } else { 0 }).map(|_| make()).collect();
        let stock = if let Made::Stocked(stock) = made { stock } else { 0 };
        let shared = Arc::new(Mutex::new(Shared { idle, taken: 0, stocking: false }));
        let pool = Self { shared, make: Arc::new(make), limit, stock };
        pool.restock();
        pool
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
        self.restock();
        let buffer = idle.unwrap_or_else(|| (self.make)());
        Some(Pooled { buffer: Some(buffer), shared: Arc::clone(&self.shared) })
    }

    /// Buffers that can be taken now.
    pub(crate) fn free(&self) -> usize {
        self.limit - lock(&self.shared).taken
    }

    /// Whether a buffer is to be made for the stock.
    fn is_short(&self, shared: &Shared<T>) -> bool {
        shared.idle.len() < self.stock && shared.taken + shared.idle.len() < self.limit
    }

    /// Has a thread fill the stock, where it is short and none does. It ends when no other owner of the pool is left.
    fn restock(&self) {
        let mut shared = lock(&self.shared);
        if shared.stocking || !self.is_short(&shared) {
            return;
        }
        let pool = self.clone();
        let fill = move || {
            while pool.wants_another() {
                let buffer = (pool.make)();
                // One that was taken meanwhile may have been made by its taker: then there is one more than the limit,
                // until that comes back.
                lock(&pool.shared).idle.push(buffer);
            }
        };
        // Without a thread, takers make their own.
        let thread = std::thread::Builder::new().name("snapshot memory".to_owned()).spawn(fill);
        shared.stocking = thread.is_ok();
    }

    /// Whether the thread that fills the stock goes on.
    fn wants_another(&self) -> bool {
        let mut shared = lock(&self.shared);
        // The thread's own is the last but for those of buffers, which have no maker.
        shared.stocking = Arc::strong_count(&self.make) > 1 && self.is_short(&shared);
        shared.stocking
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
        let pool = Pool::new(2, Made::Asked, || vec![0.0f32; 4]);
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
    /// Until the stock is full or `most` are taken, takers find a buffer that is made already.
    #[test]
    fn a_stock_is_made_ahead_and_within_the_limit() {
        let made = Arc::new(Mutex::new(0));
        let count = Arc::clone(&made);
        let pool = Pool::new(3, Made::Stocked(2), move || {
            *count.lock().unwrap() += 1;
            vec![0u8; 8]
        });
        let stocked = |idle: usize| {
            let began = std::time::Instant::now();
            while lock(&pool.shared).idle.len() < idle || lock(&pool.shared).stocking {
                assert!(began.elapsed().as_secs() < 60, "{idle} were to be made");
                std::thread::yield_now();
            }
        };
        stocked(2);
        let first = pool.take().unwrap();
        stocked(2);
        let second = pool.take().unwrap();
        stocked(1);
        let third = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert_eq!(*made.lock().unwrap(), 3, "no more than the limit");
        drop((first, second, third));
        assert_eq!(pool.free(), 3);
        assert_eq!(*made.lock().unwrap(), 3, "what comes back is taken again");
    }
}

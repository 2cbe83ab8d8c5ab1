//! Connections that wait for a request, so that one of them can be closed when a new one finds no room.
//!
//! A connection costs a descriptor, whether anything is asked over it or not, and clients keep theirs for the next
//! question. When there is no room, the one that has waited longest goes: the protocol allows that at any time, and a
//! client that keeps connections opens another. A connection with a request in progress is never closed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::Notify;

/// The connections that wait, in the order in which they began to.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// Entries are put in and taken out whole; nothing in between can panic.
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

impl Idle {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the connection that has waited longest to close; false when none waits.
    pub(crate) fn close_longest(&self) -> bool {
        let longest = self.line().waiting.pop_first();
        longest.inspect(|(_, close)| close.notify_one()).is_some()
    }
}

/// A connection's place in the line.
#[derive(Debug)]
pub(crate) struct Place {
    idle: Arc<Idle>,
    close: Arc<Notify>,
    /// Locked after the line, never before; nothing under it can panic.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the line, while it waits there.
    number: Option<u64>,
    /// Requests in progress: the next may come before the last is quite over.
    requests: usize,
}

impl Place {
    /// The place of a new connection, which waits for its first request.
    pub(crate) fn new(idle: &Arc<Idle>) -> Arc<Self> {
        let (idle, close) = (Arc::clone(idle), Arc::default());
        let place = Arc::new(Self { idle, close, state: Mutex::default() });
        place.wait();
        place
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut line = self.idle.line();
        let mut state = self.state();
        state.requests = state.requests.saturating_sub(1);
        if state.requests == 0 && state.number.is_none() {
            let number = line.next;
            line.next += 1;
            line.waiting.insert(number, Arc::clone(&self.close));
            state.number = Some(number);
        }
    }

    fn leave(&self, requests: usize) {
        let mut line = self.idle.line();
        let mut state = self.state();
        state.requests += requests;
        if let Some(number) = state.number.take() {
            line.waiting.remove(&number);
        }
    }

    /// A request has come; the connection waits again when the guard is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.leave(1);
        Busy(Arc::clone(self))
    }

    /// Whether a request is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.state().requests > 0
    }

    /// Waits until the connection shall close.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave(0);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// A response's body; while there is one, its connection is busy.
#[derive(Debug)]
pub(crate) struct Held<B> {
    pub(crate) body: B,
    pub(crate) _busy: Busy,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waited_longest_goes_and_never_one_at_work() {
        let idle: Arc<Idle> = Arc::default();
        assert!(!idle.close_longest());
        let places: Vec<_> = (0..3).map(|_| Place::new(&idle)).collect();
        let busy = places[0].busy();
        assert!(places[0].is_busy() && !places[1].is_busy());
        assert!(idle.close_longest());
        assert!(!idle.line().waiting.contains_key(&1) && idle.line().waiting.len() == 1);
        // The next request comes before the last is over.
        let next = places[0].busy();
        drop(busy);
        assert!(places[0].is_busy() && idle.line().waiting.len() == 1);
        drop(next);
        // The first waits again, behind the third.
        assert!(idle.close_longest());
        assert_eq!(places[0].state().number, Some(3));
        assert!(idle.line().waiting.contains_key(&3));
        drop(places);
        assert!(idle.line().waiting.is_empty() && !idle.close_longest());
    }
}

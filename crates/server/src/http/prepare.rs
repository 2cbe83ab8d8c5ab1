//! From a body to a job: one request at a time, given up when its client goes.
//!
//! What a request takes while it is read, rendered and tokenised is a multiple of its body. That much is planned for
//! one request, so one is in work; the others wait here with their bodies, which are counted (`room`). A client
//! that goes away leaves its place in the line at once, and what is in work for it ends at the next look.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};

use super::body::object;
use super::desk::Desk;
use super::error::ApiError;
use super::room::Share;

/// Bodies from this size on are worth looking for memory to give back.
const LARGE_BYTES: usize = 256 << 10;

/// A body and its place in the room.
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Share,
    /// What its sender should know, once it is understood.
    pub(super) warning: Option<String>,
}

impl Received {
    /// The JSON object of the body, which is not kept.
    pub(super) fn object(&mut self, values_max: usize) -> Result<Map<String, Value>, ApiError> {
        object(&std::mem::take(&mut self.bytes), values_max)
    }
}

/// Where requests are prepared: on a thread of its own, which is made with the server.
#[derive(Debug)]
pub(super) struct Preparation(Desk);

/// Says that the client has gone when the future that waits for it is dropped.
#[derive(Default)]
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Preparation {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self(Desk::start("prepare")?))
    }

    /// Runs `work` when it is this request's turn; `work` may ask whether its client has gone. The share of the room
    /// comes back with the result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        mut received: Received,
        work: impl FnOnce(&mut Received, &dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Share), ApiError> {
        let leaving = Leaving::default();
        let gone = Arc::clone(&leaving.0);
        let done = self.0.run(move || {
            let large = received.bytes.len() > LARGE_BYTES;
            let result = work(&mut received, &|| gone.load(Ordering::Relaxed));
            received.bytes = Vec::new();
            if large {
                store::heap::give_back();
            }
            result.map(|value| (value, received.share))
        });
        let result = done.await;
        drop(leaving);
        result?
    }

    /// How long the request in work has been prepared.
    pub(super) fn busy_for(&self) -> Duration {
        self.0.busy_for()
    }
}

//! A worker that is still being made: what is known of it before the weights are there.
//!
//! Loading takes seconds to minutes. Meanwhile the server says what it will serve and how far it is, so that a
//! monitor can tell loading from hanging, and refuses everything else with a status that clients wait for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::{ModelCard, Worker};

/// A whole, in the steps in which progress is kept.
const WHOLE: u32 = 10_000;

/// A worker, or how far it is. Shared by the thread that loads and the server.
pub struct Loading {
    card: ModelCard,
    /// Ten-thousandths that are done.
    done: AtomicU32,
    worker: OnceLock<Arc<dyn Worker>>,
}

impl std::fmt::Debug for Loading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loading")
            .field("card", &self.card)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Loading {
    /// Nothing is loaded yet of what `card` describes.
    pub fn new(card: ModelCard) -> Self {
        Self { card, done: AtomicU32::new(0), worker: OnceLock::new() }
    }

    /// A worker that is there.
    pub fn finished(worker: Arc<dyn Worker>) -> Self {
        let loading = Self::new(worker.model());
        loading.finish(worker);
        loading
    }

    /// Notes that `share` of the bytes (0 to 1) is there.
    pub fn advance(&self, share: f64) {
        let done = (share.clamp(0.0, 1.0) * f64::from(WHOLE)) as u32;
        self.done.fetch_max(done, Ordering::Relaxed);
    }

    /// The worker can take jobs from here on. A second one is dropped.
    pub fn finish(&self, worker: Arc<dyn Worker>) {
        let _second = self.worker.set(worker);
    }

    /// The worker, once it is there.
    pub fn worker(&self) -> Option<&Arc<dyn Worker>> {
        self.worker.get()
    }

    /// How much is there, in whole percent; never all of it before there is a worker.
    pub fn percent(&self) -> u32 {
        if self.worker.get().is_some() {
            return 100;
        }
        (self.done.load(Ordering::Relaxed) / (WHOLE / 100)).min(99)
    }

    /// What is or will be served.
    pub fn model(&self) -> ModelCard {
        self.worker.get().map_or_else(|| self.card.clone(), |worker| worker.model())
    }
}

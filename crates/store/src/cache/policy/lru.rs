//! Least recently used goes first.

use super::{History, Moment, Policy};

/// Least recently used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl Policy for Lru {
    fn touch(&self, history: &mut History, now: Moment) {
        history.last = now.sequence;
        history.uses = history.uses.saturating_add(1);
    }

    fn score(&self, history: &History) -> f64 {
        history.last as f64
    }
}

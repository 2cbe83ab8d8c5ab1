//! Least frequently used goes first; among equals, the least recently used.

use super::{History, Moment, Policy};

/// Least frequently used, counted since the start, also while not resident.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lfu;

/// Uses weigh more than any recency: sequence numbers stay below 2^40 (a year at 30,000 a second).
const SEQUENCE_SPAN: f64 = (1u64 << 40) as f64;

impl Policy for Lfu {
    fn touch(&self, history: &mut History, now: Moment) {
        history.last = now.sequence;
        history.uses = history.uses.saturating_add(1);
    }

    fn score(&self, history: &History) -> f64 {
        f64::from(history.uses) + history.last as f64 / SEQUENCE_SPAN
    }
}

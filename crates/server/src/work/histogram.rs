//! Figures counted by size: the histograms behind `/metrics`.
//!
//! Edges are fixed, so that runs and machines can be compared. Times reach from a millisecond to two hours, because a
//! long prompt on a model that is read from disk takes minutes; other servers' edges end at a few seconds.

use std::time::Duration;

/// Upper edges of times, in seconds.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1200.0, 3600.0, 7200.0,
];
/// Upper edges of tokens per second.
const RATES: &[f64] = &[
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0,
    10_000.0,
];
/// Upper edges of bytes per token.
const BYTES: &[f64] = &[0.0, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10];

/// How often a figure was how large.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    edges: &'static [f64],
    /// One for each edge, and one for what is above all of them.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(edges: &'static [f64]) -> Self {
        Self { edges, counts: vec![0; edges.len() + 1], sum: 0.0 }
    }

    /// Of times.
    pub fn of_seconds() -> Self {
        Self::new(SECONDS)
    }

    /// Of tokens per second.
    pub fn of_rates() -> Self {
        Self::new(RATES)
    }

    /// Of bytes.
    pub fn of_bytes() -> Self {
        Self::new(BYTES)
    }

    /// Counts a figure; an edge belongs to the figures below it.
    pub fn add(&mut self, figure: f64) {
        let place = self.edges.partition_point(|&edge| edge < figure);
        self.counts[place] += 1;
        self.sum += figure;
    }

    /// Counts a time.
    pub fn add_time(&mut self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    /// Upper edges, and how many figures are at or below each.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        self.edges.iter().zip(&self.counts).map(move |(&edge, count)| {
            sum += count;
            (edge, sum)
        })
    }

    /// How many figures were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// What is measured of every job.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// Seconds in the queue.
    pub queue: Histogram,
    /// Seconds from submission to the first token.
    pub first_token: Histogram,
    /// Seconds between two tokens of one answer.
    pub token: Histogram,
    /// Seconds from the first work to the first token, of answers that are complete.
    pub prefill: Histogram,
    /// Seconds from the first token to the last, of answers that are complete.
    pub decode: Histogram,
    /// Seconds from submission to the end, of answers that are complete.
    pub whole: Histogram,
    /// Tokens per second of a prompt, without those that were known.
    pub prefill_rate: Histogram,
    /// Bytes read per token that was computed, prompt and answer.
    pub bytes_per_token: Histogram,
}

impl Default for Measures {
    fn default() -> Self {
        let seconds = Histogram::of_seconds;
        Self {
            queue: seconds(),
            first_token: seconds(),
            token: seconds(),
            prefill: seconds(),
            decode: seconds(),
            whole: seconds(),
            prefill_rate: Histogram::of_rates(),
            bytes_per_token: Histogram::of_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_counted_at_or_below_their_edge() {
        let mut histogram = Histogram::of_seconds();
        for figure in [0.0, 0.001, 0.0011, 7200.0, 7200.1] {
            histogram.add(figure);
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative[0], (0.001, 2));
        assert_eq!(cumulative[1], (0.0025, 3));
        assert_eq!(cumulative.last(), Some(&(7200.0, 4)));
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum() - 14_400.102_1).abs() < 1e-9);
        for edges in [SECONDS, RATES, BYTES] {
            assert!(edges.is_sorted(), "{edges:?}");
        }
    }
}

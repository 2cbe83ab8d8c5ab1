//! Vectors that kernels read together: devices that bind few buffers hold them in one.

use std::ops::Range;

use super::{Catalog, VectorId};

impl Catalog<'_> {
    /// Says that a vector and the one declared before it are read together: a device whose kernels bind few buffers
    /// holds both in one.
    pub fn join(&mut self, vector: VectorId) {
        assert!(vector.0 > 0, "the first vector follows no other");
        self.vectors[vector.index()].joined = true;
    }

    /// Vectors that are held in one buffer: runs of their numbers, and values of each run; 0 of those that are not
    /// loaded.
    pub fn vector_runs(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        let lengths = self.vectors.iter().zip(self.loaded_lengths());
        for (index, (place, values)) in lengths.enumerate() {
            match runs.last_mut().filter(|_| place.joined) {
                Some((run, length)) => {
                    run.end += 1;
                    *length += values;
                }
                None => runs.push((index..index + 1, values)),
            }
        }
        runs.into_iter()
    }
}

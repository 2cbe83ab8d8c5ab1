//! How the rows of a step's products are shared out over blocks and warps.
//!
//! A row's sum is cut by shapes and device alone, never by the number of tokens: its bits depend on the cuts.

use super::form::StepForm;
use crate::abi::{STEP_THREADS as THREADS, UNIT};

/// Blocks of `step_linear` for a job.
pub(super) fn linear_blocks(rows: usize, pair: bool, tiles: usize, rounds: usize) -> usize {
    rows.div_ceil(16 * if pair { 1 } else { tiles } * rounds)
}

/// Row tiles that a block works on at once, and times that it does so, for jobs of (rows, whether a pair), such that
/// all blocks run at the same time: a second wave would stage the vector again and leave most of the device idle at
/// its end.
pub(super) fn split_work(
    jobs: &[(usize, bool)],
    columns: usize,
    bits: u32,
    multiprocessors: usize,
) -> (usize, usize) {
    let blocks = |tiles, rounds| {
        jobs.iter().map(|&(rows, pair)| linear_blocks(rows, pair, tiles, rounds)).sum::<usize>()
    };
    let rounds = |tiles| {
        let mut rounds = 1;
        while blocks(tiles, rounds) > multiprocessors.max(jobs.len()) {
            rounds += 1;
        }
        rounds
    };
    let warps = THREADS / 32;
    if jobs.iter().any(|&(_, pair)| pair) {
        return (2, rounds(2));
    }
    // With rows enough each warp has its own, and nothing is added up over warps.
    if blocks(warps, 4) >= multiprocessors {
        return (warps, rounds(warps));
    }
    // Batches of units that a warp asks for one after another; of equals, the one that adds up least often.
    let batch = if bits <= 4 { 4 } else { 2 };
    let waits = |tiles: usize| {
        rounds(tiles) * (columns.div_ceil(UNIT) * tiles).div_ceil(warps).div_ceil(batch)
    };
    let tiles =
        [4, 2, 1].into_iter().min_by_key(|&tiles| (waits(tiles), rounds(tiles))).unwrap_or(1);
    (tiles, rounds(tiles))
}

/// How the experts' halves are shared out; by the shapes and the device alone but for `rounds`, because a row's sum
/// depends on the others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExpertSplit {
    /// Tiles of the first half are 8 rows of gate and 8 of up instead of 16 of one of them.
    pub(super) narrow: bool,
    /// Tiles of the first half that a block works on, one after another.
    pub(super) rounds: usize,
    /// Row tiles of the second half that a block works on at once.
    pub(super) tiles: usize,
}

impl ExpertSplit {
    pub(super) fn new(
        form: StepForm,
        inner: usize,
        hidden: usize,
        k: usize,
        tokens: usize,
        multiprocessors: usize,
    ) -> Self {
        let places = 2 * multiprocessors;
        // Of blocks there is no other kernel.
        let narrow = form != StepForm::Affine || inner.div_ceil(16) * k > places;
        let blocks = (places / (k * tokens)).max(1);
        let rounds = if narrow { inner.div_ceil(8).div_ceil(blocks) } else { 1 };
        let most = THREADS / 32;
        let tiles = hidden.div_ceil(16).div_ceil(multiprocessors).next_power_of_two().min(most);
        Self { narrow, rounds, tiles }
    }

    /// Blocks of the first half for an expert, and of the second.
    pub(super) fn blocks(&self, inner: usize, hidden: usize) -> (usize, usize) {
        let height = if self.narrow { 8 } else { 16 };
        (inner.div_ceil(height * self.rounds), hidden.div_ceil(16 * self.tiles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_product_run_at_the_same_time_and_cover_all_rows() {
        for rows in [1, 16, 100, 2048, 4096, 12_288, 248_320] {
            for columns in [128, 2048, 4096, 8192] {
                for (bits, pair) in [(4, false), (8, false), (4, true)] {
                    let jobs = [(rows, pair), (64, false), (1, false)];
                    let (tiles, rounds) = split_work(&jobs, columns, bits, 132);
                    let blocks = |&(rows, pair): &(usize, bool)| {
                        let blocks = linear_blocks(rows, pair, tiles, rounds);
                        assert!(blocks * rounds * if pair { 16 } else { 16 * tiles } >= rows);
                        blocks
                    };
                    assert!(jobs.iter().map(blocks).sum::<usize>() <= 132);
                    assert!(tiles.is_power_of_two() && tiles <= THREADS / 32);
                    assert!(!pair || tiles == 2, "gate and up are two tiles");
                }
            }
        }
    }

    #[test]
    fn experts_halves_cover_all_rows_whatever_the_device() {
        for (inner, hidden) in [(512, 2048), (1024, 4096), (1024, 3072), (128, 256), (96, 128)] {
            for (k, tokens, multiprocessors) in [(8, 1, 132), (10, 4, 132), (32, 3, 16), (1, 1, 24)]
            {
                let split =
                    ExpertSplit::new(StepForm::Affine, inner, hidden, k, tokens, multiprocessors);
                let (first, second) = split.blocks(inner, hidden);
                assert!(first * split.rounds * if split.narrow { 8 } else { 16 } >= inner);
                assert!(second * split.tiles * 16 >= hidden);
                assert!(split.tiles.is_power_of_two() && split.tiles <= THREADS / 32);
                let alone =
                    ExpertSplit::new(StepForm::Affine, inner, hidden, k, 1, multiprocessors);
                assert_eq!((split.narrow, split.tiles), (alone.narrow, alone.tiles));
                assert!(first * k <= 2 * multiprocessors.max(k) || tokens > 1);
            }
        }
    }

    #[test]
    fn rows_are_shared_out_as_measured() {
        let experts =
            |inner, hidden, k| ExpertSplit::new(StepForm::Affine, inner, hidden, k, 1, 132);
        assert_eq!(experts(512, 2048, 8), ExpertSplit { narrow: false, rounds: 1, tiles: 1 });
        assert_eq!(experts(1024, 4096, 10), ExpertSplit { narrow: true, rounds: 5, tiles: 2 });
        // Input projections of a delta layer and output head of both shapes (docs/benchmarks.md).
        let split = |rows, columns| split_work(&[(rows, false)], columns, 4, 132);
        assert_eq!(split(20_608, 4096), (2, 5));
        assert_eq!(split(248_320, 4096), (16, 8));
    }
}

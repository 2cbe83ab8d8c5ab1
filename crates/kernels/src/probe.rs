//! Measures how fast this machine reads memory: the bound of every product of few tokens.
//!
//! Planning and reports divide bytes by this figure, so it is measured the way the kernels read:
//! each thread walks its own part in order, with software prefetch, from a buffer larger than any
//! cache.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Bytes of the buffer: several times the largest last-level cache that is common. Builds for tests measure roughly.
const BUFFER_BYTES: usize = if cfg!(debug_assertions) { 1 << 27 } else { 1 << 30 };

/// Passes over the buffer; the best counts, since neighbours can only slow a pass down.
const PASSES: usize = 4;

/// Bytes per second that `threads` threads together read from memory, best of a few passes over
/// 1 GiB. Takes about half a second and holds the buffer meanwhile.
///
/// # Panics
///
/// If `threads` is zero or the system refuses a thread.
pub fn read_bandwidth(threads: usize) -> f64 {
    assert!(threads > 0, "at least one thread reads");
    let part = BUFFER_BYTES / threads;
    let barrier = Barrier::new(threads);
    let pass_seconds = |buffer: Vec<u8>| {
        let mut best = f64::INFINITY;
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            std::hint::black_box(sum(&buffer));
            barrier.wait();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    };
    let pass_seconds = &pass_seconds;
    let seconds = thread::scope(|scope| {
        // Each thread fills its own part, so that its pages are near it. Not with zeros: untouched
        // pages of zeros may all be one page.
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || pass_seconds(vec![thread as u8 + 1; part])))
            .collect();
        workers.into_iter().map(|w| w.join().expect("reading does not panic")).fold(0.0, f64::max)
    });
    (part * threads) as f64 / seconds
}

/// Sums the words of a buffer in independent lanes, so that nothing but memory limits it: how a kernel without
/// arithmetic would read. Bytes that are no whole 256 are left out.
pub fn sum(buffer: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for words in buffer.chunks_exact(256) {
        // Two pages ahead: within the reach of what hardware prefetchers leave uncovered.
        for line in 0..4 {
            crate::prefetch(words.as_ptr().wrapping_add(8192 + 64 * line));
        }
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |total, &sum| total.wrapping_add(sum))
}

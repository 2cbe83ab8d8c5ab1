//! The table that a profile prints: launches of one kind, their time alone and queued, and what they read.

use std::time::Instant;

use gpu::Gpu;

use super::Result;

/// A table and its sum.
pub(super) struct Table {
    title: String,
    total: f64,
    runs: usize,
}

impl Table {
    pub(super) fn new(title: &str, runs: usize) -> Self {
        println!("\n{title}");
        println!(
            "{:34} {:>6} {:>9} {:>9} {:>9} {:>9} {:>10}",
            "kernel", "count", "least us", "median", "queued", "GB/s", "ms in all"
        );
        Self { title: title.to_owned(), total: 0.0, runs }
    }

    /// Times `launch` alone by time stamps, and queued behind itself by the host's clock.
    pub(super) fn line(
        &mut self,
        gpu: &mut Gpu,
        name: &str,
        count: usize,
        bytes: usize,
        launch: &mut dyn FnMut(&mut Gpu) -> Result<()>,
    ) -> Result<()> {
        launch(gpu)?;
        let timed = gpu.begin_profile();
        for _ in 0..self.runs {
            launch(gpu)?;
        }
        let mut times: Vec<f64> =
            gpu.end_profile()?.iter().map(|timing| timing.nanoseconds / 1e3).collect();
        let (word, begun) = (gpu.control().clone(), Instant::now());
        for _ in 0..self.runs {
            launch(gpu)?;
        }
        gpu.read_words(&word, 0, 1)?;
        let queued = begun.elapsed().as_secs_f64() * 1e6 / self.runs as f64;
        times.sort_by(f64::total_cmp);
        let (least, median) = match timed && !times.is_empty() {
            true => (times[0], times[times.len() / 2]),
            false => (queued, queued),
        };
        let share = count as f64 * median / 1e3;
        self.total += share;
        let rate = bytes as f64 / median / 1e3;
        println!(
            "{name:34} {count:6} {least:9.2} {median:9.2} {queued:9.2} {rate:9.1} {share:10.3}"
        );
        Ok(())
    }

    pub(super) fn end(&self) {
        println!("{:34} {:>6} {:9.3} ms in kernels", self.title, "", self.total);
    }
}

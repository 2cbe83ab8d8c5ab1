//! A log that a storm of requests cannot fill.
//!
//! Lines come from what clients do, so their number is theirs to choose: 150 s of refused requests were 150,000
//! lines. A burst is logged in full; beyond it a few lines a second go through and the others are counted, and the
//! count is a line of its own as soon as there is room or the storm is over.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use store::shown::message;

use crate::log::{Level, Line, Log};

/// Lines that may come at once.
const BURST: f64 = 200.0;
/// Lines per second in the long run.
const PER_SECOND: f64 = 10.0;
/// The count of lines that were left out is told no more often.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Passes lines on, as many as the log can bear.
pub(crate) struct Throttle {
    log: Log,
    /// A panic between two changes costs a line or a count of one.
    state: Mutex<State>,
}

struct State {
    /// Lines that may go through at once.
    allowed: f64,
    /// When that was so.
    at: Instant,
    left_out: u64,
    /// When the count was told last.
    told: Instant,
}

impl fmt::Debug for Throttle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Throttle").finish_non_exhaustive()
    }
}

impl Throttle {
    pub(crate) fn new(log: Log) -> Self {
        let now = Instant::now();
        let state = State { allowed: BURST, at: now, left_out: 0, told: now };
        Self { log, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a line, cut and escaped, or counts it. One of a level that is not wanted is neither.
    pub(crate) fn line(&self, line: Line) {
        self.line_at(line, Instant::now());
    }

    /// [`Throttle::line`] without fields.
    pub(crate) fn say(&self, level: Level, text: &str) {
        self.line(Line { level, text: text.to_owned(), fields: Vec::new() });
    }

    fn line_at(&self, mut line: Line, now: Instant) {
        if !self.log.takes(line.level) {
            return;
        }
        let mut state = self.state();
        let passed = now.saturating_duration_since(state.at).as_secs_f64();
        state.allowed = (state.allowed + passed * PER_SECOND).min(BURST);
        state.at = state.at.max(now);
        if state.allowed < 1.0 {
            state.left_out += 1;
            return;
        }
        state.allowed -= 1.0;
        drop(state);
        self.tell_at(now);
        line.text = message(&line.text).to_string();
        self.log.line(&line);
    }

    /// Tells how many lines were left out, if there were any and it was not just told. To be called now and then.
    pub(crate) fn tell(&self) {
        self.tell_at(Instant::now());
    }

    fn tell_at(&self, now: Instant) {
        let mut state = self.state();
        if state.left_out == 0 || now.saturating_duration_since(state.told) < TOLD_EVERY {
            return;
        }
        state.told = now;
        let left_out = std::mem::take(&mut state.left_out);
        drop(state);
        self.count(left_out);
    }

    fn count(&self, left_out: u64) {
        let text = format!("{left_out} lines were left out: more than {PER_SECOND} a second");
        self.log.line(&Line { level: Level::Warn, text, fields: Vec::new() });
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let left_out = self.state().left_out;
        if left_out > 0 {
            self.count(left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_storm_is_counted_and_a_quiet_log_is_whole() {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&lines);
        let throttle = Throttle::new(Log::new(Level::Info, move |line| {
            sink.lock().expect("is whole").push(line.text.clone());
        }));
        let line =
            |text: &str| Line { level: Level::Info, text: text.to_owned(), fields: Vec::new() };
        let begun = Instant::now();
        // 150,000 lines in 150 seconds.
        for index in 0..150_000u64 {
            throttle.line_at(line("refused"), begun + Duration::from_millis(index));
        }
        throttle.tell_at(begun + Duration::from_secs(200));
        let found = std::mem::take(&mut *lines.lock().expect("is whole"));
        let counts = found
            .iter()
            .filter_map(|line| line.strip_suffix(" lines were left out: more than 10 a second"));
        let counts: Vec<u64> = counts.map(|count| count.parse().expect("a number")).collect();
        let passed = found.len() - counts.len();
        assert!(found.len() < 2_000, "{} lines", found.len());
        assert_eq!(passed as u64 + counts.iter().sum::<u64>(), 150_000, "every line is counted");
        // Ten a second are no storm.
        for index in 0..1_000u64 {
            throttle.line_at(line("asked"), begun + Duration::from_millis(300_000 + 100 * index));
        }
        throttle.line_at(line("two\nlines \u{1b}[31m"), begun + Duration::from_secs(1000));
        let found = std::mem::take(&mut *lines.lock().expect("is whole"));
        assert_eq!(found.len(), 1_001);
        assert_eq!(found[1_000], "two\\nlines \\u{1b}[31m");
    }
}

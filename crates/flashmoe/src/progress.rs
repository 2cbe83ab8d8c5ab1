//! Progress on standard error: a bar on a terminal, a line every few seconds otherwise.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use store::shown;

use crate::arguments::ByteSize;

/// What a progress counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Tokens.
    Tokens,
    /// Questions of an evaluation.
    Questions,
}

/// Seconds between lines when there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// One operation in progress.
pub(crate) struct Progress {
    what: String,
    unit: Unit,
    total: f64,
    started: Instant,
    shown: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts to show `what`, which takes `total` units.
    pub(crate) fn new(what: &str, unit: Unit, total: f64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1000);
            let style = ProgressStyle::with_template("{prefix} {bar:32} {msg}");
            bar.set_style(style.expect("the template is a constant"));
            bar.set_prefix(what.to_owned());
            bar
        });
        let what = what.to_owned();
        Self { what, unit, total, started: Instant::now(), shown: None, bar }
    }

    /// Shows that `done` units are done.
    pub(crate) fn set(&mut self, done: f64) {
        match &self.bar {
            Some(bar) => {
                bar.set_position((done / self.total.max(1e-9) * 1000.0) as u64);
                bar.set_message(self.figures(done));
            }
            None if self.shown.is_none_or(|shown| shown.elapsed() >= LINE_INTERVAL) => {
                self.shown = Some(Instant::now());
                say(&format!("{}: {}", self.what, self.figures(done)));
            }
            None => {}
        }
    }

    /// Removes the bar; on no terminal says how long it took when it was worth a line.
    pub(crate) fn finish(self) {
        match self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if self.started.elapsed() >= LINE_INTERVAL => {
                say(&format!(
                    "{}: done in {:.1} s",
                    self.what,
                    self.started.elapsed().as_secs_f64()
                ));
            }
            None => {}
        }
    }

    fn figures(&self, done: f64) -> String {
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = done / elapsed.max(1e-6);
        let eta = if rate > 0.0 { (self.total - done).max(0.0) / rate } else { 0.0 };
        match self.unit {
            Unit::Bytes => {
                let [done, total, rate] = [done, self.total, rate].map(|b| ByteSize(b as u64));
                format!("{done} of {total}, {rate}/s, {eta:.0} s left")
            }
            Unit::Questions => {
                format!("{done:.0} of {:.0} questions, {eta:.0} s left", self.total)
            }
            Unit::Tokens => {
                format!("{done:.0} of {:.0} tokens, {rate:.1} tok/s, {eta:.0} s left", self.total)
            }
        }
    }
}

/// Writes a line to standard error, as one line whatever is in it. A closed standard error is nobody's loss.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", shown::line(line));
}

/// Writes a line of JSON to standard error, whole: it is escaped already.
pub(crate) fn say_json(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

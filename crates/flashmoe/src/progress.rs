//! What goes to standard error: progress as a bar on a terminal and as a line every few seconds otherwise, remarks,
//! and the reason of a failure.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressStyle};
use store::shown;

use crate::arguments::ByteSize;
use crate::screen::{width, wrapped};

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
        let shows = std::io::stderr().is_terminal() && !QUIET.load(Ordering::Relaxed);
        let bar = shows.then(|| {
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
            None if self.shown.unwrap_or(self.started).elapsed() >= LINE_INTERVAL => {
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
            None if self.shown.is_some() => {
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
        let eta = duration(eta);
        match self.unit {
            Unit::Bytes => {
                let [done, total, rate] = [done, self.total, rate].map(|b| ByteSize(b as u64));
                format!("{done} of {total}, {rate}/s, {eta} left")
            }
            Unit::Questions => {
                format!("{done:.0} of {:.0} questions, {eta} left", self.total)
            }
            Unit::Tokens => {
                format!("{done:.0} of {:.0} tokens, {rate:.1} tok/s, {eta} left", self.total)
            }
        }
    }
}

/// Seconds as people say them: `42 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let all = seconds.round().min(1e12) as u64;
    match all {
        0..=119 => format!("{all} s"),
        120..=7199 => format!("{} min {} s", all / 60, all % 60),
        _ => format!("{} h {} min", all / 3600, all / 60 % 60),
    }
}

/// How much is said on standard error.
static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Sets how much is said: `quiet` leaves errors alone, `verbose` adds what is done on the way.
pub(crate) fn set_volume(quiet: bool, verbose: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Writes a line to standard error, as one line whatever is in it. A closed standard error is no error.
pub(crate) fn say(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        complain(line);
    }
}

/// [`say`] of a list: an entry and what it means, from column `columns` on.
pub(crate) fn say_entry(entry: &str, meaning: &str, columns: usize) {
    if !QUIET.load(Ordering::Relaxed) {
        write_line(&format!("{entry:columns$}{meaning}"), columns);
    }
}

/// As [`say`], where it was asked for with `-v`.
pub(crate) fn tell(line: &str) {
    if VERBOSE.load(Ordering::Relaxed) {
        complain(line);
    }
}

/// As [`say`], for what is said even with `--quiet`: the reason of a failure.
pub(crate) fn complain(line: &str) {
    write_line(line, 0);
}

/// Writes a line that ends between words where it is too long for a terminal, and goes on below column `hang`.
fn write_line(line: &str, hang: usize) {
    let columns = std::io::stderr().is_terminal().then(|| width(&Term::stderr())).flatten();
    let _ =
        writeln!(std::io::stderr(), "{}", wrapped(&shown::line(line).to_string(), columns, hang));
}

/// Writes a line of JSON to standard error, whole: it is escaped already.
pub(crate) fn say_json(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

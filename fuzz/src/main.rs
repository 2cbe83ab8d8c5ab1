//! Hostile input for every parser, on stable Rust, within a bounded time.
//!
//! `fuzz` runs every target for `--seconds` (15, or FUZZ_SECONDS), `--jobs` at a time (2), each in a process of
//! its own with 2 GiB of memory, so that a crash, a stack overflow or an exhausted memory is found as well
//! as a panic. An input that takes longer than 45 seconds is a finding. A process writes down
//! the number of each input before it meets the parser; inputs follow from seed and number alone, so the
//! one at fault is made again here, kept under target/fuzz, and printed with its seed.
//!
//! Chat templates may end their process by stack, memory or time: that is why flashmoe gives them one. Targets that
//! run them in the worker itself (`targets::MAY_END`) go on behind such an input in a new process.
//!
//! `fuzz TARGET...` runs these; `fuzz --replay FILE TARGET` meets a target with one file. There is no guidance by
//! coverage: mutation knows the formats instead (mutate.rs). `fuzz --campaign SECONDS --jobs N` shares that time among
//! the targets so that many reach their numbers of inputs (campaign.rs). FUZZ_ROOT is the repository for a program that
//! runs elsewhere than it was built.

mod aborts;
mod answers;
mod campaign;
mod checkpoints;
mod dialects;
mod files;
mod flips;
mod hub;
mod mutate;
mod net;
mod random;
mod requests;
mod slim;
mod stages;
mod target;
mod targets;
mod templates;
mod text;
mod tokens;
mod traces;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, setrlimit};
use target::Target;
use targets::TARGETS;

/// Memory of a process, all of its mappings.
const MEMORY_BYTES: u64 = 2 << 30;
/// A single input may take this long: usual is a thousandth of a second, but a template has ten seconds to compile and
/// ten for each of two prompts.
const PATIENCE: Duration = Duration::from_secs(45);
/// The same for targets whose inputs may end their process, as flashmoe bounds the processes of templates.
const MEMORY_OF_TEMPLATES: u64 = 384 << 20;
const PATIENCE_WITH_TEMPLATES: Duration = Duration::from_secs(3);
/// How these may end it, in the words of its log.
const ENDS: [&str; 3] = ["has overflowed its stack", "memory allocation of", "takes longer than"];
/// Bytes of a finding's report that are shown.
const REPORT_BYTES: usize = 4000;

struct Options {
    seconds: u64,
    seed: u64,
    /// The first input's number.
    from: u64,
    jobs: usize,
    targets: Vec<String>,
    /// Set in the processes that this program starts: work on the one target.
    worker: bool,
    replay: Option<PathBuf>,
    /// Seconds of a campaign over all targets together.
    campaign: Option<u64>,
    /// Where a campaign's table is written.
    table: Option<PathBuf>,
    /// The table of earlier campaigns, whose inputs count.
    done: Option<PathBuf>,
}

fn main() -> ExitCode {
    if ::text::is_template_process() {
        return ::text::template_process();
    }
    let options = match options() {
        Ok(options) => options,
        Err(problem) => {
            say(&format!("fuzz: {problem}"));
            return ExitCode::from(2);
        }
    };
    let first = options.targets[0].clone();
    match (&options.replay, options.worker) {
        (Some(path), _) => match std::fs::read(path) {
            Ok(input) => (make(&first).run)(&input),
            Err(error) => {
                say(&format!("fuzz: {}: {error}", path.display()));
                return ExitCode::from(2);
            }
        },
        (None, true) => work(&first, &options),
        (None, false) if options.campaign.is_some() => return campaign::run(&options),
        (None, false) => return supervise(&options),
    }
    ExitCode::SUCCESS
}

fn options() -> Result<Options, String> {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut options = Options {
        seconds: seconds.unwrap_or(15),
        seed: now.map_or(0, |time| time.as_secs()),
        from: 0,
        jobs: 2,
        targets: Vec::new(),
        worker: false,
        replay: None,
        campaign: None,
        table: None,
        done: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().unwrap_or_default();
            text.parse::<u64>().map_err(|_| format!("{argument} takes a number, not {text:?}"))
        };
        match argument.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            "--from" => options.from = number()?,
            "--jobs" => options.jobs = number()?.max(1) as usize,
            "--worker" => options.worker = true,
            "--campaign" => options.campaign = Some(number()?),
            "--table" => options.table = arguments.next().map(PathBuf::from),
            "--done" => options.done = arguments.next().map(PathBuf::from),
            "--replay" => options.replay = arguments.next().map(PathBuf::from),
            name if targets::find(name).is_some() => options.targets.push(name.to_owned()),
            other => {
                let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
                return Err(format!("{other:?} is no target; there are {}", known.join(", ")));
            }
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    }
    Ok(options)
}

fn make(name: &str) -> Target {
    let make = targets::find(name).expect("names of targets were checked");
    let mut target = make();
    target.seeds.extend(target::corpus(name));
    target
}

/// Where findings and the workers' progress go.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| target::root().join("target"));
    let folder = target.join("fuzz");
    std::fs::create_dir_all(&folder).expect("a folder for findings can be made");
    folder
}

/// Of a worker on `name` with `seed`: the number of the input that it is at.
fn progress_file(name: &str, seed: u64) -> PathBuf {
    folder().join(format!("{name}-{seed}.progress"))
}

/// What a worker complains of.
fn log_file(name: &str, seed: u64) -> PathBuf {
    folder().join(format!("{name}-{seed}.log"))
}

/// Meets one target with input after input until the time is over. Ends by a crash at a finding.
fn work(name: &str, options: &Options) {
    let may_end = targets::may_end(name);
    let (memory, patience) = match may_end {
        true => (MEMORY_OF_TEMPLATES, PATIENCE_WITH_TEMPLATES),
        false => (MEMORY_BYTES, PATIENCE),
    };
    let _ = setrlimit(Resource::As, Rlimit { current: Some(memory), maximum: Some(memory) });
    if may_end {
        // Their ends are many, and no core file of them is of use.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
    let mut target = make(name);
    let progress =
        File::create(progress_file(name, options.seed)).expect("progress can be written");
    let current = Arc::new(AtomicU64::new(options.from));
    let watched = Arc::clone(&current);
    std::thread::spawn(move || watch(&watched, patience));
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut number = options.from;
    // The seeds are always met, however short the time is.
    while number < target.seeds.len() as u64 || Instant::now() < end {
        progress.write_all_at(&number.to_le_bytes(), 0).expect("progress can be written");
        let input = target::input(&target, options.seed, number);
        (target.run)(&input);
        number += 1;
        current.store(number, Ordering::Relaxed);
    }
    progress.write_all_at(&number.to_le_bytes(), 0).expect("progress can be written");
}

/// Ends the process when one input takes too long.
fn watch(current: &AtomicU64, patience: Duration) {
    let mut last = (u64::MAX, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let number = current.load(Ordering::Relaxed);
        if number != last.0 {
            last = (number, Instant::now());
        } else if last.1.elapsed() > patience {
            say(&format!("input {number} takes longer than {patience:?}"));
            std::process::abort();
        }
    }
}

/// A process at work on a target.
struct Running {
    name: String,
    seed: u64,
    child: Child,
    started: Instant,
    end: Instant,
    /// Inputs that have ended a process of this one as they may.
    ends: [u64; ENDS.len()],
}

/// What became of one.
struct Ended {
    name: String,
    inputs: u64,
    /// The report of what was found.
    finding: Option<String>,
}

impl Running {
    fn start(name: &str, seed: u64, seconds: u64) -> Self {
        let started = Instant::now();
        let end = started + Duration::from_secs(seconds);
        let child = Self::child(name, seed, 0, seconds);
        Self { name: name.to_owned(), seed, child, started, end, ends: [0; ENDS.len()] }
    }

    /// Goes on behind an input that has ended the process as it may.
    fn go_on(&mut self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now()).as_secs();
        if left == 0 || !targets::may_end(&self.name) {
            return false;
        }
        let log = std::fs::read(log_file(&self.name, self.seed)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let Some(end) = ENDS.iter().position(|end| log.contains(end)) else { return false };
        let Ok(Some(status)) = self.child.try_wait() else { return false };
        if status.success() {
            return false;
        }
        self.ends[end] += 1;
        let number = self.number();
        self.child = Self::child(&self.name, self.seed, number + 1, left);
        true
    }

    /// The input that it is at.
    fn number(&self) -> u64 {
        let number = std::fs::read(progress_file(&self.name, self.seed)).ok();
        let number = number.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        number.unwrap_or(0)
    }

    fn child(name: &str, seed: u64, from: u64, seconds: u64) -> Child {
        let program = std::env::current_exe().expect("this program has a path");
        let log = File::create(log_file(name, seed)).expect("a log can be written");
        Command::new(program)
            .args(["--worker", "--seconds", &seconds.to_string(), "--from", &from.to_string()])
            .args(["--seed", &seed.to_string(), name])
            .env("RUST_BACKTRACE", "0")
            // Arenas reserve addresses, which are what is limited.
            .env("MALLOC_ARENA_MAX", "2")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("this program can be started again")
    }

    /// Tells what was found, and keeps the input.
    fn judge(mut self) -> Ended {
        let number = self.number();
        let ends = self.ends;
        let (name, seed) = (self.name, self.seed);
        let status = self.child.wait().expect("it has ended");
        let _ = std::fs::remove_file(progress_file(&name, seed));
        let log = std::fs::read(log_file(&name, seed)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[..log.len().min(REPORT_BYTES)]).into_owned();
        let _ = std::fs::remove_file(log_file(&name, seed));
        let allowed = targets::may_end(&name) && ENDS.iter().any(|end| log.contains(end));
        if status.success() || allowed {
            let ended = match ends.iter().sum::<u64>() {
                0 => String::new(),
                _ => format!("; of their processes' stack, memory, time ended {ends:?}"),
            };
            let log = if allowed { "" } else { &log };
            say(format!("{name:<18} {number:>9} inputs, nothing found{ended}\n{log}").trim_end());
            return Ended { name, inputs: number, finding: None };
        }
        let input = target::input(&make(&name), seed, number);
        let path = folder().join(format!("{name}-{seed}-{number}"));
        std::fs::write(&path, &input).expect("a finding can be written");
        let again = format!("kept as {}; again: fuzz --replay {0} {name}", path.display());
        let report = format!("FOUND by input {number} of seed {seed}: {status}\n{log}\n{again}");
        say(&format!("{name:<18} {report}"));
        Ended { name, inputs: number, finding: Some(report) }
    }
}

/// Runs `slices` of targets, seeds and seconds, at most `jobs` at a time; `ended` is told of each, and may refuse to
/// begin another by `wanted`.
fn run_all(
    slices: Vec<(String, u64, u64)>,
    jobs: usize,
    wanted: impl Fn(u64) -> Option<u64>,
    mut ended: impl FnMut(Ended, f64),
) {
    let mut waiting = slices.into_iter().rev().collect::<Vec<_>>();
    let mut running: Vec<Running> = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < jobs
            && let Some((name, seed, seconds)) = waiting.pop()
        {
            if let Some(seconds) = wanted(seconds) {
                running.push(Running::start(&name, seed, seconds));
            }
        }
        let done = running.iter_mut().position(|one| !matches!(one.child.try_wait(), Ok(None)));
        match done {
            Some(index) if running[index].go_on() => {}
            Some(index) => {
                let one = running.swap_remove(index);
                let started = one.started;
                ended(one.judge(), started.elapsed().as_secs_f64());
            }
            // Some are started again after every hundredth input.
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs all targets, some at a time, and tells what was found.
fn supervise(options: &Options) -> ExitCode {
    let (seed, seconds) = (options.seed, options.seconds);
    say(&format!("seed {seed}, {seconds} s for each of {} targets", options.targets.len()));
    let slices = options.targets.iter().map(|name| (name.clone(), seed, seconds)).collect();
    let mut findings = 0;
    let count = |ended: Ended, _| findings += u32::from(ended.finding.is_some());
    run_all(slices, options.jobs, Some, count);
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(line: &str) {
    // Without a place to complain to, complaining has no use.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of each target in an ordinary test run; the stage `fuzz` of `.ci/run` takes minutes.
    const INPUTS: u64 = 150;

    #[test]
    fn every_target_survives_its_corpus_and_a_little_more() {
        let try_one = |name: &str| {
            let mut target = make(name);
            assert!(!target.seeds.is_empty(), "{name} has nothing to start from");
            for number in 0..INPUTS.max(target.seeds.len() as u64) {
                let input = target::input(&target, 1, number);
                let run = std::panic::AssertUnwindSafe(|| (target.run)(&input));
                let result = std::panic::catch_unwind(run);
                assert!(result.is_ok(), "{name}, seed 1, input {number}");
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for first in 0..threads {
                let names = TARGETS.iter().map(|(name, _)| *name).skip(first).step_by(threads);
                scope.spawn(move || names.for_each(try_one));
            }
        });
    }

    /// The process of a template, when one is started by another test; a test like any other when there is no socket.
    #[test]
    fn template_process() {
        ::text::template_process();
    }

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let target = make("config-json");
        let inputs = |seed| (0..50).map(|n| target::input(&target, seed, n)).collect::<Vec<_>>();
        assert_eq!(inputs(3), inputs(3));
        assert_ne!(inputs(3), inputs(4));
    }
}

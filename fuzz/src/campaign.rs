//! A campaign: all targets in a given time over many processes, with seeds of its own, so that as many as possible
//! reach their numbers of inputs.
//!
//! First every target runs for a short while, which gives its rate. The rest of the time is given to the targets that
//! lack the least, until there is none left. The table says, for each target, how many inputs it has met, how
//! fast, and what was found; given as `--done` to the next campaign, its inputs count there.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{Ended, Options, run_all, say};

/// Inputs that a parser of less than 100 us is to meet, and that others are.
const INPUTS_FAST: u64 = 10_000_000;
const INPUTS_SLOW: u64 = 1_000_000;
/// Inputs a second from which a parser is a fast one.
const FAST_RATE: f64 = 10_000.0;
/// Targets that open a whole folder, around parsers that have targets of their own.
const FOLDERS: [&str; 3] = ["gguf", "safetensors-folder", "hub-cache"];
/// Targets that run a model, a packer or a process for every input. Their parsers have targets of their own.
const INPUTS_OF_SYSTEMS: [(&str, u64); 4] = [
    ("pack-flips", 100_000),
    ("aborts", 2_500),
    ("journal-folder", 100_000),
    ("template-process", 20_000),
];
/// Longest time of one process, so that they end together.
const SLICE_SECONDS: f64 = 12.0;

/// One line of the table.
#[derive(Default, Serialize, Deserialize)]
struct Line {
    /// Inputs met, those of earlier campaigns included.
    inputs: u64,
    /// Inputs that are asked for.
    #[serde(default)]
    goal: u64,
    /// Inputs a second in one process.
    #[serde(default)]
    rate: f64,
    /// Seconds of processes.
    #[serde(default)]
    seconds: f64,
    /// Reports.
    #[serde(default)]
    findings: Vec<String>,
}

type Table = BTreeMap<String, Line>;

/// Runs a campaign of `options.campaign` seconds.
pub(crate) fn run(options: &Options) -> ExitCode {
    let started = Instant::now();
    let total = options.campaign.unwrap_or(0) as f64;
    let done = options.done.as_ref().map(|path| {
        let text = std::fs::read(path).expect("the table of earlier campaigns can be read");
        serde_json::from_slice(&text).expect("it is one")
    });
    let mut table: Table = done.unwrap_or_default();
    table.values_mut().for_each(|line| line.findings.clear());
    // Seeds of all slices differ.
    let mut seed = options.seed.wrapping_mul(100_000);
    let mut slice = |name: &str, seconds: f64| {
        seed += 1;
        (name.to_owned(), seed, seconds.round().max(1.0) as u64)
    };
    let probe = (total / 60.0).clamp(1.0, 3.0);
    let probes = options.targets.iter().map(|name| slice(name, probe)).collect();
    let mut rates: BTreeMap<String, f64> = BTreeMap::new();
    run_all(probes, options.jobs, Some, |ended, seconds| {
        rates.insert(ended.name.clone(), ended.inputs as f64 / seconds);
        enter(&mut table, ended, seconds);
    });
    let left = || total - started.elapsed().as_secs_f64();
    let mut processors = left().max(0.0) * options.jobs as f64;
    let mut wanted: Vec<(f64, &String)> = Vec::new();
    for name in &options.targets {
        let rate = rates[name].max(0.01);
        let line = table.entry(name.clone()).or_default();
        let of_systems = INPUTS_OF_SYSTEMS.iter().find(|(other, _)| other == name);
        let is_fast = rate > FAST_RATE && !FOLDERS.contains(&name.as_str());
        let parser = if is_fast { INPUTS_FAST } else { INPUTS_SLOW };
        line.goal = of_systems.map_or(parser, |(_, goal)| *goal);
        // A tenth more: rates fall when all processors are busy.
        wanted.push((1.1 * line.goal.saturating_sub(line.inputs) as f64 / rate, name));
    }
    wanted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut slices = Vec::new();
    for (seconds, name) in wanted {
        let given = seconds.min(processors);
        processors -= given;
        let count = (given / SLICE_SECONDS).ceil();
        slices.extend((0..count as u64).map(|_| slice(name, given / count)));
    }
    // Nothing begins that would not end in time.
    let in_time = |seconds: u64| {
        let seconds = (left() as u64).min(seconds);
        (seconds > 0).then_some(seconds)
    };
    run_all(slices, options.jobs, in_time, |ended, seconds| enter(&mut table, ended, seconds));
    let findings: usize = table.values().map(|line| line.findings.len()).sum();
    for (name, Line { inputs, goal, rate, seconds, .. }) in &table {
        say(&format!("{name:<18} {inputs:>10} of {goal:>9}, {rate:>9.0}/s, {seconds:>7.0} s"));
    }
    say(&format!("{findings} findings, {:.0} s", started.elapsed().as_secs_f64()));
    let text = serde_json::to_string_pretty(&table).expect("a table becomes text");
    match &options.table {
        Some(path) => std::fs::write(path, text).expect("the table can be written"),
        None => say(&text),
    }
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn enter(table: &mut Table, ended: Ended, seconds: f64) {
    let line = table.entry(ended.name).or_default();
    line.inputs += ended.inputs;
    line.seconds += seconds;
    line.rate = ended.inputs as f64 / seconds;
    line.findings.extend(ended.finding);
}

//! `flashmoe bench`: how fast a model runs here, and how close to what the machine's bandwidths allow.
//!
//! Each combination of settings is an arm: planned, loaded and measured for itself. One arm is loaded
//! once and its repetitions follow each other. Several arms do not fit side by side, so every
//! repetition loads each arm in turn, which interleaves them against drift of the machine. After every
//! load each test runs once before anything of its kind (`cold`), then the counted runs follow (`warm`): all of
//! them for a single arm, one per load for several. The tests of one depth come together: its context is
//! computed once, and every test begins from a snapshot of it; a deeper context goes on from there.
//!
//! Tokens are random, as in llama-bench, and those of tests never repeat; the same seed feeds every arm the same
//! tokens, so the `check` column (a hash over all logits that were looked at) must agree between arms
//! that differ only in where bytes come from. Rows go to standard output, everything else to standard
//! error. Settings of a sweep that do not fit the memory get a row that says so, and the others are measured.

mod measure;
mod row;

use std::io::Write;

use anyhow::Result;

use super::table::{self, Row};
use crate::arguments::{BenchArguments, ByteSize, ModelArguments, OutputChoice};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::machine::reset_peak;
use crate::plan::{Plan, Seats};
use crate::progress::{complain, say};
use crate::speed::Speeds;

use measure::{Bench, Sample, Test};

/// One combination of settings.
struct Arm {
    plan: Plan,
    speeds: Speeds,
    /// By test: cold samples, warm samples.
    samples: Vec<[Vec<Sample>; 2]>,
}

pub(crate) fn bench(arguments: &BenchArguments, out: &mut dyn Write) -> Result<()> {
    let wanted = Wanted {
        prompt: &arguments.prompt,
        generate: &arguments.generate,
        depth: &arguments.depth,
        repetitions: arguments.repetitions,
        seed: arguments.seed,
        accept: &arguments.accept,
        phases: arguments.phases,
    };
    if wanted.tests().is_empty() {
        let reason = "nothing to measure: -p and -n are both 0";
        return Err(Failure::usage(reason).into());
    }
    let combinations = arguments.combinations(wanted.context());
    if arguments.stages.is_some() && combinations.len() > 1 {
        let count = combinations.len();
        let reason = format!(
            "--stages with {count} combinations of settings: the stages end with the first of them; one at a time"
        );
        return Err(Failure::usage(reason).into());
    }
    let measured = measure(&combinations, &wanted)?;
    measured.print(arguments.form.choice(), arguments.wide, out)
}

/// What is measured of every combination of settings.
pub(super) struct Wanted<'a> {
    /// Tokens of the prefill tests; 0 for none.
    pub(super) prompt: &'a [usize],
    /// Tokens of the decode tests; 0 for none.
    pub(super) generate: &'a [usize],
    /// Tokens in the context before.
    pub(super) depth: &'a [usize],
    /// After the one that is cold.
    pub(super) repetitions: usize,
    /// Of the tokens.
    pub(super) seed: u64,
    /// Shares of drafts that are right; empty for single steps.
    pub(super) accept: &'a [f64],
    /// Rows say where the time of steps went.
    pub(super) phases: bool,
}

impl Wanted<'_> {
    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &depth in self.depth {
            for (list, decode) in [(self.prompt, false), (self.generate, true)] {
                let wanted = list.iter().filter(|&&tokens| tokens > 0);
                tests.extend(wanted.map(|&tokens| Test { decode, tokens, depth }));
            }
        }
        tests
    }

    /// Tokens of context that the tests need.
    pub(super) fn context(&self) -> usize {
        self.tests().iter().map(|test| test.depth + test.tokens).max().unwrap_or(1) + 1
    }
}

/// Rows of figures, and what they have in common.
pub(super) struct Measured {
    rows: Vec<Row>,
    caption: String,
    phases: bool,
}

impl Measured {
    /// Writes the rows; `wide` with all columns.
    pub(super) fn print(&self, form: OutputChoice, wide: bool, out: &mut dyn Write) -> Result<()> {
        let hidden = row::hidden(&self.rows, wide, self.phases);
        table::print(form, &self.rows, &hidden, out).map_err(Failure::io)?;
        if form == OutputChoice::Md {
            writeln!(out, "\n{}", self.caption).map_err(Failure::io)?;
        }
        Ok(())
    }
}

/// Measures every one of `combinations`.
pub(super) fn measure(combinations: &[ModelArguments], wanted: &Wanted<'_>) -> Result<Measured> {
    let tests = wanted.tests();
    let deep = tests.iter().any(|test| test.depth > 0);
    let several = combinations.len() > 1;
    let (mut arms, mut unfit) = (Vec::new(), Vec::new());
    for combination in combinations {
        let arm = match Arm::prepare(combination, tests.len(), deep) {
            // The others of a sweep are measured all the same.
            Err(error) if several && is_short(&error) => {
                complain(&format!("flashmoe: {}: {error:#}", row::setting(combination)));
                unfit.push((combination, error));
                continue;
            }
            arm => arm?,
        };
        if let (true, Some(device)) = (wanted.phases, arm.plan.device()) {
            let name = &device.info.name;
            let problem = format!("--phases: {name} runs a step as one piece; use --device cpu");
            return Err(Failure::usage(problem).into());
        }
        arms.push(arm);
    }
    if arms.is_empty()
        && let Some((_, error)) = unfit.pop()
    {
        return Err(error);
    }
    run_rounds(&mut arms, &tests, wanted)?;
    let mut rows: Vec<_> = arms.iter().flat_map(|arm| rows_of(arm, &tests, wanted)).collect();
    let unfit = unfit.iter().map(|(combination, _)| row::unfit(combination, &rows));
    let unfit: Vec<_> = unfit.collect();
    rows.extend(unfit);
    let caption = arms.first().map_or_else(String::new, |arm| row::caption(&arm.plan));
    Ok(Measured { rows, caption, phases: wanted.phases })
}

/// Runs the tests of every arm; several arms are interleaved round by round, so that what else the machine does meets
/// all of them.
fn run_rounds(arms: &mut [Arm], tests: &[Test], wanted: &Wanted<'_>) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let count = arms.len();
    let (rounds, runs) = if count == 1 {
        (1, wanted.repetitions)
    } else {
        (wanted.repetitions.max(1), wanted.repetitions.min(1))
    };
    for round in 0..rounds {
        for (index, arm) in arms.iter_mut().enumerate() {
            if count * rounds > 1 {
                say(&format!("settings {} of {count}, round {} of {rounds}", index + 1, round + 1));
            }
            say("loading");
            reset_peak();
            let mut loaded = arm.plan.load()?;
            let (seed, accept) = (wanted.seed, wanted.accept);
            let mut bench = Bench::new(&arm.plan, &mut loaded, &interrupt, seed, accept);
            let mut measured = tests.iter().zip(&mut arm.samples).collect::<Vec<_>>();
            for same_depth in measured.chunk_by_mut(|a, b| a.0.depth == b.0.depth) {
                for run in 0..=runs {
                    for (test, samples) in &mut *same_depth {
                        let number = (round * (runs + 1) + run) as u64;
                        let sample = bench.run(test, number)?;
                        say(&format!("{}: {:.2} tok/s", test.name(run == 0), sample.rate()));
                        samples[usize::from(run > 0)].push(sample);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The rows of an arm: of each test its first run, and the others.
fn rows_of(arm: &Arm, tests: &[Test], wanted: &Wanted<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (test, [cold, warm]) in tests.iter().zip(&arm.samples) {
        for (samples, cold) in [(cold, true), (warm, false)] {
            if samples.is_empty() {
                continue;
            }
            let mut name = test.name(cold);
            if test.decode && !wanted.accept.is_empty() {
                let rates = wanted.accept.iter().map(f64::to_string);
                let rates = rates.collect::<Vec<_>>().join(" ");
                name.push_str(&format!(", drafts forced to {rates}"));
            }
            rows.push(row::row(&arm.plan, &arm.speeds, name, samples));
        }
    }
    rows
}

/// Whether settings ask for more memory than there is, or than they themselves allow.
fn is_short(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Memory(_)))
}

impl Arm {
    /// Plans the arm and measures the bandwidths that bound it, while nothing is loaded.
    /// `deep` where a context is kept for several tests.
    fn prepare(arguments: &ModelArguments, tests: usize, deep: bool) -> Result<Self> {
        let seats = if deep { Seats::CONVERSATION } else { Seats::MEASUREMENT };
        let plan = Plan::resolve(arguments, seats)?;
        plan.approximations().iter().for_each(|line| say(line));
        let speeds = Speeds::measure(&plan)?;
        say(&format!(
            "storage {}: {} of memory, {} slots, disk {:.2} GB/s, memory {:.1} GB/s",
            row::mode(&plan),
            ByteSize(plan.budget),
            plan.slots.as_ref().map_or(0, store::cache::StorePlan::slots),
            speeds.disk / 1e9,
            speeds.memory / 1e9,
        ));
        let samples = (0..tests).map(|_| [Vec::new(), Vec::new()]).collect();
        Ok(Self { plan, speeds, samples })
    }
}

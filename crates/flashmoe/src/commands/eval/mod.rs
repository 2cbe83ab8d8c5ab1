//! `flashmoe eval`: how good a model's answers are, and how far a setting is from the model as trained.
//!
//! Tasks (`tasks.rs`) are asked greedily and their answers checked (`check.rs`); text (`text.rs`) gives
//! perplexity and, beside a reference, divergence. Formats of both files: models/demo/README.md. While
//! tasks are answered, the routing of the answers can be recorded.

mod check;
mod divergence;
mod fixed;
mod item;
mod report;
mod tasks;
mod text;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use ::text::Language;
use ::text::constraint::Grammars;
use anyhow::{Context, Result};
use engine::routing::Recorder;

use crate::arguments::{ByteSize, EvalArguments, EvalFormat, KvTypeChoice, RoutingChoice};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Named;
use crate::plan::{Plan, Seats};
use crate::progress::say;
use report::Report;
use tasks::Asker;

pub(super) use fixed::{FixedAnswers, ask_fixed, score_fixed};

pub(crate) fn eval(arguments: &EvalArguments, out: &mut dyn Write) -> Result<()> {
    let items = match &arguments.tasks {
        Some(path) => tasks::read(path, arguments.only.as_deref())?,
        None => Vec::new(),
    };
    if arguments.text.is_some() || arguments.trace.is_some() || arguments.lookahead {
        let why = "--text has no answers, and --trace and --lookahead look at tokens, which drafts may be none";
        arguments.model.refuse_drafts(why)?;
    }
    let (plan, reference) = plans(arguments)?;
    let language = plan.language()?;
    let documents = match &arguments.text {
        Some(path) => text::read(path, &language, plan.backend.context)?,
        None => Vec::new(),
    };
    // Files are made before the work, so that a wrong path costs nothing.
    let mut answers = arguments.answers.as_deref().map(create).transpose()?;
    let mut trace = arguments.trace.as_deref().map(create).transpose()?;
    let interrupt = Interrupt::listen()?;
    let recorder = recorder(arguments, &plan);
    let routing = match &recorder {
        Some(recorder) => plan.routing().recorded_by(recorder.clone()),
        None => plan.routing(),
    };
    let mut loaded = plan.load_with(routing)?;
    let mut report = Report::default();
    if !items.is_empty() {
        let recorder = recorder.as_ref();
        let (language, interrupt) = (&language, &interrupt);
        let max_tokens = arguments.max_tokens;
        let grammars = arguments.watch_calls.then(|| grammars(language, &plan)).transpose()?;
        let mut asker = Asker { plan: &plan, language, interrupt, max_tokens, recorder, grammars };
        let (engine, answers) = (&mut loaded.engine, answers.as_mut());
        report.tasks = Some(asker.ask_all(&items, engine, answers, arguments.failures)?);
    }
    if let Some(recorder) = &recorder {
        recorder.listen(false);
        report.recalls = recorder.recalls();
    }
    if let (Some(recorder), Some(file)) = (&recorder, &mut trace) {
        let mut trace = recorder.trace(plan.config.moe.experts, plan.backend.top_k, 0);
        trace.fingerprint = plan.checkpoint.fingerprint();
        trace.write(file).map_err(super::trace::failure)?;
        file.flush().map_err(Failure::io)?;
    }
    let stopped = report.tasks.as_ref().is_some_and(|outcome| outcome.interrupted);
    if !documents.is_empty() && !stopped {
        let mut other = reference.as_ref().map(Plan::load).transpose()?;
        let chunk = plan.backend.batch_tokens;
        let chunk = reference.as_ref().map_or(chunk, |other| chunk.min(other.backend.batch_tokens));
        let engines = (&mut loaded.engine, other.as_mut().map(|other| &mut other.engine));
        report.text = Some(text::measure(&documents, engines, chunk, &interrupt)?);
    }
    let text = match arguments.format() {
        EvalFormat::Markdown => report.markdown(),
        EvalFormat::Json => format!("{}\n", report.json()),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    if stopped || report.text.as_ref().is_some_and(|outcome| outcome.interrupted) {
        let error = anyhow::Error::from(Failure::Interrupted);
        return Err(error.context("the figures are of what was asked so far"));
    }
    Ok(())
}

/// The plan of the model, and of the reference when there is one.
fn plans(arguments: &EvalArguments) -> Result<(Plan, Option<Plan>)> {
    let plan = Plan::resolve(&arguments.model, Seats::MEASUREMENT)?;
    for line in plan.approximations() {
        say(&line);
    }
    let Some(folder) = &arguments.reference else { return Ok((plan, None)) };
    let mut model = arguments.model.clone();
    model.memory = Some(ByteSize(plan.budget / 2));
    let plan = Plan::resolve(&model, Seats::MEASUREMENT)?;
    model.model.clone_from(folder);
    model.context = Some(plan.backend.context as u32);
    model.experts_per_token = None;
    model.kv_type = Some(KvTypeChoice::F32);
    model.routing = RoutingChoice::Model;
    let reference = Plan::resolve(&model, Seats::MEASUREMENT).context("the reference")?;
    let (found, expected) = (reference.config.vocabulary, plan.config.vocabulary);
    if found != expected {
        let folder = folder.display();
        let reason = format!("{folder}: a vocabulary of {found}, the model has {expected}");
        return Err(Failure::usage(reason).into());
    }
    Ok((plan, Some(reference)))
}

/// What makes grammars of the tools that questions offer.
fn grammars(language: &Language, plan: &Plan) -> Result<Arc<Grammars>> {
    let (ends, vocabulary) = (&language.end_tokens, plan.config.vocabulary);
    let grammars = Grammars::new(&language.tokenizer, language.dialect, ends, vocabulary);
    Ok(Arc::new(grammars.map_err(|error| Failure::model(error.into()))?))
}

/// A recorder that hears nothing yet, if the routing is wanted.
fn recorder(arguments: &EvalArguments, plan: &Plan) -> Option<Recorder> {
    let recorder = || Recorder::new(plan.config.layers.len());
    let recorder = match (arguments.lookahead, &arguments.trace) {
        (true, _) => recorder().looking_ahead(),
        (false, Some(_)) => recorder(),
        (false, None) => return None,
    };
    recorder.listen(false);
    Some(recorder)
}

/// Makes a file, which must not exist.
pub(super) fn create(path: &Path) -> Result<BufWriter<Named<File>>> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let file = file.map_err(Failure::io).with_context(|| path.display().to_string())?;
    Ok(BufWriter::new(Named::new(path.display(), file)))
}

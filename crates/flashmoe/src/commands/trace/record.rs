//! `flashmoe trace record`: which experts each token of a prompt and of its greedy answer chose.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use engine::backend::Run;
use engine::engine::{check_finite, end_tokens};
use engine::routing::Recorder;
use text::{Message, RenderOptions, Role};

use super::failure;
use crate::arguments::TraceRecordArguments;
use crate::commands::score::{arg_max, read_ids};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Named;
use crate::plan::{Plan, Seats};
use crate::progress::{Progress, Unit, say};

pub(super) fn record(arguments: &TraceRecordArguments, out: &mut dyn Write) -> Result<()> {
    let shown = arguments.out.display();
    let file = OpenOptions::new().write(true).create_new(true).open(&arguments.out);
    let file = file.map_err(Failure::io).with_context(|| shown.to_string())?;
    let written = write(arguments, file);
    if written.is_err() {
        // The empty file was made only now; the failure is what to report.
        let _ = std::fs::remove_file(&arguments.out);
    }
    let (tokens, layers) = written?;
    writeln!(out, "{shown}: {tokens} tokens of {layers} layers").map_err(Failure::io)?;
    Ok(())
}

/// Gives the tokens and layers recorded.
fn write(arguments: &TraceRecordArguments, file: std::fs::File) -> Result<(usize, usize)> {
    arguments.model.refuse_drafts("a trace has the choices of tokens, and drafts may be none")?;
    let plan = Plan::resolve(&arguments.model, Seats::MEASUREMENT)?;
    if !plan.devices.is_empty() {
        let reason =
            "trace record runs on the processor, which sees every choice: add --device cpu";
        return Err(Failure::usage(reason).into());
    }
    let (prompt, end_tokens) = prompt(arguments, &plan)?;
    let needed = prompt.len() + arguments.generate;
    let context = plan.backend.context;
    if prompt.is_empty() || needed > context {
        let reason = format!(
            "a prompt of {} tokens and {} more to generate; 1 to {context} in all fit the context",
            prompt.len(),
            arguments.generate
        );
        return Err(Failure::usage(reason).into());
    }
    plan.approximations().iter().for_each(|line| say(line));
    let interrupt = Interrupt::listen()?;
    let recorder = Recorder::new(plan.config.layers.len());
    let mut loaded = plan.load_with(plan.routing().recorded_by(recorder.clone()))?;
    let engine = &mut loaded.engine;
    let sequence = engine.create_sequence().map_err(Failure::engine)?;
    let mut bar = Progress::new("recording", Unit::Tokens, needed as f64);
    let mut last = 0;
    engine
        .prefill(
            sequence,
            &prompt,
            interrupt.flag(),
            &mut |progress| bar.set(progress.tokens),
            &mut |_, _, length| {
                last = length - 1;
                Ok(())
            },
        )
        .map_err(Failure::engine)?;
    for step in 0..arguments.generate {
        let logits = engine.logits(&[last]).map_err(Failure::engine)?;
        check_finite(logits, plan.config.vocabulary, prompt.len() + step - 1)
            .map_err(Failure::engine)?;
        let token = arg_max(logits);
        if end_tokens.contains(&token) {
            break;
        }
        engine
            .forward(&[Run { sequence, tokens: &[token] }], interrupt.flag())
            .map_err(Failure::engine)?;
        last = 0;
        bar.set((prompt.len() + step) as f64);
    }
    bar.finish();
    let mut trace = recorder.trace(plan.config.moe.experts, plan.backend.top_k, prompt.len());
    trace.fingerprint = plan.checkpoint.fingerprint();
    let mut file = BufWriter::new(Named::new(arguments.out.display(), file));
    trace.write(&mut file).map_err(failure)?;
    file.flush().map_err(Failure::io)?;
    Ok((trace.tokens(), trace.layers))
}

/// The tokens to run, and those that end the answer.
fn prompt(arguments: &TraceRecordArguments, plan: &Plan) -> Result<(Vec<u32>, Vec<u32>)> {
    let text = match (&arguments.ids, &arguments.prompt) {
        (Some(path), _) => {
            let ends = end_tokens(&plan.checkpoint).map_err(Failure::engine)?;
            return Ok((read_ids(path)?, ends));
        }
        (None, Some(text)) => text,
        (None, None) => return Err(Failure::usage("give a prompt or --ids").into()),
    };
    let language = plan.language()?;
    let ids = match &language.template {
        Some(template) => {
            let messages = [Message::new(Role::User, text.as_str())];
            let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
            let prompt = language.render(template, &messages, &[], &options);
            prompt.map_err(|error| Failure::Run(error.into()))?.tokens
        }
        None => {
            let ids = language.tokenizer.encode(text);
            ids.map_err(|error| Failure::Run(error.into()))?
        }
    };
    Ok((ids, language.end_tokens))
}

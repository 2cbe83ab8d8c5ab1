//! `flashmoe run`: one streamed answer, or a chat when no prompt is given.

use std::io::Write;

use anyhow::Result;
use engine::generate::Finish;
use serde_json::json;
use text::{Message, OnFull, Role};

use super::chat;
use crate::account::Account;
use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::progress::say;
use crate::prompt;
use crate::sampling::sampling_options;
use crate::terminal::{Answered, Terminal};

pub(crate) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<()> {
    if arguments.raw && arguments.on_full == OnFull::DropOldest {
        let reason = "--on-full drop-oldest needs turns; a prompt with --raw has none";
        return Err(Failure::usage(reason).into());
    }
    let prompt = prompt::prompt(arguments.prompt.as_deref())?;
    if prompt.is_none() && arguments.json {
        return Err(Failure::usage("--json needs a prompt: a chat has no one answer").into());
    }
    let system = arguments.system.iter().map(|text| Message::new(Role::System, text));
    let asked = prompt.iter().map(|text| Message::new(Role::User, text));
    let messages: Vec<_> = system.chain(asked).collect();
    let mut terminal = Terminal::open(arguments, prompt.as_deref(), &messages)?;
    match prompt {
        Some(prompt) => one_answer(&mut terminal, arguments, &prompt, &messages, out),
        None => chat::chat(&mut terminal, arguments, out),
    }
}

fn one_answer(
    terminal: &mut Terminal,
    arguments: &RunArguments,
    prompt: &str,
    messages: &[Message],
    out: &mut dyn Write,
) -> Result<()> {
    let account = Account::start(&terminal.loaded.engine);
    let think = arguments.think;
    let mut nowhere = std::io::sink();
    let shown: &mut dyn Write = if arguments.json { &mut nowhere } else { out };
    let answered = terminal.answer(arguments, think, messages, Some(prompt), shown)?;
    if arguments.json {
        let seed = sampling_options(&arguments.sampling, &terminal.plan.checkpoint)?.seed;
        let object = as_json(terminal, &answered, seed);
        writeln!(out, "{object}").map_err(Failure::io)?;
    }
    if arguments.stats {
        say(&account.lines(&terminal.loaded.engine, &answered.report));
    }
    if let Some(cut) = answered.cut(terminal.plan.backend.context) {
        say(&cut);
    }
    match answered.report.finish {
        Some(_) => Ok(()),
        None => Err(Failure::Interrupted.into()),
    }
}

fn as_json(terminal: &Terminal, answered: &Answered, seed: u64) -> serde_json::Value {
    let Answered { message, report, .. } = answered;
    let finish = match report.finish {
        Some(Finish::End) => "end",
        Some(Finish::Length | Finish::Full) => "length",
        Some(Finish::Stopped) => "stop",
        None => "interrupted",
    };
    json!({
        "model": terminal.plan.arguments.model,
        "content": message.content,
        "thinking": message.reasoning,
        "finish": finish,
        "prompt_tokens": report.prompt_tokens + report.reused_tokens,
        "answer_tokens": report.answer_tokens,
        "seed": seed,
        "prefill_seconds": report.prefill_time.as_secs_f64(),
        "decode_seconds": report.decode_time.as_secs_f64(),
        "approximations": terminal.plan.approximations(),
    })
}

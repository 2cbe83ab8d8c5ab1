//! `flashmoe run`: one streamed answer, or a chat when no prompt is given.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use engine::text::{Message, Role};

use super::chat;
use crate::account::Account;
use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::progress::say;
use crate::terminal::Terminal;

/// Most bytes of a prompt, as of a request's body.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

pub(crate) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<()> {
    let prompt = match arguments.prompt.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().take(PROMPT_BYTES_MAX + 1).read_to_string(&mut text);
            read.map_err(Failure::io).context("cannot read the prompt from standard input")?;
            if text.len() as u64 > PROMPT_BYTES_MAX {
                let reason = format!(
                    "the prompt on standard input has more than {PROMPT_BYTES_MAX} bytes; no context holds that"
                );
                return Err(Failure::usage(reason).into());
            }
            Some(text)
        }
        other => other.map(str::to_owned),
    };
    let mut terminal = Terminal::open(arguments)?;
    match prompt {
        Some(prompt) => one_answer(&mut terminal, arguments, &prompt, out),
        None => chat::chat(&mut terminal, arguments, out),
    }
}

fn one_answer(
    terminal: &mut Terminal,
    arguments: &RunArguments,
    prompt: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let system = arguments.system.iter().map(|text| Message::new(Role::System, text));
    let messages: Vec<_> = system.chain([Message::new(Role::User, prompt)]).collect();
    let account = Account::start(&terminal.loaded.engine);
    let think = arguments.think;
    let (_, report) = terminal.answer(arguments, think, &messages, Some(prompt), out)?;
    if arguments.stats {
        say(&account.line(&terminal.loaded.engine, &report));
    }
    match report.finish {
        Some(_) => Ok(()),
        None => Err(Failure::Interrupted.into()),
    }
}

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

pub(crate) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<()> {
    let prompt = match arguments.prompt.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(Failure::io).context("cannot read the prompt from standard input")?;
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

//! `flashmoe run` without a prompt: a conversation on the terminal.
//!
//! A line that ends in a backslash goes on in the next. `/help` lists the commands. Ctrl-C stops the
//! answer, not the program; twice ends it.

use std::io::{BufRead, Write};

use anyhow::Result;
use engine::text::{Message, Role};

use super::run::Terminal;
use crate::account::Account;
use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::progress::say;

const HELP: &str = "\
/help            this list
/stats           print hits, bytes read and speed after each answer, or stop doing so
/regen           answer the last message again
/system [TEXT]   set or clear the system prompt; starts over
/save FILE       write the conversation to FILE as JSON
/quit            leave (so does the end of input)
A line ending in \\ continues in the next. Ctrl-C stops the answer.";

pub(crate) fn chat(
    terminal: &mut Terminal,
    arguments: &RunArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let mut chat = Chat {
        messages: arguments.system.iter().map(|text| Message::new(Role::System, text)).collect(),
        stats: arguments.stats,
    };
    let input = std::io::stdin();
    loop {
        prompt("> ");
        let Some(line) = read_message(&mut input.lock())? else { return Ok(()) };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match line.strip_prefix('/') {
            Some(command) => {
                if !chat.command(terminal, arguments, command, out)? {
                    return Ok(());
                }
            }
            None => {
                chat.messages.push(Message::new(Role::User, line));
                chat.answer(terminal, arguments, out)?;
            }
        }
    }
}

/// The conversation so far.
struct Chat {
    messages: Vec<Message>,
    stats: bool,
}

impl Chat {
    fn answer(
        &mut self,
        terminal: &mut Terminal,
        arguments: &RunArguments,
        out: &mut dyn Write,
    ) -> Result<()> {
        let account = Account::start(&terminal.loaded.experts);
        match terminal.answer(arguments, &self.messages, None, out) {
            Ok((message, report)) => {
                if report.finish.is_none() {
                    say("stopped");
                }
                self.messages.push(message);
                if self.stats {
                    say(&account.line(&terminal.loaded.experts, &report));
                }
                Ok(())
            }
            // A full context or a failed read ends the answer, not the conversation.
            Err(error)
                if matches!(error.downcast_ref(), Some(Failure::Run(_) | Failure::Io(_))) =>
            {
                self.messages.pop();
                say(&format!("flashmoe: {error:#}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Runs a command; false ends the chat.
    fn command(
        &mut self,
        terminal: &mut Terminal,
        arguments: &RunArguments,
        command: &str,
        out: &mut dyn Write,
    ) -> Result<bool> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" => return Ok(false),
            "help" => say(HELP),
            "stats" => {
                self.stats = !self.stats;
                say(if self.stats { "statistics on" } else { "statistics off" });
            }
            "regen" => {
                if self.messages.last().is_some_and(|last| last.role == Role::Assistant) {
                    self.messages.pop();
                }
                match self.messages.last() {
                    Some(last) if last.role == Role::User => {
                        self.answer(terminal, arguments, out)?;
                    }
                    _ => say("nothing to answer again"),
                }
            }
            "system" => {
                self.messages.clear();
                if rest.is_empty() {
                    say("system prompt cleared, conversation started over");
                } else {
                    self.messages.push(Message::new(Role::System, rest));
                    say("system prompt set, conversation started over");
                }
            }
            "save" if rest.is_empty() => say("/save needs a file name"),
            "save" => match self.save(rest) {
                Ok(()) => say(&format!("saved to {rest}")),
                Err(error) => say(&format!("cannot save to {rest}: {error}")),
            },
            _ => say(&format!("/{name} is not a command; /help lists them")),
        }
        Ok(true)
    }

    fn save(&self, path: &str) -> std::io::Result<()> {
        let messages: Vec<serde_json::Value> = self
            .messages
            .iter()
            .map(|message| {
                let mut object = serde_json::json!({
                    "role": message.role.name(),
                    "content": message.content,
                });
                if let Some(reasoning) = &message.reasoning {
                    object["reasoning_content"] = reasoning.as_str().into();
                }
                object
            })
            .collect();
        std::fs::write(path, serde_json::to_vec_pretty(&messages)?)
    }
}

/// Lines up to the first that does not end in a backslash; `None` at the end of input.
fn read_message(input: &mut dyn BufRead) -> Result<Option<String>> {
    let mut message = String::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).map_err(Failure::io)? == 0 {
            return Ok((!message.is_empty()).then_some(message));
        }
        match line.trim_end_matches(['\n', '\r']).strip_suffix('\\') {
            Some(part) => {
                message.push_str(part);
                message.push('\n');
                prompt(". ");
            }
            None => {
                message.push_str(line.trim_end_matches(['\n', '\r']));
                return Ok(Some(message));
            }
        }
    }
}

/// Shows a prompt on standard error: standard output carries answers only.
fn prompt(text: &str) {
    let _ = write!(std::io::stderr(), "{text}");
}

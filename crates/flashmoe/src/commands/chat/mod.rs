//! `flashmoe run` without a prompt: a conversation on the terminal.
//!
//! `/help` lists the commands. Ctrl-C stops the answer, not the program; at the prompt it gives up the
//! line, twice in a row it leaves.

mod input;

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use store::io::platform::{Links, read_regular};
use text::{Message, Role};

use crate::account::Account;
use crate::arguments::{ByteSize, RunArguments};
use crate::failure::{Failure, in_words};
use crate::progress::{complain, say};
use crate::terminal::Terminal;
use input::{Input, Typed};

/// Longest file of a conversation.
const SAVED_BYTES_MAX: u64 = 64 << 20;

const HELP: &str = "\
/help            this list
/stats           print hits, bytes read and speed after each answer, or stop doing so
/regen           answer the last message again
/undo            take back the last message and its answer
/temp [T]        how freely tokens are drawn, 0 is greedy; without a number, as at the start
/think [on|off]  ask for a thinking block or for none; without a word, as the model's template has it
/ctx             how much of the context is used
/system [TEXT]   set or clear the system prompt; starts over
/save FILE       write the conversation to FILE as JSON
/load FILE       go on with a conversation that /save wrote
/bye             leave (so do /quit and the end of input)
A line ending in \\ continues in the next; \"\"\" begins and ends a message of several lines. Tab completes
commands. Ctrl-C stops the answer.";

pub(crate) fn chat(
    terminal: &mut Terminal,
    arguments: &RunArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let mut chat = Chat {
        messages: arguments.system.iter().map(|text| Message::new(Role::System, text)).collect(),
        stats: arguments.stats,
        think: arguments.think,
    };
    let mut input = Input::open()?;
    if input.is_terminal() {
        banner(terminal);
    }
    let result = converse(&mut chat, &mut input, terminal, arguments, out);
    input.close();
    result
}

/// The highest temperature that means anything.
const TEMPERATURE_MAX: f32 = 100.0;

/// What is talked to, and how to get on.
fn banner(terminal: &Terminal) {
    let plan = &terminal.plan;
    let name = crate::models::short_name(&plan.arguments.model);
    let device = plan.device.as_ref().map_or("the processor", |device| &device.info.name);
    let (context, memory) = (plan.backend.context, ByteSize(plan.total_bytes()));
    say(&format!("{name} · context of {context} tokens · {memory} of memory · on {device}"));
    say("/help lists the commands, Ctrl-C stops an answer, /bye leaves");
}

fn converse(
    chat: &mut Chat,
    input: &mut Input,
    terminal: &mut Terminal,
    arguments: &RunArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let mut interrupted = false;
    loop {
        let line = match input.read()? {
            Typed::Message(line) => line,
            Typed::Interrupted if !interrupted => {
                interrupted = true;
                say("Ctrl-C again or /quit leaves");
                continue;
            }
            Typed::Interrupted | Typed::End => return Ok(()),
        };
        interrupted = false;
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
    /// What the template is asked about thinking.
    think: Option<bool>,
}

impl Chat {
    fn answer(
        &mut self,
        terminal: &mut Terminal,
        arguments: &RunArguments,
        out: &mut dyn Write,
    ) -> Result<()> {
        let account = Account::start(&terminal.loaded.engine);
        match terminal.answer(arguments, self.think, &self.messages, None, out) {
            Ok((message, report)) => {
                if report.finish.is_none() {
                    say("stopped");
                }
                self.messages.push(message);
                if self.stats {
                    say(&account.line(&terminal.loaded.engine, &report));
                }
                Ok(())
            }
            // A full context or a failed read ends the answer, not the conversation.
            Err(error)
                if matches!(error.downcast_ref(), Some(Failure::Run(_) | Failure::Io(_))) =>
            {
                self.messages.pop();
                complain(&format!("flashmoe: {}", in_words(&error)));
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
        match name.to_ascii_lowercase().as_str() {
            "quit" | "exit" | "bye" => return Ok(false),
            "help" | "?" => HELP.lines().for_each(say),
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
            "undo" => match self.messages.iter().rposition(|message| message.role == Role::User) {
                Some(last) => {
                    self.messages.truncate(last);
                    say("the last message is taken back");
                }
                None => say("nothing to take back"),
            },
            "think" => match rest {
                "" => self.set_thinking(None, "thinking as the model's template has it"),
                "on" => self.set_thinking(Some(true), "thinking on"),
                "off" => self.set_thinking(Some(false), "thinking off"),
                _ => say("/think knows on and off"),
            },
            "temp" => match (rest, rest.parse::<f32>()) {
                ("", _) => {
                    terminal.temperature = None;
                    say("temperature as at the start");
                }
                (_, Ok(value)) if (0.0..=TEMPERATURE_MAX).contains(&value) => {
                    terminal.temperature = Some(value);
                    say(&format!("temperature {value}"));
                }
                _ => say("/temp takes a number from 0 to 100"),
            },
            "ctx" => match terminal.prompt_tokens(self.think, &self.messages) {
                Ok(used) => say(&format!(
                    "the next answer begins after {used} of {} tokens",
                    terminal.plan.backend.context
                )),
                Err(error) => say(&in_words(&error)),
            },
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
            "load" if rest.is_empty() => say("/load needs a file name"),
            "load" => match load(rest) {
                Ok(messages) => {
                    say(&format!("{} messages loaded from {rest}", messages.len()));
                    self.messages = messages;
                }
                Err(error) => say(&format!("cannot load {rest}: {}", in_words(&error))),
            },
            _ => say(&format!("/{name} is not a command; /help lists them")),
        }
        Ok(true)
    }

    fn set_thinking(&mut self, think: Option<bool>, told: &str) {
        self.think = think;
        say(told);
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

/// Reads a conversation that `/save` wrote.
fn load(path: &str) -> Result<Vec<Message>> {
    let bytes = read_regular(Path::new(path), Links::Followed, SAVED_BYTES_MAX)?;
    let values: Vec<serde_json::Value> = serde_json::from_slice(&bytes)?;
    Ok(Message::from_openai(&values)?)
}

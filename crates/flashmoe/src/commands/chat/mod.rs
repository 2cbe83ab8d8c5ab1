//! `flashmoe run` without a prompt: a conversation on the terminal.
//!
//! `/help` lists the commands. Ctrl-C stops the answer, not the program; at the prompt it gives up the
//! line, twice in a row it leaves.

mod commands;
mod conversation;
mod input;

use std::io::{IsTerminal, Write};

use anyhow::Result;
use text::{Message, OnFull, Role};

use crate::account::Account;
use crate::arguments::{ByteSize, RunArguments};
use crate::examples::Examples;
use crate::failure::{Failure, in_words};
use crate::progress::{complain, say, say_entry};
use crate::terminal::{Answered, Terminal, TooLong};
use commands::{COMMANDS, HELP_MORE};
use conversation::{Conversation, Undone};
use input::{Input, Typed};

/// The highest temperature that means anything.
const TEMPERATURE_MAX: f32 = 100.0;
/// Columns of a command in the list of all.
const COMMAND_COLUMNS: usize = 17;
/// From this share of the context on, it is said after each answer how full it is.
const GAUGE_PERCENT: usize = 80;
/// How to get on when the context is full.
const WAYS_ON: &str = "/clear starts over, /full drop-oldest goes on without the oldest turns";

pub(crate) fn chat(
    terminal: &mut Terminal,
    arguments: &RunArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let conversation = Conversation::new(arguments.system.as_deref());
    let mut input = Input::open()?;
    if input.is_terminal() {
        banner(terminal)?;
    }
    // What is typed on a terminal stands apart from the answer before it.
    let spaced = input.is_terminal() && std::io::stdout().is_terminal();
    let (stats, think) = (arguments.stats, arguments.think);
    let mut chat = Chat { conversation, stats, think, terminal, arguments, out, spaced };
    let result = chat.converse(&mut input);
    input.close();
    result
}

/// What is talked to, and how to get on.
fn banner(terminal: &Terminal) -> Result<()> {
    let plan = &terminal.plan;
    let name = crate::models::short_name(&plan.arguments.model);
    let device = plan.device_names().unwrap_or_else(|| "the processor".to_owned());
    let (context, memory) = (plan.backend.context, ByteSize(plan.total_bytes()));
    say(&format!("{name} · context of {context} tokens · {memory} of memory · on {device}"));
    let about = Examples::of(&plan.checkpoint)?.about;
    if !about.is_empty() {
        say(&about);
    }
    say("/help lists the commands, Ctrl-C stops an answer, /bye leaves");
    Ok(())
}

/// A conversation and what it is held with.
struct Chat<'a> {
    conversation: Conversation,
    stats: bool,
    /// What the template is asked about thinking.
    think: Option<bool>,
    terminal: &'a mut Terminal,
    arguments: &'a RunArguments,
    out: &'a mut dyn Write,
    /// An empty line follows each answer.
    spaced: bool,
}

impl Chat<'_> {
    fn converse(&mut self, input: &mut Input) -> Result<()> {
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
                    if !self.command(input, command)? {
                        return Ok(());
                    }
                }
                None => {
                    self.conversation.push(Message::new(Role::User, line));
                    self.answer()?;
                }
            }
        }
    }

    fn answer(&mut self) -> Result<()> {
        let account = Account::start(&self.terminal.loaded.engine);
        let messages = self.conversation.messages();
        match self.terminal.answer(self.arguments, self.think, messages, None, self.out) {
            Ok(answered) => {
                let cut = answered.cut(self.terminal.plan.backend.context);
                let ends_here = answered.is_full() && self.terminal.on_full == OnFull::Stop;
                let Answered { message, report, dropped_turns } = answered;
                self.conversation.push(message);
                match cut {
                    _ if report.finish.is_none() => say("stopped"),
                    Some(cut) if ends_here => say(&format!("{cut}: {WAYS_ON}")),
                    Some(cut) => say(&cut),
                    // That turns were left out says as much.
                    None if dropped_turns > 0 => {}
                    None => self.gauge(),
                }
                if self.stats {
                    account.lines(&self.terminal.loaded.engine, &report).lines().for_each(say);
                }
            }
            // A full context or a failed read ends the answer, not the conversation.
            Err(error)
                if matches!(error.downcast_ref(), Some(Failure::Run(_) | Failure::Io(_))) =>
            {
                self.conversation.pop();
                complain(&format!("flashmoe: {}", in_words(&error)));
                if TooLong::is(&error) && self.terminal.on_full == OnFull::Stop {
                    say(WAYS_ON);
                }
            }
            Err(error) => return Err(error),
        }
        if self.spaced {
            self.out.write_all(b"\n").and_then(|()| self.out.flush()).map_err(Failure::io)?;
        }
        Ok(())
    }

    /// Says how full the context is, once it is nearly full.
    fn gauge(&self) {
        let context = self.terminal.plan.backend.context;
        let messages = self.conversation.messages();
        // What cannot be counted now is refused with the next message.
        let Ok(used) = self.terminal.prompt_tokens(self.think, messages) else { return };
        let ends_here = used >= context && self.terminal.on_full == OnFull::Stop;
        match self.used(used) {
            told if ends_here => say(&format!("{told}: {WAYS_ON}")),
            told if used * 100 >= context * GAUGE_PERCENT => say(&told),
            _ => {}
        }
    }

    /// How much of the context the conversation takes.
    fn used(&self, used: usize) -> String {
        let context = self.terminal.plan.backend.context;
        let percent = used * 100 / context.max(1);
        let drops = used > context && self.terminal.on_full == OnFull::DropOldest;
        let more = if drops { "; the oldest turns are left out" } else { "" };
        format!("context: {used} of {context} tokens, {percent} %{more}")
    }

    /// Runs a command; false ends the chat.
    fn command(&mut self, input: &mut Input, command: &str) -> Result<bool> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name.to_ascii_lowercase().as_str() {
            "quit" | "exit" | "bye" => return Ok(false),
            "help" | "?" => {
                for (usage, text) in COMMANDS {
                    say_entry(usage, text, COMMAND_COLUMNS);
                }
                say(HELP_MORE);
            }
            "stats" => {
                self.stats = !self.stats;
                say(if self.stats { "statistics on" } else { "statistics off" });
            }
            "regen" => match self.conversation.return_to_question() {
                true => self.answer()?,
                false => say("nothing to answer again"),
            },
            "undo" => say(match self.conversation.undo() {
                Some(Undone::Turn) => "the last message is taken back",
                Some(Undone::Replacement) => "the conversation before goes on",
                None => "nothing to take back",
            }),
            "clear" => {
                self.conversation.clear();
                say("conversation started over; /undo brings it back");
            }
            "think" => match rest {
                "" => self.set_thinking(None, "thinking as the model's template has it"),
                "on" => self.set_thinking(Some(true), "thinking on"),
                "off" => self.set_thinking(Some(false), "thinking off"),
                _ => say("/think knows on and off"),
            },
            "temp" => self.set_temperature(rest),
            "ctx" => match self.terminal.prompt_tokens(self.think, self.conversation.messages()) {
                Ok(used) => say(&self.used(used)),
                Err(error) => say(&in_words(&error)),
            },
            "full" => match (rest, rest.parse()) {
                ("", _) => say(&format!("when the context is full: {}", self.terminal.on_full)),
                (_, Ok(on_full)) => {
                    self.terminal.on_full = on_full;
                    say(&format!("when the context is full: {on_full}"));
                }
                (_, Err(problem)) => say(&format!("/full: {problem}")),
            },
            "system" => self.system(rest),
            "save" if rest.is_empty() => say("/save needs a file name"),
            "save" => self.save(input, rest)?,
            "load" if rest.is_empty() => say("/load needs a file name"),
            "load" => match self.conversation.load(rest) {
                Ok(count) => say(&format!("{count} messages loaded from {rest}")),
                Err(error) => say(&format!("cannot load {rest}: {}", in_words(&error))),
            },
            other => {
                let meant = commands::meant(other);
                let hint = meant
                    .map_or("/help lists them".to_owned(), |it| format!("did you mean /{it}?"));
                say(&format!("/{name} is not a command; {hint}"));
            }
        }
        Ok(true)
    }

    fn set_thinking(&mut self, think: Option<bool>, told: &str) {
        self.think = think;
        say(told);
    }

    fn set_temperature(&mut self, typed: &str) {
        match (typed, typed.parse::<f32>()) {
            ("", _) => {
                self.terminal.temperature = None;
                say("temperature as at the start");
            }
            (_, Ok(value)) if (0.0..=TEMPERATURE_MAX).contains(&value) => {
                self.terminal.temperature = Some(value);
                say(&format!("temperature {value}"));
            }
            _ => say("/temp takes a number from 0 to 100"),
        }
    }

    fn system(&mut self, typed: &str) {
        match typed {
            "" => match self.conversation.system() {
                Some(text) => text.lines().for_each(say),
                None => say("there is no system prompt; /system TEXT sets one"),
            },
            "-" => {
                self.conversation.set_system(None);
                say("system prompt cleared, conversation started over; /undo brings it back");
            }
            text => {
                self.conversation.set_system(Some(text));
                say("system prompt set, conversation started over; /undo brings it back");
            }
        }
    }

    fn save(&self, input: &mut Input, path: &str) -> Result<()> {
        let mut saved = self.conversation.save(path, false);
        if matches!(&saved, Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists) {
            saved = match input.confirms(&format!("{path} is there already. Overwrite it?"))? {
                Some(true) => self.conversation.save(path, true),
                Some(false) => {
                    say("not saved");
                    return Ok(());
                }
                None => saved,
            };
        }
        match saved {
            Ok(()) => say(&format!("saved to {path}")),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                say(&format!("not saved: {path} is there already: name another file"));
            }
            Err(error) => say(&format!("cannot save to {path}: {error}")),
        }
        Ok(())
    }
}

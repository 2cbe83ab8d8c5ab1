//! Where the messages of a chat come from: an edited line on a terminal, plain lines from a pipe.
//!
//! On a terminal, arrows edit and recall, and what was typed is remembered from one chat to the next in a
//! file that only its owner can read (`$FLASHMOE_HISTORY`, else `$XDG_STATE_HOME/flashmoe/history`). A line that ends
//! in a backslash goes on in the next; three quotes begin and end a message of several lines; Tab completes commands.
//! Prompts never go to standard output: it carries answers only.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, Config, Context, Editor, Helper};

use super::commands::completions;
use crate::failure::Failure;
use crate::progress::say;

/// Messages that the history file keeps.
const HISTORY_LENGTH: usize = 1000;

/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Completes commands.
pub(super) struct Commands;

impl Completer for Commands {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok((0, completions(&line[..position])))
    }
}

impl Hinter for Commands {
    type Hint = String;
}

impl Highlighter for Commands {}
impl Validator for Commands {}
impl Helper for Commands {}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A message or a command, possibly of several lines.
    Message(String),
    /// Ctrl-C at the prompt: the line is given up.
    Interrupted,
    /// The end of input.
    End,
}

/// Reads messages.
pub(super) enum Input {
    /// A terminal with line editing.
    Terminal { editor: Box<Editor<Commands, FileHistory>>, history: Option<PathBuf> },
    /// Anything else: a pipe or a file.
    Lines(Box<dyn BufRead>),
}

impl Input {
    /// Standard input, edited when it is a terminal.
    pub(super) fn open() -> Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines(Box::new(std::io::stdin().lock())));
        }
        // The terminal itself, so that a redirected standard output receives no prompts.
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .max_history_size(HISTORY_LENGTH)
            .map_err(terminal_error)?
            .build();
        let mut editor = Box::new(Editor::with_config(config).map_err(terminal_error)?);
        editor.set_helper(Some(Commands));
        let history = history_file();
        if let Some(file) = history.as_ref().filter(|file| file.exists())
            && let Err(error) = editor.load_history(file)
        {
            say(&format!("cannot read {}: {error}", file.display()));
        }
        Ok(Self::Terminal { editor, history })
    }

    /// Whether somebody types.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Whether who types agrees; `None` where nobody is there to be asked.
    pub(super) fn confirms(&mut self, question: &str) -> Result<Option<bool>> {
        if !self.is_terminal() {
            return Ok(None);
        }
        let answer = self.line(&format!("{question} [y/N] "))?;
        Ok(Some(matches!(answer, Typed::Message(word) if matches!(word.trim(), "y" | "Y" | "yes"))))
    }

    /// The next message.
    pub(super) fn read(&mut self) -> Result<Typed> {
        let mut message = String::new();
        let mut quoted = false;
        loop {
            let prompt = if message.is_empty() && !quoted { "> " } else { ". " };
            let line = match self.line(prompt)? {
                Typed::Message(line) => line,
                Typed::End if !message.is_empty() => return Ok(Typed::Message(message)),
                other => return Ok(other),
            };
            if quoted {
                match line.trim_end().strip_suffix(QUOTES) {
                    Some(part) => {
                        message.push_str(part);
                        let length = message.trim_end_matches('\n').len();
                        message.truncate(length);
                        self.remember(&message)?;
                        return Ok(Typed::Message(message));
                    }
                    None => {
                        message.push_str(&line);
                        message.push('\n');
                    }
                }
                continue;
            }
            if message.is_empty()
                && let Some(part) = line.trim_start().strip_prefix(QUOTES)
            {
                if let Some(whole) = part.trim_end().strip_suffix(QUOTES) {
                    self.remember(whole)?;
                    return Ok(Typed::Message(whole.to_owned()));
                }
                quoted = true;
                if !part.is_empty() {
                    message.push_str(part);
                    message.push('\n');
                }
                continue;
            }
            match line.strip_suffix('\\') {
                Some(part) => {
                    message.push_str(part);
                    message.push('\n');
                }
                None => {
                    message.push_str(&line);
                    self.remember(&message)?;
                    return Ok(Typed::Message(message));
                }
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Typed> {
        match self {
            Self::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Typed::Message(line)),
                Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
                Err(ReadlineError::Eof) => Ok(Typed::End),
                Err(error) => Err(terminal_error(error)),
            },
            Self::Lines(input) => {
                let mut line = String::new();
                if input.read_line(&mut line).map_err(Failure::io)? == 0 {
                    return Ok(Typed::End);
                }
                line.truncate(line.trim_end_matches(['\n', '\r']).len());
                Ok(Typed::Message(line))
            }
        }
    }

    fn remember(&mut self, message: &str) -> Result<()> {
        if let Self::Terminal { editor, .. } = self
            && !message.trim().is_empty()
        {
            editor.add_history_entry(message).map_err(terminal_error)?;
        }
        Ok(())
    }

    /// Writes the history of this chat to its file.
    pub(super) fn close(&mut self) {
        let Self::Terminal { editor, history: Some(file) } = self else { return };
        let written = match file.parent().map(std::fs::create_dir_all) {
            Some(Err(error)) => Err(error.into()),
            _ => editor.append_history(file),
        };
        if let Err(error) = written {
            say(&format!("cannot keep the history in {}: {error}", file.display()));
        }
    }
}

fn terminal_error(error: ReadlineError) -> anyhow::Error {
    match error {
        ReadlineError::Io(error) => Failure::io(error).into(),
        other => Failure::Run(other.into()).into(),
    }
}

/// `$FLASHMOE_HISTORY`, which may be `off`, else the XDG place of state files; `None` without a home.
fn history_file() -> Option<PathBuf> {
    match std::env::var_os("FLASHMOE_HISTORY").filter(|value| !value.is_empty()) {
        Some(value) if value == "off" => return None,
        Some(value) => return Some(value.into()),
        None => {}
    }
    Some(crate::state::folder()?.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &'static str) -> Vec<Typed> {
        let mut input = Input::Lines(Box::new(text.as_bytes()));
        let mut messages = Vec::new();
        loop {
            match input.read().unwrap() {
                Typed::End => return messages,
                typed => messages.push(typed),
            }
        }
    }

    #[test]
    fn a_backslash_joins_lines() {
        let message = |text: &str| Typed::Message(text.to_owned());
        let expected = vec![message("one"), message("two\nthree"), message("four")];
        assert_eq!(read_all("one\ntwo\\\nthree\r\nfour"), expected);
    }

    #[test]
    fn quotes_hold_several_lines_together() {
        let message = |text: &str| Typed::Message(text.to_owned());
        let expected = vec![message("one\n\n  two"), message("three"), message("four")];
        assert_eq!(read_all("\"\"\"one\n\n  two\n\"\"\"\n\"\"\"three\"\"\"\nfour"), expected);
    }

    #[test]
    fn a_message_that_the_end_cuts_short_is_kept() {
        assert_eq!(read_all("open\\\n"), vec![Typed::Message("open\n".to_owned())]);
    }
}

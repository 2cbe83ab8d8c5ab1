//! Tokens of an answer to text on standard output: thinking told apart, stop strings held back.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use engine::text::{DecodeStream, Language, Message, Role, StopStrings};

use crate::failure::Failure;

/// Where the model's thinking ends.
const THINKING_END: &str = "</think>";

/// Prints one answer as it comes.
pub(crate) struct AnswerPrinter<'a> {
    language: &'a Language,
    stream: DecodeStream,
    out: &'a mut dyn Write,
    hide_thinking: bool,
    /// Watches the visible answer; thinking does not stop at a stop string.
    stop: StopStrings,
    thinking: bool,
    /// Thinking that is not printed yet: it may be the beginning of its end marker.
    held: String,
    reasoning: String,
    content: String,
    printed: bool,
}

impl<'a> AnswerPrinter<'a> {
    /// A printer for an answer that begins inside the thinking when `opens_reasoning`.
    pub(crate) fn new(
        language: &'a Language,
        opens_reasoning: bool,
        hide_thinking: bool,
        stop: &[String],
        out: &'a mut dyn Write,
    ) -> Result<Self> {
        let stop = StopStrings::new(stop.to_vec());
        Ok(Self {
            language,
            stream: language.tokenizer.stream(),
            out,
            hide_thinking,
            stop: stop.map_err(|error| Failure::usage(error.to_string()))?,
            thinking: opens_reasoning,
            held: String::new(),
            reasoning: String::new(),
            content: String::new(),
            printed: false,
        })
    }

    /// Takes a token; breaks when a stop string has been reached.
    pub(crate) fn push(&mut self, token: u32) -> Result<ControlFlow<()>> {
        if self.language.end_tokens.contains(&token) {
            return Ok(ControlFlow::Continue(()));
        }
        match self.stream.push(token) {
            Some(text) => self.text(&text),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn text(&mut self, text: &str) -> Result<ControlFlow<()>> {
        if !self.thinking {
            return self.visible(text);
        }
        self.held.push_str(text);
        let Some(end) = self.held.find(THINKING_END) else {
            let keep = marker_begun(&self.held);
            let ready: String = self.held.drain(..self.held.len() - keep).collect();
            self.emit_thinking(&ready)?;
            return Ok(ControlFlow::Continue(()));
        };
        let rest = self.held.split_off(end + THINKING_END.len());
        self.held.truncate(end);
        let thought = std::mem::take(&mut self.held);
        self.emit_thinking(&thought)?;
        if !self.hide_thinking {
            self.write(THINKING_END)?;
        }
        self.thinking = false;
        self.visible(&rest)
    }

    fn visible(&mut self, text: &str) -> Result<ControlFlow<()>> {
        let outcome = self.stop.push(text);
        self.emit_content(&outcome.text)?;
        Ok(match outcome.stop {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    }

    fn emit_thinking(&mut self, text: &str) -> Result<()> {
        self.reasoning.push_str(text);
        if self.hide_thinking { Ok(()) } else { self.write(text) }
    }

    fn emit_content(&mut self, text: &str) -> Result<()> {
        // A hidden thinking block leaves its blank lines in front of the answer.
        let text =
            if self.content.is_empty() && self.hide_thinking { text.trim_start() } else { text };
        self.content.push_str(text);
        self.write(text)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if !text.is_empty() {
            self.printed = true;
            let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
            written.map_err(Failure::io)?;
        }
        Ok(())
    }

    /// Prints what was held back and gives the whole answer.
    pub(crate) fn finish(mut self) -> Result<Message> {
        if let Some(rest) = self.stream.flush() {
            // A broken character at the very end cannot complete a stop string.
            let _ = self.text(&rest)?;
        }
        let thought = std::mem::take(&mut self.held);
        self.emit_thinking(&thought)?;
        let rest = self.stop.flush();
        self.emit_content(&rest)?;
        if self.printed {
            self.write("\n")?;
        }
        let mut message = Message::new(Role::Assistant, self.content.trim());
        let reasoning = self.reasoning.trim();
        message.reasoning = (!reasoning.is_empty()).then(|| reasoning.to_owned());
        Ok(message)
    }
}

/// Length of the longest end of `text` that begins the marker.
fn marker_begun(text: &str) -> usize {
    let lengths = (1..THINKING_END.len()).rev();
    lengths.into_iter().find(|&length| text.ends_with(&THINKING_END[..length])).unwrap_or(0)
}

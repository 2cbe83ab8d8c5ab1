//! Tokens of an answer to text on standard output: thinking told apart, stop strings held back.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use engine::text::{DecodeStream, Message, Role};

use crate::conversation::Language;
use crate::failure::Failure;

/// Where the model's thinking ends.
const THINKING_END: &str = "</think>";

/// Prints one answer as it comes.
pub(crate) struct AnswerPrinter<'a> {
    language: &'a Language,
    stream: DecodeStream,
    out: &'a mut dyn Write,
    hide_thinking: bool,
    stop: &'a [String],
    thinking: bool,
    /// Generated text that is not printed yet: it may be the beginning of a marker.
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
        stop: &'a [String],
        out: &'a mut dyn Write,
    ) -> Self {
        Self {
            language,
            stream: language.tokenizer.stream(),
            out,
            hide_thinking,
            stop,
            thinking: opens_reasoning,
            held: String::new(),
            reasoning: String::new(),
            content: String::new(),
            printed: false,
        }
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
        self.held.push_str(text);
        if self.thinking {
            if let Some(end) = self.held.find(THINKING_END) {
                let thought = self.held[..end].to_owned();
                self.held.drain(..end + THINKING_END.len());
                self.emit_thinking(&thought)?;
                if !self.hide_thinking {
                    self.write(THINKING_END)?;
                }
                self.thinking = false;
            } else {
                let keep = overlap(&self.held, [THINKING_END].into_iter());
                let ready: String = self.held.drain(..self.held.len() - keep).collect();
                self.emit_thinking(&ready)?;
                return Ok(ControlFlow::Continue(()));
            }
        }
        let found = self.stop.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(end) = found {
            let ready = self.held[..end].to_owned();
            self.held.clear();
            self.emit_content(&ready)?;
            return Ok(ControlFlow::Break(()));
        }
        let keep = overlap(&self.held, self.stop.iter().map(String::as_str));
        let ready: String = self.held.drain(..self.held.len() - keep).collect();
        self.emit_content(&ready)?;
        Ok(ControlFlow::Continue(()))
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
        let rest = std::mem::take(&mut self.held);
        if self.thinking {
            self.emit_thinking(&rest)?
        } else {
            self.emit_content(&rest)?
        }
        if self.printed {
            self.write("\n")?;
        }
        let mut message = Message::new(Role::Assistant, self.content.trim());
        let reasoning = self.reasoning.trim();
        message.reasoning = (!reasoning.is_empty()).then(|| reasoning.to_owned());
        Ok(message)
    }
}

/// Length of the longest end of `text` that begins one of `markers`.
fn overlap<'m>(text: &str, markers: impl Iterator<Item = &'m str>) -> usize {
    let longest = |marker: &str| {
        let starts = marker.char_indices().map(|(index, _)| index).skip(1);
        starts.filter(|&length| text.ends_with(&marker[..length])).max().unwrap_or(0)
    };
    markers.map(longest).max().unwrap_or(0)
}

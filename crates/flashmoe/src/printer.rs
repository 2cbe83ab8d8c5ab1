//! Tokens of an answer to text on standard output: thinking told apart, stop strings held back.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use engine::text::{
    AnswerEvent, AnswerParser, AnswerReader, Language, Message, StopStrings, collect,
};

use crate::failure::Failure;

/// Prints one answer as it comes.
pub(crate) struct AnswerPrinter<'a> {
    language: &'a Language,
    reader: AnswerReader,
    out: &'a mut dyn Write,
    hide_thinking: bool,
    events: Vec<AnswerEvent>,
    /// Thinking was printed, and its end was not.
    thinking: bool,
    printed: bool,
}

impl<'a> AnswerPrinter<'a> {
    /// A printer for an answer that begins inside the thinking when `opens_reasoning`. Without a template, text is
    /// continued and nothing in it means anything.
    pub(crate) fn new(
        language: &'a Language,
        opens_reasoning: bool,
        hide_thinking: bool,
        stop: &[String],
        out: &'a mut dyn Write,
    ) -> Result<Self> {
        let stops = StopStrings::new(stop.to_vec());
        let stops = stops.map_err(|error| Failure::usage(error.to_string()))?;
        let parser = match language.template {
            Some(_) => AnswerParser::new(language.dialect, &[], opens_reasoning),
            None => AnswerParser::verbatim(),
        };
        Ok(Self {
            language,
            reader: AnswerReader::new(language.tokenizer.stream(), parser, stops),
            out,
            hide_thinking,
            events: Vec::new(),
            thinking: false,
            printed: false,
        })
    }

    /// Takes a token; breaks when a stop string has been reached.
    pub(crate) fn push(&mut self, token: u32) -> Result<ControlFlow<()>> {
        if self.language.end_tokens.contains(&token) {
            return Ok(ControlFlow::Continue(()));
        }
        let events = self.reader.push(token);
        self.print(events)?;
        Ok(match self.reader.stop() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    }

    fn print(&mut self, events: Vec<AnswerEvent>) -> Result<()> {
        for event in &events {
            match event {
                AnswerEvent::Reasoning(text) if !self.hide_thinking => {
                    self.thinking = true;
                    self.write(text)?;
                }
                AnswerEvent::Text(text) => {
                    if std::mem::take(&mut self.thinking) {
                        self.write("\n</think>\n\n")?;
                    }
                    self.write(text)?;
                }
                // Without tools on offer there are no calls: what looks like one is text.
                _ => {}
            }
        }
        self.events.extend(events);
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.printed = true;
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        Ok(written.map_err(Failure::io)?)
    }

    /// Prints what was held back and gives the whole answer.
    pub(crate) fn finish(mut self) -> Result<Message> {
        let events = self.reader.finish();
        self.print(events)?;
        if self.printed {
            self.write("\n")?;
        }
        let mut message = collect(&self.events);
        message.content = message.content.trim().to_owned();
        let reasoning = message.reasoning.map(|text| text.trim().to_owned());
        message.reasoning = reasoning.filter(|text| !text.is_empty());
        Ok(message)
    }
}

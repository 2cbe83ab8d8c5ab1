//! Tokens of an answer to text: thinking set apart from the answer, stop strings held back.
//!
//! On a terminal, thinking is dim under a heading. Anywhere else only the answer goes out, unless both are asked for:
//! then thinking has an opening and a closing mark. How text looks is [`Screen`]'s.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use text::{AnswerEvent, AnswerParser, AnswerReader, Language, Message, StopStrings, collect};

use crate::failure::Failure;
use crate::screen::{Screen, has_colour};

/// How thinking looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThinkingStyle {
    /// Not at all.
    Hidden,
    /// Between `<think>` and `</think>`.
    Marked,
    /// Under a heading.
    Headed,
    /// Under a heading, dim.
    Dim,
}

impl ThinkingStyle {
    /// The style for standard output: `shown` and `hidden` are what was asked for.
    pub(crate) fn of_output(shown: bool, hidden: bool) -> Self {
        match (std::io::stdout().is_terminal(), hidden) {
            (_, true) => Self::Hidden,
            (true, false) if has_colour() => Self::Dim,
            (true, false) => Self::Headed,
            (false, false) if shown => Self::Marked,
            (false, false) => Self::Hidden,
        }
    }

    fn opening(self) -> &'static str {
        match self {
            Self::Hidden => "",
            Self::Marked => "<think>\n",
            Self::Headed => "Thinking:\n",
            Self::Dim => "Thinking\n",
        }
    }

    fn closing(self) -> &'static str {
        match self {
            Self::Hidden => "",
            Self::Marked => "\n</think>\n\n",
            Self::Headed => "\n\nAnswer:\n",
            Self::Dim => "\n\n",
        }
    }
}

/// Prints one answer as it comes.
pub(crate) struct AnswerPrinter<'a> {
    language: &'a Language,
    reader: AnswerReader,
    screen: Screen<'a>,
    style: ThinkingStyle,
    events: Vec<AnswerEvent>,
    /// Thinking was begun, and its end was not printed.
    thinking: bool,
    /// The next text follows a closing mark: its blank beginning is left out.
    closed: bool,
    printed: bool,
}

impl<'a> AnswerPrinter<'a> {
    /// A printer for an answer that begins inside the thinking when `opens_reasoning`. Without a template, text is
    /// continued and nothing in it means anything.
    pub(crate) fn new(
        language: &'a Language,
        opens_reasoning: bool,
        style: ThinkingStyle,
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
            screen: Screen::new(out, language.template.is_some()),
            style,
            events: Vec::new(),
            thinking: false,
            closed: false,
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
                AnswerEvent::Reasoning(text) if self.style != ThinkingStyle::Hidden => {
                    let text = if self.thinking { text } else { text.trim_start() };
                    // An empty thinking block gets no heading.
                    if !text.is_empty() {
                        if !std::mem::replace(&mut self.thinking, true) {
                            self.screen.thinking(self.style.opening())?;
                        }
                        self.screen.thinking(text)?;
                        self.printed = true;
                    }
                }
                AnswerEvent::Text(text) => {
                    if std::mem::take(&mut self.thinking) {
                        self.screen.mark(self.style.closing())?;
                        self.closed = true;
                    }
                    let text = if self.closed { text.trim_start_matches('\n') } else { text };
                    if !text.is_empty() {
                        self.closed = false;
                        self.screen.answer(text)?;
                        self.printed = true;
                    }
                }
                // Without tools on offer there are no calls: what looks like one is text.
                _ => {}
            }
        }
        self.events.extend(events);
        Ok(())
    }

    /// Prints what was held back and gives the whole answer.
    pub(crate) fn finish(mut self) -> Result<Message> {
        let events = self.reader.finish();
        self.print(events)?;
        if std::mem::take(&mut self.thinking) {
            // The answer ended in its thinking: the marks are closed all the same.
            let closing = self.style.closing().trim_end_matches("Answer:\n");
            self.screen.mark(closing.trim_end_matches('\n'))?;
        }
        self.screen.finish()?;
        if self.printed {
            self.screen.mark("\n")?;
        }
        let mut message = collect(&self.events);
        message.content = message.content.trim().to_owned();
        let reasoning = message.reasoning.map(|text| text.trim().to_owned());
        message.reasoning = reasoning.filter(|text| !text.is_empty());
        Ok(message)
    }
}

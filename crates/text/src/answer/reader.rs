//! Tokens of an answer to its events: decoding, parsing and stop strings in their right order.
//!
//! Stop strings are looked for in the visible text alone, after thinking and calls were told apart; what may become
//! one is held back, and given up when a call or thinking begins, because text that is interrupted completes
//! nothing. No event splits a character, and none contains a stop string or its beginning.

use super::{AnswerEvent, AnswerParser};
use crate::{DecodeStream, StopStrings};

/// Reads one answer token by token.
#[derive(Debug)]
pub struct AnswerReader {
    stream: DecodeStream,
    parser: AnswerParser,
    stops: StopStrings,
    stop: Option<usize>,
}

impl AnswerReader {
    /// A reader of an answer that `parser` takes apart and `stops` may end.
    pub fn new(stream: DecodeStream, parser: AnswerParser, stops: StopStrings) -> Self {
        Self { stream, parser, stops, stop: None }
    }

    /// Takes a token; end tokens are the caller's, who does not push them. Nothing comes after a stop string.
    pub fn push(&mut self, token: u32) -> Vec<AnswerEvent> {
        match self.stream.push(token) {
            Some(text) if self.stop.is_none() => {
                let events = self.parser.push(&text);
                self.watch(events)
            }
            _ => Vec::new(),
        }
    }

    /// Ends the answer.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        if self.stop.is_some() {
            return Vec::new();
        }
        let mut events = match self.stream.flush() {
            Some(rest) => self.parser.push(&rest),
            None => Vec::new(),
        };
        events.extend(self.parser.finish());
        let mut watched = self.watch(events);
        if self.stop.is_none() {
            self.give_up(&mut watched);
        }
        watched
    }

    /// The stop string, by its index, that has ended the visible text. The caller stops generating.
    pub fn stop(&self) -> Option<usize> {
        self.stop
    }

    /// The parser: its repairs, and whether its last call was cut off.
    pub fn parser(&self) -> &AnswerParser {
        &self.parser
    }

    fn watch(&mut self, events: Vec<AnswerEvent>) -> Vec<AnswerEvent> {
        let mut watched = Vec::with_capacity(events.len() + 1);
        for event in events {
            let AnswerEvent::Text(text) = event else {
                self.give_up(&mut watched);
                watched.push(event);
                continue;
            };
            let outcome = self.stops.push(&text);
            if !outcome.text.is_empty() {
                watched.push(AnswerEvent::Text(outcome.text));
            }
            if outcome.stop.is_some() {
                self.stop = outcome.stop;
                break;
            }
        }
        watched
    }

    /// Emits held text that no stop string came of.
    fn give_up(&mut self, events: &mut Vec<AnswerEvent>) {
        let text = self.stops.flush();
        if !text.is_empty() {
            events.push(AnswerEvent::Text(text));
        }
    }
}

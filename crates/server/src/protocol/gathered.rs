//! The whole answer of a job, gathered from its events.
//!
//! Parts keep the order in which they came, because two of the protocols show it: text before a call is another
//! block than text after it. Pieces of the same kind that follow each other are one part.

use crate::work::{Event, Finish, TokenLogprob};

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    /// Identifier without prefix.
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text of an object.
    pub(crate) arguments: String,
}

/// A stretch of the answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    /// With its tokens, where they were asked for. Tokens that ended no text yet belong to the next.
    Text(String, Vec<TokenLogprob>),
    Call(Call),
}

/// An answer so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gathered {
    /// Answers to the prompts before this one, of a request with several.
    pub(crate) earlier: Vec<Gathered>,
    /// Tokens of the prompt, from the second on, where they were asked for.
    pub(crate) prompt: Vec<TokenLogprob>,
    pub(crate) parts: Vec<Part>,
    /// All tokens of visible text.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// Of these, the ones that are in no part yet.
    pending: Vec<TokenLogprob>,
    /// `None` until the answer is complete.
    pub(crate) finish: Option<Finish>,
}

impl Gathered {
    /// Takes an event; true when it is the last of an answer. `Failed` is the caller's business.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        match event {
            Event::Queued { .. } | Event::Progress { .. } | Event::CallEnded { .. } => {}
            Event::Prompt(tokens) => self.prompt.extend(tokens),
            Event::Next(finish) => {
                self.push(Event::Finished(finish));
                let mut done = std::mem::take(self);
                self.earlier = std::mem::take(&mut done.earlier);
                self.earlier.push(done);
            }
            Event::Reasoning(piece) => match self.parts.last_mut() {
                Some(Part::Reasoning(text)) => text.push_str(&piece.text),
                _ if piece.text.is_empty() => {}
                _ => self.parts.push(Part::Reasoning(piece.text)),
            },
            Event::Text(piece) => {
                self.logprobs.extend(piece.logprobs.iter().cloned());
                self.pending.extend(piece.logprobs);
                if piece.text.is_empty() {
                    return false;
                }
                let new = std::mem::take(&mut self.pending);
                if let Some(Part::Text(text, tokens)) = self.parts.last_mut() {
                    text.push_str(&piece.text);
                    tokens.extend(new);
                } else {
                    self.parts.push(Part::Text(piece.text, new));
                }
            }
            Event::CallStarted { id, name, .. } => {
                self.parts.push(Part::Call(Call { id, name, arguments: String::new() }));
            }
            Event::CallArguments { delta, .. } => {
                if let Some(Part::Call(call)) = self.parts.last_mut() {
                    call.arguments.push_str(&delta);
                }
            }
            Event::Finished(finish) => {
                self.logprobs.extend(finish.logprobs.iter().cloned());
                if let Some(Part::Text(_, tokens)) = self.parts.last_mut() {
                    tokens.append(&mut self.pending);
                    tokens.extend(finish.logprobs.iter().cloned());
                }
                self.finish = Some(*finish);
                return true;
            }
            Event::Failed(_) => return true,
        }
        false
    }

    /// All thinking.
    pub(crate) fn reasoning(&self) -> String {
        self.joined(|part| match part {
            Part::Reasoning(text) => Some(text),
            _ => None,
        })
    }

    /// All visible text.
    pub(crate) fn text(&self) -> String {
        self.joined(|part| match part {
            Part::Text(text, _) => Some(text),
            _ => None,
        })
    }

    /// All calls, in order.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        })
    }

    fn joined<'a>(&'a self, pick: impl Fn(&'a Part) -> Option<&'a String>) -> String {
        self.parts.iter().filter_map(pick).map(String::as_str).collect()
    }
}

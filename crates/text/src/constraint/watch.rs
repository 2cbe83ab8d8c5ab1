//! Calls that the model makes by itself: free until one begins, then one that the tools take.
//!
//! With `tool_choice: auto` the text of an answer is the model's business, and nothing is excluded from it: no mask
//! is computed, and a device may choose tokens by itself. The opening tag of a call is one control token; from there
//! to the closing tag only names and parameters that the tools have may come, in any order, each with a value of its
//! type, and all that are required. Where messages have channels, a call begins in a message's header: headers are
//! watched from their first token, and what follows one that is no call's is free again. A call that was right by
//! itself is not changed by a bit: callers draw freely and ask for the mask only when what was drawn is not allowed.
//!
//! It never fails an answer: where the tools make no grammar, or the automaton is at its limits, it lets go.

use std::sync::Arc;

use llguidance::Matcher;
use serde_json::Value;

use super::{Grammars, Rule, grammar};
use crate::sampling::{Mask, Sampled, Sampler, SamplingError};
use crate::{Lead, Thinking};

/// Where an answer is.
enum State {
    /// In text, or in thoughts, where a call's tag means nothing.
    Free { thinking: bool },
    /// In a call.
    Call(Box<Matcher>),
    /// It could not be followed.
    Off,
}

/// Watches one answer.
pub struct CallWatch {
    grammars: Arc<Grammars>,
    tools: Vec<Value>,
    /// The opening tag.
    start: u32,
    state: State,
    mask: Mask,
    /// Logits as they were, while a first draw may be taken back.
    spare: Vec<f32>,
    /// What was drawn from all tokens without a row of logits, and is not allowed.
    refused: Option<u32>,
}

impl std::fmt::Debug for CallWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallWatch").field("in_call", &self.in_call()).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Watches an answer in which `tools` may be called. `None` where there is nothing to watch: no tools, or no
    /// token that begins a call.
    pub fn watch(self: &Arc<Self>, tools: &[Value], thinking: Thinking) -> Option<CallWatch> {
        let start = self.call_start.filter(|_| !tools.is_empty())?;
        // The prompt has begun the first header.
        let head = self.in_header().then(|| self.call_rule(&Rule::CallHead, tools)).flatten();
        let free = State::Free { thinking: thinking == Thinking::Open };
        Some(CallWatch {
            grammars: Arc::clone(self),
            tools: tools.to_vec(),
            start,
            state: head.map_or(free, |matcher| State::Call(Box::new(matcher))),
            mask: Mask::none(self.vocabulary),
            spare: Vec::new(),
            refused: None,
        })
    }

    /// Compiles what a watch will need, so that it is there when a call begins.
    pub fn prepare_watch(&self, tools: &[Value]) {
        if self.call_start.is_some() && !tools.is_empty() {
            drop(self.call_rule(&Rule::CallBody, tools));
            if self.in_header() {
                drop(self.call_rule(&Rule::CallHead, tools));
            }
        }
    }

    /// Whether an answer begins inside a message's header.
    fn in_header(&self) -> bool {
        self.dialect.calls().lead == Lead::Channels
    }

    fn call_rule(&self, rule: &Rule, tools: &[Value]) -> Option<Matcher> {
        let text =
            grammar::of(rule, tools, Thinking::Unopened, self.dialect, &self.tokenizer).ok()?;
        self.matcher(rule, text).ok()
    }
}

impl CallWatch {
    /// Whether the answer is in a call, so that [`CallWatch::allows`] may say no.
    pub fn in_call(&self) -> bool {
        matches!(self.state, State::Call(_))
    }

    /// Whether a token may come next.
    pub fn allows(&mut self, token: u32) -> bool {
        match &mut self.state {
            State::Call(matcher) => match matcher.validate_tokens(&[token]) {
                Ok(taken) => taken == 1,
                Err(_) => {
                    self.state = State::Off;
                    true
                }
            },
            State::Free { .. } | State::Off => true,
        }
    }

    /// The tokens that may come next; `None` for all.
    pub fn allowed(&mut self) -> Option<&Mask> {
        let State::Call(matcher) = &mut self.state else { return None };
        match matcher.compute_mask_or_eos() {
            Ok(words) => {
                self.mask.set(words.as_slice());
                Some(&self.mask)
            }
            Err(_) => {
                self.state = State::Off;
                None
            }
        }
    }

    /// Whether a token that was drawn from all, where no row of logits is at hand, may come next. After one that may
    /// not, one of [`CallWatch::allowed`] is drawn, or [`CallWatch::sample`] does so.
    pub fn judge(&mut self, token: u32) -> bool {
        let allows = self.allows(token);
        self.refused = (!allows).then_some(token);
        allows
    }

    /// Draws the next token after `tokens`: what would come without the watch or, where that is not allowed, one
    /// that is. `logits` are used up.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &mut [f32],
        tokens: &[u32],
    ) -> Result<Sampled, SamplingError> {
        if !self.in_call() {
            return sampler.sample(logits, tokens);
        }
        let free = match self.refused.take() {
            Some(token) => Sampled { token, logprob: None },
            None => {
                self.spare.clear();
                self.spare.extend_from_slice(logits);
                sampler.sample(&mut self.spare, tokens)?
            }
        };
        if self.allows(free.token) {
            return Ok(free);
        }
        match sampler.sample_allowed(logits, tokens, self.allowed()) {
            Err(SamplingError::NothingLeft) => Ok(free),
            drawn => drawn,
        }
    }

    /// Takes the token that was drawn. One that was not allowed ends the watch.
    pub fn accept(&mut self, token: u32) {
        self.refused = None;
        match &mut self.state {
            State::Off => {}
            State::Call(matcher) => {
                if matcher.consume_token(token).is_err() {
                    self.state = State::Off;
                } else if matcher.is_stopped() {
                    self.state = State::Free { thinking: false };
                }
            }
            State::Free { thinking } => {
                if Some(token) == self.grammars.think_start {
                    *thinking = true;
                } else if Some(token) == self.grammars.think_end {
                    *thinking = false;
                } else if token == self.start && !*thinking {
                    let matcher = self.grammars.call_rule(&Rule::CallBody, &self.tools);
                    self.state =
                        matcher.map_or(State::Off, |matcher| State::Call(Box::new(matcher)));
                }
            }
        }
    }
}

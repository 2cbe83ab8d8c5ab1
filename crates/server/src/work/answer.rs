//! Tokens of an answer to events: text from bytes, thinking and calls told apart, stop strings held back.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use text::sampling::{self, Sampled};
use text::{
    AnswerEvent, AnswerParser, DecodeStream, EncodeLimit, Language, Repairs, SampledTurn,
    StopStrings, TextError, collect,
};

use super::{Event, FinishReason, Job, Piece, TokenLogprob, TopLogprob};

/// The answer of one job so far.
pub(super) struct Answer {
    language: Arc<Language>,
    stream: DecodeStream,
    parser: AnswerParser,
    /// Watches the visible text; thinking and calls do not stop at a stop string.
    stop: StopStrings,
    stops: Vec<String>,
    /// Tokens that end the answer, besides those of the model.
    stop_tokens: Vec<u32>,
    one_call: bool,
    /// All of it is text.
    raw: bool,
    /// Of the calls so far.
    ids: Vec<String>,
    /// Tokens are of the thinking block.
    thinking: bool,
    markers: [Option<u32>; 2],
    reasoning_tokens: usize,
    /// Of tokens whose text is not out yet.
    logprobs: Vec<TokenLogprob>,
    reason: Option<FinishReason>,
}

impl Answer {
    /// An answer to `job`.
    pub(super) fn new(language: Arc<Language>, job: &Job) -> Result<Self, TextError> {
        let parser =
            AnswerParser::new(language.dialect, &job.output.tools, job.prompt.thinking_open);
        let marker = |text| language.tokenizer.token_id(text);
        Ok(Self {
            stream: language.tokenizer.stream(),
            parser,
            stop: StopStrings::new(job.stop.clone())?,
            stops: job.stop.clone(),
            stop_tokens: job.stop_tokens.clone(),
            one_call: !job.output.parallel_tool_calls,
            raw: job.output.raw,
            ids: Vec::new(),
            thinking: job.prompt.thinking_open,
            markers: language.dialect.thinking().map(marker),
            reasoning_tokens: 0,
            logprobs: Vec::new(),
            reason: None,
            language,
        })
    }

    /// Takes a token, with the alternatives to it where log-probabilities are wanted; gives what is now known of the
    /// answer. [`Answer::reason`] says whether it is complete.
    pub(super) fn push(&mut self, sampled: &Sampled, top: &[sampling::TokenLogprob]) -> Vec<Event> {
        let token = sampled.token;
        self.reasoning_tokens += usize::from(self.thinking);
        if let Some(logprob) = sampled.logprob {
            self.logprobs.push(self.describe(token, logprob, top));
        }
        let [opens, closes] = self.markers;
        if Some(token) == opens {
            self.thinking = true;
        } else if Some(token) == closes {
            self.thinking = false;
        }
        if self.language.end_tokens.binary_search(&token).is_ok()
            || self.stop_tokens.contains(&token)
        {
            self.reason = Some(FinishReason::Stop);
            return Vec::new();
        }
        let Some(text) = self.stream.push(token) else { return Vec::new() };
        let parts = self.parts(text);
        if !self.language.dialect.thinks_in_tags() {
            self.thinking = self.parser.thinks();
        }
        self.events(parts)
    }

    fn parts(&mut self, text: String) -> Vec<AnswerEvent> {
        if self.raw { vec![AnswerEvent::Text(text)] } else { self.parser.push(&text) }
    }

    /// The tokens that close the thinking, when `budget` tokens of it are there; none outside of it, or where the
    /// model has no token for its end. They are what the template writes after thoughts.
    pub(super) fn closing(&self, budget: usize) -> Vec<u32> {
        if !self.thinking || self.reasoning_tokens < budget {
            return Vec::new();
        }
        let (tokenizer, closing) = (&self.language.tokenizer, self.language.dialect.closing());
        let encode = |text: &str| tokenizer.encode(text).unwrap_or_default();
        let [_, end] = self.language.dialect.thinking();
        let around = (!end.is_empty()).then(|| closing.split_once(end)).flatten();
        match (self.markers[1], around) {
            (Some(end), Some((before, after))) => {
                [encode(before), vec![end], encode(after)].concat()
            }
            (None, Some(_)) => Vec::new(),
            (_, None) => tokenizer.encode_marked(closing, EncodeLimit::NONE).unwrap_or_default(),
        }
    }

    /// Ends the answer for `reason`: what was held back, and the reason as it turned out.
    pub(super) fn finish(&mut self, reason: FinishReason) -> (Vec<Event>, FinishReason) {
        let mut events = Vec::new();
        // After a stop string or a last call, what is held is not part of the answer.
        let complete = matches!(reason, FinishReason::Stop | FinishReason::Length);
        if complete {
            let mut parts = Vec::new();
            if let Some(rest) = self.stream.flush() {
                parts = self.parts(rest);
            }
            parts.extend(self.parser.finish());
            self.reason = None;
            events = self.events(parts);
            let rest = self.stop.flush();
            self.text(&mut events, rest);
        }
        let stopped = self.reason.take().filter(|_| complete);
        let reason = match stopped.unwrap_or(reason) {
            FinishReason::Stop if !self.ids.is_empty() => FinishReason::ToolCalls,
            other => other,
        };
        (events, reason)
    }

    /// Why the answer is complete, if it is.
    pub(super) fn reason(&self) -> Option<FinishReason> {
        self.reason.clone()
    }

    /// Tokens of the thinking block.
    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// What the model got wrong in its calls.
    pub(super) fn repairs(&self) -> &Repairs {
        self.parser.repairs()
    }

    /// An answer with calls as it was sampled, under the ids of its calls, if it can take the place of its message
    /// when the client sends that back. `tokens` are those of the answer to `job`.
    pub(super) fn turn(&self, job: &Job, tokens: &[u32]) -> Option<(Vec<String>, SampledTurn)> {
        // Where thinking has no tags, a template prints a turn in other places than it was sampled in.
        let replays = self.language.dialect.thinks_in_tags();
        if self.ids.is_empty() || self.parser.truncated_call() || !replays {
            return None;
        }
        let tokenizer = &self.language.tokenizer;
        let ended = tokens.last().is_some_and(|end| self.language.end_tokens.contains(end));
        let tokens = &tokens[..tokens.len() - usize::from(ended)];
        let opens = job.prompt.thinking_open;
        let mut parser = AnswerParser::new(self.language.dialect, &job.output.tools, opens);
        let mut events = parser.push(&tokenizer.decode(tokens));
        events.extend(parser.finish());
        let turn = SampledTurn::new(tokenizer, tokens, &collect(&events), opens)?;
        Some((self.ids.clone(), turn))
    }

    /// Log-probabilities of tokens that went into no piece.
    pub(super) fn take_logprobs(&mut self) -> Vec<TokenLogprob> {
        std::mem::take(&mut self.logprobs)
    }

    fn events(&mut self, parts: Vec<AnswerEvent>) -> Vec<Event> {
        let mut events = Vec::with_capacity(parts.len());
        for part in parts {
            if self.reason.is_some() {
                break;
            }
            match part {
                AnswerEvent::Reasoning(text) => {
                    let logprobs = self.take_logprobs();
                    events.push(Event::Reasoning(Piece { text, logprobs }));
                }
                AnswerEvent::Text(text) => {
                    let outcome = self.stop.push(&text);
                    self.text(&mut events, outcome.text);
                    let stop = outcome.stop.map(|index| self.stops[index].clone());
                    self.reason = stop.map(FinishReason::StopString);
                }
                AnswerEvent::CallStarted { index, name } => {
                    // A call ends the text before it: what looked like a stop string is none.
                    let rest = self.stop.flush();
                    self.text(&mut events, rest);
                    let id = random_id();
                    self.ids.push(id.clone());
                    events.push(Event::CallStarted { index, id, name });
                }
                AnswerEvent::CallArguments { index, delta } => {
                    events.push(Event::CallArguments { index, delta });
                }
                AnswerEvent::CallEnded { index } => {
                    events.push(Event::CallEnded { index });
                    if self.one_call {
                        self.reason = Some(FinishReason::ToolCalls);
                    }
                }
            }
        }
        events
    }

    fn text(&mut self, events: &mut Vec<Event>, text: String) {
        if !text.is_empty() {
            let logprobs = self.take_logprobs();
            events.push(Event::Text(Piece { text, logprobs }));
        }
    }

    /// A token with its log-probability and the alternatives to it.
    pub(super) fn describe(
        &self,
        token: u32,
        logprob: f32,
        top: &[sampling::TokenLogprob],
    ) -> TokenLogprob {
        let bytes = |id| self.language.tokenizer.token_bytes(id).to_vec();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = top.iter().map(|entry| {
            let bytes = bytes(entry.token);
            TopLogprob { id: entry.token, token: text(&bytes), bytes, logprob: entry.logprob }
        });
        let top = top.collect();
        let bytes = bytes(token);
        TokenLogprob { id: token, token: text(&bytes), bytes, logprob, top }
    }
}

/// 128 random bits as text. The standard library's hasher is keyed by the system's random numbers.
fn random_id() -> String {
    let word = |salt: u8| RandomState::new().hash_one(salt);
    format!("{:016x}{:016x}", word(0), word(1))
}

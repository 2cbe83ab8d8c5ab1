//! Text completions in chunks: a chunk for every piece of text, in the order of the prompts, then `[DONE]`.
//!
//! What is repeated of a prompt comes before its answer, in one chunk: at once where its probabilities were not asked
//! for, else when the last of them is there.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::text::{Echo, Tokens};
use super::{Request, finish_reason, object, usage};
use crate::http::{ApiError, EventWriter, Frames, Waiting};
use crate::protocol::{Envelope, experts_json, timings_json};
use crate::work::{Event, Finish, TokenLogprob, Usage};

/// Writes `text_completion` objects.
#[derive(Debug)]
pub(crate) struct TextWriter {
    envelope: Envelope,
    include_usage: bool,
    top_logprobs: Option<u8>,
    /// Of the prompts from the present one on; empty where nothing is repeated.
    echo: VecDeque<Echo>,
    /// The present prompt was repeated.
    repeated: bool,
    /// Of the present prompt, gathered until it is complete.
    prompt: Vec<TokenLogprob>,
    tokens: Tokens,
    index: usize,
    ended: Vec<Usage>,
    waiting: Waiting,
}

impl TextWriter {
    pub(super) fn new(envelope: Envelope, request: Request) -> Self {
        Self {
            envelope,
            include_usage: request.include_usage,
            top_logprobs: request.draft.top_logprobs,
            echo: request.echo.into(),
            repeated: false,
            prompt: Vec::new(),
            tokens: Tokens::default(),
            index: 0,
            ended: Vec::new(),
            waiting: Waiting::default(),
        }
    }

    fn chunk(&mut self, text: &str, reason: Option<&str>) -> Value {
        let logprobs = self.top_logprobs.map(|top| self.tokens.json(top));
        let mut object = object(&self.envelope);
        object["choices"] = json!([
            { "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": reason }
        ]);
        object
    }

    /// Repeats the prompt, if that is asked for and was not done.
    fn repeat(&mut self, out: &mut Frames) {
        if std::mem::replace(&mut self.repeated, true) {
            return;
        }
        let Some(echo) = self.echo.pop_front() else { return };
        self.tokens.prompt(&echo, &std::mem::take(&mut self.prompt));
        let chunk = self.chunk(&echo.text, None);
        out.data(&chunk);
    }

    /// The last chunk of an answer.
    fn end(&mut self, finish: &Finish, out: &mut Frames) -> Value {
        self.repeat(out);
        self.tokens.answer(&finish.logprobs);
        let last = self.chunk("", Some(finish_reason(finish)));
        self.ended.push(finish.usage);
        self.tokens.restart();
        self.repeated = false;
        self.index += 1;
        last
    }

    fn finish(&mut self, finish: &Finish, out: &mut Frames) {
        let mut last = self.end(finish, out);
        let usage = usage(self.ended.iter().copied());
        if self.include_usage {
            out.data(&last);
            last = object(&self.envelope);
            last["choices"] = json!([]);
        }
        last["usage"] = usage;
        last["timings"] = timings_json(finish);
        last["x_io"] = experts_json(finish);
        out.data(&last);
        out.done();
    }
}

impl EventWriter for TextWriter {
    fn open(&mut self, out: &mut Frames) {
        if self.top_logprobs.is_none() {
            self.repeat(out);
        }
    }

    fn event(&mut self, event: Event, out: &mut Frames) {
        self.waiting.note(&event);
        match event {
            Event::Prompt(tokens) => self.prompt.extend(tokens),
            Event::Text(piece) | Event::Reasoning(piece) => {
                self.repeat(out);
                self.tokens.answer(&piece.logprobs);
                let chunk = self.chunk(&piece.text, None);
                out.data(&chunk);
            }
            Event::Next(finish) => {
                let last = self.end(&finish, out);
                out.data(&last);
                self.open(out);
            }
            Event::Finished(finish) => self.finish(&finish, out),
            Event::Failed(error) => {
                out.data(&json!({ "error": ApiError::from(error).openai() }));
            }
            // Answers are raw: nothing in them is a call.
            Event::Queued { .. }
            | Event::Progress { .. }
            | Event::CallStarted { .. }
            | Event::CallArguments { .. }
            | Event::CallEnded { .. } => {}
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        out.comment(&self.waiting.comment());
    }
}

//! OpenAI's text completions: `POST /v1/completions`.
//!
//! No template and no turns: a prompt as text, with the control tokens that stand in it, or as token ids, and what the
//! model writes after it. Harnesses that measure models, load generators, and editors that fill gaps use it.
//! `request` reads the body, `text` writes tokens with their probabilities, `stream` writes chunks while the answer
//! comes.

mod request;
mod stream;
mod text;

pub(crate) use request::Request;

use serde_json::{Value, json};

use crate::http::ApiError;
use crate::protocol::{
    Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand, experts_json, timings_json,
};
use crate::work::{Finish, FinishReason, Preparing, Prompt, Usage, Worker};

fn object(envelope: &Envelope) -> Value {
    json!({
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created_s,
        "model": envelope.model,
    })
}

impl Understand for Request {
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        Self::read(fields, defaults)
    }

    fn draft(&self) -> &Draft {
        &self.draft
    }

    fn draft_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }

    fn prepare(
        &mut self,
        worker: &dyn Worker,
        preparing: Preparing<'_>,
    ) -> Result<Vec<Prompt>, ApiError> {
        self.make_prompts(worker, preparing)
    }

    fn kept_bytes(&self) -> usize {
        self.draft.kept_bytes() + self.prompt_bytes()
    }
}

impl Protocol for Request {
    const ID_PREFIX: &'static str = "cmpl-";
    type Writer = stream::TextWriter;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        stream::TextWriter::new(envelope, self)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        let answers: Vec<&Gathered> = gathered.earlier.iter().chain([gathered]).collect();
        let choice = |(index, answer): (usize, &&Gathered)| {
            let mut tokens = text::Tokens::default();
            let mut text = String::new();
            if let Some(echo) = self.echo.get(index) {
                text.push_str(&echo.text);
                tokens.prompt(echo, &answer.prompt);
            }
            tokens.answer(&answer.logprobs);
            text.push_str(&answer.text());
            let logprobs = self.draft.top_logprobs.map(|top| tokens.json(top));
            json!({
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": answer.finish.as_ref().map(finish_reason),
            })
        };
        let mut object = object(envelope);
        object["choices"] = answers.iter().enumerate().map(choice).collect();
        let mut ends = answers.iter().filter_map(|answer| answer.finish.as_ref());
        object["usage"] = usage(ends.clone().map(|finish| finish.usage));
        if let Some(finish) = ends.next_back() {
            object["timings"] = timings_json(finish);
            object["x_io"] = experts_json(finish);
        }
        object
    }
}

fn finish_reason(finish: &Finish) -> &'static str {
    if finish.reason == FinishReason::Length { "length" } else { "stop" }
}

/// The sum over all prompts of a request.
fn usage(each: impl Iterator<Item = Usage>) -> Value {
    let sum = each.fold(Usage::default(), |sum, one| Usage {
        prompt: sum.prompt + one.prompt,
        cached: sum.cached + one.cached,
        completion: sum.completion + one.completion,
        reasoning: 0,
    });
    json!({
        "prompt_tokens": sum.prompt,
        "completion_tokens": sum.completion,
        "total_tokens": sum.prompt + sum.completion,
        "prompt_tokens_details": { "cached_tokens": sum.cached },
    })
}

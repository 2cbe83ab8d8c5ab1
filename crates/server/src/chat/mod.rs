//! OpenAI's chat completions: `POST /v1/chat/completions`.
//!
//! `request` reads the body into a job and a few wishes about the answer's form, `stream` writes chunks while
//! the answer comes, `body` writes it whole. Beyond the protocol: `reasoning_content` for thinking (the name of
//! DeepSeek and llama.cpp), `prompt_progress` chunks on request, `timings` and `x_io` next to `usage`.

mod body;
mod request;
mod stream;

pub(crate) use request::Request;

use serde_json::{Value, json};

use crate::http::ApiError;
use crate::protocol::{
    Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand, experts_json,
    logprob_entries, timings_json,
};
use crate::work::{Finish, FinishReason, TokenLogprob};

/// Clients that compare it learn when another build answers.
const FINGERPRINT: &str = concat!("flashmoe-", env!("CARGO_PKG_VERSION"));

fn object(envelope: &Envelope, kind: &str) -> Value {
    json!({
        "id": envelope.id,
        "object": kind,
        "created": envelope.created_s,
        "model": envelope.model,
        "system_fingerprint": FINGERPRINT,
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
}

impl Protocol for Request {
    const ID_PREFIX: &'static str = "chatcmpl-";
    type Writer = stream::ChunkWriter;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        stream::ChunkWriter::new(envelope, &self)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        body::body(envelope, self.names, self.draft.top_logprobs.is_some(), gathered)
    }
}

/// The identifier of a call, as this protocol's clients expect it.
fn call_id(id: &str) -> String {
    format!("call_{id}")
}

/// A cut-off answer is cut off whatever it contains; otherwise calls are what a client must hear of.
fn finish_reason(finish: &Finish, called: bool) -> &'static str {
    match finish.reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop | FinishReason::StopString(_) if called => "tool_calls",
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
    }
}

fn usage(finish: &Finish) -> Value {
    let usage = &finish.usage;
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

/// Adds `usage`, `timings` and `x_io`.
fn add_figures(object: &mut Value, finish: &Finish) {
    object["usage"] = usage(finish);
    object["timings"] = timings_json(finish);
    object["x_io"] = experts_json(finish);
}

/// The `logprobs` object for some tokens.
fn logprobs(tokens: &[TokenLogprob]) -> Value {
    json!({ "content": logprob_entries(tokens), "refusal": null })
}

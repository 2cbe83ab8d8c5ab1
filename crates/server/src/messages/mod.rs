//! Anthropic's messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! `request` reads the body, `history` the conversation in it, `stream` writes events while the answer comes, and
//! this file writes the answer whole. The usage splits the prompt as the protocol does: `input_tokens` without what
//! was cached, so that clients which add the parts up get the true size and know when to compact.

mod history;
mod request;
mod stream;

pub(crate) use request::{Count, Request};

use serde_json::{Value, json};

use crate::http::ApiError;
use crate::protocol::{
    Defaults, Draft, Envelope, Fields, Gathered, Part, Protocol, Understand, experts_json,
    timings_json,
};
use crate::work::{Finish, FinishReason};

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
    const ID_PREFIX: &'static str = "msg_";
    type Writer = stream::BlockWriter;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        stream::BlockWriter::new(envelope, self.show_thinking)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        let block = |part: &Part| match part {
            Part::Reasoning(text) => {
                let text = if self.show_thinking { text.as_str() } else { "" };
                json!({ "type": "thinking", "thinking": text, "signature": signature(envelope) })
            }
            Part::Text(text, _) => json!({ "type": "text", "text": text }),
            Part::Call(call) => {
                // The worker's promise is an object; what is not one is shown as it is.
                let input = serde_json::from_str(&call.arguments)
                    .unwrap_or_else(|_| Value::String(call.arguments.clone()));
                json!({ "type": "tool_use", "id": tool_id(&call.id), "name": call.name, "input": input })
            }
        };
        let content: Vec<Value> = gathered.parts.iter().map(block).collect();
        let mut message = start(envelope, 0);
        message["content"] = content.into();
        if let Some(finish) = &gathered.finish {
            let (reason, sequence) = stop(finish, gathered.calls().next().is_some());
            message["stop_reason"] = reason.into();
            message["stop_sequence"] = sequence;
            message["usage"] =
                usage(finish.usage.prompt, finish.usage.cached, finish.usage.completion);
            message["timings"] = timings_json(finish);
            message["x_io"] = experts_json(finish);
        }
        message
    }
}

/// The identifier of a call, as this protocol's clients expect it.
fn tool_id(id: &str) -> String {
    format!("toolu_{id}")
}

/// Opaque to clients, which send it back with the thinking. Nothing here needs it.
fn signature(envelope: &Envelope) -> String {
    format!("flashmoe.{}", envelope.id)
}

/// The message as it begins.
fn start(envelope: &Envelope, cached: usize) -> Value {
    json!({
        "id": envelope.id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(envelope.prompt_tokens, cached, 1),
    })
}

fn usage(prompt: usize, cached: usize, output: usize) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    })
}

/// `stop_reason` and `stop_sequence`.
fn stop(finish: &Finish, called: bool) -> (&'static str, Value) {
    match &finish.reason {
        FinishReason::Length => ("max_tokens", Value::Null),
        FinishReason::ToolCalls => ("tool_use", Value::Null),
        FinishReason::Stop | FinishReason::StopString(_) if called => ("tool_use", Value::Null),
        FinishReason::StopString(text) => ("stop_sequence", text.as_str().into()),
        FinishReason::Stop => ("end_turn", Value::Null),
    }
}

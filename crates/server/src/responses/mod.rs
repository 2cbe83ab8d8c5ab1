//! OpenAI's responses: `POST /v1/responses`.
//!
//! `request` reads the body, `history` the items in it, `items` writes items, `stream` writes events while the
//! answer comes. Nothing is stored: clients send the whole conversation each time (`store: false`, as Codex
//! does), and a reference to an earlier response is refused by name.

mod history;
mod items;
mod request;
mod stream;

pub(crate) use request::Request;

use serde_json::{Map, Value, json};

use crate::http::ApiError;
use crate::protocol::{
    Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand, experts_json, timings_json,
    weight,
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

    fn kept_bytes(&self) -> usize {
        // The response's first and last event repeat what the request said.
        let echo: usize = self.form.echo.values().map(weight).sum();
        self.draft.kept_bytes() + 4 * echo
    }
}

impl Protocol for Request {
    const ID_PREFIX: &'static str = "resp_";
    type Writer = stream::ItemWriter;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        stream::ItemWriter::new(envelope, self.form)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        let mut response = self.form.response(envelope, "completed");
        let mut output = items::all(envelope, &self.form, gathered);
        if let Some(finish) = &gathered.finish {
            complete(&mut response, &mut output, finish);
        }
        response["output"] = output.into();
        response
    }
}

/// What the response repeats of its request, and how it is written.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// Thinking goes into the item's summary and not into its content.
    summary: bool,
    /// Thinking is also in the field that clients send back unread.
    encrypted: bool,
    /// Fields of the request, as given or by default.
    echo: Map<String, Value>,
}

impl Form {
    /// The response object with everything but its output.
    fn response(&self, envelope: &Envelope, status: &str) -> Value {
        let mut response = json!({
            "id": envelope.id,
            "object": "response",
            "created_at": envelope.created_s,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": envelope.model,
            "output": [],
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": null,
        });
        for (name, value) in &self.echo {
            response[name] = value.clone();
        }
        response
    }

    /// The same without what may be long: a heartbeat need not repeat the instructions.
    fn brief(&self, envelope: &Envelope) -> Value {
        let mut response = self.response(envelope, "in_progress");
        response["instructions"] = Value::Null;
        response["tools"] = json!([]);
        response
    }
}

/// Fills in the figures. An answer that was cut off is `incomplete`, and so is its last item, unless that is a call:
/// calls are there only when they are whole.
fn complete(response: &mut Value, output: &mut [Value], finish: &Finish) {
    let usage = &finish.usage;
    response["usage"] = json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.completion,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.completion,
    });
    response["timings"] = timings_json(finish);
    response["x_io"] = experts_json(finish);
    if finish.reason == FinishReason::Length {
        response["status"] = "incomplete".into();
        response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        if let Some(last) = output.last_mut().filter(|item| item["type"] != "function_call") {
            last["status"] = "incomplete".into();
        }
    }
}

//! A chat completion in chunks.
//!
//! Order: the role at once; where the prefill is, if asked for; thinking; text; calls, each beginning with its id and
//! name and going on with pieces of its arguments; the reason of the end; the usage, if asked for;
//! `[DONE]`. Every chunk has a `finish_reason` and every piece of a call its `index`, because clients fail without.
//! Heartbeats are comments: every client of this protocol counts bytes, and chunks without content break
//! strict ones.

use serde_json::{Value, json};

use super::request::{ReasoningNames, Request};
use super::{add_figures, call_id, finish_reason, logprobs, object};
use crate::http::{ApiError, EventWriter, Frames, Waiting};
use crate::protocol::Envelope;
use crate::work::{Event, Finish, TokenLogprob};

/// Writes `chat.completion.chunk` objects.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    envelope: Envelope,
    names: ReasoningNames,
    include_usage: bool,
    return_progress: bool,
    with_logprobs: bool,
    called: bool,
    waiting: Waiting,
}

impl ChunkWriter {
    pub(crate) fn new(envelope: Envelope, request: &Request) -> Self {
        Self {
            envelope,
            names: request.names,
            include_usage: request.include_usage,
            return_progress: request.return_progress,
            with_logprobs: request.draft.top_logprobs.is_some(),
            called: false,
            waiting: Waiting::default(),
        }
    }

    fn chunk(&self, delta: Value, reason: Option<&str>, tokens: &[TokenLogprob]) -> Value {
        let mut object = object(&self.envelope, "chat.completion.chunk");
        let mut choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        if self.with_logprobs {
            choice["logprobs"] = if tokens.is_empty() { Value::Null } else { logprobs(tokens) };
        }
        object["choices"] = json!([choice]);
        object
    }

    fn call(&self, call: &Value, out: &mut Frames) {
        out.data(&self.chunk(json!({ "tool_calls": [call] }), None, &[]));
    }

    fn finish(&self, finish: &Finish, out: &mut Frames) {
        let reason = finish_reason(finish, self.called);
        let mut last = self.chunk(json!({}), Some(reason), &finish.logprobs);
        if self.include_usage {
            out.data(&last);
            let mut figures = object(&self.envelope, "chat.completion.chunk");
            figures["choices"] = json!([]);
            add_figures(&mut figures, finish);
            out.data(&figures);
        } else {
            // Clients that forget to ask would count nothing and never compact their conversation.
            add_figures(&mut last, finish);
            out.data(&last);
        }
        out.done();
    }
}

impl EventWriter for ChunkWriter {
    fn open(&mut self, out: &mut Frames) {
        out.data(&self.chunk(json!({ "role": "assistant", "content": "" }), None, &[]));
    }

    fn event(&mut self, event: Event, out: &mut Frames) {
        self.waiting.note(&event);
        match event {
            Event::Queued { .. } | Event::CallEnded { .. } | Event::Prompt(_) | Event::Next(_) => {}
            Event::Progress { processed, total, cached, elapsed, eta } => {
                if self.return_progress {
                    let mut object = self.chunk(json!({}), None, &[]);
                    object["prompt_progress"] = json!({
                        "total": total,
                        "cache": cached,
                        "processed": processed,
                        "time_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                        "eta_ms": eta.map(|eta| u64::try_from(eta.as_millis()).unwrap_or(u64::MAX)),
                    });
                    out.data(&object);
                }
            }
            Event::Reasoning(piece) => {
                let mut delta = json!({});
                if self.names.reasoning_content {
                    delta["reasoning_content"] = piece.text.clone().into();
                }
                if self.names.reasoning {
                    delta["reasoning"] = piece.text.into();
                }
                out.data(&self.chunk(delta, None, &[]));
            }
            Event::Text(piece) => {
                out.data(&self.chunk(json!({ "content": piece.text }), None, &piece.logprobs));
            }
            Event::CallStarted { index, id, name } => {
                self.called = true;
                let function = json!({ "name": name, "arguments": "" });
                let id = call_id(&id);
                let call =
                    json!({ "index": index, "id": id, "type": "function", "function": function });
                self.call(&call, out);
            }
            Event::CallArguments { index, delta } => {
                let call = json!({ "index": index, "function": { "arguments": delta } });
                self.call(&call, out);
            }
            Event::Finished(finish) => self.finish(&finish, out),
            Event::Failed(error) => {
                out.data(&json!({ "error": ApiError::from(error).openai() }));
            }
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        out.comment(&self.waiting.comment());
    }
}

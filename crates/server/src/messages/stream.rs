//! A message in events.
//!
//! `message_start` is sent as soon as it is known how much of the prompt is cached, which is when the prefill
//! begins, or with the first heartbeat if that comes earlier. Blocks follow each other strictly: thinking, text and
//! calls each open a block, which is closed before the next opens and before the end, whatever the end is. The
//! heartbeat is the protocol's `ping`, with a comment that tells where the prefill is.

use serde_json::{Value, json};

use super::{signature, start, stop, tool_id, usage};
use crate::http::{ApiError, EventWriter, Frames, Waiting};
use crate::protocol::{Envelope, experts_json, timings_json};
use crate::work::{Event, Finish};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

/// Writes `message_start` to `message_stop`.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    envelope: Envelope,
    show_thinking: bool,
    started: bool,
    open: Option<Block>,
    /// Of the open block, or of the next.
    index: usize,
    called: bool,
    waiting: Waiting,
}

impl BlockWriter {
    pub(crate) fn new(envelope: Envelope, show_thinking: bool) -> Self {
        Self {
            envelope,
            show_thinking,
            started: false,
            open: None,
            index: 0,
            called: false,
            waiting: Waiting::default(),
        }
    }

    fn start(&mut self, cached: usize, out: &mut Frames) {
        if !std::mem::replace(&mut self.started, true) {
            let message = start(&self.envelope, cached);
            out.event("message_start", &json!({ "type": "message_start", "message": message }));
            out.event("ping", &json!({ "type": "ping" }));
        }
    }

    fn begin(&mut self, block: Block, content: &Value, out: &mut Frames) {
        self.close(out);
        self.open = Some(block);
        let frame = json!({
            "type": "content_block_start",
            "index": self.index,
            "content_block": content,
        });
        out.event("content_block_start", &frame);
    }

    fn delta(&self, delta: &Value, out: &mut Frames) {
        let frame = json!({ "type": "content_block_delta", "index": self.index, "delta": delta });
        out.event("content_block_delta", &frame);
    }

    fn close(&mut self, out: &mut Frames) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            let signature = signature(&self.envelope);
            self.delta(&json!({ "type": "signature_delta", "signature": signature }), out);
        }
        let frame = json!({ "type": "content_block_stop", "index": self.index });
        out.event("content_block_stop", &frame);
        self.index += 1;
    }

    fn finish(&mut self, finish: &Finish, out: &mut Frames) {
        self.close(out);
        let (reason, sequence) = stop(finish, self.called);
        let tokens = &finish.usage;
        let frame = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(tokens.prompt, tokens.cached, tokens.completion),
            "timings": timings_json(finish),
            "x_io": experts_json(finish),
        });
        out.event("message_delta", &frame);
        out.event("message_stop", &json!({ "type": "message_stop" }));
    }
}

impl EventWriter for BlockWriter {
    fn open(&mut self, _out: &mut Frames) {}

    fn event(&mut self, event: Event, out: &mut Frames) {
        self.waiting.note(&event);
        match &event {
            Event::Queued { .. } | Event::Prompt(_) | Event::Next(_) => return,
            Event::Progress { cached, .. } => return self.start(*cached, out),
            Event::Finished(finish) => self.start(finish.usage.cached, out),
            _ => self.start(0, out),
        }
        match event {
            Event::Queued { .. } | Event::Progress { .. } | Event::Prompt(_) | Event::Next(_) => {}
            Event::Reasoning(piece) => {
                if piece.text.is_empty() {
                    return;
                }
                if self.open != Some(Block::Thinking) {
                    let content = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.begin(Block::Thinking, &content, out);
                }
                if self.show_thinking {
                    self.delta(&json!({ "type": "thinking_delta", "thinking": piece.text }), out);
                }
            }
            Event::Text(piece) => {
                if piece.text.is_empty() {
                    return;
                }
                if self.open != Some(Block::Text) {
                    self.begin(Block::Text, &json!({ "type": "text", "text": "" }), out);
                }
                self.delta(&json!({ "type": "text_delta", "text": piece.text }), out);
            }
            Event::CallStarted { id, name, .. } => {
                self.called = true;
                let id = tool_id(&id);
                let content = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.begin(Block::Call, &content, out);
                self.delta(&json!({ "type": "input_json_delta", "partial_json": "" }), out);
            }
            Event::CallArguments { delta, .. } => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": delta }), out);
            }
            Event::CallEnded { .. } => self.close(out),
            Event::Finished(finish) => self.finish(&finish, out),
            Event::Failed(error) => {
                self.close(out);
                let error = ApiError::from(error).anthropic();
                out.event("error", &json!({ "type": "error", "error": error }));
            }
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        self.start(0, out);
        out.comment(&self.waiting.comment());
        out.event("ping", &json!({ "type": "ping" }));
    }
}

//! A response in events, each with a sequence number.
//!
//! Every stretch of thinking, text or call is an item: added, its deltas, its text once more in full, done. An item is
//! done before the next is added and before the end, whatever the end is, and the last event has the whole response.
//! The heartbeat is `response.in_progress`, because Codex counts only events: sent at least every few seconds, and
//! before the first output as well.

use serde_json::{Value, json};

use super::{Form, complete, items};
use crate::http::{ApiError, EventWriter, Frames, Waiting};
use crate::protocol::{Call, Envelope, Part, logprob_entries};
use crate::work::{Event, Finish, FinishReason, JobError, Piece, TokenLogprob};

/// Writes `response.created` to `response.completed`.
#[derive(Debug)]
pub(crate) struct ItemWriter {
    envelope: Envelope,
    form: Form,
    sequence: u64,
    open: Option<Part>,
    /// Tokens that are in no item yet.
    pending: Vec<TokenLogprob>,
    /// Items that are done.
    output: Vec<Value>,
    waiting: Waiting,
}

impl ItemWriter {
    pub(crate) fn new(envelope: Envelope, form: Form) -> Self {
        Self {
            envelope,
            form,
            sequence: 0,
            open: None,
            pending: Vec::new(),
            output: Vec::new(),
            waiting: Waiting::default(),
        }
    }

    /// Sends an event with `fields` after its type and number.
    fn send(&mut self, name: &str, fields: Value, out: &mut Frames) {
        let mut frame = json!({ "type": name, "sequence_number": self.sequence });
        self.sequence += 1;
        if let Value::Object(fields) = fields {
            for (name, value) in fields {
                frame[name] = value;
            }
        }
        out.event(name, &frame);
    }

    /// The same for the open item.
    fn send_of_item(&mut self, name: &str, id: &str, fields: Value, out: &mut Frames) {
        let mut frame = json!({ "item_id": id, "output_index": self.output.len() });
        if let Value::Object(fields) = fields {
            for (name, value) in fields {
                frame[name] = value;
            }
        }
        self.send(name, frame, out);
    }

    fn id_of_open(&self) -> String {
        let index = self.output.len();
        match &self.open {
            Some(Part::Call(call)) => items::call_item_id(&call.id),
            Some(Part::Text(..)) => items::id(&self.envelope, "msg", index),
            Some(Part::Reasoning(_)) | None => items::id(&self.envelope, "rs", index),
        }
    }

    /// Adds an item.
    fn begin(&mut self, part: Part, out: &mut Frames) {
        self.close("completed", out);
        self.open = Some(part);
        let id = self.id_of_open();
        let item = match &self.open {
            Some(Part::Call(call)) => items::call(call, "in_progress"),
            Some(Part::Text(..)) => items::message(&id, "in_progress", Vec::new()),
            Some(Part::Reasoning(_)) | None => items::reasoning(&id, &self.form, None),
        };
        let index = self.output.len();
        let fields = json!({ "output_index": index, "item": item });
        self.send("response.output_item.added", fields, out);
        match &self.open {
            Some(Part::Text(..)) => {
                let fields = json!({ "content_index": 0, "part": items::text_part("", &[]) });
                self.send_of_item("response.content_part.added", &id, fields, out);
            }
            Some(Part::Reasoning(_)) if self.form.summary => {
                let part = json!({ "type": "summary_text", "text": "" });
                let fields = json!({ "summary_index": 0, "part": part });
                self.send_of_item("response.reasoning_summary_part.added", &id, fields, out);
            }
            _ => {}
        }
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: &str, out: &mut Frames) {
        let id = self.id_of_open();
        let Some(part) = self.open.take() else { return };
        match &part {
            Part::Reasoning(text) if self.form.summary => {
                let fields = json!({ "summary_index": 0, "text": text });
                self.send_of_item("response.reasoning_summary_text.done", &id, fields, out);
                let part = json!({ "type": "summary_text", "text": text });
                let fields = json!({ "summary_index": 0, "part": part });
                self.send_of_item("response.reasoning_summary_part.done", &id, fields, out);
            }
            Part::Reasoning(text) => {
                let fields = json!({ "content_index": 0, "text": text });
                self.send_of_item("response.reasoning_text.done", &id, fields, out);
            }
            Part::Text(text, tokens) => {
                let logprobs = logprob_entries(tokens);
                let fields = json!({ "content_index": 0, "text": text, "logprobs": logprobs });
                self.send_of_item("response.output_text.done", &id, fields, out);
                let part = items::text_part(text, tokens);
                let fields = json!({ "content_index": 0, "part": part });
                self.send_of_item("response.content_part.done", &id, fields, out);
            }
            Part::Call(call) => {
                let fields = json!({ "name": call.name, "arguments": call.arguments });
                self.send_of_item("response.function_call_arguments.done", &id, fields, out);
            }
        }
        let index = self.output.len();
        let mut item = items::item(&self.envelope, &self.form, index, &part);
        item["status"] = status.into();
        let fields = json!({ "output_index": index, "item": item });
        self.send("response.output_item.done", fields, out);
        self.output.push(item);
    }

    fn reasoning(&mut self, piece: Piece, out: &mut Frames) {
        if piece.text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Part::Reasoning(_))) {
            self.begin(Part::Reasoning(String::new()), out);
        }
        let id = self.id_of_open();
        let (name, place) = if self.form.summary {
            ("response.reasoning_summary_text.delta", "summary_index")
        } else {
            ("response.reasoning_text.delta", "content_index")
        };
        self.send_of_item(name, &id, json!({ place: 0, "delta": piece.text }), out);
        if let Some(Part::Reasoning(text)) = &mut self.open {
            text.push_str(&piece.text);
        }
    }

    fn text(&mut self, piece: Piece, out: &mut Frames) {
        self.pending.extend(piece.logprobs);
        if piece.text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Part::Text(..))) {
            self.begin(Part::Text(String::new(), Vec::new()), out);
        }
        let new = std::mem::take(&mut self.pending);
        let id = self.id_of_open();
        let logprobs = logprob_entries(&new);
        let fields = json!({ "content_index": 0, "delta": piece.text, "logprobs": logprobs });
        self.send_of_item("response.output_text.delta", &id, fields, out);
        if let Some(Part::Text(text, tokens)) = &mut self.open {
            text.push_str(&piece.text);
            tokens.extend(new);
        }
    }

    fn finish(&mut self, finish: &Finish, out: &mut Frames) {
        let cut = finish.reason == FinishReason::Length;
        if let Some(Part::Text(_, tokens)) = &mut self.open {
            tokens.append(&mut self.pending);
            tokens.extend(finish.logprobs.iter().cloned());
        }
        self.close(if cut { "incomplete" } else { "completed" }, out);
        let mut response = self.form.response(&self.envelope, "completed");
        let mut output = std::mem::take(&mut self.output);
        complete(&mut response, &mut output, finish);
        response["output"] = output.into();
        let name = if cut { "response.incomplete" } else { "response.completed" };
        self.send(name, json!({ "response": response }), out);
    }

    fn fail(&mut self, error: JobError, out: &mut Frames) {
        self.close("incomplete", out);
        let error = ApiError::from(error);
        let mut response = self.form.response(&self.envelope, "failed");
        response["error"] = json!({ "code": "server_error", "message": error.message() });
        response["output"] = std::mem::take(&mut self.output).into();
        self.send("response.failed", json!({ "response": response }), out);
    }
}

impl EventWriter for ItemWriter {
    fn open(&mut self, out: &mut Frames) {
        let response = self.form.response(&self.envelope, "in_progress");
        self.send("response.created", json!({ "response": response }), out);
        let response = self.form.brief(&self.envelope);
        self.send("response.in_progress", json!({ "response": response }), out);
    }

    fn event(&mut self, event: Event, out: &mut Frames) {
        self.waiting.note(&event);
        match event {
            Event::Queued { .. } | Event::Progress { .. } | Event::Prompt(_) | Event::Next(_) => {}
            Event::Reasoning(piece) => self.reasoning(piece, out),
            Event::Text(piece) => self.text(piece, out),
            Event::CallStarted { id, name, .. } => {
                self.begin(Part::Call(Call { id, name, arguments: String::new() }), out);
            }
            Event::CallArguments { delta, .. } => {
                let id = self.id_of_open();
                let fields = json!({ "delta": delta });
                self.send_of_item("response.function_call_arguments.delta", &id, fields, out);
                if let Some(Part::Call(call)) = &mut self.open {
                    call.arguments.push_str(&delta);
                }
            }
            Event::CallEnded { .. } => self.close("completed", out),
            Event::Finished(finish) => self.finish(&finish, out),
            Event::Failed(error) => self.fail(error, out),
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        out.comment(&self.waiting.comment());
        let response = self.form.brief(&self.envelope);
        self.send("response.in_progress", json!({ "response": response }), out);
    }
}

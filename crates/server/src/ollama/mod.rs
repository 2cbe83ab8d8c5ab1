//! ollama's own protocol: `/api/chat`, `/api/generate`, and the lists by which its clients find a model.
//!
//! Answers are streamed unless the request says otherwise, as lines of JSON. There are no comments in such a stream
//! and clients parse every line, so a heartbeat is a piece of no text. Durations are nanoseconds. A server's only model
//! stays as it was started: requests to load and unload it are answered and change nothing, and `keep_alive` and
//! `num_ctx` are answered in the header `x-warning` where they ask for what is not so. Of several, one is loaded by
//! any request and unloaded by `keep_alive: 0`.

mod chat;
mod generate;
mod lists;

pub(crate) use chat::Request as Chat;
pub(crate) use generate::Request as Generate;
pub(crate) use lists::{running, show, tags};

use serde_json::{Map, Value, json};
use text::OnFull;

use crate::calendar::rfc3339;
use crate::http::{ApiError, EventWriter, Frames};
use crate::protocol::{Call, Defaults, Draft, Envelope, Fields, Gathered, read_thinking};
use crate::work::{Constraint, Event, Finish, FinishReason};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tags,
    Running,
    Show,
    Chat,
    Generate,
}

/// What both kinds of request have: sampling in `options`, `format`, `think`.
///
/// Second: whether the model is to be unloaded.
fn read_draft(fields: &Fields<'_>, defaults: Defaults) -> Result<(Draft, bool), ApiError> {
    let empty = Map::new();
    let options = fields.object("options")?.unwrap_or_else(|| Fields::of(&empty));
    let context = defaults.context;
    let mut draft = Draft::with_options(fields, &options, defaults)?;
    let unloads = read_loading(fields, &options, context, &mut draft.notes)?;
    draft.unloads = unloads;
    draft.max_tokens = match options.integer("num_predict")? {
        // -2 fills the context, -1 goes on for ever: both end where the context does.
        Some(-2) => None,
        _ => options.token_limit("num_predict")?.or(draft.max_tokens),
    };
    draft.note_limits(&options, &["num_predict"])?;
    draft.set_stop(options.strings("stop")?, "options.stop")?;
    if let (None, Some(truncate)) = (draft.conversation.on_full, fields.boolean("truncate")?) {
        draft.conversation.on_full = Some(if truncate { OnFull::DropOldest } else { OnFull::Stop });
    }
    let format = match fields.get("format") {
        None => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(Value::String(text)) if text == "json" => Some(Constraint::JsonObject),
        Some(schema @ Value::Object(_)) => Some(Constraint::JsonSchema(schema.clone())),
        Some(_) => return Err(fields.error("format", "must be \"json\" or a JSON schema")),
    };
    draft.set_format(format.map(|format| (format, "format".to_owned())))?;
    read_thinking(fields, &mut draft)?;
    match fields.get("think") {
        None => {}
        Some(Value::Bool(think)) => draft.conversation.thinking = Some(*think),
        Some(Value::String(effort)) => draft.set_effort(effort, "think")?,
        Some(_) => return Err(fields.error("think", "must be true, false, or low, medium or high")),
    }
    Ok((draft, unloads))
}

/// What ollama's fields about loading come to here: a model is as its server was started. What was asked for and is
/// not so is noted. True where a client asks for the model to be unloaded.
fn read_loading(
    fields: &Fields<'_>,
    options: &Fields<'_>,
    context: usize,
    notes: &mut Vec<String>,
) -> Result<bool, ApiError> {
    if let Some(wanted) = options.token_limit("num_ctx")?.filter(|&wanted| wanted > context) {
        let name = options.name("num_ctx");
        notes.push(format!(
            "{name}: the context has {context} tokens; {wanted} need a server that is started with --context {wanted}"
        ));
    }
    let unloads = match fields.get("keep_alive") {
        None => false,
        Some(Value::Number(time)) => time.as_f64() == Some(0.0),
        Some(Value::String(time)) => {
            let digits = time.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
            digits.parse::<f64>().is_ok_and(|time| time == 0.0)
        }
        Some(_) => return Err(fields.error("keep_alive", "must be a number of seconds or a time")),
    };
    Ok(unloads)
}

/// The answer to a request without a prompt, by which clients have a model loaded or unloaded.
fn loaded<F: Form>(envelope: &Envelope, unloads: bool) -> Value {
    let mut object = object(envelope);
    F::put(&mut object, "", "", json!([]));
    object["done"] = true.into();
    object["done_reason"] = if unloads { "unload" } else { "load" }.into();
    object
}

/// Streams unless told otherwise.
fn streams(fields: &Fields<'_>) -> Result<bool, ApiError> {
    Ok(fields.boolean("stream")?.unwrap_or(true))
}

/// Refuses pictures: a text model is served.
fn refuse_images(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.list("images")? {
        Some(images) if !images.is_empty() => {
            Err(fields.error("images", "are not supported; this model reads text"))
        }
        _ => Ok(()),
    }
}

fn object(envelope: &Envelope) -> Value {
    json!({ "model": envelope.model, "created_at": rfc3339(envelope.created_s) })
}

fn calls_json<'a>(calls: impl Iterator<Item = &'a Call>) -> Value {
    let one = |call: &Call| {
        // The worker's promise is an object; what is not one is shown as it is.
        let arguments = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|_| Value::String(call.arguments.clone()));
        json!({ "id": format!("call_{}", call.id), "function": { "name": call.name, "arguments": arguments } })
    };
    calls.map(one).collect()
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the last object of an answer has besides its text.
fn add_end(object: &mut Value, finish: &Finish) {
    let (usage, times) = (&finish.usage, &finish.timings);
    object["done"] = true.into();
    object["done_reason"] =
        if finish.reason == FinishReason::Length { "length" } else { "stop" }.into();
    object["total_duration"] = nanoseconds(times.queued + times.prefill + times.decode).into();
    object["load_duration"] = 0.into();
    object["prompt_eval_count"] = usage.prompt.into();
    object["prompt_eval_duration"] = nanoseconds(times.prefill).into();
    object["eval_count"] = usage.completion.into();
    object["eval_duration"] = nanoseconds(times.decode).into();
    if finish.dropped_turns > 0 {
        object["dropped_turns"] = finish.dropped_turns.into();
    }
}

/// How an answer's text, thinking and calls are put into an object.
pub(crate) trait Form: Send + 'static {
    fn put(object: &mut Value, thinking: &str, text: &str, calls: Value);
}

/// The whole answer.
fn whole<F: Form>(envelope: &Envelope, gathered: &Gathered) -> Value {
    let mut object = object(envelope);
    F::put(&mut object, &gathered.reasoning(), &gathered.text(), calls_json(gathered.calls()));
    if let Some(finish) = &gathered.finish {
        add_end(&mut object, finish);
    }
    object
}

/// Writes an answer as lines.
pub(crate) struct LineWriter<F> {
    envelope: Envelope,
    /// A call that has begun: this protocol has whole ones only.
    call: Option<Call>,
    form: std::marker::PhantomData<F>,
}

impl<F: Form> LineWriter<F> {
    fn new(envelope: Envelope) -> Self {
        Self { envelope, call: None, form: std::marker::PhantomData }
    }

    fn line(&self, thinking: &str, text: &str, calls: Value) -> Value {
        let mut object = object(&self.envelope);
        F::put(&mut object, thinking, text, calls);
        object["done"] = false.into();
        object
    }
}

impl<F: Form> EventWriter for LineWriter<F> {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn open(&mut self, _: &mut Frames) {}

    fn event(&mut self, event: Event, out: &mut Frames) {
        match event {
            Event::Queued { .. } | Event::Progress { .. } | Event::Prompt(_) | Event::Next(_) => {}
            Event::Reasoning(piece) => out.json(&self.line(&piece.text, "", json!([]))),
            Event::Text(piece) => out.json(&self.line("", &piece.text, json!([]))),
            Event::CallStarted { id, name, .. } => {
                self.call = Some(Call { id, name, arguments: String::new() });
            }
            Event::CallArguments { delta, .. } => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(&delta);
                }
            }
            Event::CallEnded { .. } => {
                let calls = calls_json(self.call.take().iter());
                out.json(&self.line("", "", calls));
            }
            Event::Finished(finish) => {
                let mut last = self.line("", "", json!([]));
                add_end(&mut last, &finish);
                out.json(&last);
            }
            Event::Failed(error) => {
                out.json(&json!({ "error": ApiError::from(error).message() }));
            }
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        out.json(&self.line("", "", json!([])));
    }
}

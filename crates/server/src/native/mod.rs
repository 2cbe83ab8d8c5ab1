//! llama.cpp's own protocol: `POST /completion`, a text that is continued, and `/infill`, a gap that is filled.
//!
//! A prompt is taken as in text completions. The answer is one object with `content`, and in a stream the same objects
//! by pieces, the last with `stop` true. Editors and scripts that were made for llama.cpp's server use it.

use serde_json::{Value, json};

use crate::completions;
use crate::http::{ApiError, EventWriter, Frames, Kind, Waiting};
use crate::protocol::{
    Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand, experts_json,
    logprob_entries, timings_json,
};
use crate::work::{Event, Finish, FinishReason, Preparing, Prompt, TokenLogprob, Worker};

/// A request to continue a text.
#[derive(Clone, Debug)]
pub(crate) struct Completion(completions::Request);

/// What stands before a gap and after it, and what the text in it begins with.
#[derive(Clone, Debug)]
struct Gap {
    before: String,
    after: String,
    begun: String,
}

/// A request to fill a gap.
#[derive(Clone, Debug)]
pub(crate) struct Infill {
    draft: Draft,
    stream: bool,
    gap: Gap,
}

/// What both kinds read alike: how much, and how many alternatives.
fn read_form(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    if let Some(alternatives) = fields.integer("n_probs")?.filter(|&count| count > 0) {
        let most = text::sampling::TOP_LOGPROBS_MAX;
        let known = u8::try_from(alternatives).ok().filter(|&count| usize::from(count) <= most);
        let wrong = || fields.error("n_probs", format!("must be from 0 to {most}"));
        draft.top_logprobs = Some(known.ok_or_else(wrong)?);
    }
    Ok(())
}

impl Understand for Completion {
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        let mut request = completions::Request::read(fields, defaults)?;
        if !request.limited {
            request.draft.max_tokens = None;
        }
        read_form(fields, &mut request.draft)?;
        Ok(Self(request))
    }

    fn draft(&self) -> &Draft {
        &self.0.draft
    }

    fn draft_mut(&mut self) -> &mut Draft {
        &mut self.0.draft
    }

    fn prepare(
        &mut self,
        worker: &dyn Worker,
        preparing: Preparing<'_>,
    ) -> Result<Vec<Prompt>, ApiError> {
        let prompts = self.0.prepare(worker, preparing)?;
        if prompts.len() > 1 {
            return Err(ApiError::field("prompt", "must be one; /v1/completions takes several"));
        }
        Ok(prompts)
    }
}

impl Understand for Infill {
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        let mut draft = Draft::new(fields, defaults)?;
        draft.output.raw = true;
        draft.set_stop(fields.strings("stop")?, "stop")?;
        read_form(fields, &mut draft)?;
        let text =
            |name: &str| Ok::<_, ApiError>(fields.string(name)?.unwrap_or_default().to_owned());
        let gap = Gap {
            before: text("input_prefix")?,
            after: text("input_suffix")?,
            begun: text("prompt")?,
        };
        Ok(Self { draft, stream: fields.boolean("stream")?.unwrap_or(false), gap })
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
        if !worker.fills_gaps() {
            let message = "this model's vocabulary has no tokens for gaps in a text";
            return Err(ApiError::new(Kind::NotSupported, message));
        }
        let Gap { before, after, begun } = &self.gap;
        let prompt = worker.prepare_infill(before, after, preparing)?;
        if begun.is_empty() {
            return Ok(vec![prompt]);
        }
        let begun = worker.prepare_text(begun, preparing)?;
        let tokens = prompt.tokens.iter().chain(&*begun.tokens).copied().collect();
        Ok(vec![worker.prepare_tokens(tokens)?])
    }
}

/// The object of an answer, or of a piece of it.
fn object(envelope: &Envelope, content: &str) -> Value {
    json!({
        "index": 0,
        "content": content,
        "stop": false,
        "id_slot": -1,
        "tokens_evaluated": envelope.prompt_tokens,
    })
}

fn probabilities(tokens: &[TokenLogprob]) -> Value {
    let mut entries = logprob_entries(tokens);
    for (entry, token) in entries.iter_mut().zip(tokens) {
        entry["id"] = token.id.into();
    }
    entries.into()
}

/// What the last object has besides its text.
fn add_end(object: &mut Value, envelope: &Envelope, finish: &Finish) {
    let (kind, word) = match &finish.reason {
        FinishReason::Stop | FinishReason::ToolCalls => ("eos", ""),
        FinishReason::StopString(word) => ("word", word.as_str()),
        FinishReason::Length => ("limit", ""),
    };
    object["stop"] = true.into();
    object["model"] = envelope.model.as_str().into();
    object["stop_type"] = kind.into();
    object["stopping_word"] = word.into();
    object["truncated"] = false.into();
    object["tokens_predicted"] = finish.usage.completion.into();
    object["tokens_evaluated"] = finish.usage.prompt.into();
    object["tokens_cached"] = finish.usage.cached.into();
    object["generation_settings"] = json!({ "seed": finish.seed });
    object["timings"] = timings_json(finish);
    object["x_io"] = experts_json(finish);
}

fn whole(envelope: &Envelope, draft: &Draft, gathered: &Gathered) -> Value {
    let mut object = object(envelope, &gathered.text());
    if draft.top_logprobs.is_some() {
        object["completion_probabilities"] = probabilities(&gathered.logprobs);
    }
    if let Some(finish) = &gathered.finish {
        add_end(&mut object, envelope, finish);
    }
    object
}

impl Protocol for Completion {
    const ID_PREFIX: &'static str = "cmpl-";
    type Writer = PieceWriter;

    fn streams(&self) -> bool {
        self.0.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        PieceWriter::new(envelope, &self.0.draft)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        whole(envelope, &self.0.draft, gathered)
    }
}

impl Protocol for Infill {
    const ID_PREFIX: &'static str = "infill-";
    type Writer = PieceWriter;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        PieceWriter::new(envelope, &self.draft)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        whole(envelope, &self.draft, gathered)
    }
}

/// Writes an answer piece by piece.
#[derive(Debug)]
pub(crate) struct PieceWriter {
    envelope: Envelope,
    with_probabilities: bool,
    waiting: Waiting,
}

impl PieceWriter {
    fn new(envelope: Envelope, draft: &Draft) -> Self {
        let with_probabilities = draft.top_logprobs.is_some();
        Self { envelope, with_probabilities, waiting: Waiting::default() }
    }

    fn piece(&self, content: &str, tokens: &[TokenLogprob]) -> Value {
        let mut object = object(&self.envelope, content);
        if self.with_probabilities {
            object["completion_probabilities"] = probabilities(tokens);
        }
        object
    }
}

impl EventWriter for PieceWriter {
    fn open(&mut self, _: &mut Frames) {}

    fn event(&mut self, event: Event, out: &mut Frames) {
        self.waiting.note(&event);
        match event {
            Event::Text(piece) | Event::Reasoning(piece) => {
                out.data(&self.piece(&piece.text, &piece.logprobs));
            }
            Event::Finished(finish) => {
                let mut last = self.piece("", &finish.logprobs);
                add_end(&mut last, &self.envelope, &finish);
                out.data(&last);
            }
            Event::Failed(error) => {
                out.data(&json!({ "error": ApiError::from(error).openai() }));
            }
            // Answers are raw: nothing in them is a call. There is one prompt.
            Event::Queued { .. }
            | Event::Progress { .. }
            | Event::Prompt(_)
            | Event::Next(_)
            | Event::CallStarted { .. }
            | Event::CallArguments { .. }
            | Event::CallEnded { .. } => {}
        }
    }

    fn heartbeat(&mut self, out: &mut Frames) {
        out.comment(&self.waiting.comment());
    }
}

//! `/api/generate`: one prompt, as a turn of its user or, with `raw`, as it stands.

use serde_json::{Map, Value};
use text::{Message, Role, arrange_system};

use super::{Form, LineWriter, read_draft, refuse, refuse_images, streams, whole};
use crate::http::ApiError;
use crate::protocol::{Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand};
use crate::work::{PrepareError, Preparing, Prompt, Worker};

/// What a request's prompt is.
#[derive(Clone, Debug)]
enum Given {
    /// A conversation, which the draft has.
    Turn,
    Raw(String),
    /// What stands before a gap, and after it.
    Gap(String, String),
}

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    draft: Draft,
    stream: bool,
    given: Given,
}

impl Understand for Request {
    fn parse(body: &Map<String, Value>, defaults: Defaults) -> Result<Self, ApiError> {
        let fields = Fields::of(body);
        refuse_images(&fields)?;
        refuse(&fields, &["template", "context"])?;
        let mut draft = read_draft(&fields, defaults)?;
        let prompt = fields.required_string("prompt")?;
        let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
        let raw = fields.boolean("raw")?.unwrap_or(false);
        let given = match suffix {
            Some(suffix) => Given::Gap(prompt.to_owned(), suffix.to_owned()),
            None if raw => Given::Raw(prompt.to_owned()),
            None => {
                let system = fields.string("system")?.filter(|system| !system.is_empty());
                let system = system.map(|text| Message::new(Role::System, text));
                let user = Message::new(Role::User, prompt);
                let messages = system.into_iter().chain([user]).collect();
                draft.conversation.messages = arrange_system(messages);
                Given::Turn
            }
        };
        draft.output.raw = !matches!(given, Given::Turn);
        if draft.output.raw && draft.constraint.is_some() {
            return Err(fields.error("format", "needs a turn: not together with raw or suffix"));
        }
        Ok(Self { draft, stream: streams(&fields)?, given })
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
        let at = |field: &'static str| {
            move |error| match error {
                PrepareError::Conversation(problem) => ApiError::field(field, problem),
                other => ApiError::from(other),
            }
        };
        let prompt = match std::mem::replace(&mut self.given, Given::Turn) {
            Given::Turn => worker.prepare(&self.draft.conversation, preparing)?,
            Given::Raw(text) => worker.prepare_marked(&text, preparing).map_err(at("prompt"))?,
            Given::Gap(before, after) => {
                let prompt = worker.prepare_infill(&before, &after, preparing);
                prompt.map_err(at("suffix"))?
            }
        };
        Ok(vec![prompt])
    }
}

/// Text and thinking in the object itself.
pub(crate) struct InObject;

impl Form for InObject {
    fn put(object: &mut Value, thinking: &str, text: &str, _: Value) {
        object["response"] = text.into();
        if !thinking.is_empty() {
            object["thinking"] = thinking.into();
        }
    }
}

impl Protocol for Request {
    const ID_PREFIX: &'static str = "gen-";
    const SCHEMA_FIELD: &'static str = "format";
    type Writer = LineWriter<InObject>;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        LineWriter::new(envelope)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        whole::<InObject>(envelope, gathered)
    }
}

//! `/api/generate`: one prompt, as a turn of its user or, with `raw`, as it stands.

use serde_json::Value;
use text::{Message, Role, arrange_system};

use super::{Form, LineWriter, loaded, read_draft, refuse_images, streams, whole};
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
    /// Nothing: the model is to be loaded, or to be unloaded.
    Nothing {
        unloads: bool,
    },
}

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    draft: Draft,
    stream: bool,
    given: Given,
}

impl Understand for Request {
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        refuse_images(fields)?;
        let (mut draft, unloads) = read_draft(fields, defaults)?;
        let prompt = fields.string("prompt")?.unwrap_or_default();
        let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
        let raw = fields.boolean("raw")?.unwrap_or(false);
        let given = match suffix {
            Some(suffix) => Given::Gap(prompt.to_owned(), suffix.to_owned()),
            None if prompt.is_empty() => Given::Nothing { unloads },
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
        draft.output.raw = matches!(given, Given::Raw(_) | Given::Gap(..));
        Ok(Self { draft, stream: streams(fields)?, given })
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
        let prompt = match &self.given {
            Given::Nothing { .. } => return Ok(Vec::new()),
            Given::Turn => worker.prepare(&self.draft.conversation, preparing)?,
            Given::Raw(text) => worker.prepare_marked(text, preparing).map_err(at("prompt"))?,
            Given::Gap(before, after) => {
                let prompt = worker.prepare_infill(before, after, preparing);
                prompt.map_err(at("suffix"))?
            }
        };
        if !matches!(self.given, Given::Turn) {
            // What was sent is not needed any more.
            self.given = Given::Turn;
        }
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
    type Writer = LineWriter<InObject>;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        LineWriter::new(envelope)
    }

    fn idle(&self, envelope: &Envelope) -> Option<Value> {
        match self.given {
            Given::Nothing { unloads } => Some(loaded::<InObject>(envelope, unloads)),
            _ => None,
        }
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        whole::<InObject>(envelope, gathered)
    }
}

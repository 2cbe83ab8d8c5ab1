//! What the protocols share: reading fields, the job a request amounts to, the answer gathered from events.
//!
//! A protocol's folder turns its requests into a [`Draft`] and events or a [`Gathered`] answer into its own words.
//! Nothing here knows which protocol it serves, and nothing does I/O.

mod bias;
mod constraint;
mod draft;
mod fields;
mod gathered;
mod known;
mod repetition;
mod thinking;
mod tools;
mod unread;
mod usage;
mod weight;

pub(crate) use constraint::response_format;
pub(crate) use draft::{Defaults, Draft, SIDE_SUFFIX, text_error, token_ids};
pub(crate) use fields::{Fields, kind};
pub(crate) use gathered::{Call, Gathered, Part};
pub(crate) use thinking::read_thinking;
pub(crate) use tools::{Choice, check_tools, function_tool, tool_of_function};
pub(crate) use unread::judge;
pub(crate) use usage::logprob_entries;
pub use usage::{experts_json, timings_json};
pub(crate) use weight::weight;

use serde_json::Value;

use crate::http::{ApiError, EventWriter};
use crate::work::{Preparing, Prompt, Worker};

/// What names an answer and is known before it.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    /// With its protocol's prefix.
    pub(crate) id: String,
    pub(crate) created_s: u64,
    /// As the client wrote it; the served one where the client named none.
    pub(crate) model: String,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
}

/// A request of a protocol, understood.
pub(crate) trait Understand: Send + Sized + 'static {
    /// Reads a body; every mistake is found here, but those of fields that are not read.
    fn parse(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError>;

    fn draft(&self) -> &Draft;

    fn draft_mut(&mut self) -> &mut Draft;

    /// Makes its prompts: one, unless the protocol takes several.
    fn prepare(
        &mut self,
        worker: &dyn Worker,
        preparing: Preparing<'_>,
    ) -> Result<Vec<Prompt>, ApiError> {
        let draft = self.draft_mut();
        draft.conversation.answer_tokens = draft.max_tokens;
        Ok(vec![worker.prepare(&draft.conversation, preparing)?])
    }

    /// Memory, roughly, that is kept until the request is answered.
    fn kept_bytes(&self) -> usize {
        self.draft().kept_bytes()
    }
}

/// A request and the two ways of answering it.
pub(crate) trait Protocol: Understand {
    /// Of its answers' identifiers.
    const ID_PREFIX: &'static str;
    type Writer: EventWriter;

    /// Whether the answer is streamed.
    fn streams(&self) -> bool;

    /// Writes a streamed answer.
    fn writer(self, envelope: Envelope) -> Self::Writer;

    /// The answer to a request that asks for no tokens: to have the model loaded, in ollama's protocol.
    fn idle(&self, _: &Envelope) -> Option<Value> {
        None
    }

    /// Writes a whole answer.
    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value;
}

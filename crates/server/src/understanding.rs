//! Requests understood without a server: what a body amounts to, what it would be refused for, and what an answer
//! to it looks like.
//!
//! This is the way that bodies take from `http` through a protocol to the work room, without sockets and
//! without a model. The fuzzer walks it.

use std::time::Duration;

use serde_json::{Map, Value};
use text::sampling::SamplingOptions;

use crate::http::{ApiError, EventWriter, Frames, VALUES_MAX, object, shape};
use crate::protocol::{Defaults, Draft, Envelope, Gathered, Protocol, Understand};
use crate::work::{
    Conversation, Event, Experts, Finish, FinishReason, Job, Owner, Piece, Preparing, Prompt,
    Timings, Usage, Worker,
};
use crate::{chat, completions, messages, ollama, responses, tokens};

/// Vocabulary of the model that is not there.
const VOCABULARY: usize = 1000;

/// A body that was understood.
#[derive(Clone, Debug)]
pub struct Understood {
    /// What would be rendered.
    pub conversation: Conversation,
    /// What would be queued, but for its prompt.
    pub job: Job,
    /// An answer as a stream, with thinking, text and a call; empty where tokens are only counted.
    pub stream: String,
    /// The same answer whole.
    pub whole: Option<Value>,
}

/// A body that was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The response's status.
    pub status: u16,
    /// Why, as its client reads it.
    pub message: String,
}

/// Reads a body that was sent to `path`, one of the paths of the protocols, without `/v1`.
///
/// # Errors
/// What the client is told.
pub fn understand(path: &str, body: &[u8]) -> Result<Understood, Refused> {
    let read = || {
        let body = object(body, VALUES_MAX)?;
        match path {
            "/chat/completions" => answered::<chat::Request>(&body),
            "/responses" => answered::<responses::Request>(&body),
            "/messages" => answered::<messages::Request>(&body),
            "/completions" => answered::<completions::Request>(&body),
            "/api/chat" => answered::<ollama::Chat>(&body),
            "/api/generate" => answered::<ollama::Generate>(&body),
            _ => Ok(understood(messages::Count::parse(&body, defaults())?.draft())),
        }
    };
    read().map_err(|error: ApiError| refused(&error, path))
}

/// Answers a body that was sent to `/tokenize` or `/detokenize`.
///
/// # Errors
/// What the client is told.
pub fn tokens(worker: &dyn Worker, path: &str, body: &[u8]) -> Result<Value, Refused> {
    let answer = || {
        let body = object(body, VALUES_MAX)?;
        match path {
            "/tokenize" => tokens::tokenize(worker, &body, defaults(), Preparing::PATIENT),
            _ => tokens::detokenize(worker, &body, worker.model().vocabulary),
        }
    };
    answer().map_err(|error: ApiError| refused(&error, path))
}

fn refused(error: &ApiError, path: &str) -> Refused {
    Refused { status: error.status(shape(path)).as_u16(), message: error.message().to_owned() }
}

fn defaults() -> Defaults {
    let sampling = SamplingOptions::default();
    Defaults { sampling, vocabulary: VOCABULARY, seed: 7, session: None }
}

fn understood(draft: &Draft) -> Understood {
    let conversation = draft.conversation.clone();
    let job = draft.clone().into_job(
        "job".to_owned(),
        Prompt::default(),
        String::new(),
        Owner::everybody(),
    );
    Understood { conversation, job, stream: String::new(), whole: None }
}

fn answered<P: Protocol>(body: &Map<String, Value>) -> Result<Understood, ApiError> {
    let request = P::parse(body, defaults())?;
    let mut understood = understood(request.draft());
    let model = request.draft().model.clone();
    let id = format!("{}1", P::ID_PREFIX);
    let envelope = Envelope { id, created_s: 0, model, prompt_tokens: 12 };
    let mut gathered = Gathered::default();
    for event in answer() {
        gathered.push(event);
    }
    understood.whole = Some(request.body(&envelope, &gathered));
    let mut writer = request.writer(envelope);
    let mut frames = Frames::default();
    writer.open(&mut frames);
    writer.heartbeat(&mut frames);
    for event in answer() {
        writer.event(event, &mut frames);
    }
    understood.stream = String::from_utf8_lossy(&frames.take()).into_owned();
    Ok(understood)
}

/// An answer with everything in it.
fn answer() -> Vec<Event> {
    let piece = |text: &str| Piece { text: text.to_owned(), logprobs: Vec::new() };
    let second = Duration::from_secs(1);
    vec![
        Event::Progress { processed: 4, total: 12, cached: 4, elapsed: second, eta: None },
        Event::Reasoning(piece("Hm.")),
        Event::Text(piece("Look:")),
        Event::CallStarted { index: 0, id: "abc".to_owned(), name: "look".to_owned() },
        Event::CallArguments { index: 0, delta: "{\"at\":1}".to_owned() },
        Event::CallEnded { index: 0 },
        Event::Finished(Box::new(Finish {
            reason: FinishReason::ToolCalls,
            usage: Usage { prompt: 12, cached: 4, completion: 5, reasoning: 1 },
            timings: Timings { queued: second, prefill: second, decode: second },
            experts: Experts::default(),
            seed: 7,
            logprobs: Vec::new(),
        })),
    ]
}

//! What protocols and engine say to each other: a job, its events, and why there is none.
//!
//! A protocol calls [`Worker::prepare`] first, which renders and tokenises and so finds every mistake of the
//! client before a header is sent, then [`Worker::submit`]. Events come over a bounded channel in this order:
//! any `Queued` and `Progress`, then pieces of reasoning, text and calls, then exactly one `Finished` or
//! `Failed`. Every call that started ends before `Finished`, and before `Failed` too. Dropping the [`Ticket`] cancels
//! the job, wherever it is, within one layer of the model.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use store::cache::StoreCounters;
use text::constraint::SCHEMA_FIELD;
use text::sampling::SamplingOptions;
use text::{Message, OnFull};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::{ModelCard, Owner, SlotAction, SlotDone, SlotError, Status};

/// A conversation as a protocol understood it, before it is a prompt.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages, arranged as templates expect them ([`text::arrange_system`]).
    pub messages: Vec<Message>,
    /// Tools in the form of the chat completions protocol: `{"type": "function", "function": {..}}`.
    pub tools: Vec<Value>,
    /// Whether the model shall think; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Further variables of the template (`chat_template_kwargs`).
    pub template_variables: Map<String, Value>,
    /// What happens where it does not fit the context; `None` leaves it to the server.
    pub on_full: Option<OnFull>,
    /// Most tokens of the answer, where the request has a limit: dropping turns makes room for them.
    pub answer_tokens: Option<usize>,
}

/// A prompt, ready to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Arc<[u32]>,
    /// Ascending positions in `tokens` that later prompts are likely to share: the end of system message and
    /// tools, and the end of the last turn before the assistant's header. The state is kept there.
    pub boundaries: Vec<usize>,
    /// The prompt ends inside a thinking block.
    pub thinking_open: bool,
    /// The prompt ends after a thinking block that the template closed.
    pub thinking_closed: bool,
    /// The oldest turns of the conversation that were left out, because the context is full.
    pub dropped_turns: usize,
}

/// How important a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Normal,
    /// A title, a summary: runs when nothing else does, and evicts nothing of the main conversation.
    Side,
}

/// How the model's output is read.
#[derive(Clone, Debug)]
pub struct OutputRules {
    /// The tools that may be called, in the form of [`Conversation::tools`].
    pub tools: Vec<Value>,
    /// False: the answer ends with its first call.
    pub parallel_tool_calls: bool,
    /// All of it is text: thinking and calls are not told apart.
    pub raw: bool,
}

impl Default for OutputRules {
    fn default() -> Self {
        Self { tools: Vec::new(), parallel_tool_calls: true, raw: false }
    }
}

/// What the visible answer must look like. It begins after the thinking block.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// One JSON object.
    JsonObject,
    /// One JSON value of this schema.
    JsonSchema(Value),
    /// A text by this grammar in llama.cpp's notation.
    Grammar(String),
    /// A text that this regular expression matches.
    Regex(String),
    /// One of these texts.
    OneOf(Vec<String>),
    /// A tool call.
    Tool(CallConstraint),
}

/// Which call must be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallConstraint {
    /// Any of the tools, at least once.
    Any,
    /// This one.
    Named(String),
}

/// One request to the model.
#[derive(Clone, Debug)]
pub struct Job {
    /// The request's id, for logs and metrics.
    pub id: String,
    /// Made by [`Worker::prepare`].
    pub prompt: Prompt,
    /// How tokens are drawn. `logprobs` is set from `top_logprobs`.
    pub sampling: SamplingOptions,
    /// Most tokens to generate, thinking included; `None` goes to the end of the context.
    pub max_tokens: Option<usize>,
    /// Fewest tokens to generate: before that nothing ends the answer, unless its constraint leaves nothing else.
    pub min_tokens: usize,
    /// Tokens that end the answer, besides those of the model.
    pub stop_tokens: Vec<u32>,
    /// Most tokens of thinking: then the block is closed for the model, and it answers. `None` leaves it to the model.
    pub thinking_budget: Option<usize>,
    /// Texts that end the visible answer; they are not part of it.
    pub stop: Vec<String>,
    /// How the output is read.
    pub output: OutputRules,
    /// What the visible answer must look like.
    pub constraint: Option<Constraint>,
    /// Log-probabilities of each token and of this many alternatives; `None` for none at all.
    pub top_logprobs: Option<u8>,
    /// The same of the prompt's tokens, from the second on. Nothing earlier is then used: it has no probabilities.
    pub prompt_logprobs: bool,
    /// How important it is.
    pub priority: Priority,
    /// Who asks: jobs of different clients take turns.
    pub client: String,
    /// Whose kept prompts it may go on from, and whose its own become.
    pub owner: Owner,
    /// A hint which earlier requests this one continues.
    pub session: Option<String>,
    /// The trace that the request is part of (W3C trace context), for recordings.
    pub trace: Option<u128>,
    /// False: nothing earlier is used and nothing is kept.
    pub cache_prompt: bool,
    /// The slot under which its state is found afterwards; `None` for the lowest that is free.
    pub slot: Option<usize>,
}

impl Job {
    /// A job for `prompt` with plain defaults: greedy, to the end of the context.
    pub fn new(id: impl Into<String>, prompt: Prompt) -> Self {
        Self {
            id: id.into(),
            prompt,
            sampling: SamplingOptions::greedy(),
            max_tokens: None,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            thinking_budget: None,
            stop: Vec::new(),
            output: OutputRules::default(),
            constraint: None,
            top_logprobs: None,
            prompt_logprobs: false,
            priority: Priority::Normal,
            client: String::new(),
            owner: Owner::everybody(),
            session: None,
            trace: None,
            cache_prompt: true,
            slot: None,
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text; whole characters.
    pub text: String,
    /// The tokens since the last piece, where they were asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// A generated token and what the model thought of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's id.
    pub id: u32,
    /// Its text; characters that are not whole yet are replaced.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability in the model's own distribution.
    pub logprob: f32,
    /// The most likely tokens at this place, most likely first.
    pub top: Vec<TopLogprob>,
}

/// An alternative to a generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLogprob {
    /// The token's id.
    pub id: u32,
    /// Its text; characters that are not whole yet are replaced.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What happens to a job.
#[derive(Clone, Debug)]
pub enum Event {
    /// It waits; `position` jobs go first.
    Queued {
        /// Jobs in front of it.
        position: usize,
    },
    /// The prompt is being processed. The first one tells how much was cached.
    Progress {
        /// Tokens of the prompt that are done, cached ones included.
        processed: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens that were not computed again.
        cached: usize,
        /// Since the processing began.
        elapsed: Duration,
        /// How much longer it will take; `None` before there is a measure.
        eta: Option<Duration>,
    },
    /// Tokens of the prompt with their log-probabilities, where they were asked for: from the second on, in order.
    Prompt(Vec<TokenLogprob>),
    /// The answer to one prompt of several is complete, that to the next begins.
    Next(Box<Finish>),
    /// Thinking.
    Reasoning(Piece),
    /// Visible text.
    Text(Piece),
    /// A tool call begins.
    CallStarted {
        /// Which call of the answer, from zero.
        index: usize,
        /// A random identifier without prefix.
        id: String,
        /// The tool.
        name: String,
    },
    /// JSON text of the call's arguments; the pieces of a call join to one object.
    CallArguments {
        /// Which call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// A call is complete.
    CallEnded {
        /// Which call.
        index: usize,
    },
    /// The answer is complete. Nothing follows.
    Finished(Box<Finish>),
    /// There will be no (further) answer. Nothing follows.
    Failed(JobError),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// One of the job's stop strings came.
    StopString(String),
    /// `max_tokens` or the end of the context.
    Length,
    /// The model called tools and was done.
    ToolCalls,
}

/// Tokens of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt, cached ones included.
    pub prompt: usize,
    /// Of the prompt, not computed again.
    pub cached: usize,
    /// Generated, thinking and end token included.
    pub completion: usize,
    /// Generated inside the thinking block.
    pub reasoning: usize,
}

/// How long the parts of a job took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to the first work.
    pub queued: Duration,
    /// From the first work to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// What was read for a job: differences of the engine's counters over its time, other jobs of the time included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    /// Expert records that were in memory when they were asked for.
    pub hits: u64,
    /// Expert records that had to be read.
    pub misses: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Time that computation waited for reads.
    pub wait: Duration,
    /// The job's whole time of work, for rates.
    pub elapsed: Duration,
}

impl Experts {
    /// What was read in a time, by the counters' differences over it.
    pub fn of(spent: &StoreCounters, elapsed: Duration) -> Self {
        let (decode, prefill) = (&spent.decode, &spent.prefill);
        Self {
            hits: decode.hits + prefill.hits,
            misses: decode.misses + prefill.misses,
            bytes_read: spent.bytes_read,
            wait: Duration::from_micros(decode.stall_us + prefill.stall_us),
            elapsed,
        }
    }
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
    /// Reads.
    pub experts: Experts,
    /// The seed that was used: the same seed and request give the same answer.
    pub seed: u64,
    /// The oldest turns of the conversation that were left out, because the context is full.
    pub dropped_turns: usize,
    /// Log-probabilities of tokens after the last piece, where they were asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// A job that began and could not be finished.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// The engine failed: a device, damaged weights.
    #[error("{0}")]
    Engine(String),
    /// Weights could not be read for now: another try may find them well.
    #[error("{0}")]
    Unread(String),
    /// The engine panicked while it worked for this job.
    #[error("the engine failed while it worked for this request; nothing of it is left, try again")]
    Panicked,
    /// A part of the model is in a process that is lost; the server ends, to be started anew.
    #[error(
        "stage_lost: a part of the model is in a process that is lost; the server starts anew, try again"
    )]
    StageLost,
    /// What the client asked for cannot be gone on with: its constraint and its biases leave no token.
    #[error("{field}: {problem}")]
    Request {
        /// The field of the request that is at fault.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The client does not take its events: it was waited for this long.
    #[error("the client did not read its events for {} seconds", .0.as_secs())]
    SlowClient(Duration),
    /// The server is being stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// A conversation that is not a prompt: the client's mistake.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PrepareError {
    /// A message or a template variable that the template does not take.
    #[error("{0}")]
    Conversation(String),
    /// The template's process was lost: nobody knows whether the conversation is at fault.
    #[error("{0}")]
    Template(String),
    /// The model has no chat template.
    #[error("this model has no chat template")]
    NoTemplate,
    /// More tokens than the context has.
    #[error(
        "the prompt has {}{prompt} tokens, the context {context}",
        if *counted { "" } else { "more than " }
    )]
    TooLong {
        /// Tokens of the prompt, as far as they were counted.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
        /// All were counted.
        counted: bool,
    },
    /// More tokens than the context has, without any of the turns that may be left out.
    #[error(
        "the system prompt and the last turn alone have {}{prompt} tokens, the context {context}",
        if *counted { "" } else { "more than " }
    )]
    LastTurnTooLong {
        /// Tokens of both, as far as they were counted.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
        /// All were counted.
        counted: bool,
    },
    /// More text than the tokens of the context can hold. Nothing was tokenised.
    #[error(
        "the prompt has {}{bytes} bytes of text; {context} tokens of context hold {most} at most",
        if *counted { "" } else { "more than " }
    )]
    TooMuchText {
        /// Bytes of text, as far as they were counted.
        bytes: usize,
        /// Most bytes that the context can hold.
        most: usize,
        /// Tokens of the context.
        context: usize,
        /// All were counted.
        counted: bool,
    },
    /// The client has gone.
    #[error("given up: the client has gone")]
    Gone,
}

/// How far a prompt is looked at, and for whom.
#[derive(Clone, Copy)]
pub struct Preparing<'a> {
    /// Counts all tokens of a prompt that is too long, instead of giving up at some multiple of the context.
    pub count: bool,
    /// Whether the client has gone.
    pub gone: &'a dyn Fn() -> bool,
}

impl Preparing<'_> {
    /// For a client that stays.
    pub const PATIENT: Preparing<'static> = Preparing { count: false, gone: &|| false };
}

/// A job that is not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full: the client may come again.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// Jobs that wait.
        waiting: usize,
        /// When to come again.
        retry_after: Duration,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, the context {context}")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// Sampling options, stop strings or an empty prompt that cannot be used.
    #[error("{0}")]
    BadRequest(String),
    /// The constraint cannot be understood or enforced.
    #[error("{problem}")]
    BadConstraint {
        /// The field of the request that is at fault, as chat completions name it.
        field: String,
        /// What is wrong with it, beginning with the field.
        problem: String,
    },
    /// The server is being stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl Refusal {
    /// The same with the constraint called by its place in the request.
    #[must_use]
    pub fn with_constraint_at(self, place: &str) -> Self {
        match self {
            Self::BadConstraint { field, problem } => Self::BadConstraint {
                field: field.replacen(SCHEMA_FIELD, place, 1),
                problem: problem.replacen(SCHEMA_FIELD, place, 1),
            },
            other => other,
        }
    }
}

/// What comes of an order for a slot.
pub type SlotReply = oneshot::Receiver<Result<SlotDone, SlotError>>;

/// Takes jobs.
pub trait Worker: Send + Sync + 'static {
    /// Renders and tokenises a conversation. Takes milliseconds, whatever the engine is doing.
    ///
    /// # Errors
    /// The client's mistakes; never the server's.
    fn prepare(
        &self,
        conversation: &Conversation,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError>;

    /// A text as a prompt, without a template.
    ///
    /// # Errors
    /// The client's mistakes.
    fn prepare_text(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError>;

    /// A text as a prompt, with control tokens where their texts stand.
    ///
    /// # Errors
    /// The client's mistakes.
    fn prepare_marked(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError>;

    /// A prompt for the text between two others.
    ///
    /// # Errors
    /// The client's mistakes; the vocabulary may have no tokens for it.
    fn prepare_infill(
        &self,
        prefix: &str,
        suffix: &str,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError>;

    /// Whether the vocabulary has what [`Worker::prepare_infill`] needs.
    fn fills_gaps(&self) -> bool {
        true
    }

    /// Tokens as a prompt.
    ///
    /// # Errors
    /// The client's mistakes.
    fn prepare_tokens(&self, tokens: Vec<u32>) -> Result<Prompt, PrepareError>;

    /// The bytes of a token's text; empty for an id without text.
    fn token_bytes(&self, token: u32) -> Vec<u8>;

    /// Most tokens of a conversation, answer included.
    fn context_length(&self) -> usize;

    /// What is served.
    fn model(&self) -> ModelCard;

    /// Queues a job.
    ///
    /// # Errors
    /// Why it is not taken.
    fn submit(&self, job: Job) -> Result<Ticket, Refusal>;

    /// Since the engine's thread last gave a sign of life, which it does between experts and while it waits for them.
    fn silence(&self) -> Duration {
        Duration::ZERO
    }

    /// Numbers of the moment; never waits for the engine.
    fn status(&self) -> Status;

    /// Saves, restores or erases a slot of an owner's; the answer comes from the engine's thread.
    ///
    /// # Errors
    /// The worker has no slots, or takes no orders now.
    fn slot(&self, _: usize, _: SlotAction, _: &Owner) -> Result<SlotReply, SlotError> {
        Err(SlotError::NoFolder)
    }

    /// Ends all jobs and what works for them, and waits for that. Nothing is taken any more.
    fn stop(&self) {}
}

/// A job that was taken. Dropping it cancels the job.
#[derive(Debug)]
pub struct Ticket {
    /// The job's events. The channel closes after the last.
    pub events: mpsc::Receiver<Event>,
}

//! The worker: what protocols hold of the engine's thread.
//!
//! Prompts are made on the caller's thread, so that a client's mistake is known at once whatever the engine does. Jobs
//! go into the queue; the thread takes them from there.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::drafts::Drafting;
use engine::engine::Engine;
use engine::routing::Heat;
use text::constraint::{ConstraintError, Grammars, Rule};
use text::{
    EncodeLimit, Fitted, Language, Message, OnFull, RenderOptions, Role, Room, TextError, Thinking,
    fit,
};
use tokio::sync::{mpsc, oneshot};

use super::active;
use super::disk::{DiskOptions, DiskTier, SharedOptions};
use super::guide::Guide;
use super::lock::hold;
use super::outbox::{CHANNEL_EVENTS, Outbox};
use super::owner::Salt;
use super::panics::Panics;
use super::scheduler::{Scheduler, Start};
use super::shared::Shared;
use super::slots::{SlotOrder, Slots};
use super::{
    CallConstraint, Constraint, Conversation, Event, Failing, Job, JobError, ModelCard, Owner,
    PrepareError, Preparing, Prompt, Refusal, SlotAction, SlotError, SlotOptions, SlotReply,
    Status, Ticket, Worker,
};
use crate::log::{Level, Log};

/// What a worker needs to know beside the engine.
pub struct WorkerOptions {
    /// What is served.
    pub model: ModelCard,
    /// Most tokens of a conversation.
    pub context: usize,
    /// Jobs that hold a sequence at a time; the engine must have as many.
    pub sequences: usize,
    /// Jobs that may wait.
    pub queue: usize,
    /// System prompt of conversations that bring none.
    pub system: Option<String>,
    /// What happens where a conversation does not fit the context, unless its request says so.
    pub on_full: OnFull,
    /// Where snapshots outlive the worker; `None` for nowhere.
    pub disk: Option<DiskOptions>,
    /// A folder of several servers, below that one; `None` for none.
    pub shared: Option<SharedOptions>,
    /// Where slots are saved by name; `None` for nowhere.
    pub slots: Option<SlotOptions>,
    /// Panics of the engine within a minute from which on the server ends.
    pub panics: usize,
    /// How answers are drafted; `None` for not at all. The engine must have rounds.
    pub drafting: Option<Drafting>,
    /// Where lines of the log go; they have no text of prompts or answers.
    pub log: Log,
}

/// A prompt that is too long is counted up to so many times the context, so that clients learn by how much.
const COUNTED_CONTEXTS: usize = 2;
/// Control tokens around what stands before and after a gap, and where it is filled: Qwen's, which others took over.
const INFILL_MARKERS: [&str; 3] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
/// Orders for slots that may wait.
const SLOT_ORDERS_MAX: usize = 16;
/// Runs jobs on an engine.
pub struct EngineWorker {
    shared: Arc<Shared>,
    language: Arc<Language>,
    /// Or why answers cannot be constrained.
    grammars: Result<Arc<Grammars>, ConstraintError>,
    options: ServedModel,
    /// Of the hashes by which owners of kept prompts are told apart.
    salt: Salt,
    /// Counted by the engine, where its device sees every choice.
    heat: Option<Heat>,
    /// Taken by who waits for its end; there is nothing half-done about it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What callers may ask without the engine.
struct ServedModel {
    model: ModelCard,
    context: usize,
    vocabulary: usize,
    sequences: usize,
    queue: usize,
    system: Option<String>,
    on_full: OnFull,
}

/// Marks the worker as stopped when its thread ends, however it ends.
struct StopAtEnd(Arc<Shared>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        let asked = self.0.is_stopping();
        self.0.begin_to_stop();
        let mut status = self.0.status();
        // An engine that broke has stopped by itself, also if it was asked to afterwards.
        if !asked || status.failing != Some(Failing::Broken) {
            status.failing = Some(if asked { Failing::Ended } else { Failing::Broken });
        }
        drop(status);
        // Clients that wait hear that nothing will come.
        for mut waiting in self.0.queue().drain() {
            waiting.outbox.send(Event::Failed(JobError::Panicked));
        }
    }
}

impl EngineWorker {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// The system has no thread to give, or the folder of snapshots cannot be used.
    pub fn start(
        engine: Engine,
        language: Arc<Language>,
        options: WorkerOptions,
    ) -> std::io::Result<Self> {
        let WorkerOptions { model, context, sequences, queue, system, on_full, .. } = options;
        let (panics, drafting, log) = (options.panics, options.drafting, options.log);
        let folders = (options.disk, options.shared);
        let slots = Slots::open(options.slots, sequences)?;
        let shared = Arc::new(Shared::new(sequences, log));
        let vocabulary = engine.config().vocabulary;
        let for_disk = Arc::clone(&shared);
        let log = move |line: &str| for_disk.log(Level::Warn, line);
        let disk = DiskTier::open(folders.0, folders.1, log)?;
        let of_slots = || slots.salt().unwrap_or_else(Salt::random);
        let salt = disk.as_ref().and_then(DiskTier::salt).map_or_else(of_slots, Ok)?;
        let (for_thread, words) = (Arc::clone(&shared), Arc::clone(&language));
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _stop = StopAtEnd(Arc::clone(&for_thread));
            let panics = Panics::new(panics);
            let start = Start { context, sequences, disk, slots, panics, drafting };
            Scheduler::new(engine, words, for_thread, start).run();
        })?;
        let options = ServedModel { model, context, vocabulary, sequences, queue, system, on_full };
        let ends = &language.end_tokens;
        let grammars = Grammars::new(&language.tokenizer, language.dialect, ends, vocabulary);
        let grammars = grammars.map(Arc::new);
        let thread = Mutex::new(Some(thread));
        Ok(Self { shared, language, grammars, options, salt, heat: None, thread })
    }

    /// Shows how often each expert was chosen, as `heat` counts it.
    #[must_use]
    pub fn with_heat(mut self, heat: Heat) -> Self {
        self.heat = Some(heat);
        self
    }

    /// Ends all jobs and waits for the engine's thread.
    pub fn stop(&self) {
        self.shared.begin_to_stop();
        let thread = hold(&self.thread).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            self.shared.log(Level::Error, "the engine's thread ended by a panic");
        }
    }

    /// What stands over a job's tokens, compiled on the caller's thread.
    fn guide(&self, job: &Job) -> Result<Option<Guide>, Refusal> {
        let thinking = match &job.prompt {
            _ if job.output.raw => Thinking::Closed,
            prompt if prompt.thinking_open => Thinking::Open,
            prompt if prompt.thinking_closed => Thinking::Closed,
            _ => Thinking::Unopened,
        };
        let rule = match &job.constraint {
            None => {
                let watch = self.grammars.as_ref().ok();
                let watch = watch.and_then(|grammars| grammars.watch(&job.output.tools, thinking));
                return Ok(watch.map(Guide::Calls));
            }
            Some(Constraint::JsonObject) => Rule::JsonObject,
            Some(Constraint::JsonSchema(schema)) => Rule::JsonSchema(schema.clone()),
            Some(Constraint::Grammar(text)) => Rule::Grammar(text.clone()),
            Some(Constraint::Regex(text)) => Rule::Regex(text.clone()),
            Some(Constraint::OneOf(texts)) => Rule::OneOf(texts.clone()),
            Some(Constraint::Tool(which)) => Rule::Calls {
                name: match which {
                    CallConstraint::Any => None,
                    CallConstraint::Named(name) => Some(name.clone()),
                },
                parallel: job.output.parallel_tool_calls,
            },
        };
        let refused = |error: &ConstraintError| Refusal::BadConstraint {
            field: error.field().unwrap_or("response_format").to_owned(),
            problem: error.to_string(),
        };
        let grammars = self.grammars.as_ref().map_err(refused)?;
        let compiled = grammars.compile(&rule, &job.output.tools, thinking);
        compiled.map(|rule| Some(Guide::Rule(Box::new(rule)))).map_err(|error| refused(&error))
    }

    /// The control tokens around a gap, as far as the vocabulary has them.
    fn infill_markers(&self) -> [Option<u32>; 3] {
        INFILL_MARKERS.map(|text| {
            let id = self.language.tokenizer.token_id(text);
            id.filter(|&id| self.language.tokenizer.is_control(id))
        })
    }

    fn fitting(&self, prompt: Prompt) -> Result<Prompt, PrepareError> {
        let (tokens, context) = (prompt.tokens.len(), self.options.context);
        if tokens == 0 {
            return Err(PrepareError::Conversation("the prompt is empty".to_owned()));
        }
        if tokens >= context {
            return Err(PrepareError::TooLong { prompt: tokens, context, counted: true });
        }
        Ok(prompt)
    }

    fn limit<'a>(&self, preparing: Preparing<'a>) -> EncodeLimit<'a> {
        let tokens = self.options.context;
        let counted = if preparing.count { usize::MAX } else { COUNTED_CONTEXTS * tokens };
        EncodeLimit { tokens, counted, gone: preparing.gone }
    }

    fn refused(&self, error: TextError) -> PrepareError {
        let context = self.options.context;
        match error {
            TextError::TooManyTokens { tokens, all } => {
                PrepareError::TooLong { prompt: tokens, context, counted: all }
            }
            TextError::TooMuchText { bytes, all, most } => {
                PrepareError::TooMuchText { bytes, most, context, counted: all }
            }
            TextError::Gone => PrepareError::Gone,
            lost @ TextError::TemplateLost { .. } => PrepareError::Template(lost.to_string()),
            other => PrepareError::Conversation(other.to_string()),
        }
    }
}

impl Drop for EngineWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Worker for EngineWorker {
    fn prepare(
        &self,
        conversation: &Conversation,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError> {
        let template = self.language.template.as_ref().ok_or(PrepareError::NoTemplate)?;
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: conversation.thinking,
            extra: conversation.template_variables.clone(),
            ..RenderOptions::default()
        };
        let tools = &conversation.tools;
        let mut messages = Cow::Borrowed(&conversation.messages);
        let brings_one = messages.first().is_some_and(|message| message.role == Role::System);
        if let Some(system) = self.options.system.as_ref().filter(|_| !brings_one) {
            messages.to_mut().insert(0, Message::new(Role::System, system.as_str()));
        }
        let sampled = &mut |message: &Message| self.shared.turns().find(message);
        let render = &mut |messages: &[Message], limit: EncodeLimit<'_>| {
            self.language.render_within(template, messages, tools, &options, sampled, limit)
        };
        // Who counts tokens asks for those of all turns.
        let on_full = conversation.on_full.unwrap_or(self.options.on_full);
        let on_full = if preparing.count { OnFull::Stop } else { on_full };
        let room = Room { on_full, answer: conversation.answer_tokens };
        let fitted = fit(&messages, room, self.limit(preparing), render);
        let Fitted { prompt, dropped: dropped_turns } = fitted.map_err(|error| match error {
            TextError::TooManyTokens { tokens, all } if on_full == OnFull::DropOldest => {
                let context = self.options.context;
                PrepareError::LastTurnTooLong { prompt: tokens, context, counted: all }
            }
            other => self.refused(other),
        })?;
        if let Ok(grammars) = &self.grammars
            && !preparing.count
        {
            grammars.prepare_watch(tools);
        }
        // System message and tools are one turn, which other conversations begin with as well.
        let opening = messages.first().is_some_and(|message| message.role == Role::System)
            || !tools.is_empty();
        let opening = prompt.turns.get(1).copied().filter(|_| opening);
        let mut boundaries: Vec<usize> =
            opening.into_iter().chain(prompt.turns.last().copied()).collect();
        boundaries.retain(|&cut| cut > 0);
        boundaries.dedup();
        let tokens = prompt.tokens.into();
        let thinking_open = prompt.thinking == Thinking::Open;
        let thinking_closed = prompt.thinking == Thinking::Closed;
        self.fitting(Prompt { tokens, boundaries, thinking_open, thinking_closed, dropped_turns })
    }

    fn prepare_text(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError> {
        let tokens = self.language.encode_within(text, self.limit(preparing));
        let tokens = tokens.map_err(|error| self.refused(error))?;
        let tokens = tokens.into();
        self.fitting(Prompt { tokens, ..Prompt::default() })
    }

    fn prepare_marked(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError> {
        let tokens = self.language.encode_marked(text, self.limit(preparing));
        let tokens = tokens.map_err(|error| self.refused(error))?;
        self.fitting(Prompt { tokens: tokens.into(), ..Prompt::default() })
    }

    fn prepare_infill(
        &self,
        prefix: &str,
        suffix: &str,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError> {
        let [Some(before), Some(after), Some(middle)] = self.infill_markers() else {
            let problem = format!("the vocabulary has no {}", INFILL_MARKERS.join(", "));
            return Err(PrepareError::Conversation(problem));
        };
        let encode = |text| {
            let tokens = self.language.encode_within(text, self.limit(preparing));
            tokens.map_err(|error| self.refused(error))
        };
        let tokens = [vec![before], encode(prefix)?, vec![after], encode(suffix)?, vec![middle]];
        self.fitting(Prompt { tokens: tokens.concat().into(), ..Prompt::default() })
    }

    fn fills_gaps(&self) -> bool {
        self.infill_markers().iter().all(Option::is_some)
    }

    fn prepare_tokens(&self, tokens: Vec<u32>) -> Result<Prompt, PrepareError> {
        let vocabulary = self.options.vocabulary;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            let problem = format!("token {token} is not in the vocabulary of {vocabulary}");
            return Err(PrepareError::Conversation(problem));
        }
        self.fitting(Prompt { tokens: tokens.into(), ..Prompt::default() })
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.language.tokenizer.token_bytes(token).to_vec()
    }

    fn context_length(&self) -> usize {
        self.options.context
    }

    fn model(&self) -> ModelCard {
        self.options.model.clone()
    }

    fn submit(&self, job: Job) -> Result<Ticket, Refusal> {
        if self.shared.is_stopping() {
            return Err(Refusal::ShuttingDown);
        }
        let (prompt, context) = (job.prompt.tokens.len(), self.options.context);
        if prompt >= context {
            return Err(Refusal::TooLong { prompt, context });
        }
        if let Some(token) =
            job.prompt.tokens.iter().find(|&&token| token as usize >= self.options.vocabulary)
        {
            return Err(Refusal::BadRequest(format!("token {token} is not in the vocabulary")));
        }
        if prompt == 0 {
            return Err(Refusal::BadRequest("the prompt is empty".to_owned()));
        }
        let slots = self.options.sequences;
        if job.slot.is_some_and(|slot| slot >= slots) {
            let reason = format!("id_slot: {}", SlotError::NoSlot(slots));
            return Err(Refusal::BadRequest(reason));
        }
        active::check(&job, &self.language, self.options.vocabulary)?;
        let guide = self.guide(&job)?;
        let (sender, events) = mpsc::channel(CHANNEL_EVENTS);
        {
            let mut queue = self.shared.queue();
            queue.purge();
            let waiting = queue.len();
            if waiting + queue.running >= slots + self.options.queue {
                drop(queue);
                self.shared.status().refused += 1;
                let retry_after = Duration::from_secs(10);
                return Err(Refusal::QueueFull { waiting, retry_after });
            }
            let domain = self.salt.domain(&job.owner);
            queue.push(job, domain, guide, Outbox::new(sender));
        }
        // The thread may have ended meanwhile; then no thread would take the job.
        if self.shared.is_stopping() {
            return Err(Refusal::ShuttingDown);
        }
        self.shared.wake();
        Ok(Ticket { events })
    }

    fn silence(&self) -> Duration {
        self.shared.silence()
    }

    fn slot(&self, slot: usize, action: SlotAction, owner: &Owner) -> Result<SlotReply, SlotError> {
        let domain = self.salt.domain(owner);
        let (reply, answer) = oneshot::channel();
        {
            let mut queue = self.shared.queue();
            if self.shared.is_stopping() || queue.orders.len() >= SLOT_ORDERS_MAX {
                return Err(SlotError::Later);
            }
            queue.orders.push_back(SlotOrder { slot, action, domain, reply });
        }
        self.shared.wake();
        Ok(answer)
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn status(&self) -> Status {
        let expert_heat = self.heat.as_ref().map(Heat::read).unwrap_or_default();
        Status { expert_heat, ..self.shared.status().clone() }
    }
}

//! The engine's thread: who computes next.
//!
//! Prompts run layer by layer, one chunk at a time; between two layers the chunk can be put aside for a step of the
//! answers in progress, all of them together, so that they share the experts they read, or for another prompt. Answers
//! and prompts get half of the time each. Among prompts the one with the least time so far is next; among prompts of
//! similar size the one at the earliest layer, so that experts read for one serve the others. Jobs on the side run only
//! when no other job does. Nothing of this changes a bit of any answer. With several stages `under_way` has the turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::{Cancel, SequenceId};
use engine::drafts::{Drafting, ROUND_TOKENS};
use engine::engine::Engine;
use store::timeline;
use text::Language;
use tokio::sync::mpsc;

use super::active::{Active, Chunk, Doing};
use super::disk::{DiskTier, Level};
use super::outbox::Outbox;
use super::panics::{Panics, Round};
use super::prefix::PrefixCache;
use super::shared::Shared;
use super::slots::Slots;
use super::step::Rows;
use super::under_way::UnderWay;
use super::{Event, FinishReason, JobError, Status};

/// Prompts keep step when neither chunk is more than this many times the other.
const COMPANION: usize = 2;
/// Prompts are changed no sooner than one is this far behind another.
const SHARE_STEP: Duration = Duration::from_millis(50);
/// Tokens that are left of a short prompt at the most, on a device that reads no expert from a disk: it runs to its end
/// before another, since the first token of each would else come when the last of them does.
const SHORT_TOKENS: usize = 1024;
/// How long answers may wait for a short prompt: 500 tokens after 30,000 take 68 ms on an H200, a step of eight 4.4.
const PATIENCE: Duration = Duration::from_millis(50);
/// Steps that answers have between short prompts while several wait. Agents whose answers began together also end
/// them together, and their next prompts come at a time again: by these steps an answer is ahead of the next one's.
pub(super) const STEPS_BETWEEN: usize = 10;
/// So many short prompts that wait behind one are several.
const SEVERAL: usize = 2;
/// A client that takes no events for so long is given up.
pub(super) const SLOW_CLIENT: Duration = Duration::from_secs(300);
/// How long an idle thread sleeps before it looks for clients that have gone.
const IDLE: Duration = Duration::from_millis(200);
/// And how long while clients have something to read.
const DELIVERY: Duration = Duration::from_millis(5);
/// How long clients have for the last events once the thread ends: those that read have them at once.
pub(super) const LAST_DELIVERY: Duration = Duration::from_secs(2);
/// The status is renewed no more often than this.
pub(super) const STATUS_INTERVAL: Duration = Duration::from_millis(50);
/// Snapshots are written to disk once nothing was asked for so long.
const SPILL_AFTER: Duration = Duration::from_secs(10);
/// A prefix that another job is computing is worth waiting for from this many tokens on.
pub(super) const WORTH_WAITING: usize = 64;

/// Cancels a layer of a prompt when its client has gone, or the server stops: the chunk would be lost in any case.
struct Abandoned<'a>(&'a Outbox, &'a Shared);

impl Cancel for Abandoned<'_> {
    fn is_cancelled(&self) -> bool {
        self.1.beat();
        self.0.is_closed() || self.1.is_stopping()
    }
}

/// Everything that the engine's thread owns.
pub(super) struct Scheduler {
    pub(super) engine: Engine,
    pub(super) language: Arc<Language>,
    pub(super) shared: Arc<Shared>,
    pub(super) context: usize,
    pub(super) sequences: usize,
    pub(super) active: Vec<Active>,
    /// Jobs that are done but for their clients' reading.
    pub(super) draining: Vec<Outbox>,
    pub(super) prefix: PrefixCache,
    pub(super) disk: Option<DiskTier>,
    pub(super) slots: Slots,
    idle_since: Option<Instant>,
    /// Index of the job whose chunk the device holds between two layers.
    pub(super) on_device: Option<usize>,
    /// Prefill time since the last decode step, and that step's time.
    pub(super) since_step: Duration,
    pub(super) step_time: Duration,
    /// Steps since the last short prompt's end, up to [`STEPS_BETWEEN`].
    pub(super) steps_between: usize,
    /// Batches under way, where there are several stages.
    pub(super) under_way: Vec<UnderWay>,
    /// When the last step came back.
    pub(super) last_step: Option<Instant>,
    /// Signs of life of the stages' threads so far.
    pub(super) pulse: u64,
    /// Steps of answers so far.
    pub(super) steps: u64,
    /// How answers are drafted; `None` for not at all.
    pub(super) drafting: Option<Drafting>,
    /// Sequences of the jobs that the thread works for: a panic ends these.
    pub(super) at_work: Vec<SequenceId>,
    /// The way to the client of a job that is between queue, sequence and end.
    pub(super) in_hand: Option<mpsc::Sender<Event>>,
    pub(super) panics: Panics,
    pub(super) status: Status,
    pub(super) published: Option<Instant>,
    /// Tokens per second of the last prefill.
    pub(super) usual_rate: Option<f64>,
}

/// What a scheduler starts with.
pub(super) struct Start {
    /// Most tokens of a conversation.
    pub(super) context: usize,
    /// Most conversations.
    pub(super) sequences: usize,
    pub(super) disk: Option<DiskTier>,
    pub(super) slots: Slots,
    pub(super) panics: Panics,
    pub(super) drafting: Option<Drafting>,
}

impl Scheduler {
    pub(super) fn new(
        engine: Engine,
        language: Arc<Language>,
        shared: Arc<Shared>,
        start: Start,
    ) -> Self {
        let Start { context, sequences, disk, slots, panics, drafting } = start;
        Self {
            engine,
            language,
            shared,
            context,
            sequences,
            active: Vec::new(),
            draining: Vec::new(),
            prefix: PrefixCache::default(),
            disk,
            slots,
            idle_since: None,
            on_device: None,
            since_step: Duration::ZERO,
            step_time: Duration::ZERO,
            steps_between: STEPS_BETWEEN,
            under_way: Vec::new(),
            last_step: None,
            pulse: 0,
            steps: 0,
            drafting,
            at_work: Vec::with_capacity(sequences),
            in_hand: None,
            panics,
            status: Status { sequences, ..Status::default() },
            published: None,
            usual_rate: None,
        }
    }

    /// Works until the server stops, or the engine is not usable any more.
    pub(super) fn run(mut self) {
        while !self.shared.is_stopping() {
            match self.guarded_round() {
                Round::Worked => {}
                Round::Idle if self.draining.is_empty() => self.shared.wait(IDLE),
                Round::Idle => self.shared.wait(DELIVERY),
                Round::Lost => return self.give_up_all(),
            }
        }
        self.drain_stages();
        for index in (0..self.active.len()).rev() {
            self.keep_whole(index);
            let mut active = self.remove(index);
            active.outbox.send(Event::Failed(JobError::ShuttingDown));
            self.draining.push(active.outbox);
        }
        for mut waiting in self.shared.queue().drain() {
            waiting.outbox.send(Event::Failed(JobError::ShuttingDown));
        }
        self.draining.retain_mut(|outbox| !outbox.flush());
        let draining = std::mem::take(&mut self.draining);
        self.spill_all();
        Outbox::deliver(draining, LAST_DELIVERY);
    }

    /// Lets jobs come and go and does one piece of work; false when there is none.
    pub(super) fn round(&mut self) -> bool {
        if self.stages_live() {
            self.shared.beat();
        }
        self.shared.tell_log();
        self.note_lost_stage();
        self.forget_gone();
        self.serve_slots();
        self.admit();
        let worked = if self.is_staged() { self.turn_stages() } else { self.turn() };
        if let Some(disk) = &self.disk {
            disk.set_busy(worked);
        }
        if self.publish(!worked) {
            // Another server may have to go on from here at any time.
            self.spill(Level::Shared);
        }
        self.idle_since = if worked { None } else { self.idle_since.or(Some(Instant::now())) };
        if self.idle_since.is_some_and(|since| since.elapsed() > SPILL_AFTER) {
            self.spill(Level::Local);
        }
        worked
    }

    /// Does one piece of work; false when there is none.
    fn turn(&mut self) -> bool {
        let normal = self.active.iter().any(|active| !active.is_side());
        let may_run = |active: &Active| !(normal && active.is_side());
        let decoding = |active: &Active| matches!(active.doing, Doing::Decode(_));
        let answers = (0..self.active.len())
            .filter(|&index| decoding(&self.active[index]) && may_run(&self.active[index]));
        let answers = self.due(answers.collect(), ROUND_TOKENS);
        let prompts = (0..self.active.len())
            .filter(|&index| !decoding(&self.active[index]) && may_run(&self.active[index]));
        let prompts: Vec<usize> = prompts.collect();
        let behind = prompts.iter().copied().min_by_key(|&it| (self.active[it].share, it));
        let Some(mut prompt) = behind else {
            if answers.is_empty() {
                return false;
            }
            self.step(&answers);
            return true;
        };
        let in_step = self.in_step(prompt, &prompts);
        if let Some(in_step) = in_step {
            prompt = in_step;
        } else if let Some(current) = self.on_device
            && current != prompt
            && may_run(&self.active[current])
            && (self.is_short(current)
                || self.active[current].share < self.active[prompt].share + SHARE_STEP)
        {
            prompt = current;
        }
        let patience = if self.is_short(prompt) { PATIENCE } else { Duration::ZERO };
        let step_is_due = !answers.is_empty()
            && (self.since_step >= self.step_time.max(patience) || self.spreads_answers(&prompts));
        if (step_is_due || self.on_device.is_some_and(|current| current != prompt))
            && !self.clear_device()
        {
            // The device has to finish the chunk that it holds.
            prompt = self.on_device.unwrap_or(prompt);
        } else if step_is_due {
            self.step(&answers);
            return true;
        }
        match self.joined(prompt, &prompts) {
            Some(members) => self.prefill_together(&members),
            None => self.prefill_layer(prompt),
        }
        true
    }

    /// Whether what is left of a prompt is done in the time of some steps.
    fn is_short(&self, index: usize) -> bool {
        self.is_quick() && self.left(index) <= SHORT_TOKENS.min(self.engine.chunk())
    }

    /// Whether answers are to get further ahead of those whose short prompts wait, each for a batch of its own.
    fn spreads_answers(&self, prompts: &[usize]) -> bool {
        if self.steps_between == STEPS_BETWEEN || self.on_device.is_some() {
            return false;
        }
        let joint = self.engine.stages().rules().joint_tokens;
        let waits = |&&index: &&usize| self.is_short(index) && self.left(index) > joint;
        prompts.iter().filter(waits).count() >= SEVERAL
    }

    /// Tokens of a prompt that are still to be computed.
    fn left(&self, index: usize) -> usize {
        let active = &self.active[index];
        active.prompt() - self.engine.sequence_length(active.sequence)
    }

    /// Whether prompts wait for no disk.
    fn is_quick(&self) -> bool {
        self.engine.stages().rules().joint_tokens > 0
    }

    /// Of several prompts of like size, the one that is the fewest layers on, so that they pass each layer one after
    /// the other: what one has read of its experts the next still finds. `None` for a prompt without a companion, and
    /// where nothing is read.
    fn in_step(&self, prompt: usize, prompts: &[usize]) -> Option<usize> {
        if self.is_quick() {
            return None;
        }
        let size = self.chunk_tokens(prompt);
        let alike = |other: &usize| {
            let other = self.chunk_tokens(*other);
            size <= COMPANION * other && other <= COMPANION * size
        };
        let companions: Vec<usize> = prompts.iter().copied().filter(alike).collect();
        let behind = companions.iter().copied().min_by_key(|&index| {
            let active = &self.active[index];
            (active.layers, self.on_device != Some(index), active.share, index)
        });
        behind.filter(|_| companions.len() > 1)
    }

    /// Tokens of a prompt's chunk in progress, or of its next.
    fn chunk_tokens(&self, index: usize) -> usize {
        let active = &self.active[index];
        match &active.doing {
            Doing::Prefill(Some(chunk)) => chunk.tokens,
            _ => self.left(index).min(self.engine.chunk()),
        }
    }

    /// Where a new prompt starts to count its layers: where the chunks of those in progress began.
    pub(super) fn lap(&self) -> usize {
        let prefilling = |active: &&Active| matches!(active.doing, Doing::Prefill(_));
        let behind = self.active.iter().filter(prefilling).map(|active| active.layers).min();
        let layers = self.engine.config().trunk_layers();
        behind.unwrap_or(0) / layers * layers
    }

    /// Puts the chunk on the device aside; false where that cannot be done.
    fn clear_device(&mut self) -> bool {
        let Some(index) = self.on_device else { return true };
        if let Doing::Prefill(Some(chunk)) = &mut self.active[index].doing
            && !self.engine.put_aside(&mut chunk.pass)
        {
            return false;
        }
        self.on_device = None;
        true
    }

    /// Runs one layer of a prompt, beginning a chunk or ending one where it is due.
    fn prefill_layer(&mut self, index: usize) {
        self.works_for(&[index]);
        let started = Instant::now();
        let tokens = match &self.active[index].doing {
            Doing::Prefill(Some(chunk)) => chunk.tokens as u64,
            _ => 0,
        };
        let span = timeline::span("prefill, one layer", [("tokens", tokens), ("", 0), ("", 0)]);
        let result = self.try_prefill_layer(index);
        drop(span);
        let time = started.elapsed();
        self.since_step += time;
        match result {
            Ok(tokens) => {
                if let Some(active) = self.active.get_mut(index) {
                    active.worked(time, tokens);
                    let held = self.engine.sequence_length(active.sequence);
                    let layers = self.engine.config().trunk_layers();
                    active.report_progress(held, layers, self.usual_rate);
                }
                if tokens > 0 {
                    self.end_of_chunk(index, tokens);
                }
            }
            Err(EngineError::Cancelled) => self.cancel(index, false),
            Err(error) => self.fail(index, &error.into()),
        }
    }

    /// One layer; the number of tokens of the chunk when that was its last.
    fn try_prefill_layer(&mut self, index: usize) -> Result<usize, EngineError> {
        if matches!(self.active[index].doing, Doing::Prefill(None)) {
            self.begin_chunk(index)?;
        }
        let Active { doing, outbox, layers, .. } = &mut self.active[index];
        let Doing::Prefill(Some(chunk)) = doing else { return Ok(0) };
        self.on_device = Some(index);
        let done = self.engine.advance(&mut chunk.pass, &Abandoned(outbox, &self.shared))?;
        *layers += 1;
        let tokens = chunk.tokens;
        if !done {
            return Ok(0);
        }
        self.on_device = None;
        self.active[index].doing = Doing::Prefill(None);
        Ok(tokens)
    }

    /// Begins the next chunk of a prompt, with snapshots at the ends of turns inside it.
    fn begin_chunk(&mut self, index: usize) -> Result<(), EngineError> {
        let part = self.next_part(index);
        let tokens = part.tokens();
        let pass = self.start_parts(&mut [part])?;
        self.active[index].doing = Doing::Prefill(Some(Chunk { pass, tokens }));
        Ok(())
    }

    /// After the last layer of a chunk: keeps snapshots, and answers when the prompt is done.
    pub(super) fn end_of_chunk(&mut self, index: usize, tokens: usize) {
        self.keep_marks();
        if self.active[index].job.prompt_logprobs && !self.judge(index, tokens) {
            return;
        }
        if !self.end_of_part(index, tokens) {
            return;
        }
        if self.is_quick() && tokens <= SHORT_TOKENS {
            self.steps_between = 0;
        }
        if self.active[index].job.max_tokens == Some(0) {
            self.finish(index, FinishReason::Length);
            return;
        }
        self.draw(&[Rows { index, first: tokens - 1, drafts: Vec::new() }]);
    }

    /// Tells the client what the model said of the prompt's tokens after each of the last chunk's; false when that
    /// ended the job.
    fn judge(&mut self, index: usize, tokens: usize) -> bool {
        let active = &self.active[index];
        let (first, prompt) =
            (self.engine.sequence_length(active.sequence) - tokens, active.prompt());
        let vocabulary = self.engine.config().vocabulary;
        let known = tokens.min(prompt.saturating_sub(first + 1));
        // The plan's buffer has a row for each sequence.
        for start in (0..known).step_by(self.sequences) {
            self.shared.beat();
            let active = &mut self.active[index];
            if active.outbox.is_closed() || self.shared.is_stopping() {
                self.cancel(index, true);
                return false;
            }
            let rows: Vec<usize> = (start..known.min(start + self.sequences)).collect();
            let judged = match self.engine.logits(&rows) {
                Ok(logits) => {
                    let each = rows.iter().zip(logits.chunks_exact(vocabulary));
                    let judge =
                        |(row, logits): (&usize, &[f32])| active.judge(first + row + 1, logits);
                    each.map(judge).collect::<Result<Vec<_>, _>>()
                }
                Err(error) => Err(error.into()),
            };
            match judged {
                Ok(judged) => active.outbox.send(Event::Prompt(judged)),
                Err(fault) => {
                    self.fail(index, &fault);
                    return false;
                }
            }
        }
        true
    }
}

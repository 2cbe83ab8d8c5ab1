//! A loaded model: prompts in, logits out.
//!
//! [`Engine::forward`] runs any mix of sequences and token runs as one batch; prefill and decode are the
//! same path at different sizes. A [`Pass`] does the same layer by layer, and can be put aside for another. With
//! several stages batches can follow each other ([`Engine::submit`], [`Engine::collect`]).
//! [`Engine::prefill`] cuts a long prompt at absolute positions that are
//! multiples of the chunk, so that how much of a prompt was already there does not move the cuts.

mod under_way;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use store::cache::StoreCounters;
use store::format::Checkpoint;
use store::{LayerId, timeline};

use crate::EngineError;
use crate::backend::{Backend, Cancel, Purpose, Run, SequenceId};
use crate::drafts::{DraftCounters, DraftRoom, Drafter, StepTimes};
use crate::model::config::ModelConfig;
use crate::model::{Clock, Model, StageTimes};
use crate::stages::{self, PutAside, Stages, Ticket, run_layer};
use text::sampling::{Mask, Ranked, Sampler};

/// What a prefill in progress reports: `tokens` of `total` are done, counting a chunk in progress by the
/// layers it has passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillProgress {
    /// Tokens done.
    pub tokens: f64,
    /// Tokens asked for.
    pub total: usize,
}

/// A batch on its way through the layers.
#[derive(Debug)]
pub struct Pass {
    /// Layers passed.
    layers: usize,
    /// The batch, while another runs.
    aside: Option<PutAside>,
}

impl Pass {
    /// Layers passed.
    pub fn layers(&self) -> usize {
        self.layers
    }
}

/// A model on a device, or on several with a range of its layers each.
pub struct Engine {
    config: ModelConfig,
    model: Model,
    backend: Stages,
    chunk: usize,
    ranked: Ranked,
    /// Where the time of passes went.
    clock: Clock,
    /// Times of steps of answers, by rows.
    step_times: StepTimes,
    drafts: DraftCounters,
    /// With one device: the batch submitted last, and those not collected.
    done: Option<Ticket>,
    uncollected: VecDeque<Ticket>,
}

impl Engine {
    /// Joins a declared model with the backend that holds its weights. `chunk` is the longest run of a
    /// prompt that is processed at once; the backend's batch must hold it.
    pub fn new(
        config: ModelConfig,
        model: Model,
        backend: Box<dyn Backend + Send>,
        chunk: usize,
    ) -> Self {
        let stage = stages::Stage { layers: 0..config.layers.len(), backend };
        let engine = Self::over(config, model, vec![stage], chunk);
        engine.expect("one stage has all layers and needs no thread")
    }

    /// As [`Engine::new`], with several backends that hold a range of the model's layers each.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last, or no threads for the stages.
    pub fn over(
        config: ModelConfig,
        model: Model,
        stages: Vec<stages::Stage>,
        chunk: usize,
    ) -> Result<Self, EngineError> {
        let backend = Stages::new(stages, &model)?;
        Ok(Self::with(config, model, backend, chunk))
    }

    /// As [`Engine::over`], with stages in other processes: `first` has the first layers, `head` what is behind the
    /// last one; without it the last process has that. Chunks are no longer than what every stage takes.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last, or no threads for the stages.
    pub fn over_hosts(
        config: ModelConfig,
        model: Model,
        first: stages::Stage,
        others: Vec<stages::remote::Reached>,
        head: Option<stages::Stage>,
        chunk: usize,
    ) -> Result<Self, EngineError> {
        let chunk =
            others.iter().map(stages::remote::Reached::batch_tokens).fold(chunk, usize::min);
        let backend = Stages::over_hosts(first, others, head, &model)?;
        Ok(Self::with(config, model, backend, chunk))
    }

    fn with(config: ModelConfig, model: Model, backend: Stages, chunk: usize) -> Self {
        Self {
            backend,
            config,
            model,
            chunk: chunk.max(1),
            ranked: Ranked::default(),
            clock: Clock::default(),
            step_times: StepTimes::default(),
            drafts: DraftCounters::default(),
            done: None,
            uncollected: VecDeque::new(),
        }
    }

    /// The model's shapes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What computes: a device, or several stages.
    pub fn backend(&mut self) -> &mut Stages {
        &mut self.backend
    }

    /// The stages that compute the model's layers; one where one device does.
    pub fn stages(&self) -> &Stages {
        &self.backend
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// All sequences of the plan are in use.
    pub fn create_sequence(&mut self) -> Result<SequenceId, EngineError> {
        self.backend.create_sequence(None)
    }

    /// Forgets a sequence.
    pub fn drop_sequence(&mut self, sequence: SequenceId) {
        self.backend.drop_sequence(sequence);
    }

    /// Tokens that a sequence holds.
    pub fn sequence_length(&self, sequence: SequenceId) -> usize {
        self.backend.sequence_length(sequence)
    }

    /// Runs a batch through the model; [`Engine::logits`] then answers for its tokens. It is a step of answers
    /// when every run is one token, else prompts ([`Purpose`]).
    ///
    /// # Errors
    /// A batch that the plan does not allow, a failed read, or [`EngineError::Cancelled`]. After the last
    /// two the sequences of the batch are undefined and must be dropped.
    pub fn forward(&mut self, runs: &[Run<'_>], cancel: &dyn Cancel) -> Result<(), EngineError> {
        let single = runs.iter().all(|run| run.tokens.len() == 1);
        let purpose = if single { Purpose::Answers } else { Purpose::Prompt };
        self.forward_with(runs, purpose, cancel, &mut |_| {})
    }

    /// Most tokens of a run of [`Engine::step`]; 1 where the device, or its plan, has no rounds.
    pub fn round_tokens(&self) -> usize {
        self.backend.rules().round_tokens
    }

    /// Runs a step of answers: of each its next token, and behind it drafts of those that follow. [`Engine::logits`]
    /// then answers for all of them. Each sequence has one run; of one with drafts [`Engine::keep_first`] may keep
    /// less. Bits are those of single steps.
    ///
    /// # Errors
    /// As [`Engine::forward`].
    pub fn step(&mut self, runs: &[Run<'_>], cancel: &dyn Cancel) -> Result<(), EngineError> {
        let most = self.round_tokens();
        for (index, run) in runs.iter().enumerate() {
            let tokens = run.tokens.len();
            if tokens > most {
                let found = format!("a round of {tokens} tokens; {most} fit");
                return Err(EngineError::Request(found));
            }
            if tokens > 1 && runs[..index].iter().any(|other| other.sequence == run.sequence) {
                let found = "a round that is not its sequence's only run".to_owned();
                return Err(EngineError::Request(found));
            }
        }
        self.forward_with(runs, Purpose::Answers, cancel, &mut |_| {})
    }

    /// Drafts of what follows `text`, for the next step: all tokens of `sequence` and the one drawn behind them.
    pub fn propose(
        &mut self,
        drafter: &mut Drafter,
        sequence: SequenceId,
        text: &[u32],
        room: DraftRoom,
    ) -> Vec<u32> {
        let most = room.most.min(self.round_tokens() - 1);
        let room = DraftRoom { most, ..room };
        let mut drafts = drafter.propose(text, room, &self.step_times);
        if let (true, true, Some(&last)) = (drafts.is_empty(), self.config.head, text.last()) {
            let most = drafter.ask_head(room, &self.step_times);
            if most > 0 {
                let _span = timeline::span("draft", [("tokens", most as u64), ("", 0), ("", 0)]);
                let began = Instant::now();
                self.backend.draft(sequence, last, most, &mut drafts);
                self.step_times.note_drafts(drafts.len(), began.elapsed());
            }
        }
        let outside = |&token: &u32| token as usize >= self.config.vocabulary;
        drafts.truncate(drafts.iter().position(outside).unwrap_or(drafts.len()));
        drafts
    }

    /// A step of `rows` tokens took `time`, with its logits: what drafts are weighed by.
    pub fn note_step(&mut self, rows: usize, time: Duration) {
        self.step_times.note(rows, time);
    }

    /// Of the drafts of an answer in the last step, what was drawn from its rows.
    pub fn note_drafts(&mut self, drafter: &mut Drafter, drafts: &[u32], drawn: &[u32]) {
        let accepted = drafts.iter().zip(drawn).take_while(|(draft, token)| draft == token).count();
        let by_head = drafter.note(drafts.len(), accepted);
        self.drafts.note(by_head, drafts.len(), accepted);
    }

    /// What became of drafts since the model was loaded.
    pub fn draft_counters(&self) -> DraftCounters {
        self.drafts
    }

    /// Keeps the first `tokens` of the last step's run of a sequence, and nothing of its other tokens.
    ///
    /// # Errors
    /// The last batch of the sequence was no step of several tokens.
    pub fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        self.backend.keep_first(sequence, tokens)
    }

    /// Begins a batch of prompts, with snapshots at the end of the runs `marks` ([`Stages::take_marks`]). No other
    /// may be in progress, except suspended ones.
    ///
    /// # Errors
    /// A batch that the plan does not allow.
    pub fn start(&mut self, runs: &[Run<'_>], marks: &[usize]) -> Result<Pass, EngineError> {
        self.backend.begin(runs, Purpose::Prompt)?;
        for &run in marks {
            self.backend.mark(run)?;
        }
        self.backend.embed()?;
        Ok(Pass { layers: 0, aside: None })
    }

    /// Runs a batch through its next layer, taking it up again if it was put aside. True when that was the
    /// last: its tokens are then part of their sequences, and [`Engine::logits`] answers for them.
    ///
    /// # Errors
    /// A failed read, or [`EngineError::Cancelled`]: the sequences of the batch are undefined and must be dropped, as
    /// they must be when a batch is given up between two layers.
    pub fn advance(&mut self, pass: &mut Pass, cancel: &dyn Cancel) -> Result<bool, EngineError> {
        if let Some(suspended) = pass.aside.take() {
            self.backend.resume(suspended)?;
        }
        self.run_layer(pass.layers, cancel)?;
        self.backend.check_files()?;
        pass.layers += 1;
        let done = pass.layers == self.config.trunk_layers();
        if done {
            self.backend.commit()?;
        }
        Ok(done)
    }

    /// Puts a batch aside, so that another can run before it goes on; false where the device cannot.
    pub fn put_aside(&mut self, pass: &mut Pass) -> bool {
        if pass.aside.is_none() {
            pass.aside = self.backend.suspend();
        }
        pass.aside.is_some()
    }

    /// Gives a batch up between two layers, and what is being read for it; its sequences must be dropped.
    pub fn give_up(&mut self, pass: &Pass) {
        self.backend.give_up(LayerId(pass.layers as u16));
    }

    /// The longest run of a prompt that is processed at once.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    fn forward_with(
        &mut self,
        runs: &[Run<'_>],
        purpose: Purpose,
        cancel: &dyn Cancel,
        layers_done: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        if let Some(pipeline) = self.backend.pipeline() {
            if pipeline.is_busy() {
                let found = "other batches are under way: collect them first".to_owned();
                return Err(EngineError::Request(found));
            }
            // Logits of the batch before are not asked for any more: the last stage can begin this one ahead.
            pipeline.release();
            let ticket = self.submit(runs, purpose, &[])?;
            return self.await_batch(ticket, cancel, layers_done);
        }
        self.backend.begin(runs, purpose)?;
        self.backend.embed()?;
        for layer in 0..self.config.trunk_layers() {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            self.run_layer(layer, cancel)?;
            layers_done(layer + 1);
        }
        self.backend.check_files()?;
        self.backend.commit()
    }

    /// Runs the batch through one layer, which may be cancelled between its stages and while experts are awaited.
    fn run_layer(&mut self, index: usize, cancel: &dyn Cancel) -> Result<(), EngineError> {
        let Self { model, backend, clock, .. } = self;
        run_layer(&model.program, clock, index, cancel, &mut |layer, stage| {
            backend.run_stage(layer, stage, cancel)
        })
    }

    /// Logits `[tokens.len(), vocabulary]` of tokens of the last batch, by index into it.
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    pub fn logits(&mut self, tokens: &[usize]) -> Result<&mut [f32], EngineError> {
        self.logits_of(tokens, false)
    }

    fn logits_of(&mut self, tokens: &[usize], last: bool) -> Result<&mut [f32], EngineError> {
        let begun = Instant::now();
        let (norm, head) = (self.model.final_norm, self.model.head);
        let logits = self.backend.logits(tokens, norm, head, last);
        Clock::add(&self.clock.head, begun);
        logits
    }

    /// As [`Engine::logits`], when no more is asked of the batch: the last stage goes on while tokens are drawn.
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    pub fn last_logits(&mut self, tokens: &[usize]) -> Result<&mut [f32], EngineError> {
        self.logits_of(tokens, true)
    }

    /// The most likely token after one of the last batch, where the device chooses
    /// ([`crate::backend::Backend::most_likely`]).
    pub fn most_likely(&mut self, token: usize) -> Option<Result<u32, EngineError>> {
        let begun = Instant::now();
        let chosen = self.backend.most_likely(token, self.model.final_norm, self.model.head);
        Clock::add(&self.clock.head, begun);
        chosen
    }

    /// Draws the token after one of the last batch, of all or of those that a mask allows, where its logits can stay on
    /// the device for that; `None` where the sampler has to see them. The token is the same either way.
    pub fn draw(
        &mut self,
        token: usize,
        sampler: &mut Sampler,
        allowed: Option<&Mask>,
    ) -> Option<Result<u32, EngineError>> {
        if sampler.takes_most_likely() {
            let best = self.most_likely(token)?;
            // The most likely of all is the most likely of those that it is one of.
            let refused = |mask: &Mask| best.as_ref().is_ok_and(|&best| !mask.allows(best));
            if !allowed.is_some_and(refused) {
                return Some(best);
            }
        }
        let (norm, head) = (self.model.final_norm, self.model.head);
        let wanted = sampler.wants(allowed.is_some())?;
        if let Err(error) = self.backend.rank(token, norm, head, wanted, &mut self.ranked)? {
            return Some(Err(error));
        }
        let read = |start, out: &mut [f32]| self.backend.ranked_logits(start, out);
        sampler.sample_ranked(&self.ranked, allowed, read).transpose()
    }

    /// Where the time of all passes went, of prompts and of answers.
    pub fn stage_times(&self) -> StageTimes {
        self.clock.read()
    }

    /// Everything counted about experts since the model was loaded.
    pub fn counters(&self) -> StoreCounters {
        self.backend.counters()
    }
}

/// Refuses rows of `vocabulary` logits each of which no figure can be made: of positions from `first` on.
///
/// # Errors
/// The first position that has a logit which is not finite.
pub fn check_finite(logits: &[f32], vocabulary: usize, first: usize) -> Result<(), EngineError> {
    let broken = |row: &[f32]| row.iter().fold(false, |found, logit| found | !logit.is_finite());
    match logits.chunks_exact(vocabulary).position(broken) {
        Some(row) => Err(EngineError::NotFinite { position: first + row }),
        None => Ok(()),
    }
}

/// Token ids that end an answer: generation_config.json's where given, else config.json's.
///
/// # Errors
/// A value that is no token of the model.
pub fn end_tokens(checkpoint: &Checkpoint) -> Result<Vec<u32>, EngineError> {
    let [generation, config] = checkpoint.end_tokens()?;
    Ok(generation.or(config).unwrap_or_default())
}

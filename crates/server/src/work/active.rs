//! A job that holds a sequence: its prompt on the way in, its answer on the way out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::SequenceId;
use engine::drafts::{Drafter, Drafting};
use engine::engine::{Engine, Pass};
use store::cache::StoreCounters;
use text::constraint::ConstraintError;
use text::sampling::{self, Mask, Sampled, Sampler, SamplingError};
use text::{Language, Repairs, SampledTurn};

use super::answer::Answer;
use super::guide::Guide;
use super::outbox::Outbox;
use super::owner::Domain;
use super::queue::Waiting;
use super::under_way::Ending;
use super::{
    Event, Experts, Finish, FinishReason, Job, Priority, Refusal, RunningJob, Stage, Timings,
    TokenLogprob, Usage,
};

/// Progress is reported no more often than this.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What a job is doing.
pub(super) enum Doing {
    /// Its prompt is being processed; the pass in progress, if there is one.
    Prefill(Option<Chunk>),
    /// It decodes; the token to run next.
    Decode(u32),
}

/// The tokens that a round gave.
pub(super) struct Round {
    /// Of each, the time since the one before.
    pub(super) times: Vec<Duration>,
    /// Why the answer is complete, if it is, or cannot go on.
    pub(super) end: Result<Option<FinishReason>, Fault>,
}

/// A drawn token, and the most likely ones where they are asked for.
pub(super) type Drawn = (Sampled, Vec<sampling::TokenLogprob>);

/// Why a job cannot go on.
#[derive(Debug)]
pub(super) enum Fault {
    /// The engine's.
    Engine(EngineError),
    /// The client's: what it asked for leaves no token.
    Request { field: &'static str, problem: String },
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// A part of a prompt on its way through the layers.
pub(super) struct Chunk {
    pub(super) pass: Pass,
    /// Tokens of the part.
    pub(super) tokens: usize,
}

/// A job that holds a sequence.
pub(super) struct Active {
    pub(super) job: Job,
    /// Of the job's owner: what is kept of it is found by this.
    pub(super) domain: Domain,
    pub(super) outbox: Outbox,
    pub(super) sequence: SequenceId,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<u32>,
    pub(super) doing: Doing,
    /// Tokens that were not computed again.
    pub(super) cached: usize,
    /// Prefill time given to it, counted from what the others had: who has had least goes on.
    pub(super) share: Duration,
    /// Layers that its chunks have passed, from where the others were when it came: prompts of like size keep step.
    pub(super) layers: usize,
    /// The last step that it was part of, counted over all answers.
    pub(super) stepped: u64,
    /// The number under which its state is remembered.
    pub(super) slot: usize,
    /// Where the last snapshot of its prompt was taken, and when.
    pub(super) kept: (usize, Instant),
    /// Batches of it under way, where there are several stages.
    pub(super) under_way: usize,
    /// Whether one of them failed: its sequence is undefined.
    pub(super) lost: bool,
    /// What ends it once all have come back.
    pub(super) ending: Option<Ending>,
    /// Tokens of the chunk on its way that count as done.
    pub(super) partial: usize,
    /// Where the last snapshot inside its prompt was asked for.
    pub(super) way: usize,
    answer: Answer,
    sampler: Sampler,
    guide: Option<Guide>,
    /// Drafts its tokens, where drafts are asked for.
    pub(super) drafter: Option<Drafter>,
    /// Tokens that come next, whatever the model thinks: the end of thoughts that were too long.
    forced: VecDeque<u32>,
    /// Tokens that end the answer.
    ends: Vec<u32>,
    /// All others, for an answer that must not end yet.
    others: Option<Mask>,
    generated: usize,
    submitted: Instant,
    started: Instant,
    first: Option<Instant>,
    last: Instant,
    /// Computing time of its prefill, and tokens computed in it.
    work: (Duration, usize),
    reported: Option<Instant>,
    before: StoreCounters,
}

/// Checks what can be wrong with a job before it waits.
pub(super) fn check(job: &Job, language: &Arc<Language>, vocabulary: usize) -> Result<(), Refusal> {
    let bad = |error: &dyn std::fmt::Display| Refusal::BadRequest(error.to_string());
    Answer::new(Arc::clone(language), job).map_err(|error| bad(&error))?;
    sampler(job, language, vocabulary).map_err(|error| bad(&error))?;
    Ok(())
}

fn sampler(job: &Job, language: &Language, vocabulary: usize) -> Result<Sampler, SamplingError> {
    let mut options = job.sampling.clone();
    options.logprobs = job.top_logprobs.map(usize::from);
    Sampler::with_texts(options, vocabulary, Some(language.tokenizer.texts()))
}

/// Where a job starts.
pub(super) struct Start<'a> {
    /// Tokens of the prompt that its sequence holds.
    pub(super) cached: usize,
    /// Computing time that the others had at the least, so that it does not overtake them.
    pub(super) share: Duration,
    /// Layers that the others have passed.
    pub(super) layers: usize,
    /// The number under which its state is remembered.
    pub(super) slot: usize,
    /// What was counted before it.
    pub(super) before: StoreCounters,
    pub(super) drafting: Option<&'a Drafting>,
}

/// What a rule refuses, as the mistake of a request's field.
fn refused(job: &Job, error: &ConstraintError) -> Fault {
    let field = match job.constraint {
        Some(super::Constraint::Tool(_)) => "tools",
        _ => "response_format",
    };
    Fault::Request { field, problem: error.to_string() }
}

/// What is allowed of an answer that must not end yet; `None` where nothing else is left: what is complete ends,
/// however short it is.
fn going_on(allowed: &Mask, ends: &[u32]) -> Option<Mask> {
    Some(allowed.without(ends)).filter(|going| !going.is_empty())
}

impl Active {
    /// Starts a job on `sequence`.
    pub(super) fn new(
        waiting: Waiting,
        language: &Arc<Language>,
        vocabulary: usize,
        sequence: SequenceId,
        start: Start<'_>,
    ) -> Self {
        let Start { cached, share, layers, slot, before, drafting } = start;
        let Waiting { job, domain, guide, outbox, since, .. } = waiting;
        let now = Instant::now();
        let mut sampler =
            sampler(&job, language, vocabulary).expect("checked when it was submitted");
        sampler.set_prompt_tokens(job.prompt.tokens.len());
        let ends: Vec<u32> = language.end_tokens.iter().chain(&job.stop_tokens).copied().collect();
        let others = (job.min_tokens > 0).then(|| Mask::all(vocabulary).without(&ends));
        Self {
            ends,
            others,
            answer: Answer::new(Arc::clone(language), &job).expect("checked when it was submitted"),
            sampler,
            guide,
            drafter: drafting.map(Drafter::new),
            forced: VecDeque::new(),
            tokens: job.prompt.tokens.to_vec(),
            doing: Doing::Prefill(None),
            cached,
            share,
            layers,
            stepped: 0,
            slot,
            kept: (cached, now),
            under_way: 0,
            lost: false,
            ending: None,
            partial: 0,
            way: 0,
            generated: 0,
            submitted: since,
            started: now,
            first: None,
            last: now,
            work: (Duration::ZERO, 0),
            reported: None,
            before,
            job,
            domain,
            outbox,
            sequence,
        }
    }

    /// Tokens of the prompt.
    pub(super) fn prompt(&self) -> usize {
        self.job.prompt.tokens.len()
    }

    /// True for jobs of low priority (titles, summaries).
    pub(super) fn is_side(&self) -> bool {
        self.job.priority == Priority::Side
    }

    /// Where it is.
    pub(super) fn stage(&self) -> Stage {
        match self.doing {
            Doing::Prefill(_) => Stage::Prefill,
            Doing::Decode(_) => Stage::Decode,
        }
    }

    /// Accounts for computing time of its prefill.
    pub(super) fn worked(&mut self, time: Duration, tokens_done: usize) {
        self.share += time;
        self.work.0 += time;
        self.work.1 += tokens_done;
    }

    /// Tokens of the prompt that are done, a chunk in progress by its layers; `held` are in the sequence.
    fn processed(&self, held: usize, layers: usize) -> usize {
        match &self.doing {
            Doing::Prefill(Some(chunk)) => {
                held + chunk.tokens * chunk.pass.layers() / layers.max(1)
            }
            Doing::Prefill(None) => held + self.partial,
            Doing::Decode(_) => self.prompt(),
        }
    }

    /// Tokens per second of its prefill so far, if there is a measure.
    pub(super) fn prefill_rate(&self, held: usize, layers: usize) -> Option<f64> {
        let done = self.processed(held, layers).saturating_sub(self.cached);
        let elapsed = self.started.elapsed().as_secs_f64();
        (done > 0 && elapsed > 0.0).then(|| done as f64 / elapsed)
    }

    /// Remaining prefill at the rate so far, or at `usual` before there is one.
    fn eta(&self, held: usize, layers: usize, usual: Option<f64>) -> Option<Duration> {
        let rate = self.prefill_rate(held, layers).or(usual).filter(|rate| *rate > 0.0)?;
        let left = self.prompt() - self.processed(held, layers).min(self.prompt());
        Duration::try_from_secs_f64(left as f64 / rate).ok()
    }

    /// Tells the client how far the prompt is, now and then.
    pub(super) fn report_progress(&mut self, held: usize, layers: usize, usual: Option<f64>) {
        if self.reported.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        self.reported = Some(Instant::now());
        let event = Event::Progress {
            processed: self.processed(held, layers),
            total: self.prompt(),
            cached: self.cached,
            elapsed: self.started.elapsed(),
            eta: self.eta(held, layers, usual),
        };
        self.outbox.send(event);
    }

    /// The job for the status.
    pub(super) fn summary(&self, held: usize, layers: usize, usual: Option<f64>) -> RunningJob {
        RunningJob {
            id: self.job.id.clone(),
            slot: self.slot,
            stage: self.stage(),
            prompt: self.prompt(),
            processed: self.processed(held, layers),
            cached: self.cached,
            generated: self.generated,
            eta: match self.doing {
                Doing::Prefill(_) => self.eta(held, layers, usual),
                Doing::Decode(_) => None,
            },
        }
    }

    /// What the model said of a token of the prompt at `position`, whose row of logits is given.
    pub(super) fn judge(&mut self, position: usize, logits: &[f32]) -> Result<TokenLogprob, Fault> {
        let token = self.tokens[position];
        let failed = |reason| Fault::Engine(EngineError::Sampling { position, reason });
        let logprob = self.sampler.judge(logits, token).map_err(failed)?;
        Ok(self.answer.describe(token, logprob, self.sampler.top_logprobs()))
    }

    /// Draws the next token after one of the last batch where its logits can stay on the device. What stands over the
    /// choice has its say there too: a row that crosses the bus for it took 1.6 ms of a GPU's step of 2.4.
    pub(super) fn draw(&mut self, engine: &mut Engine, row: usize) -> Option<Result<u32, Fault>> {
        if !self.forced.is_empty() {
            return None;
        }
        let others = self.others.as_ref().filter(|_| self.goes_on());
        let sampler = &mut self.sampler;
        let token = match &mut self.guide {
            None => engine.draw(row, sampler, others),
            Some(Guide::Rule(constraint)) => {
                // What is wrong with a rule is said where the row is looked at.
                let allowed = constraint.allowed().ok()?;
                let going = others.and_then(|_| going_on(allowed, &self.ends));
                let token = engine.draw(row, sampler, Some(going.as_ref().unwrap_or(allowed)))?;
                if let Ok(token) = token
                    && let Err(error) = constraint.accept(token)
                {
                    return Some(Err(refused(&self.job, &error)));
                }
                Some(token)
            }
            Some(Guide::Calls(watch)) if watch.in_call() => {
                match engine.draw(row, sampler, None)? {
                    Ok(token) if !watch.judge(token) => {
                        let allowed = watch.allowed()?;
                        engine.draw(row, sampler, Some(allowed))
                    }
                    drawn => Some(drawn),
                }
            }
            Some(Guide::Calls(_)) => engine.draw(row, sampler, others),
        };
        token.map(|token| token.map_err(Fault::from))
    }

    /// Whether the answer must not end yet.
    fn goes_on(&self) -> bool {
        self.generated < self.job.min_tokens
    }

    /// Draws the next token from its logits.
    pub(super) fn sample(&mut self, logits: &mut [f32]) -> Result<Drawn, Fault> {
        let position = self.tokens.len();
        let biased = !self.job.sampling.logit_bias.is_empty();
        if let Some(token) = self.forced.pop_front() {
            if let Some(Guide::Rule(constraint)) = &mut self.guide {
                constraint.accept(token).map_err(|error| refused(&self.job, &error))?;
            }
            // The model was not asked, so there is nothing to say of its probabilities.
            return Ok((Sampled { token, logprob: None }, Vec::new()));
        }
        let failed = |reason| match reason {
            SamplingError::NothingLeft if biased => {
                let problem = "every token that could come next is excluded".to_owned();
                Fault::Request { field: "logit_bias", problem }
            }
            reason => Fault::Engine(EngineError::Sampling { position, reason }),
        };
        let others = self.others.as_ref().filter(|_| self.goes_on());
        let (sampler, tokens) = (&mut self.sampler, &self.tokens);
        let sampled = match &mut self.guide {
            Some(Guide::Rule(constraint)) => {
                let refused = |error| refused(&self.job, &error);
                let allowed = constraint.allowed().map_err(refused)?;
                let going = others.and_then(|_| going_on(allowed, &self.ends));
                let allowed = going.as_ref().unwrap_or(allowed);
                let sampled = sampler.sample_allowed(logits, tokens, Some(allowed));
                let sampled = sampled.map_err(failed)?;
                constraint.accept(sampled.token).map_err(refused)?;
                sampled
            }
            Some(Guide::Calls(watch)) if watch.in_call() || others.is_none() => {
                watch.sample(sampler, logits, tokens).map_err(failed)?
            }
            Some(Guide::Calls(_)) | None => {
                sampler.sample_allowed(logits, tokens, others).map_err(failed)?
            }
        };
        Ok((sampled, self.sampler.top_logprobs().to_vec()))
    }

    /// Takes a generated token and tells the client what it means. Gives why the answer is complete, if it is; a
    /// sequence has room for `context` tokens. Second: the time since the last token, or since submission.
    pub(super) fn accept(
        &mut self,
        sampled: Sampled,
        top: &[sampling::TokenLogprob],
        context: usize,
    ) -> (Option<FinishReason>, Duration) {
        let now = Instant::now();
        let since = self.first.map_or(self.submitted, |_| self.last);
        self.first.get_or_insert(now);
        self.last = now;
        let held = self.tokens.len();
        self.tokens.push(sampled.token);
        if let Some(Guide::Calls(watch)) = &mut self.guide {
            watch.accept(sampled.token);
        }
        self.generated += 1;
        self.doing = Doing::Decode(sampled.token);
        for event in self.answer.push(&sampled, top) {
            self.outbox.send(event);
        }
        if let Some(budget) = self.job.thinking_budget.filter(|_| self.forced.is_empty()) {
            self.forced.extend(self.answer.closing(budget));
        }
        let full =
            held == context || self.job.max_tokens.is_some_and(|most| self.generated >= most);
        (self.answer.reason().or(full.then_some(FinishReason::Length)), now - since)
    }

    /// Most drafts that can still become tokens, in a sequence of `context` tokens.
    pub(super) fn draft_room(&self, context: usize) -> usize {
        let left = self.job.max_tokens.map_or(usize::MAX, |most| most - self.generated);
        // The last token is not yet in the sequence, and one more than those in the sequence can be drawn.
        (context - self.tokens.len()).min(left.saturating_sub(1))
    }

    /// Draws tokens from the rows of a round, in order, and takes each, until one is not what the next row ran, or
    /// the answer is complete. The first row ran the last token, the others `drafts`.
    pub(super) fn take_round<'l>(
        &mut self,
        rows: impl Iterator<Item = &'l mut [f32]>,
        drafts: &[u32],
        context: usize,
    ) -> Round {
        let mut times = Vec::with_capacity(drafts.len() + 1);
        for (place, logits) in rows.enumerate() {
            let (sampled, top) = match self.sample(logits) {
                Ok(drawn) => drawn,
                Err(fault) => return Round { times, end: Err(fault) },
            };
            let token = sampled.token;
            let (reason, time) = self.accept(sampled, &top, context);
            times.push(time);
            if reason.is_some() || drafts.get(place) != Some(&token) {
                return Round { times, end: Ok(reason) };
            }
        }
        Round { times, end: Ok(None) }
    }

    /// When its work began.
    pub(super) fn begun(&self) -> Instant {
        self.started
    }

    /// True before the first token is out.
    pub(super) fn is_silent(&self) -> bool {
        self.first.is_none()
    }

    /// How long it waited.
    pub(super) fn queued(&self) -> Duration {
        self.started - self.submitted
    }

    /// The answer as it was sampled, under the ids of its calls, if it made any and may be kept.
    pub(super) fn turn(&self) -> Option<(Vec<String>, SampledTurn)> {
        let keeps = self.job.cache_prompt;
        keeps.then(|| self.answer.turn(&self.job, &self.tokens[self.prompt()..]))?
    }

    /// What the model got wrong in its calls.
    pub(super) fn repairs(&self) -> &Repairs {
        self.answer.repairs()
    }

    /// Ends the answer: the last events, and what it cost.
    pub(super) fn finish(&mut self, reason: FinishReason, counters: &StoreCounters) -> Finish {
        let (events, reason) = self.answer.finish(reason);
        for event in events {
            self.outbox.send(event);
        }
        let spent = counters.since(&self.before);
        let first = self.first.unwrap_or(self.last);
        let finish = Finish {
            reason,
            usage: Usage {
                prompt: self.prompt(),
                cached: self.cached,
                completion: self.generated,
                reasoning: self.answer.reasoning_tokens(),
            },
            timings: Timings {
                queued: self.queued(),
                prefill: first.saturating_duration_since(self.started),
                decode: self.last.saturating_duration_since(first),
            },
            experts: Experts::of(&spent, self.started.elapsed()),
            seed: self.sampler.options().seed,
            dropped_turns: self.job.prompt.dropped_turns,
            logprobs: self.answer.take_logprobs(),
        };
        self.outbox.send(Event::Finished(Box::new(finish.clone())));
        finish
    }
}

//! A step of the answers in progress: their next tokens and drafts computed together, then drawn and taken one by one.
//!
//! Rows of an answer are drawn in order, each with sampler, penalties, rule and ends as if it had been computed alone,
//! until one differs from the draft that the next row ran, or the answer ends. What is drawn does not depend on drafts.

use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::{Cancel, Run};
use engine::drafts::{DraftRoom, ROUND_TOKENS};
use store::timeline;
use text::sampling::Sampled;

use super::FinishReason;
use super::active::{Doing, Drawn, Fault, Round};
use super::outbox::Outbox;
use super::scheduler::{STEPS_BETWEEN, Scheduler};
use super::shared::Shared;

/// Cancels a step when the clients of all its answers have gone.
struct Gone<'a>(Vec<&'a Outbox>, &'a Shared);

impl Cancel for Gone<'_> {
    fn is_cancelled(&self) -> bool {
        self.1.beat();
        self.0.iter().all(|outbox| outbox.is_closed())
    }
}

/// Rows of an answer in the last batch.
pub(super) struct Rows {
    /// Index of the job.
    pub(super) index: usize,
    /// The row after which its next token is drawn.
    pub(super) first: usize,
    /// What the rows behind that have run.
    pub(super) drafts: Vec<u32>,
}

impl Rows {
    /// All of them.
    fn all(&self) -> std::ops::RangeInclusive<usize> {
        self.first..=self.first + self.drafts.len()
    }
}

/// What became of an answer's rows.
enum Outcome {
    /// The token of its only row is drawn.
    Drawn(Result<Drawn, Fault>),
    /// Tokens of a round are drawn and taken.
    Taken(Round),
}

impl Scheduler {
    /// The next token of every answer, with drafts of those behind it, computed together.
    pub(super) fn step(&mut self, answers: &[usize]) {
        self.works_for(answers);
        let started = Instant::now();
        let (rows, tokens) = self.next_rows(answers);
        let runs = answers.iter().zip(&tokens);
        let runs =
            runs.map(|(&index, tokens)| Run { sequence: self.active[index].sequence, tokens });
        let runs: Vec<_> = runs.collect();
        let waiting = answers.iter().map(|&index| &self.active[index].outbox).collect();
        let gone = Gone(waiting, &self.shared);
        let (count, computed) = (answers.len(), tokens.iter().map(Vec::len).sum::<usize>());
        let numbers = [("answers", count as u64), ("tokens", computed as u64), ("", 0)];
        let span = timeline::span("decode step", numbers);
        let before = self.engine.stage_times();
        let result = self.engine.step(&runs, &gone);
        self.status.decode_stages.add(self.engine.stage_times().since(before));
        drop(span);
        self.step_time = started.elapsed();
        self.status.decode_time += self.step_time;
        self.since_step = Duration::ZERO;
        self.steps_between = STEPS_BETWEEN.min(self.steps_between + 1);
        match result {
            Ok(()) => self.drawn(&rows, computed, self.step_time, self.step_time),
            // A pass that stopped half-way leaves all its sequences undefined.
            Err(EngineError::Cancelled) => {
                for &index in answers.iter().rev() {
                    self.cancel(index, false);
                }
            }
            Err(error) => {
                let error = error.into();
                for &index in answers.iter().rev() {
                    self.fail(index, &error);
                }
            }
        }
    }

    /// Draws what follows a step of `computed` tokens that took `time`, `share` of it to itself.
    pub(super) fn drawn(
        &mut self,
        rows: &[Rows],
        computed: usize,
        share: Duration,
        time: Duration,
    ) {
        let before = (self.status.generated_tokens, self.status.draw_time);
        self.draw(rows);
        let drawing = self.status.draw_time - before.1;
        self.engine.note_step(computed, time + drawing);
        let generated = self.status.generated_tokens - before.0;
        let rate = generated as f64 / share.as_secs_f64().max(1e-9);
        let before = self.status.decode_rate;
        self.status.decode_rate = if before == 0.0 { rate } else { 0.8 * before + 0.2 * rate };
    }

    /// As [`Scheduler::draft`], for a step that is computed now: its answers have had their turn, and there is room for
    /// its rows.
    pub(super) fn next_rows(&mut self, answers: &[usize]) -> (Vec<Rows>, Vec<Vec<u32>>) {
        let (rows, tokens) = self.draft(answers);
        self.steps += 1;
        answers.iter().for_each(|&index| self.active[index].stepped = self.steps);
        let backend = self.engine.backend();
        let pages = tokens.iter().map(|tokens| backend.batch_pages(tokens.len())).sum::<usize>();
        self.make_room(false, |room| room.pages >= pages);
        (rows, tokens)
    }

    /// The answers of the next step: all, or of more than `most` those that have waited longest, ascending.
    pub(super) fn due(&self, mut answers: Vec<usize>, most: usize) -> Vec<usize> {
        answers.sort_by_key(|&index| (self.active[index].stepped, index));
        answers.truncate(most);
        answers.sort_unstable();
        answers
    }

    /// The rows of a step, and the tokens of each answer in it. Rows that answers leave are for drafts, in order.
    fn draft(&mut self, answers: &[usize]) -> (Vec<Rows>, Vec<Vec<u32>>) {
        let (mut rows, mut tokens) = (Vec::new(), Vec::new());
        let mut first = 0;
        for (at, &index) in answers.iter().enumerate() {
            let active = &mut self.active[index];
            let Doing::Decode(token) = active.doing else {
                unreachable!("only answers are decoded")
            };
            let others = first + answers.len() - at - 1;
            let mut drafts = Vec::new();
            let room = active.draft_room(self.context).min(ROUND_TOKENS.saturating_sub(others + 1));
            if let Some(drafter) = active.drafter.as_mut().filter(|_| room > 0) {
                let room = DraftRoom { most: room, others };
                drafts = self.engine.propose(drafter, active.sequence, &active.tokens, room);
            }
            let run = [&[token], &drafts[..]].concat();
            rows.push(Rows { index, first, drafts });
            first += run.len();
            tokens.push(run);
        }
        (rows, tokens)
    }

    /// Draws the next tokens of jobs, each from its rows of the batch; ends those that are complete.
    pub(super) fn draw(&mut self, rows: &[Rows]) {
        let started = Instant::now();
        let _span = timeline::span("draw", [("answers", rows.len() as u64), ("", 0), ("", 0)]);
        if rows.len() > 1 {
            let places: Vec<usize> = rows.iter().map(|rows| rows.first).collect();
            self.engine.backend().expect_rows(&places);
        }
        let on_device = |rows: &Rows| {
            if !rows.drafts.is_empty() {
                return None;
            }
            let token = self.active[rows.index].draw(&mut self.engine, rows.first)?;
            let sampled = token.map(|token| (Sampled { token, logprob: None }, Vec::new()));
            Some(Outcome::Drawn(sampled))
        };
        let mut outcomes: Vec<_> = rows.iter().map(on_device).collect();
        let left: Vec<usize> = (0..rows.len()).filter(|&at| outcomes[at].is_none()).collect();
        if !left.is_empty() {
            let vocabulary = self.engine.config().vocabulary;
            let places: Vec<usize> = left.iter().flat_map(|&at| rows[at].all()).collect();
            let began = Instant::now();
            let logits = self.engine.last_logits(&places);
            self.status.head_time += began.elapsed();
            match logits {
                Ok(mut logits) => {
                    for &at in &left {
                        let count = rows[at].drafts.len() + 1;
                        let (own, others) = logits.split_at_mut(count * vocabulary);
                        logits = others;
                        let active = &mut self.active[rows[at].index];
                        outcomes[at] = Some(match &rows[at].drafts[..] {
                            [] => Outcome::Drawn(active.sample(own)),
                            drafts => {
                                let own = own.chunks_exact_mut(vocabulary);
                                Outcome::Taken(active.take_round(own, drafts, self.context))
                            }
                        });
                    }
                }
                Err(error) => {
                    let error = error.into();
                    for rows in rows.iter().rev() {
                        self.fail(rows.index, &error);
                    }
                    return;
                }
            }
        }
        self.status.draw_time += started.elapsed();
        // The last stage may go on: what follows with the tokens is 0.1 ms for each answer.
        self.engine.release();
        // From the last, so that ending one does not move those still to come.
        let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
        for (rows, outcome) in rows.iter().zip(outcomes).rev() {
            let sequence = self.active[rows.index].sequence;
            match self.take(rows, outcome) {
                Ok(Some(reason)) => self.finish(rows.index, reason),
                Ok(None) => {}
                Err(fault) => {
                    self.fail(rows.index, &fault);
                    continue;
                }
            }
            // Its tokens are taken: a panic over the next one is not its own.
            self.at_work.retain(|other| *other != sequence);
        }
    }

    /// Takes what was drawn from an answer's rows; why the answer is complete, if it is.
    fn take(&mut self, rows: &Rows, outcome: Outcome) -> Result<Option<FinishReason>, Fault> {
        let active = &mut self.active[rows.index];
        let measures = &mut self.status.measures;
        let first = active.is_silent();
        let Round { times, end } = match outcome {
            Outcome::Taken(round) => round,
            Outcome::Drawn(drawn) => {
                let (sampled, top) = drawn?;
                let (reason, time) = active.accept(sampled, &top, self.context);
                Round { times: vec![time], end: Ok(reason) }
            }
        };
        self.status.generated_tokens += times.len() as u64;
        for &time in &times {
            if first { &mut measures.first_token } else { &mut measures.token }.add_time(time);
        }
        let end = end?;
        let kept = times.len();
        if kept <= rows.drafts.len() {
            self.engine.keep_first(active.sequence, kept)?;
        }
        if let Some(drafter) = active.drafter.as_mut().filter(|_| !rows.drafts.is_empty()) {
            let drawn = &active.tokens[active.tokens.len() - kept..];
            self.engine.note_drafts(drafter, &rows.drafts, drawn);
        }
        Ok(end)
    }
}

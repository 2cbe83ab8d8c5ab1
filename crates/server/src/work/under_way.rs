//! The engine's thread where a model's layers are spread over several stages: several batches under way.
//!
//! Answers make as many groups as there are stages, of like size, and each group is in another stage: when one comes
//! back its tokens are drawn and it goes on. Chunks of prompts follow each other, of one prompt or of several. Between
//! the two a stage decides by itself. No job is touched while a batch of it is under way: what ends it then ends it
//! once all its batches have come back. Nothing of this changes a bit of any answer.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::{Purpose, Run, SequenceId};
use engine::drafts::ROUND_TOKENS;
use engine::stages::{Collected, Ended, Ticket};

use super::JobError;
use super::active::{Doing, Fault};
use super::parts::Part;
use super::scheduler::Scheduler;
use super::step::Rows;

/// How long the thread waits for a batch before it looks after clients.
const LOOK: Duration = Duration::from_millis(5);

/// What ends a job whose batches have not all come back yet.
#[derive(Debug)]
pub(super) enum Ending {
    /// Its client has gone.
    Cancelled,
    /// It failed: what the client hears, and the cause for the log.
    Failed(JobError, String),
}

/// What a batch computes.
enum Work {
    /// The next tokens of answers: of each its first row, and drafts.
    Step(Vec<(SequenceId, usize, Vec<u32>)>),
    /// Parts of prompts.
    Parts(Vec<Part>),
}

/// A batch that was submitted.
pub(super) struct UnderWay {
    ticket: Ticket,
    work: Work,
    members: Vec<SequenceId>,
    began: Instant,
    /// Tokens.
    computed: usize,
}

impl UnderWay {
    fn is_step(&self) -> bool {
        matches!(self.work, Work::Step(_))
    }

    /// Whose tokens it computes.
    pub(super) fn members(&self) -> &[SequenceId] {
        &self.members
    }
}

impl Scheduler {
    /// True where several batches are under way at a time.
    pub(super) fn is_staged(&self) -> bool {
        self.engine.stages().len() > 1
    }

    /// Submits what can be, and takes one batch that has ended; false when nothing is under way.
    pub(super) fn turn_stages(&mut self) -> bool {
        self.at_work.clear();
        while self.submit_next() {}
        self.take_one()
    }

    /// Takes one batch that has ended, if one does soon; false when nothing is under way.
    pub(super) fn take_one(&mut self) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        match self.engine.collect(LOOK) {
            Some(collected) => self.collected(collected),
            None => self.report_ahead(),
        }
        true
    }

    /// A sign of life of the stages' threads since this was last asked.
    pub(super) fn stages_live(&mut self) -> bool {
        let pulse = self.engine.pulse();
        let lives = self.under_way.is_empty() || pulse != self.pulse;
        self.pulse = pulse;
        lives
    }

    fn index_of(&self, sequence: SequenceId) -> Option<usize> {
        self.active.iter().position(|active| active.sequence == sequence)
    }

    /// Submits a step or a part of a prompt, if there is one for which there is a stage.
    fn submit_next(&mut self) -> bool {
        let stages = self.engine.stages().len();
        let normal = self.active.iter().any(|active| !active.is_side());
        let steps = self.under_way.iter().filter(|batch| batch.is_step()).count();
        let may_run = |index: &usize| {
            let active = &self.active[*index];
            active.ending.is_none() && !(normal && active.is_side())
        };
        let runnable: Vec<usize> = (0..self.active.len()).filter(may_run).collect();
        let decoding = |index: &usize| matches!(self.active[*index].doing, Doing::Decode(_));
        let idle = |index: &usize| self.active[*index].under_way == 0;
        let (answers, prompts): (Vec<usize>, Vec<usize>) = runnable.into_iter().partition(decoding);
        let group = answers.len().div_ceil(stages).min(ROUND_TOKENS);
        let ready: Vec<usize> = answers.into_iter().filter(idle).collect();
        if steps < stages && !ready.is_empty() {
            let group = self.due(ready, group);
            self.submit_step(&group);
            return true;
        }
        // One more than there are stages: the first has the next chunk when it has ended one.
        if self.under_way.len() - steps > stages {
            return false;
        }
        let left = |index: &usize| {
            let active = &self.active[*index];
            active.prompt() > self.engine.stages().length_ahead(active.sequence)
        };
        let prompts: Vec<usize> = prompts.into_iter().filter(left).collect();
        let next = prompts.iter().copied();
        let next = next.min_by_key(|&it| (self.active[it].under_way, self.active[it].share, it));
        let Some(next) = next else { return false };
        let alone: Vec<usize> = prompts.into_iter().filter(idle).collect();
        let joined = if alone.contains(&next) { self.joined(next, &alone) } else { None };
        self.submit_parts(&joined.unwrap_or_else(|| vec![next]));
        true
    }

    fn submit_step(&mut self, answers: &[usize]) {
        self.works_for(answers);
        let (rows, tokens) = self.next_rows(answers);
        let members: Vec<_> = answers.iter().map(|&it| self.active[it].sequence).collect();
        let runs = members.iter().zip(&tokens);
        let runs: Vec<_> = runs.map(|(&sequence, tokens)| Run { sequence, tokens }).collect();
        let submitted = self.engine.submit(&runs, Purpose::Answers, &[]);
        let computed = tokens.iter().map(Vec::len).sum();
        let rows = members.iter().zip(rows);
        let rows = rows.map(|(&sequence, rows)| (sequence, rows.first, rows.drafts)).collect();
        self.note_submitted(submitted, Work::Step(rows), members, computed);
    }

    fn submit_parts(&mut self, indices: &[usize]) {
        self.works_for(indices);
        let mut parts: Vec<Part> = indices.iter().map(|&index| self.next_part(index)).collect();
        let submitted = self.begin_parts(&mut parts, |engine, runs, marks| {
            engine.submit(runs, Purpose::Prompt, marks)
        });
        let members = parts.iter().map(Part::sequence).collect();
        let computed = parts.iter().map(Part::tokens).sum();
        self.note_submitted(submitted, Work::Parts(parts), members, computed);
    }

    fn note_submitted(
        &mut self,
        submitted: Result<Ticket, EngineError>,
        work: Work,
        members: Vec<SequenceId>,
        computed: usize,
    ) {
        match submitted {
            Ok(ticket) => {
                for active in &mut self.active {
                    active.under_way += usize::from(members.contains(&active.sequence));
                }
                let began = Instant::now();
                self.under_way.push(UnderWay { ticket, work, members, began, computed });
            }
            Err(error) => self.fail_members(&members, &error.into()),
        }
    }

    /// Where a job is that goes on; one that is ending ends as it would have.
    fn going_on(&self, sequence: SequenceId) -> Option<usize> {
        self.index_of(sequence).filter(|&index| self.active[index].ending.is_none())
    }

    fn fail_members(&mut self, members: &[SequenceId], fault: &Fault) {
        for &sequence in members {
            if let Some(index) = self.going_on(sequence) {
                self.fail(index, fault);
            }
        }
    }

    /// A batch has come back.
    fn collected(&mut self, Collected { ticket, ended, times }: Collected) {
        let Some(at) = self.under_way.iter().position(|it| it.ticket == ticket) else { return };
        let batch = self.under_way.remove(at);
        for active in &mut self.active {
            active.under_way -= usize::from(batch.members.contains(&active.sequence));
        }
        let indices = batch.members.iter().filter_map(|&it| self.index_of(it));
        let indices: Vec<usize> = indices.collect();
        self.works_for(&indices);
        match ended {
            Ended::Panicked(payload) => resume_unwind(payload),
            Ended::Failed(error) => {
                indices.iter().for_each(|&index| self.active[index].lost = true);
                self.failed(&batch.members, error);
            }
            Ended::Done => match batch.work {
                Work::Step(rows) => {
                    let took = batch.began.elapsed();
                    self.status.decode_stages.add(times);
                    self.end_of_step(rows, batch.computed, took);
                }
                Work::Parts(parts) => self.end_of_batch(parts, batch.began.elapsed()),
            },
        }
        // Its rows are drawn: the last stage may go on.
        self.engine.release();
        self.end_waiting();
    }

    fn failed(&mut self, members: &[SequenceId], error: EngineError) {
        if !matches!(error, EngineError::Cancelled) {
            return self.fail_members(members, &error.into());
        }
        for &sequence in members {
            if let Some(index) = self.going_on(sequence) {
                self.cancel(index, false);
            }
        }
    }

    fn end_of_step(
        &mut self,
        rows: Vec<(SequenceId, usize, Vec<u32>)>,
        computed: usize,
        took: Duration,
    ) {
        let rows = rows.into_iter().filter_map(|(sequence, first, drafts)| {
            Some(Rows { index: self.index_of(sequence)?, first, drafts })
        });
        let rows: Vec<Rows> = rows.collect();
        // Groups overlap: the time since the last one came back is what this one took of the clock.
        let share = self.last_step.map_or(took, |last| last.elapsed().min(took));
        self.last_step = Some(Instant::now());
        self.status.decode_time += share;
        self.step_time = took;
        self.drawn(&rows, computed, share, took);
    }

    fn end_of_batch(&mut self, mut parts: Vec<Part>, took: Duration) {
        let layers = self.engine.config().layers.len();
        let known = |part: &mut Part| {
            let index = self.index_of(part.sequence());
            index.map(|index| part.move_to(index)).is_some()
        };
        parts.retain_mut(known);
        if let [part] = &parts[..] {
            let (index, tokens) = (part.index(), part.tokens());
            let active = &mut self.active[index];
            active.partial = 0;
            active.worked(took, tokens);
            active.layers += layers;
            if active.ending.is_some() {
                self.keep_marks();
                return;
            }
            let held = self.engine.sequence_length(active.sequence);
            active.report_progress(held, layers, self.usual_rate);
            self.end_of_chunk(index, tokens);
        } else if !parts.is_empty() {
            self.end_of_parts(&parts, took);
        }
    }

    /// Tells clients how far chunks on their way are.
    fn report_ahead(&mut self) {
        let layers = self.engine.config().layers.len();
        let mut seen = Vec::new();
        for at in 0..self.under_way.len() {
            let UnderWay { ticket, ref members, computed, .. } = self.under_way[at];
            let &[sequence] = &members[..] else { continue };
            if self.under_way[at].is_step() || seen.contains(&sequence) {
                continue;
            }
            seen.push(sequence);
            let passed = self.engine.layers_passed(ticket);
            let held = self.engine.sequence_length(sequence);
            if let Some(index) = self.index_of(sequence) {
                let active = &mut self.active[index];
                active.partial = computed * passed / layers.max(1);
                active.report_progress(held, layers, self.usual_rate);
            }
        }
    }

    /// Notes what ends a job that has batches under way, and gives those up that compute nothing else; false where it
    /// has none: then it can end now.
    pub(super) fn ends_later(&mut self, index: usize, ending: Ending) -> bool {
        let active = &mut self.active[index];
        if active.under_way == 0 {
            return false;
        }
        active.ending.get_or_insert(ending);
        let sequence = active.sequence;
        for batch in self.under_way.iter().filter(|batch| batch.members == [sequence]) {
            self.engine.cancel(batch.ticket);
        }
        true
    }

    /// A client has gone whose job has batches under way. Of an answer among others the step is awaited.
    pub(super) fn gone_under_way(&mut self, index: usize) {
        let sequence = self.active[index].sequence;
        let alone = |batch: &&UnderWay| batch.members == [sequence];
        let own = self.under_way.iter().filter(|batch| batch.members.contains(&sequence));
        if own.clone().count() == own.filter(alone).count() {
            self.ends_later(index, Ending::Cancelled);
        }
    }

    /// Ends jobs all of whose batches have come back.
    fn end_waiting(&mut self) {
        for index in (0..self.active.len()).rev() {
            let active = &mut self.active[index];
            if active.under_way > 0 {
                continue;
            }
            let lost = active.lost;
            match active.ending.take() {
                None => {}
                Some(Ending::Cancelled) => {
                    self.works_for(&[index]);
                    self.cancel(index, !lost);
                }
                Some(Ending::Failed(error, cause)) => self.end_failed(index, error, &cause),
            }
        }
    }

    /// Gives all prompts up and awaits what is under way: the server stops. Panics end here.
    pub(super) fn drain_stages(&mut self) {
        for batch in self.under_way.iter().filter(|batch| !batch.is_step()) {
            self.engine.cancel(batch.ticket);
        }
        while !self.under_way.is_empty() {
            if matches!(self.guarded(Self::take_one), super::panics::Round::Lost) {
                return;
            }
        }
    }

    /// The jobs of batches under way in which one of `culprits` is, with these.
    pub(super) fn with_companions(&self, mut culprits: Vec<SequenceId>) -> Vec<SequenceId> {
        for batch in &self.under_way {
            if batch.members.iter().any(|it| culprits.contains(it)) {
                culprits.extend(&batch.members);
            }
        }
        culprits
    }
}

//! Parts of prompts, and the batches that they make: a chunk of one prompt, or short parts of several.
//!
//! On a device where a batch of a few tokens costs almost as much as one of many, short prompts of several clients are
//! one batch, which runs to its end: eight turns of five new tokens then wait for one pass and not for eight. A token's
//! bits do not depend on the batch that it is in.

use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::{Cancel, Run, SequenceId};
use engine::engine::{Engine, Pass};
use store::timeline;

use super::active::{Doing, Fault};
use super::outbox::Outbox;
use super::prefix::Place;
use super::scheduler::{Scheduler, WORTH_WAITING};
use super::shared::Shared;
use super::step::Rows;

/// Tokens between snapshots on the way through a long prompt.
const WAY_TOKENS: usize = 4096;
/// Time between them, if that is sooner: what a cancelled prompt loses at the most, with its last chunk.
const WAY_TIME: Duration = Duration::from_secs(3);

/// The next part of a job's prompt.
pub(super) struct Part {
    index: usize,
    sequence: SequenceId,
    /// Where it begins and ends in the prompt.
    position: usize,
    end: usize,
    /// Where snapshots are taken inside it.
    cuts: Vec<usize>,
}

impl Part {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// The job is at another place by now.
    pub(super) fn move_to(&mut self, index: usize) {
        self.index = index;
    }

    pub(super) fn tokens(&self) -> usize {
        self.end - self.position
    }
}

/// Cancels a batch of several prompts when all their clients have gone, or the server stops.
struct AllAbandoned<'a>(Vec<&'a Outbox>, &'a Shared);

impl Cancel for AllAbandoned<'_> {
    fn is_cancelled(&self) -> bool {
        self.1.beat();
        self.1.is_stopping() || self.0.iter().all(|outbox| outbox.is_closed())
    }
}

impl Scheduler {
    /// What of a prompt is computed next, with snapshots at the ends of turns inside it.
    pub(super) fn next_part(&mut self, index: usize) -> Part {
        let chunk = self.engine.chunk();
        // Where cuts show, they are where a prompt computed from its start has them.
        let cuttable = self.engine.backend().rules().cut_tokens == 1;
        let active = &self.active[index];
        let sequence = active.sequence;
        let position = self.engine.stages().length_ahead(sequence);
        let most = if cuttable { chunk } else { chunk - position % chunk };
        let end = active.prompt().min(position + most);
        let mut cuts = Vec::new();
        if cuttable && active.job.cache_prompt {
            let inside = active.job.prompt.boundaries.iter().copied();
            cuts.extend(inside.filter(|cut| (position + 1..end).contains(cut)));
            let prefix = &self.prefix;
            cuts.retain(|&cut| !prefix.has(active.domain, &active.tokens[..cut]));
            cuts.dedup();
            // Of a prompt that is never at rest between its chunks, points on the way are made in their passes.
            let (kept, time) = (active.kept.0.max(active.way), active.kept.1);
            let due = end - kept >= WAY_TOKENS || time.elapsed() >= WAY_TIME;
            if self.is_staged() && end < active.prompt() && end > kept && due {
                cuts.push(end);
            }
        }
        self.active[index].way = cuts.last().copied().unwrap_or(0).max(self.active[index].way);
        Part { index, sequence, position, end, cuts }
    }

    /// Begins a batch of parts of prompts. Snapshots for which there is no room are left out of `parts`.
    pub(super) fn start_parts(&mut self, parts: &mut [Part]) -> Result<Pass, EngineError> {
        self.begin_parts(parts, |engine, runs, marks| engine.start(runs, marks))
    }

    /// As [`Scheduler::start_parts`], begun by `begin`, which gets the runs and which of them end in snapshots.
    pub(super) fn begin_parts<T>(
        &mut self,
        parts: &mut [Part],
        begin: impl FnOnce(&mut Engine, &[Run<'_>], &[usize]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let side = parts.iter().all(|part| self.active[part.index].is_side());
        let backend = self.engine.backend();
        let states: usize = parts.iter().map(|part| part.cuts.len()).sum();
        let pages: usize = parts.iter().map(|part| backend.batch_pages(part.tokens())).sum();
        let marked = parts.iter().filter(|part| !part.cuts.is_empty());
        let copied = marked.map(|part| backend.snapshot_pages(part.sequence, part.end));
        let copied = copied.sum::<usize>() + states;
        self.make_room(side, |room| room.states >= states && room.pages >= pages + copied);
        let mut states = self.engine.backend().room().states;
        for part in &mut *parts {
            part.cuts.truncate(states);
            states -= part.cuts.len();
        }
        // Without pages there is no answer: here even a side job may take what it needs.
        self.make_room(false, |room| room.pages >= pages);
        let (mut runs, mut marks) = (Vec::new(), Vec::new());
        for part in &*parts {
            let (sequence, tokens) = (part.sequence, &self.active[part.index].tokens);
            let mut start = part.position;
            for &cut in &part.cuts {
                marks.push(runs.len());
                runs.push(Run { sequence, tokens: &tokens[start..cut] });
                start = cut;
            }
            if start < part.end {
                runs.push(Run { sequence, tokens: &tokens[start..part.end] });
            }
        }
        begin(&mut self.engine, &runs, &marks)
    }

    /// Keeps the snapshots that the batch which has ended was asked for.
    pub(super) fn keep_marks(&mut self) {
        for (sequence, snapshot) in self.engine.backend().take_marks() {
            let job = self.active.iter_mut().find(|active| active.sequence == sequence);
            let Some(active) = job else { continue };
            let length = snapshot.length();
            active.kept = (length, Instant::now());
            let (side, session) = (active.is_side(), active.job.session.as_deref());
            let (domain, tokens) = (active.domain, &active.tokens[..length]);
            let turn = active.job.prompt.boundaries.contains(&length);
            let place = if turn { Place::Turn } else { Place::Way };
            self.prefix.insert(domain, tokens, snapshot, place, side, session);
        }
    }

    /// After the last layer of a part: counts it, and keeps what is worth it of where the prompt is. True when that was
    /// the prompt's last: its answer begins.
    pub(super) fn end_of_part(&mut self, index: usize, tokens: usize) -> bool {
        self.status.chunks += 1;
        self.status.prompt_tokens += tokens as u64;
        self.status.prefix.tokens_computed += tokens as u64;
        let active = &mut self.active[index];
        let held = self.engine.sequence_length(active.sequence);
        let layers = self.engine.config().trunk_layers();
        if let Some(rate) = active.prefill_rate(held, layers) {
            self.usual_rate = Some(rate);
            self.status.prefill_rate = rate;
        }
        if held < active.prompt() {
            let (position, time) = active.kept;
            let due = held - position >= WAY_TOKENS || time.elapsed() >= WAY_TIME;
            if due && !self.is_staged() {
                self.keep(index, Place::Way);
            }
            return false;
        }
        if !self.engine.backend().rules().answers_replay && held - active.kept.0 > WORTH_WAITING {
            // The end of the answer cannot be kept.
            self.keep(index, Place::Turn);
        }
        true
    }

    /// The jobs whose next parts are one batch with that of `prompt`, ascending: those that have had least time first,
    /// as many as fit. `None` where it is a batch of its own, which others may interrupt.
    pub(super) fn joined(&mut self, prompt: usize, prompts: &[usize]) -> Option<Vec<usize>> {
        let rules = self.engine.backend().rules();
        let limit = rules.joint_tokens;
        if limit == 0 || rules.cut_tokens != 1 {
            return None;
        }
        let mut candidates: Vec<usize> = prompts.to_vec();
        candidates.sort_by_key(|&it| (it != prompt, self.active[it].share, it));
        let (mut members, mut total) = (Vec::new(), 0);
        for index in candidates {
            let active = &self.active[index];
            let plain = !active.job.prompt_logprobs && active.job.max_tokens != Some(0);
            let left = active.prompt() - self.engine.stages().length_ahead(active.sequence);
            if !plain || !matches!(active.doing, Doing::Prefill(None)) || total + left > limit {
                if index == prompt {
                    return None;
                }
                continue;
            }
            total += left;
            members.push(index);
        }
        members.sort_unstable();
        Some(members)
    }

    /// Runs what is left of several short prompts through all layers, and draws the first tokens of their answers.
    pub(super) fn prefill_together(&mut self, members: &[usize]) {
        self.works_for(members);
        let started = Instant::now();
        let mut parts: Vec<Part> = members.iter().map(|&index| self.next_part(index)).collect();
        let tokens: usize = parts.iter().map(Part::tokens).sum();
        let numbers = [("prompts", parts.len() as u64), ("tokens", tokens as u64), ("", 0)];
        let span = timeline::span("prefill, several prompts", numbers);
        let result = self.run_parts(&mut parts);
        drop(span);
        let time = started.elapsed();
        self.since_step += time;
        match result {
            Ok(()) => self.end_of_parts(&parts, time),
            Err(EngineError::Cancelled) => {
                members.iter().rev().for_each(|&index| self.cancel(index, false));
            }
            Err(error) => {
                let error = Fault::from(error);
                members.iter().rev().for_each(|&index| self.fail(index, &error));
            }
        }
    }

    fn run_parts(&mut self, parts: &mut [Part]) -> Result<(), EngineError> {
        let mut pass = self.start_parts(parts)?;
        let outboxes = parts.iter().map(|part| &self.active[part.index].outbox).collect();
        let abandoned = AllAbandoned(outboxes, &self.shared);
        loop {
            match self.engine.advance(&mut pass, &abandoned) {
                Ok(true) => return Ok(()),
                Ok(false) if !abandoned.is_cancelled() => {}
                Ok(false) => {
                    self.engine.give_up(&pass);
                    return Err(EngineError::Cancelled);
                }
                Err(error) => {
                    self.engine.give_up(&pass);
                    return Err(error);
                }
            }
        }
    }

    pub(super) fn end_of_parts(&mut self, parts: &[Part], time: Duration) {
        self.keep_marks();
        let layers = self.engine.config().trunk_layers();
        let (mut rows, mut first) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            let (index, tokens) = (part.index, part.tokens());
            let active = &mut self.active[index];
            active.worked(time / parts.len() as u32, tokens);
            active.layers += layers;
            first += tokens;
            if self.end_of_part(index, tokens) {
                rows.push(Rows { index, first: first - 1, drafts: Vec::new() });
            }
        }
        self.draw(&rows);
    }
}

//! How jobs come and go: admission with what is already computed, the ends of answers, cancellation, the status.

use std::time::Instant;

use engine::EngineError;
use engine::backend::gpu::GpuError;
use engine::backend::{PAGE_TOKENS, Room};
use store::cache::StoreCounters;
use store::timeline;

use super::active::{Active, Doing, Fault, Start};
use super::blame::told;
use super::keeping::note_disk;
use super::prefix::{Found, Miss, Place, shared_tokens};
use super::queue::Waiting;
use super::scheduler::{SLOW_CLIENT, STATUS_INTERVAL, Scheduler, WORTH_WAITING};
use super::under_way::Ending;
use super::{Event, Failing, Finish, FinishReason, JobError, Priority, Stage};
use crate::log::Level;

impl Scheduler {
    /// Ends jobs whose clients have gone, wherever they are, and delivers what others have not read.
    pub(super) fn forget_gone(&mut self) {
        for index in (0..self.active.len()).rev() {
            self.works_for(&[index]);
            let active = &mut self.active[index];
            active.outbox.flush();
            if active.under_way > 0 {
                if active.outbox.is_closed() {
                    self.gone_under_way(index);
                }
            } else if active.outbox.is_closed() {
                self.cancel(index, true);
            } else if active.outbox.stuck_for() > SLOW_CLIENT {
                active.outbox.send(Event::Failed(JobError::SlowClient(SLOW_CLIENT)));
                self.cancel(index, true);
            }
        }
        self.at_work.clear();
        self.draining.retain_mut(|outbox| {
            !outbox.flush() && !outbox.is_closed() && outbox.stuck_for() < SLOW_CLIENT
        });
        let gone = self.shared.queue().purge() as u64;
        if gone > 0 {
            *self.status.cancelled.entry(Stage::Queued.name()).or_default() += gone;
        }
    }

    /// Starts waiting jobs while there are sequences for them.
    pub(super) fn admit(&mut self) {
        loop {
            let waiting = {
                let mut queue = self.shared.queue();
                let is_room = self.active.len() < self.sequences;
                let waiting = queue.next(|waiting| is_room && self.may_start(waiting));
                queue.running = self.active.len() + usize::from(waiting.is_some());
                self.status.queued = queue.len();
                waiting
            };
            let Some(waiting) = waiting else { return };
            self.in_hand = Some(waiting.outbox.sender());
            self.start(waiting);
            self.in_hand = None;
        }
    }

    /// False while another job computes a beginning of this one's prompt: it will be there soon. Jobs on the side wait
    /// until no other job runs.
    fn may_start(&self, waiting: &Waiting) -> bool {
        let Waiting { job, domain, .. } = waiting;
        if job.priority == Priority::Side && self.active.iter().any(|active| !active.is_side()) {
            return false;
        }
        if !job.cache_prompt || job.prompt_logprobs {
            return true;
        }
        let reach = self.prefix.reach(*domain, &job.prompt.tokens);
        !self.active.iter().any(|active| {
            let Doing::Prefill(_) = active.doing else { return false };
            let kept = active.job.cache_prompt && active.domain == *domain;
            if !kept || active.is_side() && job.priority == Priority::Normal {
                return false;
            }
            let shared = shared_tokens(&active.job.prompt.tokens, &job.prompt.tokens);
            let shared = shared.min(job.prompt.tokens.len() - 1);
            let held = self.engine.sequence_length(active.sequence);
            // Snapshots will be there that are not yet.
            let coming = active.job.prompt.boundaries.iter().copied();
            let coming = coming.filter(|&cut| cut > held && cut <= shared).max().unwrap_or(0);
            coming >= reach + WORTH_WAITING
        })
    }

    fn start(&mut self, waiting: Waiting) {
        let job = &waiting.job;
        let found = if !job.cache_prompt || job.prompt_logprobs {
            Err(Miss { reason: "not_wanted", shared: 0 })
        } else if self.engine.backend().rules().cut_tokens != 1 {
            Err(Miss { reason: "device", shared: 0 })
        } else {
            self.load_from_disk(&waiting);
            self.prefix.find(waiting.domain, &job.prompt.tokens, job.session.as_deref())
        };
        let id = job.id.clone();
        let point = found.as_ref().ok().map(|found| &found.snapshot);
        let sequence = match self.engine.backend().create_sequence(point) {
            Ok(sequence) => sequence,
            Err(error) => {
                self.note_failing(&error);
                self.shared.log_job(Level::Error, &id, &format!("failed: {error}"));
                let mut outbox = waiting.outbox;
                outbox.send(Event::Failed(told(&error, &id)));
                self.draining.push(outbox);
                return;
            }
        };
        let mut cached = 0;
        match found {
            Ok(Found { snapshot }) => match self.engine.backend().restore(sequence, &snapshot) {
                Ok(()) => cached = snapshot.length(),
                Err(error) => {
                    let line = format!("a snapshot was not restored: {error}");
                    self.shared.log_job(Level::Warn, &id, &line);
                }
            },
            Err(Miss { reason, shared }) => {
                self.prefix.count_full(reason);
                let tokens = waiting.job.prompt.tokens.len();
                self.shared.log_job(Level::Debug, &id, &format!(
                    "prompt of {tokens} tokens computed from the start: {reason} (first difference at token {shared})"
                ));
            }
        }
        self.status.prefix.tokens_reused += cached as u64;
        let shares = self.active.iter().map(|active| active.share);
        let share = shares.min().unwrap_or_default();
        let layers = self.lap();
        let vocabulary = self.engine.config().vocabulary;
        let counters = self.engine.counters();
        let slot = self.free_slot(&waiting);
        let drafting = self.drafting.as_ref();
        let start = Start { cached, share, layers, slot, before: counters, drafting };
        let mut active = Active::new(waiting, &self.language, vocabulary, sequence, start);
        self.status.measures.queue.add_time(active.queued());
        let layers = self.engine.config().trunk_layers();
        active.report_progress(cached, layers, self.usual_rate);
        self.active.push(active);
    }

    /// The number under which a job's state is remembered: its own, or the lowest that no other has.
    fn free_slot(&self, waiting: &Waiting) -> usize {
        let used = |slot: &usize| self.active.iter().any(|active| active.slot == *slot);
        waiting.job.slot.unwrap_or_else(|| (0..).find(|slot| !used(slot)).unwrap_or(0))
    }

    /// Brings in a snapshot from disk, where that saves more than what is in memory.
    fn load_from_disk(&mut self, waiting: &Waiting) {
        let Waiting { job, domain, .. } = waiting;
        let domain = *domain;
        let Some(disk) = &self.disk else { return };
        let prompt = &job.prompt.tokens;
        let reach = self.prefix.reach(domain, prompt);
        let found = disk.find(domain, prompt, reach + WORTH_WAITING);
        let Some((level, length)) = found else { return };
        let pages = length.div_ceil(PAGE_TOKENS);
        let side = job.priority == Priority::Side;
        let enough = |room: Room| room.pages >= pages && room.states > 0;
        if self.make_room(side, enough)
            && let Some(disk) = &mut self.disk
            && let backend = self.engine.backend()
            && let Some(snapshot) =
                disk.load(level, domain, prompt, length, backend, &|| self.shared.beat())
        {
            let tokens = &prompt[..length];
            let session = job.session.as_deref();
            self.prefix.insert(domain, tokens, snapshot, Place::Turn, side, session);
        }
    }

    /// Takes a job out of the running ones and frees its sequence.
    pub(super) fn remove(&mut self, index: usize) -> Active {
        // Both may panic: until then the job is where its client is found.
        let active = &self.active[index];
        if let Doing::Prefill(Some(chunk)) = &active.doing {
            self.engine.give_up(&chunk.pass);
        }
        self.engine.drop_sequence(active.sequence);
        self.on_device = match self.on_device {
            Some(current) if current == index => None,
            Some(current) if current > index => Some(current - 1),
            other => other,
        };
        self.active.remove(index)
    }

    /// Ends an answer that is complete.
    pub(super) fn finish(&mut self, index: usize, reason: FinishReason) {
        self.keep(index, Place::Turn);
        let active = &self.active[index];
        if active.job.cache_prompt {
            let held = self.engine.sequence_length(active.sequence);
            self.slots.remember(active.slot, active.domain, &active.tokens[..held]);
        }
        let counters = self.engine.counters();
        let mut active = self.remove(index);
        self.in_hand = Some(active.outbox.sender());
        self.status.failing = self.status.failing.filter(|failing| *failing != Failing::LastJob);
        let finish = active.finish(reason, &counters);
        self.in_hand = None;
        for (kind, count) in active.repairs().iter().filter(|(_, count)| *count > 0) {
            *self.status.tool_repairs.entry(kind).or_default() += count;
        }
        if let Some((ids, turn)) = active.turn() {
            self.shared.turns().insert(ids, turn);
        }
        let name = match &finish.reason {
            FinishReason::Stop => "stop",
            FinishReason::StopString(_) => "stop_string",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        };
        *self.status.finished.entry(name).or_default() += 1;
        self.measure(&finish);
        let (usage, times) = (&finish.usage, &finish.timings);
        if let Some(trace) = active.job.trace {
            let [high, low] = [(trace >> 64) as u64, trace as u64];
            let tokens = ("tokens", (usage.prompt + usage.completion) as u64);
            timeline::past(
                "request",
                active.begun(),
                [("trace_high", high), ("trace_low", low), tokens],
            );
        }
        self.shared.log_job(Level::Info, &active.job.id, &format!(
            "{name}, prompt {} (cached {}), answer {} tokens, waited {:.1} s, prefill {:.1} s, decode {:.1} s, \
             expert hits {} of {}, read {:.2} GB",
            usage.prompt,
            usage.cached,
            usage.completion,
            times.queued.as_secs_f64(),
            times.prefill.as_secs_f64(),
            times.decode.as_secs_f64(),
            finish.experts.hits,
            finish.experts.hits + finish.experts.misses,
            finish.experts.bytes_read as f64 / 1e9,
        ));
        self.draining.push(active.outbox);
    }

    fn measure(&mut self, finish: &Finish) {
        let (usage, times, measures) = (&finish.usage, &finish.timings, &mut self.status.measures);
        measures.prefill.add_time(times.prefill);
        measures.decode.add_time(times.decode);
        measures.whole.add_time(times.queued + times.prefill + times.decode);
        let computed = usage.prompt - usage.cached;
        if computed > 0 && !times.prefill.is_zero() {
            measures.prefill_rate.add(computed as f64 / times.prefill.as_secs_f64());
        }
        let tokens = (computed + usage.completion).max(1);
        measures.bytes_per_token.add(finish.experts.bytes_read as f64 / tokens as f64);
    }

    /// Ends a job whose client has gone. `defined` is false when its sequence was lost with a pass.
    pub(super) fn cancel(&mut self, index: usize, defined: bool) {
        if self.ends_later(index, Ending::Cancelled) {
            return;
        }
        let stage = self.active[index].stage();
        *self.status.cancelled.entry(stage.name()).or_default() += 1;
        if defined {
            self.keep_whole(index);
        }
        let mut active = self.remove(index);
        let line = format!("cancelled in {}", stage.name());
        self.shared.log_job(Level::Info, &active.job.id, &line);
        if self.shared.is_stopping() {
            active.outbox.send(Event::Failed(JobError::ShuttingDown));
            self.draining.push(active.outbox);
        }
    }

    /// Keeps a job's sequence if it is whole, as it is between two chunks and in an answer: a retry goes on from there.
    pub(super) fn keep_whole(&mut self, index: usize) {
        if !matches!(self.active[index].doing, Doing::Prefill(Some(_))) {
            self.keep(index, Place::Way);
        }
    }

    /// Ends a job with an error. Its sequence is undefined.
    pub(super) fn fail(&mut self, index: usize, fault: &Fault) {
        let (error, cause) = match fault {
            Fault::Engine(error) => {
                self.note_failing(error);
                (told(error, &self.active[index].job.id), error.to_string())
            }
            Fault::Request { field, problem } => {
                let error = JobError::Request { field, problem: problem.clone() };
                (error.clone(), error.to_string())
            }
        };
        if !self.ends_later(index, Ending::Failed(error.clone(), cause.clone())) {
            self.end_failed(index, error, &cause);
        }
    }

    /// Ends a job with an error that is known already.
    pub(super) fn end_failed(&mut self, index: usize, error: JobError, cause: &str) {
        *self.status.finished.entry("error").or_default() += 1;
        let mut active = self.remove(index);
        self.shared.log_job(Level::Error, &active.job.id, &format!("failed: {cause}"));
        active.outbox.send(Event::Failed(error));
        self.draining.push(active.outbox);
    }

    /// Notes for the status that requests fail: for now, or until a restart.
    fn note_failing(&mut self, error: &EngineError) {
        let lost = matches!(error, EngineError::Gpu(GpuError::Lost(_)));
        self.note(if matches!(error, EngineError::StageLost(_)) {
            Failing::StageLost
        } else if error.is_changed_file() {
            Failing::FileChanged
        } else if lost {
            Failing::DeviceLost
        } else {
            Failing::LastJob
        });
    }

    /// Notes a stage in another process that was lost, also where no request was on its way through it.
    pub(super) fn note_lost_stage(&mut self) {
        if self.status.failing == Some(Failing::StageLost) {
            return;
        }
        if let Some(lost) = self.engine.stages().lost() {
            self.shared.log(Level::Error, &format!("{lost}: the server ends"));
            self.note(Failing::StageLost);
            self.shared.publish(&self.status);
        }
    }

    /// Notes that requests fail; what lasts until a restart is not replaced by less.
    pub(super) fn note(&mut self, failing: Failing) {
        let failing =
            match self.status.failing {
                Some(Failing::Broken) => Failing::Broken,
                Some(
                    lasting @ (Failing::FileChanged | Failing::DeviceLost | Failing::StageLost),
                ) if failing != Failing::Broken => lasting,
                _ => failing,
            };
        self.status.failing = Some(failing);
        // Before the client hears of its error: one that asks for the health then is told.
        self.shared.publish_failing(failing);
    }

    /// Renews the numbers of the moment, and the places of those who wait.
    pub(super) fn publish(&mut self, idle: bool) -> bool {
        if !idle && self.published.is_some_and(|last| last.elapsed() < STATUS_INTERVAL) {
            return false;
        }
        self.published = Some(Instant::now());
        let layers = self.engine.config().trunk_layers();
        let running = self.active.iter().map(|active| {
            let held = self.engine.sequence_length(active.sequence);
            active.summary(held, layers, self.usual_rate)
        });
        self.status.running = running.collect();
        if self.active.iter().all(|active| active.stage() != Stage::Decode) {
            self.status.decode_rate = 0.0;
        }
        let stages = self.engine.stages();
        self.status.stages = stages.ranges().zip(stages.counters_by_stage()).collect();
        self.status.work = stages.work_by_stage();
        self.status.experts = StoreCounters::default();
        let (all, of_stages) = (&mut self.status.experts, &self.status.stages);
        of_stages.iter().for_each(|(_, counters)| all.add(counters));
        self.status.drafts = self.engine.draft_counters();
        let counters = &self.prefix.counters;
        let prefix = &mut self.status.prefix;
        prefix.saved = counters.saved;
        prefix.restored = counters.restored;
        prefix.evicted = counters.evicted;
        prefix.full_prefills.clone_from(&counters.full);
        prefix.snapshots = self.prefix.positions();
        prefix.snapshot_bytes = self.prefix.state_bytes();
        if let Some(disk) = &self.disk {
            note_disk(prefix, disk.status());
        }
        let mut queue = self.shared.queue();
        self.status.queued = queue.len();
        for (position, waiting) in queue.iter_mut().enumerate() {
            waiting.tell_position(position);
        }
        drop(queue);
        self.shared.publish(&self.status);
        true
    }
}

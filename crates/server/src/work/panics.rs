//! The border between a job and the engine's thread: a panic in a round of work ends the jobs that were at work.
//!
//! Their sequences are forgotten with the batch, the backend is made as good as new, and what was kept of prompts in
//! memory is dropped, since a snapshot may have been half made. Jobs that were not part of the batch go on: no
//! operation touches their sequences, and a batch that was suspended has a copy of all that it needs. A thread that
//! panics again and again, or whose backend cannot recover, is not worth keeping: the status says so and the server
//! ends in order.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use engine::backend::SequenceId;

use super::active::{Active, Doing};
use super::outbox::Outbox;
use super::scheduler::{LAST_DELIVERY, Scheduler};
use super::{Event, Failing, JobError};
use crate::log::Level;

/// How long a panic counts.
const WINDOW: Duration = Duration::from_secs(60);
/// So many times the limit within that time, and the thread ends at once: the server's end does not come.
const HOPELESS: usize = 4;

/// Panics of the last minute.
#[derive(Debug)]
pub(super) struct Panics {
    latest: VecDeque<Instant>,
    /// From so many on the server ends.
    limit: usize,
}

/// What a panic means for the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The next round may begin.
    GoesOn,
    /// What was taken may be finished; the server ends.
    Ends,
    /// Nothing can be computed any more.
    Lost,
}

impl Panics {
    /// None yet; the server ends at the `limit`th within a minute.
    pub(super) fn new(limit: usize) -> Self {
        Self { latest: VecDeque::new(), limit }
    }

    fn note(&mut self, now: Instant) -> Verdict {
        self.latest.push_back(now);
        self.latest.retain(|&then| now.duration_since(then) < WINDOW);
        match self.latest.len() {
            count if count >= self.limit.saturating_mul(HOPELESS) => Verdict::Lost,
            count if count >= self.limit => Verdict::Ends,
            _ => Verdict::GoesOn,
        }
    }
}

/// How a round ended.
pub(super) enum Round {
    /// Something was done.
    Worked,
    /// There was nothing to do.
    Idle,
    /// There will be no further round.
    Lost,
}

impl Scheduler {
    /// Does a round of work.
    pub(super) fn guarded_round(&mut self) -> Round {
        self.guarded(Self::round)
    }

    /// Does something that says whether it did anything.
    pub(super) fn guarded(&mut self, work: impl FnOnce(&mut Self) -> bool) -> Round {
        self.at_work.clear();
        // What a panic can leave half-done in `self` is put right by `after_panic`.
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(true) => Round::Worked,
            Ok(false) => Round::Idle,
            Err(panic) => self.after_panic(&*panic),
        }
    }

    /// Says which jobs the thread works for from here on.
    pub(super) fn works_for(&mut self, indices: &[usize]) {
        self.at_work.clear();
        self.at_work.extend(indices.iter().map(|&index| self.active[index].sequence));
    }

    fn after_panic(&mut self, panic: &(dyn Any + Send)) -> Round {
        self.status.panics += 1;
        let ended = self.take_culprits();
        let mut verdict = self.panics.note(Instant::now());
        let names: Vec<_> = ended.iter().map(|active| active.job.id.as_str()).collect();
        let line =
            format!("a panic of the engine: {}; it ends [{}]", words(panic), names.join(", "));
        self.shared.log(Level::Error, &line);
        self.prefix.forget();
        let live: Vec<SequenceId> = self.active.iter().map(|active| active.sequence).collect();
        let engine = &mut self.engine;
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            for active in &ended {
                if let Doing::Prefill(Some(chunk)) = &active.doing {
                    engine.give_up(&chunk.pass);
                }
            }
            engine.backend().recover(&live)
        }));
        let hopeless = match recovered {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("another panic: {}", words(&*panic))),
        };
        if let Some(why) = hopeless {
            self.shared.log(Level::Error, &format!("the engine cannot recover: {why}"));
            verdict = Verdict::Lost;
        }
        if verdict != Verdict::GoesOn {
            self.shared.log(Level::Error, "the engine is not usable any more: the server ends");
        }
        let failing = if verdict == Verdict::GoesOn { Failing::LastJob } else { Failing::Broken };
        self.note(failing);
        *self.status.finished.entry("error").or_default() += ended.len() as u64;
        self.shared.publish(&self.status);
        // After the status, so that a client that asks for the health then is told.
        let outboxes = ended.into_iter().map(|active| active.outbox);
        let in_hand = self.in_hand.take().map(Outbox::new);
        for mut outbox in outboxes.chain(in_hand) {
            outbox.send(Event::Failed(JobError::Panicked));
            self.draining.push(outbox);
        }
        match verdict {
            Verdict::Lost => Round::Lost,
            _ => Round::Worked,
        }
    }

    /// Takes the jobs out that the thread was working for, and the one whose batch the device holds.
    fn take_culprits(&mut self) -> Vec<Active> {
        let on_device = self.on_device.take().and_then(|index| self.active.get(index));
        let on_device = on_device.map(|active| active.sequence);
        let culprits: Vec<_> = self.at_work.drain(..).chain(on_device).collect();
        let culprits = self.with_companions(culprits);
        let (ended, others) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| culprits.contains(&active.sequence));
        self.active = others;
        // The stages forget these with their sequences.
        self.under_way.retain(|batch| !batch.members().iter().any(|it| culprits.contains(it)));
        ended
    }

    /// Ends every job: nothing will be computed any more, and what a broken engine holds is not kept.
    pub(super) fn give_up_all(mut self) {
        // From here on jobs are refused: the engine takes a while to go, and what came meanwhile would get no answer.
        self.shared.begin_to_stop();
        let active = self.active.drain(..).map(|active| active.outbox);
        let waiting = self.shared.queue().drain();
        let waiting = waiting.into_iter().map(|waiting| waiting.outbox);
        for mut outbox in active.chain(waiting) {
            outbox.send(Event::Failed(JobError::Panicked));
            self.draining.push(outbox);
        }
        Outbox::deliver(self.draining, LAST_DELIVERY);
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_count_for_a_minute() {
        let begun = Instant::now();
        let mut panics = Panics::new(3);
        let mut at = |seconds| panics.note(begun + Duration::from_secs(seconds));
        assert_eq!([at(0), at(30), at(61), at(91)], [Verdict::GoesOn; 4]);
        assert_eq!(at(92), Verdict::Ends);
        let mut panics = Panics::new(3);
        let last = (0..12).map(|_| panics.note(begun)).last();
        assert_eq!(last, Some(Verdict::Lost));
    }
}

//! Jobs that wait: bounded, fair between clients, side jobs last.
//!
//! Among jobs of one priority, the client that was served longest ago goes first, and its oldest job. A job whose
//! client has gone never starts.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::guide::Guide;
use super::outbox::Outbox;
use super::owner::Domain;
use super::slots::SlotOrder;
use super::{Event, Job, Priority};

/// Clients that are remembered for fairness; more than ever wait at once.
const CLIENTS_MAX: usize = 1024;

/// A job and where its events go.
pub(super) struct Waiting {
    pub(super) job: Job,
    /// Of the job's owner.
    pub(super) domain: Domain,
    /// What stands over the choice of its tokens, compiled.
    pub(super) guide: Option<Guide>,
    pub(super) outbox: Outbox,
    pub(super) since: Instant,
    /// Order of arrival.
    number: u64,
    /// The place in the queue that the client knows of.
    told: Option<usize>,
}

impl Waiting {
    /// Tells the client how many go first, when that has changed.
    pub(super) fn tell_position(&mut self, position: usize) {
        if self.told != Some(position) {
            self.told = Some(position);
            self.outbox.send(Event::Queued { position });
        }
    }
}

/// Jobs that wait.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Vec<Waiting>,
    arrivals: u64,
    /// When each client was last served, in jobs.
    served: HashMap<String, u64>,
    turns: u64,
    /// What clients asked of slots.
    pub(super) orders: VecDeque<SlotOrder>,
    /// Jobs that run, when the engine's thread was last here: between two of its batches many may come at once, and
    /// those for whom there are sequences do not wait.
    pub(super) running: usize,
}

impl Queue {
    /// Jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Adds a job.
    pub(super) fn push(&mut self, job: Job, domain: Domain, guide: Option<Guide>, outbox: Outbox) {
        self.arrivals += 1;
        self.jobs.push(Waiting {
            job,
            domain,
            guide,
            outbox,
            since: Instant::now(),
            number: self.arrivals,
            told: None,
        });
    }

    /// Forgets jobs whose clients have gone; how many.
    pub(super) fn purge(&mut self) -> usize {
        let before = self.jobs.len();
        self.jobs.retain(|waiting| !waiting.outbox.is_closed());
        before - self.jobs.len()
    }

    /// Takes the job whose turn it is among those that may start.
    pub(super) fn next(&mut self, mut may_start: impl FnMut(&Waiting) -> bool) -> Option<Waiting> {
        let served = &self.served;
        let turn = |waiting: &Waiting| {
            let client = served.get(&waiting.job.client).copied().unwrap_or(0);
            (waiting.job.priority == Priority::Side, client, waiting.number)
        };
        let candidates = self.jobs.iter().enumerate().filter(|(_, waiting)| may_start(waiting));
        let (index, _) = candidates.min_by_key(|(_, waiting)| turn(waiting))?;
        let waiting = self.jobs.remove(index);
        self.turns += 1;
        if self.served.len() >= CLIENTS_MAX {
            self.served.clear();
        }
        self.served.insert(waiting.job.client.clone(), self.turns);
        Some(waiting)
    }

    /// Every waiting job, in order of arrival.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.jobs.iter_mut()
    }

    /// Takes all jobs, to refuse them.
    pub(super) fn drain(&mut self) -> Vec<Waiting> {
        self.orders.clear();
        std::mem::take(&mut self.jobs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::super::Prompt;
    use super::*;
    use tokio::sync::mpsc;

    fn push(
        queue: &mut Queue,
        id: &str,
        client: &str,
        priority: Priority,
    ) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(1);
        let mut job = Job::new(id, Prompt::default());
        job.client = client.to_owned();
        job.priority = priority;
        queue.push(job, Domain::EVERYBODY, None, Outbox::new(sender));
        receiver
    }

    #[test]
    fn clients_take_turns_side_jobs_come_last_and_the_dead_never() {
        let mut queue = Queue::default();
        let mut clients = Vec::new();
        clients.push(push(&mut queue, "title", "a", Priority::Side));
        for id in ["a1", "a2", "a3"] {
            clients.push(push(&mut queue, id, "a", Priority::Normal));
        }
        clients.push(push(&mut queue, "b1", "b", Priority::Normal));
        drop(push(&mut queue, "gone", "c", Priority::Normal));
        assert_eq!(queue.purge(), 1);
        let order: Vec<_> =
            std::iter::from_fn(|| queue.next(|_| true)).map(|waiting| waiting.job.id).collect();
        assert_eq!(order, ["a1", "b1", "a2", "a3", "title"]);
    }
}

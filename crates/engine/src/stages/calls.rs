//! What the engine's thread has stages do apart from batches: sequences, snapshots, rounds.
//!
//! A call goes to every stage at the same time, and the engine's thread waits for all, so that all have the same
//! sequences before the next call.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use super::batch::{Failure, Message, Order, Payload};
use super::command::{Asked, Command, HeadCommand, Reply};
use super::pipeline::{Pipeline, Place};
use super::wait::Waits;
use super::worker::Worker;
use crate::EngineError;
use crate::backend::{SequenceId, Snapshot};
use crate::sequences::SnapshotShare;

/// A call whose end is awaited.
pub(super) struct Pending<T> {
    result: Receiver<Result<T, Failure>>,
    waits: Waits,
}

impl<T> Pending<T> {
    /// What the call gave.
    pub(super) fn wait(self) -> Result<T, Failure> {
        // Its thread ends after this one has dropped its end of the channel.
        self.waits
            .receive(&self.result)
            .unwrap_or_else(|_| Err(Failure::Panic(Box::new("a stage's thread has ended"))))
    }
}

/// Panics go on where the call was made.
pub(super) fn settle<T>(result: Result<T, Failure>) -> Result<T, EngineError> {
    result.map_err(|failure| match failure {
        Failure::Error(error) => error,
        Failure::Panic(payload) => resume_unwind(payload),
    })
}

/// Calls.
impl Pipeline {
    /// Has a stage do something; what it gives is there once it has. After a panic `touched` are undefined.
    pub(super) fn ask(
        &self,
        index: usize,
        touched: &[SequenceId],
        command: Command,
    ) -> Pending<Reply> {
        let (sender, result) = sync_channel(1);
        // Who does not wait any more has ended.
        let answer = Box::new(move |reply| _ = sender.send(reply));
        if let Some(port) = &self.links[index].port {
            port.send(Message::Ask(Asked { command, touched: touched.to_vec(), answer }));
        }
        Pending { result, waits: self.mailbox.waits }
    }

    /// Has all stages do something at the same time, and waits for all.
    ///
    /// # Errors
    /// What the first of them reports.
    pub(super) fn ask_all(
        &self,
        touched: &[SequenceId],
        what: impl Fn(usize) -> Command,
    ) -> Result<Vec<Reply>, EngineError> {
        joined(self.ask_each(touched, what))
    }

    fn ask_each(
        &self,
        touched: &[SequenceId],
        what: impl Fn(usize) -> Command,
    ) -> Vec<Result<Reply, Failure>> {
        let pending: Vec<_> =
            (0..self.links.len()).map(|index| self.ask(index, touched, what(index))).collect();
        pending.into_iter().map(Pending::wait).collect()
    }

    /// Asks the stage that has the head of the batch that it keeps.
    pub(super) fn ask_head(&self, command: HeadCommand) -> Pending<Reply> {
        self.ask(self.last(), &[], Command::Head(self.held, command))
    }

    /// As [`Pipeline::ask`], by a closure, which a stage of this process alone can be sent.
    pub(super) fn call<T: Send + 'static>(
        &self,
        index: usize,
        touched: &[SequenceId],
        what: impl FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = sync_channel(1);
        let touched = touched.to_vec();
        let call = Box::new(move |worker: &mut Worker| {
            // Who does not wait any more has ended.
            _ = sender.send(worker.guarded(&touched, what));
        });
        match &self.links[index].port {
            Some(port) if port.is_here() => port.send(Message::Call(call)),
            _ => {
                let found = "a batch does not run layer by layer over stages in other processes";
                let refused = Err(Failure::Error(EngineError::Request(found.to_owned())));
                let (sender, result) = sync_channel(1);
                _ = sender.send(refused);
                return Pending { result, waits: self.mailbox.waits };
            }
        }
        Pending { result, waits: self.mailbox.waits }
    }

    /// As [`Pipeline::call`], and waits.
    ///
    /// # Errors
    /// What the stage reports.
    pub(super) fn on<T: Send + 'static>(
        &self,
        index: usize,
        touched: &[SequenceId],
        what: impl FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        settle(self.call(index, touched, what).wait())
    }

    /// Has all stages do something at the same time, each what `what` makes for its index, and waits for all.
    ///
    /// # Errors
    /// What the first of them reports.
    pub(super) fn all<T, F>(
        &mut self,
        touched: &[SequenceId],
        mut what: impl FnMut(usize) -> F,
    ) -> Result<Vec<T>, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    {
        let pending: Vec<_> =
            (0..self.links.len()).map(|index| self.call(index, touched, what(index))).collect();
        joined(pending.into_iter().map(Pending::wait).collect())
    }
}

/// What all stages gave, or the panic or error of the first.
fn joined<T>(each: Vec<Result<T, Failure>>) -> Result<Vec<T>, EngineError> {
    let mut all = Vec::with_capacity(each.len());
    let (mut failed, mut panicked) = (None, None);
    for result in each {
        match result {
            Ok(value) => all.push(value),
            Err(Failure::Error(error)) => _ = failed.get_or_insert(error),
            Err(Failure::Panic(payload)) => _ = panicked.get_or_insert(payload),
        }
    }
    match (panicked, failed) {
        (Some(payload), _) => resume_unwind(payload),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(all),
    }
}

/// Sequences.
impl Pipeline {
    /// The first stage chooses the place, and all others take it.
    pub(super) fn create_sequence(
        &mut self,
        home: Option<SequenceId>,
    ) -> Result<SequenceId, EngineError> {
        let mut made = vec![self.ask(0, &[], Command::Create(home)).wait()];
        if let Ok(Reply::Sequence(chosen)) = made[0] {
            let others = (1..self.links.len())
                .map(|index| self.ask(index, &[], Command::Create(Some(chosen))))
                .collect::<Vec<_>>();
            made.extend(others.into_iter().map(Pending::wait));
        }
        let (mut sequences, mut failed, mut panicked) = (Vec::new(), None, None::<Payload>);
        for (index, made) in made.into_iter().enumerate() {
            match made {
                Ok(Reply::Sequence(sequence)) => sequences.push((index, sequence)),
                Ok(other) => panic!("a stage made {other:?}"),
                Err(Failure::Error(error)) => _ = failed.get_or_insert(error),
                Err(Failure::Panic(payload)) => _ = panicked.get_or_insert(payload),
            }
        }
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
        if let Some(error) = failed {
            for (index, sequence) in sequences {
                settle(self.ask(index, &[], Command::Remove(sequence)).wait())?;
            }
            return Err(error);
        }
        let sequence = sequences[0].1;
        assert!(sequences.iter().all(|it| it.1 == sequence), "stages know the same sequences");
        self.set_length(sequence, 0);
        Ok(sequence)
    }

    /// Forgets a sequence that has no batch under way.
    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.set_length(sequence, 0);
        // A stage that was lost alone cannot do it.
        _ = self.ask_all(&[sequence], |_| Command::Remove(sequence));
    }

    pub(super) fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        self.check_at_rest(sequence)?;
        self.keep_now(sequence)?;
        let parts = self.ask_all(&[sequence], |_| Command::Snapshot(sequence))?;
        let part = |reply| match reply {
            Reply::Part(part) => part,
            other => panic!("a stage's snapshot is {other:?}"),
        };
        Ok(Snapshot::of(parts.into_iter().map(part).collect()))
    }

    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        parts: &[SnapshotShare],
    ) -> Result<(), EngineError> {
        self.check_at_rest(sequence)?;
        assert_eq!(parts.len(), self.links.len(), "a snapshot of as many stages");
        let length = parts.first().map_or(0, SnapshotShare::length);
        self.ask_all(&[sequence], |index| Command::Restore(sequence, parts[index].clone()))?;
        self.set_length(sequence, length);
        Ok(())
    }

    /// Pages that a snapshot of a sequence takes.
    pub(super) fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        let pages = self.links.iter().enumerate().map(|(index, link)| {
            if link.view.shares_pages() {
                return 0;
            }
            match settle(self.ask(index, &[], Command::SnapshotPages(sequence, length)).wait()) {
                Ok(Reply::Pages(pages)) => pages,
                _ => 0,
            }
        });
        pages.max().unwrap_or(0)
    }

    /// Keeps the first tokens of a round. The stages hear of it with the next batch.
    pub(super) fn keep_first(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let place = self.place(sequence);
        if place.kept.is_some() || place.round < 2 || !(1..=place.round).contains(&tokens) {
            let found = format!("the last batch of a sequence was no round of {tokens} tokens");
            return Err(EngineError::Request(found));
        }
        place.length -= place.round - tokens;
        (place.kept, place.round) = (Some(tokens), 0);
        Ok(())
    }

    /// Has the stages hear now of what is kept of a round.
    pub(super) fn keep_now(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let Some(tokens) = self.place(sequence).kept.take() else { return Ok(()) };
        self.ask_all(&[sequence], |_| Command::KeepFirst(sequence, tokens)).map(|_| ())
    }

    fn check_at_rest(&self, sequence: SequenceId) -> Result<(), EngineError> {
        if self.places[sequence.place()].ahead > 0 {
            let found = "a batch of this sequence is under way".to_owned();
            return Err(EngineError::Request(found));
        }
        Ok(())
    }

    /// After a panic out of any call or batch: forgets all sequences but those of `live`, and cancels the batches of
    /// others. Batches of `live` go on.
    pub(super) fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.release();
        let lost = |order: &Order| order.runs.iter().any(|(it, _)| !live.contains(it));
        self.under_way
            .iter()
            .filter(|order| lost(order))
            .for_each(|order| self.cancel_order(order));
        // Even one that waits behind a batch which the last stage keeps ends now.
        self.ask_all(&[], |_| Command::Nothing)?;
        let mut kept = VecDeque::new();
        while self.under_way.iter().any(|order| lost(order)) {
            let Some(moving) = self.mailbox.take(Duration::from_millis(50)) else { continue };
            if lost(&moving.order) {
                self.forget(&moving.order);
                self.release_of(moving.order.ticket);
            } else {
                kept.push_back(moving);
            }
        }
        self.mailbox.put_back(kept);
        self.marks.clear();
        for (place, known) in self.places.iter_mut().enumerate() {
            if !live.contains(&SequenceId(place as u32)) {
                *known = Place::default();
            }
        }
        self.ask_all(&[], |_| Command::Recover(live.to_vec())).map(|_| ())
    }
}

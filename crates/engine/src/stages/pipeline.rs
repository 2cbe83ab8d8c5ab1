//! The engine's side of several stages: a thread for each, batches under way, and what is known of sequences without
//! asking a thread.
//!
//! Calls go to every stage in one order, and the engine's thread waits for all of them: what one call changes every
//! stage has changed before the next. Batches are given to the first stage and come back from the last one. No sequence
//! of a batch under way is otherwise touched.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use store::LayerId;
use store::cache::StoreCounters;

use super::Stage;
use super::batch::{Counted, Failure, Mailbox, Message, Moving, Order, Payload, StageWork, Ticket};
use super::worker::{Fittings, Worker};
use crate::EngineError;
use crate::backend::{Backend, Purpose, Run, SequenceId, Snapshot, SnapshotPart};
use crate::model::StageTimes;
use crate::model::program::Program;
use crate::sequences::SequencesView;
use crate::weights::{MatrixId, TableId};

/// Batches that may be under way for each stage: one of answers, one of prompts, and one of each that waits.
const BATCHES_A_STAGE: usize = 4;
/// Calls that may wait for a stage.
const CALLS: usize = 16;

/// How a batch ended.
#[derive(Debug)]
pub enum Ended {
    /// Its tokens are part of their sequences.
    Done,
    /// Its sequences must be dropped, unless the first stage refused it.
    Failed(EngineError),
    /// An operation panicked over it; its sequences must be dropped.
    Panicked(Box<dyn std::any::Any + Send>),
}

/// A batch that has ended.
#[derive(Debug)]
pub struct Collected {
    /// Which.
    pub ticket: Ticket,
    /// How.
    pub ended: Ended,
    /// Where the time of its stages went.
    pub times: StageTimes,
}

/// A stage from outside its thread.
struct Link {
    layers: Range<usize>,
    /// `None` once it is to end.
    inbox: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    view: SequencesView,
    counted: Arc<Counted>,
}

/// What is known of a place for a sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    length: usize,
    /// Tokens of batches under way.
    ahead: usize,
    /// Tokens of its last run, where that was a round.
    round: usize,
    /// How many of these are kept, once the stages hear of it.
    kept: Option<usize>,
}

/// What no batch changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) cut_tokens: usize,
    pub(super) answers_replay: bool,
    pub(super) joint_tokens: usize,
    pub(super) round_tokens: usize,
}

/// Several stages.
pub(crate) struct Pipeline {
    links: Vec<Link>,
    mailbox: Arc<Mailbox>,
    places: Vec<Place>,
    pub(super) fixed: Fixed,
    under_way: Vec<Arc<Order>>,
    next: u64,
    /// The batch whose logits may be asked for.
    pub(super) held: Option<Ticket>,
    /// Snapshots of the marks of batches that have ended.
    pub(super) marks: Vec<(SequenceId, Snapshot)>,
    /// Rows of logits that were asked for last.
    pub(super) rows: Vec<f32>,
}

/// A call whose end is awaited.
pub(super) struct Pending<T>(Receiver<Result<T, Failure>>);

impl<T> Pending<T> {
    /// What the call gave.
    fn wait(self) -> Result<T, Failure> {
        // Its thread ends after this one has dropped its end of the channel.
        self.0
            .recv()
            .unwrap_or_else(|_| Err(Failure::Panic(Box::new("a stage's thread has ended"))))
    }
}

/// Panics go on where the call was made.
fn settle<T>(result: Result<T, Failure>) -> Result<T, EngineError> {
    result.map_err(|failure| match failure {
        Failure::Error(error) => error,
        Failure::Panic(payload) => resume_unwind(payload),
    })
}

impl Pipeline {
    /// Starts the threads.
    ///
    /// # Errors
    /// No thread can be started, or a device cannot be used from another.
    pub(super) fn start(
        stages: Vec<Stage>,
        program: &Arc<Program>,
        given: &[(LayerId, TableId)],
        embedding: MatrixId,
    ) -> Result<Self, EngineError> {
        let mailbox = Arc::new(Mailbox::default());
        let devices = || stages.iter().map(|stage| stage.backend.as_ref());
        let fixed = Fixed {
            cut_tokens: devices().map(Backend::cut_tokens).max().unwrap_or(1),
            answers_replay: devices().all(Backend::answers_replay),
            joint_tokens: devices().map(Backend::joint_tokens).min().unwrap_or(0),
            round_tokens: devices().map(Backend::round_tokens).min().unwrap_or(1),
        };
        let batches = BATCHES_A_STAGE * stages.len();
        let mut links = Vec::with_capacity(stages.len());
        let mut next = None;
        // From the last one, which each before it sends to.
        for (index, Stage { layers, mut backend }) in stages.into_iter().enumerate().rev() {
            let (sender, inbox) = sync_channel(batches + CALLS);
            backend.prepare(Arc::clone(program));
            let (view, counted) = (backend.sequences().view(), Arc::new(Counted::default()));
            let own = given.iter().filter(|(layer, _)| layers.contains(&layer.index()));
            let fittings = Fittings {
                backend,
                layers: layers.clone(),
                program: Arc::clone(program),
                given: own.copied().collect(),
                embedding: (index == 0).then_some(embedding),
                inbox,
                next: next.replace(sender.clone()),
                mailbox: Arc::clone(&mailbox),
                counted: Arc::clone(&counted),
            };
            let builder = std::thread::Builder::new().name(format!("stage-{index}"));
            let thread = builder.spawn(move || Worker::new(fittings).run()).map_err(|error| {
                EngineError::Request(format!("no thread for stage {index}: {error}"))
            })?;
            links.push(Link { layers, inbox: Some(sender), thread: Some(thread), view, counted });
        }
        links.reverse();
        let places = links.iter().map(|link| link.view.places()).min().unwrap_or(0);
        let mut pipeline = Self {
            links,
            mailbox,
            places: vec![Place::default(); places],
            fixed,
            under_way: Vec::with_capacity(batches),
            next: 0,
            held: None,
            marks: Vec::new(),
            rows: Vec::new(),
        };
        pipeline.all(&[], |_| |worker: &mut Worker| worker.backend().enter_thread())?;
        Ok(pipeline)
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.links.iter().map(|link| link.layers.clone())
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &SequencesView> {
        self.links.iter().map(|link| &link.view)
    }

    fn place(&mut self, sequence: SequenceId) -> &mut Place {
        &mut self.places[sequence.place()]
    }

    /// Tokens that the sequence holds.
    pub(super) fn length(&self, sequence: SequenceId) -> usize {
        self.places[sequence.place()].length
    }

    /// The same with those under way.
    pub(super) fn length_ahead(&self, sequence: SequenceId) -> usize {
        let place = self.places[sequence.place()];
        place.length + place.ahead
    }

    /// Sets what is known of a sequence's length.
    pub(super) fn set_length(&mut self, sequence: SequenceId, length: usize) {
        *self.place(sequence) = Place { length, ..Place::default() };
    }
}

/// Calls.
impl Pipeline {
    /// Has a stage do something; what it gives is there once it has. After a panic `touched` are undefined.
    pub(super) fn call<T: Send + 'static>(
        &self,
        index: usize,
        touched: &[SequenceId],
        what: impl FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = sync_channel(1);
        let touched = touched.to_vec();
        let call = Box::new(move |worker: &mut Worker| {
            // Who does not wait any more has ended.
            _ = sender.send(worker.guarded(&touched, what));
        });
        if let Some(inbox) = &self.links[index].inbox {
            // A thread that has ended drops the call, which its receiver sees.
            _ = inbox.send(Message::Call(call));
        }
        Pending(receiver)
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
        what: impl FnMut(usize) -> F,
    ) -> Result<Vec<T>, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    {
        let each = self.each(touched, what);
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

    /// The same, with what each stage gave.
    pub(super) fn each<T, F>(
        &mut self,
        touched: &[SequenceId],
        mut what: impl FnMut(usize) -> F,
    ) -> Vec<Result<T, Failure>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> Result<T, EngineError> + Send + 'static,
    {
        let pending: Vec<_> =
            (0..self.len()).map(|index| self.call(index, touched, what(index))).collect();
        pending.into_iter().map(Pending::wait).collect()
    }
}

/// Sequences.
impl Pipeline {
    pub(super) fn create_sequence(&mut self) -> Result<SequenceId, EngineError> {
        let made = self.each(&[], |_| |worker: &mut Worker| worker.backend().create_sequence());
        let (mut sequences, mut failed, mut panicked) = (Vec::new(), None, None::<Payload>);
        for (index, made) in made.into_iter().enumerate() {
            match made {
                Ok(sequence) => sequences.push((index, sequence)),
                Err(Failure::Error(error)) => _ = failed.get_or_insert(error),
                Err(Failure::Panic(payload)) => _ = panicked.get_or_insert(payload),
            }
        }
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
        if let Some(error) = failed {
            for (index, sequence) in sequences {
                self.on(index, &[], move |worker| {
                    worker.backend().sequences_mut().remove(sequence);
                    Ok(())
                })?;
            }
            return Err(error);
        }
        let sequence = sequences[0].1;
        assert!(sequences.iter().all(|it| it.1 == sequence), "stages know the same sequences");
        self.set_length(sequence, 0);
        Ok(sequence)
    }

    /// Forgets a sequence, of which no batch is under way.
    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.set_length(sequence, 0);
        let removed = self.all(&[sequence], |_| {
            move |worker: &mut Worker| {
                worker.backend().sequences_mut().remove(sequence);
                worker.define(sequence);
                Ok(())
            }
        });
        // Nothing of that can fail.
        _ = removed;
    }

    pub(super) fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        self.check_at_rest(sequence)?;
        self.keep_now(sequence)?;
        let parts = self.all(&[sequence], |_| {
            move |worker: &mut Worker| worker.backend().take_snapshot(sequence)
        });
        Ok(Snapshot::of(parts?))
    }

    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        parts: &[SnapshotPart],
    ) -> Result<(), EngineError> {
        self.check_at_rest(sequence)?;
        assert_eq!(parts.len(), self.len(), "a snapshot of as many stages");
        let length = parts.first().map_or(0, SnapshotPart::length);
        self.all(&[sequence], |index| {
            let part = parts[index].clone();
            move |worker: &mut Worker| {
                worker.backend().restore(sequence, &part)?;
                worker.define(sequence);
                Ok(())
            }
        })?;
        self.set_length(sequence, length);
        Ok(())
    }

    /// Pages that a snapshot of a sequence takes.
    pub(super) fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        let pages =
            self.links.iter().enumerate().map(|(index, link)| match link.view.shares_pages() {
                true => Ok(0),
                false => self.on(index, &[], move |worker| {
                    Ok(worker.backend().sequences().snapshot_pages(sequence, length))
                }),
            });
        pages.map(|pages| pages.unwrap_or(0)).max().unwrap_or(0)
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
        let kept = self.all(&[sequence], |_| {
            move |worker: &mut Worker| worker.backend().keep_first(sequence, tokens)
        });
        kept.map(|_| ())
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
        for order in self.under_way.iter().filter(|order| lost(order)) {
            order.cancelled.store(true, Ordering::Relaxed);
        }
        let mut kept = Vec::new();
        while self.under_way.iter().any(|order| lost(order)) {
            let Some(moving) = self.mailbox.take(Duration::from_millis(50)) else { continue };
            if lost(&moving.order) {
                self.forget(&moving.order);
                self.release_of(moving.order.ticket);
            } else {
                kept.push(moving);
            }
        }
        self.mailbox.put_back(kept);
        self.marks.clear();
        for (place, known) in self.places.iter_mut().enumerate() {
            if !live.contains(&SequenceId(place as u32)) {
                *known = Place::default();
            }
        }
        let live = live.to_vec();
        let recovered = self.all(&[], |_| {
            let live = live.clone();
            move |worker: &mut Worker| worker.recover(&live)
        });
        recovered.map(|_| ())
    }
}

/// Batches.
impl Pipeline {
    /// Whether a batch is under way, or has ended and was not collected.
    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Counts signs of life of all stages.
    pub(crate) fn pulse(&self) -> u64 {
        self.mailbox.pulse.load(Ordering::Relaxed)
    }

    /// Layers that a batch has passed.
    pub(crate) fn layers(&self, ticket: Ticket) -> usize {
        let order = self.under_way.iter().find(|order| order.ticket == ticket);
        order.map_or(0, |order| order.layers.load(Ordering::Relaxed))
    }

    /// Tokens of batches under way that may still take pages.
    pub(super) fn tokens_ahead(&self) -> impl Iterator<Item = usize> {
        self.under_way.iter().flat_map(|order| order.runs.iter().map(|(_, tokens)| tokens.len()))
    }

    pub(crate) fn submit(
        &mut self,
        runs: &[Run<'_>],
        purpose: Purpose,
        marks: &[usize],
    ) -> Result<Ticket, EngineError> {
        let limit = BATCHES_A_STAGE * self.len();
        if self.under_way.len() >= limit {
            return Err(EngineError::Request(format!(
                "{limit} batches are under way; no more fit"
            )));
        }
        for run in runs {
            let other = |order: &&Arc<Order>| {
                (order.purpose, purpose) != (Purpose::Prompt, Purpose::Prompt)
                    && order.runs.iter().any(|(sequence, _)| *sequence == run.sequence)
            };
            if self.under_way.iter().find(other).is_some() {
                let found = "a batch of this sequence is under way".to_owned();
                return Err(EngineError::Request(found));
            }
        }
        let mut kept = Vec::new();
        for run in runs {
            let place = self.place(run.sequence);
            kept.extend(place.kept.take().map(|tokens| (run.sequence, tokens)));
            place.ahead += run.tokens.len();
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        let order = Arc::new(Order {
            ticket,
            runs: runs.iter().map(|run| (run.sequence, run.tokens.to_vec())).collect(),
            purpose,
            marks: marks.to_vec(),
            kept,
            cancelled: AtomicBool::new(false),
            layers: AtomicUsize::new(0),
            mailbox: Arc::clone(&self.mailbox),
        });
        self.under_way.push(Arc::clone(&order));
        self.mailbox.under_way.fetch_add(1, Ordering::Relaxed);
        let moving = Moving {
            order,
            residual: Vec::new(),
            failure: None,
            changed: false,
            marks: Vec::with_capacity(self.len()),
            times: StageTimes::default(),
        };
        if let Some(first) = &self.links[0].inbox {
            _ = first.send(Message::Batch(Box::new(moving)));
        }
        Ok(ticket)
    }

    /// Gives a batch up: it ends soon, as cancelled if it is not done.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        if let Some(order) = self.under_way.iter().find(|order| order.ticket == ticket) {
            order.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// A batch that has ended; waits for one until a layer of a prompt is passed, at most for `patience`. Logits of the
    /// one before it cannot be asked for any more.
    pub(crate) fn collect(&mut self, patience: Duration) -> Option<Collected> {
        self.release();
        let Some(moving) = self.mailbox.take(patience) else {
            let ended = |link: &Link| link.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!self.links.iter().any(ended), "a stage's thread has ended");
            return None;
        };
        let Moving { order, failure, marks, times, .. } = *moving;
        let ticket = order.ticket;
        let ended = match failure {
            None => {
                self.held = Some(ticket);
                Ended::Done
            }
            Some(Failure::Error(error)) => Ended::Failed(error),
            Some(Failure::Panic(payload)) => Ended::Panicked(payload),
        };
        self.forget(&order);
        if matches!(ended, Ended::Done) {
            for (sequence, tokens) in &order.runs {
                let place = self.place(*sequence);
                place.length += tokens.len();
                place.round = if order.purpose == Purpose::Answers { tokens.len() } else { 0 };
            }
            self.marks.extend(super::joined_marks(marks));
        }
        Some(Collected { ticket, ended, times })
    }

    /// No batch of these is under way any more.
    fn forget(&mut self, order: &Order) {
        self.under_way.retain(|it| it.ticket != order.ticket);
        for (sequence, tokens) in &order.runs {
            let place = self.place(*sequence);
            place.ahead = place.ahead.saturating_sub(tokens.len());
        }
    }

    /// Logits of the batch collected last are not asked for any more.
    pub(crate) fn release(&mut self) {
        if let Some(ticket) = self.held.take() {
            self.release_of(ticket);
        }
    }

    fn release_of(&self, ticket: Ticket) {
        if let Some(last) = self.links.last().and_then(|link| link.inbox.as_ref()) {
            _ = last.send(Message::Release(ticket));
        }
    }
}

/// Counts.
impl Pipeline {
    /// What each stage counts of experts: of now while nothing is under way, else of its last batches.
    pub(super) fn counters(&self) -> Vec<StoreCounters> {
        let now = |index: usize| {
            let pending = self.call(index, &[], |worker| Ok(worker.counters()));
            settle(pending.wait()).unwrap_or_default()
        };
        let links = self.links.iter().enumerate();
        links
            .map(|(index, it)| if self.is_busy() { it.counted.experts() } else { now(index) })
            .collect()
    }

    pub(super) fn work(&self) -> impl Iterator<Item = StageWork> {
        self.links.iter().map(|link| link.counted.work())
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        for order in &self.under_way {
            order.cancelled.store(true, Ordering::Relaxed);
        }
        self.release();
        self.links.iter_mut().for_each(|link| link.inbox = None);
        for link in &mut self.links {
            // A thread's panics end there.
            _ = link.thread.take().map(JoinHandle::join);
        }
    }
}

//! The engine's side of several stages: a thread for each, batches under way, and what is known of sequences without
//! asking a thread.
//!
//! Calls go to every stage in one order, and the engine's thread waits for all of them: what one call changes every
//! stage has changed before the next. Batches are given to the first stage and come back from the last one. No sequence
//! of a batch under way is otherwise touched.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use store::LayerId;
use store::cache::StoreCounters;

use super::Stage;
use super::batch::{Counted, Failure, Mailbox, Message, Moving, Order, StageWork, Ticket};
use super::calls::settle;
use super::command::{Command, Reply};
use super::port::{MailboxPort, Port, ThreadPort, View};
use super::remote::{Reached, StageLost};
use super::wait::Waits;
use super::worker::{Fittings, Worker};
use crate::EngineError;
use crate::backend::{BatchRules, Purpose, Run, SequenceId, Snapshot};
use crate::model::StageTimes;
use crate::model::program::Program;
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
pub(super) struct Link {
    layers: Range<usize>,
    /// `None` once it is to end.
    pub(super) port: Option<Arc<dyn Port>>,
    /// Of a stage of this process.
    thread: Option<JoinHandle<()>>,
    pub(super) view: View,
    counted: Arc<Counted>,
}

impl Link {
    /// Starts the thread of a stage of this process: the `sizes.0`-th, whose inbox holds so many messages.
    fn here(
        Stage { layers, mut backend }: Stage,
        (index, messages): (usize, usize),
        common: &Common<'_>,
        next: Option<Arc<dyn Port>>,
        mailbox: Arc<Mailbox>,
    ) -> Result<Self, EngineError> {
        let (sender, inbox) = sync_channel(messages);
        backend.prepare(Arc::clone(common.program));
        let (view, counted) = (backend.sequences().view(), Arc::new(Counted::default()));
        let own = common.given.iter().filter(|(layer, _)| layers.contains(&layer.index()));
        let fittings = Fittings {
            backend,
            layers: layers.clone(),
            program: Arc::clone(common.program),
            given: own.copied().collect(),
            embedding: (index == 0).then_some(common.embedding),
            inbox,
            keeps: next.is_none(),
            next,
            mailbox,
            counted: Arc::clone(&counted),
        };
        let thread = spawn(&format!("stage-{index}"), move || Worker::new(fittings).run())?;
        let port: Option<Arc<dyn Port>> = Some(Arc::new(ThreadPort(sender)));
        Ok(Self { layers, port, thread: Some(thread), view: View::Here(view), counted })
    }

    /// Begins to hear a stage that is a process.
    fn there(
        reached: Reached,
        next: Arc<dyn Port>,
        mailbox: Arc<Mailbox>,
    ) -> Result<Self, EngineError> {
        let (layers, counted) = (reached.layers(), Arc::new(Counted::default()));
        let connected = reached.start(next, mailbox, Arc::clone(&counted))?;
        let port: Option<Arc<dyn Port>> = Some(Arc::clone(&connected) as Arc<dyn Port>);
        Ok(Self { layers, port, thread: None, view: View::There(connected), counted })
    }
}

/// A thread of a stage.
///
/// # Errors
/// The system gives none.
pub(super) fn spawn(
    name: &str,
    what: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, EngineError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(what);
    spawned.map_err(|error| EngineError::Request(format!("no thread for {name}: {error}")))
}

/// What is known of a place for a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) length: usize,
    /// Tokens of batches under way.
    pub(super) ahead: usize,
    /// Tokens of its last run, where that was a round.
    pub(super) round: usize,
    /// How many of these are kept, once the stages hear of it.
    pub(super) kept: Option<usize>,
}

/// A stage before it is one of several.
pub(super) enum Member {
    /// A device of this process.
    Here(Stage),
    /// A process that was reached.
    There(Box<Reached>),
}

/// What all stages of this process are made with.
pub(super) struct Common<'a> {
    pub(super) program: &'a Arc<Program>,
    pub(super) given: &'a [(LayerId, TableId)],
    pub(super) embedding: MatrixId,
}

/// Several stages.
pub(crate) struct Pipeline {
    pub(super) links: Vec<Link>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) places: Vec<Place>,
    pub(super) rules: BatchRules,
    pub(super) under_way: Vec<Arc<Order>>,
    next: u64,
    /// The batch whose logits may be asked for.
    pub(super) held: Option<Ticket>,
    /// Snapshots of the marks of batches that have ended.
    pub(super) marks: Vec<(SequenceId, Snapshot)>,
    /// Rows of logits that were asked for last.
    pub(super) rows: Vec<f32>,
}

impl Pipeline {
    /// Starts the threads.
    ///
    /// # Errors
    /// No thread can be started, or a device cannot be used from another.
    pub(super) fn start(members: Vec<Member>, common: &Common<'_>) -> Result<Self, EngineError> {
        let rules = members.iter().map(|member| match member {
            Member::Here(stage) => stage.backend.rules(),
            Member::There(reached) => reached.facts().rules,
        });
        let rules = rules.reduce(BatchRules::and).expect("a model has a layer");
        let waits = Waits::of(rules.spins, members.len());
        let mailbox = Arc::new(Mailbox::new(waits));
        let batches = BATCHES_A_STAGE * members.len();
        let mut links = Vec::with_capacity(members.len());
        let mut next: Option<Arc<dyn Port>> = None;
        // From the last one, which each before it sends to.
        for (index, member) in members.into_iter().enumerate().rev() {
            let behind = next.take();
            let link = match member {
                Member::Here(stage) => {
                    let sizes = (index, batches + CALLS);
                    Link::here(stage, sizes, common, behind, Arc::clone(&mailbox))?
                }
                Member::There(reached) => {
                    let own = || Arc::new(MailboxPort(Arc::clone(&mailbox))) as Arc<dyn Port>;
                    Link::there(*reached, behind.unwrap_or_else(own), Arc::clone(&mailbox))?
                }
            };
            next.clone_from(&link.port);
            links.push(link);
        }
        links.reverse();
        let places = links.iter().map(|link| link.view.places()).min().unwrap_or(0);
        let pipeline = Self {
            links,
            mailbox,
            places: vec![Place::default(); places],
            rules,
            under_way: Vec::with_capacity(batches),
            next: 0,
            held: None,
            marks: Vec::new(),
            rows: Vec::new(),
        };
        let here = |link: &Link| link.port.as_ref().is_some_and(|port| port.is_here());
        let own = (0..pipeline.links.len()).filter(|&index| here(&pipeline.links[index]));
        let entered: Vec<_> =
            own.map(|index| pipeline.call(index, &[], |it| it.backend().enter_thread())).collect();
        entered.into_iter().try_for_each(|pending| settle(pending.wait()))?;
        Ok(pipeline)
    }

    /// Stages that compute layers.
    pub(super) fn len(&self) -> usize {
        self.computing().count()
    }

    /// Without one that has the head alone.
    fn computing(&self) -> impl Iterator<Item = (usize, &Link)> {
        self.links.iter().enumerate().filter(|(_, link)| !link.layers.is_empty())
    }

    /// The last stage, which has the head.
    pub(super) fn last(&self) -> usize {
        self.links.len() - 1
    }

    /// Whether the stage that has the head is of this process.
    pub(super) fn draws_here(&self) -> bool {
        self.links[self.last()].port.as_ref().is_some_and(|port| port.is_here())
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.computing().map(|(_, link)| link.layers.clone())
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.links.iter().map(|link| &link.view)
    }

    pub(super) fn place(&mut self, sequence: SequenceId) -> &mut Place {
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

    /// The first stage in another process that cannot be reached any more.
    pub(super) fn lost(&self) -> Option<StageLost> {
        self.links.iter().find_map(|link| link.view.lost())
    }

    /// Tokens of batches under way that may still take pages.
    pub(super) fn tokens_ahead(&self) -> impl Iterator<Item = usize> {
        self.under_way.iter().flat_map(|order| order.runs.iter().map(|(_, tokens)| tokens.len()))
    }

    /// Snapshots that batches under way may still make.
    pub(super) fn marks_ahead(&self) -> usize {
        self.under_way.iter().map(|order| order.marks.len()).sum()
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
            marks: Vec::with_capacity(self.links.len()),
            times: StageTimes::default(),
        };
        if let Some(first) = &self.links[0].port {
            first.send(Message::Batch(Box::new(moving)));
        }
        Ok(ticket)
    }

    /// Gives a batch up: it ends soon, as cancelled if it is not done.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        if let Some(order) = self.under_way.iter().find(|order| order.ticket == ticket) {
            self.cancel_order(order);
        }
    }

    /// The same with a batch at hand.
    pub(super) fn cancel_order(&self, order: &Order) {
        if !order.cancelled.swap(true, Ordering::Relaxed) {
            let ports = self.links.iter().filter_map(|link| link.port.as_ref());
            ports.for_each(|port| port.cancel(order.ticket));
        }
    }

    /// A batch that has ended; waits for one until a layer of a prompt is passed, at most for `patience`. Logits of the
    /// one before it cannot be asked for any more.
    pub(crate) fn collect(&mut self, patience: Duration) -> Option<Collected> {
        self.release();
        let Some(moving) = self.mailbox.take(patience) else {
            let ended = |link: &Link| link.thread.as_ref().is_some_and(JoinHandle::is_finished);
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
    pub(super) fn forget(&mut self, order: &Order) {
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

    pub(super) fn release_of(&self, ticket: Ticket) {
        if let Some(last) = self.links.last().and_then(|link| link.port.as_ref()) {
            last.send(Message::Release(ticket));
        }
    }
}

/// Counts.
impl Pipeline {
    /// What each stage counts of experts: of now while nothing is under way, else of its last batches.
    pub(super) fn counters(&self) -> Vec<StoreCounters> {
        let now = |index: usize| {
            let counters = match settle(self.ask(index, &[], Command::Counters).wait()) {
                Ok(Reply::Counters(counters)) => *counters,
                // What is said last is no less than what was said before.
                _ => return self.links[index].counted.experts(),
            };
            // What is read later, while batches are under way, is no less.
            self.links[index].counted.set(&counters);
            counters
        };
        self.computing()
            .map(|(index, it)| if self.is_busy() { it.counted.experts() } else { now(index) })
            .collect()
    }

    pub(super) fn work(&self) -> impl Iterator<Item = StageWork> {
        self.computing().map(|(_, link)| link.counted.work())
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|order| self.cancel_order(order));
        self.release();
        let ports = self.links.iter().filter_map(|link| link.port.as_ref());
        ports.for_each(|port| port.close());
        // A thread ends when nothing can send to it any more: views and connections hold ways to those behind them.
        let threads: Vec<_> = self.links.drain(..).filter_map(|link| link.thread).collect();
        for thread in threads {
            // Its panics end there.
            _ = thread.join();
        }
    }
}

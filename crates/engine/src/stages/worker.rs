//! The thread of a stage: it owns the device, and computes what comes to it.
//!
//! Steps of answers are computed whole, prompts layer by layer: between two layers a prompt is put aside for a step
//! that is due, or for a call. Steps and prompts get half of the time each where both wait. Batches of one kind keep
//! their order. What overtakes changes no bit: batches under way have different sequences, but for a prompt's chunks.
//!
//! A panic ends here. The batch it happened in goes on as failed, with what the panic said; the device is made as good
//! as new, and its sequences are undefined until they are dropped or set to another point: batches of them fail. Other
//! batches on their way are not touched: one that was put aside has a copy of all that it needs. What the device held
//! for logits that were not asked for yet is lost, so their answers end with it.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::time::{Duration, Instant};

use store::{LayerId, timeline};

use super::ahead::Ahead;
use super::batch::{Counted, Failure, Mailbox, Marked, Message, Moving, Order, Ticket};
use super::layer::run_layer;
use super::port::Port;
use crate::EngineError;
use crate::backend::{
    Backend, Cancel, Crossing, Incoming, Purpose, Run, SequenceId, SnapshotPart, Suspended,
};
use crate::model::Clock;
use crate::model::program::Program;
use crate::sequences::SnapshotShare;
use crate::weights::{MatrixId, TableId};
use store::cache::StoreCounters;

/// A batch of a prompt that this stage has begun.
struct Current {
    moving: Box<Moving>,
    /// The next layer.
    layer: usize,
    /// While something else runs.
    aside: Option<Suspended>,
}

/// What a stage's thread is made of.
pub(super) struct Fittings {
    pub(super) backend: Box<dyn Backend + Send>,
    pub(super) layers: Range<usize>,
    pub(super) program: Arc<Program>,
    /// Its layers whose experts token ids decide.
    pub(super) given: Vec<(LayerId, TableId)>,
    /// Of the first stage: the table of embeddings.
    pub(super) embedding: Option<MatrixId>,
    pub(super) inbox: Receiver<Message>,
    /// Whether it has the head, and keeps a batch until nothing more is asked of it.
    pub(super) keeps: bool,
    /// To the next stage; `None` for the last one of the process that has them all.
    pub(super) next: Option<Arc<dyn Port>>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) counted: Arc<Counted>,
}

/// The state of a stage's thread.
pub(super) struct Worker {
    pub(super) fittings: Fittings,
    steps: VecDeque<Box<Moving>>,
    prompts: VecDeque<Box<Moving>>,
    current: Option<Current>,
    /// A step that the stage before has begun, and what it will leave; no batch waits here before it.
    pub(super) coming: Option<(Arc<Order>, Option<Crossing>)>,
    /// What came while a step that was begun ahead was awaited, at most as many as the inbox takes.
    pub(super) deferred: VecDeque<Message>,
    /// The finished batch whose logits may be asked for: the device computes no other.
    pub(super) holds: Option<Ticket>,
    /// Sequences that a failure has left in between, and whether that was a panic.
    undefined: Vec<(SequenceId, bool)>,
    /// Why the device cannot be used any more.
    broken: Option<String>,
    /// Time of prompts since the last step, and that step's time.
    since_step: Duration,
    step_time: Duration,
    clock: Clock,
}

/// Marks as a batch carries them.
pub(super) fn shared(marks: Vec<(SequenceId, Option<SnapshotPart>)>) -> Marked {
    let here = |(sequence, part): (_, Option<_>)| (sequence, part.map(SnapshotShare::Here));
    marks.into_iter().map(here).collect()
}

/// What a panic says.
pub(super) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_else(|| "without words".to_owned())
}

impl Worker {
    pub(super) fn new(fittings: Fittings) -> Self {
        Self {
            fittings,
            steps: VecDeque::new(),
            prompts: VecDeque::new(),
            current: None,
            coming: None,
            deferred: VecDeque::new(),
            holds: None,
            undefined: Vec::new(),
            broken: None,
            since_step: Duration::ZERO,
            step_time: Duration::ZERO,
            clock: Clock::default(),
        }
    }

    /// Works until no thread can send anything any more.
    pub(super) fn run(mut self) {
        loop {
            match self.deferred.pop_front().map_or_else(|| self.fittings.inbox.try_recv(), Ok) {
                Ok(message) => {
                    self.take(message);
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            if self.work() {
                continue;
            }
            self.await_step();
            let Ok(message) = self.receive() else { return };
            self.take(message);
        }
    }

    /// Whether no batch waits here to be computed.
    pub(super) fn is_idle(&self) -> bool {
        let waiting = self.steps.len() + self.prompts.len() + self.deferred.len();
        waiting == 0 && self.current.is_none()
    }

    /// The next message, however long that takes.
    pub(super) fn receive(&mut self) -> Result<Message, RecvError> {
        let Fittings { inbox, mailbox, counted, .. } = &self.fittings;
        let began = Instant::now();
        let message = mailbox.waits.receive(inbox)?;
        if self.holds.is_none() && mailbox.under_way.load(Ordering::Relaxed) > 0 {
            Counted::add(&counted.waited_ns, began);
        }
        Ok(message)
    }

    /// Fails all that comes: the device cannot be used from this thread.
    pub(super) fn refuse_all(mut self, error: &EngineError) {
        self.broken = Some(error.to_string());
        self.run();
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask(asked) => {
                self.make_way();
                asked.serve(self);
            }
            Message::Call(call) => {
                self.make_way();
                call(self);
            }
            Message::Ahead(order) => self.note_coming(order),
            Message::Follow(ticket, crossing) => self.note_crossing(ticket, crossing),
            Message::Batch(moving) if self.may_pass(&moving) => self.pass_on(moving),
            Message::Batch(moving) => {
                // It has come, or another is before it.
                self.coming = None;
                match moving.order.purpose {
                    Purpose::Answers => self.steps.push_back(moving),
                    Purpose::Prompt => self.prompts.push_back(moving),
                }
            }
            Message::Release(ticket) => {
                self.release(Some(ticket));
                self.begin_coming();
            }
        }
    }

    /// Whether a batch has failed and none of its kind is before it: they are collected in their order.
    fn may_pass(&self, moving: &Moving) -> bool {
        let prompts = self.current.is_none() && self.prompts.is_empty();
        let is_prompt = moving.order.purpose == Purpose::Prompt;
        moving.failure.is_some() && if is_prompt { prompts } else { self.steps.is_empty() }
    }

    /// Computes a step, or a layer of a prompt; false where there is nothing to compute.
    fn work(&mut self) -> bool {
        if self.holds.is_some() {
            return self.end_cancelled();
        }
        let prompts = self.current.is_some() || !self.prompts.is_empty();
        let due = !prompts || self.since_step >= self.step_time;
        // A device may have to finish the batch that it has.
        if due && !self.steps.is_empty() && self.make_way() {
            if let Some(moving) = self.steps.pop_front() {
                self.step(moving, None);
            }
            return true;
        }
        if !prompts {
            return false;
        }
        let began = Instant::now();
        self.layer_of_prompt();
        Counted::add(&self.fittings.counted.busy_ns, began);
        self.since_step += began.elapsed();
        true
    }

    /// A step of answers, from its first layer here to its last, or what of it was not done ahead.
    pub(super) fn step(&mut self, moving: Box<Moving>, ahead: Option<Ahead>) {
        let began = Instant::now();
        let numbers = [("answers", moving.order.runs.len() as u64), ("", 0), ("", 0)];
        let _span = timeline::span("decode step, one stage", numbers);
        self.step_layers(moving, ahead);
        Counted::add(&self.fittings.counted.busy_ns, began);
        (self.step_time, self.since_step) = (began.elapsed(), Duration::ZERO);
    }

    fn step_layers(&mut self, mut moving: Box<Moving>, ahead: Option<Ahead>) {
        let begun = match ahead {
            _ if moving.failure.is_some() => return self.pass_on(moving),
            Some(Ahead::Computed) => return self.leave(moving),
            Some(Ahead::Failed(layer, failure)) => return self.fail(moving, layer, failure),
            Some(Ahead::Begun) => self.take_over(&moving),
            None => match self.refused(&moving.order) {
                Some(error) => return self.end_with(moving, error),
                None => self.begin(&mut moving),
            },
        };
        if let Err(failure) = begun {
            return self.fail(moving, self.fittings.layers.start, failure);
        }
        match self.compute(&moving.order) {
            Ok(()) => self.leave(moving),
            Err((layer, failure)) => self.fail(moving, layer, failure),
        }
    }

    /// The next layer of the prompt in progress, or of the next.
    fn layer_of_prompt(&mut self) {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => {
                let Some(mut moving) = self.prompts.pop_front() else { return };
                if moving.failure.is_some() {
                    return self.pass_on(moving);
                }
                let layer = self.fittings.layers.start;
                if let Some(error) = self.refused(&moving.order) {
                    return self.end_with(moving, error);
                }
                if let Err(failure) = self.begin(&mut moving) {
                    return self.fail(moving, layer, failure);
                }
                if self.fittings.layers.is_empty() {
                    // The head alone.
                    return self.end(moving);
                }
                Current { moving, layer, aside: None }
            }
        };
        if let Some(suspended) = current.aside.take() {
            let sequences = current.moving.order.sequences();
            let resumed = self.guarded(&sequences, |it| it.fittings.backend.resume(suspended));
            if let Err(failure) = resumed {
                return self.fail(current.moving, current.layer, failure);
            }
        }
        if let Err(failure) = self.layer(&current.moving.order, current.layer) {
            return self.fail(current.moving, current.layer, failure);
        }
        current.layer += 1;
        if current.layer < self.fittings.layers.end {
            self.current = Some(current);
        } else {
            self.end(current.moving);
        }
        self.fittings.mailbox.note_layer();
    }

    /// Puts the prompt in progress aside; false where the device has to finish it first.
    pub(super) fn make_way(&mut self) -> bool {
        let Some(mut current) = self.current.take_if(|it| it.aside.is_none()) else { return true };
        let sequences = current.moving.order.sequences();
        match self.guarded(&sequences, |it| Ok(it.fittings.backend.suspend())) {
            Ok(aside) => {
                current.aside = aside;
                let away = current.aside.is_some();
                self.current = Some(current);
                away
            }
            Err(failure) => {
                self.fail(current.moving, current.layer, failure);
                true
            }
        }
    }

    /// Why a batch need not be begun.
    pub(super) fn refused(&self, order: &Order) -> Option<EngineError> {
        let mut lost = self.undefined.iter().filter(|(it, _)| order.sequences().contains(it));
        match lost.next() {
            Some((_, true)) => return Some(EngineError::Panicked),
            Some((_, false)) => return Some(EngineError::Cancelled),
            None => {}
        }
        order.cancelled.load(Ordering::Relaxed).then_some(EngineError::Cancelled)
    }

    /// Ends a batch that this stage has not begun.
    fn end_with(&mut self, mut moving: Box<Moving>, error: EngineError) {
        moving.changed |= !moving.order.kept.is_empty();
        moving.failure = Some(Failure::Error(error));
        self.pass_on(moving);
    }

    /// Ends a batch that was given up and waits for the device; false where there is none.
    fn end_cancelled(&mut self) -> bool {
        let cancelled = |it: &Moving| it.order.cancelled.load(Ordering::Relaxed);
        let take = |queue: &mut VecDeque<Box<Moving>>| {
            let at = queue.iter().position(|it| cancelled(it) && it.failure.is_none())?;
            queue.remove(at)
        };
        if let Some(moving) = take(&mut self.steps).or_else(|| take(&mut self.prompts)) {
            self.end_with(moving, EngineError::Cancelled);
            return true;
        }
        let Some(current) = self.current.take_if(|it| cancelled(&it.moving)) else { return false };
        self.fail(current.moving, current.layer, Failure::Error(EngineError::Cancelled));
        true
    }

    fn begin(&mut self, moving: &mut Moving) -> Result<(), Failure> {
        let order = Arc::clone(&moving.order);
        let first = self.fittings.embedding.is_some();
        moving.changed |= !first || !order.kept.is_empty();
        let begun = self.begin_here(&order).and_then(|()| self.take_over(moving));
        moving.changed |= !matches!(begun, Err(Failure::Error(_)));
        begun
    }

    /// What of a beginning needs nothing of the stage before.
    pub(super) fn begin_here(&mut self, order: &Order) -> Result<(), Failure> {
        self.guarded(&order.sequences(), |it| {
            for &(sequence, tokens) in &order.kept {
                it.fittings.backend.keep_first(sequence, tokens)?;
            }
            it.begin_batch(&order.runs(), order.purpose)?;
            let sequences = it.fittings.backend.sequences_mut();
            order.marks.iter().try_for_each(|&run| sequences.mark(run))
        })
    }

    /// What the first layer here begins with.
    fn take_over(&mut self, moving: &Moving) -> Result<(), Failure> {
        self.guarded(&moving.order.sequences(), |it| {
            let Fittings { backend, embedding, .. } = &mut it.fittings;
            match *embedding {
                Some(table) => backend.embed(table),
                None => backend.write_residual(Incoming::Values(&moving.residual))?,
            }
            Ok(())
        })
    }

    /// One layer of the batch that the device has.
    pub(super) fn layer(&mut self, order: &Arc<Order>, layer: usize) -> Result<(), Failure> {
        self.guarded(&order.sequences(), |it| {
            if order.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let Fittings { backend, program, .. } = &mut it.fittings;
            run_layer(program, &it.clock, layer, &**order, &mut |id, stage| {
                backend.run_stage(id, stage, &**order)
            })?;
            if order.purpose == Purpose::Prompt {
                backend.check_files()?;
            }
            order.layers.store(layer + 1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// After the last layer here of a prompt.
    fn end(&mut self, moving: Box<Moving>) {
        match self.commit(&moving.order) {
            Ok(()) => self.leave(moving),
            Err(failure) => self.fail(moving, self.fittings.layers.end, failure),
        }
    }

    /// Its tokens are now part of their sequences here.
    pub(super) fn commit(&mut self, order: &Order) -> Result<(), Failure> {
        self.guarded(&order.sequences(), |it| {
            let backend = &mut it.fittings.backend;
            if order.purpose == Purpose::Answers {
                backend.check_files()?;
            }
            backend.commit();
            Ok(())
        })
    }

    /// Gives a batch that is computed here to the next stage, once the device has ended it.
    fn leave(&mut self, mut moving: Box<Moving>) {
        let order = Arc::clone(&moving.order);
        let mut residual = match self.fittings.embedding {
            Some(_) => self.fittings.mailbox.buffer(),
            None => std::mem::take(&mut moving.residual),
        };
        let ended = self.guarded(&order.sequences(), |it| {
            let Fittings { backend, keeps, counted, .. } = &mut it.fittings;
            if !*keeps {
                backend.read_residual(&mut residual)?;
            }
            counted.renew(|| backend.counters());
            let marks = match &order.marks[..] {
                [] => Vec::new(),
                _ => shared(backend.sequences_mut().take_marks()),
            };
            Ok(marks)
        });
        moving.residual = residual;
        match ended {
            Ok(marks) => moving.marks.push(marks),
            Err(failure) => return self.fail(moving, self.fittings.layers.end, failure),
        }
        self.fittings.counted.batches.fetch_add(1, Ordering::Relaxed);
        self.holds = self.fittings.keeps.then_some(order.ticket);
        self.pass_on(moving);
    }

    /// What becomes of a batch that failed before `layer`.
    fn fail(&mut self, mut moving: Box<Moving>, layer: usize, failure: Failure) {
        if moving.changed && matches!(failure, Failure::Error(_)) {
            // A panic has made the device anew already.
            self.give_up(layer);
        }
        moving.failure = Some(failure);
        self.pass_on(moving);
    }

    /// Has the device forget its batch, before `layer`.
    pub(super) fn give_up(&mut self, layer: usize) {
        _ = self.guarded(&[], |it| {
            it.fittings.backend.give_up(LayerId(layer as u16));
            Ok(())
        });
    }

    /// Gives a batch to the next stage, or to the engine's thread.
    pub(super) fn pass_on(&mut self, mut moving: Box<Moving>) {
        if moving.failure.is_some() && moving.changed {
            let panicked = match &moving.failure {
                Some(Failure::Panic(_) | Failure::Error(EngineError::Panicked)) => true,
                Some(Failure::Error(_)) | None => false,
            };
            self.note_undefined(&moving.order.sequences(), panicked);
        }
        moving.times.add(self.clock.take());
        match &self.fittings.next {
            Some(next) => next.send(Message::Batch(moving)),
            None => {
                self.fittings.mailbox.give_back(std::mem::take(&mut moving.residual));
                self.fittings.mailbox.put(moving);
            }
        }
    }

    fn note_undefined(&mut self, sequences: &[SequenceId], panicked: bool) {
        for &sequence in sequences {
            if self.undefined.iter().all(|(it, _)| *it != sequence) {
                self.undefined.push((sequence, panicked));
            }
        }
    }

    /// Does something with the device; after a panic it is as good as new but for `touched`, which are undefined.
    pub(super) fn guarded<T>(
        &mut self,
        touched: &[SequenceId],
        what: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, Failure> {
        if let Some(why) = &self.broken {
            return Err(Failure::Panic(Box::new(why.clone())));
        }
        // What a panic can leave half-done is put right by `after_panic`.
        match catch_unwind(AssertUnwindSafe(|| what(self))) {
            Ok(done) => done.map_err(Failure::Error),
            Err(panic) => {
                self.after_panic(touched);
                Err(Failure::Panic(panic))
            }
        }
    }

    fn after_panic(&mut self, touched: &[SequenceId]) {
        self.note_undefined(touched, true);
        self.holds = None;
        let lost = self.current.take_if(|it| it.aside.is_none());
        // Those that are undefined keep their places until all stages drop them: numbers stay those of all stages.
        let backend = &mut self.fittings.backend;
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            let sequences = backend.sequences();
            let places = sequences.view().places();
            let all = (0..places).map(|place| SequenceId(place as u32));
            let live: Vec<_> = all.filter(|&it| sequences.exists(it)).collect();
            backend.recover(&live)
        }));
        self.broken = match recovered {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("another panic: {}", words(&*panic))),
        };
        if let Some(mut lost) = lost {
            lost.moving.changed = true;
            lost.moving.failure = Some(Failure::Error(EngineError::Panicked));
            self.pass_on(lost.moving);
        }
    }
}

/// What the engine's thread asks for.
impl Worker {
    /// The device.
    pub(super) fn backend(&mut self) -> &mut (dyn Backend + Send) {
        self.fittings.backend.as_mut()
    }

    /// Says that a sequence is what it says again, or is no more.
    pub(super) fn define(&mut self, sequence: SequenceId) {
        self.undefined.retain(|(it, _)| *it != sequence);
    }

    /// Begins a batch that runs layer by layer.
    ///
    /// # Errors
    /// A batch that the plan does not allow.
    pub(super) fn begin_batch(
        &mut self,
        runs: &[Run<'_>],
        purpose: Purpose,
    ) -> Result<(), EngineError> {
        let Fittings { backend, given, .. } = &mut self.fittings;
        backend.begin(runs, purpose)?;
        if !given.is_empty() {
            backend.expect_given(given);
        }
        Ok(())
    }

    /// The device, of whose batch logits are asked: of one that it holds, where one is named.
    ///
    /// # Errors
    /// A panic over something else has lost it.
    pub(super) fn head(
        &mut self,
        ticket: Option<Ticket>,
    ) -> Result<&mut (dyn Backend + Send), EngineError> {
        match ticket {
            Some(_) if self.holds != ticket => Err(EngineError::Panicked),
            _ => Ok(self.fittings.backend.as_mut()),
        }
    }

    /// Nothing more is asked of a batch.
    pub(super) fn release(&mut self, ticket: Option<Ticket>) {
        self.holds = self.holds.filter(|it| Some(*it) != ticket);
    }

    /// The counters of now.
    pub(super) fn counters(&self) -> StoreCounters {
        self.fittings.backend.counters()
    }

    /// Forgets all sequences but those of `live`.
    ///
    /// # Errors
    /// The device cannot tell what a panic left behind.
    pub(super) fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        if let Some(why) = &self.broken {
            return Err(EngineError::Request(why.clone()));
        }
        self.fittings.backend.sequences_mut().recover(live);
        self.undefined.retain(|(it, _)| live.contains(it));
        Ok(())
    }
}

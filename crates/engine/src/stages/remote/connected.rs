//! A stage in another process, from the first process: messages out as they come, one thread that hears what comes
//! back, and one that says that this side is there and gives a silent stage up.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::bytes::Reading;
use super::fault::Fault;
use super::frames::{Channel, FrameReader, FrameWriter, Kind};
use super::head::HeadOrder;
use super::messages::{Ask, Batch, Beat, Done, Given, Order, Replied, write_numbers};
use super::parts::Forgotten;
use super::terms::{Agreed, Facts, JoinError, Limits, Terms, ask};
use super::{BEAT, LostCause, StageLost};
use crate::EngineError;
use crate::backend::Room;
use crate::sequences::SnapshotShare;
use crate::stages::batch::{Counted, Failure, Mailbox, Message, Moving, Ticket};
use crate::stages::command::{Answer, Asked, Command, Reply};
use crate::stages::pipeline::spawn;
use crate::stages::port::Port;

/// How long the end of a connection may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// A stage that was reached and has agreed.
pub struct Reached {
    agreed: Agreed,
    facts: Facts,
    layers: Range<usize>,
    patience: Duration,
    deadline: Option<Duration>,
}

impl std::fmt::Debug for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reached({}, layers {:?})", self.agreed.address, self.layers)
    }
}

impl Reached {
    /// Greets a stage of these terms, which is given up when it says nothing for `patience`.
    ///
    /// # Errors
    /// It differs in something, or the connection failed.
    pub fn over(channel: Channel, terms: &Terms, patience: Duration) -> Result<Self, JoinError> {
        let (agreed, facts) = ask(channel, terms)?;
        Ok(Self { agreed, facts, layers: terms.layers.clone(), patience, deadline: None })
    }

    /// The same; given up as well when it has work and ends no layer for `deadline`. Its threads that say that it is
    /// there are not those that work: a drive that does not answer is no silence.
    #[must_use]
    pub fn within(self, deadline: Option<Duration>) -> Self {
        Self { deadline, ..self }
    }

    /// Its layers.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    pub(in crate::stages) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether it has the model's head.
    pub(in crate::stages) fn has_head(&self) -> bool {
        self.agreed.head
    }

    /// Tokens of a batch that it takes.
    pub fn batch_tokens(&self) -> usize {
        self.facts.batch_tokens
    }

    /// Begins to hear it: what it is through with goes to `next`.
    ///
    /// # Errors
    /// No threads.
    pub(in crate::stages) fn start(
        self,
        next: Arc<dyn Port>,
        mailbox: Arc<Mailbox>,
        counted: Arc<Counted>,
    ) -> Result<Arc<Connected>, EngineError> {
        let Self { agreed, facts, layers, patience, deadline } = self;
        let Agreed { reader, writer, end, look, address, limits, head } = agreed;
        look(mailbox.waits.longest());
        let connected = Arc::new(Connected {
            name: format!("layers {} to {} at {address}", layers.start, layers.end - 1),
            address,
            layers,
            limits,
            head,
            facts,
            patience,
            deadline,
            writer: Mutex::new(writer),
            end,
            held: Mutex::default(),
            pending: Mutex::default(),
            next_number: AtomicU64::new(0),
            forgotten: Arc::default(),
            room: Mutex::new(facts.room),
            heard: Mutex::new(Instant::now()),
            moved: Mutex::new(Instant::now()),
            pulse: AtomicU64::new(0),
            lost: OnceLock::new(),
            ending: AtomicBool::new(false),
            over: (Mutex::new(false), Condvar::new()),
            next,
            mailbox,
            counted,
        });
        let own = Arc::clone(&connected);
        spawn("stage-hear", move || own.hear(reader))?;
        let own = Arc::clone(&connected);
        spawn("stage-beat", move || own.beat())?;
        Ok(connected)
    }
}

/// A stage in another process.
pub(in crate::stages) struct Connected {
    /// Of the stage, for messages.
    name: String,
    address: String,
    layers: Range<usize>,
    limits: Limits,
    head: bool,
    facts: Facts,
    patience: Duration,
    /// Between the ends of two layers, while it has work.
    deadline: Option<Duration>,
    writer: Mutex<FrameWriter>,
    end: Arc<dyn Fn() + Send + Sync>,
    /// Batches that the stage has.
    held: Mutex<HashMap<u64, Box<Moving>>>,
    /// Where replies to commands go.
    pending: Mutex<HashMap<u64, Answer>>,
    next_number: AtomicU64,
    forgotten: Arc<Forgotten>,
    /// What can still be held, as the stage said last.
    room: Mutex<Room>,
    heard: Mutex<Instant>,
    /// When it was last seen to do something, or got work while it had none.
    moved: Mutex<Instant>,
    /// Of the stage's thread, as it said last.
    pulse: AtomicU64,
    lost: OnceLock<StageLost>,
    /// This side ends it.
    ending: AtomicBool,
    /// Set when nothing more is heard.
    over: (Mutex<bool>, Condvar),
    next: Arc<dyn Port>,
    mailbox: Arc<Mailbox>,
    counted: Arc<Counted>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port for Connected {
    fn send(&self, message: Message) {
        match message {
            Message::Batch(moving) => self.send_batch(moving),
            Message::Ask(asked) => self.send_ask(asked),
            Message::Release(Ticket(ticket)) => self.say(Kind::Release, |to| to.long(ticket)),
            Message::Ahead(order) => {
                let batch = Batch::of(&order, false, None);
                self.say(Kind::Ahead, |to| batch.write_order(to));
            }
            // Stages of this process alone are sent closures, and follow a device.
            Message::Call(_) | Message::Follow(..) => {}
        }
    }

    fn cancel(&self, Ticket(ticket): Ticket) {
        if hold(&self.held).contains_key(&ticket) {
            self.say(Kind::Cancel, |to| to.long(ticket));
        }
    }

    fn close(&self) {
        if self.ending.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.lost.get().is_none() {
            self.say(Kind::Bye, |_| {});
            let (over, changed) = &self.over;
            let over = hold(over);
            // Without its answer the stage learns it from the end of the connection.
            _ = changed.wait_timeout_while(over, GOODBYE, |over| !*over);
        }
        (self.end)();
    }

    fn is_here(&self) -> bool {
        false
    }
}

/// What goes out.
impl Connected {
    pub(in crate::stages) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Why the stage cannot be reached any more.
    pub(in crate::stages) fn lost(&self) -> Option<&StageLost> {
        self.lost.get()
    }

    /// Writes a message, behind what is to be forgotten. A connection that fails is the stage's loss.
    fn say(&self, kind: Kind, fill: impl FnOnce(&mut super::bytes::Writing)) {
        let said = Self::say_with(&mut hold(&self.writer), &self.forgotten, kind, fill);
        if let Err(error) = said {
            self.lose(error.into());
        }
    }

    fn say_with(
        writer: &mut FrameWriter,
        forgotten: &Forgotten,
        kind: Kind,
        fill: impl FnOnce(&mut super::bytes::Writing),
    ) -> std::io::Result<()> {
        let numbers = forgotten.take();
        if !numbers.is_empty() {
            writer.send(Kind::Forget, |to| write_numbers(&numbers, to))?;
        }
        writer.send(kind, fill)
    }

    fn send_batch(&self, mut moving: Box<Moving>) {
        let order = Arc::clone(&moving.order);
        let fault = moving.failure.as_ref().map(Fault::of);
        let batch = Batch::of(&order, moving.changed, fault);
        let residual = std::mem::take(&mut moving.residual);
        self.note_work();
        // There before its answer can come.
        hold(&self.held).insert(batch.ticket, moving);
        let sent = if batch.fault.is_some() { &[][..] } else { &residual[..] };
        self.say(Kind::Batch, |to| batch.write(sent, to));
        self.mailbox.give_back(residual);
        if order.cancelled.load(Ordering::Relaxed) {
            // It was given up before it was held, or after: twice does no harm.
            self.cancel(order.ticket);
        }
        if self.lost.get().is_some() {
            self.fail_all();
        }
    }

    fn send_ask(&self, Asked { command, touched, answer }: Asked) {
        let order = match command {
            Command::Nothing => Order::Nothing,
            Command::Create(home) => Order::Create(home),
            Command::Remove(sequence) => Order::Remove(sequence),
            Command::Snapshot(sequence) => Order::Snapshot(sequence),
            Command::Restore(sequence, SnapshotShare::There(part)) => {
                // The part lives until this has been written.
                let order = Order::Restore(sequence, (part.number(), part.length()));
                return self.write_ask(order, touched, answer);
            }
            Command::Restore(_, SnapshotShare::Here(_)) => {
                let found = "this part of a snapshot is of a stage of this process".to_owned();
                return answer(Err(Failure::Error(EngineError::Request(found))));
            }
            Command::SnapshotPages(sequence, length) => Order::SnapshotPages(sequence, length),
            Command::KeepFirst(sequence, tokens) => Order::KeepFirst(sequence, tokens),
            Command::Recover(live) => Order::Recover(live),
            Command::Counters => Order::Counters,
            Command::Head(ticket, command) => {
                let ticket = ticket.map(|Ticket(ticket)| ticket);
                Order::Head(ticket, HeadOrder::of(command))
            }
        };
        self.write_ask(order, touched, answer);
    }

    fn write_ask(&self, order: Order, touched: Vec<crate::backend::SequenceId>, answer: Answer) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.note_work();
        hold(&self.pending).insert(number, answer);
        let ask = Ask { number, touched, order };
        self.say(Kind::Ask, |to| ask.write(to));
        if self.lost.get().is_some() {
            self.fail_all();
        }
    }

    /// What the stage can still hold. Where parts were forgotten since it said so last, it is asked.
    pub(in crate::stages) fn room(&self) -> Room {
        if self.forgotten.take_stale() && self.lost.get().is_none() {
            let (sender, receiver) = sync_channel(1);
            let answer = Box::new(move |_| _ = sender.send(()));
            self.write_ask(Order::Room, Vec::new(), answer);
            // The reply sets the room before its answer is called; a stage that is lost answers too.
            _ = receiver.recv();
        }
        *hold(&self.room)
    }

    fn has_work(&self) -> bool {
        !hold(&self.held).is_empty() || !hold(&self.pending).is_empty()
    }

    /// The time of what it is given counts from now, where it has nothing else.
    fn note_work(&self) {
        if !self.has_work() {
            *hold(&self.moved) = Instant::now();
        }
    }

    /// Whether it keeps what it was given for too long.
    fn stuck(&self) -> Option<LostCause> {
        let deadline = self.deadline?;
        let late = self.has_work() && hold(&self.moved).elapsed() > deadline;
        late.then_some(LostCause::Stuck(deadline))
    }

    /// Says each second that this side is there, and looks whether the stage is.
    fn beat(&self) {
        let pause = BEAT.min(self.patience / 4);
        loop {
            let (over, changed) = &self.over;
            let over = hold(over);
            let waited = changed.wait_timeout_while(over, pause, |over| !*over);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            let silent = hold(&self.heard).elapsed();
            if silent > self.patience {
                self.lose(LostCause::Silent(self.patience));
                continue;
            }
            if let Some(stuck) = self.stuck() {
                self.lose(stuck);
                continue;
            }
            // Who writes now says as much; a write that does not end is a stage that says nothing.
            let said = self.writer.try_lock().map_or(Ok(()), |mut writer| {
                Self::say_with(&mut writer, &self.forgotten, Kind::Beat, |to| {
                    Beat::default().write(to);
                })
            });
            if let Err(error) = said {
                self.lose(error.into());
            }
        }
    }
}

/// What comes back.
impl Connected {
    fn hear(&self, mut reader: FrameReader) {
        let cause = loop {
            let (kind, content) = match reader.next() {
                Ok(message) => message,
                Err(error) => break error.into(),
            };
            *hold(&self.heard) = Instant::now();
            let from = Reading::new(content);
            let taken = match kind {
                Kind::Done => self.take_done(from),
                Kind::Reply => Replied::read(from, &self.limits).map(|it| self.take_reply(it)),
                Kind::Beat => Beat::read(from).map(|beat| self.take_beat(&beat)),
                Kind::Bye => break LostCause::Closed,
                _ => break LostCause::Protocol(format!("{kind:?} from a stage")),
            };
            if let Err(malformed) = taken {
                break malformed.into();
            }
        };
        self.lose(cause);
        let (over, changed) = &self.over;
        *hold(over) = true;
        changed.notify_all();
    }

    fn take_done(&self, from: Reading<'_>) -> Result<(), super::bytes::Malformed> {
        let mut residual = self.mailbox.buffer();
        let done = Done::read(from, &self.limits, &mut residual)?;
        let Some(mut moving) = hold(&self.held).remove(&done.ticket) else {
            return Err(super::bytes::Malformed("a batch that the stage was not given"));
        };
        let tokens: usize = moving.order.runs.iter().map(|(_, tokens)| tokens.len()).sum();
        let expected = if self.head { 0 } else { tokens * self.limits.width };
        if done.fault.is_none() && residual.len() != expected {
            hold(&self.held).insert(done.ticket, moving);
            return Err(super::bytes::Malformed("a residual stream of another length"));
        }
        *hold(&self.room) = done.room;
        moving.residual = residual;
        moving.changed |= done.changed;
        moving.times.add(done.times);
        // One that was lost before it came here keeps its own words.
        if let (Some(fault), None) = (done.fault, &moving.failure) {
            moving.failure = Some(fault.failure(&self.name));
        }
        let state = self.facts.state_bytes as u64;
        let hold_part = |part| self.forgotten.hold(part, state);
        let marks = done.marks.into_iter().map(|(it, part)| (it, part.map(hold_part)));
        moving.marks.push(marks.collect());
        moving.order.layers.fetch_max(self.layers.end, Ordering::Relaxed);
        *hold(&self.moved) = Instant::now();
        self.mailbox.pulse.fetch_add(1, Ordering::Relaxed);
        self.next.send(Message::Batch(moving));
        Ok(())
    }

    fn take_reply(&self, Replied { number, given, room }: Replied) {
        *hold(&self.room) = room;
        *hold(&self.moved) = Instant::now();
        let state = self.facts.state_bytes as u64;
        let reply = match given {
            Given::Done => Ok(Reply::Done),
            Given::Sequence(sequence) => Ok(Reply::Sequence(sequence)),
            Given::Part(part) => Ok(Reply::Part(self.forgotten.hold(part, state))),
            Given::Pages(pages) => Ok(Reply::Pages(pages)),
            Given::Counters(counters) => Ok(Reply::Counters(counters)),
            Given::Rows(rows) => Ok(Reply::Rows(rows)),
            Given::Chosen(chosen) => Ok(Reply::Chosen(chosen)),
            Given::Ranked(ranked) => Ok(Reply::Ranked(ranked)),
            Given::Failed(fault) => Err(fault.failure(&self.name)),
        };
        // A reply to nothing is of a command whose sender has gone.
        let answer = hold(&self.pending).remove(&number);
        if let Some(answer) = answer {
            answer(reply);
        }
    }

    fn take_beat(&self, beat: &Beat) {
        let before = self.pulse.swap(beat.pulse, Ordering::Relaxed);
        if before != beat.pulse {
            *hold(&self.moved) = Instant::now();
            self.mailbox.pulse.fetch_add(1, Ordering::Relaxed);
        }
        self.counted.tell(beat.batches, beat.busy, beat.waited);
        self.counted.set(&beat.experts);
        let mut passed = false;
        let held = hold(&self.held);
        for (ticket, layers) in &beat.layers {
            let Some(moving) = held.get(ticket) else { continue };
            let layers = (*layers).min(self.layers.end);
            passed |= moving.order.layers.fetch_max(layers, Ordering::Relaxed) < layers;
        }
        drop(held);
        if passed {
            self.mailbox.note_layer();
        }
    }

    /// Gives the stage up: all that waits for it fails.
    fn lose(&self, cause: LostCause) {
        let (layers, address) = (self.layers.clone(), self.address.clone());
        if self.lost.set(StageLost { layers, address, cause }).is_ok() {
            (self.end)();
        }
        self.fail_all();
    }

    fn fail_all(&self) {
        let Some(lost) = self.lost.get() else { return };
        let failure = || Failure::Error(EngineError::StageLost(lost.clone()));
        let held: Vec<_> = hold(&self.held).drain().collect();
        for (_, mut moving) in held {
            moving.changed = true;
            moving.failure.get_or_insert_with(failure);
            self.next.send(Message::Batch(moving));
        }
        let pending: Vec<_> = hold(&self.pending).drain().collect();
        for (_, answer) in pending {
            answer(Err(failure()));
        }
    }
}

//! A stage as a process of its own: what a stage's thread does, at the other end of a connection.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bytes::{Malformed, Reading, Writing};
use super::fault::Fault;
use super::frames::{Channel, FrameReader, FrameWriter, Kind};
use super::messages::{Ask, Batch, Beat, Done, Given, Order, Replied, read_numbers};
use super::parts::Parts;
use super::terms::{Agreed, Facts, JoinError, Limits, Terms, welcome};
use super::{BEAT, LostCause, StageLost};
use crate::EngineError;
use crate::model::{Model, StageTimes};
use crate::sequences::{SequencesView, SnapshotShare};
use crate::stages::Stage;
use crate::stages::batch::{self, Counted, Failure, Mailbox, Message, Moving, Ticket};
use crate::stages::command::{Asked, Command, HeadPlace, Reply};
use crate::stages::pipeline::spawn;
use crate::stages::port::Port;
use crate::stages::wait::Waits;
use crate::stages::worker::{Fittings, Worker};

/// Messages that may wait for the stage's thread.
const MESSAGES: usize = 64;
/// Batches that may be under way.
const BATCHES: usize = 256;

/// How a stage's connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The first process said that it ends.
    InOrder,
    /// The first process was lost.
    Lost(StageLost),
}

/// A connection to the first process, which has agreed.
pub struct Joined {
    agreed: Agreed,
    layers: Range<usize>,
    patience: Duration,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joined({}, layers {:?})", self.agreed.address, self.layers)
    }
}

impl Joined {
    /// Hears the first process's greeting, for a stage of these terms and facts; it is given up when it says nothing
    /// for `patience`.
    ///
    /// # Errors
    /// It differs in something, as it then hears, or the connection failed. The stage can be joined by another.
    pub fn over(
        channel: Channel,
        terms: &Terms,
        facts: &Facts,
        patience: Duration,
    ) -> Result<Self, JoinError> {
        let agreed = welcome(channel, terms, facts)?;
        Ok(Self { agreed, layers: terms.layers.clone(), patience })
    }

    /// Where the first process is.
    pub fn address(&self) -> &str {
        &self.agreed.address
    }

    /// Does what the first process asks for until it ends the connection or is lost.
    ///
    /// # Errors
    /// No threads.
    pub fn serve(self, stage: Stage, model: &Model) -> Result<Ended, EngineError> {
        let Self { agreed, layers, patience } = self;
        let Agreed { reader, writer, end, look, address, limits, head } = agreed;
        let Stage { layers: own, mut backend } = stage;
        let program = &model.program;
        backend.prepare(Arc::clone(program));
        let (sender, inbox) = sync_channel(MESSAGES);
        let mailbox = Arc::new(Mailbox::new(Waits::of(backend.rules().spins, 1)));
        look(mailbox.waits.longest());
        let counted = Arc::new(Counted::default());
        let session = Arc::new(Session {
            writer: Mutex::new(writer),
            end,
            limits,
            keeps: head,
            place: HeadPlace { norm: model.final_norm, head: model.head },
            view: backend.sequences().view(),
            parts: Mutex::default(),
            ahead: Mutex::default(),
            under_way: Mutex::default(),
            mailbox: Arc::clone(&mailbox),
            counted: Arc::clone(&counted),
            heard: Mutex::new(Instant::now()),
            silent: AtomicBool::new(false),
            patience,
            over: (Mutex::new(false), Condvar::new()),
        });
        let given = program.given_layers().into_iter();
        let fittings = Fittings {
            backend,
            layers: own.clone(),
            program: Arc::clone(program),
            given: given.filter(|(layer, _)| own.contains(&layer.index())).collect(),
            embedding: None,
            inbox,
            keeps: head,
            next: Some(Arc::clone(&session) as Arc<dyn Port>),
            mailbox,
            counted,
        };
        let thread = spawn("stage", move || {
            let mut worker = Worker::new(fittings);
            match worker.backend().enter_thread() {
                Ok(()) => worker.run(),
                Err(error) => worker.refuse_all(&error),
            }
        })?;
        let beating = Arc::clone(&session);
        spawn("stage-beat", move || beating.beat())?;
        let cause = session.hear(reader, &sender);
        session.finish();
        drop(sender);
        // Its panics end there.
        _ = thread.join();
        Ok(match cause {
            None => Ended::InOrder,
            Some(cause) => Ended::Lost(StageLost { layers, address, cause }),
        })
    }
}

/// What the threads of a stage's process share.
struct Session {
    writer: Mutex<FrameWriter>,
    end: Arc<dyn Fn() + Send + Sync>,
    limits: Limits,
    /// Whether the stage has the head: nothing comes back of the residual stream.
    keeps: bool,
    /// Where the head is.
    place: HeadPlace,
    view: SequencesView,
    parts: Mutex<Parts>,
    /// A step that was announced and has not come.
    ahead: Mutex<Option<Arc<batch::Order>>>,
    under_way: Mutex<Vec<Arc<batch::Order>>>,
    mailbox: Arc<Mailbox>,
    counted: Arc<Counted>,
    heard: Mutex<Instant>,
    /// The first process said nothing for too long.
    silent: AtomicBool,
    patience: Duration,
    /// Set when nothing more is heard.
    over: (Mutex<bool>, Condvar),
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device may go on.
fn take_release(mut from: Reading<'_>, to: &SyncSender<Message>) -> Result<(), Malformed> {
    let ticket = Ticket(from.long()?);
    from.end()?;
    _ = to.send(Message::Release(ticket));
    Ok(())
}

/// Where the stage's thread leaves batches: they go back over the connection.
impl Port for Session {
    fn send(&self, message: Message) {
        if let Message::Batch(moving) = message {
            self.send_done(*moving);
        }
    }

    fn is_here(&self) -> bool {
        false
    }
}

impl Session {
    fn say(&self, kind: Kind, fill: impl FnOnce(&mut Writing)) {
        if hold(&self.writer).send(kind, fill).is_err() {
            // The reading half sees it too, and reports it.
            (self.end)();
        }
    }

    fn send_done(&self, moving: Moving) {
        let Moving { order, residual, failure, changed, marks, times } = moving;
        hold(&self.under_way).retain(|it| it.ticket != order.ticket);
        self.mailbox.under_way.fetch_sub(1, Ordering::Relaxed);
        let marks = marks.into_iter().flatten().map(|(sequence, part)| {
            let part = match part {
                // One that is not kept is none.
                Some(SnapshotShare::Here(part)) => hold(&self.parts).keep(part).ok(),
                Some(SnapshotShare::There(_)) | None => None,
            };
            (sequence, part)
        });
        let done = Done {
            ticket: order.ticket.0,
            changed,
            fault: failure.as_ref().map(Fault::of),
            marks: marks.collect(),
            times,
            room: self.view.room(),
        };
        let sent = if done.fault.is_some() || self.keeps { &[][..] } else { &residual[..] };
        self.say(Kind::Done, |to| done.write(sent, to));
        self.mailbox.give_back(residual);
    }

    fn reply(&self, number: u64, given: Given) {
        let room = self.view.room();
        self.say(Kind::Reply, |to| Replied { number, given, room }.write(to));
    }

    /// Says each second that the stage is there and how far it is, and looks whether the first process is.
    fn beat(&self) {
        let pause = BEAT.min(self.patience / 4);
        loop {
            let (over, changed) = &self.over;
            let waited = changed.wait_timeout_while(hold(over), pause, |over| !*over);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            if hold(&self.heard).elapsed() > self.patience {
                self.silent.store(true, Ordering::Relaxed);
                (self.end)();
                continue;
            }
            let work = self.counted.work();
            let layers =
                |order: &Arc<batch::Order>| (order.ticket.0, order.layers.load(Ordering::Relaxed));
            let beat = Beat {
                pulse: self.mailbox.pulse.load(Ordering::Relaxed),
                batches: work.batches,
                busy: work.busy,
                waited: work.waited,
                experts: self.counted.experts(),
                layers: hold(&self.under_way).iter().map(layers).collect(),
            };
            // Who writes now says as much.
            if let Ok(mut writer) = self.writer.try_lock()
                && writer.send(Kind::Beat, |to| beat.write(to)).is_err()
            {
                (self.end)();
            }
        }
    }

    /// Gives what is heard to the stage's thread; why no more is heard, unless the first process ends in order.
    fn hear(
        self: &Arc<Self>,
        mut reader: FrameReader,
        to: &SyncSender<Message>,
    ) -> Option<LostCause> {
        loop {
            let (kind, content) = match reader.next() {
                Ok(message) => message,
                Err(_) if self.silent.load(Ordering::Relaxed) => {
                    return Some(LostCause::Silent(self.patience));
                }
                Err(error) => return Some(error.into()),
            };
            *hold(&self.heard) = Instant::now();
            let from = Reading::new(content);
            let taken = match kind {
                Kind::Batch => self.take_batch(from, to),
                Kind::Ahead => self.take_ahead(from, to),
                Kind::Ask => Ask::read(from, &self.limits).map(|ask| self.take_ask(ask, to)),
                Kind::Forget => {
                    read_numbers(from).map(|numbers| hold(&self.parts).forget(&numbers))
                }
                Kind::Cancel => self.take_cancel(from),
                Kind::Release => take_release(from, to),
                Kind::Beat => Beat::read(from).map(|_| ()),
                Kind::Bye => return None,
                _ => return Some(LostCause::Protocol(format!("{kind:?} from the first process"))),
            };
            if let Err(malformed) = taken {
                return Some(malformed.into());
            }
        }
    }

    fn take_batch(&self, from: Reading<'_>, to: &SyncSender<Message>) -> Result<(), Malformed> {
        let mut residual = self.mailbox.buffer();
        let batch = Batch::read(from, &self.limits, &mut residual)?;
        let (changed, fault) = (batch.changed, batch.fault.clone());
        let order = match hold(&self.ahead).take() {
            Some(order) if order.ticket.0 == batch.ticket => {
                let announced = Batch::of(&order, changed, fault.clone());
                if announced != batch {
                    return Err(Malformed("a step that is not the one announced"));
                }
                order
            }
            _ => self.order(batch),
        };
        {
            let mut under_way = hold(&self.under_way);
            if under_way.len() >= BATCHES || under_way.iter().any(|it| it.ticket == order.ticket) {
                return Err(Malformed("a batch too many, or one twice"));
            }
            under_way.push(Arc::clone(&order));
        }
        self.mailbox.under_way.fetch_add(1, Ordering::Relaxed);
        let moving = Moving {
            order,
            residual,
            failure: fault.map(|fault| fault.failure("the first process")),
            changed,
            marks: Vec::new(),
            times: StageTimes::default(),
        };
        // A thread that has ended has said so.
        _ = to.send(Message::Batch(Box::new(moving)));
        Ok(())
    }

    /// Gives the stage's thread a step that the first process has begun: the stage may do so too.
    fn take_ahead(&self, from: Reading<'_>, to: &SyncSender<Message>) -> Result<(), Malformed> {
        let order = self.order(Batch::read_order(from, &self.limits)?);
        if hold(&self.ahead).replace(Arc::clone(&order)).is_some() {
            return Err(Malformed("a step announced before the last one came"));
        }
        _ = to.send(Message::Ahead(order));
        Ok(())
    }

    fn order(&self, batch: Batch) -> Arc<batch::Order> {
        let Batch { ticket, purpose, runs, marks, kept, .. } = batch;
        Arc::new(batch::Order {
            ticket: Ticket(ticket),
            runs,
            purpose,
            marks,
            kept,
            cancelled: AtomicBool::new(false),
            layers: AtomicUsize::new(0),
            mailbox: Arc::clone(&self.mailbox),
        })
    }

    fn take_cancel(&self, mut from: Reading<'_>) -> Result<(), Malformed> {
        let ticket = Ticket(from.long()?);
        from.end()?;
        let under_way = hold(&self.under_way);
        if let Some(order) = under_way.iter().find(|order| order.ticket == ticket) {
            order.cancelled.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take_ask(self: &Arc<Self>, ask: Ask, to: &SyncSender<Message>) {
        let Ask { number, touched, order } = ask;
        let command = match order {
            // Nothing of these waits for the device.
            Order::Room => return self.reply(number, Given::Done),
            Order::Restore(sequence, part) => {
                let found = hold(&self.parts).find(part);
                match found {
                    Ok(part) => Command::Restore(sequence, SnapshotShare::Here(part)),
                    Err(error) => {
                        let fault = Fault::of(&Failure::Error(error));
                        return self.reply(number, Given::Failed(fault));
                    }
                }
            }
            Order::Nothing => Command::Nothing,
            Order::Create(home) => Command::Create(home),
            Order::Remove(sequence) => Command::Remove(sequence),
            Order::Snapshot(sequence) => Command::Snapshot(sequence),
            Order::SnapshotPages(sequence, length) => Command::SnapshotPages(sequence, length),
            Order::KeepFirst(sequence, tokens) => Command::KeepFirst(sequence, tokens),
            Order::Recover(live) => Command::Recover(live),
            Order::Counters => Command::Counters,
            Order::Head(ticket, order) => {
                Command::Head(ticket.map(Ticket), order.command(self.place))
            }
        };
        let session = Arc::clone(self);
        let answer = Box::new(move |reply| {
            let given = session.given(reply);
            session.reply(number, given);
        });
        _ = to.send(Message::Ask(Asked { command, touched, answer }));
    }

    fn given(&self, reply: Result<Reply, Failure>) -> Given {
        match reply {
            Ok(Reply::Done) => Given::Done,
            Ok(Reply::Sequence(sequence)) => Given::Sequence(sequence),
            Ok(Reply::Part(SnapshotShare::Here(part))) => match hold(&self.parts).keep(part) {
                Ok(part) => Given::Part(part),
                Err(error) => Given::Failed(Fault::of(&Failure::Error(error))),
            },
            Ok(Reply::Part(SnapshotShare::There(_))) => {
                Given::Failed(Fault::Other("a part of another process".to_owned()))
            }
            Ok(Reply::Pages(pages)) => Given::Pages(pages),
            Ok(Reply::Counters(counters)) => Given::Counters(counters),
            Ok(Reply::Rows(rows)) => Given::Rows(rows),
            Ok(Reply::Chosen(chosen)) => Given::Chosen(chosen),
            Ok(Reply::Ranked(ranked)) => Given::Ranked(ranked),
            Err(failure) => Given::Failed(Fault::of(&failure)),
        }
    }

    /// Nothing more is heard: what is under way ends.
    fn finish(&self) {
        for order in hold(&self.under_way).iter() {
            order.cancelled.store(true, Ordering::Relaxed);
        }
        let (over, changed) = &self.over;
        *hold(over) = true;
        changed.notify_all();
        (self.end)();
    }
}

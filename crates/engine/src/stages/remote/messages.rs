//! What the first process and a stage say to each other once they have agreed: batches, commands, and what comes of
//! them. Every number that names something is compared with how many there are before it is used.

use std::time::Duration;

use store::cache::{PhaseCounters, StoreCounters};

use super::bytes::{Malformed, Reading, Writing};
use super::fault::{Fault, read_fault, write_fault};
use super::head::{HeadOrder, read_ranked, write_ranked};
use super::terms::Limits;
use text::sampling::Ranked;

use crate::backend::{Purpose, Room, SequenceId};
use crate::model::StageTimes;
use crate::stages::batch;

/// Most sequences, runs and marks of a message.
const LISTED: usize = 4096;
/// Parts of snapshots that a stage holds at the most: more are never made, since each takes pages or a state.
pub(super) const PARTS_MAX: usize = 1 << 16;

/// A sequence that there can be.
fn sequence(from: &mut Reading<'_>, limits: &Limits) -> Result<SequenceId, Malformed> {
    let place = from.word()?;
    if place as usize >= limits.sequences {
        return Err(Malformed("a sequence that there is not"));
    }
    Ok(SequenceId(place))
}

/// A batch for a stage. The residual stream follows apart, since both sides have a buffer for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) ticket: u64,
    pub(super) purpose: Purpose,
    pub(super) changed: bool,
    pub(super) fault: Option<Fault>,
    pub(super) runs: Vec<(SequenceId, Vec<u32>)>,
    pub(super) marks: Vec<usize>,
    pub(super) kept: Vec<(SequenceId, usize)>,
}

impl Batch {
    pub(super) fn of(order: &batch::Order, changed: bool, fault: Option<Fault>) -> Self {
        Self {
            ticket: order.ticket.0,
            purpose: order.purpose,
            changed,
            fault,
            runs: order.runs.clone(),
            marks: order.marks.clone(),
            kept: order.kept.clone(),
        }
    }

    /// Tokens of all runs.
    pub(super) fn tokens(&self) -> usize {
        self.runs.iter().map(|(_, tokens)| tokens.len()).sum()
    }

    pub(super) fn write(&self, residual: &[f32], to: &mut Writing) {
        self.write_order(to);
        to.floats(residual);
    }

    /// Without a residual stream: a step that the stage may begin.
    pub(super) fn write_order(&self, to: &mut Writing) {
        to.long(self.ticket);
        to.flag(self.purpose == Purpose::Answers);
        to.flag(self.changed);
        write_fault(self.fault.as_ref(), to);
        to.count(self.runs.len());
        for (sequence, tokens) in &self.runs {
            to.word(sequence.0);
            to.words(tokens);
        }
        to.count(self.marks.len());
        self.marks.iter().for_each(|&run| to.size(run));
        to.count(self.kept.len());
        for &(sequence, tokens) in &self.kept {
            to.word(sequence.0);
            to.size(tokens);
        }
    }

    /// A batch that the limits allow, with as long a residual stream as its tokens have.
    pub(super) fn read(
        mut from: Reading<'_>,
        limits: &Limits,
        residual: &mut Vec<f32>,
    ) -> Result<Self, Malformed> {
        let batch = Self::read_part(&mut from, limits)?;
        let tokens = batch.tokens();
        from.floats(tokens * limits.width, residual)?;
        let expected = if batch.fault.is_some() { 0 } else { tokens * limits.width };
        if residual.len() != expected {
            return Err(Malformed("a residual stream of another length than its tokens"));
        }
        from.end()?;
        Ok(batch)
    }

    /// A step that the limits allow, whose residual stream comes later.
    pub(super) fn read_order(mut from: Reading<'_>, limits: &Limits) -> Result<Self, Malformed> {
        let batch = Self::read_part(&mut from, limits)?;
        from.end()?;
        if batch.purpose != Purpose::Answers || batch.fault.is_some() {
            return Err(Malformed("a step announced that is none"));
        }
        Ok(batch)
    }

    fn read_part(from: &mut Reading<'_>, limits: &Limits) -> Result<Self, Malformed> {
        let (ticket, answers, changed) = (from.long()?, from.flag()?, from.flag()?);
        let fault = read_fault(from)?;
        let runs = from.count(8, LISTED)?;
        let run = |_| {
            let sequence = sequence(from, limits)?;
            Ok((sequence, from.words(limits.batch_tokens)?))
        };
        let runs = (0..runs).map(run).collect::<Result<Vec<_>, _>>()?;
        let marks = from.count(8, LISTED)?;
        let marks = (0..marks).map(|_| from.size()).collect::<Result<Vec<_>, _>>()?;
        if marks.iter().any(|&run| run >= runs.len()) {
            return Err(Malformed("a mark of no run"));
        }
        let kept = from.count(12, LISTED)?;
        let keep = |_| Ok((sequence(from, limits)?, from.size()?));
        let kept = (0..kept).map(keep).collect::<Result<Vec<_>, _>>()?;
        let purpose = if answers { Purpose::Answers } else { Purpose::Prompt };
        let batch = Self { ticket, purpose, changed, fault, runs, marks, kept };
        let tokens = batch.tokens();
        if tokens > limits.batch_tokens || batch.runs.iter().any(|(_, run)| run.is_empty()) {
            return Err(Malformed("a batch of more tokens than was agreed, or a run of none"));
        }
        Ok(batch)
    }
}

/// A part of a snapshot that a stage holds: its number and its tokens.
pub(super) type NumberedPart = (u64, usize);

fn write_room(room: Room, to: &mut Writing) {
    [room.pages, room.states].into_iter().for_each(|free| to.size(free));
}

fn read_room(from: &mut Reading<'_>) -> Result<Room, Malformed> {
    Ok(Room { pages: from.size()?, states: from.size()? })
}

/// A batch that a stage is through with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) ticket: u64,
    pub(super) changed: bool,
    pub(super) fault: Option<Fault>,
    pub(super) marks: Vec<(SequenceId, Option<NumberedPart>)>,
    pub(super) times: StageTimes,
    pub(super) room: Room,
}

impl Done {
    pub(super) fn write(&self, residual: &[f32], to: &mut Writing) {
        to.long(self.ticket);
        to.flag(self.changed);
        write_fault(self.fault.as_ref(), to);
        to.count(self.marks.len());
        for (sequence, part) in &self.marks {
            to.word(sequence.0);
            to.flag(part.is_some());
            let (number, length) = part.unwrap_or_default();
            to.long(number);
            to.size(length);
        }
        let StageTimes { attention, delta_net, mixture, head } = self.times;
        [attention, delta_net, mixture, head].into_iter().for_each(|time| to.time(time));
        write_room(self.room, to);
        to.floats(residual);
    }

    pub(super) fn read(
        mut from: Reading<'_>,
        limits: &Limits,
        residual: &mut Vec<f32>,
    ) -> Result<Self, Malformed> {
        let (ticket, changed) = (from.long()?, from.flag()?);
        let fault = read_fault(&mut from)?;
        let marks = from.count(21, LISTED)?;
        let mark = |_| {
            let sequence = sequence(&mut from, limits)?;
            let (there, part) = (from.flag()?, (from.long()?, from.size()?));
            Ok((sequence, there.then_some(part)))
        };
        let marks = (0..marks).map(mark).collect::<Result<Vec<_>, _>>()?;
        let times = StageTimes {
            attention: from.time()?,
            delta_net: from.time()?,
            mixture: from.time()?,
            head: from.time()?,
        };
        let room = read_room(&mut from)?;
        from.floats(limits.batch_tokens.saturating_mul(limits.width), residual)?;
        from.end()?;
        Ok(Self { ticket, changed, fault, marks, times, room })
    }
}

/// A command as it is written: a part of a snapshot goes by its number and length.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    Nothing,
    /// An empty sequence, and where it would rather be.
    Create(Option<SequenceId>),
    Remove(SequenceId),
    Snapshot(SequenceId),
    Restore(SequenceId, NumberedPart),
    SnapshotPages(SequenceId, usize),
    KeepFirst(SequenceId, usize),
    Recover(Vec<SequenceId>),
    Counters,
    /// What can still be held: answered without waiting for the device.
    Room,
    /// What follows from the batch that the stage keeps.
    Head(Option<u64>, HeadOrder),
}

/// A command on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    pub(super) number: u64,
    pub(super) touched: Vec<SequenceId>,
    pub(super) order: Order,
}

fn write_sequences(sequences: &[SequenceId], to: &mut Writing) {
    to.count(sequences.len());
    sequences.iter().for_each(|sequence| to.word(sequence.0));
}

fn read_sequences(from: &mut Reading<'_>, limits: &Limits) -> Result<Vec<SequenceId>, Malformed> {
    let count = from.count(4, LISTED)?;
    (0..count).map(|_| sequence(from, limits)).collect()
}

impl Ask {
    pub(super) fn write(&self, to: &mut Writing) {
        to.long(self.number);
        write_sequences(&self.touched, to);
        let (tag, own, numbers): (u8, Option<SequenceId>, [u64; 2]) = match self.order {
            Order::Nothing => (0, None, [0; 2]),
            Order::Create(home) => (1, home, [u64::from(home.is_some()), 0]),
            Order::Remove(own) => (2, Some(own), [0; 2]),
            Order::Snapshot(own) => (3, Some(own), [0; 2]),
            Order::Restore(own, (number, length)) => (4, Some(own), [number, length as u64]),
            Order::SnapshotPages(own, length) => (5, Some(own), [length as u64, 0]),
            Order::KeepFirst(own, tokens) => (6, Some(own), [tokens as u64, 0]),
            Order::Recover(_) => (7, None, [0; 2]),
            Order::Counters => (8, None, [0; 2]),
            Order::Room => (9, None, [0; 2]),
            Order::Head(ticket, _) => {
                (10, None, [u64::from(ticket.is_some()), ticket.unwrap_or(0)])
            }
        };
        to.byte(tag);
        to.word(own.map_or(0, |own| own.0));
        numbers.into_iter().for_each(|number| to.long(number));
        let live = if let Order::Recover(live) = &self.order { &live[..] } else { &[] };
        write_sequences(live, to);
        if let Order::Head(_, order) = &self.order {
            order.write(to);
        }
    }

    pub(super) fn read(mut from: Reading<'_>, limits: &Limits) -> Result<Self, Malformed> {
        let number = from.long()?;
        let touched = read_sequences(&mut from, limits)?;
        let (tag, own) = (from.byte()?, sequence(&mut from, limits)?);
        let (first, second) = (from.long()?, from.size()?);
        let live = read_sequences(&mut from, limits)?;
        let head = if tag == 10 { Some(HeadOrder::read(&mut from, limits)?) } else { None };
        from.end()?;
        let size = usize::try_from(first).map_err(|_| Malformed("a size beyond this machine's"));
        let order = match tag {
            0 => Order::Nothing,
            1 => Order::Create((first == 1).then_some(own)),
            2 => Order::Remove(own),
            3 => Order::Snapshot(own),
            4 => Order::Restore(own, (first, second)),
            5 => Order::SnapshotPages(own, size?),
            6 => Order::KeepFirst(own, size?),
            7 => Order::Recover(live),
            8 => Order::Counters,
            9 => Order::Room,
            10 => {
                let ticket = (first == 1).then_some(second as u64);
                Order::Head(ticket, head.ok_or(Malformed("a question of no kind"))?)
            }
            _ => return Err(Malformed("a command of no kind")),
        };
        Ok(Self { number, touched, order })
    }
}

/// What a command gave, as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    Done,
    Sequence(SequenceId),
    Part(NumberedPart),
    Pages(usize),
    Counters(Box<StoreCounters>),
    Rows(Vec<f32>),
    Chosen(Option<u32>),
    Ranked(Option<Ranked>),
    Failed(Fault),
}

/// The reply to a command, with what can be held after it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Replied {
    pub(super) number: u64,
    pub(super) given: Given,
    pub(super) room: Room,
}

impl Replied {
    pub(super) fn write(&self, to: &mut Writing) {
        to.long(self.number);
        write_room(self.room, to);
        match &self.given {
            Given::Done => to.byte(0),
            Given::Sequence(sequence) => {
                to.byte(1);
                to.word(sequence.0);
            }
            Given::Part((number, length)) => {
                to.byte(2);
                to.long(*number);
                to.size(*length);
            }
            Given::Pages(pages) => {
                to.byte(3);
                to.size(*pages);
            }
            Given::Counters(counters) => {
                to.byte(4);
                write_counters(counters, to);
            }
            Given::Failed(fault) => {
                to.byte(5);
                fault.write(to);
            }
            Given::Rows(rows) => {
                to.byte(6);
                to.floats(rows);
            }
            Given::Chosen(chosen) => {
                to.byte(7);
                to.flag(chosen.is_some());
                to.word(chosen.unwrap_or(0));
            }
            Given::Ranked(ranked) => {
                to.byte(8);
                write_ranked(ranked.as_ref(), to);
            }
        }
    }

    pub(super) fn read(mut from: Reading<'_>, limits: &Limits) -> Result<Self, Malformed> {
        let (number, room) = (from.long()?, read_room(&mut from)?);
        let given = match from.byte()? {
            0 => Given::Done,
            1 => Given::Sequence(sequence(&mut from, limits)?),
            2 => Given::Part((from.long()?, from.size()?)),
            3 => Given::Pages(from.size()?),
            4 => Given::Counters(Box::new(read_counters(&mut from)?)),
            5 => Given::Failed(Fault::read(&mut from)?),
            6 => {
                let mut rows = Vec::new();
                from.floats(limits.logits(), &mut rows)?;
                Given::Rows(rows)
            }
            7 => {
                let (there, chosen) = (from.flag()?, from.word()?);
                Given::Chosen(there.then_some(chosen))
            }
            8 => Given::Ranked(read_ranked(&mut from)?),
            _ => return Err(Malformed("a reply of no kind")),
        };
        from.end()?;
        Ok(Self { number, given, room })
    }
}

/// A sign of life of a stage, and how far it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Beat {
    /// Counts signs of life of its thread.
    pub(super) pulse: u64,
    pub(super) batches: u64,
    pub(super) busy: Duration,
    pub(super) waited: Duration,
    pub(super) experts: StoreCounters,
    /// Batches that it has, with the layers that they have passed.
    pub(super) layers: Vec<(u64, usize)>,
}

impl Beat {
    pub(super) fn write(&self, to: &mut Writing) {
        to.long(self.pulse);
        to.long(self.batches);
        to.time(self.busy);
        to.time(self.waited);
        write_counters(&self.experts, to);
        to.count(self.layers.len());
        for &(ticket, layers) in &self.layers {
            to.long(ticket);
            to.size(layers);
        }
    }

    pub(super) fn read(mut from: Reading<'_>) -> Result<Self, Malformed> {
        let (pulse, batches) = (from.long()?, from.long()?);
        let (busy, waited) = (from.time()?, from.time()?);
        let experts = read_counters(&mut from)?;
        let count = from.count(16, LISTED)?;
        let layers = (0..count).map(|_| Ok((from.long()?, from.size()?)));
        let layers = layers.collect::<Result<_, _>>()?;
        from.end()?;
        Ok(Self { pulse, batches, busy, waited, experts, layers })
    }
}

/// Numbers of parts that are not held any more.
pub(super) fn write_numbers(numbers: &[u64], to: &mut Writing) {
    to.count(numbers.len());
    numbers.iter().for_each(|&number| to.long(number));
}

pub(super) fn read_numbers(mut from: Reading<'_>) -> Result<Vec<u64>, Malformed> {
    let count = from.count(8, PARTS_MAX)?;
    let numbers = (0..count).map(|_| from.long()).collect::<Result<_, _>>()?;
    from.end()?;
    Ok(numbers)
}

fn phase(counters: &PhaseCounters) -> [u64; 7] {
    let &PhaseCounters { visits, requests, hits, joined, misses, stall_us, routing_us } = counters;
    [visits, requests, hits, joined, misses, stall_us, routing_us]
}

fn write_counters(counters: &StoreCounters, to: &mut Writing) {
    let phases = [&counters.decode, &counters.draft, &counters.prefill].map(phase);
    let device = &counters.device;
    let others = [
        counters.records_read,
        counters.bytes_read,
        counters.evictions,
        counters.ahead_issued,
        counters.ahead_used,
        counters.ahead_wasted,
        counters.given_up,
        counters.withdrawn,
        counters.retries,
        counters.errors,
        counters.in_flight,
        device.hits,
        device.over_bus,
        device.resident,
        device.copied,
        device.returned,
        device.in_both,
        device.slots,
        device.given_up,
        device.cache_bytes,
    ];
    phases.iter().flatten().chain(&others).for_each(|&number| to.long(number));
}

/// Counters without the times of single reads, which stay with the stage.
fn read_counters(from: &mut Reading<'_>) -> Result<StoreCounters, Malformed> {
    let mut counters = StoreCounters::default();
    let StoreCounters { decode, draft, prefill, .. } = &mut counters;
    for phase in [decode, draft, prefill] {
        let PhaseCounters { visits, requests, hits, joined, misses, stall_us, routing_us } = phase;
        for number in [visits, requests, hits, joined, misses, stall_us, routing_us] {
            *number = from.long()?;
        }
    }
    let device = &mut counters.device;
    let others = [
        &mut counters.records_read,
        &mut counters.bytes_read,
        &mut counters.evictions,
        &mut counters.ahead_issued,
        &mut counters.ahead_used,
        &mut counters.ahead_wasted,
        &mut counters.given_up,
        &mut counters.withdrawn,
        &mut counters.retries,
        &mut counters.errors,
        &mut counters.in_flight,
        &mut device.hits,
        &mut device.over_bus,
        &mut device.resident,
        &mut device.copied,
        &mut device.returned,
        &mut device.in_both,
        &mut device.slots,
        &mut device.given_up,
        &mut device.cache_bytes,
    ];
    for number in others {
        *number = from.long()?;
    }
    Ok(counters)
}

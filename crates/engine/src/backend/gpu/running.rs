//! A running step as the residency serves it: its pieces arrive, the layer that missed an expert asks, and what has
//! been found is copied into slots.
//!
//! Where a layer's experts have run, the flag is lowered and what was recorded behind the layer's sum is handed over,
//! in pieces as before.

use std::collections::VecDeque;

use store::cache::Held;
use store::{ExpertId, LayerId};

use super::experts::{Assignments, Routed};
use super::prefetch::Prefetch;
use super::slots::GpuSlots;
use super::step::{Arrived, Miss, Places, Steps};
use crate::EngineError;
use crate::residency::{Found, Request, RunningStep};

/// A layer that waits for records.
struct Stopped {
    miss: Miss,
    work: Assignments,
    /// Members whose records were asked for.
    waiting: Vec<usize>,
    /// Members whose records have been written, and which have not run.
    group: Vec<usize>,
}

/// What became of a step.
enum End {
    /// Bytes that were asked for behind it.
    Bytes(Vec<u8>),
    /// A token's router has given something that is no number.
    Broken(usize),
    /// A record cannot be had.
    Failed,
}

/// A step whose layers all are recorded.
pub(super) struct Running<'a> {
    steps: &'a mut Steps,
    slots: &'a mut GpuSlots,
    routed: Routed<'a>,
    prefetch: Option<&'a mut Prefetch>,
    /// A record was written into a slot behind a piece that is on its way.
    written: bool,
    /// What is to be read behind the step.
    places: &'a Places<'a>,
    stopped: Option<Stopped>,
    requests: VecDeque<Request>,
    end: Option<End>,
    failure: Option<EngineError>,
}

impl<'a> Running<'a> {
    /// Goes on where recording left the step, or where it has failed.
    pub(super) fn begin(
        steps: &'a mut Steps,
        slots: &'a mut GpuSlots,
        routed: Routed<'a>,
        prefetch: Option<&'a mut Prefetch>,
        places: &'a Places<'a>,
    ) -> Result<Self, EngineError> {
        let (requests, stopped) = (VecDeque::new(), None);
        let (end, failure, written) = (None, None, false);
        let mut this = Self {
            steps,
            slots,
            routed,
            prefetch,
            written,
            places,
            stopped,
            requests,
            end,
            failure,
        };
        match this.steps.miss.take() {
            Some(miss) => this.stop(miss)?,
            None => this.hand_over()?,
        }
        Ok(this)
    }

    /// Records the next step while this one runs, where nothing of it can be missing.
    pub(super) fn record_ahead(&mut self) -> Result<(), EngineError> {
        match self.steps.flying.back() {
            Some(piece) if piece.last => Ok(self.slots.gpu.record_ahead(&piece.ask)?),
            _ => Ok(()),
        }
    }

    /// Bytes that were asked for behind the step.
    ///
    /// # Errors
    /// The token whose router has given something that is no number.
    pub(super) fn end(mut self) -> Result<Vec<u8>, usize> {
        // A layer that could not be served is served when the step is asked for again, all of its experts.
        self.steps.miss = self.stopped.take().map(|it| Miss { begun: false, ..it.miss });
        match self.end {
            Some(End::Broken(token)) => Err(token),
            Some(End::Bytes(bytes)) => Ok(bytes),
            Some(End::Failed) | None => Ok(Vec::new()),
        }
    }

    /// Hands over as many pieces as may be on their way.
    fn hand_over(&mut self) -> Result<(), EngineError> {
        self.slots.write_table()?;
        let (steps, gpu, ids) = (&mut *self.steps, &mut self.slots.gpu, &self.routed.buffers.ids);
        let taped = gpu.taped();
        loop {
            let full = steps.handed.is_some() && steps.flying.len() > steps.ahead();
            if full || steps.flying.back().is_some_and(|piece| piece.last) {
                return Ok(());
            }
            let all = steps.layers.end;
            let end = (steps.first + steps.length).min(all);
            let handed = steps.handed.unwrap_or(taped);
            let last = handed == taped || end == all && steps.ahead() > 0;
            let to = match last || steps.first == all {
                true => taped,
                false => steps.routed[end - 1 - steps.layers.start],
            };
            if handed < to {
                gpu.replay(handed..to)?;
                steps.handed = Some(to);
            }
            let (end, behind) = match to == taped {
                true => (all, Some(self.places)),
                false => (end, None),
            };
            // What is on its way already has not seen it.
            self.written &= !steps.flying.is_empty();
            steps.hand_over(gpu, ids, end, (self.prefetch.as_deref(), behind))?;
        }
    }

    /// A layer has missed an expert: runs those that have slots, unless they have, and asks for the others.
    fn stop(&mut self, miss: Miss) -> Result<(), EngineError> {
        let (slots, layer) = (&mut *self.slots, miss.layer);
        let work = Assignments::new(&miss.chosen, self.routed.experts);
        let (there, waiting) = work.parted(slots, layer);
        slots.gpu.write_words(&self.routed.buffers.order, 0, &work.order)?;
        slots.note_used(layer, &miss.chosen);
        // What was written after the layer had been handed over has a slot, and has not run.
        if !miss.begun || std::mem::take(&mut self.written) {
            self.routed.run_members(slots, layer, &work, &there)?;
        }
        slots.begin_group();
        // Guesses first: what is copied for them is there before the next layer is handed over.
        let next = layer.index() + 1;
        if let Some(prefetch) = &mut self.prefetch {
            let wanted = prefetch.rank(next, &miss.guess).into_iter();
            self.requests.extend(wanted.map(|key| Request { key, prefetched: true }));
        }
        let key = |&member: &usize| slots.key(layer, ExpertId(work.experts[member] as u16));
        let asked = waiting.iter().map(|member| Request { key: key(member), prefetched: false });
        self.requests.extend(asked);
        let group = Vec::with_capacity(waiting.len());
        self.stopped = Some(Stopped { miss, work, waiting, group });
        if self.stopped.as_ref().is_some_and(|it| it.waiting.is_empty()) {
            return self.go_on();
        }
        Ok(())
    }

    /// A record has been found that a layer waits for.
    fn land(&mut self, key: u32, Found { address, held }: Found<'_>) -> Result<(), EngineError> {
        let (slots, routed) = (&mut *self.slots, self.routed);
        let Some(Stopped { miss, work, waiting, group }) = &mut self.stopped else {
            return self.put_ahead(key, held);
        };
        let of = |member: usize| slots.key(miss.layer, ExpertId(work.experts[member] as u16));
        let Some(place) = waiting.iter().position(|&member| of(member) == key) else {
            return self.put_ahead(key, held);
        };
        if slots.reads_in_place() {
            slots.read_there(key, address);
        } else if !slots.put(key, held)? {
            routed.run_members(slots, miss.layer, work, group)?;
            group.clear();
            slots.begin_group();
            slots.put(key, held)?;
        }
        group.push(waiting.swap_remove(place));
        if waiting.is_empty() { self.go_on() } else { Ok(()) }
    }

    /// A record that no layer has asked for yet goes to a scratch slot, if one is free for it.
    fn put_ahead(&mut self, key: u32, held: &Held) -> Result<(), EngineError> {
        if !self.slots.has(key) && self.slots.put(key, held)? {
            self.written = true;
        }
        Ok(())
    }

    /// All records of the layer are there: runs it, and what was recorded behind it.
    fn go_on(&mut self) -> Result<(), EngineError> {
        let Some(Stopped { miss, work, group, .. }) = self.stopped.take() else { return Ok(()) };
        let layer = miss.layer;
        self.routed.run_members(self.slots, layer, &work, &group)?;
        self.slots.gpu.clear_control();
        self.steps.missed += 1;
        self.steps.first = layer.index() + 1;
        self.steps.handed = Some(self.steps.combined[self.steps.place(layer)]);
        self.steps.chosen[layer.index()] = miss.chosen;
        self.hand_over()
    }

    /// Looks at the oldest piece on its way. True when the step has ended.
    fn look(&mut self) -> Result<bool, EngineError> {
        if self.end.is_some() || self.stopped.is_some() {
            return Ok(self.end.is_some());
        }
        let Some(piece) = self.steps.flying.front() else { return Ok(true) };
        if !self.slots.gpu.has_arrived(&piece.ask)? {
            return Ok(false);
        }
        match self.steps.take_piece(&mut self.slots.gpu)? {
            Arrived::Computed(next, guess) => {
                if let Some(prefetch) = &mut self.prefetch {
                    let wanted = prefetch.rank(next, &guess).into_iter();
                    self.requests.extend(wanted.map(|key| Request { key, prefetched: true }));
                }
                if self.steps.handed.is_some() {
                    self.hand_over()?;
                }
            }
            Arrived::Ended(bytes) => self.end = Some(End::Bytes(bytes)),
            Arrived::Broken(token) => self.end = Some(End::Broken(token)),
            Arrived::Missed(miss) => self.stop(miss)?,
        }
        Ok(self.end.is_some())
    }
}

impl RunningStep for Running<'_> {
    fn take_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    fn copy_ahead(&mut self, _layer: LayerId, key: u32, held: &Held) {
        if self.slots.has(key) {
            return;
        }
        match self.put_ahead(key, held) {
            Err(error) => {
                self.failure.get_or_insert(error);
            }
            Ok(()) if self.slots.has(key) => {
                if let Some(prefetch) = &mut self.prefetch {
                    prefetch.note_copied(key);
                }
            }
            Ok(()) => {}
        }
    }

    fn answer(&mut self, key: u32, found: Option<Found<'_>>) {
        match found {
            None => self.end = Some(End::Failed),
            Some(found) => {
                if let Err(error) = self.land(key, found) {
                    self.failure.get_or_insert(error);
                }
            }
        }
    }

    fn is_done(&mut self) -> Result<bool, EngineError> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => self.look(),
        }
    }

    /// While nothing is read, waits for the device: once where all has been handed over, since pieces behind a miss are
    /// empty.
    fn rest(&mut self, reading: bool) -> Result<(), EngineError> {
        let flying = &self.steps.flying;
        match flying.back().filter(|piece| piece.last).or(flying.front()) {
            Some(piece) if !reading && self.stopped.is_none() => {
                Ok(self.slots.gpu.wait_for(&piece.ask)?)
            }
            _ => {
                std::thread::yield_now();
                Ok(())
            }
        }
    }
}

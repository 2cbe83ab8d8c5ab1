//! Serving what a running step asks for: records that are neither in device memory nor in the host tier.
//!
//! The device posts the key of each missing record and goes on with what it has; blocks that need the record wait for
//! its answer. The engine's thread runs one loop of events until the step is done: a read is started for every request
//! the moment it appears (the store's I/O threads read into pinned slots); when it has ended, the step is told at which
//! address the device can read the record over the bus, and the record is held from then on.

use store::StoreError;
use store::cache::{ExpertStore, Held, Phase, Visit};

use super::misses::MissService;
use super::moves::Tiers;
use super::placement::Placement;
use super::port::{Found, Request, RunningStep};
use crate::EngineError;

/// Prefetched reads in flight. As many records of megabytes keep a drive busy; each more would delay the next one that
/// the step waits for.
pub(super) const PREFETCH_AT_ONCE: usize = 4;

/// What happens while a step runs.
enum Event<'s> {
    /// The step asks for a record.
    Requested(Request),
    /// A read has ended.
    Landed(Fetch<'s>),
    /// Nothing has happened in a whole turn.
    Idle,
    /// The step has ended, and no read that it waited for is under way.
    Ended,
}

/// Where [`Serving::next`] looks for the next event. Its order is fixed: all requests, then the reads that have ended,
/// then the step's end.
#[derive(Clone, Copy)]
enum Look {
    Requests,
    /// At the read of this index.
    Reads(usize),
    End,
}

/// A record on its way.
struct Fetch<'s> {
    key: u32,
    visit: Visit<'s>,
    /// The step waits for it.
    demanded: bool,
    prefetched: bool,
    /// It was prefetched and has to be read: the store did not have it.
    counted: bool,
}

/// A step that is being served.
pub(super) struct Serving<'s> {
    step: &'s mut dyn RunningStep,
    service: &'s mut MissService,
    store: &'s ExpertStore,
    placement: &'s mut Placement<Held>,
    bases: &'s [u64],
    /// Keys that the step was answered.
    answered: &'s mut Vec<u32>,
    fetching: Vec<Fetch<'s>>,
    look: Look,
    /// Nothing has happened since the last turn began.
    idle: bool,
    /// Reads that had ended when those being waited for were last looked at.
    looked: Option<u64>,
    failure: Option<EngineError>,
    misses: usize,
}

/// Serves the running step of a residency.
pub(crate) struct StepServer<'a> {
    pub(super) service: &'a mut MissService,
    pub(super) tiers: Tiers<'a>,
    pub(super) answered: &'a mut Vec<u32>,
}

impl StepServer<'_> {
    /// Serves a step until it has ended. Gives the number of records that had to be fetched because it waited.
    ///
    /// # Errors
    /// The first record that could not be read, once the step has ended; a device that failed.
    pub(crate) fn serve(mut self, step: &mut dyn RunningStep) -> Result<usize, EngineError> {
        self.answered.clear();
        self.service.serve(step, &mut self.tiers, self.answered)
    }
}

impl<'s> Serving<'s> {
    /// Nothing is under way yet.
    pub(super) fn new(
        step: &'s mut dyn RunningStep,
        service: &'s mut MissService,
        tiers: &'s mut Tiers<'_>,
        answered: &'s mut Vec<u32>,
    ) -> Self {
        Self {
            step,
            service,
            store: tiers.store,
            placement: tiers.placement,
            bases: tiers.bases,
            answered,
            fetching: Vec::new(),
            look: Look::Requests,
            idle: true,
            looked: None,
            failure: None,
            misses: 0,
        }
    }

    /// Serves the step until it has ended. Gives the number of records that had to be fetched because the step waited,
    /// and the first failure of one.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn run(mut self) -> Result<(usize, Option<EngineError>), EngineError> {
        loop {
            match self.next()? {
                Event::Requested(request) => self.requested(request),
                Event::Landed(fetch) => self.landed(fetch),
                Event::Idle => {
                    let reading = self.fetching.iter().any(|fetch| fetch.demanded);
                    self.step.rest(reading)?;
                }
                Event::Ended => break,
            }
        }
        // What was prefetched too late is still in the ring, and would be taken for requests of the next step.
        while self.step.take_request().is_some() {}
        for fetch in self.fetching.drain(..) {
            // The store withdraws what has not begun of a visit that was given up.
            let _ = fetch.visit.wait_while(0, &|| false);
        }
        Ok((self.misses, self.failure))
    }

    /// The next event. Between requests and ended reads, listed reads begin as far as there is room.
    fn next(&mut self) -> Result<Event<'s>, EngineError> {
        loop {
            match self.look {
                Look::Requests => {
                    if let Some(request) = self.step.take_request() {
                        self.idle = false;
                        return Ok(Event::Requested(request));
                    }
                    self.read_prefetched();
                    // Taken before the look: what ends during it is looked for again.
                    let ended = Some(self.store.ended_reads());
                    let news = std::mem::replace(&mut self.looked, ended) != ended;
                    self.look = if news { Look::Reads(0) } else { Look::End };
                }
                Look::Reads(index) => match self.fetching.get(index) {
                    Some(fetch) if fetch.visit.is_ready(0) => {
                        self.idle = false;
                        return Ok(Event::Landed(self.fetching.swap_remove(index)));
                    }
                    Some(_) => self.look = Look::Reads(index + 1),
                    None => self.look = Look::End,
                },
                Look::End => {
                    self.look = Look::Requests;
                    let waits = self.fetching.iter().any(|fetch| fetch.demanded);
                    if !waits && self.step.is_done()? {
                        return Ok(Event::Ended);
                    }
                    if std::mem::replace(&mut self.idle, true) {
                        return Ok(Event::Idle);
                    }
                }
            }
        }
    }

    /// The step asks for a record, or guesses that it will.
    fn requested(&mut self, Request { key, prefetched }: Request) {
        let layer = self.placement.record(key).0;
        self.service.prefetched.note_progress(layer, prefetched);
        match self.placement.host_hold(key) {
            Some(held) if prefetched => self.step.copy_ahead(layer, key, held),
            None if prefetched => self.service.prefetched.list(layer, key),
            _ => self.demand(key),
        }
    }

    /// Tells the step where a record is; `None` when it cannot be had.
    fn answer(&mut self, key: u32, address: Option<u64>) {
        let found = address.zip(self.placement.host_hold(key));
        self.step.answer(key, found.map(|(address, held)| Found { address, held }));
        self.answered.push(key);
    }

    /// The step waits for a record.
    fn demand(&mut self, key: u32) {
        if let Some(address) = self.placement.host_address(key) {
            if !self.answered.contains(&key) {
                // It was there when the step began: no visit has told the policy of this use.
                self.service.in_host.push(key);
            }
            self.service.prefetched.note_use(key);
            self.answer(key, Some(address));
        } else if let Some(fetch) = self.fetching.iter_mut().find(|fetch| fetch.key == key) {
            let first = !std::mem::replace(&mut fetch.demanded, true);
            self.service.prefetched.used += u64::from(first && fetch.counted);
        } else {
            self.fetch(key);
        }
    }

    /// Begins to read a record that the step waits for.
    fn fetch(&mut self, key: u32) {
        let (layer, expert) = self.placement.record(key);
        let pool = self.placement.pool(layer);
        let slots = self.service.slots[pool];
        if self.taken(pool) >= slots {
            self.service.give_back(self.store, self.placement, 1, pool, layer.0);
        }
        if self.taken(pool) >= slots {
            // What the step may still read holds them all: no slot becomes free before the step has ended.
            self.refuse(key, StoreError::Exhausted { layer, slots });
            return;
        }
        match self.store.visit(layer, &[expert], Phase::Decode) {
            Ok(visit) => {
                let (demanded, prefetched, counted) = (true, false, false);
                self.fetching.push(Fetch { key, visit, demanded, prefetched, counted });
                self.looked = None;
            }
            Err(error) => self.refuse(key, error),
        }
        self.misses += 1;
    }

    /// A record that the step waits for cannot be had.
    fn refuse(&mut self, key: u32, error: StoreError) {
        self.answer(key, None);
        self.failure.get_or_insert(error.into());
    }

    /// Begins to read what is listed while the step waits for nothing.
    fn read_prefetched(&mut self) {
        if self.service.prefetched.listed.is_empty()
            || self.fetching.iter().any(|fetch| fetch.demanded)
        {
            return;
        }
        while self.fetching.len() < PREFETCH_AT_ONCE
            && let Some(key) = self.service.prefetched.listed.pop_front()
        {
            let known = self.fetching.iter().any(|fetch| fetch.key == key);
            if known || self.placement.in_host(key) {
                continue;
            }
            self.service.prefetched.wanted += 1;
            let (layer, expert) = self.placement.record(key);
            let pool = self.placement.pool(layer);
            // All that a layer may ask for finds room without this slot, which cannot be given back before its
            // own layer has passed.
            if self.taken(pool) + self.service.minimum >= self.service.slots[pool] {
                continue;
            }
            // A visit that is refused is refused again, with a reason, to the demand.
            if let Ok(visit) = self.store.visit(layer, &[expert], Phase::Decode) {
                let (demanded, prefetched, counted) = (false, true, !visit.is_hit(0));
                self.service.prefetched.read += u64::from(counted);
                self.fetching.push(Fetch { key, visit, demanded, prefetched, counted });
                self.looked = None;
            }
        }
    }

    /// A read has ended.
    fn landed(&mut self, fetch: Fetch<'_>) {
        let Fetch { key, visit, demanded, prefetched, counted } = fetch;
        let (layer, expert) = self.placement.record(key);
        let held = visit.wait(0).map(|_| self.store.hold(layer, expert));
        match held {
            Ok(Some(held)) => {
                let address = self.bases[held.arena()] + held.offset() as u64;
                self.placement.add_host(key, address, held);
                self.answer(key, Some(address));
                if counted && !demanded {
                    self.service.prefetched.landed.push(key);
                }
            }
            Ok(None) => unreachable!("the visit keeps the record in its slot"),
            Err(_) if prefetched => {
                // The slot that failed is free only after the visit.
                drop(visit);
                if demanded {
                    self.fetch(key);
                }
            }
            Err(error) => self.refuse(key, error),
        }
    }

    /// Slots of a pool that cannot take another record.
    fn taken(&self, pool: usize) -> usize {
        let same =
            |fetch: &&Fetch<'_>| self.placement.pool(self.placement.record(fetch.key).0) == pool;
        self.placement.host_slots(pool) + self.fetching.iter().filter(same).count()
    }
}

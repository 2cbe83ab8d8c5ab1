//! A visit: the experts of one layer that one step needs, held in place while it uses them.
//!
//! A member is assigned a slot (resident, or its read issued) or still unassigned, when the visit has
//! more members than slots: then it is assigned as earlier members are released, a wave at a time.
//! A caller that follows [`Visit::order`] never waits for itself. One that does not may leave the
//! visit without a slot to read into; then a later member gives its slot up and is read again.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::arena::SlotReader;
use crate::cache::error::StoreError;
use crate::cache::members::{Member, MemberId, Scratch, VisitState};
use crate::cache::options::Phase;
use crate::cache::shared::State;
use crate::cache::state::{Load, Purpose};
use crate::cache::store::{ExpertStore, Source};
use crate::format::Projection;
use crate::record::{PIECES, Piece, RecordPlan, piece_index};
use crate::timeline;
use crate::{ExpertId, LayerId, RecordKey, SlotId};

/// How often a sleeper asks whether its visit is still wanted.
const WANTED_INTERVAL: Duration = Duration::from_millis(20);

/// Experts of a layer in use. Dropping it releases all members, also those still being read.
pub struct Visit<'s> {
    store: &'s ExpertStore,
    records: &'s [RecordPlan],
    layer: LayerId,
    phase: Phase,
    id: usize,
    experts: Scratch,
}

/// The bytes of one expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBytes<'a> {
    pieces: [&'a [u8]; PIECES],
}

impl ExpertStore {
    /// Begins to use `experts` (ascending, distinct) of a layer: resident ones are pinned, all
    /// missing reads are issued at once as far as slots allow, the rest as members are released.
    pub fn visit<'s>(
        &'s self,
        layer: LayerId,
        experts: &[ExpertId],
        phase: Phase,
    ) -> Result<Visit<'s>, StoreError> {
        let records = self.shared.records(layer)?;
        if !experts.is_sorted_by(|a, b| a < b) {
            return Err(StoreError::Visit {
                layer,
                what: "experts are not ascending and distinct",
            });
        }
        if experts.last().is_some_and(|expert| expert.index() >= records.len()) {
            return Err(StoreError::Visit { layer, what: "no such expert" });
        }
        if let Source::Mapped(mapped) = &self.source {
            mapped.begin(layer, experts)?;
        }
        self.shared.whole()?;
        Ok(Visit::begin(self, layer, experts, phase))
    }
}

impl<'s> Visit<'s> {
    /// Looks up all experts, pins those found, then issues the reads of the others.
    pub(super) fn begin(
        store: &'s ExpertStore,
        layer: LayerId,
        experts: &[ExpertId],
        phase: Phase,
    ) -> Self {
        let records = store.shared.records(layer).unwrap_or_default();
        let mut guard = store.shared.lock();
        let state = &mut *guard;
        let mut scratch = state.spare.pop().unwrap_or_else(|| Scratch::with_capacity(0));
        scratch.ids.extend_from_slice(experts);
        scratch.leases.extend((0..experts.len()).map(|_| OnceLock::new()));
        let id = match state.visits.iter().position(|visit| !visit.active) {
            Some(id) => id,
            None => {
                state.visits.push(VisitState::with_capacity(experts.len()));
                state.visits.len() - 1
            }
        };
        if phase == Phase::Decode {
            state.residency.step(layer);
        }
        state.visits[id].begin(experts, phase);
        let counters = state.counters.phase_mut(phase);
        counters.visits += 1;
        counters.requests += experts.len() as u64;
        if store.mapped().is_some() {
            // Everything is in its place; who is resident only the system knows.
            state.visits[id].unassigned = 0;
            scratch.hits.resize(experts.len(), false);
            scratch.order.extend(0..experts.len());
            drop(guard);
            return Self { store, records, layer, phase, id, experts: scratch };
        }
        for (member, &expert) in experts.iter().enumerate() {
            let key = state.residency.key(layer, expert);
            if phase != Phase::Prefill {
                state.residency.touch(key);
            }
            let found = Seating { store, state, layer, id }.join(MemberId(member));
            let hit = found == Some(Load::Ready);
            scratch.hits.push(hit);
            let counters = state.counters.phase_mut(phase);
            match found {
                Some(Load::Ready) => counters.hits += 1,
                Some(_) => counters.joined += 1,
                None => counters.misses += 1,
            }
        }
        if phase != Phase::Decode {
            // What was read ahead for this visit and is not in it is not used.
            state.counters.ahead_wasted += state.residency.forgo_ahead(layer);
        }
        Seating { store, state, layer, id }.assign();
        store.submit(state);
        drop(guard);
        scratch.order.extend((0..experts.len()).filter(|&member| scratch.hits[member]));
        scratch.order.extend((0..experts.len()).filter(|&member| !scratch.hits[member]));
        Self { store, records, layer, phase, id, experts: scratch }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.experts.hits.len()
    }

    /// True for a visit without members.
    pub fn is_empty(&self) -> bool {
        self.experts.hits.is_empty()
    }

    /// True when member `i` was resident when the visit began.
    pub fn is_hit(&self, i: usize) -> bool {
        self.experts.hits[i]
    }

    /// The members in the order in which they become available: resident ones first, then the
    /// others as their reads were issued.
    pub fn order(&self) -> &[usize] {
        &self.experts.order
    }

    /// True when [`wait`](Self::wait) for member `i` would not sleep. A member without a slot is given one if there is
    /// one by now, so that a caller that polls instead of waiting gets there as well.
    pub fn is_ready(&self, i: usize) -> bool {
        if self.store.mapped().is_some() {
            return true;
        }
        let mut guard = self.store.shared.lock();
        let state = &mut *guard;
        self.repeat(state, MemberId(i));
        if state.visits[self.id].member(MemberId(i)).slot == SlotId::NONE {
            self.seating(state).assign();
            self.store.submit(state);
        }
        let member = state.visits[self.id].member(MemberId(i));
        let load = |slot: SlotId| state.residency.slots[slot.index()].load;
        member.slot != SlotId::NONE && matches!(load(member.slot), Load::Ready | Load::Failed)
    }

    /// The bytes of member `i`; sleeps until they have arrived. They stay where they are until the
    /// member is released.
    ///
    /// # Errors
    /// The failure of its read; of one that was under way when the visit began, only if the record could not be read
    /// once more. [`StoreError::Visit`] for a released member; [`StoreError::Exhausted`]
    /// when concurrent visits hold all slots and all wait for more.
    pub fn wait(&self, i: usize) -> Result<ExpertBytes<'_>, StoreError> {
        self.obtain(i, None)
    }

    /// As [`wait`](Self::wait), as long as `wanted` says so; it is asked at once and every
    /// 20 ms of sleep, from under the store's lock. Once it says no, dropping the visit withdraws its reads
    /// that have not begun and that no other visit waits for.
    ///
    /// # Errors
    /// As `wait`, and [`StoreError::GivenUp`].
    pub fn wait_while(
        &self,
        i: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<ExpertBytes<'_>, StoreError> {
        self.obtain(i, Some(wanted))
    }

    fn obtain(
        &self,
        i: usize,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<ExpertBytes<'_>, StoreError> {
        if let Some(mapped) = self.store.mapped() {
            if wanted.is_some_and(|wanted| !wanted()) {
                return Err(StoreError::GivenUp);
            }
            return Ok(ExpertBytes { pieces: mapped.bytes(self.layer, self.experts.ids[i]) });
        }
        if self.experts.leases[i].get().is_none() {
            let lease = self.arrived(MemberId(i), wanted)?;
            // A second thread may have been faster; both leases are on the same slot.
            let _ = self.experts.leases[i].set(lease);
        }
        let Some(lease) = self.experts.leases[i].get() else {
            unreachable!("the lease of member {i} was set above");
        };
        let record = &self.records[self.experts.ids[i].index()];
        let bytes = lease.bytes();
        let pieces = record.places().map(|place| {
            &bytes[place.start as usize..place.start as usize + place.length as usize]
        });
        Ok(ExpertBytes { pieces })
    }

    /// Member `i` is done with: its slot may serve others, and later members of this visit.
    pub fn release(&mut self, i: usize) {
        if self.store.mapped().is_some() {
            return;
        }
        self.experts.leases[i] = OnceLock::new();
        let mut guard = self.store.shared.lock();
        let state = &mut *guard;
        let mut seating = self.seating(state);
        seating.release(MemberId(i));
        seating.assign();
        self.store.submit(state);
        drop(guard);
        self.store.shared.wake();
    }

    fn seating<'a>(&'a self, state: &'a mut State) -> Seating<'a> {
        Seating { store: self.store, state, layer: self.layer, id: self.id }
    }

    fn arrived(
        &self,
        id: MemberId,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<SlotReader, StoreError> {
        let shared = &self.store.shared;
        let mut state = shared.lock();
        let mut asleep: Option<Instant> = None;
        let mut failed: Option<StoreError> = None;
        let sleep = |state| match wanted {
            None => shared.sleep(state),
            Some(_) => shared.doze(state, WANTED_INTERVAL),
        };
        let result = loop {
            if let Err(error) = shared.whole() {
                break Err(error);
            }
            if wanted.is_some_and(|wanted| !wanted()) {
                state.visits[self.id].given_up = true;
                break Err(StoreError::GivenUp);
            }
            failed = self.repeat(&mut state, id).or(failed);
            let member = state.visits[self.id].member(id);
            if member.released {
                break Err(StoreError::Visit { layer: self.layer, what: "member was released" });
            }
            if member.slot == SlotId::NONE {
                if self.feed(&mut state, id) {
                    continue;
                }
                if self.is_exhausted(&state) {
                    let slots = shared.pool_slots(self.layer);
                    let exhausted = StoreError::Exhausted { layer: self.layer, slots };
                    break Err(failed.unwrap_or(exhausted));
                }
                state.starving += 1;
                asleep.get_or_insert_with(Instant::now);
                state = sleep(state);
                state.starving -= 1;
                continue;
            }
            let slot = &state.residency.slots[member.slot.index()];
            match slot.load {
                Load::Ready => {
                    let lease = shared.reader(member.slot, slot.pool);
                    state.visits[self.id].take(id);
                    break Ok(lease);
                }
                Load::Reading => {
                    asleep.get_or_insert_with(Instant::now);
                    state = sleep(state);
                }
                Load::Failed | Load::Empty => {
                    let unknown = StoreError::Visit { layer: self.layer, what: "slot was lost" };
                    break Err(slot.error.clone().unwrap_or(unknown));
                }
            }
        };
        if let Some(since) = asleep {
            let micros = since.elapsed().as_micros() as u64;
            state.counters.phase_mut(self.phase).stall_us += micros;
            let expert = self.experts.ids[id.0].index() as u64;
            let record = [("layer", self.layer.index() as u64), ("expert", expert), ("", 0)];
            timeline::past("wait for expert", since, record);
        }
        result
    }

    /// Whether no slot will come: some other visit has to give one up, unless all of them wait as well.
    fn is_exhausted(&self, state: &State) -> bool {
        let holds = |visit: &&VisitState| visit.active && visit.assigned > 0;
        let holders = state.visits.iter().filter(holds).count();
        let own = usize::from(state.visits[self.id].assigned > 0);
        holders - own <= state.starving && !self.reads_pending(state)
    }

    /// Begins the read of a member anew, if the one that it joined has failed: the failure of that one.
    fn repeat(&self, state: &mut State, id: MemberId) -> Option<StoreError> {
        let member = state.visits[self.id].member(id);
        if !member.joined || member.slot == SlotId::NONE {
            return None;
        }
        let slot = &state.residency.slots[member.slot.index()];
        if slot.load != Load::Failed {
            return None;
        }
        let failed = slot.error.clone();
        let mut seating = self.seating(state);
        seating.repeat(id);
        seating.assign_one(id, false);
        state.counters.retries += 1;
        self.store.submit(state);
        failed
    }

    /// Tries to get a slot for a member, at the price of a later member of this visit if need be.
    fn feed(&self, state: &mut State, id: MemberId) -> bool {
        let mut seating = self.seating(state);
        seating.assign();
        if seating.visit().member(id).slot == SlotId::NONE && !seating.assign_one(id, true) {
            let residency = &seating.state.residency;
            let idle = |member: &Member| {
                member.slot != SlotId::NONE
                    && !member.taken
                    && residency.slots[member.slot.index()].pins == 1
                    && residency.slots[member.slot.index()].load == Load::Ready
            };
            let Some(victim) = seating.state.visits[self.id].last(idle) else { return false };
            seating.give_up(victim);
            seating.assign_one(id, true);
        }
        self.store.submit(state);
        state.visits[self.id].member(id).slot != SlotId::NONE
    }

    /// True while some slot is being filled: when that is done it is free, or this visit can give it
    /// up, or the visit that holds it goes on.
    fn reads_pending(&self, state: &State) -> bool {
        state.residency.slots.iter().any(|slot| slot.load == Load::Reading && slot.pending > 0)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.experts.leases.clear();
        let mut state = self.store.shared.lock();
        if let Some(mapped) = self.store.mapped() {
            mapped.end(self.layer, &self.experts.ids);
        } else {
            for member in state.visits[self.id].ids() {
                self.seating(&mut state).release(member);
            }
        }
        if state.visits[self.id].given_up {
            self.store.withdraw(&mut state, |_, slot| !slot.ahead);
        }
        state.visits[self.id].active = false;
        let mut scratch = std::mem::replace(&mut self.experts, Scratch::with_capacity(0));
        scratch.ids.clear();
        scratch.hits.clear();
        scratch.order.clear();
        state.spare.push(scratch);
        drop(state);
        self.store.shared.wake();
    }
}

impl<'a> ExpertBytes<'a> {
    /// Packed values of a projection.
    pub fn weight(&self, projection: Projection) -> &'a [u8] {
        self.pieces[piece_index(projection, Piece::Weight)]
    }

    /// Scales of a projection; empty for a float encoding.
    pub fn scales(&self, projection: Projection) -> &'a [u8] {
        self.pieces[piece_index(projection, Piece::Scales)]
    }

    /// Biases of a projection; empty for a float encoding.
    pub fn biases(&self, projection: Projection) -> &'a [u8] {
        self.pieces[piece_index(projection, Piece::Biases)]
    }
}

/// One visit's members while the lock is held: what gives them slots and takes them back.
struct Seating<'a> {
    store: &'a ExpertStore,
    state: &'a mut State,
    layer: LayerId,
    /// The visit.
    id: usize,
}

impl Seating<'_> {
    fn visit(&mut self) -> &mut VisitState {
        &mut self.state.visits[self.id]
    }

    fn key(&mut self, member: MemberId) -> RecordKey {
        let expert = self.visit().member(member).expert;
        self.state.residency.key(self.layer, expert)
    }

    /// Pins the slot that holds a member's record, if one does. What the slot held then.
    fn join(&mut self, member: MemberId) -> Option<Load> {
        let key = self.key(member);
        let slot = self.state.residency.find(key)?;
        let load = self.state.residency.slots[slot.index()].load;
        let phase = self.visit().phase;
        if self.state.residency.pin(slot, phase) {
            self.state.counters.ahead_used += 1;
            if load == Load::Reading {
                self.store.promote(slot);
            }
        }
        self.visit().assign(member, slot, load == Load::Reading);
        Some(load)
    }

    /// Gives slots to unassigned members, in order, as far as there are any.
    fn assign(&mut self) {
        for member in self.visit().ids() {
            if self.visit().unassigned == 0 {
                return;
            }
            let candidate = self.visit().member(member);
            let waits = candidate.slot == SlotId::NONE && !candidate.released;
            if waits && !self.assign_one(member, false) {
                return;
            }
        }
    }

    /// Gives a slot to one member: what another visit has read meanwhile, or a new one. A visit that is
    /// `stuck` without it may take what is otherwise kept for decode.
    fn assign_one(&mut self, member: MemberId, stuck: bool) -> bool {
        if self.join(member).is_some() {
            return true;
        }
        let visit = self.visit();
        let (phase, expert) = (visit.phase, visit.member(member).expert);
        let purpose = match phase {
            Phase::Decode | Phase::Draft => Purpose::Decode,
            Phase::Prefill => Purpose::Prefill { starved: stuck || visit.assigned == 0 },
        };
        let shared = &self.store.shared;
        let Some(slot) = shared.start_read(self.state, self.layer, expert, purpose) else {
            return false;
        };
        self.state.residency.pin(slot, phase);
        self.visit().assign(member, slot, false);
        true
    }

    /// Takes the slot of a member away again; it will be read anew.
    fn give_up(&mut self, member: MemberId) {
        let slot = self.visit().take_away(member);
        self.state.residency.unpin(slot);
        self.state.counters.given_up += 1;
    }

    /// Takes a slot away whose read has failed; it is free once no other visit waits for it.
    fn repeat(&mut self, member: MemberId) {
        let slot = self.visit().repeat(member);
        self.state.residency.unpin(slot);
    }

    /// A member is done with.
    fn release(&mut self, member: MemberId) {
        if let Some(slot) = self.visit().release(member) {
            self.state.residency.unpin(slot);
        }
    }
}

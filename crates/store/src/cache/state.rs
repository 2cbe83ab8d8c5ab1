//! The bookkeeping of residency: which record is in which slot, who needs it, who gives way.
//!
//! No I/O and no locks here: the store drives it under its lock, the replay simulator without one, so
//! that simulated hit rates are those of the same code. A slot is free, being read, ready, or failed;
//! only ready slots that are not pinned are evictable, and they wait in one of four heaps of their pool:
//!
//! * `copies`: a device with memory of its own has the record as well; the most valuable first, because the
//!   device gives that one up last;
//! * `decode`: used by decode, coldest first by the policy;
//! * `prefill`: used by a prefill sweep, the newest first, because a sweep that comes round again finds
//!   what it left longest ago, where least-recently-used would find nothing;
//! * `ahead`: read ahead and not used yet, the furthest ahead first.
//!
//! Prefill recycles its own slots and takes from decode no more than its share of the pool.

use std::time::Instant;

use crate::cache::heap::SlotHeap;
use crate::cache::policy::{History, Moment, Policy};
use crate::cache::{Phase, StoreError};
use crate::{ExpertId, LayerId, RecordKey, SlotId};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Empty,
    Reading,
    Ready,
    Failed,
}

/// Whose use a slot serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Decode,
    Prefill,
}

/// What a slot is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A decode visit waits for it.
    Decode,
    /// A prefill visit wants it to read on; `starved` when it has no slot at all to work with.
    Prefill { starved: bool },
    /// Read-ahead.
    Ahead,
}

pub(crate) struct Slot {
    /// The record that it holds or is being filled with.
    pub(crate) key: RecordKey,
    pub(crate) pool: u32,
    pub(crate) load: Load,
    pub(crate) owner: Owner,
    /// Read ahead and not asked for yet.
    pub(crate) ahead: bool,
    pub(crate) pins: u32,
    /// Reads on their way.
    pub(crate) pending: u32,
    /// Some of its reads were withdrawn: the slot is free again when the others are done.
    pub(crate) abandoned: bool,
    pub(crate) since: Option<Instant>,
    pub(crate) error: Option<StoreError>,
}

struct Pool {
    /// Slots with nothing in them.
    free: Vec<SlotId>,
    copies: SlotHeap,
    decode: SlotHeap,
    prefill: SlotHeap,
    ahead: SlotHeap,
    prefill_owned: usize,
    prefill_limit: usize,
}

/// What [`Residency::claim`] found.
pub(crate) struct Claim {
    pub(crate) slot: SlotId,
    /// The evicted record, and whether it was prefetched and never used.
    pub(crate) evicted: Option<(RecordKey, bool)>,
}

/// Who is where.
pub(crate) struct Residency {
    pub(crate) slots: Vec<Slot>,
    pools: Vec<Pool>,
    /// Slot of each key.
    table: Vec<SlotId>,
    history: Vec<History>,
    /// By key: a device with memory of its own has the record.
    on_device: Vec<bool>,
    policy: Box<dyn Policy>,
    /// False in page-cache mode: nothing stays after its visit.
    retain: bool,
    sequence: u64,
    /// Decode visits of each layer.
    steps: Vec<u64>,
    experts: usize,
}

impl Residency {
    /// `pools`: slots of each pool; `minimum` of them must be available to a prefill, which may hold one part in
    /// `prefill_part` of a pool beyond what is free anyway.
    pub(crate) fn new(
        layers: usize,
        experts: usize,
        pools: &[usize],
        minimum: usize,
        prefill_part: usize,
        policy: Box<dyn Policy>,
        retain: bool,
    ) -> Self {
        let total: usize = pools.iter().sum();
        let mut slots = Vec::with_capacity(total);
        let mut built = Vec::with_capacity(pools.len());
        for (index, &count) in pools.iter().enumerate() {
            let first = slots.len() as u32;
            slots.extend((0..count).map(|_| Slot::new(index as u32)));
            built.push(Pool {
                // Popped from the end: slots fill in ascending order.
                free: (first..slots.len() as u32).rev().map(SlotId).collect(),
                copies: SlotHeap::new(total),
                decode: SlotHeap::new(total),
                prefill: SlotHeap::new(total),
                ahead: SlotHeap::new(total),
                prefill_owned: 0,
                prefill_limit: (count / prefill_part.max(1)).max(minimum),
            });
        }
        Self {
            slots,
            pools: built,
            table: vec![SlotId::NONE; layers * experts],
            history: vec![History::default(); layers * experts],
            on_device: vec![false; layers * experts],
            policy,
            retain,
            sequence: 0,
            steps: vec![0; layers],
            experts,
        }
    }

    /// The key of an expert.
    pub(crate) fn key(&self, layer: LayerId, expert: ExpertId) -> RecordKey {
        RecordKey::new(layer, expert, self.experts)
    }

    /// Layer and expert of a key.
    pub(crate) fn record(&self, key: RecordKey) -> (LayerId, ExpertId) {
        key.record(self.experts)
    }

    /// The slot that holds a key or is being filled with it.
    pub(crate) fn find(&self, key: RecordKey) -> Option<SlotId> {
        let slot = self.table[key.index()];
        (slot != SlotId::NONE).then_some(slot)
    }

    /// A decode visit of a layer begins.
    pub(crate) fn step(&mut self, layer: LayerId) {
        self.steps[layer.index()] += 1;
    }

    /// An expert is used by decode.
    pub(crate) fn touch(&mut self, key: RecordKey) {
        self.sequence += 1;
        let step = self.steps[self.record(key).0.index()];
        let now = Moment { sequence: self.sequence, step };
        self.policy.touch(&mut self.history[key.index()], now);
    }

    /// How much a record is worth by the policy.
    pub(crate) fn score(&self, key: RecordKey) -> f64 {
        self.policy.score(&self.history[key.index()])
    }

    /// Keeps a slot where it is, for a visit of `phase`. True when it had been read ahead and is
    /// used for the first time.
    pub(crate) fn pin(&mut self, slot: SlotId, phase: Phase) -> bool {
        self.shelter(slot);
        let entry = &mut self.slots[slot.index()];
        let pool = &mut self.pools[entry.pool as usize];
        if phase != Phase::Prefill && entry.owner == Owner::Prefill {
            entry.owner = Owner::Decode;
            pool.prefill_owned -= 1;
        }
        std::mem::take(&mut entry.ahead)
    }

    /// Keeps a slot where it is, which is no use of its record.
    pub(crate) fn shelter(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        if entry.pins == 0 && entry.load == Load::Ready {
            let found = self.pools[entry.pool as usize].remove(slot);
            debug_assert!(found, "a ready slot without pins is in a heap");
        }
        entry.pins += 1;
    }

    /// True when records stay after the visits that used them.
    pub(crate) fn retains(&self) -> bool {
        self.retain
    }

    /// What was read ahead for a layer and is not pinned becomes ordinary prefill data, the first to
    /// go. Gives the number of such records.
    ///
    /// Left as read-ahead they would fill the share of prefill for good: decode evicts them last, and
    /// no later visit would be told that they are unwanted.
    pub(crate) fn forgo_ahead(&mut self, layer: LayerId) -> u64 {
        let mut count = 0;
        for expert in 0..self.experts {
            let key = self.key(layer, ExpertId(expert as u16));
            let Some(slot) = self.find(key) else { continue };
            let entry = &mut self.slots[slot.index()];
            if entry.ahead && entry.pins == 0 {
                entry.ahead = false;
                count += 1;
                let pool = &mut self.pools[entry.pool as usize];
                if pool.ahead.remove(slot) {
                    self.settle(slot);
                }
            }
        }
        count
    }

    /// A device with memory of its own has a record from now on, or no longer.
    pub(crate) fn mark_on_device(&mut self, key: RecordKey, on_device: bool) {
        if std::mem::replace(&mut self.on_device[key.index()], on_device) == on_device {
            return;
        }
        let Some(slot) = self.find(key) else { return };
        if self.pools[self.slots[slot.index()].pool as usize].remove(slot) {
            self.settle(slot);
        }
    }

    /// Records that are evictable here and on a device as well.
    pub(crate) fn evictable_copies(&self) -> usize {
        self.pools.iter().map(|pool| pool.copies.len()).sum()
    }

    /// Gives up one pin.
    pub(crate) fn unpin(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        debug_assert!(entry.pins > 0, "only what is pinned is unpinned");
        entry.pins -= 1;
        if entry.pins == 0 {
            self.settle(slot);
        }
    }

    /// All reads of a slot are done; `error` when one of them failed.
    pub(crate) fn publish(&mut self, slot: SlotId, error: Option<StoreError>) {
        let entry = &mut self.slots[slot.index()];
        debug_assert!(entry.load == Load::Reading && entry.pending == 0);
        if error.is_some() {
            // Later visits shall read anew; those that wait for this slot learn why it failed.
            self.table[entry.key.index()] = SlotId::NONE;
            entry.load = Load::Failed;
        } else {
            entry.load = Load::Ready;
        }
        entry.error = error;
        if entry.pins == 0 {
            self.settle(slot);
        }
    }

    /// A read of a slot without waiters was withdrawn before it began: a visit that wants the record from now on
    /// reads it anew, into another slot.
    pub(crate) fn withdraw_read(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        debug_assert!(entry.load == Load::Reading && entry.pins == 0 && entry.pending > 0);
        entry.pending -= 1;
        if !std::mem::replace(&mut entry.abandoned, true) {
            self.table[entry.key.index()] = SlotId::NONE;
        }
    }

    /// The reads of an abandoned slot are done or withdrawn.
    pub(crate) fn discard(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        debug_assert!(entry.abandoned && entry.pending == 0 && entry.pins == 0);
        entry.abandoned = false;
        entry.since = None;
        entry.load = Load::Failed;
        self.settle(slot);
    }

    /// Takes a slot for `key`, evicting what is worth least. The slot is then `Reading`, unpinned.
    pub(crate) fn claim(&mut self, pool: usize, key: RecordKey, purpose: Purpose) -> Option<Claim> {
        let slot = self.pools[pool].choose(purpose)?;
        let entry = &mut self.slots[slot.index()];
        let mut evicted = None;
        if entry.load == Load::Ready {
            self.table[entry.key.index()] = SlotId::NONE;
            evicted = Some((entry.key, entry.ahead));
            if entry.owner == Owner::Prefill {
                self.pools[pool].prefill_owned -= 1;
            }
        }
        let entry = &mut self.slots[slot.index()];
        entry.key = key;
        entry.load = Load::Reading;
        entry.ahead = purpose == Purpose::Ahead;
        entry.owner = if purpose == Purpose::Decode { Owner::Decode } else { Owner::Prefill };
        if entry.owner == Owner::Prefill {
            self.pools[pool].prefill_owned += 1;
        }
        self.table[key.index()] = slot;
        Some(Claim { slot, evicted })
    }

    /// Takes a slot for a record that the caller will write into it. It is found only when it is published.
    pub(crate) fn claim_admission(&mut self, pool: usize, key: RecordKey) -> Option<Claim> {
        let claim = self.claim(pool, key, Purpose::Decode)?;
        self.table[key.index()] = SlotId::NONE;
        Some(claim)
    }

    /// The record is written. False when another slot has it or is being filled with it: then this one is free.
    pub(crate) fn publish_admission(&mut self, slot: SlotId) -> bool {
        let key = self.slots[slot.index()].key.index();
        if self.table[key] != SlotId::NONE {
            self.give_up_admission(slot);
            return false;
        }
        self.table[key] = slot;
        self.publish(slot, None);
        true
    }

    /// The record will not be written.
    pub(crate) fn give_up_admission(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        debug_assert!(entry.load == Load::Reading && entry.pending == 0 && entry.pins == 0);
        entry.load = Load::Failed;
        self.settle(slot);
    }

    /// A slot without pins goes where the next claim can find it.
    fn settle(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.index()];
        let pool = &mut self.pools[entry.pool as usize];
        match entry.load {
            Load::Reading => {}
            Load::Ready if self.retain => {
                self.sequence += 1;
                let newest_first = -(self.sequence as f64);
                let score = self.policy.score(&self.history[entry.key.index()]);
                match entry.owner {
                    _ if self.on_device[entry.key.index()] => pool.copies.insert(slot, -score),
                    _ if entry.ahead => pool.ahead.insert(slot, newest_first),
                    Owner::Prefill => pool.prefill.insert(slot, newest_first),
                    Owner::Decode => pool.decode.insert(slot, score),
                }
            }
            Load::Ready | Load::Failed | Load::Empty => {
                if entry.load == Load::Ready {
                    self.table[entry.key.index()] = SlotId::NONE;
                }
                if entry.owner == Owner::Prefill {
                    pool.prefill_owned -= 1;
                }
                entry.owner = Owner::Decode;
                entry.key = RecordKey::NONE;
                entry.load = Load::Empty;
                entry.error = None;
                entry.ahead = false;
                pool.free.push(slot);
            }
        }
    }
}

impl Slot {
    fn new(pool: u32) -> Self {
        Self {
            key: RecordKey::NONE,
            pool,
            load: Load::Empty,
            owner: Owner::Decode,
            ahead: false,
            pins: 0,
            pending: 0,
            abandoned: false,
            since: None,
            error: None,
        }
    }
}

impl Pool {
    /// Takes a slot out of the heap that it is in, if it is in one.
    fn remove(&mut self, slot: SlotId) -> bool {
        let Self { copies, decode, prefill, ahead, .. } = self;
        [decode, prefill, ahead, copies].into_iter().any(|heap| heap.remove(slot))
    }

    /// The slot that is worth least for this purpose, taken out of its list.
    fn choose(&mut self, purpose: Purpose) -> Option<SlotId> {
        let within_share = self.prefill_owned < self.prefill_limit;
        let idle = self.free.pop().or_else(|| self.copies.pop()).or_else(|| self.prefill.pop());
        if idle.is_some() {
            return idle;
        }
        match purpose {
            Purpose::Decode => self.decode.pop().or_else(|| self.ahead.pop()),
            Purpose::Ahead if within_share => self.decode.pop(),
            Purpose::Ahead => None,
            Purpose::Prefill { starved } => {
                if within_share && let Some(slot) = self.decode.pop() {
                    return Some(slot);
                }
                if starved { self.ahead.pop().or_else(|| self.decode.pop()) } else { None }
            }
        }
    }
}

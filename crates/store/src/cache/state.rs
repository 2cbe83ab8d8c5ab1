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
use crate::{ExpertId, LayerId, RecordKey};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

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
    free: Vec<u32>,
    copies: SlotHeap,
    decode: SlotHeap,
    prefill: SlotHeap,
    ahead: SlotHeap,
    prefill_owned: usize,
    prefill_limit: usize,
}

/// What [`Residency::claim`] found.
pub(crate) struct Claim {
    pub(crate) slot: u32,
    /// The evicted record, and whether it was prefetched and never used.
    pub(crate) evicted: Option<(RecordKey, bool)>,
}

/// Who is where.
pub(crate) struct Residency {
    pub(crate) slots: Vec<Slot>,
    pools: Vec<Pool>,
    /// Slot of each key.
    table: Vec<u32>,
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
                free: (first..slots.len() as u32).rev().collect(),
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
            table: vec![NONE; layers * experts],
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
    pub(crate) fn find(&self, key: RecordKey) -> Option<u32> {
        let slot = self.table[key.index()];
        (slot != NONE).then_some(slot)
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
    pub(crate) fn pin(&mut self, index: u32, phase: Phase) -> bool {
        let slot = &mut self.slots[index as usize];
        let pool = &mut self.pools[slot.pool as usize];
        if slot.pins == 0 && slot.load == Load::Ready {
            let found = pool.remove(index);
            debug_assert!(found, "a ready slot without pins is in a heap");
        }
        slot.pins += 1;
        if phase == Phase::Decode && slot.owner == Owner::Prefill {
            slot.owner = Owner::Decode;
            pool.prefill_owned -= 1;
        }
        std::mem::take(&mut slot.ahead)
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
            let Some(index) = self.find(key) else { continue };
            let slot = &mut self.slots[index as usize];
            if slot.ahead && slot.pins == 0 {
                slot.ahead = false;
                count += 1;
                let pool = &mut self.pools[slot.pool as usize];
                if pool.ahead.remove(index) {
                    self.settle(index);
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
        let Some(index) = self.find(key) else { return };
        if self.pools[self.slots[index as usize].pool as usize].remove(index) {
            self.settle(index);
        }
    }

    /// Records that are evictable here and on a device as well.
    pub(crate) fn evictable_copies(&self) -> usize {
        self.pools.iter().map(|pool| pool.copies.len()).sum()
    }

    /// Gives up one pin.
    pub(crate) fn unpin(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.pins > 0, "only what is pinned is unpinned");
        slot.pins -= 1;
        if slot.pins == 0 {
            self.settle(index);
        }
    }

    /// All reads of a slot are done; `error` when one of them failed.
    pub(crate) fn publish(&mut self, index: u32, error: Option<StoreError>) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.load == Load::Reading && slot.pending == 0);
        if error.is_some() {
            // Later visits shall read anew; those that wait for this slot learn why it failed.
            self.table[slot.key.index()] = NONE;
            slot.load = Load::Failed;
        } else {
            slot.load = Load::Ready;
        }
        slot.error = error;
        if slot.pins == 0 {
            self.settle(index);
        }
    }

    /// A read of a slot without waiters was withdrawn before it began: a visit that wants the record from now on
    /// reads it anew, into another slot.
    pub(crate) fn withdraw_read(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.load == Load::Reading && slot.pins == 0 && slot.pending > 0);
        slot.pending -= 1;
        if !std::mem::replace(&mut slot.abandoned, true) {
            self.table[slot.key.index()] = NONE;
        }
    }

    /// The reads of an abandoned slot are done or withdrawn.
    pub(crate) fn discard(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.abandoned && slot.pending == 0 && slot.pins == 0);
        slot.abandoned = false;
        slot.since = None;
        slot.load = Load::Failed;
        self.settle(index);
    }

    /// Takes a slot for `key`, evicting what is worth least. The slot is then `Reading`, unpinned.
    pub(crate) fn claim(&mut self, pool: usize, key: RecordKey, purpose: Purpose) -> Option<Claim> {
        let index = self.pools[pool].choose(purpose)?;
        let slot = &mut self.slots[index as usize];
        let mut evicted = None;
        if slot.load == Load::Ready {
            self.table[slot.key.index()] = NONE;
            evicted = Some((slot.key, slot.ahead));
            if slot.owner == Owner::Prefill {
                self.pools[pool].prefill_owned -= 1;
            }
        }
        let slot = &mut self.slots[index as usize];
        slot.key = key;
        slot.load = Load::Reading;
        slot.ahead = purpose == Purpose::Ahead;
        slot.owner = if purpose == Purpose::Decode { Owner::Decode } else { Owner::Prefill };
        if slot.owner == Owner::Prefill {
            self.pools[pool].prefill_owned += 1;
        }
        self.table[key.index()] = index;
        Some(Claim { slot: index, evicted })
    }

    /// Takes a slot for a record that the caller will write into it. It is found only when it is published.
    pub(crate) fn claim_admission(&mut self, pool: usize, key: RecordKey) -> Option<Claim> {
        let claim = self.claim(pool, key, Purpose::Decode)?;
        self.table[key.index()] = NONE;
        Some(claim)
    }

    /// The record is written. False when another slot has it or is being filled with it: then this one is free.
    pub(crate) fn publish_admission(&mut self, index: u32) -> bool {
        let key = self.slots[index as usize].key.index();
        if self.table[key] != NONE {
            self.give_up_admission(index);
            return false;
        }
        self.table[key] = index;
        self.publish(index, None);
        true
    }

    /// The record will not be written.
    pub(crate) fn give_up_admission(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.load == Load::Reading && slot.pending == 0 && slot.pins == 0);
        slot.load = Load::Failed;
        self.settle(index);
    }

    /// A slot without pins goes where the next claim can find it.
    fn settle(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let pool = &mut self.pools[slot.pool as usize];
        match slot.load {
            Load::Reading => {}
            Load::Ready if self.retain => {
                self.sequence += 1;
                let newest_first = -(self.sequence as f64);
                let score = self.policy.score(&self.history[slot.key.index()]);
                match slot.owner {
                    _ if self.on_device[slot.key.index()] => pool.copies.insert(index, -score),
                    _ if slot.ahead => pool.ahead.insert(index, newest_first),
                    Owner::Prefill => pool.prefill.insert(index, newest_first),
                    Owner::Decode => pool.decode.insert(index, score),
                }
            }
            Load::Ready | Load::Failed | Load::Empty => {
                if slot.load == Load::Ready {
                    self.table[slot.key.index()] = NONE;
                }
                if slot.owner == Owner::Prefill {
                    pool.prefill_owned -= 1;
                }
                slot.owner = Owner::Decode;
                slot.key = RecordKey::NONE;
                slot.load = Load::Empty;
                slot.error = None;
                slot.ahead = false;
                pool.free.push(index);
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
    fn remove(&mut self, slot: u32) -> bool {
        let Self { copies, decode, prefill, ahead, .. } = self;
        [decode, prefill, ahead, copies].into_iter().any(|heap| heap.remove(slot))
    }

    /// The slot that is worth least for this purpose, taken out of its list.
    fn choose(&mut self, purpose: Purpose) -> Option<u32> {
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

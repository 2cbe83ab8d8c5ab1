//! Where every expert's record is for the device: the host's mirror of the address table.
//!
//! The table has one word per `(layer, expert)`: the address of a slot in device memory, else of a copy in
//! pinned host memory, which the device reads over the bus, else 0, which makes the device ask for it. Kernels
//! read the table while a step runs, so words change between steps only, and a slot or host copy is written or
//! given back only after a step has begun that can no longer name it: [`Placement::begin_fill`] takes the name
//! away, the copy into the slot starts behind the next step's start, and [`Placement::end_fill`] names it anew.
//! A slot whose record has to return to the host tier first is still named while it is copied from
//! ([`Placement::begin_return`]).
//!
//! Bookkeeping alone: no device and no store in here, so that the rules are tested without either. `H` keeps a
//! host copy in its place for as long as the table may name it.

use store::{ExpertId, LayerId};

/// The word of an expert that has to be asked for.
const ABSENT: u64 = 0;

/// What a slot in device memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Without memory: keys and values have it.
    Away,
    Free,
    /// Being copied into; no step can name it.
    Filling(u32),
    /// Named by the table.
    Holds(u32),
    /// Named by the table, and copied from: another record will take its place.
    Leaving(u32),
}

/// A copy in pinned host memory.
struct HostCopy<H> {
    address: u64,
    hold: H,
    /// It is the source of a copy in progress.
    busy: bool,
}

/// One record to copy into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    /// The slot.
    pub(super) slot: u32,
    /// The record.
    pub(super) key: u32,
}

/// Which copy of each record the table names.
pub(super) struct Placement<H> {
    experts: usize,
    words: Vec<u64>,
    /// Slot that the table names for each key.
    slot_of: Vec<Option<u32>>,
    slots: Vec<Slot>,
    slot_addresses: Vec<u64>,
    host: Vec<Option<HostCopy<H>>>,
    /// By pool.
    host_copies: Vec<usize>,
    /// Records on their way back from device memory, by pool.
    returning: Vec<usize>,
    pool_of_layer: Vec<usize>,
    changed: bool,
}

impl<H> Placement<H> {
    /// A table of absent records over slots at the given device addresses. `pool_of_layer` says for every layer
    /// which pool of the host tier its records go to.
    pub(super) fn new(pool_of_layer: Vec<usize>, experts: usize, slot_addresses: Vec<u64>) -> Self {
        let keys = pool_of_layer.len() * experts;
        let pools = pool_of_layer.iter().max().map_or(0, |pool| pool + 1);
        Self {
            experts,
            words: vec![ABSENT; keys],
            slot_of: vec![None; keys],
            slots: vec![Slot::Free; slot_addresses.len()],
            slot_addresses,
            host: (0..keys).map(|_| None).collect(),
            host_copies: vec![0; pools],
            returning: vec![0; pools],
            pool_of_layer,
            changed: true,
        }
    }

    /// Experts of a layer.
    pub(super) fn experts(&self) -> usize {
        self.experts
    }

    /// The key of a record.
    pub(super) fn key(&self, layer: LayerId, expert: ExpertId) -> u32 {
        (layer.index() * self.experts + expert.index()) as u32
    }

    /// Layer and expert of a key.
    pub(super) fn record(&self, key: u32) -> (LayerId, ExpertId) {
        let (layer, expert) = (key as usize / self.experts, key as usize % self.experts);
        (LayerId(layer as u16), ExpertId(expert as u16))
    }

    /// The words, by key.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// True once after words have changed: the device's table has to be written.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True when the table names a slot in device memory.
    pub(super) fn in_device(&self, key: u32) -> bool {
        self.slot_of[key as usize].is_some()
    }

    /// True when there is a host copy.
    pub(super) fn in_host(&self, key: u32) -> bool {
        self.host[key as usize].is_some()
    }

    /// Address of the host copy, if there is one.
    pub(super) fn host_address(&self, key: u32) -> Option<u64> {
        self.host[key as usize].as_ref().map(|copy| copy.address)
    }

    /// What keeps the host copy in its place, if there is one.
    pub(super) fn host_hold(&self, key: u32) -> Option<&H> {
        self.host[key as usize].as_ref().map(|copy| &copy.hold)
    }

    /// Slots of a pool of the host tier that cannot take another record: of host copies, and of records on their way
    /// back from device memory.
    pub(super) fn host_slots(&self, pool: usize) -> usize {
        self.host_copies[pool] + self.returning[pool]
    }

    /// Records of a pool on their way back from device memory.
    pub(super) fn returning(&self, pool: usize) -> usize {
        self.returning[pool]
    }

    /// The pool of the host tier that a layer's records go to.
    pub(super) fn pool(&self, layer: LayerId) -> usize {
        self.pool_of_layer[layer.index()]
    }

    /// Pools of the host tier.
    pub(super) fn pools(&self) -> usize {
        self.host_copies.len()
    }

    /// Records whose host copies could be given back, ascending.
    pub(super) fn idle_host_copies(&self) -> impl Iterator<Item = u32> {
        let idle =
            |(_, copy): &(usize, &Option<HostCopy<H>>)| copy.as_ref().is_some_and(|c| !c.busy);
        self.host.iter().enumerate().filter(idle).map(|(key, _)| key as u32)
    }

    /// Records that slots hold, with their slots.
    pub(super) fn held_slots(&self) -> impl Iterator<Item = (u32, u32)> {
        self.slots.iter().enumerate().filter_map(|(slot, state)| match state {
            Slot::Holds(key) => Some((slot as u32, *key)),
            Slot::Away | Slot::Free | Slot::Filling(_) | Slot::Leaving(_) => None,
        })
    }

    /// The record that the table names a slot for.
    pub(super) fn record_in(&self, slot: u32) -> Option<u32> {
        match self.slots[slot as usize] {
            Slot::Holds(key) | Slot::Leaving(key) => Some(key),
            Slot::Away | Slot::Free | Slot::Filling(_) => None,
        }
    }

    /// Slots with nothing in them.
    pub(super) fn free_slots(&self) -> impl Iterator<Item = u32> {
        let free = self.slots.iter().enumerate().filter(|(_, state)| **state == Slot::Free);
        free.map(|(slot, _)| slot as u32)
    }

    /// Remembers a host copy; the table names it unless a slot holds the record.
    pub(super) fn add_host(&mut self, key: u32, address: u64, hold: H) {
        debug_assert!(address != ABSENT && self.host[key as usize].is_none());
        self.host[key as usize] = Some(HostCopy { address, hold, busy: false });
        let pool = self.pool(self.record(key).0);
        self.host_copies[pool] += 1;
        self.rename(key);
    }

    /// Gives a host copy back, between steps or when no running step can name it any more. `None` when there
    /// is none or it is being copied from.
    pub(super) fn remove_host(&mut self, key: u32) -> Option<H> {
        if self.host[key as usize].as_ref().is_none_or(|copy| copy.busy) {
            return None;
        }
        let copy = self.host[key as usize].take();
        let pool = self.pool(self.record(key).0);
        self.host_copies[pool] -= 1;
        self.rename(key);
        copy.map(|copy| copy.hold)
    }

    /// Between steps: what `fill.slot` holds will be copied to the host tier, to which it goes back; then
    /// [`Placement::end_return`], after which the slot may be filled. Steps may read it meanwhile. The source of the
    /// fill must have a host copy, which stays until then.
    pub(super) fn begin_return(&mut self, fill: Fill) {
        let Slot::Holds(old) = self.slots[fill.slot as usize] else {
            unreachable!("only a record that a slot holds returns")
        };
        self.slots[fill.slot as usize] = Slot::Leaving(old);
        self.set_busy(fill.key, true);
        let pool = self.pool(self.record(old).0);
        self.returning[pool] += 1;
    }

    /// The copy to the host tier has ended or was not begun. Gives the record that the slot holds still.
    pub(super) fn end_return(&mut self, fill: Fill) -> u32 {
        let Slot::Leaving(old) = self.slots[fill.slot as usize] else {
            unreachable!("only what was begun ends")
        };
        self.slots[fill.slot as usize] = Slot::Holds(old);
        self.set_busy(fill.key, false);
        let pool = self.pool(self.record(old).0);
        self.returning[pool] -= 1;
        old
    }

    /// Counts records that are copied to the host tier while nothing runs; with `end` the same are no longer counted.
    pub(super) fn count_returns(&mut self, keys: &[u32], end: bool) {
        for &key in keys {
            let pool = self.pool(self.record(key).0);
            let count = &mut self.returning[pool];
            *count = if end { *count - 1 } else { *count + 1 };
        }
    }

    /// Between steps: the record in a slot loses it.
    pub(super) fn evict(&mut self, slot: u32) {
        let Slot::Holds(key) = self.slots[slot as usize] else {
            unreachable!("only a record that a slot holds loses it")
        };
        self.slots[slot as usize] = Slot::Free;
        self.slot_of[key as usize] = None;
        self.rename(key);
    }

    /// Between steps: what `from` holds was copied to `to`, which is free.
    pub(super) fn relocate(&mut self, from: u32, to: u32) {
        debug_assert_eq!(self.slots[to as usize], Slot::Free);
        let Slot::Holds(key) = self.slots[from as usize] else {
            unreachable!("only a record that a slot holds moves")
        };
        self.slots[from as usize] = Slot::Free;
        self.place(Fill { slot: to, key });
    }

    /// The first `count` slots have memory, the others, which hold nothing, have none.
    pub(super) fn resize(&mut self, count: usize) {
        for (slot, state) in self.slots.iter_mut().enumerate() {
            match (*state, slot < count) {
                (Slot::Away, true) => *state = Slot::Free,
                (Slot::Free, false) => *state = Slot::Away,
                (Slot::Away, false) | (_, true) => {}
                (_, false) => unreachable!("a slot that holds something keeps its memory"),
            }
        }
    }

    /// True when slots hold every record.
    pub(super) fn in_device_count(&self) -> usize {
        self.slot_of.iter().flatten().count()
    }

    fn set_busy(&mut self, key: u32, busy: bool) {
        let source = self.host[key as usize].as_mut();
        source.expect("only records with a host copy are copied").busy = busy;
    }

    /// Between steps: takes the name of what `fill.slot` holds away, so that it can be copied into once the
    /// next step has begun. The source must have a host copy.
    pub(super) fn begin_fill(&mut self, fill: Fill) {
        if let Slot::Holds(old) = self.slots[fill.slot as usize] {
            self.slot_of[old as usize] = None;
            self.rename(old);
        }
        self.slots[fill.slot as usize] = Slot::Filling(fill.key);
        self.set_busy(fill.key, true);
    }

    /// Between steps: the copy is complete; the table names the slot.
    pub(super) fn end_fill(&mut self, fill: Fill) {
        debug_assert_eq!(self.slots[fill.slot as usize], Slot::Filling(fill.key));
        self.set_busy(fill.key, false);
        self.place(fill);
    }

    /// Names a slot that was filled by other means (loading).
    pub(super) fn place(&mut self, fill: Fill) {
        self.slots[fill.slot as usize] = Slot::Holds(fill.key);
        self.slot_of[fill.key as usize] = Some(fill.slot);
        self.rename(fill.key);
    }

    /// True while a slot is being filled with the record, or emptied for it.
    pub(super) fn is_filling(&self, key: u32) -> bool {
        self.host[key as usize].as_ref().is_some_and(|copy| copy.busy)
    }

    fn rename(&mut self, key: u32) {
        let index = key as usize;
        let word = match (self.slot_of[index], &self.host[index]) {
            (Some(slot), _) => self.slot_addresses[slot as usize],
            (None, Some(copy)) => copy.address,
            (None, None) => ABSENT,
        };
        self.changed |= word != self.words[index];
        self.words[index] = word;
    }
}

/// Which records to copy into device memory: each of `wanted` (key and score, used and not there) takes a free
/// slot, else the slot of the least of `held` (slot and score) when that is worth less by `margin`. At most
/// `limit` of them, the most wanted first. Both lists are sorted in place.
pub(super) fn choose_fills(
    wanted: &mut [(u32, f64)],
    held: &mut [(u32, f64)],
    free: impl Iterator<Item = u32>,
    margin: f64,
    limit: usize,
) -> Vec<Fill> {
    wanted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let victims = wanted.len().min(limit).min(held.len());
    if victims > 0 && victims < held.len() {
        held.select_nth_unstable_by(victims - 1, |a, b| a.1.total_cmp(&b.1));
    }
    held[..victims].sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut free = free.map(|slot| (slot, f64::NEG_INFINITY));
    let mut coldest = held[..victims].iter().copied();
    let mut fills = Vec::new();
    for &(key, score) in wanted.iter().take(limit) {
        let Some((slot, worth)) = free.next().or_else(|| coldest.next()) else { break };
        if score <= worth + margin {
            break;
        }
        fills.push(Fill { slot, key });
    }
    fills
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_table_names_a_slot_before_a_host_copy_and_nothing_while_it_is_filled() {
        let mut placement: Placement<Rc<()>> = Placement::new(vec![0, 0], 4, vec![0x100, 0x200]);
        let (a, b) =
            (placement.key(LayerId(1), ExpertId(2)), placement.key(LayerId(0), ExpertId(3)));
        assert_eq!(placement.record(a), (LayerId(1), ExpertId(2)));
        assert!(placement.take_changed() && !placement.take_changed());
        let hold = Rc::new(());
        placement.add_host(a, 0x9000, hold.clone());
        assert_eq!(placement.words()[a as usize], 0x9000);
        let fill = Fill { slot: 0, key: a };
        placement.begin_fill(fill);
        assert_eq!(placement.words()[a as usize], 0x9000, "usable over the bus meanwhile");
        assert!(placement.remove_host(a).is_none(), "the source of a copy stays");
        placement.end_fill(fill);
        assert_eq!(placement.words()[a as usize], 0x100);
        assert_eq!(Rc::strong_count(&hold), 2);
        drop(placement.remove_host(a));
        assert_eq!((placement.words()[a as usize], Rc::strong_count(&hold)), (0x100, 1));
        placement.add_host(b, 0xa000, Rc::new(()));
        assert!(placement.take_changed());
        placement.begin_fill(Fill { slot: 0, key: b });
        assert_eq!(placement.words()[a as usize], ABSENT, "its slot is being written");
        assert_eq!(placement.words()[b as usize], 0xa000);
        placement.end_fill(Fill { slot: 0, key: b });
        assert_eq!(placement.words()[b as usize], 0x100);
        assert_eq!(placement.free_slots().collect::<Vec<_>>(), [1]);
        assert_eq!(placement.held_slots().collect::<Vec<_>>(), [(0, b)]);
    }

    #[test]
    fn fills_take_free_slots_then_colder_ones_and_stop_at_the_margin() {
        let mut wanted = [(7, 1.0), (8, 5.0), (9, 3.0), (10, 4.0)];
        let mut held = [(0, 2.0), (1, 9.0), (2, 0.5)];
        let fills = choose_fills(&mut wanted, &mut held, [5].into_iter(), 0.5, 8);
        let pairs: Vec<(u32, u32)> = fills.iter().map(|fill| (fill.slot, fill.key)).collect();
        // 8 takes the free slot, 10 the coldest, 9 the next; 1 is worth more than what is left.
        assert_eq!(pairs, [(5, 8), (2, 10), (0, 9)]);
        let fills = choose_fills(&mut wanted, &mut held, [5].into_iter(), 0.5, 2);
        assert_eq!(fills.len(), 2);
        let fills = choose_fills(&mut wanted, &mut held, std::iter::empty(), 4.0, 8);
        assert_eq!(fills.len(), 1, "4.0 above 0.5 for the first only");
    }

    /// Whatever happens, each word is what slots and copies say, and no slot is named twice.
    #[test]
    fn random_moves_keep_the_table_consistent() {
        let mut state = 0x5eed_u64;
        let mut next = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        let mut placement: Placement<()> =
            Placement::new(vec![0, 1, 0], 5, vec![1 << 20, 2 << 20, 3 << 20]);
        let mut filling: Vec<Fill> = Vec::new();
        let mut leaving: Vec<Fill> = Vec::new();
        for step in 0..5000 {
            let key = next(15) as u32;
            match next(5) {
                0 if !placement.in_host(key) => {
                    placement.add_host(key, 0x1000 + u64::from(key), ());
                }
                1 => {
                    placement.remove_host(key);
                }
                2 => {
                    let slot = next(3) as u32;
                    let mut moving = filling.iter().chain(&leaving);
                    let busy = moving.any(|fill| fill.slot == slot || fill.key == key);
                    if placement.in_host(key) && !placement.in_device(key) && !busy {
                        let fill = Fill { slot, key };
                        if placement.record_in(slot).is_some() && next(2) == 0 {
                            placement.begin_return(fill);
                            leaving.push(fill);
                        } else {
                            placement.begin_fill(fill);
                            filling.push(fill);
                        }
                    }
                }
                3 => {
                    if let Some(fill) = leaving.pop() {
                        let old = placement.end_return(fill);
                        assert_eq!(placement.record_in(fill.slot), Some(old));
                        placement.begin_fill(fill);
                        filling.push(fill);
                    }
                }
                _ => {
                    if let Some(fill) = filling.pop() {
                        placement.end_fill(fill);
                    }
                }
            }
            let mut named: Vec<u64> =
                placement.words().iter().copied().filter(|&word| word >= 1 << 20).collect();
            let held = placement.held_slots().count() + leaving.len();
            assert_eq!(named.len(), held, "step {step}");
            let returning: usize = (0..2).map(|pool| placement.returning(pool)).sum();
            assert_eq!(returning, leaving.len(), "step {step}");
            let copies = (0..15).filter(|&key| placement.in_host(key)).count();
            let taken: usize = (0..2).map(|pool| placement.host_slots(pool)).sum();
            assert_eq!(taken, copies + returning, "step {step}");
            for fill in &leaving {
                assert!(placement.is_filling(fill.key) && !placement.in_device(fill.key));
                let word = u64::from(fill.slot + 1) << 20;
                assert!(named.contains(&word), "named while it is copied from, step {step}");
            }
            named.sort_unstable();
            named.dedup();
            assert_eq!(named.len(), held, "a slot named twice at step {step}");
            for fill in &filling {
                assert!(placement.is_filling(fill.key));
                assert!(!named.contains(&(u64::from(fill.slot + 1) << 20)), "step {step}");
            }
        }
    }
}

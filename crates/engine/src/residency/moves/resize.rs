//! Slots that lose their memory to keys and values, and slots that get memory back.
//!
//! The memory of the last slots goes. Records of least worth make room, wherever they are: those that have no copy in
//! the host tier are copied there by the rules of moves, and what the last slots hold of more worth is copied to the
//! places of those. Nothing runs meanwhile.

use std::cmp::Reverse;

use super::{DeviceMemory, MissService, Moves, RETURNING_PART, Tiers};
use crate::EngineError;

impl<F, S> Moves<F, S> {
    /// Between steps: the first `left` slots keep their memory, and the records worth most.
    ///
    /// # Errors
    /// The device failed. Before anything was copied between slots, every record has its slot still.
    pub(in super::super) fn shrink(
        &mut self,
        tiers: &mut Tiers<'_>,
        service: &mut MissService,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
        left: usize,
    ) -> Result<(), EngineError> {
        self.settle(tiers, device)?;
        let mut held: Vec<(u32, u32)> = tiers.placement.held_slots().collect();
        self.sort_by_worth(tiers, &mut held);
        let (gone, kept) = held.split_at(held.len().saturating_sub(left));
        if self.exclusive {
            self.return_records(tiers, service, device, gone)?;
        }
        for &(slot, key) in gone {
            tiers.placement.evict(slot);
            if self.exclusive {
                tiers.mark(key, false);
            }
        }
        self.counts.given_up += gone.len() as u64;
        let last = kept.iter().map(|&(slot, _)| slot).filter(|&slot| slot as usize >= left);
        let free = tiers.placement.free_slots().filter(|&slot| (slot as usize) < left);
        let pairs: Vec<(u32, u32)> = last.zip(free).collect();
        device.relocate(&pairs)?;
        for (from, to) in pairs {
            tiers.placement.relocate(from, to);
        }
        tiers.placement.resize(left);
        Ok(())
    }

    /// Least worth first; of equal worth, the last experts of all layers first, so that layers keep as many.
    fn sort_by_worth(&mut self, tiers: &Tiers<'_>, held: &mut Vec<(u32, u32)>) {
        self.records.clear();
        self.records.extend(held.iter().map(|&(_, key)| tiers.placement.record(key)));
        tiers.store.scores(&self.records, &mut self.scores);
        let mut order: Vec<usize> = (0..held.len()).collect();
        order.sort_by(|&a, &b| {
            let rest = |i: usize| (Reverse(self.records[i].1), self.records[i].0);
            self.scores[a].total_cmp(&self.scores[b]).then(rest(a).cmp(&rest(b)))
        });
        *held = order.into_iter().map(|index| held[index]).collect();
    }

    /// Copies records that lose their slots to the host tier, as many as may be on their way back at once, those worth
    /// most. The store has them then; the table does not name them before they are asked for.
    fn return_records(
        &mut self,
        tiers: &mut Tiers<'_>,
        service: &mut MissService,
        device: &mut dyn DeviceMemory<Filling = F, Saving = S>,
        gone: &[(u32, u32)],
    ) -> Result<(), EngineError> {
        let rooms = tiers.store.arenas().iter().map(|arena| arena.slots() / RETURNING_PART);
        let mut rooms: Vec<usize> = rooms.collect();
        let mut back: Vec<(u32, u32)> = Vec::new();
        for &(slot, key) in gone.iter().rev() {
            let pool = tiers.placement.pool(tiers.placement.record(key).0);
            if rooms[pool] > 0 && self.must_return(tiers, slot) {
                rooms[pool] -= 1;
                back.push((slot, key));
            }
        }
        let keys: Vec<u32> = back.iter().map(|&(_, key)| key).collect();
        tiers.placement.count_returns(&keys, false);
        service.make_room(tiers.store, tiers.placement);
        let mut saves = Vec::with_capacity(back.len());
        let mut result = Ok(());
        for (slot, key) in back {
            let (layer, expert) = tiers.placement.record(key);
            let Some(admission) = tiers.store.admit(layer, expert) else { continue };
            match device.save(slot, admission) {
                Ok(saving) => saves.push(saving),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        for saving in saves {
            // What was begun is awaited, whatever became of the rest.
            match device.finish(saving) {
                Ok(admission) => {
                    drop(admission.publish());
                    self.counts.returned += 1;
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        tiers.placement.count_returns(&keys, true);
        result
    }
}

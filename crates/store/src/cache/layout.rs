//! How many slots there are of each size: the plan that `plan` prints and [`ExpertStore::open`] follows.
//!
//! Layers of one record size share a pool. With mixed precision there are several sizes: each gets a
//! pool, and the budget is shared in proportion to the bytes that the layers of each size hold.
//! Sizes that differ by little (unaligned records need a block more or less) share the larger slot.
//!
//! [`ExpertStore::open`]: super::ExpertStore::open

use std::sync::Arc;

use crate::LayerId;
use crate::arena::SlotArena;
use crate::cache::{SlotBudget, StoreError};
use crate::format::Checkpoint;
use crate::record::LayerPlan;

/// A smaller record shares a larger slot when it fills at least this many of 100 parts of it.
const SHARED_CLASS_PERCENT: u64 = 95;

/// Slots of one size and the layers that use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotClass {
    /// Bytes of one slot, a multiple of 4096.
    pub slot_bytes: usize,
    /// Slots.
    pub slots: usize,
    /// Experts, over all layers, that use this size.
    pub experts: usize,
}

/// The slots of a store before they are allocated.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// One per distinct size, ascending.
    pub classes: Vec<SlotClass>,
    /// The class of each layer; `None` for a dense layer.
    pub class_of_layer: Vec<Option<usize>>,
    /// The reads of each layer; `None` for a dense layer.
    pub layers: Vec<Option<LayerPlan>>,
}

impl StorePlan {
    /// Plans the classes of a checkpoint, without slots yet.
    fn classes(checkpoint: &Checkpoint) -> Result<Self, StoreError> {
        let mut layers = Vec::with_capacity(checkpoint.experts.len());
        for (index, layer) in checkpoint.experts.iter().enumerate() {
            let plan = layer.as_ref().map(|layer| LayerPlan::new(layer, checkpoint)).transpose();
            let layer = LayerId(index as u16);
            layers.push(plan.map_err(|expert| StoreError::Extents { layer, expert })?);
        }
        let mut sizes: Vec<u64> = layers.iter().flatten().map(|plan| plan.slot_bytes).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept: Vec<u64> = Vec::new();
        for size in sizes {
            if kept.last().is_none_or(|&large| size * 100 < large * SHARED_CLASS_PERCENT) {
                kept.push(size);
            }
        }
        kept.reverse();
        let mut classes: Vec<SlotClass> = kept
            .iter()
            .map(|&bytes| SlotClass { slot_bytes: bytes as usize, slots: 0, experts: 0 })
            .collect();
        let class_of_layer = layers
            .iter()
            .map(|layer| {
                let plan = layer.as_ref()?;
                let class = kept.partition_point(|&bytes| bytes < plan.slot_bytes);
                classes[class].experts += plan.records.len();
                Some(class)
            })
            .collect();
        Ok(Self { classes, class_of_layer, layers })
    }

    /// A slot for every expert.
    pub fn resident(checkpoint: &Checkpoint) -> Result<Self, StoreError> {
        let mut plan = Self::classes(checkpoint)?;
        for class in &mut plan.classes {
            class.slots = class.experts;
        }
        Ok(plan)
    }

    /// As many slots as the budget holds, at most one per expert; refused below `minimum_slots` (or one per expert)
    /// for each size of records. Sizes share the budget by the bytes of their experts, but none gets less than
    /// its minimum.
    pub fn budget(
        checkpoint: &Checkpoint,
        budget: SlotBudget,
        minimum_slots: usize,
    ) -> Result<Self, StoreError> {
        let mut plan = Self::classes(checkpoint)?;
        // No visit needs more slots than its layer has experts.
        let steps = |class: &SlotClass, steps: usize| {
            minimum_slots.saturating_mul(steps).min(class.experts)
        };
        let (given, in_bytes) = match budget {
            SlotBudget::Bytes(bytes) => (bytes, true),
            SlotBudget::Slots(slots) => (slots as u64, false),
            SlotBudget::Steps(count) => {
                for class in &mut plan.classes {
                    class.slots = steps(class, count.max(1));
                }
                return Ok(plan);
            }
        };
        let bytes =
            |class: &SlotClass, slots: usize| SlotArena::bytes_for(slots, class.slot_bytes) as u64;
        let minimum: Vec<usize> = plan.classes.iter().map(|class| steps(class, 1)).collect();
        let steps = || plan.classes.iter().zip(minimum.iter().copied());
        let needs: Vec<u64> = steps()
            .map(|(class, slots)| if in_bytes { bytes(class, slots) } else { slots as u64 })
            .collect();
        if given < needs.iter().sum() {
            return Err(StoreError::Budget {
                asked: budget,
                minimum_slots: minimum.iter().sum(),
                minimum_bytes: steps().map(|(class, slots)| bytes(class, slots)).sum(),
            });
        }
        let weights: Vec<u64> = plan.classes.iter().map(SlotClass::expert_bytes).collect();
        let shares = shares(given, &weights, &needs);
        for (class, share) in plan.classes.iter_mut().zip(shares) {
            let slots = if in_bytes {
                // Whole huge pages: the remainder of the last one is not usable.
                let huge = crate::arena::HUGE_PAGE_BYTES as u64;
                share / huge * huge / class.slot_bytes as u64
            } else {
                share
            };
            class.slots = (slots as usize).min(class.experts);
        }
        Ok(plan)
    }

    /// Plans the slots of several stores, each with some layers' experts: a `budget` of slots or bytes is
    /// shared out in proportion to the bytes of their experts, none gets less than one step needs. Gives each store's
    /// plan with the budget that it follows.
    ///
    /// # Errors
    /// As [`StorePlan::budget`].
    pub fn budget_over(
        checkpoints: &[Arc<Checkpoint>],
        budget: SlotBudget,
        minimum_slots: usize,
    ) -> Result<Vec<(Self, SlotBudget)>, StoreError> {
        let plan = |checkpoint: &Arc<Checkpoint>, budget| {
            let plan = Self::budget(checkpoint, budget, minimum_slots)?;
            Ok::<_, StoreError>((plan, budget))
        };
        let (given, in_bytes) = match budget {
            SlotBudget::Bytes(bytes) if checkpoints.len() > 1 => (bytes, true),
            SlotBudget::Slots(slots) if checkpoints.len() > 1 => (slots as u64, false),
            _ => return checkpoints.iter().map(|it| plan(it, budget)).collect(),
        };
        let least = checkpoints.iter().map(|it| Ok(plan(it, SlotBudget::Steps(1))?.0));
        let least = least.collect::<Result<Vec<Self>, StoreError>>()?;
        let need = |plan: &Self| if in_bytes { plan.bytes() } else { plan.slots() as u64 };
        let needs: Vec<u64> = least.iter().map(need).collect();
        if given < needs.iter().sum() {
            return Err(StoreError::Budget {
                asked: budget,
                minimum_slots: least.iter().map(Self::slots).sum(),
                minimum_bytes: least.iter().map(Self::bytes).sum(),
            });
        }
        let bytes = |plan: &Self| plan.classes.iter().map(SlotClass::expert_bytes).sum();
        let weights: Vec<u64> = least.iter().map(bytes).collect();
        let shares = shares(given, &weights, &needs).into_iter().map(|share| match in_bytes {
            true => SlotBudget::Bytes(share),
            false => SlotBudget::Slots(share as usize),
        });
        checkpoints.iter().zip(shares).map(|(it, share)| plan(it, share)).collect()
    }

    /// What several stores have together; each has layers that no other has.
    #[must_use]
    pub fn joined(plans: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self { classes: Vec::new(), class_of_layer: Vec::new(), layers: Vec::new() };
        for plan in plans {
            let (first, layers) = (all.classes.len(), plan.layers.len());
            all.classes.extend(plan.classes);
            all.class_of_layer.resize(layers.max(all.class_of_layer.len()), None);
            all.layers.resize(layers.max(all.layers.len()), None);
            let own = plan.layers.into_iter().zip(plan.class_of_layer).enumerate();
            for (index, (layer, class)) in own.filter(|(_, (layer, _))| layer.is_some()) {
                all.layers[index] = layer;
                all.class_of_layer[index] = class.map(|class| first + class);
            }
        }
        all
    }

    /// Gives up all slots: mapped experts need none.
    pub(super) fn release_slots(&mut self) {
        self.classes.iter_mut().for_each(|class| class.slots = 0);
    }

    /// Slots in all.
    pub fn slots(&self) -> usize {
        self.classes.iter().map(|class| class.slots).sum()
    }

    /// Bytes that the slots will occupy, exactly.
    pub fn bytes(&self) -> u64 {
        let bytes = |class: &SlotClass| SlotArena::bytes_for(class.slots, class.slot_bytes) as u64;
        self.classes.iter().filter(|class| class.slots > 0).map(bytes).sum()
    }

    /// Experts of the whole checkpoint.
    pub fn experts(&self) -> usize {
        self.classes.iter().map(|class| class.experts).sum()
    }

    /// Bytes read when every expert is read once.
    pub fn expert_read_bytes(&self) -> u64 {
        let records = self.layers.iter().flatten().flat_map(|layer| &layer.records);
        records.map(crate::record::RecordPlan::read_bytes).sum()
    }
}

impl SlotClass {
    fn expert_bytes(&self) -> u64 {
        self.slot_bytes as u64 * self.experts as u64
    }
}

/// Shares of `given` in proportion to `weights`, none below what it `needs`; together the needs are not more than
/// what is given.
fn shares(given: u64, weights: &[u64], needs: &[u64]) -> Vec<u64> {
    let mut shares: Vec<Option<u64>> = vec![None; weights.len()];
    loop {
        // A share below the need becomes the need; the others share the rest.
        let open = |index: &usize| shares[*index].is_none();
        let rest = given - shares.iter().flatten().sum::<u64>();
        let total: u64 = (0..weights.len()).filter(open).map(|index| weights[index]).sum();
        let share = |index: usize| {
            (u128::from(rest) * u128::from(weights[index]) / u128::from(total.max(1))) as u64
        };
        let short: Vec<usize> =
            (0..weights.len()).filter(open).filter(|&index| share(index) < needs[index]).collect();
        if short.is_empty() {
            let settle =
                |(index, settled): (usize, &Option<u64>)| settled.unwrap_or_else(|| share(index));
            return shares.iter().enumerate().map(settle).collect();
        }
        for index in short {
            shares[index] = Some(needs[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn shares_meet_the_needs_and_do_not_exceed_what_is_given() {
        assert_eq!(shares(100, &[1, 3], &[10, 10]), [25, 75]);
        assert_eq!(shares(100, &[1, 99], &[10, 10]), [10, 90]);
        // One that is raised lowers the others, which may fall below their needs in turn.
        assert_eq!(shares(100, &[1, 39, 60], &[45, 25, 30]), [45, 25, 30]);
        assert_eq!(shares(0, &[], &[]), [0; 0]);
        for given in 30..200 {
            let shared = shares(given, &[1, 5, 1000], &[10, 10, 10]);
            assert!(shared.iter().sum::<u64>() <= given && shared.iter().all(|&s| s >= 10));
        }
    }
}

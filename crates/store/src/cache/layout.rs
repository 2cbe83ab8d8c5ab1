//! How many slots of which size: the plan that `plan` prints and [`ExpertStore::open`] follows.
//!
//! Layers of one record size share a pool. With mixed precision there are several sizes: each gets a
//! pool, and the budget is shared in proportion to the bytes that the layers of each size hold.
//! Sizes that differ by little (unaligned records need a block more or less) share the larger slot.
//!
//! [`ExpertStore::open`]: super::ExpertStore::open

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

    /// As many slots as the budget holds, at most one per expert; refused below `minimum_slots` in
    /// each class.
    pub fn budget(
        checkpoint: &Checkpoint,
        budget: SlotBudget,
        minimum_slots: usize,
    ) -> Result<Self, StoreError> {
        let mut plan = Self::classes(checkpoint)?;
        // No visit needs more slots than its layer has experts.
        let minimum: Vec<usize> =
            plan.classes.iter().map(|class| minimum_slots.min(class.experts)).collect();
        let weights: Vec<u64> = plan.classes.iter().map(SlotClass::expert_bytes).collect();
        let total: u64 = weights.iter().sum();
        for (index, class) in plan.classes.iter_mut().enumerate() {
            let share = |amount: u64| {
                (u128::from(amount) * u128::from(weights[index]) / u128::from(total.max(1))) as u64
            };
            let slots = match budget {
                SlotBudget::Slots(slots) if weights.len() == 1 => slots,
                // Rounding down must not take a class below one step that the total allows.
                SlotBudget::Slots(slots) => (share(slots as u64) as usize).max(minimum[index]),
                // Whole huge pages: the remainder of the last one is not usable.
                SlotBudget::Bytes(bytes) => {
                    let huge = crate::arena::HUGE_PAGE_BYTES as u64;
                    (share(bytes) / huge * huge / class.slot_bytes as u64) as usize
                }
            };
            class.slots = slots.min(class.experts);
        }
        if plan.classes.iter().zip(&minimum).any(|(class, &minimum)| class.slots < minimum) {
            let needed: u64 = plan
                .classes
                .iter()
                .zip(&minimum)
                .map(|(class, &slots)| SlotArena::bytes_for(slots, class.slot_bytes) as u64)
                .sum();
            return Err(StoreError::Budget {
                slots: plan.slots(),
                bytes: plan.bytes(),
                minimum_slots: minimum.iter().sum(),
                minimum_bytes: needed,
            });
        }
        Ok(plan)
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

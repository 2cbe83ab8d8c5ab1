//! Slots for experts in the process's memory: how many, and for each stage.

use std::sync::Arc;

use anyhow::Result;
use store::cache::{SlotBudget, StoreError, StorePlan};
use store::format::Checkpoint;

use super::device::DevicePlan;
use super::stages::StagePlan;
use super::{Plan, floor, stages};
use crate::arguments::{ByteSize, StorageChoice};
use crate::failure::Failure;

/// Slots of the host tier that a GPU needs at least: two waves of records on their way to it.
const DEVICE_WAVES: usize = 64;

impl Plan {
    /// What the slots of all stages may take in addition to `fixed` bytes.
    pub(super) fn slot_budget(&self, fixed: u64) -> Result<SlotBudget> {
        if self.passes_through() {
            // Records pass through to the device.
            return Ok(SlotBudget::Steps(1));
        }
        Ok(match (self.arguments.storage, self.arguments.slots) {
            (storage, None) if storage.has_slots() => {
                SlotBudget::Bytes(self.budget.saturating_sub(fixed))
            }
            (storage, Some(_)) if !storage.has_slots() => {
                return Err(Failure::usage("--slots needs --storage budget or buffered").into());
            }
            _ => floor::least_slots(&self.arguments).unwrap_or(SlotBudget::Steps(2)),
        })
    }

    /// Plans the slots of every stage; gives all of them together.
    pub(super) fn plan_slots(&mut self, fixed: u64, sequences: usize) -> Result<Option<StorePlan>> {
        let passed_through = self.passes_through();
        let checkpoints = stages::checkpoints(&self.stages);
        let plans = match self.arguments.storage {
            StorageChoice::Resident if !passed_through => {
                let budget = self.slot_budget;
                let plan = |it| Ok::<_, StoreError>((StorePlan::resident(it)?, budget));
                checkpoints.iter().map(|it| plan(it)).collect()
            }
            StorageChoice::Budget
            | StorageChoice::Buffered
            | StorageChoice::PageCache
            | StorageChoice::Resident => {
                let minimum = self.minimum_slots(sequences);
                self.budget_over(&checkpoints, minimum)
            }
            StorageChoice::Mmap => {
                self.stages.iter_mut().for_each(|stage| stage.slot_budget = self.slot_budget);
                return Ok(None);
            }
        };
        let wrap = |error: StoreError| {
            let context = format!(
                "the budget of {} leaves {} after {} for everything but experts ({}){}",
                ByteSize(self.budget),
                ByteSize(self.budget.saturating_sub(fixed)),
                ByteSize(fixed),
                self.named_parts(),
                self.crowd(),
            );
            let failure = match (error, self.least_memory) {
                (error @ StoreError::Budget { .. }, Some(least)) => {
                    Failure::memory(format!("{error}; {}", floor::advice(least)))
                }
                (error, _) => Failure::store(error),
            };
            anyhow::Error::from(failure).context(context)
        };
        let plans: Vec<(StorePlan, SlotBudget)> = plans.map_err(wrap)?;
        for (stage, (plan, budget)) in self.stages.iter_mut().zip(&plans) {
            (stage.slots, stage.slot_budget) = (Some(plan.clone()), *budget);
        }
        Ok(Some(StorePlan::joined(plans.into_iter().map(|(plan, _)| plan))))
    }

    /// True where GPUs hold every record, so that slots are only passed through.
    fn passes_through(&self) -> bool {
        !self.devices.is_empty() && self.devices.iter().all(DevicePlan::holds_all)
    }

    /// [`StorePlan::budget_over`]; behind GPUs bytes are shared out by what each stage has outside of its GPU's memory,
    /// which is what it will miss there. A stage whose GPU holds all of its records takes what they pass through.
    fn budget_over(
        &self,
        checkpoints: &[Arc<Checkpoint>],
        minimum: usize,
    ) -> Result<Vec<(StorePlan, SlotBudget)>, StoreError> {
        let all = |budget| StorePlan::budget_over(checkpoints, budget, minimum);
        let bytes = match self.slot_budget {
            SlotBudget::Bytes(bytes) if checkpoints.len() > 1 && !self.devices.is_empty() => bytes,
            budget => return all(budget),
        };
        let least = all(SlotBudget::Steps(1))?;
        let needs: Vec<u64> = least.iter().map(|(plan, _)| plan.bytes()).collect();
        let Some(rest) = bytes.checked_sub(needs.iter().sum()) else {
            return all(self.slot_budget);
        };
        let outside = checkpoints.iter().zip(&self.devices).map(|(checkpoint, device)| {
            let inside = (device.slots.full * device.slot_bytes) as u64;
            if device.holds_all() { 0 } else { checkpoint.expert_bytes().saturating_sub(inside) }
        });
        let outside: Vec<u64> = outside.collect();
        let sum = u128::from(outside.iter().sum::<u64>().max(1));
        let plan = |((checkpoint, need), outside): ((&Arc<Checkpoint>, u64), u64)| {
            let more = u128::from(rest) * u128::from(outside) / sum;
            let budget = SlotBudget::Bytes(need + more as u64);
            Ok((StorePlan::budget(checkpoint, budget, minimum)?, budget))
        };
        checkpoints.iter().zip(needs).zip(outside).map(plan).collect()
    }

    /// Slots that one step needs: the experts of one layer for every token.
    pub(crate) fn minimum_slots(&self, sequences: usize) -> usize {
        if self.devices.is_empty() {
            return floor::step_slots(&self.config, &self.backend, sequences);
        }
        // A round of one sequence may fill a step. On processors a layer's experts pass through fewer slots.
        let tokens = sequences.max(self.backend.round_tokens);
        let step = floor::step_slots(&self.config, &self.backend, tokens);
        // What a step holds and what it may ask for meanwhile, and two waves of a prompt's records.
        let all = self.config.moe.experts * self.config.mixtures();
        (2 * step).max(DEVICE_WAVES).min(all)
    }

    /// True when records on GPUs' behalf all lie in pinned memory: nothing is read while they run.
    pub(crate) fn pinned_all(&self) -> bool {
        self.stages.iter().all(|stage| self.pins_all(stage))
    }

    /// The same of the GPU of a stage.
    pub(super) fn pins_all(&self, stage: &StagePlan) -> bool {
        let all = |slots: &StorePlan| slots.slots() >= slots.experts();
        !self.devices.is_empty() && stage.slots.as_ref().is_some_and(all)
    }
}

//! The least memory that a run works in: what is said when a budget is too small, and granted when it is asked for.
//!
//! What a run holds besides experts depends on the budget itself (context and prefill chunk grow with it), so the
//! least budget is a fixed point: the smallest that holds everything that a run of that budget holds.

use anyhow::Result;
use engine::backend::cpu::{CpuOptions, Requirements};
use engine::drafts::ROUND_TOKENS;
use engine::model::config::ModelConfig;
use store::cache::{SlotBudget, StoreError, StorePlan};

use super::requests::RequestPlan;
use super::stages::{self, StagePlan};
use super::{Part, ROWS, Seats, backend_options};
use crate::arguments::{ByteSize, ModelArguments, SlotCount, StorageChoice};
use crate::failure::Failure;

/// Bytes of a run that no budget changes.
#[derive(Clone, Copy)]
pub(super) struct Constant<'a> {
    /// Dense weights.
    pub(super) trunk: u64,
    /// Tokenizer and process.
    pub(super) process: u64,
    /// The stages; each holds what its layers need.
    pub(super) stages: &'a [StagePlan],
}

/// Everything that a run on the processor holds but the slots.
pub(super) fn parts(
    config: &ModelConfig,
    options: &CpuOptions,
    constant: Constant<'_>,
) -> Vec<Part> {
    let of_stage = |stage: &StagePlan| {
        let options = CpuOptions { layers: stage.layers.clone(), ..options.clone() };
        Requirements::of(config, &options)
    };
    let requirements = constant.stages.iter().map(of_stage).sum::<Requirements>();
    let rows = Part { name: ROWS, bytes: requirements.rows };
    let rows = Some(rows).filter(|part| part.bytes > 0);
    let others = [
        Part { name: "dense trunk", bytes: constant.trunk },
        Part { name: "key-value cache", bytes: requirements.key_values },
        Part { name: "recurrent state", bytes: requirements.recurrent },
        Part { name: "activations", bytes: requirements.activations },
        Part { name: "tokenizer and process", bytes: constant.process },
    ];
    others.into_iter().chain(rows).collect()
}

/// Slots that one step needs: the experts of one layer for every sequence that it computes.
pub(super) fn step_slots(config: &ModelConfig, options: &CpuOptions, sequences: usize) -> usize {
    (options.top_k * sequences.min(ROUND_TOKENS)).min(config.moe.experts)
}

/// The slots that a storage mode takes at least; `None` in the mode without slots.
pub(super) fn least_slots(arguments: &ModelArguments) -> Option<SlotBudget> {
    match (arguments.storage, arguments.slots) {
        (StorageChoice::Mmap | StorageChoice::Resident, _) => None,
        (_, Some(SlotCount::Exactly(slots))) if arguments.storage.has_slots() => {
            Some(SlotBudget::Slots(slots))
        }
        (StorageChoice::Budget | StorageChoice::Buffered, _) => Some(SlotBudget::Steps(1)),
        // Buffers of one visit, and of the next while it is read ahead.
        (StorageChoice::PageCache, _) => Some(SlotBudget::Steps(2)),
    }
}

/// The least budget that a run on the processor works in.
pub(super) fn least_memory(
    arguments: &ModelArguments,
    config: &ModelConfig,
    constant: Constant<'_>,
    seats: Seats,
) -> Result<u64> {
    let checkpoints = stages::checkpoints(constant.stages);
    let mut least = 0;
    loop {
        let options = backend_options(arguments, config, least, seats)?;
        let step = step_slots(config, &options, options.sequences);
        let slots = match (least_slots(arguments), arguments.storage) {
            (Some(slots), _) => StorePlan::budget_over(&checkpoints, slots, step)
                .map(|plans| plans.iter().map(|(plan, _)| plan.bytes()).sum::<u64>()),
            (None, StorageChoice::Resident) => checkpoints
                .iter()
                .map(|it| Ok(StorePlan::resident(it)?.bytes()))
                .sum::<Result<u64, _>>(),
            (None, _) => Ok(0),
        };
        let fixed: u64 = parts(config, &options, constant).iter().map(|part| part.bytes).sum();
        let requests = RequestPlan::of(seats, least, &options).map_or(0, |plan| plan.bytes);
        let needed = fixed + requests + slots.map_err(refusal)?;
        if needed <= least {
            return Ok(least);
        }
        least = needed;
    }
}

/// Too few slots are a matter of `--slots`, not of memory.
fn refusal(error: StoreError) -> Failure {
    match error {
        StoreError::Budget { asked: SlotBudget::Slots(_), .. } => {
            Failure::usage(format!("--slots: {error}"))
        }
        other => Failure::store(other),
    }
}

/// How a user asks for the least budget.
pub(super) fn advice(least: u64) -> String {
    format!("at least --memory {} is needed", ByteSize(least).typed())
}

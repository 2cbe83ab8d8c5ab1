//! How a model's layers are cut into stages, one for each device of `--device`.
//!
//! Without `--split A,B,...` the largest stage is as small as it can be, counted in bytes of weights and experts, and
//! where `--vram` caps devices one by one against its cap: a device's share of its memory decides what it finds there.
//! A cut lies behind a layer with experts, and before one that chooses what it sees itself.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use engine::model::config::{ModelConfig, Sees};
use engine::stages::Stages;
use engine::weights::Catalog;
use store::LayerId;
use store::cache::{SlotBudget, StorePlan};
use store::format::Checkpoint;

use crate::arguments::{DeviceChoice, ModelArguments, Split};
use crate::failure::Failure;

/// A stage of a plan.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// Its layers.
    pub(crate) layers: Range<usize>,
    /// The checkpoint as its store sees it.
    checkpoint: Arc<Checkpoint>,
    /// Its slots; `None` in the modes without a pool.
    pub(crate) slots: Option<StorePlan>,
    /// What they were planned from.
    pub(super) slot_budget: SlotBudget,
}

/// The layers of each stage, in order.
///
/// # Errors
/// A split that is not one of this model, or devices that cannot be stages of one model yet.
pub(super) fn cut(
    arguments: &ModelArguments,
    checkpoint: &Arc<Checkpoint>,
    (catalog, config): (&Catalog<'_>, &ModelConfig),
) -> Result<Vec<StagePlan>> {
    let layers = checkpoint.experts.len();
    if let Some(ranges) = crate::hosts::ranges(arguments, layers)? {
        begin_with_owners(config, &ranges).map_err(Failure::usage)?;
        let stage = |range: Range<usize>| {
            let own = Arc::new(checkpoint.experts_of(&range));
            StagePlan::new(range, own)
        };
        return Ok(ranges.into_iter().map(stage).collect());
    }
    let devices = arguments.device.all();
    let split = &arguments.split;
    if let Some(caps) = arguments.vram.as_ref().filter(|caps| !caps.fits(devices.len())) {
        let (shown, count) = (&arguments.device, devices.len());
        let reason = format!(
            "--vram {caps}: give one size, or one for each of the {count} devices of --device {shown}"
        );
        return Err(Failure::usage(reason).into());
    }
    if devices.len() == 1 {
        if *split != Split::Auto {
            let reason = "--split cuts the layers of a model for several devices: --device cpu,cpu";
            return Err(Failure::usage(reason).into());
        }
        return Ok(vec![StagePlan::new(0..layers, Arc::clone(checkpoint))]);
    }
    let ranges = match split {
        Split::Layers(counts) => by_counts(counts),
        Split::Auto => {
            let bytes = layer_bytes(checkpoint, catalog);
            let ends = may_end(checkpoint, config);
            let cap = |stage| arguments.vram.as_ref().and_then(|caps| caps.of(stage));
            let caps = (0..devices.len()).map(|stage| cap(stage).map_or(1, |size| size.0.max(1)));
            automatic(&bytes, &ends, &caps.collect::<Vec<_>>())
        }
    };
    let refuse = |found: String| Failure::usage(format!("--split {split}: {found}"));
    if ranges.len() != devices.len() {
        let (stages, count) = (ranges.len(), devices.len());
        let found = match split {
            Split::Auto => format!(
                "{count} devices, and the layers make {stages} stages that end with experts"
            ),
            Split::Layers(_) => format!("{stages} stages for {count} devices"),
        };
        return Err(refuse(found).into());
    }
    Stages::check(layers, &ranges).map_err(|error| refuse(error.to_string()))?;
    begin_with_owners(config, &ranges).map_err(refuse)?;
    let behind =
        |range: &Range<usize>| range.end < layers && checkpoint.experts[range.end - 1].is_none();
    if devices[0] != DeviceChoice::Cpu
        && let Some(range) = ranges.iter().find(|range| behind(range))
    {
        let last = range.end - 1;
        let found = format!(
            "a stage would end with layer {last}, which has no experts: a GPU's ends with one that has"
        );
        return Err(refuse(found).into());
    }
    let stage = |range: Range<usize>| {
        let own = Arc::new(checkpoint.experts_of(&range));
        StagePlan::new(range, own)
    };
    Ok(ranges.into_iter().map(stage).collect())
}

impl StagePlan {
    fn new(layers: Range<usize>, checkpoint: Arc<Checkpoint>) -> Self {
        Self { layers, checkpoint, slots: None, slot_budget: SlotBudget::Slots(0) }
    }

    /// The checkpoint as its store sees it.
    pub(super) fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// What its slots were planned from: its store plans them again, and the same.
    pub(super) fn slot_budget(&self) -> SlotBudget {
        self.slot_budget
    }
}

/// The checkpoints of stages, as their stores see them.
pub(super) fn checkpoints(stages: &[StagePlan]) -> Vec<Arc<Checkpoint>> {
    stages.iter().map(|stage| Arc::clone(&stage.checkpoint)).collect()
}

/// Dense weights of all stages: an embedding that is the head as well is there twice.
pub(super) fn trunk_bytes(stages: &[StagePlan], catalog: &Catalog<'_>) -> u64 {
    stages.iter().map(|stage| catalog.of_layers(stage.layers.clone()).required_bytes()).sum()
}

/// Bytes of weights and experts of each layer.
fn layer_bytes(checkpoint: &Checkpoint, catalog: &Catalog<'_>) -> Vec<u64> {
    let bytes = |layer: usize| {
        let experts = checkpoint.experts[layer].as_ref().map_or(0, |it| it.experts.len() as u64);
        let record = checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
        catalog.of_layers(layer..layer + 1).required_bytes() + experts * record
    };
    (0..checkpoint.experts.len()).map(bytes).collect()
}

/// By layer: whether a stage may end with it.
fn may_end(checkpoint: &Checkpoint, config: &ModelConfig) -> Vec<bool> {
    let experts = checkpoint.experts.iter().enumerate();
    experts.map(|(layer, it)| it.is_some() && !shares(config, layer + 1)).collect()
}

/// By layer: whether a stage of a process of its own may begin with it; of a GPU the stage before ends with experts.
pub(crate) fn may_begin(checkpoint: &Checkpoint, config: &ModelConfig, on_gpu: bool) -> Vec<bool> {
    let begins = |layer: usize| {
        layer > 0 && !shares(config, layer) && (!on_gpu || checkpoint.experts[layer - 1].is_some())
    };
    (0..checkpoint.experts.len()).map(begins).collect()
}

/// True for a layer that sees what an earlier one chose.
fn shares(config: &ModelConfig, layer: usize) -> bool {
    config.layers.get(layer).is_some_and(|it| it.sees == Sees::AsBefore)
}

/// Says which layer no device's part begins with.
fn begin_with_owners(config: &ModelConfig, ranges: &[Range<usize>]) -> Result<(), String> {
    let Some(range) = ranges.iter().find(|range| shares(config, range.start)) else {
        return Ok(());
    };
    let layer = range.start;
    Err(format!(
        "layer {layer} sees what an earlier layer chose: the layers of a device do not begin there"
    ))
}

/// Stages of so many layers each.
fn by_counts(counts: &[usize]) -> Vec<Range<usize>> {
    let mut next = 0;
    let range = |&count: &usize| {
        let start = next;
        next += count;
        start..next
    };
    counts.iter().map(range).collect()
}

/// The cut into a stage for each of `caps` whose largest, as a share of its cap, is smallest; the earliest such. Each
/// ends behind a layer that may end one, such as those with experts. Fewer stages where there are fewer such layers.
fn automatic(bytes: &[u64], may_end: &[bool], caps: &[u64]) -> Vec<Range<usize>> {
    /// Parts of a share that are told apart.
    const PARTS: u128 = 1 << 40;
    let layers = bytes.len();
    let share = |range: Range<usize>, stage: usize| {
        u128::from(bytes[range].iter().sum::<u64>()) * PARTS / u128::from(caps[stage - 1])
    };
    let ends: Vec<usize> = (1..layers).filter(|&end| may_end[end - 1]).collect();
    let stages = caps.len().min(ends.len() + 1);
    // By end: the largest stage of the best cut of the layers before it, and where its last stage begins.
    let mut best: Vec<Option<(u128, Vec<usize>)>> = (0..=layers).map(|_| None).collect();
    best[0] = Some((0, Vec::new()));
    for stage in 1..=stages {
        let mut next: Vec<Option<(u128, Vec<usize>)>> = (0..=layers).map(|_| None).collect();
        let allowed = ends.iter().copied().filter(|_| stage < stages);
        for end in allowed.chain((stage == stages).then_some(layers)) {
            for (start, before) in best.iter().enumerate().take(end) {
                let Some((largest, starts)) = before else { continue };
                let largest = (*largest).max(share(start..end, stage));
                if next[end].as_ref().is_none_or(|(known, _)| largest < *known) {
                    let starts = starts.iter().copied().chain([start]).collect();
                    next[end] = Some((largest, starts));
                }
            }
        }
        best = next;
    }
    let starts = best.pop().flatten().map_or_else(|| vec![0], |(_, starts)| starts);
    let ends = starts.iter().copied().skip(1).chain([layers]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_stage_is_as_small_as_it_can_be() {
        let all = [true; 6];
        assert_eq!(automatic(&[1; 6], &all, &[1]), vec![Range { start: 0, end: 6 }]);
        assert_eq!(automatic(&[1; 6], &all, &[1; 2]), [0..3, 3..6]);
        assert_eq!(automatic(&[1; 6], &all, &[1; 3]), [0..2, 2..4, 4..6]);
        assert_eq!(automatic(&[9, 1, 1, 1, 1, 5], &all, &[1; 2]), [0..1, 1..6]);
        assert_eq!(automatic(&[1, 1, 1, 1, 1, 9], &all, &[1; 2]), [0..5, 5..6]);
    }

    #[test]
    fn a_stage_with_a_larger_cap_has_more_layers() {
        let all = [true; 6];
        assert_eq!(automatic(&[1 << 30; 6], &all, &[20 << 30, 10 << 30]), [0..4, 4..6]);
        assert_eq!(automatic(&[1 << 30; 6], &all, &[1 << 30, 5 << 30]), [0..1, 1..6]);
        assert_eq!(automatic(&[1 << 30; 6], &all, &[7; 2]), [0..3, 3..6]);
    }

    #[test]
    fn a_stage_ends_behind_a_layer_with_experts() {
        let experts = [false, false, true, true, false, true];
        assert_eq!(automatic(&[1; 6], &experts, &[1; 2]), [0..3, 3..6]);
        assert_eq!(automatic(&[5, 5, 1, 1, 1, 1], &experts, &[1; 3]), [0..3, 3..4, 4..6]);
        assert_eq!(
            automatic(&[1; 6], &experts, &[1; 9]),
            [0..3, 3..4, 4..6],
            "no more than there are"
        );
        assert_eq!(automatic(&[1; 3], &[false; 3], &[1; 2]), vec![Range { start: 0, end: 3 }]);
    }

    #[test]
    fn a_split_counts_layers() {
        assert_eq!(by_counts(&[2, 3]), [0..2, 2..5]);
        assert_eq!(by_counts(&[0, 3]), [0..0, 0..3]);
    }
}

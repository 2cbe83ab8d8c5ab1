//! The GPUs of a plan, one for each stage: what each takes, and what they are together.

use std::ops::Range;

use anyhow::Result;
use engine::backend::cpu::CpuOptions;
use engine::backend::cuda::{CudaOptions, Prediction};
use engine::backend::gpu;
use engine::model::config::ModelConfig;
use engine::weights::Catalog;
use store::cache::StorePlan;
use store::format::ProjectionShape;

use super::Plan;
use super::device::{DevicePlan, FoundDevice};
use super::stages::StagePlan;
use crate::arguments::{ModelArguments, PredictChoice};
use crate::failure::Failure;

impl Plan {
    /// The GPU of the first stage, where GPUs compute: all are of one kind.
    pub(crate) fn device(&self) -> Option<&DevicePlan> {
        self.devices.first()
    }

    /// The names of the GPUs that compute, each once.
    pub(crate) fn device_names(&self) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        for device in &self.devices {
            if !names.contains(&&*device.info.name) {
                names.push(&device.info.name);
            }
        }
        (!names.is_empty()).then(|| names.join(" and "))
    }

    /// Slots in the memory of all GPUs at the start, and the experts that they are for.
    pub(crate) fn device_slots(&self) -> (usize, usize) {
        let sum =
            |sum: (usize, usize), it: &DevicePlan| (sum.0 + it.slots.start, sum.1 + it.experts);
        self.devices.iter().fold((0, 0), sum)
    }
}

/// A model as its devices are planned by.
pub(super) struct PlannedModel<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) catalog: &'a Catalog<'a>,
    /// Projections of experts, by layer.
    pub(super) shapes: &'a [Option<[ProjectionShape; 3]>],
}

/// The GPU's part of each stage. Where no chunk was asked for, `backend` gets the longest that is right for all.
///
/// # Errors
/// Less memory than a batch needs.
pub(super) fn plan_devices(
    arguments: &ModelArguments,
    found: Vec<FoundDevice>,
    PlannedModel { config, catalog, shapes }: PlannedModel<'_>,
    stages: &[StagePlan],
    backend: &mut CpuOptions,
    pages: usize,
) -> Result<Vec<DevicePlan>> {
    let all = found.into_iter().zip(stages).map(|(found, stage)| {
        let records = StorePlan::resident(stage.checkpoint()).map_err(Failure::store)?;
        Ok((found, catalog.of_layers(stage.layers.clone()), records, stage.layers.clone()))
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    if arguments.prefill_chunk.is_none() {
        let chunks = all.iter().map(|(found, catalog, records, layers)| {
            let options = cuda_options(arguments, backend, pages, layers);
            found.chunk(config, catalog, records, &options)
        });
        let chunk = chunks.min().unwrap_or(backend.batch_tokens);
        backend.batch_tokens = chunk.max(backend.sequences).max(backend.round_tokens);
    }
    let plan = |(found, catalog, records, layers): (FoundDevice, Catalog<'_>, StorePlan, _)| {
        let options = cuda_options(arguments, backend, pages, &layers);
        let slot = found.portable.is_some().then(|| gpu::slot_bytes(&shapes[layers]));
        DevicePlan::new(found, config, &catalog, &records, slot, options, arguments.kv)
    };
    all.into_iter().map(plan).collect()
}

/// Devices whose drivers take memory of the process: each of them once.
pub(super) fn drivers(devices: &[DevicePlan]) -> u64 {
    let mut all: Vec<usize> = devices.iter().map(|device| device.info.ordinal).collect();
    all.sort_unstable();
    all.dedup();
    all.len() as u64
}

/// The limits of a batch as the backend of a GPU takes them that computes some layers.
fn cuda_options(
    arguments: &ModelArguments,
    options: &CpuOptions,
    snapshot_pages: usize,
    layers: &Range<usize>,
) -> CudaOptions {
    CudaOptions {
        layers: layers.clone(),
        batch_tokens: options.batch_tokens,
        logit_rows: options.logit_rows,
        sequences: options.sequences,
        snapshots: options.snapshots,
        snapshot_pages,
        context: options.context,
        kv_type: options.kv_type,
        top_k: options.top_k,
        prediction: match arguments.predict {
            PredictChoice::Off => Prediction::Off,
            PredictChoice::On => Prediction::On,
            PredictChoice::Auto => Prediction::Auto,
        },
        round_tokens: options.round_tokens,
    }
}

//! Engines of golden checkpoints on the processor, and files of snapshots: what tests of sequences and rounds share.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::backend::Snapshot;
use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::stages::Stage;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::format::Checkpoint;
use store::rows::RowOptions;
use store::trunk::LoadMode;

/// Where an engine's layers are computed, and how large it is.
pub(crate) struct Sizes<'a> {
    pub(crate) kv_type: KvType,
    pub(crate) context: usize,
    /// The first layers of stages but the first.
    pub(crate) cuts: &'a [usize],
    /// Slots, as often as a step needs them.
    pub(crate) steps: usize,
}

fn folder_of(case: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match case {
        "demo" => root.join("models/demo"),
        golden => root.join("tests/golden").join(golden).join("model"),
    }
}

/// The configuration of a golden case, or of the demo model.
pub(crate) fn config_of(case: &str) -> ModelConfig {
    ModelConfig::read(&store::format::open(&folder_of(case)).unwrap().config).unwrap()
}

/// An engine with rounds, three sequences and six snapshots.
pub(crate) fn engine_of(case: &str, kv_type: KvType, context: usize) -> Engine {
    engine_in(case, &Sizes { kv_type, context, cuts: &[], steps: 1 })
}

/// The same with several stages: all on the processor, each with a store of its own.
pub(crate) fn engine_in(case: &str, sizes: &Sizes<'_>) -> Engine {
    let checkpoint = Arc::new(store::format::open(&folder_of(case)).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let starts = std::iter::once(0).chain(sizes.cuts.iter().copied());
    let ends = sizes.cuts.iter().copied().chain([config.layers.len()]);
    let stages = starts.zip(ends).map(|(start, end)| Stage {
        layers: start..end,
        backend: Box::new(backend_of(&checkpoint, &config, start..end, sizes)),
    });
    let stages = stages.collect();
    Engine::over(config, model, stages, 64).unwrap()
}

fn backend_of(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    layers: Range<usize>,
    sizes: &Sizes<'_>,
) -> CpuBackend {
    let mut catalog = Catalog::new(checkpoint);
    Model::declare(config, &mut catalog).unwrap();
    catalog.restrict(layers.clone());
    let rows = catalog.open_rows(|_| RowOptions::default()).unwrap();
    let bytes = catalog.required_bytes();
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(weights.resident_bytes() <= bytes, "no more than was counted");
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(sizes.steps);
    let own = Arc::new(checkpoint.experts_of(&layers));
    let experts = Arc::new(ExpertStore::open(own, options).unwrap());
    let limits = CpuOptions {
        layers,
        batch_tokens: 64,
        logit_rows: 8,
        sequences: 3,
        snapshots: 6,
        context: sizes.context,
        kv_growth: KvGrowth::Grow,
        kv_type: sizes.kv_type,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: ROUND_TOKENS,
        row_cache: 0,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(checkpoint, config).unwrap();
    let compute = Compute::new(options).unwrap();
    let backend = CpuBackend::new(config.clone(), weights, experts, shapes, compute, limits);
    let mut backend = backend.unwrap();
    backend.set_rows(rows).unwrap();
    backend
}

/// Everything that a snapshot leaves on disk.
pub(crate) fn file_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = Vec::new();
    for page in 0..snapshot.full_pages() {
        snapshot.write_page(page, &mut file).unwrap();
    }
    snapshot.write_rest(&mut file).unwrap();
    file
}

//! Engines of golden checkpoints on the processor, and files of snapshots: what tests of sequences and rounds share.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use engine::backend::Snapshot;
use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::rows::RowOptions;
use store::trunk::LoadMode;

/// An engine with rounds, three sequences and six snapshots.
pub(crate) fn engine_of(case: &str, kv_type: KvType, context: usize) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let checkpoint = Arc::new(store::format::open(&folder.join("model")).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    let rows = catalog.open_rows(|_| RowOptions::default()).unwrap();
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(1);
    let experts = Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap());
    let limits = CpuOptions {
        batch_tokens: 64,
        logit_rows: 8,
        sequences: 3,
        snapshots: 6,
        context,
        kv_growth: KvGrowth::Grow,
        kv_type,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: ROUND_TOKENS,
        row_cache: 0,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let compute = Compute::new(options).unwrap();
    let backend = CpuBackend::new(config.clone(), weights, experts, shapes, compute, limits);
    let mut backend = backend.unwrap();
    backend.set_rows(rows).unwrap();
    Engine::new(config, model, Box::new(backend), 64)
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

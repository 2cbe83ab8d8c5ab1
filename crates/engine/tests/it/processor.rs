//! Engines of golden checkpoints on the processor, and files of snapshots: what tests of sequences and rounds share.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

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
    /// All experts in memory, and arithmetic in binary32.
    pub(crate) exact: bool,
}

/// What is behind the name of a golden case for the net with its head.
pub(crate) const HEAD: &str = "+head";

/// Where the golden checkpoints lie: the crate's folder at run time, where it was told, for binaries that travel.
pub(crate) fn golden() -> PathBuf {
    root().join("tests/golden")
}

fn root() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).join("../..")
}

/// A folder with a golden case's files and those of its head.
fn joined(case: &str) -> PathBuf {
    static FOLDERS: LazyLock<Mutex<HashMap<String, tempfile::TempDir>>> =
        LazyLock::new(Mutex::default);
    let mut folders = FOLDERS.lock().unwrap();
    let made = folders.entry(case.to_owned()).or_insert_with(|| {
        let folder = tempfile::tempdir().unwrap();
        for entry in golden().join(case).join("model").read_dir().unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let head = golden().join("heads").join(case).join("mtp.safetensors");
        std::fs::copy(head, folder.path().join("mtp.safetensors")).unwrap();
        folder
    });
    made.path().to_owned()
}

pub(crate) fn folder_of(case: &str) -> PathBuf {
    if let Some(case) = case.strip_suffix(HEAD) {
        return joined(case);
    }
    match case {
        "demo" => root().join("models/demo"),
        case => golden().join(case).join("model"),
    }
}

/// A golden case, or the demo model, with its head where the name says so.
pub(crate) fn opened(case: &str) -> (Checkpoint, ModelConfig) {
    let checkpoint = store::format::open(&folder_of(case)).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    match case.ends_with(HEAD) {
        true => (checkpoint.with_head().unwrap(), config.with_head().unwrap()),
        false => (checkpoint, config),
    }
}

/// The configuration of a golden case, or of the demo model.
pub(crate) fn config_of(case: &str) -> ModelConfig {
    opened(case).1
}

/// An engine with rounds, three sequences and six snapshots.
pub(crate) fn engine_of(case: &str, kv_type: KvType, context: usize) -> Engine {
    engine_in(case, &Sizes { kv_type, context, cuts: &[], steps: 1, exact: false })
}

/// The same with several stages: all on the processor, each with a store of its own.
pub(crate) fn engine_in(case: &str, sizes: &Sizes<'_>) -> Engine {
    let (checkpoint, config) = opened(case);
    engine_from(&checkpoint, config, sizes)
}

/// The same from an opened checkpoint.
pub(crate) fn engine_from(
    checkpoint: &Checkpoint,
    config: ModelConfig,
    sizes: &Sizes<'_>,
) -> Engine {
    let model = Model::declare(&config, &mut Catalog::new(checkpoint)).unwrap();
    let starts = std::iter::once(0).chain(sizes.cuts.iter().copied());
    let ends = sizes.cuts.iter().copied().chain([config.layers.len()]);
    let stages = starts.zip(ends).map(|(start, end)| Stage {
        layers: start..end,
        backend: Box::new(backend_of(checkpoint, &config, start..end, sizes)),
    });
    let stages = stages.collect();
    Engine::over(config, model, stages, 64).unwrap()
}

pub(crate) fn backend_of(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    layers: Range<usize>,
    sizes: &Sizes<'_>,
) -> CpuBackend {
    backend_leaving(checkpoint, config, layers, sizes, false)
}

/// The same; it may `leave` what is behind the last layer to another.
pub(crate) fn backend_leaving(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    layers: Range<usize>,
    sizes: &Sizes<'_>,
    leave: bool,
) -> CpuBackend {
    let mut catalog = Catalog::new(checkpoint);
    Model::declare(config, &mut catalog).unwrap();
    catalog.restrict(layers.clone());
    if leave {
        catalog.leave_behind();
    }
    let rows = catalog.open_rows(|_| RowOptions::default()).unwrap();
    let bytes = catalog.required_bytes();
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(weights.resident_bytes() <= bytes, "no more than was counted");
    let mode = if sizes.exact { StorageMode::Resident } else { StorageMode::Budget };
    let mut options = StoreOptions::new(mode, 3 * config.moe.top_k);
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
    let arithmetic = if sizes.exact { Arithmetic::F32 } else { Arithmetic::Int16 };
    let options = ComputeOptions { threads: 1, arithmetic, isa: Isa::Auto };
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

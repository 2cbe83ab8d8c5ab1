//! What all tests of the portable GPU backend share: adapters, golden checkpoints, engines over them.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::gpu::{
    self, Adapter, ExpertMemory, Gpu, GpuBackend, GpuOptions, Pieces, Prediction, check_kv_type,
    check_model, slot_bytes,
};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::routing::Routing;
use engine::stages::Stage;
use engine::weights::Catalog;
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::format::Checkpoint;
use store::io::Simulator;
use store::trunk::LoadMode;

use super::long::{part_from, tested};
use super::processor;

/// One of each way that tokens are mixed, one of layers with windows and experts with biases, and one of layers with
/// windows, without rotation and without experts.
pub(crate) const MIXERS: [&str; 7] = [
    "qwen35-calm-mlx-mixed",
    "qwen3-calm-hf",
    "gptoss-calm-mxfp4",
    "deepseek-calm-hf",
    "exaone-calm-hf",
    "kimi-linear-calm-hf",
    "dsv4-calm-hf",
];
/// Those whose steps are looked at with pieces of every length, reads that fail and come late, and records in RAM: on a
/// driver that computes on the processor the others would take as long again.
pub(crate) const STEPPED: [&str; 3] = [MIXERS[0], MIXERS[1], MIXERS[2]];
const CONTEXT: usize = 640;
pub(crate) const CHUNK: usize = 64;
pub(crate) const ALL: usize = usize::MAX;

pub(crate) fn adapter() -> Option<Adapter> {
    tested(gpu::adapters().unwrap_or_default(), |it| it.kind == gpu::Kind::Software)
}

/// All of [`MIXERS`], or by default every second; tests begin with either of the first two.
pub(crate) fn mixers(first: usize) -> impl Iterator<Item = &'static str> {
    part_from(first, MIXERS, 2)
}

/// Cases with types of keys and values: each with f16, and with q8 where the kernels store its rows; by default each
/// with one of them.
pub(crate) fn typed(
    cases: impl IntoIterator<Item = &'static str>,
) -> impl Iterator<Item = (&'static str, KvType)> {
    cases.into_iter().enumerate().flat_map(|(number, case)| {
        let config = opened(case).1;
        let served = |it: &KvType| check_kv_type(*it, &config).is_ok();
        let others = std::iter::once(KvType::Q8).chain(config.trained_kv_type());
        let types: Vec<_> = others.filter(served).chain([KvType::F16]).collect();
        let count = types.len();
        part_from(number, types, count).map(move |it| (case, it))
    })
}

/// Tests that try a part of the nets begin with either: together they have all.
#[test]
fn no_net_is_left_out_by_default() {
    let mut tried: Vec<_> = [0, 1].into_iter().flat_map(mixers).collect();
    tried.sort_unstable();
    tried.dedup();
    assert_eq!(tried.len(), MIXERS.len(), "{tried:?}");
}

/// A golden case's folder.
pub(crate) fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

pub(crate) fn opened(case: &str) -> (Arc<Checkpoint>, ModelConfig) {
    let checkpoint = Arc::new(store::format::open(&processor::folder_of(case)).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    (checkpoint, config)
}

/// An engine with at most `slots` experts in GPU memory.
pub(crate) fn engine(
    adapter: &Adapter,
    case: &str,
    slots: usize,
    kv_type: KvType,
    chunk: usize,
) -> Engine {
    let limits = limits(case, kv_type, Pieces::Adaptive);
    engine_with(adapter, case, slots, limits, None, chunk).0
}

/// The limits of a case's backend.
pub(crate) fn limits(case: &str, kv_type: KvType, pieces: Pieces) -> GpuOptions {
    let config = opened(case).1;
    GpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: CHUNK,
        logit_rows: 8,
        sequences: 3,
        snapshots: 6,
        snapshot_pages: 24,
        context: CONTEXT,
        kv_type,
        top_k: config.moe.top_k,
        pieces,
        prediction: Prediction::Off,
    }
}

/// As [`engine`], with other limits and files that a simulator reads; and its store.
pub(crate) fn engine_with(
    adapter: &Adapter,
    case: &str,
    slots: usize,
    limits: GpuOptions,
    storage: Option<Simulator>,
    chunk: usize,
) -> (Engine, Arc<ExpertStore>) {
    let (checkpoint, config) = opened(case);
    // Where reads are to fail the host tier is as small as it can be.
    let minimum = if storage.is_some() { config.moe.top_k } else { 3 * config.moe.top_k };
    let mut options = StoreOptions::new(StorageMode::Budget, minimum);
    options.slots = SlotBudget::Steps(1);
    options.storage = storage.map(|it| Box::new(it) as _);
    engine_over(adapter, (checkpoint, config), slots, limits, options, chunk, Routing::default())
}

/// As [`engine_with`], of any checkpoint, any host tier and any routing.
pub(crate) fn engine_over(
    adapter: &Adapter,
    checkpoint: (Arc<Checkpoint>, ModelConfig),
    slots: usize,
    limits: GpuOptions,
    options: StoreOptions,
    chunk: usize,
    routing: Routing,
) -> (Engine, Arc<ExpertStore>) {
    let gpu = Gpu::open(adapter.clone()).unwrap();
    engine_on(gpu, checkpoint, slots, limits, options, chunk, routing)
}

/// As [`engine_over`], on a GPU that is open.
pub(crate) fn engine_on(
    gpu: Gpu,
    (checkpoint, config): (Arc<Checkpoint>, ModelConfig),
    slots: usize,
    limits: GpuOptions,
    options: StoreOptions,
    chunk: usize,
    routing: Routing,
) -> (Engine, Arc<ExpertStore>) {
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let (backend, store) = backend_on(gpu, (&checkpoint, &config), slots, limits, options, routing);
    (Engine::new(config, model, Box::new(backend), chunk), store)
}

/// An engine whose stages begin with these layers but the first: each on a device and with a store of its own, with
/// slots for so many records.
pub(crate) fn engine_cut(
    adapter: &Adapter,
    case: &str,
    cuts: &[usize],
    slots: usize,
    limits: &GpuOptions,
    routing: &Routing,
) -> Engine {
    let (checkpoint, config) = opened(case);
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([config.layers.len()]);
    let stages = starts.zip(ends).map(|(start, end)| {
        let limits = GpuOptions { layers: start..end, ..limits.clone() };
        let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
        options.slots = SlotBudget::Steps(1);
        let gpu = Gpu::open(adapter.clone()).unwrap();
        let model = (&checkpoint, &config);
        let (backend, _) = backend_on(gpu, model, slots, limits, options, routing.clone());
        Stage { layers: start..end, backend: Box::new(backend) }
    });
    let stages = stages.collect();
    Engine::over(config, model, stages, CHUNK).unwrap()
}

/// How many of these layers have experts.
pub(crate) fn mixtures(config: &ModelConfig, layers: &Range<usize>) -> usize {
    config.layers[layers.clone()].iter().filter(|it| it.feed_forward.has_mixture()).count()
}

/// Layers that have experts, and their records.
pub(crate) fn all_records(config: &ModelConfig) -> [usize; 2] {
    let layers = mixtures(config, &(0..config.layers.len()));
    [layers, layers * config.moe.experts]
}

/// A backend of the layers that its limits say.
fn backend_on(
    gpu: Gpu,
    (checkpoint, config): (&Arc<Checkpoint>, &ModelConfig),
    slots: usize,
    limits: GpuOptions,
    options: StoreOptions,
    routing: Routing,
) -> (GpuBackend, Arc<ExpertStore>) {
    let mut catalog = Catalog::new(checkpoint);
    let model = Model::declare(config, &mut catalog).unwrap();
    let shapes = expert_shapes(checkpoint, config).unwrap();
    check_model(config, &model.program, &catalog, &shapes).unwrap();
    let layers = limits.layers.clone();
    catalog.restrict(layers.clone());
    let records = mixtures(config, &layers) * config.moe.experts;
    let own = Arc::new(checkpoint.experts_of(&layers));
    let store = Arc::new(ExpertStore::open(own, options).unwrap());
    let memory = ExpertMemory {
        store: Arc::clone(&store),
        slot_bytes: slot_bytes(&shapes),
        slots: slots.min(records),
        progress: None,
    };
    let shares = gpu.adapter().host_alignment.is_some();
    let device = (gpu, limits);
    let mut goes_on = |_| ControlFlow::Continue(());
    let mode = LoadMode::Read;
    let backend =
        GpuBackend::new(config.clone(), &catalog, mode, memory, &shapes, device, &mut goes_on);
    let mut backend = backend.unwrap();
    // Said to the user: a driver that does not share RAM makes experts without a slot slower.
    let outside = store.report().mode == StorageMode::Resident && slots < records;
    assert_eq!(backend.host_copies(), outside && !shares);
    backend.set_routing(routing).unwrap();
    (backend, store)
}

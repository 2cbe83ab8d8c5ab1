//! Engines of golden checkpoints on NVIDIA GPUs, on one or with stages on several: what tests of rounds and of stages
//! share. The same GPU may have several stages.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::cuda::{
    CudaBackend, CudaOptions, ExpertMemory, Prediction, SlotShare, check_model, probe,
};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::routing::Routing;
use engine::stages::Stage;
use engine::weights::Catalog;
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions, StorePlan};
use store::format::Checkpoint;
use store::io::IoEngine;
use store::rows::RowOptions;
use store::trunk::LoadMode;

use crate::processor;

/// Where an engine computes, and how large it is.
#[derive(Clone)]
pub(crate) struct On<'a> {
    pub(crate) kv_type: KvType,
    pub(crate) context: usize,
    pub(crate) round_tokens: usize,
    /// A slot of device memory for one of so many records.
    pub(crate) part: usize,
    /// The first layers of stages but the first.
    pub(crate) cuts: &'a [usize],
    /// Spread stages over all GPUs; otherwise all are on the first.
    pub(crate) spread: bool,
    pub(crate) prediction: Prediction,
    pub(crate) routing: Routing,
}

impl On<'_> {
    /// One GPU with a slot for every record.
    pub(crate) fn one() -> Self {
        Self {
            kv_type: KvType::F16,
            context: 640,
            round_tokens: 1,
            part: 1,
            cuts: &[],
            spread: false,
            prediction: Prediction::Off,
            routing: Routing::default(),
        }
    }
}

/// The checkpoint of a golden case, with its head where the name says so, and its configuration.
pub(crate) fn opened(case: &str) -> (Arc<Checkpoint>, ModelConfig) {
    let (checkpoint, config) = processor::opened(case);
    (Arc::new(checkpoint), config)
}

/// Layers behind which a cut may lie.
pub(crate) fn ends(case: &str) -> Vec<usize> {
    let layers = opened(case).1.layers;
    (1..layers.len()).filter(|&end| layers[end - 1].feed_forward.has_mixture()).collect()
}

/// GPUs that there are.
pub(crate) fn devices() -> usize {
    (0..).take_while(|&ordinal| probe(ordinal).is_ok()).count()
}

/// An engine with three sequences and six snapshots.
pub(crate) fn engine_on(case: &str, on: &On<'_>) -> Engine {
    let (checkpoint, config) = opened(case);
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let starts = std::iter::once(0).chain(on.cuts.iter().copied());
    let ends = on.cuts.iter().copied().chain([config.layers.len()]);
    let devices = if on.spread { devices() } else { 1 };
    let stages = starts.zip(ends).enumerate().map(|(index, (start, end))| Stage {
        layers: start..end,
        backend: Box::new(backend_on(&checkpoint, &config, (start, end), index % devices, on)),
    });
    let stages = stages.collect();
    Engine::over(config, model, stages, 64).unwrap()
}

fn backend_on(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    (start, end): (usize, usize),
    ordinal: usize,
    on: &On<'_>,
) -> CudaBackend {
    let mut catalog = Catalog::new(checkpoint);
    let model = Model::declare(config, &mut catalog).unwrap();
    let shapes = expert_shapes(checkpoint, config).unwrap();
    check_model(config, &model.program, &catalog, &shapes).unwrap();
    catalog.restrict(start..end);
    let own = Arc::new(checkpoint.experts_of(&(start..end)));
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(1);
    let records = StorePlan::resident(&own).unwrap();
    let slot_bytes = records.classes.iter().map(|class| class.slot_bytes).max().unwrap();
    let memory = ExpertMemory {
        store: Arc::new(ExpertStore::open(own, options).unwrap()),
        slot_bytes,
        device_slots: SlotShare::fixed(records.experts() / on.part),
        progress: None,
    };
    let limits = CudaOptions {
        layers: start..end,
        batch_tokens: 64,
        logit_rows: 8,
        sequences: 3,
        snapshots: 6,
        snapshot_pages: 24,
        context: on.context,
        kv_type: on.kv_type,
        top_k: config.moe.top_k,
        prediction: on.prediction,
        round_tokens: on.round_tokens,
    };
    let mut routing = on.routing.clone();
    routing.set_routers(model.program.routers(), model.program.router_biases());
    let rows = catalog.open_rows(|_| RowOptions { io: IoEngine::Pread, ..RowOptions::default() });
    let backend = CudaBackend::new(
        config.clone(),
        &catalog,
        LoadMode::Read,
        memory,
        &shapes,
        routing,
        ordinal,
        limits,
        &mut |_| ControlFlow::Continue(()),
    );
    let mut backend = backend.unwrap();
    backend.set_rows(rows.unwrap()).unwrap();
    backend
}

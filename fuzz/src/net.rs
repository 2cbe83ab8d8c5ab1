//! Small models that run within this process: what flipped bits and vanished clients meet.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use server::Log;
use server::work::{EngineWorker, ModelCard, Worker as _, WorkerOptions};
use store::cache::{ExpertStore, StorageMode, StoreOptions};
use store::format::Checkpoint;
use store::rows::RowOptions;
use store::trunk::LoadMode;
use text::{Language, OnFull, TemplateHost};

use crate::target::root;

/// What a small model is given.
pub(crate) struct Room {
    pub(crate) context: usize,
    pub(crate) sequences: usize,
    pub(crate) snapshots: usize,
    /// Every read of an expert is compared with its checksum.
    pub(crate) check_reads: bool,
}

const CHUNK: usize = 32;

/// Loads a checkpoint. The error is a line, as users read it.
pub(crate) fn engine(checkpoint: Checkpoint, room: &Room) -> Result<Engine, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let checkpoint = Arc::new(checkpoint);
    let config = ModelConfig::read(&checkpoint.config).map_err(|error| told(&error))?;
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).map_err(|error| told(&error))?;
    let rows = catalog.open_rows(|_| RowOptions::default()).map_err(|error| told(&error))?;
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(()));
    let weights = weights.map_err(|error| told(&error))?;
    let minimum = (room.sequences * config.moe.top_k).min(config.moe.experts);
    let options = StoreOptions::new(StorageMode::Resident, minimum);
    let options = StoreOptions { check_reads: room.check_reads, ..options };
    let experts = ExpertStore::open(checkpoint.clone(), options).map_err(|error| told(&error))?;
    let limits = CpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: CHUNK,
        logit_rows: 8,
        sequences: room.sequences,
        snapshots: room.snapshots,
        context: room.context,
        kv_growth: KvGrowth::Grow,
        kv_type: KvType::F16,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: 1,
        row_cache: 0,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(&checkpoint, &config).map_err(|error| told(&error))?;
    let compute = Compute::new(options).map_err(|error| told(&error))?;
    let experts = Arc::new(experts);
    let mut backend = CpuBackend::new(config.clone(), weights, experts, shapes, compute, limits)
        .map_err(|error| told(&error))?;
    backend.set_rows(rows).map_err(|error| told(&error))?;
    Ok(Engine::new(config, model, Box::new(backend), CHUNK))
}

/// A panic of the engine ends a request, not the process: its count is what a target asks for.
pub(crate) fn no_panic(worker: &EngineWorker) {
    assert_eq!(worker.status().panics, 0, "the engine panicked");
}

/// A worker over the small net `case` with the demo model's tokenizer and template.
pub(crate) fn worker(case: &str, room: &Room) -> EngineWorker {
    let checkpoint = store::format::open(&crate::target::golden(case)).expect("a committed model");
    let engine = engine(checkpoint, room).expect("a committed model loads");
    let words = store::format::open(Path::new(&root().join("models/demo")));
    let language =
        Language::load(&words.expect("the demo model"), usize::MAX, &TemplateHost::here())
            .expect("its tokenizer and template load");
    let model = ModelCard {
        id: "net".into(),
        context: room.context,
        vocabulary: engine.config().vocabulary,
        ..ModelCard::default()
    };
    let options = WorkerOptions {
        model,
        context: room.context,
        sequences: room.sequences,
        queue: 64,
        system: None,
        on_full: OnFull::Stop,
        disk: None,
        shared: None,
        slots: None,
        // `no_panic` finds the first one.
        panics: usize::MAX,
        drafting: None,
        log: Log::default(),
    };
    EngineWorker::start(engine, Arc::new(language), options).expect("a worker starts")
}

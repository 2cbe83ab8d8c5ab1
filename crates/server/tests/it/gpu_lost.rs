//! Goal: a server whose GPU is lost goes on: the request at work fails with that reason, later ones are refused with
//! it, the health says that a restart is wanted. Method: a worker over the portable backend on whatever GPU is there,
//! and the end of its device; with `FLASHMOE_GPU_TESTS=1` on lavapipe too, a driver that computes on the processor.
//! Without either that is a failure.

use crate::engine_support;
use crate::long::tested;

use std::ops::ControlFlow;
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::gpu::{
    self, ExpertMemory, Gpu, GpuBackend, GpuOptions, Handle, Pieces, Prediction,
};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use engine_support::{Device, Setting, ask, collect, conversation, folder_of, job};
use server::work::{Event, Failing, FinishReason, Worker};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::trunk::LoadMode;

/// An engine of the setting's model on the first GPU, and what ends that.
pub(crate) fn engine(setting: &Setting) -> Option<(Engine, Handle)> {
    let adapters = gpu::adapters().unwrap_or_default();
    let adapter = tested(adapters, |it| it.kind == gpu::Kind::Software)?;
    let checkpoint = Arc::new(store::format::open(&folder_of(setting)).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(2);
    let memory = ExpertMemory {
        store: Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap()),
        slot_bytes: gpu::slot_bytes(&shapes),
        slots: 4 * config.moe.top_k,
        progress: None,
    };
    let limits = GpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: setting.chunk,
        logit_rows: 8,
        sequences: setting.sequences,
        snapshots: setting.snapshots,
        snapshot_pages: 24,
        context: setting.context,
        kv_type: KvType::F16,
        top_k: config.moe.top_k,
        pieces: Pieces::Adaptive,
        prediction: Prediction::Off,
    };
    let gpu = Gpu::open(adapter).unwrap();
    let handle = gpu.handle();
    let mut goes_on = |_| ControlFlow::Continue(());
    let device = (gpu, limits);
    let mode = LoadMode::Read;
    let backend =
        GpuBackend::new(config.clone(), &catalog, mode, memory, &shapes, device, &mut goes_on);
    let mut device: Device = Box::new(backend.unwrap());
    if let Some(between) = &setting.between.0 {
        device = between(device);
    }
    Some((Engine::new(config, model, device, setting.chunk), handle))
}

#[test]
fn a_server_whose_gpu_is_lost_refuses_with_that_reason_and_goes_on() {
    let setting = Setting { context: 512, ..Setting::tiny() };
    let Some((engine, handle)) = engine(&setting) else { return };
    let worker = engine_support::start(engine, &setting);
    let asked = conversation("", &["What is 255 factored?"]);
    assert_eq!(ask(&worker, job(&worker, &asked, 2)).reason(), FinishReason::Length);
    assert_eq!(worker.status().failing, None);

    let mut ticket = worker.submit(job(&worker, &asked, 400)).unwrap();
    while !matches!(ticket.events.blocking_recv().unwrap(), Event::Text(_) | Event::Reasoning(_)) {}
    handle.end();
    let lost = collect(ticket).error.expect("the request at work fails");
    assert!(lost.contains("the GPU was lost"), "{lost}");
    for _ in 0..2 {
        let refused = ask(&worker, job(&worker, &asked, 2)).error.expect("later ones are refused");
        assert!(refused.contains("the GPU was lost"), "{refused}");
        assert_eq!(worker.status().failing, Some(Failing::DeviceLost));
    }
}

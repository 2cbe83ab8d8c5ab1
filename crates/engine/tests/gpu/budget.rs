//! Goal: the portable backend never has the driver allocate more than its requirements say, what is written and read
//! through and unused ends of blocks included. Method: golden checkpoints on a device whose memory is the host's, as
//! lavapipe's is, so that all of it counts; a thread that asks the allocator while prompts, steps and snapshots run.
//! With `FLASHMOE_GPU_TESTS=1` the absence of a GPU is a failure.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::backend::gpu::{
    ExpertMemory, Gpu, GpuBackend, GpuOptions, GpuRequirements, Handle, MemoryClass, Pieces,
    Prediction, slot_bytes,
};
use engine::backend::{Run, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::trunk::LoadMode;

use super::long::asks_for_gpu;
use super::support::{adapter, typed};

const CHUNK: usize = 64;
const CASES: [&str; 5] =
    ["qwen35-calm-mlx-mixed", "qwen3-calm-hf", "gptoss-calm-mxfp4", "glm5-calm-hf", "dsv4-calm-hf"];

/// Runs `work` and gives the most bytes that were allocated meanwhile.
fn watched(handle: &Handle, work: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    let bytes = || handle.allocated_bytes().unwrap();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = bytes();
            while !done.load(Ordering::Relaxed) {
                most = most.max(bytes());
                std::thread::yield_now();
            }
            most.max(bytes())
        });
        work();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    })
}

#[test]
fn what_the_driver_allocates_is_within_the_requirements() {
    let Some(adapter) = adapter().filter(|adapter| adapter.memory == MemoryClass::Unified) else {
        assert!(!asks_for_gpu(), "no GPU that shares memory");
        return;
    };
    for (case, kv_type) in typed(CASES) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let checkpoint = Arc::new(store::format::open(&folder.join("model")).unwrap());
        let config = ModelConfig::read(&checkpoint.config).unwrap();
        let mut catalog = Catalog::new(&checkpoint);
        let model = Model::declare(&config, &mut catalog).unwrap();
        let shapes = expert_shapes(&checkpoint, &config).unwrap();
        let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
        options.slots = SlotBudget::Steps(1);
        let (slots, slot_bytes) = (config.moe.top_k + 2, slot_bytes(&shapes));
        let limits = GpuOptions {
            layers: 0..config.layers.len(),
            batch_tokens: CHUNK,
            logit_rows: 8,
            sequences: 3,
            snapshots: 6,
            snapshot_pages: 24,
            context: 640,
            kv_type,
            top_k: config.moe.top_k,
            pieces: Pieces::Adaptive,
            prediction: Prediction::Off,
        };
        let needs = GpuRequirements::of(&config, &catalog, &limits, adapter.memory);
        let planned = needs.total() + (slots * slot_bytes) as u64;
        let memory = ExpertMemory {
            store: Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap()),
            slot_bytes,
            slots,
            progress: None,
        };
        let device = Gpu::open(adapter.clone()).unwrap();
        let handle = device.handle();
        let most = watched(&handle, || {
            let mut goes_on = |_| ControlFlow::Continue(());
            let (device, mode) = ((device, limits), LoadMode::Read);
            let backend = GpuBackend::new(
                config.clone(),
                &catalog,
                mode,
                memory,
                &shapes,
                device,
                &mut goes_on,
            );
            let mut engine = Engine::new(config.clone(), model, Box::new(backend.unwrap()), CHUNK);
            let tokens: Vec<u32> = (0..300).map(|at| at % config.vocabulary as u32).collect();
            let sequence = engine.create_sequence().unwrap();
            let each = &mut |_: &mut Engine, _, _| Ok(());
            engine.prefill(sequence, &tokens, &Uncancelled, &mut |_| {}, each).unwrap();
            engine.logits(&[0, 1, 2, 3]).unwrap();
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            for token in 0..4 {
                engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
                engine.logits(&[0]).unwrap();
            }
            engine.backend().restore(sequence, &snapshot).unwrap();
            engine.forward(&[Run { sequence, tokens: &[5] }], &Uncancelled).unwrap();
            engine.logits(&[0]).unwrap();
        });
        assert!(
            most <= planned,
            "{case}, {kv_type}: {most} bytes allocated, {planned} planned: {needs:?}"
        );
    }
}

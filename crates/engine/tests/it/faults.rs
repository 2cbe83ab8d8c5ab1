//! Goal: a failing disk costs a request a typed error, never a wrong token, and the next request is served
//! to the bit. Method: the store's seeded simulator under real models; every request either fails as it
//! should or gives the logits of a healthy disk, and once the faults end, all of them do. Files that are
//! truncated or written over while the engine runs, with the real engines.

use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::EngineError;
use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::backend::{Run, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::stages::Stage;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use store::cache::{
    ExpertStore, ReadCause, SlotBudget, StorageMode, StoreCounters, StoreError, StoreOptions,
};
use store::format::Checkpoint;
use store::io::{Fault, FaultPlan, FaultRates, IoEngine, Simulator};
use store::trunk::{LoadMode, TrunkError};

use crate::long::is_long;

const PROMPT: [u32; 20] = [5, 9, 2, 44, 7, 7, 31, 12, 3, 60, 18, 25, 1, 39, 40, 8, 21, 33, 6, 14];
const STEPS: usize = 5;
/// Prompts are cut here, so that a request has several prefill batches.
const CHUNK: usize = 8;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case).join("model")
}

/// An engine over the checkpoint in `folder`.
fn engine(folder: &Path, options: StoreOptions) -> (Engine, Arc<ExpertStore>) {
    loaded(folder, options, LoadMode::Read)
}

/// As [`engine`], with the dense weights brought into memory by `load`.
fn loaded(folder: &Path, options: StoreOptions, load: LoadMode) -> (Engine, Arc<ExpertStore>) {
    let checkpoint = store::format::open(folder).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let layers = 0..config.layers.len();
    let (backend, experts) = backend(&checkpoint, &config, layers, options, load);
    (Engine::new(config, model, Box::new(backend), CHUNK), experts)
}

/// An engine of two stages, the second from layer `cut` on. `options` are those of the store of stage `faulty`, whose
/// store is given.
fn cut_engine(
    folder: &Path,
    options: StoreOptions,
    cut: usize,
    faulty: usize,
) -> (Engine, Arc<ExpertStore>) {
    let checkpoint = store::format::open(folder).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let mut both = [options, StoreOptions::new(StorageMode::Budget, 1)];
    both.rotate_right(faulty);
    let ranges = [0..cut, cut..config.layers.len()];
    let mut stores = Vec::new();
    let stages = ranges.into_iter().zip(both).map(|(layers, options)| {
        let (backend, store) =
            backend(&checkpoint, &config, layers.clone(), options, LoadMode::Read);
        stores.push(store);
        Stage { layers, backend: Box::new(backend) }
    });
    let stages = stages.collect();
    (Engine::over(config, model, stages, CHUNK).unwrap(), stores.swap_remove(faulty))
}

fn backend(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    layers: Range<usize>,
    options: StoreOptions,
    load: LoadMode,
) -> (CpuBackend, Arc<ExpertStore>) {
    let mut catalog = Catalog::new(checkpoint);
    Model::declare(config, &mut catalog).unwrap();
    catalog.restrict(layers.clone());
    let weights = catalog.load(load, &mut |_| ControlFlow::Continue(())).unwrap();
    let slots = SlotBudget::Steps(1);
    let options = StoreOptions { slots, minimum_slots: config.moe.top_k, ..options };
    let own = Arc::new(checkpoint.experts_of(&layers));
    let experts = Arc::new(ExpertStore::open(own, options).unwrap());
    let limits = CpuOptions {
        layers,
        batch_tokens: CHUNK,
        logit_rows: CHUNK,
        sequences: 1,
        snapshots: 0,
        context: 64,
        kv_growth: KvGrowth::Grow,
        kv_type: KvType::F32,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: 1,
        row_cache: 0,
    };
    let compute =
        Compute::new(ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto });
    let shapes = expert_shapes(checkpoint, config).unwrap();
    let compute = compute.unwrap();
    let backend =
        CpuBackend::new(config.clone(), weights, experts.clone(), shapes, compute, limits);
    (backend.unwrap(), experts)
}

/// One request: a prompt and greedy tokens. All logits of the generated positions.
fn request(engine: &mut Engine) -> Result<Vec<u32>, EngineError> {
    let sequence = engine.create_sequence()?;
    let result = answer(engine, sequence);
    engine.drop_sequence(sequence);
    result
}

fn answer(
    engine: &mut Engine,
    sequence: engine::backend::SequenceId,
) -> Result<Vec<u32>, EngineError> {
    let mut last = 0;
    engine.prefill(sequence, &PROMPT, &Uncancelled, &mut |_| {}, &mut |_, _, length| {
        last = length - 1;
        Ok(())
    })?;
    let mut bits = Vec::new();
    for _ in 0..STEPS {
        let logits = engine.logits(&[last])?;
        bits.extend(logits.iter().map(|value| value.to_bits()));
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        engine.forward(&[Run { sequence, tokens: &[best as u32] }], &Uncancelled)?;
        last = 0;
    }
    Ok(bits)
}

fn simulated(mode: StorageMode, plan: FaultPlan, seed: u64) -> StoreOptions {
    let storage = Some(Box::new(Simulator::new(plan, seed)) as _);
    StoreOptions { storage, ..StoreOptions::new(mode, 1) }
}

/// A request that met a bad disk: the cause, which must be typed, or its bits.
fn judged(result: Result<Vec<u32>, EngineError>, expected: &[u32], context: &str) -> bool {
    match result {
        Ok(bits) => {
            assert!(bits == expected, "{context}: other logits without an error");
            true
        }
        Err(EngineError::Store(StoreError::Read { cause, .. })) => {
            let known = matches!(cause, ReadCause::System(5) | ReadCause::Short { .. });
            assert!(known, "{context}: {cause}");
            false
        }
        Err(other) => panic!("{context}: {other}"),
    }
}

fn healthy(folder: &Path, mode: StorageMode) -> (Vec<u32>, StoreCounters) {
    let (mut engine, experts) = engine(folder, StoreOptions::new(mode, 1));
    let bits = request(&mut engine).unwrap();
    (bits, experts.counters())
}

#[test]
fn whichever_read_fails_the_next_request_is_served_to_the_bit() {
    for case in ["qwen35-calm-mlx-mixed", "qwen3-calm-hf"] {
        let folder = golden(case);
        let (expected, counters) = healthy(&folder, StorageMode::Budget);
        assert!(counters.prefill.misses > 0 && counters.decode.misses > 0, "{case}: {counters:?}");
        let mut failed = 0;
        for k in (0..).step_by(if is_long() { 5 } else { 15 }) {
            let context = format!("{case}: read {k}");
            let fired = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&fired);
            let plan: FaultPlan = Box::new(move |read| {
                let now = read.number == k;
                seen.fetch_or(now, Ordering::SeqCst);
                if now { Fault::Error(5) } else { Fault::None }
            });
            let (mut engine, experts) = engine(&folder, simulated(StorageMode::Budget, plan, k));
            failed += usize::from(!judged(request(&mut engine), &expected, &context));
            if !fired.load(Ordering::SeqCst) {
                break;
            }
            assert!(request(&mut engine).unwrap() == expected, "{context}: the next request");
            assert!(experts.counters().errors <= 1);
        }
        let least = if is_long() { 10 } else { 3 };
        assert!(failed > least, "{case}: {failed} requests failed");
    }
}

#[test]
fn a_read_that_fails_in_any_stage_fails_its_request_alone() {
    let folder = golden("qwen35-calm-mlx-mixed");
    let (expected, _) = healthy(&folder, StorageMode::Budget);
    for faulty in [0, 1] {
        let mut failed = 0;
        for k in (0..40).step_by(7) {
            let context = format!("stage {faulty}: read {k}");
            let plan: FaultPlan = Box::new(move |read| match read.number == k {
                true => Fault::Error(5),
                false => Fault::None,
            });
            let options = simulated(StorageMode::Budget, plan, k);
            let (mut engine, experts) = cut_engine(&folder, options, 2, faulty);
            failed += usize::from(!judged(request(&mut engine), &expected, &context));
            assert!(request(&mut engine).unwrap() == expected, "{context}: the next request");
            assert!(experts.counters().errors <= 1, "{context}");
            assert!(engine.counters().errors == experts.counters().errors, "{context}");
        }
        assert!(failed >= 3, "stage {faulty}: {failed} requests failed");
    }
}

#[test]
fn hundreds_of_bad_disks() {
    let folder = golden("qwen35-calm-mlx-mixed");
    let (expected, _) = healthy(&folder, StorageMode::Budget);
    let (mut served, mut failed) = (0, 0);
    // Each mode with each rate of errors.
    let seeds = if is_long() { 200 } else { 36 };
    for seed in 0..seeds {
        let mode = [StorageMode::Budget, StorageMode::PageCache][seed as usize % 2];
        let rates = FaultRates {
            error: [0, 1, 4][seed as usize % 3],
            interrupted: 60,
            short: 100,
            empty: 40,
            ..FaultRates::default()
        };
        let over = Arc::new(AtomicBool::new(false));
        let (done, mut plan) = (Arc::clone(&over), rates.plan(seed));
        let plan: FaultPlan =
            Box::new(
                move |read| {
                    if done.load(Ordering::SeqCst) { Fault::None } else { plan(read) }
                },
            );
        let (mut engine, _) = engine(&folder, simulated(mode, plan, seed));
        for number in 0..2 {
            let context = format!("seed {seed}, request {number}");
            match judged(request(&mut engine), &expected, &context) {
                true => served += 1,
                false => failed += 1,
            }
        }
        over.store(true, Ordering::SeqCst);
        let last = request(&mut engine).unwrap();
        assert!(last == expected, "seed {seed}: the disk is well, the logits are not");
    }
    let is_test = served > seeds / 2 && failed > seeds / 4;
    assert!(is_test, "{served} served, {failed} failed: no test");
}

/// A folder with a copy of a golden model.
fn copy(case: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(case)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn files_that_change_while_the_engine_runs() {
    let case = "qwen3-calm-hf";
    let (expected, _) = healthy(&golden(case), StorageMode::Budget);
    for mode in [StorageMode::Budget, StorageMode::PageCache, StorageMode::Mmap] {
        for io in [IoEngine::Auto, IoEngine::Pread] {
            for change in ["truncate", "unlink", "overwrite"] {
                let context = format!("{mode:?} {io:?} {change}");
                let folder = copy(case);
                let (mut engine, _) =
                    engine(folder.path(), StoreOptions { io, ..StoreOptions::new(mode, 1) });
                assert!(request(&mut engine).unwrap() == expected, "{context}");
                for entry in fs::read_dir(folder.path()).unwrap() {
                    let path = entry.unwrap().path();
                    if path.extension().is_none_or(|extension| extension != "safetensors") {
                        continue;
                    }
                    let length = fs::metadata(&path).unwrap().len();
                    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                    match change {
                        "truncate" => file.set_len(length / 4).unwrap(),
                        "unlink" => fs::remove_file(&path).unwrap(),
                        _ => {
                            fs::write(&path, vec![0x42; length as usize]).unwrap();
                            let later = std::time::Duration::from_secs(9);
                            file.set_modified(std::time::SystemTime::now() + later).unwrap();
                        }
                    }
                }
                match (change, request(&mut engine)) {
                    ("unlink", Ok(bits)) => assert!(bits == expected, "{context}"),
                    (_, Err(EngineError::Store(StoreError::Read { cause, path, .. }))) => {
                        assert!(matches!(cause, ReadCause::Changed(_)), "{context}: {cause}");
                        assert!(path.starts_with(folder.path()));
                    }
                    (_, Ok(_)) => panic!("{context}: unnoticed"),
                    (_, Err(other)) => panic!("{context}: {other}"),
                }
            }
        }
    }
}

/// Dense weights that are mapped, and a file that changes between two chunks of a prompt: the request ends with an
/// error that names the file, and so does the next one.
#[test]
fn mapped_weights_that_change_are_an_error() {
    for change in
        ["cut to nothing", "cut", "written over", "written over, times set back", "linked"]
    {
        let folder = copy("qwen3-calm-hf");
        let pack = folder.path().join("pack");
        let source = store::format::open(folder.path()).unwrap();
        let mut goes_on = |_| ControlFlow::Continue(());
        store::pack::pack(&source, &pack, Default::default(), &mut goes_on).unwrap();
        let options = || StoreOptions::new(StorageMode::Budget, 1);
        let (mut engine, _) = loaded(&pack, options(), LoadMode::Mmap);
        let (expected, _) = healthy(&pack, StorageMode::Budget);
        assert!(request(&mut engine).unwrap() == expected, "{change}");

        let path = pack.join("trunk.bin");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let sequence = engine.create_sequence().unwrap();
        let mut chunks = 0;
        let result =
            engine.prefill(sequence, &PROMPT, &Uncancelled, &mut |_| {}, &mut |_, _, _| {
                chunks += 1;
                if chunks > 1 {
                    return Ok(());
                }
                match change {
                    "cut to nothing" => file.set_len(0).unwrap(),
                    "cut" => file.set_len(metadata.len() / 2).unwrap(),
                    "linked" => fs::hard_link(&path, pack.join("link")).unwrap(),
                    _ => fs::write(&path, vec![0x42; metadata.len() as usize]).unwrap(),
                }
                if change.ends_with("set back") {
                    file.set_modified(metadata.modified().unwrap()).unwrap();
                }
                Ok(())
            });
        if change == "linked" {
            result.unwrap();
            engine.drop_sequence(sequence);
            assert!(request(&mut engine).unwrap() == expected, "a link changes nothing");
            continue;
        }
        assert_eq!(chunks, 1, "{change}: the second chunk was computed");
        engine.drop_sequence(sequence);
        for result in [result.map(|()| Vec::new()), request(&mut engine)] {
            match result {
                Err(EngineError::Trunk(TrunkError::Changed { path: named, .. })) => {
                    assert_eq!(named, path, "{change}");
                }
                Err(other) => panic!("{change}: {other}"),
                Ok(_) => panic!("{change}: unnoticed"),
            }
        }
    }
}

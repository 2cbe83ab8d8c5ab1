//! Layers whose experts token ids decide: their records are read from the start of a step or chunk, none is waited for
//! when there was time, and none is read that would not be read without.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::backend::{Run, SequenceId, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::routing::{Recorder, Routing};
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use store::cache::{ExpertStore, Phase, SlotBudget, StorageMode, StoreOptions};
use store::format::Checkpoint;
use store::trunk::LoadMode;
use store::{ExpertId, LayerId};

fn checkpoint() -> Arc<Checkpoint> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dsv4-calm-hf");
    Arc::new(store::format::open(&folder.join("model")).unwrap())
}

fn store(slots: usize) -> Arc<ExpertStore> {
    let mut options = StoreOptions::new(StorageMode::Budget, 2);
    options.slots = SlotBudget::Slots(slots);
    Arc::new(ExpertStore::open(checkpoint(), options).unwrap())
}

/// An engine whose store has this many slots, its store, and what hears its choices.
fn engine(slots: usize) -> (Engine, Arc<ExpertStore>, Recorder) {
    let checkpoint = checkpoint();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    assert_eq!((config.moe.hashed_layers, config.moe.top_k, config.moe.experts), (1, 2, 6));
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    assert_eq!(model.program.given_layers().len(), 1);
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    let experts = store(slots);
    let limits = CpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: 64,
        logit_rows: 1,
        sequences: 1,
        snapshots: 0,
        context: 256,
        kv_growth: KvGrowth::Grow,
        kv_type: KvType::F32,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: 1,
        row_cache: 0,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let compute = Compute::new(options).unwrap();
    let backend =
        CpuBackend::new(config.clone(), weights, experts.clone(), shapes, compute, limits);
    let (mut backend, recorder) = (backend.unwrap(), Recorder::new(4));
    backend.set_routing(Routing::default().recorded_by(recorder.clone()));
    (Engine::new(config, model, Box::new(backend), 64), experts, recorder)
}

fn run(engine: &mut Engine, sequence: SequenceId, tokens: &[u32]) {
    let mut pass = engine.start(&[Run { sequence, tokens }], &[]).unwrap();
    while !engine.advance(&mut pass, &Uncancelled).unwrap() {}
}

/// Every record has a slot, so that each is read once, whatever asks for it first.
#[test]
fn records_that_had_time_are_there_and_no_other_is_read() {
    let (mut engine, experts, _) = engine(24);
    let sequence = engine.create_sequence().unwrap();
    let wait = || {
        while experts.counters().in_flight > 0 {
            std::thread::yield_now()
        }
    };
    for (step, tokens) in [&[7][..], &[9], &[11, 12, 13, 14, 15], &[16]].into_iter().enumerate() {
        let before = experts.counters();
        let mut pass = engine.start(&[Run { sequence, tokens }], &[]).unwrap();
        wait();
        let begun = experts.counters().since(&before);
        assert_eq!(begun.decode.requests + begun.prefill.requests, 0, "no layer has asked");
        engine.advance(&mut pass, &Uncancelled).unwrap();
        let layer = experts.counters().since(&before);
        let asked = [layer.decode, layer.prefill];
        assert!(
            asked.iter().all(|it| it.misses + it.joined + it.stall_us == 0),
            "{step}: {layer:?}"
        );
        assert!(asked.iter().any(|it| it.hits >= 2));
        while !engine.advance(&mut pass, &Uncancelled).unwrap() {}
    }
    let all = experts.counters();
    assert!(all.ahead_issued > 0 && (all.ahead_used, all.ahead_wasted) == (all.ahead_issued, 0));
    let (misses, evicted) = (all.decode.misses + all.prefill.misses, all.evictions);
    assert_eq!((all.records_read, evicted), (misses + all.ahead_issued, 0), "each record once");
}

/// The same choices asked of a store that heard nothing before: with every budget it reads as many records.
#[test]
fn as_many_records_are_read_as_without() {
    for slots in [2, 4, 8, 12, 24] {
        let (mut engine, experts, recorder) = engine(slots);
        let sequence = engine.create_sequence().unwrap();
        for step in 0..200u32 {
            run(&mut engine, sequence, &[5 + step * step % 97]);
        }
        let with = experts.counters();
        assert_eq!(with.records_read, with.decode.misses + with.ahead_issued);
        assert_eq!((with.ahead_used, with.given_up), (with.ahead_issued, 0), "{slots} slots");
        let without = store(slots);
        let chosen = recorder.trace(6, 2, 0).ids;
        for (layer, chosen) in (0..4).cycle().map(LayerId).zip(chosen.chunks_exact(2)) {
            let mut chosen: Vec<_> = chosen.iter().map(|&expert| ExpertId(expert)).collect();
            chosen.sort_unstable();
            let visit = without.visit(layer, &chosen, Phase::Decode).unwrap();
            (0..chosen.len()).for_each(|member| assert!(visit.wait(member).is_ok()));
        }
        let (with, without) = (with.records_read, without.counters().records_read);
        assert_eq!(with, without, "{slots} slots");
    }
}

/// A batch that is given up takes its reads back.
#[test]
fn a_batch_given_up_leaves_nothing_ahead() {
    let (mut engine, experts, _) = engine(24);
    let sequence = engine.create_sequence().unwrap();
    let pass = engine.start(&[Run { sequence, tokens: &[7] }], &[]).unwrap();
    engine.give_up(&pass);
    while experts.counters().in_flight > 0 {
        std::thread::yield_now();
    }
    let counters = experts.counters();
    let kept = (0..6).filter(|&expert| experts.is_resident(LayerId(0), ExpertId(expert))).count();
    assert_eq!((counters.ahead_issued - counters.withdrawn) as usize, kept);
}

//! Layers whose experts token ids decide: their records are read from the start of a step or chunk, none is waited for
//! when there was time, and none is read that would not be read without.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::backend::{Run, SequenceId, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::trunk::LoadMode;
use store::{ExpertId, LayerId};

/// An engine whose store has this many slots, and its store.
fn engine(slots: usize) -> (Engine, Arc<ExpertStore>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dsv4-calm-hf");
    let checkpoint = Arc::new(store::format::open(&folder.join("model")).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    assert_eq!((config.moe.hashed_layers, config.moe.top_k, config.moe.experts), (1, 2, 6));
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    assert_eq!(model.given_layers().len(), 1);
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, config.moe.top_k);
    options.slots = SlotBudget::Slots(slots);
    let experts = Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap());
    let limits = CpuOptions {
        batch_tokens: 64,
        logit_rows: 1,
        sequences: 1,
        snapshots: 0,
        context: 256,
        kv_growth: KvGrowth::Grow,
        kv_type: KvType::F32,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let compute = Compute::new(options).unwrap();
    let backend =
        CpuBackend::new(config.clone(), weights, experts.clone(), shapes, compute, limits);
    (Engine::new(config, model, Box::new(backend.unwrap()), 64), experts)
}

fn run(engine: &mut Engine, sequence: SequenceId, tokens: &[u32], ready: &dyn Fn()) {
    let mut pass = engine.start(&[Run { sequence, tokens }], &[]).unwrap();
    ready();
    while !engine.advance(&mut pass, &Uncancelled).unwrap() {}
}

/// Every record has a slot, so that each is read once, whatever asks for it first.
#[test]
fn records_that_had_time_are_there_and_no_other_is_read() {
    let (mut engine, experts) = engine(24);
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

/// At the least budget what was read ahead takes the place that its visit would have taken.
#[test]
fn the_least_budget_reads_no_record_twice_for_it() {
    let (mut engine, experts) = engine(2);
    let sequence = engine.create_sequence().unwrap();
    for token in 5..40 {
        run(&mut engine, sequence, &[token], &|| ());
    }
    let all = experts.counters();
    assert_eq!(all.decode.requests, 35 * 4 * 2);
    assert_eq!(
        all.records_read,
        all.decode.requests - all.decode.hits - (all.decode.joined - all.ahead_used)
    );
    assert_eq!(all.ahead_wasted, 0);
}

/// A batch that is given up takes its reads back.
#[test]
fn a_batch_given_up_leaves_nothing_ahead() {
    let (mut engine, experts) = engine(24);
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

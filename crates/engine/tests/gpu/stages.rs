//! Goal: layers spread over several devices give what one device gives, to the bit: logits of prompts and answers,
//! files of snapshots, passes put aside, with budgets that miss and with a generator's routing. Method: golden nets in
//! as many stages as there are layers, and one in every cut into two, all on one adapter, each a device of its own.
//! `FLASHMOE_CAMPAIGN=1` cuts every net everywhere.

use engine::backend::cpu::KvType;
use engine::backend::gpu::{Adapter, GpuOptions, GpuRequirements, MemoryClass, Pieces, Prediction};
use engine::backend::{PAGE_TOKENS, Run, Snapshot, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::routing::Routing;
use engine::weights::Catalog;

use super::long::{is_campaign, part};
use super::sequences::{alone, bits, feed, resumed, text};
use super::steps::{request, together};
use super::support::{MIXERS, adapter, engine_cut, limits, mixers, opened};

/// Stages that begin with these layers, but the first.
fn cuts(case: &str) -> Vec<Vec<usize>> {
    let layers = opened(case).1.layers.len();
    let mut cuts: Vec<Vec<usize>> = (1..layers).map(|cut| vec![cut]).collect();
    cuts.push((1..layers).collect());
    cuts
}

fn file_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = Vec::new();
    (0..snapshot.full_pages()).for_each(|at| snapshot.write_page(at, &mut file).unwrap());
    snapshot.write_rest(&mut file).unwrap();
    file
}

/// Everything that can be seen of some work.
fn seen(engine: &mut Engine) -> Vec<Vec<u32>> {
    let whole = text(3, PAGE_TOKENS + 40);
    let mut seen = vec![request(engine).unwrap(), together(engine)];
    let sequence = engine.create_sequence().unwrap();
    let other = engine.create_sequence().unwrap();
    seen.push(feed(engine, sequence, &whole[..PAGE_TOKENS + 4]));
    let runs = [&whole[PAGE_TOKENS + 4..PAGE_TOKENS + 20], &whole[PAGE_TOKENS + 20..]];
    let mut pass = engine.start(&runs.map(|tokens| Run { sequence, tokens }), &[0]).unwrap();
    while !engine.advance(&mut pass, &Uncancelled).unwrap() {
        assert!(engine.put_aside(&mut pass));
        engine.forward(&[Run { sequence: other, tokens: &[7] }], &Uncancelled).unwrap();
        seen.push(bits(engine, 0));
    }
    seen.push(bits(engine, 35));
    let marks = engine.backend().take_marks();
    let last = engine.backend().snapshot(sequence, None).unwrap();
    let snapshots = marks.iter().map(|(_, mark)| mark).chain([&last]);
    for snapshot in snapshots {
        let file = file_of(snapshot);
        seen.push(file.iter().map(|byte| u32::from(*byte)).collect());
    }
    engine.drop_sequence(other);
    seen.push(resumed(engine, &last, &[5, 9, 2]));
    engine.drop_sequence(sequence);
    seen.push(alone(engine, &whole[..9]));
    seen
}

/// Compares some cuts of a net with one device. `slots` of each device; gives what one device copied.
fn compare(
    adapter: &Adapter,
    (case, cuts): (&str, &[Vec<usize>]),
    slots: usize,
    limits: &GpuOptions,
    routing: &Routing,
) -> u64 {
    let mut one = engine_cut(adapter, case, &[], slots, limits, routing);
    let expected = seen(&mut one);
    for cuts in cuts {
        let mut cut = engine_cut(adapter, case, cuts, slots, limits, routing);
        let found = seen(&mut cut);
        let what = format!("{case}, {slots} slots: stages from {cuts:?}");
        assert_eq!(found.len(), expected.len(), "{what}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{what}: number {index} of what is seen");
        }
        let (found, counted) = (cut.counters(), one.counters());
        assert_eq!(found.decode.requests, counted.decode.requests, "{what}");
        assert_eq!(found.prefill.requests, counted.prefill.requests, "{what}");
    }
    one.counters().device.copied
}

#[test]
fn every_cut_gives_what_one_device_gives() {
    let Some(adapter) = adapter() else { return };
    for case in mixers(0) {
        let limits = limits(case, KvType::F16, Pieces::Adaptive);
        let (config, cuts) = (opened(case).1, cuts(case));
        let (all, few) = (config.moe.experts * config.layers.len(), config.moe.top_k + 2);
        // As many stages as layers, all of whose experts are there.
        let finest = cuts[cuts.len() - 1..].to_vec();
        if case == MIXERS[0] || is_campaign() {
            assert_eq!(
                compare(&adapter, (case, &finest), all, &limits, &Routing::default()),
                0,
                "{case}"
            );
        }
        // The other nets have further operations, and no further way to hand rows to the next stage.
        let everywhere = case == MIXERS[0] || is_campaign();
        // By default every other cut into two; into more were those above.
        let cuts: Vec<_> = if everywhere { part(cuts, 2).collect() } else { finest };
        let copied = compare(&adapter, (case, &cuts), few, &limits, &Routing::default());
        assert!(copied > 0, "{case}: its records are missed");
    }
}

#[test]
fn neither_pieces_nor_guesses_cross_a_cut() {
    let Some(adapter) = adapter() else { return };
    let case = MIXERS[0];
    let slots = opened(case).1.moe.top_k + 2;
    for (pieces, prediction) in
        [(Pieces::Layers(1), Prediction::On), (Pieces::Layers(16), Prediction::On)]
    {
        let limits = GpuOptions { prediction, ..limits(case, KvType::F16, pieces) };
        compare(&adapter, (case, &[vec![2]]), slots, &limits, &Routing::default());
    }
}

#[test]
fn a_generator_gives_stages_what_it_gives_one_device() {
    let Some(adapter) = adapter() else { return };
    let case = MIXERS[0];
    let config = opened(case).1;
    let routing = Routing::calibrated(5, config.layers.len(), config.moe.experts);
    let limits = limits(case, KvType::F16, Pieces::Adaptive);
    for slots in [config.moe.top_k + 2, config.moe.experts * config.layers.len()] {
        compare(&adapter, (case, &[vec![1, 3]]), slots, &limits, &routing);
    }
}

#[test]
fn a_stage_needs_memory_for_its_own_layers_alone() {
    for case in MIXERS {
        let (checkpoint, config) = opened(case);
        let needs = |layers: std::ops::Range<usize>| {
            let mut catalog = Catalog::new(&checkpoint);
            Model::declare(&config, &mut catalog).unwrap();
            catalog.restrict(layers.clone());
            let limits = GpuOptions { layers, ..limits(case, KvType::F16, Pieces::Adaptive) };
            GpuRequirements::of(&config, &catalog, &limits, MemoryClass::Discrete)
        };
        let layers = config.layers.len();
        let (one, parts) = (needs(0..layers), [needs(0..1), needs(1..layers)]);
        let sum = |part: fn(&GpuRequirements) -> u64| parts.iter().map(part).sum::<u64>();
        let more = sum(|it| it.key_values).checked_sub(one.key_values);
        // A stage whose layers have no compressed rows has the least buffer for them, for each of three sequences.
        let empty = if config.compressed.is_some() { 3 * 256 } else { 0 };
        assert_eq!(more, Some(empty), "{case}");
        assert!(sum(|it| it.weights) < one.weights + (1 << 20), "{case}: an embedding at most");
        assert!(parts.iter().all(|part| part.weights < one.weights), "{case}");
        assert!(parts[0].activations < parts[1].activations, "{case}: the head is the last one's");
    }
}

//! Replay against the hit rates that a correct replay of the published traces gives, import, export
//! and the calibrated generator.
//!
//! The traces are those of BigMoeOnEdge (Qwen3-30B-A3B) and waste (OLMoE), both under Apache-2.0; see
//! tests/data/README.md.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use store::cache::PolicyKind;
use store::trace::replay::{Scope, replay, replay_belady};
use store::trace::{Trace, from_csv, from_jsonl, generator, stats};

fn data(name: &str) -> BufReader<File> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    BufReader::new(File::open(path).unwrap())
}

fn qwen() -> Trace {
    Trace::read(&mut data("qwen3-30b-a3b.trace")).unwrap()
}

fn olmoe() -> Trace {
    Trace::read(&mut data("olmoe-1b-7b.trace")).unwrap()
}

/// LRU, LFU and Belady with per-layer slots.
fn curve(trace: &Trace, percent: usize) -> [f64; 3] {
    let scope = Scope::PerLayer(trace.experts * percent / 1000);
    [
        replay(trace, scope, || PolicyKind::Lru.build()).percent(),
        replay(trace, scope, || PolicyKind::Lfu.build()).percent(),
        replay_belady(trace, scope).percent(),
    ]
}

#[test]
fn reference_hit_rates_are_reproduced() {
    let cases = [
        ("Qwen3-30B", qwen(), 125, [61.1, 63.1, 75.8]),
        ("Qwen3-30B", qwen(), 250, [81.7, 82.1, 91.2]),
        ("OLMoE", olmoe(), 250, [59.6, 59.9, 72.3]),
        ("OLMoE", olmoe(), 500, [79.2, 80.6, 89.9]),
    ];
    let mut wrong = Vec::new();
    for (name, trace, permille, expected) in cases {
        let found = curve(&trace, permille);
        if found.iter().zip(expected).any(|(a, b)| (a - b).abs() > 0.3) {
            wrong.push(format!("{name} {permille}: {found:.1?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_trace_survives_writing_and_reading() {
    let trace = qwen();
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    assert_eq!(Trace::read(&mut bytes.as_slice()).unwrap(), trace);
    for cut in [0, 7, 39, 41, bytes.len() - 1] {
        assert!(Trace::read(&mut &bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn foreign_formats_are_imported() {
    let csv = "# route_trace v1\n# model=m n_layer=1 n_expert=4 n_expert_used=2\n\
               turn,phase,step,layer,slot,expert,weight\n\
               0,0,0,0,0,3,0.5\n0,0,0,0,1,1,0.25\n0,1,1,0,0,2,0.5\n0,1,1,0,1,0,0.5\n";
    let trace = from_csv(csv.as_bytes()).unwrap();
    assert_eq!((trace.tokens(), trace.prompt_tokens), (2, 1));
    assert_eq!(trace.ids, [3, 1, 2, 0]);
    assert!(from_csv(csv.replace(",3,0.5", ",9,0.5").as_bytes()).is_err());
    let lines = "{\"tok\": 1, \"layers\": [[1, 2], [3, 0]]}\n";
    assert_eq!(from_jsonl(lines.as_bytes(), 4).unwrap().ids, [1, 2, 3, 0]);
    assert!(from_jsonl(lines.as_bytes(), 3).is_err());
}

#[test]
fn generated_routing_has_the_hit_curve_of_the_model_it_was_fitted_to() {
    // 12.5, 25 and 50 % of the experts with top 8 of 128: the published curve of Qwen3-30B.
    let trace = generator::trace(generator::QWEN3_30B, 5, 12, 128, 8, 400);
    for (slots, expected) in [(16, 61.0), (32, 82.0), (64, 96.0)] {
        let scope = Scope::PerLayer(slots);
        let found = replay(&trace, scope, || PolicyKind::Lru.build()).percent();
        assert!((found - expected).abs() < 12.0, "{slots} slots: {found:.1} {expected}");
    }
    assert_eq!(trace, generator::trace(generator::QWEN3_30B, 5, 12, 128, 8, 400));
}

#[test]
fn consecutive_tokens_overlap_in_real_traces() {
    let trace = qwen();
    let stats: Vec<_> = (0..trace.layers).map(|layer| stats::layer(&trace, layer)).collect();
    let mean = stats.iter().map(|layer| layer.overlap).sum::<f64>() / stats.len() as f64;
    assert!(mean > 0.2 && mean < 0.6, "{mean}");
    assert!(stats.iter().all(|layer| layer.gini > 0.0 && layer.gini < 1.0));
}

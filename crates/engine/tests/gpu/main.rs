//! Goal: the portable GPU backend gives the reference's logits, and the same bits wherever experts were, however a
//! text was cut, and with whatever else in the batch. Method: golden checkpoints on a GPU that is there, with
//! `FLASHMOE_GPU_TESTS=1` on lavapipe too, a driver that computes on the processor; without either that is a failure.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod ahead;
mod budget;
mod bytes;
mod chosen_rows;
mod compressed;
mod draws;
mod in_place;
mod launches;
#[path = "../../../../tests/long.rs"]
mod long;
#[path = "../it/processor.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod processor;
mod published;
mod quantised;
#[path = "../it/sequences/mod.rs"]
mod sequences;
mod stages;
mod steps;
mod support;
mod windows;

use engine::backend::cpu::KvType;
use engine::backend::gpu::check_model;
use engine::backend::{PAGE_TOKENS, Run, SequenceId, Snapshot, Uncancelled};
use engine::engine::{Engine, Pass};
use engine::model::Model;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;

use long::{is_long, part_from};
use sequences::{alone, bits, feed, resumed, text};
use support::{ALL, CHUNK, MIXERS, adapter, engine, folder, mixers, opened, typed};

/// Golden cases that the kernels compute, and the bound of their relative error.
const CASES: [(&str, f64); 19] = [
    ("dsv4-calm-hf", 1e-5),
    ("deepseek-calm-hf", 1e-5),
    ("dsv32-calm-hf", 1e-5),
    ("glm5-calm-hf", 1e-5),
    ("ernie-calm-hf", 1e-5),
    ("exaone-calm-hf", 1e-5),
    ("gemma4-calm-hf", 2e-5),
    ("glm-calm-hf", 1e-5),
    ("glm-flash-calm-mlxlm-4bit", 1e-5),
    ("kimi-linear-calm-hf", 1e-5),
    ("ling-calm-hf", 1e-5),
    ("olmoe-calm-hf", 1e-5),
    ("gptoss-calm-mxfp4", 1e-5),
    ("qwen35-calm-mlx-mixed", 1e-5),
    ("qwen35-calm-mlxlm-4bit", 1e-5),
    ("qwen3-calm-hf", 1e-5),
    ("qwen3next-calm-hf", 1e-5),
    ("qwen35-calm-hf", 1e-5),
    ("qwen35-hf", 3e-4),
];

/// Cases with parts that [`MIXERS`] have not: ways to choose experts, norms, heads of two shapes, gates of heads,
/// rows that an indexer chooses.
const PARTS: [&str; 7] = [
    "gemma4-calm-hf",
    "glm-calm-hf",
    "olmoe-calm-hf",
    "ernie-calm-hf",
    "ling-calm-hf",
    "dsv32-calm-hf",
    "glm5-calm-hf",
];

/// Logits of every token of a text, as bits.
fn all_logits(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let sequence = engine.create_sequence().unwrap();
    let mut logits = Vec::new();
    let each = &mut |engine: &mut Engine, _, length: usize| {
        for token in (0..length).collect::<Vec<_>>().chunks(8) {
            logits.extend(engine.logits(token)?.iter().map(|value| value.to_bits()));
        }
        Ok(())
    };
    engine.prefill(sequence, tokens, &Uncancelled, &mut |_| {}, each).unwrap();
    engine.drop_sequence(sequence);
    logits
}

/// The words of a tensor of the case's reference.
fn tensor(case: &str, name: &str) -> Vec<[u8; 4]> {
    tensor_of(case, "reference.safetensors", name)
}

/// The words of a tensor of one of the case's files.
fn tensor_of(case: &str, file: &str, name: &str) -> Vec<[u8; 4]> {
    let file = std::fs::read(folder(case).join(file)).unwrap();
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(length);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let place = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
    data[place(0)..place(1)].as_chunks::<4>().0.to_vec()
}

/// The case's token ids, and the reference's logits of them.
fn reference(case: &str) -> (Vec<u32>, Vec<f32>) {
    let ids = std::fs::read(folder(case).join("ids.json")).unwrap();
    let ids: Vec<u32> = serde_json::from_slice(&ids).unwrap();
    let logits = tensor(case, "logits").into_iter().map(f32::from_le_bytes);
    (ids, logits.collect())
}

#[test]
fn greedy_answers_are_those_of_the_reference_with_few_slots() {
    let Some(adapter) = adapter() else { return };
    for (case, _) in CASES {
        let (ids, _) = reference(case);
        let slots = opened(case).1.moe.top_k + 1;
        let mut engine = engine(&adapter, case, slots, KvType::F32, CHUNK);
        let sequence = engine.create_sequence().unwrap();
        let (last, before) = ids.split_last().unwrap();
        feed(&mut engine, sequence, before);
        let mut token = *last;
        let tokens = if is_long() { usize::MAX } else { 12 };
        for (number, expected) in tensor(case, "greedy").into_iter().take(tokens).enumerate() {
            engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
            let logits = bits(&mut engine, 0).into_iter().map(f32::from_bits).enumerate();
            let best = logits.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            token = best.0 as u32;
            assert_eq!(token, u32::from_le_bytes(expected), "{case}: token {number}");
        }
    }
}

#[test]
fn logits_are_within_the_bounds_of_the_golden_checkpoints() {
    let Some(adapter) = adapter() else { return };
    for (case, bound) in CASES {
        let (ids, expected) = reference(case);
        let mut engine = engine(&adapter, case, ALL, KvType::F32, CHUNK);
        let found = all_logits(&mut engine, &ids);
        assert_eq!(found.len(), expected.len());
        let (mut error, mut whole) = (0.0, 0.0);
        for (found, expected) in found.iter().zip(&expected) {
            let expected = f64::from(*expected);
            error += (f64::from(f32::from_bits(*found)) - expected).powi(2);
            whole += expected.powi(2);
        }
        let relative = (error / whole).sqrt();
        assert!(relative <= bound, "{case}: relative error {relative:e} above {bound:e}");
    }
}

#[test]
fn neither_budgets_nor_chunks_show_in_a_bit() {
    let Some(adapter) = adapter() else { return };
    for (number, (case, kv_type)) in typed(MIXERS.into_iter().chain(PARTS)).enumerate() {
        let (ids, _) = reference(case);
        let (_, config) = opened(case);
        let mut whole = engine(&adapter, case, ALL, kv_type, CHUNK);
        let expected = all_logits(&mut whole, &ids);
        let ways = [(ALL, 1), (ALL, 5), (config.moe.top_k + 2, CHUNK), (1, 7), (3, 1)];
        for (slots, chunk) in part_from(number, ways, 5) {
            let mut other = engine(&adapter, case, slots, kv_type, chunk);
            let found = all_logits(&mut other, &ids);
            assert!(found == expected, "{case}, {kv_type}: {slots} slots, chunks of {chunk}");
            let device = other.counters().device;
            assert_eq!(device.copied > 0, slots != ALL, "{case}: {slots} slots: {device:?}");
        }
    }
}

#[test]
fn snapshots_and_marks_go_on_as_texts_from_the_start() {
    let Some(adapter) = adapter() else { return };
    for (case, kv_type) in typed(mixers(1)) {
        let mut engine = engine(&adapter, case, ALL, kv_type, CHUNK);
        let trunk = text(1, PAGE_TOKENS + 60);
        for cut in [3, PAGE_TOKENS, PAGE_TOKENS + 50] {
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &trunk[..cut]);
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            feed(&mut engine, sequence, &text(9, 20));
            engine.drop_sequence(sequence);
            let rest = text(20, 13);
            let expected = alone(&mut engine, &[&trunk[..cut], &rest[..]].concat());
            assert!(resumed(&mut engine, &snapshot, &rest) == expected, "{case}: cut {cut}");
        }
        let (tokens, rest) = (text(3, 60), text(4, 9));
        let sequence = engine.create_sequence().unwrap();
        let runs = [&tokens[..17], &tokens[17..18], &tokens[18..]];
        let runs = runs.map(|tokens| Run { sequence, tokens });
        let mut pass = engine.start(&runs, &[0, 1]).unwrap();
        while !engine.advance(&mut pass, &Uncancelled).unwrap() {}
        let marks = engine.backend().take_marks();
        let marks: Vec<_> = marks.into_iter().map(|(_, mark)| mark).collect();
        assert_eq!(marks.iter().map(Snapshot::length).collect::<Vec<_>>(), [17, 18]);
        assert!(bits(&mut engine, 59) == alone(&mut engine, &tokens), "{case}: the marked batch");
        for mark in &marks {
            let expected = alone(&mut engine, &[&tokens[..mark.length()], &rest[..]].concat());
            let found = resumed(&mut engine, mark, &rest);
            assert!(found == expected, "{case}: mark at {}", mark.length());
        }
    }
}

#[test]
fn files_hold_nothing_but_their_own_tokens() {
    let Some(adapter) = adapter() else { return };
    let file_of = |snapshot: &Snapshot| {
        let mut file = Vec::new();
        (0..snapshot.full_pages()).for_each(|at| snapshot.write_page(at, &mut file).unwrap());
        snapshot.write_rest(&mut file).unwrap();
        file
    };
    for (case, kv_type) in typed(mixers(0)) {
        let own = text(12, 15);
        let taken = |engine: &mut Engine, tokens: &[u32]| {
            let sequence = engine.create_sequence().unwrap();
            feed(engine, sequence, tokens);
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            engine.drop_sequence(sequence);
            snapshot
        };
        let mut clean = engine(&adapter, case, ALL, kv_type, CHUNK);
        let expected = file_of(&taken(&mut clean, &own));
        // A page, a state and the sequence's place have held another's tokens.
        let mut used = engine(&adapter, case, ALL, kv_type, CHUNK);
        drop(taken(&mut used, &text(50, PAGE_TOKENS + 20)));
        assert!(file_of(&taken(&mut used, &own)) == expected, "{case}: behind another");
        let read = used.backend().read_snapshot(own.len(), &mut expected.as_slice()).unwrap();
        assert!(file_of(&read) == expected, "{case}: read");
    }
}

/// A sequence for each text, and passes of them that have begun and are put aside.
fn started_aside(engine: &mut Engine, texts: &[Vec<u32>; 2]) -> ([SequenceId; 2], [Pass; 2]) {
    let sequences = [0, 1].map(|_| engine.create_sequence().unwrap());
    let passes = [0, 1].map(|index| {
        let run = Run { sequence: sequences[index], tokens: &texts[index] };
        let mut pass = engine.start(&[run], &[]).unwrap();
        assert!(engine.put_aside(&mut pass));
        pass
    });
    (sequences, passes)
}

#[test]
fn sequences_together_and_passes_put_aside_end_as_if_alone() {
    let Some(adapter) = adapter() else { return };
    for (case, kv_type) in typed(mixers(1)) {
        // Few slots: the layers of the two take turns with them.
        let mut engine = engine(&adapter, case, 5, kv_type, CHUNK);
        let texts = [text(5, 40), text(6, 31)];
        let expected = [0, 1].map(|index| {
            let more = [&texts[index][..], &[3, 1, 4]].concat();
            alone(&mut engine, &more)
        });
        let (sequences, mut passes) = started_aside(&mut engine, &texts);
        let mut open = [true, true];
        while open.contains(&true) {
            for index in 0..2 {
                if open[index] {
                    open[index] = !engine.advance(&mut passes[index], &Uncancelled).unwrap();
                    assert!(engine.put_aside(&mut passes[index]));
                }
            }
        }
        for token in [3, 1, 4] {
            let tokens = &[token];
            let runs = sequences.map(|sequence| Run { sequence, tokens });
            engine.forward(&runs, &Uncancelled).unwrap();
        }
        for (index, expected) in expected.iter().enumerate() {
            assert!(bits(&mut engine, index) == *expected, "{case}: sequence {index}");
        }
    }
}

#[test]
fn other_families_are_refused_by_the_names_of_their_operations() {
    let (checkpoint, config) = opened("glm-next-calm-hf");
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let error = check_model(&config, &model.program, &catalog, &shapes).unwrap_err().to_string();
    let head =
        "config.json: model_type: is GLM-5.3-Flash: the GPU kernels do not compute ".to_owned();
    assert!(error.starts_with(&head) && error.ends_with(": use --device cpu"), "{error}");
    assert!(error.contains("latent attention to chosen rows of pools (layer "), "{error}");
}

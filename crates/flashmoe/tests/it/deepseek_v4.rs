//! DeepSeek-V4 from end to end: every part of it changes the answer, a pack has the bits of the release, and what is
//! not computed is refused when the model is opened.

use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::{Checkpoint, Tensor, open};
use store::io::platform::FileExt;
use support::{Scored, distance, flashmoe, golden, golden_copy};

const CASE: &str = "dsv4-calm-hf";
/// Least difference that counts: fifty times what the case is held to.
const MATTERS: f64 = 1e-3;

fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

/// The one line of a refusal.
fn refusal(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

fn bytes(source: &Checkpoint, tensor: &Tensor) -> Vec<u8> {
    let file = fs::File::open(&source.files[tensor.weight.file.0 as usize].path).unwrap();
    let mut bytes = vec![0; tensor.weight.length as usize];
    file.read_exact_at(&mut bytes, tensor.weight.offset).unwrap();
    bytes
}

/// What the reference has and a slip would leave out: without it the answer is another, so that an answer within 1e-5
/// of the reference has it. Matrices of 4 x 4 streams are put on their side, tables of experts moved by one token.
#[test]
fn every_part_changes_the_answer() {
    let (_folder, model) = golden_copy(CASE);
    // Without the rounding of the cache, which would make steps of small differences.
    let clean = ["--kv-type", "f32"];
    let reference = score(&model, &clean);
    let source = open(&model).unwrap();
    let weights = fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    let zero = |bytes: &[u8]| vec![0; bytes.len()];
    let sideways = |bytes: &[u8]| {
        // Of the 24 outputs the last 16 are the mixture by rows.
        let row = bytes.len() / 24;
        let place = |output: usize| match output {
            0..8 => output,
            _ => 8 + (output - 8) % 4 * 4 + (output - 8) / 4,
        };
        (0..24).flat_map(|output| bytes[place(output) * row..][..row].to_vec()).collect()
    };
    let moved = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.rotate_left(2 * 8);
        bytes
    };
    let change = |part: &str, changed: &dyn Fn(&[u8]) -> Vec<u8>| {
        let names = source.tensors.iter().filter(|(name, _)| name.ends_with(part));
        let kept: Vec<_> = names.map(|(_, it)| (it.weight.offset, bytes(&source, it))).collect();
        assert!(!kept.is_empty(), "no tensor {part}");
        for (offset, bytes) in &kept {
            weights.write_all_at(&changed(bytes), *offset).unwrap();
        }
        let found = distance(&score(&model, &clean), &reference);
        assert!(found > MATTERS, "{part}: {found:e}");
        for (offset, bytes) in &kept {
            weights.write_all_at(bytes, *offset).unwrap();
        }
    };
    for part in [
        "attn_hc.fn",
        "attn_hc.base",
        "ffn_hc.gain",
        "hc_head.fn",
        "hc_head.base",
        "self_attn.sinks",
        "self_attn.compressor.position_bias",
        "self_attn.indexer.position_bias",
        "self_attn.indexer.weights_proj",
        "mlp.gate.e_score_correction_bias",
        "mlp.shared_expert.down_proj",
    ] {
        change(part, &zero);
    }
    for part in ["attn_hc.fn", "ffn_hc.fn", "attn_hc.base"] {
        change(part, &sideways);
    }
    change("mlp.gate.tid2eid", &moved);
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in [
        ("/sliding_window", json!(17)),
        ("/index_topk", json!(7)),
        ("/swiglu_limit", json!(10.0)),
        ("/hc_sinkhorn_iters", json!(1)),
        ("/hc_eps", json!(1e-2)),
        ("/rope_theta", json!(160_000)),
        ("/compress_rope_theta", json!(10_000)),
        ("/rope_scaling/factor", json!(15)),
        ("/rope_scaling/attention_factor", json!(1.1)),
        ("/routed_scaling_factor", json!(1.0)),
        ("/norm_topk_prob", json!(false)),
    ] {
        let (place, name) = key.rsplit_once('/').unwrap();
        let mut changed = config.clone();
        changed.pointer_mut(place).unwrap()[name] = value.clone();
        fs::write(&path, changed.to_string()).unwrap();
        let found = distance(&score(&model, &clean), &reference);
        assert!(found > MATTERS / 10.0, "{key} {value}: {found:e}");
    }
}

#[test]
fn a_pack_has_the_bits_of_the_release() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden().join(CASE).join("model");
    let expected = score(&model, &[]);
    let pack = folder.path().join("pack");
    let [from, to] = [&model, &pack].map(|path| path.to_str().unwrap());
    assert!(flashmoe(&["pack", from, to]).status.success());
    for options in [
        &["--check-reads"][..],
        &["--storage", "mmap"],
        &["--storage", "budget", "--slots", "floor", "--prefill-chunk", "5"],
        &["--storage", "resident", "--threads", "3", "--kv", "ahead"],
    ] {
        assert!(score(&pack, options) == expected, "{options:?}");
    }
}

#[test]
fn what_is_not_computed_is_refused_with_its_name() {
    let (folder, model) = golden_copy(CASE);
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let model = model.to_str().unwrap();
    for (key, value, named) in [
        ("compress_ratios", json!([0, 4]), "compress_ratios"),
        ("compress_ratios", json!([0, 3, 8, 4]), "compress_ratios"),
        ("scoring_func", json!("sigmoid"), "scoring_func"),
        ("num_key_value_heads", json!(2), "num_key_value_heads"),
        ("o_groups", json!(3), "o_groups"),
        ("rope_parameters", json!({ "main": {}, "compress": {} }), "rope_parameters"),
        ("quantization_config", json!({ "quant_method": "fp8x" }), "quant_method"),
        ("num_hash_layers", json!(0), "e_score_correction_bias"),
        // As wide as numbers of half the size would be for as many experts again.
        ("num_experts_per_tok", json!(4), "tid2eid"),
    ] {
        let mut changed = config.clone();
        changed[key] = value.clone();
        fs::write(&path, changed.to_string()).unwrap();
        let line = refusal(&["inspect", model]);
        assert!(line.contains(named), "{key} {value}: {line}");
    }
    fs::write(&path, config.to_string()).unwrap();
    // A table that names an expert which does not exist.
    let source = open(Path::new(model)).unwrap();
    let table = &source.tensors["layers.0.mlp.gate.tid2eid"];
    let weights =
        fs::File::options().write(true).open(folder.path().join("model/model.safetensors"));
    let (weights, row) = (weights.unwrap(), table.weight.offset + 2 * 8);
    let ids = golden().join(CASE).join("ids.json");
    let pack = folder.path().join("pack");
    for (numbers, problem) in [([6_u64, 0], "not below 6"), ([3, 3], "row 1 has 3 twice")] {
        for (place, number) in [0, 8].into_iter().zip(numbers) {
            weights.write_all_at(&number.to_le_bytes(), row + place).unwrap();
        }
        for arguments in [
            &["score", model, "--ids", ids.to_str().unwrap()][..],
            &["pack", model, pack.to_str().unwrap()],
        ] {
            let line = refusal(arguments);
            for word in ["tid2eid", "model.safetensors", problem] {
                assert!(line.contains(word), "{arguments:?}: {line}");
            }
        }
    }
}

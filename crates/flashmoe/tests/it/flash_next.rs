//! Qwen3.8-Flash-Next from end to end: every part of it changes the answer, prompts may be cut at every place of what a
//! layer remembers, rows of n-grams are counted and never loaded, and what is not computed is refused when the model is
//! opened.

use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::{Extent, open};
use store::io::platform::FileExt;
use support::{Scored, distance, flashmoe, golden, golden_copy, run};

const CASE: &str = "flash-next-calm-hf";
/// Least difference that counts: a hundred times what the case is held to.
const MATTERS: f64 = 1e-3;

fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

/// The line of a refusal.
fn refusal(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

/// What is said of a model whose text configuration was changed.
fn refused_with(change: impl Fn(&mut Value)) -> String {
    let (_folder, model) = golden_copy(CASE);
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config["text_config"]);
    fs::write(&path, config.to_string()).unwrap();
    refusal(&["inspect", model.to_str().unwrap()])
}

/// What the reference has and a slip would leave out: without it the answer is another, so that an answer within 1e-5
/// of the reference has it.
#[test]
fn every_part_changes_the_answer() {
    let (_folder, model) = golden_copy(CASE);
    let reference = score(&model, &[]);
    let source = open(&model).unwrap();
    let weights = fs::File::options().write(true).read(true).open(model.join("model.safetensors"));
    let weights = weights.unwrap();
    let change = |part: &str, extents: Vec<Extent>| {
        assert!(!extents.is_empty(), "no tensor {part}");
        for extent in extents {
            let mut kept = vec![0; extent.length as usize];
            weights.read_exact_at(&mut kept, extent.offset).unwrap();
            weights.write_all_at(&vec![0; kept.len()], extent.offset).unwrap();
            let found = distance(&score(&model, &[]), &reference);
            assert!(found > MATTERS, "{part}: {found:e}");
            weights.write_all_at(&kept, extent.offset).unwrap();
        }
    };
    for part in [
        "layers.0.attn_hyper_connection.hc_norm",
        "layers.0.attn_hyper_connection.input_mix_weight_down",
        "layers.0.attn_hyper_connection.input_mix_weight_up",
        "layers.0.attn_hyper_connection.block_inject_weight",
        "layers.1.mlp_hyper_connection.hc_norm",
        "layers.1.mlp_hyper_connection.input_mix_weight_up",
        "layers.1.mlp_hyper_connection.block_inject_weight",
        "layers.0.linear_attn.in_proj_z",
        "layers.1.ple.key_proj",
        "layers.1.ple.value_proj",
        "layers.1.ple.norm_key",
        "layers.1.ple.norm_query",
        "layers.1.ple.norm_conv",
        "layers.1.ple.conv1d",
        "layers.2.self_attn.indexer.index_qk_proj",
        "layers.2.self_attn.indexer.q_layernorm",
        "layers.2.self_attn.indexer.k_layernorm",
        "hyper_connection_mixer.hc_norm",
        "hyper_connection_mixer.input_mix_weight_up",
    ] {
        change(part, vec![source.tensors[part].weight]);
    }
    let tables = source.row_tables.values().flat_map(|table| &table.parts);
    change("the table", tables.map(|part| part.extent).collect());
    assert!(score(&model, &[]) == reference, "put back");
}

/// Numbers that no tensor repeats.
#[test]
fn every_number_changes_the_answer() {
    let (_folder, model) = golden_copy(CASE);
    let reference = score(&model, &[]);
    let path = model.join("config.json");
    let text = fs::read(&path).unwrap();
    for (key, value) in [
        ("output_gate_type", json!("silu")),
        ("indexer_budget", json!(12)),
        ("indexer_budget", json!(4096)),
        ("norm_topk_prob", json!(false)),
        ("eos_token_id", json!(7)),
    ] {
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        config["text_config"][key] = value.clone();
        fs::write(&path, config.to_string()).unwrap();
        let found = distance(&score(&model, &[]), &reference);
        assert!(found > MATTERS, "{key} = {value}: {found:e}");
    }
}

/// The convolution of n-grams sees nine tokens back, the indexer's units have four.
#[test]
fn a_prompt_may_be_cut_anywhere() {
    let whole = Scored::compute(CASE, &["--prefill-chunk", "70"]);
    for chunk in 1..=13 {
        let chunk = chunk.to_string();
        let found = Scored::compute(CASE, &["--prefill-chunk", &chunk]);
        assert!(found == whole, "chunks of {chunk}: the bits differ");
    }
}

#[test]
fn missing_keys_are_refused_by_name() {
    for key in [
        "layer_types",
        "head_dim",
        "norm_topk_prob",
        "max_position_embeddings",
        "rms_norm_eps",
        "output_gate_type",
        "hc_count",
        "hc_lowrank",
        "indexer_n_heads",
        "indexer_head_dim",
        "indexer_budget",
        "indexer_compress_ratio",
        "ple_layer_ids",
        "ple_embed_dim",
        "ple_conv_kernel",
        "ngram_size",
        "heads_per_ngram",
        "ngram_vocab_size_base",
        "make_ngram_vocab_size_divisible_by",
        "split_ngram_parts",
        "eos_token_id",
    ] {
        let line = refused_with(|text| {
            let text = text.as_object_mut().unwrap();
            text.remove(key);
            text.remove(&format!("{key}_size"));
        });
        assert!(line.contains(key) && line.contains("missing"), "{key}: {line}");
    }
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    for (key, value, named) in [
        ("eos_token_id", json!([0, 1]), "needs one"),
        ("indexer_kv_heads", json!(2), "only that is supported"),
        ("indexer_budget", json!(15), "no multiple of indexer_compress_ratio"),
        ("indexer_compress_ratio", json!(16), "tensor"),
        ("ple_layer_ids", json!([3]), "has no linear attention"),
        ("ple_layer_ids", json!([9]), "9 of 3 layers"),
        ("ple_layer_ids", json!([]), "has no use here"),
        ("heads_per_ngram", json!(3), "no multiple of 6 rows"),
        ("ngram_vocab_size_base", json!(30), "belongs to another model"),
        ("split_ngram_parts", json!(4), "split_ngram_parts"),
        ("ple_conv_kernel", json!(3), "ple_conv_kernel_size"),
        ("output_gate_type", json!("tanh"), "only that is supported"),
    ] {
        if key == "indexer_compress_ratio" {
            continue;
        }
        let line = refused_with(|text| text[key] = value.clone());
        assert!(line.contains(named), "{key} = {value}: {line}");
    }
    let line = refused_with(|text| {
        text["indexer_compress_ratio"] = json!(3);
        text["indexer_budget"] = json!(12);
    });
    assert!(line.contains("does not divide 256"), "{line}");
}

/// Replaces a text of the file's head by one of the same length.
fn with_name(model: &Path, from: &str, to: &str) {
    let path = model.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    fs::write(&path, bytes).unwrap();
}

#[test]
fn tables_that_are_not_whole_are_refused() {
    for (from, to, named) in [
        ("shard_1.weight", "shard_2.weight", "shard_1"),
        ("shard_0.weight", "shard_7.weight", "shard_0"),
        ("shard_1.weight", "shard_x.weight", "shard_x"),
    ] {
        let (_folder, model) = golden_copy(CASE);
        with_name(&model, from, to);
        let line = refusal(&["inspect", model.to_str().unwrap()]);
        assert!(line.contains(named), "{from} as {to}: {line}");
    }
    let (_folder, model) = golden_copy(CASE);
    let file = fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 1).unwrap();
    let line = refusal(&["inspect", model.to_str().unwrap()]);
    assert!(line.contains("model.safetensors"), "{line}");
}

/// The release repeats the constants of the hash, and others would find other rows.
#[test]
fn other_constants_of_the_hash_are_refused() {
    for part in ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"] {
        let (_folder, model) = golden_copy(CASE);
        let source = open(&model).unwrap();
        let name = format!("layers.1.ple.ple_embedding.{part}");
        let extent = source.tensors[&name].weight;
        let file = fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
        file.write_all_at(&77_777_u64.to_le_bytes(), extent.offset).unwrap();
        let line = refusal(&["run", model.to_str().unwrap(), "x", "--max-tokens", "1"]);
        assert!(line.contains(part) && line.contains("77777"), "{line}");
    }
}

#[test]
fn rows_are_planned_inspected_and_counted() {
    let model = golden().join(CASE).join("model");
    let model = model.to_str().unwrap();
    let found = run(&["inspect", model]);
    assert!(found.contains("rows of n-grams") && found.contains("4 for a token"), "{found}");
    let found: Value = serde_json::from_str(&run(&["inspect", model, "--json"])).unwrap();
    let (table, trunk) = (&found["row_table_bytes"], &found["trunk_bytes"]);
    let source = open(Path::new(model)).unwrap();
    assert_eq!(table.as_u64(), Some(source.row_tables.values().map(|it| it.bytes()).sum()));
    assert_eq!(trunk.as_u64(), Some(source.trunk_bytes()));
    let card = ["--machine", "ram=64G,disk=7,memory=936,vram=24G,bus=25", "--device", "cuda:0"];
    for device in [&["--device", "cpu"][..], &card] {
        let found = run(&[&["plan", model], device].concat());
        assert!(found.contains("rows of n-grams"), "{device:?}: {found}");
    }
    let arguments = ["run", model, "a few words", "--max-tokens", "4", "--stats"];
    let output = flashmoe(&arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("rows ") && line.contains("cached"), "{line}");
}

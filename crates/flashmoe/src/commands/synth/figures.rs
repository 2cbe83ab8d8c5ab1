//! The figures of docs/models.md: bytes of caches and records, as the plan counts them for every shape.

use std::path::Path;

use engine::backend::cpu::{CpuOptions, KvGrowth, KvType, Requirements};
use engine::model::config::ModelConfig;
use kernels::DeltaForm;
use store::format::{Configuration, Element};
use store::synthetic::GeneratedExperts;

use super::shape::{named, resolve};
use crate::arguments::{LayoutChoice, StoredAs, SynthArguments};

/// Every shape of a release, and how its experts and its other matrices are published.
const RELEASES: [(&str, &str, &str); 32] = [
    ("35B-A3B", "bf16", "bf16"),
    ("122B-A10B", "bf16", "bf16"),
    ("397B-A17B", "bf16", "bf16"),
    ("30B-A3B", "bf16", "bf16"),
    ("235B-A22B", "bf16", "bf16"),
    ("80B-A3B", "bf16", "bf16"),
    ("48B-A3B", "bf16", "bf16"),
    ("gpt-oss-20b", "mxfp4:planes", "bf16"),
    ("gpt-oss-120b", "mxfp4:planes", "bf16"),
    ("deepseek-v3", "fp8:128:f32", "fp8:128:f32"),
    ("deepseek-v3.2", "fp8:128:f32", "fp8:128:f32"),
    ("glm-5", "bf16", "bf16"),
    ("glm-5.2", "bf16", "bf16"),
    ("glm-5.3-flash", "fp8:128:f32", "fp8:128:f32"),
    ("kimi-k2", "int4", "bf16"),
    ("glm-4.7-flash", "bf16", "bf16"),
    ("glm-4.6", "bf16", "bf16"),
    ("glm-4.7", "bf16", "bf16"),
    ("glm-4.5-air", "bf16", "bf16"),
    ("minimax-m2", "fp8:128:f32", "fp8:128:f32"),
    ("deepseek-v4-flash", "mxfp4:planes", "fp8:128:e8m0"),
    ("olmoe", "bf16", "bf16"),
    ("dots1", "bf16", "bf16"),
    ("solar-open", "bf16", "bf16"),
    ("hy3", "bf16", "bf16"),
    ("vl-30B-A3B", "bf16", "bf16"),
    ("vl-235B-A22B", "bf16", "bf16"),
    ("ernie-4.5-21b", "bf16", "bf16"),
    ("ernie-4.5-300b", "bf16", "bf16"),
    ("k-exaone", "bf16", "bf16"),
    ("gemma-4-26b-a4b", "bf16", "bf16"),
    ("ling-3-flash", "bf16", "bf16"),
];

fn config(name: &str) -> ModelConfig {
    let known = Configuration::new(Path::new(name), named(name).expect("a known shape"));
    ModelConfig::read(&known.expect("an object")).expect("a configuration that is read")
}

/// Bytes of a token of a sequence, and of its state whatever its length.
fn sequence(config: &ModelConfig, kv_type: KvType) -> [u64; 2] {
    let options = CpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: 1,
        logit_rows: 1,
        sequences: 1,
        context: 1,
        snapshots: 0,
        kv_growth: KvGrowth::Grow,
        kv_type,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: 1,
        row_cache: 0,
    };
    [
        Requirements::key_value_bytes_per_token(config, &options),
        Requirements::snapshot_bytes(config, &options),
    ]
}

/// Bytes of a record, of all records and of the rest of a model whose matrices are stored so.
fn weights(name: &str, experts: &str, trunk: &str) -> [u64; 3] {
    let stored = |text: &str| text.parse::<StoredAs>().expect("an encoding");
    let shape = resolve(&SynthArguments {
        head: false,
        shape: name.to_owned(),
        destination: "nowhere".into(),
        layers: None,
        distinct: None,
        experts: stored(experts),
        trunk: stored(trunk),
        group: if experts == "int4" { 32 } else { 64 },
        layout: LayoutChoice::Native,
        seed: 0,
        tokenizer: None,
    });
    let model = shape.expect("a shape that can be made").model;
    let matrix = |element: Element, rows, columns| {
        element.plane_bytes(rows, columns).iter().sum::<usize>() as u64
    };
    let layers = model.layers.iter().flatten();
    let record = |experts: &GeneratedExperts| {
        let matrices = experts.shapes.iter();
        matrices.map(|it| matrix(it.encoding.into(), it.rows, it.columns)).sum::<u64>()
    };
    let all: u64 = layers.clone().map(|it| it.experts as u64 * record(it)).sum();
    let rest = model.tensors.iter().map(|tensor| {
        let columns = *tensor.shape.last().expect("a dimension");
        let rows = tensor.shape.iter().product::<usize>() / columns;
        matrix(tensor.element, rows, columns)
    });
    [layers.clone().next().map_or(0, record), all, rest.sum()]
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// What a sequence takes: the row of a shape.
fn sequence_row(name: &str) -> String {
    let config = config(name);
    let kinds = [KvType::F32, KvType::F16, KvType::Q8].map(|kind| sequence(&config, kind));
    let [f32, f16, q8] = kinds.map(|[token, _]| grouped(token));
    format!("| `{name}` | {f32} | {f16} | {q8} | {} |", grouped(kinds[0][1]))
}

/// What the weights take: the row of a shape.
fn weights_row(name: &str, experts: &str, trunk: &str) -> String {
    let gigabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e9);
    let [record, all, rest] = weights(name, "4bit", "4bit");
    let narrow = format!("{} | {} | {}", grouped(record), gigabytes(all), gigabytes(rest));
    let [record, all, rest] = weights(name, experts, trunk);
    let whole = format!("{} | {} | {}", grouped(record), gigabytes(all), gigabytes(rest));
    format!("| `{name}` | {narrow} | `{experts}`, `{trunk}` | {whole} |")
}

/// What docs/models.md says of every shape is what is computed.
#[test]
fn the_documented_figures_are_those_of_the_shapes() {
    let page = include_str!("../../../../../docs/models.md");
    let sequences = RELEASES.iter().map(|(name, ..)| sequence_row(name));
    let weights = RELEASES.iter().map(|(name, experts, trunk)| weights_row(name, experts, trunk));
    let rows = sequences.chain(weights).filter(|row| !page.lines().any(|line| line == row));
    let missing: Vec<String> = rows.collect();
    assert!(missing.is_empty(), "docs/models.md lacks these rows:\n{}", missing.join("\n"));
}

/// The figures that the designs of the caches give, in f16: rows of all layers that attend.
#[test]
fn a_token_takes_what_its_caches_are_made_of() {
    for (name, expected) in [
        // Heads of keys and values: layers x heads x size x 2 of them x 2 bytes.
        ("30B-A3B", 48 * 4 * 128 * 4),
        ("235B-A22B", 94 * 4 * 128 * 4),
        ("glm-4.7", 92 * 8 * 128 * 4),
        ("glm-4.5-air", 46 * 8 * 128 * 4),
        ("minimax-m2", 62 * 8 * 128 * 4),
        ("olmoe", 16 * 16 * 128 * 4),
        ("dots1", 62 * 32 * 128 * 4),
        ("solar-open", 48 * 8 * 128 * 4),
        ("hy3", 80 * 8 * 128 * 4),
        // One layer in four sees all positions, the others keep a window.
        ("k-exaone", 12 * 8 * 128 * 4),
        ("ernie-4.5-21b", 28 * 4 * 128 * 4),
        ("ernie-4.5-300b", 54 * 8 * 128 * 4),
        // Every other layer keeps a window, which is part of the state.
        ("gpt-oss-120b", 18 * 8 * 64 * 4),
        ("gpt-oss-20b", 12 * 8 * 64 * 4),
        // One layer in four attends, the others have a state.
        ("80B-A3B", 12 * 2 * 256 * 4),
        ("397B-A17B", 15 * 2 * 256 * 4),
        // Latents of 512 and a rotated key of 64.
        ("deepseek-v3", 61 * 576 * 2),
        ("kimi-k2", 61 * 576 * 2),
        ("glm-4.7-flash", 47 * 576 * 2),
        // The same in every fourth layer and in the last; the others have a state.
        ("48B-A3B", 7 * 576 * 2),
        // The last of six layers.
        ("ling-3-flash", 7 * 576 * 2),
        // Latents, and a key of the indexer: in every layer, or in the first three and then in one of four.
        ("deepseek-v3.2", 61 * (576 + 128) * 2),
        ("glm-5", 78 * (576 + 128) * 2),
        ("glm-5.2", (78 * 576 + 21 * 128) * 2),
        // Latents alone, and a key of the indexer for sixteen tokens, in one layer of four.
        ("glm-5.3-flash", 11 * (512 * 2 + 128 * 2 / 16)),
        // A row and a key of the indexer for four tokens in 21 layers, a row for 128 in 20.
        ("deepseek-v4-flash", 21 * (512 + 128) * 2 / 4 + 20 * 512 * 2 / 128),
    ] {
        assert_eq!(sequence(&config(name), KvType::F16)[0], expected, "{name}");
    }
    // A block of 256 rows in each layer with a window.
    assert_eq!(sequence(&config("gpt-oss-120b"), KvType::F16)[1], 18 * 256 * 8 * 64 * 4);
    // A state of 128 x 128 for each of 32 heads, and three rows of a convolution over their queries, keys and values.
    let delta = 32 * 128 * 128 + 3 * 3 * 32 * 128;
    assert_eq!(sequence(&config("48B-A3B"), KvType::F16)[1], 20 * delta * 4);
}

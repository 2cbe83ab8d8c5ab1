//! Keys of GGUF files of DeepSeek-V4, GLM-4.5 and MiniMax-M2: one that is missing, or says what is not computed, is
//! refused in one line that names it.

use crate::common::Folder;
use store::format::open;
use store::synthetic::gguf::{F32, GgufFile, GgufValue};

/// A change to a file.
type Change = fn(&mut GgufFile);

/// An architecture, its own keys, what is changed, and the key that the refusal names.
type Case = (&'static str, &'static [(&'static str, f32)], Change, &'static str);

/// Keys that all three need, and that the small file of another architecture has.
const COMMON: [(&str, f32); 9] = [
    ("block_count", 2.0),
    ("embedding_length", 64.0),
    ("attention.head_count", 2.0),
    ("attention.head_count_kv", 1.0),
    ("attention.key_length", 32.0),
    ("expert_count", 4.0),
    ("expert_used_count", 2.0),
    ("expert_feed_forward_length", 32.0),
    ("rope.dimension_count", 16.0),
];
/// What each needs besides; whole numbers are counts.
const GLM: [(&str, f32); 1] = [("expert_shared_count", 1.0)];
const MINIMAX: [(&str, f32); 1] = [("expert_gating_func", 2.0)];
const DEEPSEEK_V4: [(&str, f32); 13] = [
    ("expert_gating_func", 4.0),
    ("expert_shared_count", 1.0),
    ("attention.q_lora_rank", 16.0),
    ("attention.output_lora_rank", 16.0),
    ("attention.output_group_count", 2.0),
    ("attention.sliding_window", 16.0),
    ("attention.indexer.head_count", 2.0),
    ("attention.indexer.key_length", 16.0),
    ("attention.indexer.top_k", 8.0),
    ("hash_layer_count", 1.0),
    ("hyper_connection.count", 4.0),
    ("hyper_connection.sinkhorn_iterations", 3.0),
    ("swiglu_clamp_exp", 10.0),
];

/// A file with the keys of an architecture, and tensors of none that has them.
fn of(architecture: &str, own: &[(&str, f32)]) -> GgufFile {
    let mut file = GgufFile::tiny(F32);
    file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
    file.set("general.architecture", GgufValue::Text(architecture.to_owned()));
    for (key, value) in COMMON.iter().chain(own) {
        file.set(&format!("{architecture}.{key}"), GgufValue::U32(*value as u32));
    }
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base"] {
        let value = if key.ends_with("base") { 1e4 } else { 1e-5 };
        file.set(&format!("{architecture}.{key}"), GgufValue::F32(value));
    }
    if architecture == "deepseek4" {
        for (key, value) in [
            ("hyper_connection.epsilon", 1e-6),
            ("attention.compress_rope_freq_base", 1.6e5),
            ("expert_weights_scale", 1.5),
        ] {
            file.set(&format!("deepseek4.{key}"), GgufValue::F32(value));
        }
        file.set("deepseek4.expert_weights_norm", GgufValue::Bool(true));
        file.set("deepseek4.attention.compress_ratios", GgufValue::I32s(vec![0, 4, 0]));
    }
    file
}

/// The line that refuses a file; empty where its keys and the tensors of the other architecture fit.
fn message(file: &GgufFile) -> String {
    let folder = Folder::new();
    folder.write("m.gguf", file.to_bytes());
    let Err(error) = open(&folder.path().join("m.gguf")) else { return String::new() };
    let message = error.to_string();
    assert!(message.lines().count() == 1 && message.contains("m.gguf"), "{message}");
    message
}

#[test]
fn a_key_that_is_needed_is_named_when_it_is_missing() {
    for (architecture, own) in
        [("glm4moe", &GLM[..]), ("minimax-m2", &MINIMAX), ("deepseek4", &DEEPSEEK_V4)]
    {
        let file = of(architecture, own);
        // All keys are there: at most the tensors are wrong.
        let found = message(&file);
        assert!(!found.contains(&format!("{architecture}.")), "{found}");
        let prefix = format!("{architecture}.");
        let keys: Vec<String> = file.keys.iter().map(|(key, _)| key.clone()).collect();
        for key in keys.iter().filter(|key| key.starts_with(&prefix)) {
            let mut without = file.clone();
            without.remove(key);
            let found = message(&without);
            assert!(found.contains(&format!("{key}: missing")), "{key}: {found}");
        }
    }
}

/// The format rotates whole heads where the key is absent, config.json of the same family a quarter of them.
#[test]
fn how_much_of_a_head_is_rotated_must_be_said_where_it_is_a_part() {
    for architecture in ["qwen3next", "qwen35moe"] {
        let own = [
            ("expert_shared_feed_forward_length", 32.0),
            ("ssm.group_count", 1.0),
            ("ssm.time_step_rank", 2.0),
            ("ssm.state_size", 16.0),
            ("ssm.conv_kernel", 4.0),
            ("ssm.inner_size", 32.0),
        ];
        let mut file = of(architecture, &own);
        file.remove(&format!("{architecture}.rope.dimension_count"));
        let found = message(&file);
        assert!(found.contains("rope.dimension_count: missing"), "{found}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_its_key() {
    let cases: [Case; 13] = [
        (
            "glm4moe",
            &GLM,
            |f| f.set("glm4moe.expert_gating_func", GgufValue::U32(1)),
            "glm4moe.expert_gating_func",
        ),
        (
            "glm4moe",
            &GLM,
            |f| f.set("glm4moe.rope.dimension_count", GgufValue::U32(64)),
            "glm4moe.rope.dimension_count",
        ),
        (
            "glm4moe",
            &GLM,
            |f| f.set("glm4moe.rope.scaling.type", GgufValue::Text("yarn".into())),
            "glm4moe.rope.scaling.type",
        ),
        (
            "minimax-m2",
            &MINIMAX,
            |f| f.set("minimax-m2.expert_weights_norm", GgufValue::Bool(false)),
            "minimax-m2.expert_weights_norm",
        ),
        (
            "minimax-m2",
            &MINIMAX,
            |f| f.set("minimax-m2.leading_dense_block_count", GgufValue::U32(1)),
            "minimax-m2.leading_dense_block_count",
        ),
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.expert_gating_func", GgufValue::U32(2)),
            "deepseek4.expert_gating_func",
        ),
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.attention.compress_ratios", GgufValue::I32s(vec![0, -4, 0])),
            "deepseek4.attention.compress_ratios",
        ),
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.attention.compress_ratios", GgufValue::I32s(vec![4; 4096])),
            "deepseek4.attention.compress_ratios",
        ),
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.swiglu_clamp_shexp", GgufValue::F32(7.0)),
            "deepseek4.swiglu_clamp_shexp",
        ),
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.expert_group_count", GgufValue::U32(4)),
            "deepseek4.expert_group_count",
        ),
        // Without a type a factor stretches linearly.
        (
            "glm4moe",
            &GLM,
            |f| f.set("glm4moe.rope.scaling.factor", GgufValue::F32(40.0)),
            "glm4moe.rope.scaling.factor",
        ),
        // Without a type a factor stretches linearly.
        (
            "minimax-m2",
            &MINIMAX,
            |f| f.set("minimax-m2.rope.scaling.factor", GgufValue::F32(40.0)),
            "minimax-m2.rope.scaling.factor",
        ),
        // Without a type a factor stretches linearly.
        (
            "deepseek4",
            &DEEPSEEK_V4,
            |f| f.set("deepseek4.rope.scaling.factor", GgufValue::F32(40.0)),
            "deepseek4.rope.scaling.factor",
        ),
    ];
    for (architecture, own, change, key) in cases {
        let mut file = of(architecture, own);
        change(&mut file);
        let found = message(&file);
        assert!(found.contains(key), "{key}: {found}");
    }
}

//! Gemma-4: other models of its line are refused by the keys that tell them apart, and windows of sequences that go
//! back to an earlier point are those of the text there.

use std::fs;
use std::path::Path;

use engine::backend::cpu::KvType;
use serde_json::{Value, json};

use crate::configuration::{copy, meaning, read, with};
use crate::processor::engine_of;
use crate::sequences::{alone, feed, resumed, text};

const CASE: &str = "gemma4-calm-hf";

#[test]
fn other_models_of_the_line_are_refused_by_key() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(CASE);
    let rotation = "/text_config/rope_parameters/full_attention";
    for (pointer, key, value, named) in [
        ("/text_config", "enable_moe_block", json!(false), "enable_moe_block"),
        ("/text_config", "hidden_size_per_layer_input", json!(256), "hidden_size_per_layer_input"),
        ("/text_config", "num_kv_shared_layers", json!(2), "num_kv_shared_layers"),
        ("/text_config", "num_experts", Value::Null, "num_experts"),
        ("/text_config", "top_k_experts", json!(6), "top_k_experts"),
        ("/text_config", "sliding_window", json!(5000), "sliding_window"),
        ("/text_config", "attention_k_eq_v", json!(false), "self_attn."),
        (
            "/text_config",
            "use_bidirectional_attention",
            json!("all"),
            "use_bidirectional_attention",
        ),
        ("/text_config", "hidden_activation", json!("silu"), "hidden_activation"),
        ("/text_config", "rope_parameters", json!({"rope_theta": 1e4}), "rope_parameters"),
        (
            "/text_config",
            "layer_types",
            json!(["full_attention", "full_attention", "sliding_attention"]),
            "layer_types",
        ),
        (rotation, "factor", json!(8.0), "factor"),
        (rotation, "rope_type", json!("yarn"), "rope_type"),
        (rotation, "rope_theta", Value::Null, "rope_theta"),
    ] {
        let folder = copy(&model.join("model"));
        let path = folder.path().join("config.json");
        let changed = with(&read(&path), pointer, key, Some(&value));
        fs::write(&path, changed.to_string()).unwrap();
        match meaning(folder.path()) {
            Err(line) => assert!(line.contains(named), "{key}: {line}"),
            Ok(_) => panic!("{pointer}/{key} = {value} is accepted"),
        }
    }
    // Without the key the reference would have inputs of each layer.
    let folder = copy(&model.join("model"));
    let path = folder.path().join("config.json");
    let changed = with(&read(&path), "/text_config", "hidden_size_per_layer_input", None);
    fs::write(&path, changed.to_string()).unwrap();
    let line = meaning(folder.path()).unwrap_err();
    assert!(line.contains("hidden_size_per_layer_input"), "{line}");
}

/// Goes back over more than a window, and over more than the ring that keeps it, and on with another text.
#[test]
fn a_sequence_that_goes_back_sees_the_window_of_its_point() {
    let (first, other) = (text(7, 700), text(8, 700));
    for kv_type in [KvType::F16, KvType::Q8] {
        let mut engine = engine_of(CASE, kv_type, 1500);
        for point in [3, 19, 20, 21, 130, 256, 300, 513] {
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &first[..point]);
            let kept = engine.backend().snapshot(sequence, None).unwrap();
            // The ring comes round behind the point.
            feed(&mut engine, sequence, &first[point..]);
            feed(&mut engine, sequence, &other);
            engine.drop_sequence(sequence);
            for tokens in [1, 40, 400] {
                let expected = alone(&mut engine, &[&first[..point], &other[..tokens]].concat());
                let found = resumed(&mut engine, &kept, &other[..tokens]);
                assert!(found == expected, "{kv_type}: back to {point}, {tokens} more");
            }
        }
    }
}

//! Weights as publishers' tools quantise them, end to end: a checkpoint gives the answers of the values that its
//! description defines, to the bit in binary32, in every storage mode, and from a pack that copied its bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use serde_json::{Value, json};
use support::{distance, golden, run};

use crate::fp8::{CASE, score};
use crate::quantised::{Quantised, WHOLE, convert, fp8_rows, integers, nvfp4};
use crate::support;

/// Compares the answers of a quantised checkpoint with those of its values; `label` is what `inspect` calls it.
fn check(config: &Value, label: &str, with: impl Fn(&str, [usize; 2], &[f32]) -> Quantised) {
    const EXACT: [&str; 2] = ["--arithmetic", "f32"];
    let folder = tempfile::tempdir().unwrap();
    let [model, exact] = convert((CASE, &WHOLE), folder.path(), config, with);
    let reference = score(&exact, &EXACT);
    let exactly = score(&model, &EXACT);
    // Products of 8-bit floats add up in another order than those of floats.
    let same = exactly == reference || label == "fp8" && distance(&exactly, &reference) < 1e-5;
    assert!(same, "other bits than the values of {label}");
    let found = score(&model, &[]);
    let error = distance(&found, &reference);
    assert!(error < 2e-3, "{label}: {error:e}");
    let original = score(&golden().join(CASE).join("model"), &[]);
    assert!(distance(&found, &original) > 1e-3, "nothing was rounded");
    let pack = folder.path().join("pack");
    let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
    run(&["pack", source, target]);
    assert!(run(&["verify", target]).contains("all intact"));
    for path in [source, target] {
        assert!(run(&["inspect", path]).contains(label), "{label}");
        run(&["plan", path, "--device", "cpu"]);
    }
    for (path, options) in [
        (&model, &["--storage", "mmap"][..]),
        (&model, &["--storage", "budget", "--slots", "floor"]),
        (&model, &["--threads", "1", "--prefill-chunk", "5"]),
        (&pack, &["--storage", "budget", "--slots", "floor"]),
        (&pack, &["--check-reads"]),
    ] {
        assert!(score(path, options) == found, "{label}: {path:?} {options:?}");
    }
}

#[test]
fn nvfp4_gives_the_answers_of_its_values() {
    let modelopt = json!({
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"],
    });
    check(&modelopt, "nvfp4", |stem, shape, values| nvfp4(stem, shape, values, false));
    let weights = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
        "symmetric": true,
    });
    let compressed = json!({
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": weights}}, "ignore": ["re:.*mlp.gate$"],
    });
    check(&compressed, "nvfp4", |stem, shape, values| nvfp4(stem, shape, values, true));
}

#[test]
fn zero_points_give_the_answers_of_their_values() {
    let weights = json!({
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false,
    });
    let config = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    });
    check(&config, "uint4 g32", |stem, shape, values| integers(stem, shape, values, false));
}

#[test]
fn floats_of_eight_bits_by_row_and_by_matrix_give_the_answers_of_their_values() {
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    check(&modelopt, "fp8", |stem, shape, values| fp8_rows(stem, shape, values, true));
    let compressed = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true},
        }},
    });
    check(&compressed, "fp8", |stem, shape, values| fp8_rows(stem, shape, values, false));
}

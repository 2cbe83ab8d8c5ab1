//! Goal: the operations of a model and what they become on each device can be read, and a device that does not compute
//! one says which. Method: `flashmoe inspect --program` of checkpoints of this repository.

use crate::support;

use serde_json::Value;
use support::{golden, run};

/// The rows of `inspect --program --json`.
fn rows(model: &str) -> Vec<Value> {
    let path = golden().join(model);
    let found = run(&["inspect", path.to_str().unwrap(), "--program", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    found["program"].as_array().unwrap().clone()
}

/// What a row's operations become on a device.
fn launches<'a>(row: &'a Value, device: &str) -> Vec<&'a str> {
    let mut devices = row["devices"].as_array().unwrap().iter();
    let found = devices.find(|it| it["device"] == device).unwrap_or_else(|| panic!("{row}"));
    let launches = found["launches"].as_array().unwrap();
    launches.iter().map(|launch| launch.as_str().unwrap()).collect()
}

fn operations(row: &Value) -> Vec<&str> {
    row["operations"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

#[test]
fn equal_layers_are_one_row_of_operations() {
    let rows = rows("qwen35-calm-mlx-mixed/model");
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["layers"][0], &rows[0]["layers"][1]), (&Value::from(0), &Value::from(2)));
    let delta_net = [
        "norm Residual -> Normed",
        "products Normed -> Mixed, Z, Beta, Decay",
        "convolution",
        "delta rule",
        "gated norm of heads",
        "product, added Context -> Residual",
        "norm Residual -> Normed",
        "mixture of experts, a shared expert",
    ];
    assert_eq!(operations(&rows[0]), delta_net);
    assert_eq!(launches(&rows[0], "processor"), delta_net);
    assert_eq!(launches(&rows[0], "CUDA, a chunk of a prompt"), delta_net);
    let text = run(&[
        "inspect",
        golden().join("qwen35-calm-mlx-mixed/model").to_str().unwrap(),
        "--program",
    ]);
    assert!(text.starts_with("layers 0 to 2: delta net\n    norm Residual -> Normed\n"), "{text}");
    assert!(text.contains("  processor: one by one\n"), "{text}");
}

/// What Flash-Next has of its own is computed on CUDA, one by one, and other GPUs name what they lack.
#[test]
fn flash_next_is_computed_on_cuda_and_refused_on_other_gpus_by_its_operations() {
    let streams = "norm of residual streams (layer 0), gating of residual streams (layer 0)";
    let rows_of_ngrams =
        "rows of n-grams (layer 1), mixing of n-grams into residual streams (layer 1)";
    let attention = "attention to chosen keys (layer 2)";
    let rows = rows("flash-next-calm-hf/model");
    assert_eq!(rows.len(), 3);
    for row in &rows {
        let devices = row["devices"].as_array().unwrap();
        let refused = devices.iter().find(|it| it["device"] == "any GPU").unwrap();
        let refused = refused["refused"].as_str().unwrap();
        for names in [streams, rows_of_ngrams, attention] {
            assert!(refused.contains(names), "{names} in {refused}");
        }
        assert!(refused.ends_with("use --device cpu"), "{refused}");
        for device in ["processor", "CUDA, a step", "CUDA, a chunk of a prompt"] {
            assert_eq!(launches(row, device), operations(row), "{device}");
        }
    }
    let first = ["rows of n-grams", "products Rows -> StreamValues, Normed"];
    assert_eq!(operations(&rows[1])[..2], first);
}

/// The demo model's matrices are wide enough for fused kernels on both kinds of GPU.
#[test]
fn a_token_takes_fewer_launches_than_operations() {
    let rows = rows("../../models/demo");
    let first = "norm, products and convolution at once";
    let product = "gated norm and product at once, added";
    assert_eq!(launches(&rows[0], "CUDA, a step")[..3], [first, "delta rule", product]);
    assert_eq!(
        launches(&rows[0], "any GPU, one token"),
        [first, "delta rule", product, "norm and mixture of experts"]
    );
    let attention = &rows[1];
    assert_eq!(
        launches(attention, "CUDA, a step")[..2],
        [
            "norm and 3 products at once",
            "norms and rotation of heads at once; attention; gate and product at once, added",
        ]
    );
    assert_eq!(
        launches(attention, "any GPU, one token")[..2],
        [
            "norm and 3 products at once",
            "norms and rotation of heads at once; attention, with its gate",
        ]
    );
    // Gates are part of attention whatever the batch is.
    let several = launches(attention, "any GPU, several tokens");
    assert!(!several.contains(&"sigmoid gate Context, Gate"), "{several:?}");
    // Where one token's biases, rotation and attention are one launch.
    let biased = self::rows("gptoss-calm-mxfp4/model");
    let together = "biases and rotation of heads at once; attention";
    assert!(launches(&biased[0], "any GPU, one token").contains(&together));
    assert!(!launches(&biased[0], "any GPU, several tokens").contains(&together));
}

/// What Gemma has of its own is computed on every device, a prompt's operations one by one on CUDA.
#[test]
fn gemma_is_computed_on_every_device() {
    let rows = rows("gemma4-calm-hf/model");
    for row in &rows {
        assert!(!launches(row, "any GPU, one token").is_empty());
        assert_eq!(launches(row, "processor"), operations(row));
        assert_eq!(launches(row, "CUDA, a chunk of a prompt"), operations(row));
    }
    // A step has norms that follow each other at once, and heads with what they append.
    let step = launches(&rows[0], "CUDA, a step");
    for launch in [
        "norms and rotation of heads at once; attention",
        "three norms at once; router; routing; experts in two; two norms and scale at once",
    ] {
        assert!(step.contains(&launch), "{launch}: {step:?}");
    }
}

#[test]
fn a_device_refuses_operations_by_their_names() {
    for row in rows("dsv4-calm-hf/model") {
        for device in ["processor", "any GPU, one token", "any GPU, several tokens"] {
            assert_eq!(launches(&row, device), operations(&row), "{device}");
        }
        assert!(!launches(&row, "CUDA, a step").is_empty());
    }
    for row in ["kimi-linear", "ling"].map(|case| rows(&format!("{case}-calm-hf/model"))).concat() {
        for device in ["any GPU, one token", "CUDA, a step", "processor"] {
            assert!(!launches(&row, device).is_empty(), "decays by channel are computed");
        }
        assert_eq!(launches(&row, "processor"), operations(&row));
    }
    for (device, forms) in [
        ("any GPU", &["latent attention to chosen rows of pools (layer 1)"][..]),
        (
            "CUDA",
            &[
                "dense network with clamped inputs (layer 0)",
                "latent attention to chosen rows of pools (layer 1)",
                "merging of residual streams by their mean (layer 4)",
            ],
        ),
    ] {
        for row in rows("glm-next-calm-hf/model") {
            let devices = row["devices"].as_array().unwrap();
            let refused = devices.iter().find(|it| it["device"] == device).unwrap();
            let refused = refused["refused"].as_str().unwrap();
            let named = |form: &&str| refused.contains(*form);
            assert!(forms.iter().all(named), "{device}: {refused}");
            assert!(refused.ends_with("use --device cpu"), "{refused}");
            assert_eq!(launches(&row, "processor"), operations(&row));
        }
    }
    for case in ["deepseek", "dsv32", "glm5"] {
        for row in rows(&format!("{case}-calm-hf/model")) {
            assert!(!launches(&row, "any GPU, one token").is_empty(), "{case} is computed");
        }
    }
}

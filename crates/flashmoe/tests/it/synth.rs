//! `synth`: what it writes opens, runs, is the same in every layout and for every number of threads, and
//! nothing is left behind when it refuses.

use crate::long::part;
use crate::support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::flashmoe;

fn synth(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let model = folder.join(name);
    let mut arguments = vec!["synth", "tiny", model.to_str().unwrap()];
    arguments.extend(options);
    let output = flashmoe(&arguments);
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    model
}

/// Logits and greedy continuation of a few tokens, as bytes.
fn score(folder: &Path, model: &Path) -> Vec<u8> {
    let (ids, out) = (folder.join("ids.json"), folder.join("logits.safetensors"));
    std::fs::write(&ids, "[1, 50, 501, 7, 7, 300, 12, 400, 3, 511]").unwrap();
    let [model, ids, out_name] = [model, &ids, &out].map(|path| path.to_str().unwrap());
    let output = flashmoe(&["score", model, "--ids", ids, "--logits", out_name, "--greedy", "8"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(out).unwrap()
}

#[test]
fn both_layouts_hold_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    for options in [&["--experts", "4bit"][..], &["--experts", "2bit", "--trunk", "bf16"]] {
        let mlx = synth(folder.path(), "mlx", options);
        let native = synth(folder.path(), "native", &[options, &["--layout", "native"]].concat());
        let logits = score(folder.path(), &mlx);
        assert_eq!(logits, score(folder.path(), &native), "{options:?}");
        for model in [mlx, native] {
            std::fs::remove_dir_all(model).unwrap();
        }
    }
}

#[test]
fn the_seed_decides() {
    let folder = tempfile::tempdir().unwrap();
    let first = score(folder.path(), &synth(folder.path(), "a", &["--seed", "5"]));
    let again = score(folder.path(), &synth(folder.path(), "b", &["--seed", "5"]));
    let other = score(folder.path(), &synth(folder.path(), "c", &["--seed", "6"]));
    assert!(first == again && first != other);
}

#[test]
fn every_encoding_opens() {
    let folder = tempfile::tempdir().unwrap();
    for encoding in ["2bit", "3bit", "5bit", "6bit", "8bit", "bf16", "f16", "f32"] {
        let options = ["--experts", encoding, "--layers", "2", "--group", "32"];
        score(folder.path(), &synth(folder.path(), encoding, &options));
    }
}

#[test]
fn the_shapes_of_other_families_open() {
    let folder = tempfile::tempdir().unwrap();
    // By default every other one, which is each family.
    let shapes = [
        ("tiny-next", &["--experts", "4bit"][..]),
        ("tiny-next", &["--layout", "native"]),
        ("tiny-oss", &["--layout", "native", "--experts", "mxfp4:planes", "--trunk", "bf16"]),
        ("tiny-next", &["--layout", "native", "--experts", "nvfp4:multiplied"]),
        ("tiny-oss", &["--experts", "4bit", "--group", "32"]),
        ("tiny-latent", &["--experts", "4bit", "--group", "32"]),
        ("tiny-latent", &["--layout", "native", "--trunk", "bf16"]),
        ("tiny-v4", &["--layout", "native", "--experts", "mxfp4:planes", "--trunk", "bf16"]),
        ("tiny-v4", &["--experts", "4bit", "--group", "32"]),
        // As the large ones are published: integers with scales alone, and 8-bit floats in tiles.
        (
            "tiny-latent",
            &["--layout", "native", "--experts", "int4", "--group", "32", "--trunk", "bf16"],
        ),
        (
            "tiny-latent",
            &["--layout", "native", "--experts", "fp8:128:f32", "--trunk", "fp8:128:f32"],
        ),
        ("tiny-glm", &["--layout", "native", "--experts", "fp8:128:f32", "--trunk", "fp8:128:f32"]),
        ("tiny-glm", &["--experts", "4bit", "--trunk", "bf16"]),
        ("tiny-rows", &["--experts", "4bit", "--trunk", "bf16"]),
        (
            "tiny-rows",
            &["--layout", "native", "--experts", "fp8:128:f32", "--trunk", "fp8:128:f32"],
        ),
        (
            "tiny-minimax",
            &["--layout", "native", "--experts", "fp8:128:f32", "--trunk", "fp8:128:f32"],
        ),
        ("tiny-minimax", &["--experts", "4bit"]),
        ("tiny-kimi", &["--experts", "4bit"]),
        (
            "tiny-kimi",
            &["--layout", "native", "--experts", "q8_0", "--trunk", "bf16", "--layers", "9"],
        ),
        (
            "tiny-glm-next",
            &["--layout", "native", "--experts", "fp8:128:f32", "--trunk", "fp8:128:f32"],
        ),
        ("tiny-glm-next", &["--experts", "4bit", "--layers", "9"]),
        ("tiny-ling", &["--experts", "4bit"]),
        ("tiny-ling", &["--layout", "native", "--experts", "bf16", "--trunk", "bf16"]),
        ("tiny-flash-next", &["--experts", "4bit"]),
        ("tiny-flash-next", &["--experts", "bf16", "--trunk", "bf16"]),
    ];
    let families = |shapes: &[(&'static str, &[&str])]| {
        shapes.iter().map(|(shape, _)| *shape).collect::<BTreeSet<_>>()
    };
    let tried: Vec<_> = part(shapes, 2).collect();
    assert_eq!(families(&tried), families(&shapes), "a family has no case");
    for (shape, options) in tried {
        let model = folder.path().join("model");
        let mut arguments = vec!["synth", shape, model.to_str().unwrap()];
        arguments.extend(options);
        let output = flashmoe(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shape} {options:?}: {errors}");
        score(folder.path(), &model);
        std::fs::remove_dir_all(model).unwrap();
    }
}

/// Models from a config.json with operations that few families have: every device computes them.
#[test]
fn operations_of_few_families_are_computed_on_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let common = serde_json::json!({
        "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "moe_intermediate_size": 64,
        "tie_word_embeddings": false,
    });
    let ernie = serde_json::json!({
        "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    });
    let exaone = serde_json::json!({
        "model_type": "exaone_moe", "num_experts": 8, "num_experts_per_tok": 3, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    for own in [ernie, exaone] {
        let mut config = common.clone();
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let (path, model) = (folder.path().join("config.json"), folder.path().join("model"));
        std::fs::write(&path, config.to_string()).unwrap();
        let [path, to] = [&path, &model].map(|path| path.to_str().unwrap());
        let output = flashmoe(&["synth", path, to, "--experts", "4bit"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        score(folder.path(), &model);
        let output = flashmoe(&["inspect", to, "--program"]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("any GPU, one token"), "{printed}");
        assert!(!printed.contains("kernels do not compute"), "{printed}");
        std::fs::remove_dir_all(model).unwrap();
    }
}

#[test]
fn a_destination_that_exists_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let output = flashmoe(&["synth", "tiny", model.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("exists already"));
    assert_eq!(std::fs::read_dir(&model).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn layers_share_files_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--layout", "native", "--layers", "5"];
    let own = synth(folder.path(), "own", &options);
    let linked = synth(folder.path(), "linked", &[&options[..], &["--distinct", "2"]].concat());
    let experts = |model: &Path, layer: usize| {
        let mut files =
            std::fs::read_dir(model.join("experts")).unwrap().map(|entry| entry.unwrap().path());
        let digits = format!("{layer:03}");
        std::fs::read(files.find(|path| path.to_str().unwrap().contains(&digits)).unwrap()).unwrap()
    };
    // The first two layers are what they would be; the others have the bytes of one of them.
    for (layer, first) in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)] {
        assert_eq!(experts(&linked, layer), experts(&own, first), "layer {layer}");
    }
    assert_ne!(experts(&own, 2), experts(&own, 0));
    // Sums of the pack hold for every name, the model runs, and what shows it says so.
    let name = linked.to_str().unwrap();
    let verified = flashmoe(&["verify", name]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    assert_ne!(score(folder.path(), &linked), score(folder.path(), &own));
    let shown = flashmoe(&["inspect", name]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("linked: the experts of 5 layers lie in 2 files"), "{text}");
    let refused =
        flashmoe(&["synth", "tiny", folder.path().join("x").to_str().unwrap(), "--distinct", "2"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--layout native"));
}

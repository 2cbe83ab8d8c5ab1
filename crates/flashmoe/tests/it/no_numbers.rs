//! Goal: a number that is none in a model's tensors is found, wherever it lies. Method: one is written into each kind
//! of plane of the committed models; `verify` names it, `pack` refuses to vouch for it, and `score` fails rather than
//! print a figure of it.

use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::{Checkpoint, Extent, open};
use store::io::platform::FileExt;
use support::{flashmoe, golden, golden_copy};

/// Exit code and standard error.
fn outcome(arguments: &[&str]) -> (i32, String) {
    let output = flashmoe(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), format!("{errors}{}", String::from_utf8_lossy(&output.stdout)))
}

/// `score` of a model with a case's tokens.
fn scored(model: &Path, case: &str) -> (i32, String) {
    let ids = golden().join(case).join("ids.json");
    outcome(&["score", model.to_str().unwrap(), "--ids", ids.to_str().unwrap(), "--greedy", "3"])
}

fn weight(checkpoint: &Checkpoint, name: &str) -> Extent {
    checkpoint.tensors[name].weight
}

fn scales(checkpoint: &Checkpoint, name: &str) -> Extent {
    checkpoint.tensors[name].scales_biases.unwrap().0
}

fn expert(checkpoint: &Checkpoint, plane: usize) -> Extent {
    let experts = checkpoint.experts.iter().flatten().next().unwrap();
    match plane {
        0 => experts.experts[2].weight[1],
        _ => experts.experts[2].scales_biases[1].unwrap().0,
    }
}

#[test]
fn numbers_that_are_none_are_found_wherever_they_lie() {
    const NAN: [u8; 2] = [0xc0, 0x7f];
    const LESS: [u8; 2] = [0x80, 0xff];
    const MORE: [u8; 2] = [0x80, 0x7f];
    type Find = fn(&Checkpoint) -> Extent;
    let cases: &[(&str, Find, &[u8], Option<&str>)] = &[
        ("qwen3-calm-hf", |c| weight(c, "norm"), &NAN, Some("tensor norm: ")),
        ("qwen3-calm-hf", |c| weight(c, "norm"), &MORE, Some("value 0 is inf")),
        ("qwen3-calm-hf", |c| weight(c, "lm_head"), &NAN, Some("the logits at position ")),
        ("qwen3-calm-hf", |c| weight(c, "lm_head"), &LESS, Some("the logits at position ")),
        (
            "qwen3-calm-hf",
            |c| weight(c, "layers.0.mlp.gate"),
            &MORE,
            Some("the logits at position "),
        ),
        ("qwen3-calm-hf", |c| expert(c, 0), &NAN, None),
        ("gptoss-calm-mxfp4", |c| weight(c, "layers.0.self_attn.sinks"), &MORE, Some("sinks: ")),
        ("gptoss-calm-mxfp4", |c| weight(c, "layers.0.self_attn.sinks"), &LESS, Some("sinks: ")),
        (
            "gptoss-calm-mxfp4",
            |c| weight(c, "layers.0.mlp.router.bias"),
            &LESS,
            Some("router.bias: "),
        ),
        ("gptoss-calm-mxfp4", |c| expert(c, 1), &[0xff], None),
        ("glm-flash-calm-mlxlm-4bit", |c| expert(c, 1), &NAN, None),
        (
            "glm-flash-calm-mlxlm-4bit",
            |c| scales(c, "lm_head"),
            &NAN,
            Some("the logits at position "),
        ),
    ];
    for (case, find, bytes, said) in cases {
        let (folder, model) = golden_copy(case);
        let checkpoint = open(&model).unwrap();
        let extent = find(&checkpoint);
        let path = &checkpoint.files[extent.file.0 as usize].path;
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        assert!(outcome(&["verify", model.to_str().unwrap()]).0 == 0, "{case} as it is");
        file.write_all_at(bytes, extent.offset).unwrap();
        let at = format!("at byte {}", extent.offset);
        let what = format!("{case}, {bytes:02x?} {at}");
        let (code, text) = outcome(&["verify", model.to_str().unwrap()]);
        assert!(code == 3 && text.contains(&at) && text.contains("not finite"), "{what}: {text}");
        let pack = folder.path().join("pack");
        let (code, text) = outcome(&["pack", model.to_str().unwrap(), pack.to_str().unwrap()]);
        assert!(code == 3 && !pack.exists(), "{what}: {code} {text}");
        let (code, text) = scored(&model, case);
        assert!(!text.contains("null"), "{what}: {text}");
        if let Some(said) = said {
            assert!([1, 3].contains(&code) && text.contains(said), "{what}: {code} {text}");
        }
    }
}

#[test]
fn a_head_beside_the_embedding_that_it_is_said_to_be_is_compared() {
    let (folder, model) = golden_copy("qwen3-calm-hf");
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = json!(true);
    fs::write(&path, config.to_string()).unwrap();
    let pack = folder.path().join("pack");
    for arguments in [
        &["score", model.to_str().unwrap(), "--ids", "IDS"][..],
        &["pack", model.to_str().unwrap(), pack.to_str().unwrap()],
    ] {
        let ids = golden().join("qwen3-calm-hf/ids.json");
        let arguments: Vec<_> = arguments
            .iter()
            .map(|&it| if it == "IDS" { ids.to_str().unwrap() } else { it })
            .collect();
        let (code, text) = outcome(&arguments);
        assert!(code == 3 && text.contains("lm_head") && text.contains("tie_word"), "{text}");
    }
    let checkpoint = open(&model).unwrap();
    let (from, to) = (weight(&checkpoint, "embed_tokens"), weight(&checkpoint, "lm_head"));
    let file = |extent: Extent| {
        let path = &checkpoint.files[extent.file.0 as usize].path;
        fs::File::options().read(true).write(true).open(path).unwrap()
    };
    let mut bytes = vec![0; from.length as usize];
    file(from).read_exact_at(&mut bytes, from.offset).unwrap();
    file(to).write_all_at(&bytes, to.offset).unwrap();
    assert_eq!(scored(&model, "qwen3-calm-hf").0, 0, "a copy is no contradiction");
}

#[test]
fn what_cannot_be_run_is_not_packed() {
    let (folder, model) = golden_copy("qwen3-calm-hf");
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    config["num_hidden_layers"] = json!(layers - 1);
    fs::write(&path, config.to_string()).unwrap();
    let pack = folder.path().join("pack");
    let arguments = ["pack", model.to_str().unwrap(), pack.to_str().unwrap()];
    let (code, text) = outcome(&arguments);
    assert!(code == 3 && text.contains("has no use here") && !pack.exists(), "{text}");
    let (code, text) = outcome(&[&arguments[..], &["--dry-run"]].concat());
    assert!(code == 3 && text.contains("has no use here"), "{text}");
}

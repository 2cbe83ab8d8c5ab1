//! Goal: a model's head drafts as it is asked to, says what it takes, and changes no answer. Method: the program over a
//! golden net whose head lies next to it, and over a synthetic one.

use crate::support;

use std::path::PathBuf;

use store::synthetic::gguf::{F32, GgufFile, GgufValue};
use support::{flashmoe, golden, golden_copy, run};

const CASE: &str = "qwen35-calm-hf";

/// A golden case with its head.
fn with_head() -> (tempfile::TempDir, PathBuf) {
    let (folder, model) = golden_copy(CASE);
    let head = golden().join("heads").join(CASE).join("mtp.safetensors");
    std::fs::copy(head, model.join("mtp.safetensors")).unwrap();
    (folder, model)
}

const PROMPT: &str = "the experts are many and stay on disk; the experts are many and";

fn answer(model: &str, options: &[&str]) -> (String, String) {
    let arguments = ["run", model, PROMPT, "--raw", "-n", "48", "--temp", "0", "--stats"];
    let output = flashmoe(&[&arguments[..], options].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{options:?}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

#[test]
fn answers_are_those_without_a_head_and_drafts_are_counted_apart() {
    let (_folder, model) = with_head();
    let model = model.to_str().unwrap();
    let (expected, stats) = answer(model, &[]);
    assert!(!stats.contains("drafts"), "{stats}");
    for options in [
        &["--draft", "head"][..],
        &["--draft", "auto"],
        &["--draft", "head", "--storage", "mmap"],
        &["--draft", "head", "--slots", "2", "--kv", "ahead"],
    ] {
        let (found, stats) = answer(model, options);
        assert_eq!(found, expected, "{options:?}");
        assert!(stats.contains("the head's"), "{options:?}: {stats}");
    }
}

#[test]
fn a_head_that_is_not_there_is_refused_by_name() {
    let model = golden().join(CASE).join("model");
    let model = model.to_str().unwrap();
    let output = flashmoe(&["run", model, "hi", "--draft", "head"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(errors.contains("--draft head") && errors.contains("has no head"), "{errors}");
    assert!(errors.contains("--draft ngram"), "{errors}");
    // Where it is there, several devices have none.
    let (_folder, model) = with_head();
    let stages = ["--device", "cpu,cpu", "--draft", "head"];
    let output = flashmoe(&[&["run", model.to_str().unwrap(), "hi"], &stages[..]].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("one device"), "{errors}");
}

#[test]
fn inspect_and_plan_say_what_a_head_takes() {
    let (_folder, model) = with_head();
    let model = model.to_str().unwrap();
    let text = run(&["inspect", model]);
    assert!(
        text.contains("head             one layer of") && text.contains("--draft head"),
        "{text}"
    );
    let plain = golden().join(CASE).join("model");
    assert!(run(&["inspect", plain.to_str().unwrap()]).contains("head             none"));
    let json = |draft: &str| -> serde_json::Value {
        serde_json::from_str(&run(&["plan", model, "--json", "--draft", draft])).unwrap()
    };
    let [off, head] = ["off", "head"].map(json);
    assert_eq!((&off["head"]["used"], &head["head"]["used"]), (&false.into(), &true.into()));
    assert_eq!(off["head"]["bytes"], head["head"]["bytes"]);
    let experts = |plan: &serde_json::Value| plan["experts"].as_u64().unwrap();
    // Six experts of one layer more.
    assert_eq!(experts(&head), experts(&off) + 6);
    assert!(run(&["plan", model]).contains("draft head"));
}

#[test]
fn synthetic_heads_are_written_packed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, layout) in [("tiny", "mlx"), ("tiny-next", "native"), ("tiny-glm", "mlx")] {
        let model = folder.path().join(format!("{shape}-{layout}"));
        let model = model.to_str().unwrap();
        run(&["synth", shape, model, "--layout", layout, "--head"]);
        let pack = format!("{model}-pack");
        run(&["pack", model, &pack]);
        for model in [model, &pack] {
            let text = run(&["inspect", model]);
            assert!(text.contains("head             one layer of"), "{shape}: {text}");
            let plan = run(&["plan", model, "--draft", "head"]);
            assert!(plan.contains("in the parts above"), "{shape}: {plan}");
            run(&["verify", model]);
        }
    }
    let tiny = folder.path().join("tiny-mlx");
    let rounds = ["-p", "16", "-n", "24", "-r", "1", "--accept", "1,.5", "--head"];
    run(&[&["bench", tiny.to_str().unwrap()], &rounds[..]].concat());
    let output =
        flashmoe(&["synth", "tiny-oss", folder.path().join("oss").to_str().unwrap(), "--head"]);
    assert!(!output.status.success());
}

/// A small file of `glm4moe` in floats, whose last block is a head.
fn glm_with_head() -> GgufFile {
    let (hidden, width, experts, head) = (64, 32, 4, 32);
    let mut file = GgufFile::tiny(F32);
    file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
    file.tensors.retain(|tensor| !tensor.name.starts_with("blk."));
    file.set("general.architecture", GgufValue::Text("glm4moe".to_owned()));
    for (key, value) in [
        ("block_count", 3),
        ("nextn_predict_layers", 1),
        ("context_length", 512),
        ("embedding_length", hidden),
        ("expert_count", experts),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_gating_func", 2),
        ("expert_feed_forward_length", width),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", head),
        ("attention.value_length", head),
        ("rope.dimension_count", 16),
    ] {
        file.set(&format!("glm4moe.{key}"), GgufValue::U32(value as u32));
    }
    file.set("glm4moe.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5));
    file.set("glm4moe.rope.freq_base", GgufValue::F32(1e4));
    for layer in 0..3 {
        let mut add =
            |name: &str, sizes: &[u64]| file.add(&format!("blk.{layer}.{name}"), sizes, F32);
        for (name, sizes) in [
            ("attn_norm", &[hidden][..]),
            ("attn_q", &[hidden, 2 * head]),
            ("attn_k", &[hidden, head]),
            ("attn_v", &[hidden, head]),
            ("attn_output", &[2 * head, hidden]),
            ("post_attention_norm", &[hidden]),
            ("ffn_gate_inp", &[hidden, experts]),
            ("ffn_gate_exps", &[hidden, width, experts]),
            ("ffn_up_exps", &[hidden, width, experts]),
            ("ffn_down_exps", &[width, hidden, experts]),
            ("ffn_gate_shexp", &[hidden, width]),
            ("ffn_up_shexp", &[hidden, width]),
            ("ffn_down_shexp", &[width, hidden]),
        ] {
            add(&format!("{name}.weight"), sizes);
        }
        add("exp_probs_b.bias", &[experts]);
        if layer == 2 {
            add("nextn.eh_proj.weight", &[2 * hidden, hidden]);
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                add(&format!("nextn.{norm}.weight"), &[hidden]);
            }
        }
    }
    file
}

#[test]
fn heads_of_gguf_files_draft_and_change_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("glm.gguf");
    std::fs::write(&path, glm_with_head().to_bytes()).unwrap();
    let model = path.to_str().unwrap();
    assert!(run(&["inspect", model]).contains("head             one layer of"));
    let (expected, _) = answer(model, &[]);
    let (found, stats) = answer(model, &["--draft", "head"]);
    assert_eq!(found, expected);
    assert!(stats.contains("the head's"), "{stats}");
    // A head with a tensor that is not known is none, and the trunk is what it was.
    let mut other = glm_with_head();
    other.tensor("blk.2.nextn.hnorm.weight").name = "blk.2.nextn.fnorm.weight".to_owned();
    std::fs::write(&path, other.to_bytes()).unwrap();
    assert!(run(&["inspect", model]).contains("none that is whole"));
    assert_eq!(answer(model, &["--draft", "auto"]).0, expected);
}

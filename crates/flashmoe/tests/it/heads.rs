//! Goal: a model's head drafts as it is asked to, says what it takes, and changes no answer. Method: the program over a
//! golden net whose head lies next to it, and over a synthetic one.

use crate::support;

use std::path::PathBuf;

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
    let output =
        flashmoe(&["synth", "tiny-oss", folder.path().join("oss").to_str().unwrap(), "--head"]);
    assert!(!output.status.success());
}

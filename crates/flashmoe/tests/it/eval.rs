//! `flashmoe eval` on the model that ships: answers, tool calls and memory, perplexity, divergence, routing.

use crate::long::is_long;
use crate::support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::flashmoe;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn evaluate(arguments: &[&str]) -> Value {
    let model = demo();
    let mut all = vec!["eval", model.to_str().unwrap(), "-o", "json"];
    all.extend(arguments);
    let output = flashmoe(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_demo_model_passes_its_first_questions() {
    let tasks = demo().join("eval.jsonl");
    let folder = tempfile::tempdir().unwrap();
    let [answers, trace] = ["answers.jsonl", "trace"].map(|name| folder.path().join(name));
    let [tasks, answers, trace] = [&tasks, &answers, &trace].map(|path| path.to_str().unwrap());
    let files = ["--answers", answers, "--trace", trace, "--lookahead"];
    let found = evaluate(&[[tasks, "--only", "first_questions"].as_slice(), &files].concat());
    assert_eq!(found["all"], json!({"passed": 10, "asked": 10}), "{found}");
    assert_eq!(found["tool_calls"], json!({"made": 2, "valid": 2}), "{found}");
    let lines = std::fs::read_to_string(answers).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tokens: usize = lines.iter().map(|line| line["tokens"].as_array().unwrap().len()).sum();
    assert_eq!((lines.len(), json!(tokens)), (10, found["answer_tokens"].clone()));
    assert!(lines[0]["content"].as_str().unwrap().contains("3 × 5 × 17"), "{}", lines[0]);
    // The last token of an answer is not run: nothing comes after it.
    let stats = flashmoe(&["trace", "stats", trace, "-o", "json"]);
    let stats: Value =
        serde_json::from_slice(stats.stdout.split(|b| *b == b'\n').next().unwrap()).unwrap();
    assert_eq!(stats["tokens"], json!(tokens - 10));
    // A router that was trained is prefetched far better than the 1 in 8 of chance.
    let recall = found["lookahead"]["recall"].as_f64().unwrap();
    assert!((0.3..1.0).contains(&recall), "{recall}");
    assert_eq!(found["lookahead"]["by_layer"][0], json!(0.0));
}

#[test]
fn a_model_does_not_diverge_from_itself_and_does_with_fewer_experts() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.jsonl");
    let documents = if is_long() { 5 } else { 2 };
    let heldout = std::fs::read_to_string(demo().join("heldout.jsonl")).unwrap();
    let lines: Vec<&str> = heldout.lines().take(documents).collect();
    std::fs::write(&text, lines.join("\n")).unwrap();
    let (model, text) = (demo(), text.to_str().unwrap());
    let stored = ["--text", text, "--reference", model.to_str().unwrap()];
    let compare = [&stored[..], &["--kv-type", "f32"]].concat();
    let same = &evaluate(&compare)["text"];
    for part in ["all", "answers"] {
        let figures = &same[part];
        assert_eq!(figures["kl"], json!(0.0), "{same}");
        assert_eq!(figures["top1"], json!(1.0), "{same}");
        assert_eq!(figures["perplexity"], figures["reference_perplexity"], "{same}");
    }
    assert_eq!(same["documents"], json!(documents));
    let perplexity = |value: &Value| value["perplexity"].as_f64().unwrap();
    assert!(perplexity(&same["answers"]) < 1.2 && perplexity(&same["all"]) < 5.0, "{same}");
    let less = &evaluate(&[compare.as_slice(), &["-k", "2"]].concat())["text"]["all"];
    assert_eq!(less["reference_perplexity"], same["all"]["perplexity"]);
    assert!(
        less["kl"].as_f64().unwrap() > 0.01 && perplexity(less) > perplexity(&same["all"]),
        "{less}"
    );
    // What the default type of keys and values costs: measured 4.0e-8 nats over the whole file.
    let default = &evaluate(&stored)["text"]["all"];
    let divergence = default["kl"].as_f64().unwrap();
    assert!(divergence > 0.0 && divergence < 1e-6, "{default}");
    // Chunks do not change a bit.
    let cut = &evaluate(&[compare.as_slice(), &["--prefill-chunk", "7"]].concat())["text"];
    assert_eq!(cut, same);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.jsonl");
    std::fs::write(&text, "{\"text\": \"one two three\"}\n{\"messages\": 3}\n").unwrap();
    let model = demo();
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    let fails = |arguments: &[&str]| {
        let output = flashmoe(&[["eval", model].as_slice(), arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = fails(&["--text", text]);
    assert!(code == Some(2) && message.contains("text.jsonl, line 2"), "{message}");
    assert_eq!(fails(&[]).0, Some(2));
    assert_eq!(fails(&["--reference", model]).0, Some(2));
    let (code, message) = fails(&[text, "--text", text]);
    assert!(code == Some(2) && message.contains("line 1: missing field"), "{message}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_evaluation_prints_what_it_has() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let folder = tempfile::tempdir().unwrap();
    let (answers, tasks) = (folder.path().join("answers.jsonl"), demo.join("eval.jsonl"));
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_flashmoe"))
        .args(["eval", demo.to_str().unwrap(), tasks.to_str().unwrap(), "--device", "cpu"])
        .args(["--answers", answers.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    // The first line: a question is answered.
    while answers.metadata().map_or(0, |file| file.len()) == 0 && started.elapsed().as_secs() < 120
    {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let (table, told) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(table.contains("all"), "{table} {told}");
    assert!(told.contains("asked so far"), "{told}");
}

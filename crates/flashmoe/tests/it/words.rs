//! Goal: a failure is one short line that names the file or stream, says nothing twice, and brings nothing of a
//! stranger's file to the terminal but a short, printable piece. Method: the real binary with closed and full outputs,
//! and copies of the demo model whose files say something long or evil.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn flashmoe(arguments: &[&str], out: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.args(arguments).stdout(out).stderr(Stdio::piped()).output().unwrap()
}

/// The one line on standard error, but for the lines that tell how far something is.
fn line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let progress =
        |line: &&str| line.starts_with("loading trunk: ") || line.starts_with("prefill: ");
    let lines: Vec<&str> = text.lines().filter(|line| !progress(line)).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(!lines[0].contains(char::is_control), "{text:?}");
    assert!(lines[0].len() < 1_000, "{} bytes: {:.200}", lines[0].len(), text);
    lines[0].to_owned()
}

#[test]
fn what_cannot_be_written_is_named() {
    let demo = demo();
    let model = demo.to_str().unwrap();
    let commands: [&[&str]; 5] = [
        &["inspect", model],
        &["plan", model, "--device", "cpu"],
        &["man"],
        &["completions", "bash"],
        &["run", model, "--device", "cpu", "--max-tokens", "4", "--show-thinking", "Hello"],
    ];
    for command in commands {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = flashmoe(command, full);
        assert_eq!(output.status.code(), Some(5), "{command:?}");
        assert_eq!(line(&output), "flashmoe: standard output: no storage space", "{command:?}");
    }
}

/// A copy of the demo model with one file changed.
fn changed(folder: &Path, name: &str, change: impl FnOnce(&str) -> String) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(demo()).unwrap().flatten().filter(|it| it.path().is_file()) {
        let target = model.join(entry.file_name());
        std::os::unix::fs::symlink(entry.path().canonicalize().unwrap(), target).unwrap();
    }
    let file = model.join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, change(&text)).unwrap();
    model
}

#[test]
fn strangers_words_are_cut_and_escaped() {
    let long = "x".repeat(100_000);
    let evil = "a\\nb\\u001b[31m\\u202e";
    let set = |key: &'static str, value: String| {
        move |text: &str| {
            let mut object: serde_json::Value = serde_json::from_str(text).unwrap();
            let value: serde_json::Value = serde_json::from_str(&value).unwrap();
            if key == "model_type"
                && let Some(inner) = object.get_mut("text_config")
            {
                inner[key] = value.clone();
            }
            object[key] = value;
            object.to_string()
        }
    };
    type Change = Box<dyn FnOnce(&str) -> String>;
    let mut cases: Vec<(&str, Change)> = Vec::new();
    for text in [long.clone(), evil.to_owned()] {
        let quoted = format!("\"{text}\"");
        cases.push(("config.json", Box::new(set("model_type", quoted.clone()))));
        cases.push(("generation_config.json", Box::new(set("temperature", quoted.clone()))));
        cases.push(("generation_config.json", Box::new(set("top_k", quoted.clone()))));
        cases.push(("tokenizer.json", Box::new(set("version", quoted.clone()))));
        let raise = format!("{{{{ raise_exception({quoted}) }}}}").replace("\\u001b", "\u{1b}");
        cases.push(("chat_template.jinja", Box::new(move |_| raise)));
        let syntax = format!("{{{{ {text} | | }}}}");
        cases.push(("chat_template.jinja", Box::new(move |_| syntax)));
        let filter = format!("{{{{ 1 | nothing_{} }}}}", text.replace('\\', "_"));
        cases.push(("chat_template.jinja", Box::new(move |_| filter)));
    }
    for (index, (name, change)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let model = changed(folder.path(), name, change);
        let model = model.to_str().unwrap();
        let options = ["--device", "cpu", "--max-tokens", "2", "Hello"];
        let output = flashmoe(&[&["run", model][..], &options].concat(), Stdio::piped());
        let code = output.status.code().unwrap();
        let told = line(&output);
        assert!([1, 2, 3].contains(&code), "case {index}, {name}: {code}: {told}");
    }
}

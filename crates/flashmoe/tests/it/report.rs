//! `report`: everything for an issue in two files, the same figures as the commands give, and nothing private.

use crate::support::{flashmoe, golden, run};

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `report` of a model in `folder`, as a user of a telling name with a telling home.
fn report(folder: &Path, arguments: &[&str]) -> Output {
    let home = folder.join("confidential-home");
    fs::create_dir_all(&home).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.arg("report").args(arguments).current_dir(folder);
    command.env("HOME", &home).env("USER", "wilhelmina").env("LOGNAME", "wilhelmina");
    command.output().unwrap()
}

fn read(folder: &Path, name: &str) -> (String, Value) {
    let text = |ending: &str| fs::read_to_string(folder.join(format!("{name}.{ending}"))).unwrap();
    (text("md"), serde_json::from_str(&text("json")).unwrap())
}

#[test]
fn a_report_has_all_that_an_issue_needs_and_nothing_private() {
    let folder = tempfile::tempdir().unwrap();
    let private = folder.path().join("secret-customers").join("wilhelmina");
    fs::create_dir_all(&private).unwrap();
    let model = private.join("demo");
    let demo = golden().join("../../models/demo");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(demo).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
    }
    let path = model.to_str().unwrap();
    let made = report(folder.path(), &[path, "--memory", "1G", "--device", "cpu"]);
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    assert!(said.contains("no path, no name of this machine or its user"), "{said}");
    let (markdown, json) = read(folder.path(), "flashmoe-report");
    for title in ["Machine", "Model", "Plan", "Speed", "Files", "Ten questions", "Perplexity"] {
        assert!(markdown.contains(&format!("\n## {title}")), "{title}: {markdown}");
    }
    assert_eq!(json["complete"], true, "{json}");
    assert_eq!(json["model"], "demo");
    assert!(
        json["plan"]["budget_bytes"] == 1 << 30 && json["doctor"]["memory"]["value"].is_object()
    );
    // Two sizes of memory, two depths, prefill and decode, cold and warm.
    let rows = json["bench"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2 * 2);
    assert_ne!(rows[0]["budget_gib"], rows[8]["budget_gib"]);
    let check = |row: &Value| (row["test"].clone(), row["check"].clone());
    assert_eq!(check(&rows[3]), check(&rows[11]), "a smaller memory gives the same bits");
    let answers = json["answers"]["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 10);
    assert!(answers.iter().any(|it| it["right"] == true), "{answers:?}");
    assert!(json["perplexity"]["text"]["all"]["perplexity"].as_f64().unwrap() > 1.0);
    // Nothing of where it lies, whose it is, or where it ran.
    let temporary = folder.path().file_name().unwrap().to_str().unwrap();
    let all = format!("{markdown}{json}");
    for name in ["secret-customers", "wilhelmina", "confidential-home", temporary] {
        assert!(!all.contains(name), "{name}: {all}");
    }
    // A short name is a part of words.
    let host = Command::new("uname").arg("-n").output().unwrap();
    let host = String::from_utf8(host.stdout).unwrap();
    let mut words = all.split(|letter: char| !letter.is_alphanumeric());
    assert!(!words.any(|word| word == host.trim()), "{host}: {all}");
    // What is there is not overwritten, and no work is done for it.
    let again = report(folder.path(), &[path, "--memory", "1G", "--device", "cpu"]);
    assert_eq!(again.status.code(), Some(5), "{}", String::from_utf8_lossy(&again.stderr));
}

/// The reason of a failure is what an issue is about; it names the file and not where it is.
#[test]
fn a_part_that_fails_is_reported_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let private = folder.path().join("secret-customers");
    let model = private.join("tiny");
    fs::create_dir(&private).unwrap();
    run(&["synth", "tiny", model.to_str().unwrap(), "--layout", "native"]);
    let arguments = [model.to_str().unwrap(), "--memory", "1G", "--device", "cpu", "--to", "mine"];
    let made = report(folder.path(), &arguments);
    assert_eq!(made.status.code(), Some(1), "{}", String::from_utf8_lossy(&made.stderr));
    let (markdown, json) = read(folder.path(), "mine");
    assert_eq!(json["complete"], false);
    // A synthetic model has no tokenizer.
    let reason = json["answers"]["failed"].as_str().unwrap();
    assert!(reason.contains("tokenizer") && markdown.contains(reason), "{reason}");
    assert!(json["verify"]["checked_bytes"].as_u64().unwrap() > 0, "{json}");
    assert!(!format!("{markdown}{json}").contains("secret-customers"), "{markdown}");
    let output = flashmoe(&["report", model.to_str().unwrap(), "--draft", "ngram"]);
    assert_eq!(output.status.code(), Some(2));
}

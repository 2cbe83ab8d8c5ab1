//! Goal: `flashmoe cache` and the memory account of `serve` tell what is wrong and what to do, with the right exit
//! codes. Method: the real binary over folders that are empty, missing, or made as a server makes them.

use crate::support;

use support::flashmoe;

fn demo() -> String {
    format!("{}/../../models/demo", env!("CARGO_MANIFEST_DIR"))
}

/// Exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = flashmoe(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn folders_without_kept_prompts_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for command in ["ls", "verify"] {
        let (code, _, error) = run(&["cache", command, path]);
        assert!(code == 2 && error.contains(path) && error.contains("--cache-disk"), "{error}");
    }
    let missing = folder.path().join("missing");
    let (code, _, error) = run(&["cache", "ls", missing.to_str().unwrap()]);
    assert!(code == 5 && error.contains("missing"), "{error}");
    // Nothing is removed without saying what.
    let (code, _, error) = run(&["cache", "purge", path]);
    assert!(code == 2 && error.contains("--all") && error.contains("--older-than"), "{error}");
    let (code, _, error) = run(&["cache", "purge", path, "--older-than", "soon"]);
    assert!(code == 2 && error.contains("7d"), "{error}");
}

#[test]
fn what_is_there_is_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let model = folder.path().join("00000000000000ab");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("lock"), "").unwrap();
    std::fs::write(model.join("about"), "my-model").unwrap();
    let name = "0123456789abcdef0123456789abcdef";
    std::fs::write(model.join(name).with_extension("prefix"), vec![7; 200]).unwrap();
    std::fs::write(model.join(name).with_extension("page"), vec![7; 100]).unwrap();
    let (code, listed, _) = run(&["cache", "ls", path]);
    assert_eq!(code, 0);
    for part in ["my-model (00000000000000ab)", "1 snapshots, 1 pages, 300 B", "damaged"] {
        assert!(listed.contains(part), "{listed}");
    }
    let (code, found, error) = run(&["cache", "verify", path]);
    assert!(code == 5 && error.contains("2 files are damaged"), "{error}");
    assert!(found.contains(name), "{found}");
    let json = |command: &str| -> serde_json::Value {
        serde_json::from_str(&run(&["cache", command, path, "--json"]).1).unwrap()
    };
    let listed = &json("ls")["models"][0];
    assert_eq!((&listed["model"], &listed["pages"]), (&"my-model".into(), &1.into()));
    assert_eq!((&listed["bytes"], &listed["in_use"]), (&300.into(), &false.into()));
    let kept = &listed["snapshots"][0];
    assert!(kept["tokens"].is_null() && kept["unused_s"].is_u64(), "{kept}");
    let damaged = &json("verify")["damaged"];
    assert_eq!(damaged.as_array().unwrap().len(), 2, "{damaged}");
    let (code, _, error) = run(&["cache", "ls", path, "--model", "other"]);
    assert!(code == 2 && error.contains("my-model"), "{error}");
    let (code, kept, _) = run(&["cache", "purge", path, "--model", "00", "--older-than", "1h"]);
    assert!(code == 0 && kept.contains("removed 0 snapshots"), "{kept}");
    let (code, removed, _) = run(&["cache", "purge", path, "--all", "--json"]);
    let removed: serde_json::Value = serde_json::from_str(&removed).unwrap();
    assert!(code == 0 && removed == serde_json::json!({"snapshots": 1, "bytes": 200}), "{removed}");
    assert!(!model.join(name).with_extension("prefix").exists());
}

#[test]
fn a_server_that_does_not_fit_names_its_sequences() {
    let (model, tail) = (demo(), ["--port", "0", "--context", "4096", "--device", "cpu"]);
    let mut arguments = vec!["serve", &model, "--memory", "90M", "--sequences", "8"];
    arguments.extend(tail);
    let (code, _, error) = run(&arguments);
    assert_eq!(code, 4, "{error}");
    for part in ["8 conversations of 4096 tokens", "--sequences", "--context"] {
        assert!(error.contains(part), "{error}");
    }
}

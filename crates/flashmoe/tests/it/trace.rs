//! `trace`: records what a model chose, replays it and measures it; reads the formats of others.

use crate::support;

use std::path::Path;

use serde_json::Value;
use support::{flashmoe, golden};

fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = flashmoe(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn record(folder: &Path, name: &str, options: &[&str]) -> String {
    let case = golden().join("qwen35-hf");
    let (model, ids) = (case.join("model"), case.join("ids.json"));
    let out = folder.join(name).to_str().unwrap().to_owned();
    let mut arguments = vec!["trace", "record", model.to_str().unwrap(), "--out", &out];
    arguments.extend(["--ids", ids.to_str().unwrap(), "-n", "16"]);
    arguments.extend(options);
    let output = flashmoe(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out
}

#[test]
fn a_recording_does_not_depend_on_chunks_and_holds_every_expert_of_a_full_pool() {
    let folder = tempfile::tempdir().unwrap();
    let whole = record(folder.path(), "whole", &[]);
    let parts = record(folder.path(), "parts", &["--prefill-chunk", "7", "--slots", "floor"]);
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(parts).unwrap());
    let replayed = rows(&["trace", "replay", &whole, "--slots", "100", "-o", "json"]);
    for policy in ["lru_percent", "lfu_percent", "lfru_percent", "belady_percent"] {
        assert!(replayed[0][policy].as_f64().unwrap() > 90.0, "{}", replayed[0]);
    }
    let stats = rows(&["trace", "stats", &whole, "-o", "json"]);
    assert_eq!(stats.last().unwrap()["layer"], "mean");
    assert!(stats.iter().all(|row| row["coverage"].as_f64().unwrap() > 0.0));
}

#[test]
fn calibrated_routing_replaces_the_models_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = record(folder.path(), "model", &[]);
    let calibrated = record(folder.path(), "calibrated", &["--routing", "calibrated"]);
    assert_ne!(std::fs::read(model).unwrap(), std::fs::read(calibrated).unwrap());
    let case = golden().join("qwen35-hf");
    let (folder, ids) = (case.join("model"), case.join("ids.json"));
    let [folder, ids] = [&folder, &ids].map(|path| path.to_str().unwrap());
    let output = flashmoe(&["score", folder, "--ids", ids, "--routing", "calibrated"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("calibrated generator"));
    let refused = flashmoe(&["plan", folder, "--routing", "calibrated"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn foreign_traces_are_read_and_broken_ones_named() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("route.csv");
    // Two layers; the prompt is written layer by layer, its last layer for the last token only.
    let text = "# route_trace v1\n# n_layer=2 n_expert=4 n_expert_used=1\n\
                turn,phase,step,layer,slot,expert,weight\n\
                0,0,0,0,0,3,1\n0,0,1,0,0,2,1\n0,0,1,1,0,1,1\n0,1,2,0,0,3,1\n0,1,2,1,0,1,1\n";
    std::fs::write(&csv, text).unwrap();
    let csv = csv.to_str().unwrap();
    let replayed = rows(&["trace", "replay", csv, "--slots", "50", "-o", "json"]);
    assert_eq!(replayed[0]["lru_percent"], 100.0);
    let lines = folder.path().join("trace.jsonl");
    std::fs::write(&lines, "{\"tok\": 1, \"layers\": [[1, 2], [3, 0]]}\n").unwrap();
    let lines = lines.to_str().unwrap();
    assert_eq!(rows(&["trace", "stats", lines, "--experts", "4", "-o", "json"]).len(), 3);
    assert_eq!(flashmoe(&["trace", "stats", lines]).status.code(), Some(2));
    std::fs::write(csv, text.replace("0,1,2,1,0,1,1", "0,1,2,1,0,9,1")).unwrap();
    let output = flashmoe(&["trace", "stats", csv]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("route.csv") && message.contains("record 8"), "{message}");
}

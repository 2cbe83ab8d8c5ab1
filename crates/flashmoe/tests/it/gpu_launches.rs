//! Goal: a token's launches that do several operations give the bits of the operations one by one. Method: a synthetic
//! model whose matrices they take, on whatever GPU is there: all experts in slots, some of them in RAM (both by such
//! launches), and some of them copied when they are missing (the choice and each half of the experts by itself).
//! `FLASHMOE_GPU_TESTS=1` makes the absence of a GPU a failure.

use crate::support;

use std::io::Write;

use serde_json::Value;
use support::{demo_shape, flashmoe, run};

#[test]
fn launches_of_several_operations_show_in_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    // Rows that 32 invocations read as vectors.
    let shape = demo_shape(folder.path(), 512);
    let model = folder.path().join("model");
    let (shape, model) = (shape.to_str().unwrap(), model.to_str().unwrap());
    run(&["synth", shape, model, "--layout", "native"]);
    let mut rows = Vec::new();
    for more in [&[][..], &["--vram", "46M"], &["--vram", "46M", "--predict", "on"]] {
        let options =
            ["bench", model, "--device", "gpu:0", "-p", "6", "-n", "4", "-r", "1", "-o", "json"];
        let ran = flashmoe(&[&options, more].concat());
        if !ran.status.success() && std::env::var_os("FLASHMOE_GPU_TESTS").is_none() {
            std::io::stderr().write_all(b"skipped: no Vulkan adapter\n").unwrap();
            return;
        }
        let text = String::from_utf8(ran.stdout).unwrap();
        let found: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found.len(), 4, "{more:?}: {}", String::from_utf8_lossy(&ran.stderr));
        rows.push(found);
    }
    for (number, found) in rows[0].iter().enumerate() {
        for other in &rows[1..] {
            assert_eq!(found["check"], other[number]["check"], "{found} and {}", other[number]);
        }
    }
    let launches = |at: usize| rows[at][3]["dispatches_per_token"].as_f64().unwrap();
    assert!(launches(0) < 36.0, "{} launches a token of four layers", launches(0));
    assert!(launches(2) > launches(0), "nothing was missing: {}", launches(2));
}

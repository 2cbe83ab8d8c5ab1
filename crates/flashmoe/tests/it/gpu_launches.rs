//! Goal: a token's launches that do several operations give the bits of the operations one by one. Method: a synthetic
//! model whose matrices they take, on whatever GPU is there, with `FLASHMOE_GPU_TESTS=1` alone: all experts in slots,
//! some of them in RAM (both by such launches), and some of them copied when they are missing (the choice and each half
//! of the experts by itself).

use crate::long::skips_gpu;
use crate::support;

use serde_json::Value;
use support::{Scored, demo_shape, distance, flashmoe, run};

#[test]
fn launches_of_several_operations_show_in_no_bit() {
    if skips_gpu() {
        return;
    }
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
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
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

/// The golden net is in bf16, whose matrices these launches do not take.
#[test]
fn launches_of_kimi_linear_give_the_bits_of_its_operations_and_the_logits_of_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let name = model.to_str().unwrap();
    run(&["synth", "tiny-kimi", name, "--experts", "4bit"]);
    let program = flashmoe(&["inspect", name, "--program"]);
    let program = String::from_utf8_lossy(&program.stdout);
    for launch in [
        "norm and 6 products at once, in 2 launches",
        "convolution with norms of heads; delta rule",
        "gated norm and product at once, added",
    ] {
        assert!(program.contains(launch), "{launch}: {program}");
    }
    if skips_gpu() {
        return;
    }
    let score = |options: &[&str]| {
        let options = [options, &["--kv-type", "f32"]].concat();
        Scored::with_ids_of("kimi-linear-calm-hf", &model, &options)
    };
    let reference = score(&["--device", "cpu", "--arithmetic", "f32"]);
    let all = score(&["--device", "gpu:0"]);
    let apart = distance(&all, &reference);
    assert!(apart < 1e-5, "{apart:.1e} from the processor");
    let alone = score(&["--device", "gpu:0", "--prefill-chunk", "1"]);
    assert!(all.logits == alone.logits, "other bits token by token");
}

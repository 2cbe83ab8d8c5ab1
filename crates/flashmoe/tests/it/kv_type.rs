//! `--kv-type`: what is shown of it, and that numbers beyond a type are refused instead of answered from.

use crate::support;

use std::path::Path;

use support::{flashmoe, golden};

const CASE: &str = "qwen3-calm-hf";

/// A copy of the golden model whose keys of the first layer are beyond a half: its key norm is bfloat16.
fn with_large_keys(folder: &Path) {
    let name = "model.layers.0.self_attn.k_norm.weight";
    let mut found = 0;
    for file in std::fs::read_dir(golden().join(CASE).join("model")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            if let Some(tensor) = header.get(name) {
                assert_eq!(tensor["dtype"], "BF16");
                let offset = |i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize;
                let range = 8 + length + offset(0)..8 + length + offset(1);
                for weight in bytes[range].as_chunks_mut::<2>().0 {
                    // 2^20, the upper half of its binary32.
                    *weight = 0x4980u16.to_le_bytes();
                }
                found += 1;
            }
        }
        std::fs::write(folder.join(path.file_name().unwrap()), bytes).unwrap();
    }
    assert_eq!(found, 1, "{name}");
}

#[test]
fn keys_beyond_a_half_are_refused_and_other_types_hold_them() {
    let folder = tempfile::tempdir().unwrap();
    with_large_keys(folder.path());
    let (model, ids) = (folder.path().to_str().unwrap(), golden().join(CASE).join("ids.json"));
    let score = |options: &[&str]| {
        let mut arguments = vec!["score", model, "--ids", ids.to_str().unwrap()];
        arguments.extend(options);
        flashmoe(&arguments)
    };
    for options in [&["--kv-type", "f16"][..], &[]] {
        let output = score(options);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{options:?}: answered from keys that are not there");
        assert!(errors.contains("finite"), "{errors}");
    }
    for kind in ["f32", "bf16", "q8"] {
        let output = score(&["--kv-type", kind]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{kind}: {errors}");
    }
}

#[test]
fn bytes_per_token_are_shown_and_follow_the_type() {
    let model = golden().join(CASE).join("model");
    let model = model.to_str().unwrap();
    let shown = |arguments: &[&str]| {
        let output = flashmoe(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let inspect = shown(&["inspect", model]);
    let line = inspect.lines().find(|line| line.starts_with("key-value cache")).unwrap();
    for kind in ["f32", "f16", "bf16", "q8"] {
        assert!(line.contains(&format!("in {kind}")), "{line}");
        let plan = shown(&["plan", model, "--device", "cpu", "--kv-type", kind]);
        let row = plan.lines().find(|line| line.starts_with("key-value cache")).unwrap();
        assert!(row.ends_with(&format!("each in {kind}")), "{row}");
    }
}

#[test]
fn an_unknown_type_is_wrong_usage() {
    let model = golden().join(CASE).join("model");
    let output = flashmoe(&["plan", model.to_str().unwrap(), "--kv-type", "q4"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("q4") && errors.contains("bf16"), "{errors}");
}

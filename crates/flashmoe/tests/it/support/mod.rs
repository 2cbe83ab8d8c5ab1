//! Drives the real binary over the committed checkpoints, as a user would.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use serde_json::{Value, json};

/// `tests/golden` of the workspace.
pub(crate) fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Runs flashmoe with arguments.
pub(crate) fn flashmoe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flashmoe")).args(arguments).output().unwrap()
}

/// What flashmoe prints for arguments that it must accept.
pub(crate) fn run(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The driver that computes on the processor, where tests of any GPU are asked for.
#[cfg(target_os = "linux")]
pub(crate) fn lavapipe() -> Option<PathBuf> {
    if crate::long::skips_gpu() {
        return None;
    }
    let driver = format!("/usr/share/vulkan/icd.d/lvp_icd.{}.json", std::env::consts::ARCH);
    let driver = PathBuf::from(driver);
    assert!(driver.exists(), "no lavapipe");
    Some(driver)
}

/// Copies the files of a folder into a new one.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A copy of a golden case's model, to be changed, in a folder that goes with the first value.
pub(crate) fn golden_copy(case: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy_folder(&golden().join(case).join("model"), &model);
    (folder, model)
}

/// The demo model's configuration with four layers of 16 experts, whose hidden and inner sizes are `width`, as a file
/// in `folder`.
pub(crate) fn demo_shape(folder: &Path, width: usize) -> PathBuf {
    let demo = golden().join("../../models/demo/config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let text = &mut config["text_config"];
    for (key, value) in [
        ("num_hidden_layers", 4),
        ("num_experts", 16),
        ("hidden_size", width),
        ("moe_intermediate_size", width),
        ("shared_expert_intermediate_size", width),
    ] {
        text[key] = json!(value);
    }
    let kinds = text["layer_types"].as_array().unwrap()[..4].to_vec();
    text["layer_types"] = Value::Array(kinds);
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// The distance of logits from the reference's, relative to their norm.
pub(crate) fn distance(found: &Scored, reference: &Scored) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    let pairs = found.logits.iter().zip(&reference.logits);
    norm(&mut pairs.map(|(a, b)| a - b)) / norm(&mut reference.logits.iter().copied())
}

/// Logits and greedy continuation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) logits: Vec<f32>,
    pub(crate) greedy: Vec<i32>,
}

impl Scored {
    /// Reads `logits` and `greedy` from a safetensors file.
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| {
            let data = tensors.tensor(name).unwrap().data().to_vec();
            data.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]).collect::<Vec<_>>()
        };
        Self {
            logits: words("logits").into_iter().map(f32::from_le_bytes).collect(),
            greedy: words("greedy").into_iter().map(i32::from_le_bytes).collect(),
        }
    }

    /// What the binary computes for a committed case, 32 greedy tokens included.
    pub(crate) fn compute(case: &str, options: &[&str]) -> Self {
        let folder = golden().join(case);
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("logits.safetensors");
        let (model, ids) = (folder.join("model"), folder.join("ids.json"));
        let mut arguments = vec!["score", model.to_str().unwrap(), "--ids", ids.to_str().unwrap()];
        arguments.extend(["--logits", file.to_str().unwrap(), "--greedy", "32"]);
        arguments.extend(options);
        let output = flashmoe(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case} {options:?}: {errors}");
        Self::read(&file)
    }

    /// What the binary computes for a model with the tokens of a committed case, 12 greedy tokens included.
    pub(crate) fn with_ids_of(case: &str, model: &Path, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ids, out) =
            (golden().join(case).join("ids.json"), folder.path().join("out.safetensors"));
        let [model, ids, file] = [model, &ids, &out].map(|path| path.to_str().unwrap());
        let mut arguments = vec!["score", model, "--ids", ids, "--logits", file, "--greedy", "12"];
        arguments.extend(options);
        run(&arguments);
        Self::read(&out)
    }
}

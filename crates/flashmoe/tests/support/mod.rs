//! Drives the real binary over the committed checkpoints, as a user would.
#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test helper: a failure here is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;

/// `tests/golden` of the workspace.
pub(crate) fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Runs flashmoe with arguments.
pub(crate) fn flashmoe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flashmoe")).args(arguments).output().unwrap()
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
}

//! Goal: every damaged or hostile checkpoint is refused in one line that names the file and the field, at
//! once and without a panic. Method: tables of named cases, each one change to a good tiny checkpoint.
//!
//! A table's row is a name, the file to be blamed, words that the message must contain, and the damage. The
//! undamaged drafts open, so that each refusal is the damage's doing.

pub(crate) mod ancestor;
mod config;
pub(crate) mod gguf;
mod gguf_families;
mod header;
mod index;
mod pack;
mod sidecar;
mod special;
mod tensors;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Folder, TINY, Tensors};
use serde_json::Value;
use store::format::open;

/// Opening touches headers only: a tenth of this is usual, the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_millis(1000);

/// A good checkpoint before it is written.
pub(crate) struct Draft {
    pub(crate) config: Value,
    pub(crate) tensors: Tensors,
}

/// Name, file to blame, words of the message, damage to the draft.
pub(crate) type DraftCase = (&'static str, &'static str, &'static [&'static str], fn(&mut Draft));

/// Name, file to blame, words of the message, damage to the folder.
pub(crate) type FolderCase = (&'static str, &'static str, &'static [&'static str], fn(&Folder));

impl Draft {
    pub(crate) fn mlx() -> Self {
        let (config, tensors) = TINY.mlx((4, 64, "BF16"));
        Self { config, tensors }
    }

    pub(crate) fn hugging_face(fused: bool) -> Self {
        let (config, tensors) = TINY.hugging_face(fused);
        Self { config, tensors }
    }

    /// The text model's configuration.
    pub(crate) fn text(&mut self) -> &mut Value {
        &mut self.config["text_config"]
    }

    pub(crate) fn write(&self) -> Folder {
        Folder::checkpoint(&self.config, &self.tensors, "mlx")
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let before = self.tensors.0.len();
        self.tensors.0.retain(|entry| entry.name != name);
        assert_eq!(self.tensors.0.len(), before - 1, "no tensor {name}");
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.tensors.find(from).name = to.to_owned();
    }

    /// Gives a tensor another type and shape, with as many zero bytes as they ask for.
    pub(crate) fn reshape(&mut self, name: &str, dtype: &str, shape: &[usize]) {
        let bytes = shape.iter().product::<usize>() * crate::common::dtype_bytes(dtype);
        let entry = self.tensors.find(name);
        entry.dtype = dtype.to_owned();
        entry.shape = shape.to_vec();
        entry.data = vec![0; bytes];
    }
}

/// Opens what must be refused.
pub(crate) fn refused(name: &str, path: &Path, file: &str, words: &[&str]) {
    let started = Instant::now();
    let message = match open(path) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{name}: accepted"),
    };
    assert!(started.elapsed() < PATIENCE, "{name}: took {:?}", started.elapsed());
    let (blamed, rest) = message.split_once(": ").unwrap_or((&message, ""));
    assert!(blamed.ends_with(file), "{name}: {file} is to blame, not {message}");
    assert!(message.lines().count() == 1 && message.len() < 1500, "{name}: {message}");
    assert!(!message.chars().any(char::is_control), "{name}: {message:?}");
    for word in words {
        assert!(rest.contains(word), "{name}: no {word:?} in: {message}");
    }
}

pub(crate) fn run_drafts(good: fn() -> Draft, cases: &[DraftCase]) {
    open(good().write().path()).unwrap();
    for (name, file, words, damage) in cases {
        let mut draft = good();
        damage(&mut draft);
        refused(name, draft.write().path(), file, words);
    }
}

pub(crate) fn run_folders(good: fn() -> Folder, cases: &[FolderCase]) {
    open(good().path()).unwrap();
    for (name, file, words, damage) in cases {
        let folder = good();
        damage(&folder);
        refused(name, folder.path(), file, words);
    }
}

//! What a target is, and the files that targets share.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::random::Random;

/// Meets a parser with an input.
pub(crate) type Attack = Box<dyn FnMut(&[u8])>;
/// Damages an input.
pub(crate) type Mutate = fn(&mut Random, &mut Vec<u8>);
/// A parser under attack. A panic, an abort, an endless loop or too much memory in `run` is a finding.
pub(crate) struct Target {
    /// Good inputs to start from; the files of `corpus/NAME` are added.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Damages an input.
    pub(crate) mutate: Mutate,
    /// Meets the parser with an input.
    pub(crate) run: Attack,
}

/// The repository: FUZZ_ROOT, or where this was built.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("FUZZ_ROOT")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from)
}

/// The files of `corpus/NAME`, by name.
pub(crate) fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = root().join("fuzz/corpus").join(name);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

/// A folder in memory where there is one, because every input is a file.
pub(crate) fn folder() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let made = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
    made.expect("a folder for inputs can be made")
}

/// A committed model of the tests.
pub(crate) fn golden(case: &str) -> PathBuf {
    root().join("tests/golden").join(case).join("model")
}

/// A file of a committed model.
pub(crate) fn golden_file(case: &str, name: &str) -> Vec<u8> {
    std::fs::read(golden(case).join(name)).expect("the committed models are part of the repository")
}

/// Input `number` of a run with `seed`: the first ones are the seeds themselves.
pub(crate) fn input(target: &Target, seed: u64, number: u64) -> Vec<u8> {
    if let Some(first) = target.seeds.get(number as usize) {
        return first.clone();
    }
    let mut random = Random::of(seed, number);
    let mut input = random.pick(&target.seeds).clone();
    (target.mutate)(&mut random, &mut input);
    input
}

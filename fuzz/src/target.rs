//! What a target is, and the list of them: one per parser.

use std::path::{Path, PathBuf};

use crate::random::Random;
use crate::{
    aborts, answers, checkpoints, files, flips, hub, requests, templates, text, tokens, traces,
};

/// Meets a parser with an input.
pub(crate) type Attack = Box<dyn FnMut(&[u8])>;
/// Damages an input.
pub(crate) type Mutate = fn(&mut Random, &mut Vec<u8>);
/// Makes a target.
type Make = fn() -> Target;

/// A parser under attack. A panic, an abort, an endless loop or too much memory in `run` is a finding.
pub(crate) struct Target {
    /// Good inputs to start from; the files of `corpus/NAME` are added.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Damages an input.
    pub(crate) mutate: Mutate,
    /// Meets the parser with an input.
    pub(crate) run: Attack,
}

/// Name and maker of every target.
pub(crate) const TARGETS: &[(&str, Make)] = &[
    ("safetensors-header", checkpoints::header),
    ("safetensors-folder", checkpoints::header_folder),
    ("gguf-header", checkpoints::gguf_header),
    ("gguf", checkpoints::gguf),
    ("index-json", checkpoints::index),
    ("config-json", checkpoints::config),
    ("manifest", checkpoints::manifest),
    ("checksum-table", checkpoints::table),
    ("ancestor-index", checkpoints::ancestor),
    ("journal", checkpoints::journal),
    ("journal-folder", checkpoints::journal_folder),
    ("sidecars", checkpoints::sidecars),
    ("tokenizer-json", text::tokenizer),
    ("template", text::template),
    ("template-hostile", templates::hostile),
    ("template-process", templates::processes),
    ("messages", text::messages),
    ("answer", answers::answer),
    ("constraint", answers::constraint),
    ("generation-config", text::generation_config),
    ("trace-binary", traces::binary),
    ("trace-csv", traces::csv),
    ("trace-jsonl", traces::jsonl),
    ("token-ids", files::token_ids),
    ("task-file", files::tasks),
    ("requests", requests::requests),
    ("tokens", tokens::tokens),
    ("hub-listing", hub::listing),
    ("hub-cache", hub::cache),
    ("pack-flips", flips::flips),
    ("aborts", aborts::aborts),
];

/// Targets whose inputs run in the worker itself and may end it, by stack, memory or time.
const MAY_END: [&str; 2] = ["template", "template-hostile"];

/// Whether the inputs of a target may end its process.
pub(crate) fn may_end(name: &str) -> bool {
    MAY_END.contains(&name)
}

/// The maker of a target.
pub(crate) fn find(name: &str) -> Option<Make> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, make)| *make)
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

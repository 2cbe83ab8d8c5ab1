//! Every target: one per parser.

use crate::target::Target;
use crate::{
    aborts, answers, checkpoints, files, flips, hub, requests, stages, templates, text, tokens,
    traces,
};

/// Makes a target.
type Make = fn() -> Target;

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
    ("stage-message", stages::message),
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

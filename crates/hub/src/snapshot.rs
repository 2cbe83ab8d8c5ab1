//! What a snapshot of a repository holds: its files, and what of a model is missing among them.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use store::io::platform::{Links, open_regular};

use crate::cache::ENTRIES_MAX;
use crate::select::{part_of, quant_of};

/// Most bytes of an index that is believed.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Depth of a snapshot that is looked at.
const DEPTH_MAX: usize = 8;
/// The list of a checkpoint's files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A file of a snapshot: its relative path and the size of what it links to.
pub(crate) type Entry = (String, u64);

/// The snapshot that `refs/main` names, else the one that changed last.
pub(crate) fn snapshot_of(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let mut commit = String::new();
    if let Ok(file) = open_regular(&repository.join("refs/main"), Links::Refused) {
        // A file that is no commit names nothing.
        let _ = file.take(64).read_to_string(&mut commit);
        let commit = commit.trim();
        let plain = commit.bytes().all(|byte| byte.is_ascii_hexdigit()) && !commit.is_empty();
        let named = snapshots.join(commit);
        if plain && named.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Some(named);
        }
    }
    let folders = fs::read_dir(snapshots).ok()?.flatten().take(ENTRIES_MAX);
    // A link leads to files that are not the hub's.
    let folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let folders = folders.map(|entry| entry.path());
    folders.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok())
}

/// The files of a snapshot whose links lead somewhere.
pub(crate) fn entries(snapshot: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut folders = vec![(snapshot.to_owned(), String::new(), 0)];
    let mut looked_at = 0;
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > ENTRIES_MAX {
                break;
            }
            let name = entry.file_name();
            let (Some(name), Ok(kind)) = (name.to_str(), entry.file_type()) else { continue };
            let path = format!("{prefix}{name}");
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((entry.path(), format!("{path}/"), depth + 1));
            } else if let Some(file) = entry.path().metadata().ok().filter(fs::Metadata::is_file) {
                found.push((path, file.len()));
            }
        }
    }
    found.sort();
    found
}

/// The first file that a safetensors checkpoint lacks.
pub(crate) fn missing_of_checkpoint(snapshot: &Path, files: &[Entry]) -> Option<String> {
    let names: HashSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let has = |name: &str| names.contains(name);
    if !has("config.json") {
        return Some("config.json".to_owned());
    }
    let weights: Vec<&str> = files
        .iter()
        .filter_map(|(path, _)| path.strip_suffix(".safetensors"))
        .filter(|stem| !stem.contains('/'))
        .collect();
    if has(INDEX)
        && let Some(named) = shards_of_index(&snapshot.join(INDEX))
    {
        return named.into_iter().find(|name| !has(name));
    }
    let Some(first) = weights.first() else { return Some("model.safetensors".to_owned()) };
    let (stem, _, count) = part_of(first)?;
    let name = |number: u32| format!("{stem}-{number:05}-of-{count:05}.safetensors");
    (1..=count).map(name).find(|name| !has(name))
}

/// The files that an index names; `None` when it cannot be read, which opening it will explain.
fn shards_of_index(path: &Path) -> Option<BTreeSet<String>> {
    let file = open_regular(path, Links::Followed).ok()?;
    let mut text = String::new();
    file.take(INDEX_BYTES_MAX).read_to_string(&mut text).ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    let names = value.get("weight_map")?.as_object()?.values();
    Some(names.filter_map(|name| Some(name.as_str()?.to_owned())).collect())
}

/// The first part of a quantisation, and the first that is missing.
pub(crate) fn parts_of(files: &[Entry], quant: &str) -> (Option<String>, Option<String>) {
    let paths = files.iter().map(|(path, _)| path.as_str());
    // In order: the first is the first part.
    let ours: BTreeSet<&str> =
        paths.filter(|path| quant_of(path).is_some_and(|other| other == quant)).collect();
    let Some(first) = ours.first() else { return (None, None) };
    let stem = first.strip_suffix(".gguf").unwrap_or(first);
    let missing = part_of(stem).and_then(|(stem, _, count)| {
        let name = |number: u32| format!("{stem}-{number:05}-of-{count:05}.gguf");
        (1..=count).map(name).find(|name| !ours.contains(name.as_str()))
    });
    (Some((*first).to_owned()), missing)
}

//! The hub's cache on disk: `models--OWNER--NAME/{blobs,refs,snapshots}`, shared with `hf`, mlx_lm and llama.cpp.
//!
//! A snapshot is a folder of links into `blobs`, `refs/main` names the newest commit. Models count as there only when
//! every file that they need is: an index of safetensors and the numbers of split files say which.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use store::io::platform::{Links, open_regular};

use crate::error::HubError;
use crate::name::{ModelName, Quant};
use crate::select::{Selection, part_of, quant_of};
use crate::writer::Places;

/// Most bytes of an index that is believed.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Most entries of a folder of the cache, and depth of a snapshot, that are looked at.
const ENTRIES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 8;
const INDEX: &str = "model.safetensors.index.json";

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What the cache has of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Some files; the first that is missing.
    Part(String),
    /// Everything: the folder to open, or the first part of a GGUF file.
    Whole(PathBuf),
    /// Several quantisations, and none was asked for.
    Several(Vec<String>),
}

/// A model of the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Its name, with the quantisation of a GGUF file.
    pub name: ModelName,
    /// What to open.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Last change of the snapshot.
    pub modified: Option<SystemTime>,
    /// The first file that is missing, if any.
    pub missing: Option<String>,
}

/// A file of a snapshot: its relative path and the size of what it links to.
type Entry = (String, u64);

impl Cache {
    /// The cache in the folder `root`, which may not exist.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Its folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn places(&self, name: &ModelName) -> Places {
        let folder = name.folder();
        let locks = self.root.join(".locks").join(&folder);
        Places { repository: self.root.join(folder), locks }
    }

    /// What there is of `name`.
    #[must_use]
    pub fn find(&self, name: &ModelName) -> Found {
        find_in(&self.places(name).repository, name.quant.as_ref())
    }

    /// What there is in a folder `models--OWNER--NAME`, wherever it lies.
    #[must_use]
    pub fn find_folder(folder: &Path, quant: Option<&Quant>) -> Found {
        find_in(folder, quant)
    }

    /// All models, by name; of a GGUF repository one entry per quantisation.
    ///
    /// # Errors
    ///
    /// The folder cannot be read. One that does not exist is empty.
    pub fn list(&self) -> Result<Vec<Cached>, HubError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::io(&self.root, "read", error)),
        };
        let mut found = Vec::new();
        for entry in entries.flatten().take(ENTRIES_MAX) {
            let Some(name) = entry.file_name().to_str().and_then(ModelName::from_folder) else {
                continue;
            };
            let Some(snapshot) = snapshot_of(&entry.path()) else { continue };
            list_snapshot(&name, &snapshot, &mut found);
        }
        found.sort_by_key(|model| model.name.to_string().to_lowercase());
        Ok(found)
    }

    /// The files of `name`'s newest snapshot with their sizes.
    #[must_use]
    pub fn files(&self, name: &ModelName) -> Vec<(String, u64)> {
        let snapshot = snapshot_of(&self.places(name).repository);
        let mut files = snapshot.map(|snapshot| entries(&snapshot)).unwrap_or_default();
        if let Some(asked) = &name.quant {
            files.retain(|(path, _)| quant_of(path).is_some_and(|quant| asked.is(&quant)));
        }
        files
    }

    /// Removes `name`: all of the repository, or the files of one quantisation. Gives the bytes that became free.
    ///
    /// # Errors
    ///
    /// Nothing of that name, or a file that cannot be removed.
    pub fn remove(&self, name: &ModelName) -> Result<u64, HubError> {
        let places = self.places(name);
        let blobs = places.repository.join("blobs");
        let size = || sizes(&blobs);
        let before = size();
        let kept_quants = |(path, _): &Entry| {
            let quant = quant_of(path);
            quant.is_some_and(|quant| name.quant.as_ref().is_some_and(|asked| !asked.is(&quant)))
        };
        let files = snapshot_of(&places.repository).map(|folder| entries(&folder));
        let others = files.unwrap_or_default().iter().any(kept_quants);
        if !places.repository.is_dir() {
            return Err(HubError::content(name, "is not downloaded; `flashmoe list` says what is"));
        }
        if name.quant.is_none() || !others {
            for folder in [&places.repository, &places.locks] {
                match fs::remove_dir_all(folder) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(HubError::io(folder, "remove", error));
                    }
                    _ => {}
                }
            }
            return Ok(before);
        }
        let snapshots = fs::read_dir(places.repository.join("snapshots"));
        for snapshot in snapshots.into_iter().flatten().flatten().take(ENTRIES_MAX) {
            // A link leads to files that are somebody else's.
            if !snapshot.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            for (path, _) in entries(&snapshot.path()) {
                let ours = quant_of(&path)
                    .is_some_and(|quant| name.quant.as_ref().is_some_and(|asked| asked.is(&quant)));
                if !ours {
                    continue;
                }
                let link = snapshot.path().join(&path);
                if let Ok(blob) = link.canonicalize()
                    && blobs.canonicalize().is_ok_and(|blobs| blob.starts_with(blobs))
                {
                    fs::remove_file(&blob).map_err(|error| HubError::io(&blob, "remove", error))?;
                }
                fs::remove_file(&link).map_err(|error| HubError::io(&link, "remove", error))?;
            }
        }
        Ok(before.saturating_sub(size()))
    }

    /// Links every file of a finished download into its snapshot and makes it the newest.
    pub(crate) fn link(
        &self,
        name: &ModelName,
        selection: &Selection,
    ) -> Result<PathBuf, HubError> {
        let places = self.places(name);
        let snapshot = places.snapshot(&selection.commit);
        for file in &selection.files {
            let link = snapshot.join(&file.path);
            let parent = link.parent().unwrap_or(&snapshot);
            fs::create_dir_all(parent).map_err(|error| HubError::io(parent, "create", error))?;
            // Out of the folders of the file, of the commit and of `snapshots`.
            let mut target = PathBuf::from("../..");
            for _ in 0..file.path.matches('/').count() {
                target.push("..");
            }
            target.push("blobs");
            target.push(file.blob.digits());
            if fs::read_link(&link).is_ok_and(|found| found == target) {
                continue;
            }
            if fs::read_link(&link).is_ok_and(|found| found != target) || link.is_file() {
                match fs::remove_file(&link) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(HubError::io(&link, "replace", error));
                    }
                    _ => {}
                }
            }
            match make_link(&target, &link) {
                // Another program has linked the same meanwhile.
                Err(_) if fs::read_link(&link).is_ok_and(|found| found == target) => {}
                linked => linked.map_err(|error| HubError::io(&link, "create", error))?,
            }
        }
        let refs = places.repository.join("refs");
        fs::create_dir_all(&refs).map_err(|error| HubError::io(&refs, "create", error))?;
        // Renamed into place: a link that lies there is replaced and not written through.
        let (aside, reference) =
            (refs.join(format!("main.{}.new", process::id())), refs.join("main"));
        // What a process of this number left when it was killed.
        let _ = fs::remove_file(&aside);
        let written = fs::File::create_new(&aside)
            .and_then(|mut file| file.write_all(selection.commit.as_bytes()))
            .and_then(|()| fs::rename(&aside, &reference));
        written.map_err(|error| HubError::io(&reference, "write", error))?;
        Ok(snapshot)
    }
}

/// Makes the snapshot's name of a blob, which is `target` seen from the folder of `link`.
#[cfg(unix)]
fn make_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// As on Unix where the user may make links, which is a privilege on Windows. Else the blob gets a second name, and on
/// file systems without that it is copied.
#[cfg(windows)]
fn make_link(target: &Path, link: &Path) -> io::Result<()> {
    if std::os::windows::fs::symlink_file(target, link).is_ok() {
        return Ok(());
    }
    let blob = link.parent().unwrap_or(Path::new(".")).join(target);
    fs::hard_link(&blob, link).or_else(|_| fs::copy(&blob, link).map(|_| ()))
}

fn find_in(repository: &Path, quant: Option<&Quant>) -> Found {
    let Some(snapshot) = snapshot_of(repository) else { return Found::Nothing };
    let files = entries(&snapshot);
    let quants: BTreeSet<String> = files.iter().filter_map(|(path, _)| quant_of(path)).collect();
    let has_weights = files.iter().any(|(path, _)| path.ends_with(".safetensors"));
    let asked = match quant {
        None if has_weights || quants.is_empty() => None,
        None if quants.len() == 1 => quants.first().cloned(),
        None => return Found::Several(quants.into_iter().collect()),
        Some(asked) => match quants.into_iter().find(|quant| asked.is(quant)) {
            Some(quant) => Some(quant),
            None => return Found::Nothing,
        },
    };
    match asked {
        None => match missing_of_checkpoint(&snapshot, &files) {
            Some(missing) => Found::Part(missing),
            None => Found::Whole(snapshot),
        },
        Some(quant) => match parts_of(&files, &quant) {
            (_, Some(missing)) => Found::Part(missing),
            (Some(first), None) => Found::Whole(snapshot.join(first)),
            (None, None) => Found::Nothing,
        },
    }
}

fn list_snapshot(name: &ModelName, snapshot: &Path, found: &mut Vec<Cached>) {
    let files = entries(snapshot);
    let modified = snapshot.metadata().and_then(|metadata| metadata.modified()).ok();
    let quants: BTreeSet<String> = files.iter().filter_map(|(path, _)| quant_of(path)).collect();
    for quant in &quants {
        let ours = |path: &str| quant_of(path).is_some_and(|other| other == *quant);
        let bytes = files.iter().filter(|(path, _)| ours(path)).map(|(_, size)| size).sum();
        let (first, missing) = parts_of(&files, quant);
        let name = ModelName { quant: Some(Quant(quant.clone())), ..name.clone() };
        let path = snapshot.join(first.unwrap_or_default());
        found.push(Cached { name, path, bytes, modified, missing });
    }
    // What a program fetched of a repository of other things is no model.
    let runs = files.iter().any(|(path, _)| path.ends_with(".safetensors") || path == INDEX);
    if runs && files.iter().any(|(path, _)| path == "config.json") {
        let other = |(path, _): &&Entry| !path.ends_with(".gguf");
        let bytes = files.iter().filter(other).map(|(_, size)| size).sum();
        let missing = missing_of_checkpoint(snapshot, &files);
        let path = snapshot.to_owned();
        found.push(Cached { name: name.clone(), path, bytes, modified, missing });
    }
}

/// The snapshot that `refs/main` names, else the one that changed last.
fn snapshot_of(repository: &Path) -> Option<PathBuf> {
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
fn entries(snapshot: &Path) -> Vec<Entry> {
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
fn missing_of_checkpoint(snapshot: &Path, files: &[Entry]) -> Option<String> {
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
fn parts_of(files: &[Entry], quant: &str) -> (Option<String>, Option<String>) {
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

/// Bytes of the files of a folder.
fn sizes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

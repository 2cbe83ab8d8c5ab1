//! The hub's cache on disk: `models--OWNER--NAME/{blobs,refs,snapshots}`, shared with `hf`, mlx_lm and llama.cpp.
//!
//! A snapshot is a folder of links into `blobs`, `refs/main` names the newest commit. Models count as there only when
//! every file that they need is: an index of safetensors and the numbers of split files say which.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use store::io::Readers;

use crate::error::HubError;
use crate::name::{ModelName, Quant};
use crate::select::{Selection, quant_of};
use crate::snapshot::{Entry, INDEX, entries, missing_of_checkpoint, parts_of, snapshot_of};
use crate::unfinished;
use crate::writer::Places;

/// Most entries of a folder of the cache that are looked at.
pub(crate) const ENTRIES_MAX: usize = 20_000;

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
    /// What to open; of a download that has not ended the repository's folder.
    pub path: PathBuf,
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of all of it, where that is known of a model that is not whole.
    pub total: Option<u64>,
    /// Last change of the snapshot.
    pub modified: Option<SystemTime>,
    /// The first file that is missing, if any.
    pub missing: Option<String>,
}

/// A file of a model, wherever its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFile {
    /// Its path in the repository.
    pub path: String,
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of all of it.
    pub total: u64,
}

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
        let places = self.places(name);
        let found = find_in(&places.repository, name.quant.as_ref());
        let stopped = || {
            let all = unfinished::of_repository(&places);
            let asked = all.into_iter().find(|it| is_asked(name, &it.quant));
            asked.map(|it| Found::Part(it.missing(&places)))
        };
        match found {
            Found::Nothing => stopped().unwrap_or(Found::Nothing),
            found => found,
        }
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
            let mut models = Vec::new();
            if let Some(snapshot) = snapshot_of(&entry.path()) {
                list_snapshot(&name, &snapshot, &mut models);
            }
            add_unfinished(&name, &self.places(&name), &mut models);
            found.append(&mut models);
        }
        found.sort_by_key(|model| model.name.to_string().to_lowercase());
        Ok(found)
    }

    /// The files of `name`'s newest snapshot, and those of downloads that have not ended.
    #[must_use]
    pub fn files(&self, name: &ModelName) -> Vec<CachedFile> {
        let places = self.places(name);
        let snapshot = snapshot_of(&places.repository);
        let linked = snapshot.map(|snapshot| entries(&snapshot)).unwrap_or_default();
        let linked =
            linked.into_iter().map(|(path, bytes)| CachedFile { path, bytes, total: bytes });
        let mut files: Vec<CachedFile> = linked.collect();
        for file in unfinished::of_repository(&places).into_iter().flat_map(|it| it.files) {
            if !files.iter().any(|known| known.path == file.path) {
                let bytes = places.present(&file);
                files.push(CachedFile { path: file.path, bytes, total: file.size });
            }
        }
        if let Some(asked) = &name.quant {
            files.retain(|file| quant_of(&file.path).is_some_and(|quant| asked.is(&quant)));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
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
        let begun = unfinished::of_repository(&places);
        let (ours, theirs): (Vec<_>, Vec<_>) =
            begun.into_iter().partition(|it| is_asked(name, &it.quant));
        let others = files.unwrap_or_default().iter().any(kept_quants) || !theirs.is_empty();
        if !places.repository.is_dir() {
            return Err(HubError::content(name, "is not downloaded; `flashmoe list` says what is"));
        }
        if places.are_written() {
            let reason = "is being downloaded by another program; end that first";
            return Err(HubError::content(name, reason));
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
        for stopped in ours {
            stopped.remove(&places)?;
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
        replace(&places.repository.join("refs/main"), selection.commit.as_bytes())?;
        unfinished::end(&places, selection);
        Ok(snapshot)
    }
}

/// Writes `bytes` to the file `path`, and makes its folder.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| HubError::io(folder, "create", error))?;
    store::io::replace(path, Readers::Others, bytes)
        .map_err(|error| HubError::io(path, "write", error))
}

/// Whether `name` means the quantisation `quant` of its repository; without one it means all.
fn is_asked(name: &ModelName, quant: &Option<Quant>) -> bool {
    match (&name.quant, quant) {
        (None, _) => true,
        (Some(asked), Some(quant)) => asked.is(&quant.0),
        (Some(_), None) => false,
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
        found.push(Cached { name, path, bytes, total: None, modified, missing });
    }
    // What a program fetched of a repository of other things is no model.
    let runs = files.iter().any(|(path, _)| path.ends_with(".safetensors") || path == INDEX);
    if runs && files.iter().any(|(path, _)| path == "config.json") {
        let other = |(path, _): &&Entry| !path.ends_with(".gguf");
        let bytes = files.iter().filter(other).map(|(_, size)| size).sum();
        let missing = missing_of_checkpoint(snapshot, &files);
        let path = snapshot.to_owned();
        let name = name.clone();
        found.push(Cached { name, path, bytes, total: None, modified, missing });
    }
}

/// Adds downloads of a repository that have not ended to its models, of which some may be parts.
fn add_unfinished(name: &ModelName, places: &Places, models: &mut Vec<Cached>) {
    for stopped in unfinished::of_repository(places) {
        let (bytes, total) = stopped.bytes(places);
        let known = models.iter_mut().find(|model| model.name.quant == stopped.quant);
        match known {
            // It was ended by another program.
            Some(model) if model.missing.is_none() => {}
            Some(model) => (model.bytes, model.total) = (bytes, Some(total)),
            None => models.push(Cached {
                name: ModelName { quant: stopped.quant.clone(), ..name.clone() },
                path: places.repository.clone(),
                bytes,
                total: Some(total),
                modified: stopped.begun,
                missing: Some(stopped.missing(places)),
            }),
        }
    }
    let begun = unfinished::incomplete_bytes(places);
    let nothing = models.is_empty();
    match models.iter_mut().find(|model| model.missing.is_some()) {
        Some(model) if model.total.is_none() => model.bytes += begun,
        // What a program without records left before it linked anything.
        None if nothing && begun > 0 => models.push(Cached {
            name: name.clone(),
            path: places.repository.clone(),
            bytes: sizes(&places.repository.join("blobs")),
            total: None,
            modified: places.repository.metadata().and_then(|it| it.modified()).ok(),
            missing: Some(String::new()),
        }),
        _ => {}
    }
}

/// Bytes of the files of a folder.
fn sizes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

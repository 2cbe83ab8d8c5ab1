//! What `flashmoe cache` does: looks at kept prompts, checks and removes them, while servers run or not.
//!
//! Only names, sizes and checksums are looked at; no text is decoded. Files come and go while a server works: what
//! is gone when it is looked at is no error. A server that finds a file gone computes that prompt anew.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use store::io::platform::{Links, read_regular};
use store::shown::{self, path, quoted};
use thiserror::Error;

use super::folder::{ABOUT, NOTE_BYTES_MAX, PURGED, in_use, is_kept, model_folders};
use super::format::{
    ASIDE_SUFFIX, Key, PAGE_SUFFIX, SNAPSHOT_SUFFIX, There, check_file, key_of, keys,
    open_to_write, read_tokens, token_count,
};

/// Why kept prompts cannot be looked at.
#[derive(Debug, Error)]
pub enum KeptError {
    /// The folder cannot be read, or a file in it neither read nor removed.
    #[error("{}: {source}", shown::path(path))]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// No server has kept anything there.
    #[error("{}: no prompts were kept here; give the folder of --cache-disk", path(folder))]
    NotKept {
        /// The folder.
        folder: PathBuf,
    },
    /// No model has that name.
    #[error("{}: nothing is kept of {}; there is: {there}", path(folder), quoted(model))]
    NoSuchModel {
        /// The folder.
        folder: PathBuf,
        /// What was asked for.
        model: String,
        /// The models that there are.
        there: String,
    },
}

/// A snapshot on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptSnapshot {
    /// Its file.
    pub path: PathBuf,
    /// Tokens before the point; `None` when the header cannot be read.
    pub tokens: Option<usize>,
    /// Bytes of its own file; pages are shared.
    pub bytes: u64,
    /// When it was written or last gone on from.
    pub used: SystemTime,
}

/// What is kept of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptModel {
    /// Its folder.
    pub folder: PathBuf,
    /// As the server called it.
    pub model: String,
    /// Hash of model and arithmetic: the folder's name.
    pub fingerprint: String,
    /// Whether a server uses it now.
    pub in_use: bool,
    /// The latest used first.
    pub snapshots: Vec<KeptSnapshot>,
    /// Pages of keys and values, shared by the snapshots.
    pub pages: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files whose checksum is right.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The others, with what is wrong.
    pub damaged: Vec<(PathBuf, String)>,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Snapshots.
    pub snapshots: usize,
    /// Bytes of all files removed.
    pub bytes: u64,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> KeptError + '_ {
    |source| KeptError::Io { path: path.to_owned(), source }
}

/// `None` for a file that is gone.
fn unless_gone<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>, KeptError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path)(error)),
    }
}

/// What is kept in a folder; `model` limits that to one, by name or by the beginning of its fingerprint.
///
/// # Errors
/// The folder cannot be read, or has nothing of that model.
pub fn list(folder: &Path, model: Option<&str>) -> Result<Vec<KeptModel>, KeptError> {
    fs::read_dir(folder).map_err(failed(folder))?;
    let mut models = Vec::new();
    for path in model_folders(folder) {
        models.push(look(&path)?);
    }
    if models.is_empty() {
        return Err(KeptError::NotKept { folder: folder.to_owned() });
    }
    models.sort_by(|a, b| (&a.model, &a.fingerprint).cmp(&(&b.model, &b.fingerprint)));
    let Some(wanted) = model else { return Ok(models) };
    let names: Vec<_> = models
        .iter()
        .map(|kept| format!("{} ({})", shown::shown(&kept.model), kept.fingerprint))
        .collect();
    models.retain(|kept| kept.model == wanted || kept.fingerprint.starts_with(wanted));
    if models.is_empty() {
        let (folder, model) = (folder.to_owned(), wanted.to_owned());
        return Err(KeptError::NoSuchModel { folder, model, there: names.join(", ") });
    }
    Ok(models)
}

fn look(folder: &Path) -> Result<KeptModel, KeptError> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let about = read_regular(&folder.join(ABOUT), Links::Refused, NOTE_BYTES_MAX);
    let model = String::from_utf8_lossy(&about.unwrap_or_default()).into_owned();
    let mut kept = KeptModel {
        folder: folder.to_owned(),
        model: model.trim().to_owned(),
        fingerprint: name.unwrap_or_default(),
        in_use: in_use(folder).map_err(failed(folder))?,
        snapshots: Vec::new(),
        pages: 0,
        bytes: 0,
    };
    for path in kept_files(folder)? {
        let Some(metadata) = unless_gone(fs::metadata(&path), &path)? else { continue };
        kept.bytes += metadata.len();
        if key_of(&path, PAGE_SUFFIX).is_some() {
            kept.pages += 1;
        } else if key_of(&path, SNAPSHOT_SUFFIX).is_some() {
            let used = metadata.modified().unwrap_or(UNIX_EPOCH);
            let tokens = token_count(&path).ok();
            kept.snapshots.push(KeptSnapshot { path, tokens, bytes: metadata.len(), used });
        }
    }
    kept.snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.used));
    Ok(kept)
}

fn kept_files(folder: &Path) -> Result<Vec<PathBuf>, KeptError> {
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let mut files: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_kept(path)).collect();
    files.sort();
    Ok(files)
}

/// Reads every file and compares it with its checksum. Changes nothing.
///
/// # Errors
/// As [`list`], or a file that cannot be read.
pub fn verify(folder: &Path, model: Option<&str>) -> Result<Verified, KeptError> {
    let mut found = Verified::default();
    for kept in list(folder, model)? {
        for path in kept_files(&kept.folder)? {
            if path.extension().is_some_and(|suffix| suffix == ASIDE_SUFFIX) {
                // Not complete: a server is writing it, or the next one removes it.
                continue;
            }
            match unless_gone(check_file(&path), &path)? {
                None => {}
                Some(Ok(bytes)) => {
                    found.files += 1;
                    found.bytes += bytes;
                }
                Some(Err(wrong)) => found.damaged.push((path, wrong.to_owned())),
            }
        }
    }
    Ok(found)
}

/// Removes what is kept; with `unused_for` only snapshots that no request has used for so long. Snapshots go before
/// the pages that they need, and what a running server is just writing stays.
///
/// # Errors
/// As [`list`], or a file that cannot be removed.
pub fn purge(
    folder: &Path,
    model: Option<&str>,
    unused_for: Option<Duration>,
) -> Result<Purged, KeptError> {
    let mut purged = Purged::default();
    let now = SystemTime::now();
    for kept in list(folder, model)? {
        let old = |snapshot: &&KeptSnapshot| {
            let age = now.duration_since(snapshot.used).unwrap_or_default();
            unused_for.is_none_or(|limit| age >= limit)
        };
        let old: Vec<_> = kept.snapshots.iter().filter(old).collect();
        for snapshot in &old {
            remove(&snapshot.path, snapshot.bytes, &mut purged.bytes)?;
        }
        purged.snapshots += old.len();
        let needed = needed_pages(&kept);
        // A server may need pages for what it is just writing.
        let spared = kept.in_use && unused_for.is_some();
        for path in kept_files(&kept.folder)? {
            let aside = path.extension().is_some_and(|suffix| suffix == ASIDE_SUFFIX);
            let page = key_of(&path, PAGE_SUFFIX);
            let unneeded = page.is_some_and(|page| !spared && !needed.contains(&page));
            if unneeded || aside && !kept.in_use {
                let Some(metadata) = unless_gone(fs::metadata(&path), &path)? else { continue };
                remove(&path, metadata.len(), &mut purged.bytes)?;
            }
        }
        // For a server that works: it forgets what is gone.
        let marker = kept.folder.join(PURGED);
        open_to_write(&marker, There::Empty).map_err(failed(&marker))?;
    }
    Ok(purged)
}

/// Pages that the snapshots which are still there need.
fn needed_pages(kept: &KeptModel) -> HashSet<Key> {
    let fingerprint = u64::from_str_radix(&kept.fingerprint, 16).unwrap_or(0);
    let mut needed = HashSet::new();
    for snapshot in &kept.snapshots {
        // One that is gone or cannot be read needs nothing: the next server removes it.
        if let Ok((domain, tokens)) = read_tokens(&snapshot.path, fingerprint) {
            needed.extend(keys(fingerprint, domain, &tokens).0);
        }
    }
    needed
}

fn remove(path: &Path, bytes: u64, removed: &mut u64) -> Result<(), KeptError> {
    if unless_gone(fs::remove_file(path), path)?.is_some() {
        *removed += bytes;
    }
    Ok(())
}

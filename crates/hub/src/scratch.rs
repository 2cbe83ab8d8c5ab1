//! A folder of the cache for what a process needs while it runs: what a killed one leaves is removed by the next.
//!
//! Each folder is locked by the process that made it, so that a folder without a lock is nobody's any more.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use store::io::platform::{Links, create_private_folder, open_no_link, open_regular};

use crate::cache::Cache;
use crate::error::HubError;

/// In the cache, where programs of the hub look for no models.
const FOLDER: &str = ".locks/.scratch";
/// In each folder.
const LOCK: &str = ".lock";
/// Names that are tried.
const ATTEMPTS: u32 = 1000;

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// The cache's own folder.
    root: PathBuf,
    _lock: File,
}

impl Scratch {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
        // A cache that was not there, or had nothing, is as before: only empty folders go.
        let parents = self.path.ancestors().skip(1);
        for parent in parents.take_while(|parent| parent.starts_with(&self.root)) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
    }
}

impl Cache {
    /// A folder of this process, after those of killed ones are removed.
    ///
    /// # Errors
    /// The cache cannot be written to.
    pub fn scratch(&self) -> Result<Scratch, HubError> {
        let folder = self.root().join(FOLDER);
        let failed = |error| HubError::io(&folder, "create", error);
        create_private_folder(&folder).map_err(failed)?;
        for entry in fs::read_dir(&folder).map_err(failed)?.flatten() {
            remove_if_left(&entry.path());
        }
        for attempt in 0..ATTEMPTS {
            let path = folder.join(format!("{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // Another process has removed the folder, which was empty.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create_private_folder(&folder).map_err(failed)?;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            let mut options = OpenOptions::new();
            let lock = open_no_link(options.write(true).create_new(true), &path.join(LOCK));
            let lock = lock.map_err(failed)?;
            // Another process may have taken it for one that was left.
            if lock.try_lock().is_ok() && path.is_dir() {
                return Ok(Scratch { path, root: self.root().to_owned(), _lock: lock });
            }
        }
        Err(failed(io::Error::from(io::ErrorKind::AlreadyExists)))
    }
}

/// Removes a folder whose process is gone.
fn remove_if_left(path: &Path) {
    // The lock is the first file of a folder and the last that goes: where there are others and it is not, none will
    // be.
    let filled = is_filled(path);
    match open_regular(&path.join(LOCK), Links::Refused) {
        Ok(lock) => {
            if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
                return;
            }
        }
        Err(error) if filled && error.kind() == io::ErrorKind::NotFound => {}
        // Just made, or left before it was locked: an empty one goes in any case.
        Err(_) => {
            let _full = fs::remove_dir(path);
            return;
        }
    }
    remove(path);
}

/// Whether a folder, not a link to one, has other files than the lock.
fn is_filled(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
        && fs::read_dir(path).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != LOCK))
        })
}

/// Removes a folder, its lock last: a process that is killed meanwhile leaves what the next one knows for left.
fn remove(path: &Path) {
    if is_filled(path) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _next_time = match is_folder {
                true => fs::remove_dir_all(entry.path()),
                false if entry.file_name() == LOCK => Ok(()),
                false => fs::remove_file(entry.path()),
            };
        }
    }
    let _next_time = fs::remove_dir_all(path);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("hub");
        let cache = Cache::new(&root);
        let first = cache.scratch().unwrap();
        fs::write(first.path().join("config.json"), "{}").unwrap();
        let left = root.join(FOLDER).join("1-0");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        fs::write(left.join("model.safetensors"), "sparse").unwrap();
        // Killed while it removed its folder, in an order that older versions had.
        let half = root.join(FOLDER).join("2-0");
        fs::create_dir(&half).unwrap();
        fs::write(half.join("config.json"), "{}").unwrap();
        let second = cache.scratch().unwrap();
        assert!(!left.exists() && !half.exists(), "their processes are gone");
        assert!(first.path().join("config.json").exists(), "its process is here");
        assert_ne!(first.path(), second.path());
        let paths = [first.path().to_owned(), second.path().to_owned()];
        drop((first, second));
        assert!(!paths.iter().any(|path| path.exists()));
        assert!(!root.exists(), "there was no cache before");
        assert!(cache.list().unwrap().is_empty(), "it is no model");
    }
}

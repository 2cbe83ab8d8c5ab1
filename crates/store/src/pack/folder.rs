//! The unfinished folder of a pack: ours, and with nothing in it that this work did not put there.
//!
//! It lies beside the destination, perhaps where others may write (a shared or temporary folder), so what is there
//! already may be planted: a link that leads our bytes over somebody's file, or files that would end up in the pack.
//! Only a real folder of the same user is gone on with, and either it is empty or its journal is of this work and all
//! that it holds are plain files of the plan. What is written to again is made anew (`fs.rs`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::PackError;
use super::fs::PackFs;
use super::journal::{Finished, Journal};
use super::plan::Plan;
use crate::format::{JOURNAL, layout, sidecar};
use crate::io::platform::{facts_at, has_owner_of, lock_folder};

/// Where a journal is begun; a run that was killed just then leaves it and nothing else.
const UNFINISHED_JOURNAL: &str = "journal.new";

/// A folder that is locked and belongs to this work.
pub(super) struct Claimed {
    /// Held as long as the folder is written to.
    pub(super) _lock: File,
    /// What an earlier run finished.
    pub(super) finished: Vec<Finished>,
}

/// Makes the folder, or takes over what an earlier run of the same work left.
pub(super) fn claim(
    fs: &dyn PackFs,
    partial: &Path,
    identity: &str,
    plan: &Plan,
) -> Result<Claimed, PackError> {
    let at = |action| move |error| PackError::io(partial, action, error);
    fs.create_folder(partial).map_err(at("create"))?;
    if !partial.symlink_metadata().map_err(at("examine"))?.is_dir() {
        return Err(foreign(partial, "is not a folder"));
    }
    let lock = lock_folder(partial).map_err(|error| match error {
        TryLockError::WouldBlock => PackError::Locked { path: partial.to_owned() },
        TryLockError::Error(error) => at("lock")(error),
    })?;
    check_entries(partial, plan)?;
    check_owner(partial)?;
    let journal = partial.join(JOURNAL);
    let finished = match Journal::read(&journal)? {
        Some((found, finished)) if found == identity && finished.len() <= plan.files.len() => {
            whole(finished, partial, plan)
        }
        Some(_) => return Err(PackError::OtherWork { path: partial.to_owned() }),
        None => {
            // A run that was killed before it had a journal has written nothing else.
            let others = entries(partial)?.into_iter().find(|name| name != UNFINISHED_JOURNAL);
            match others {
                Some(name) => {
                    return Err(foreign(partial, format!("holds {name:?} but no journal")));
                }
                None => Vec::new(),
            }
        }
    };
    Ok(Claimed { _lock: lock, finished })
}

fn foreign(path: &Path, problem: impl Into<String>) -> PackError {
    PackError::Foreign { path: path.to_owned(), problem: problem.into() }
}

/// Compares the folder's owner with that of a file made now: some file systems give every file another owner than
/// the process has, or the same one whichever user makes it.
fn check_owner(partial: &Path) -> Result<(), PackError> {
    let path = partial.join(UNFINISHED_JOURNAL);
    let at = |error| PackError::io(&path, "create", error);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(&path).map_err(at)?;
    let same = has_owner_of(partial, &path);
    if same.map_err(|error| PackError::io(partial, "examine", error))? {
        return Ok(());
    }
    fs::remove_file(&path).map_err(at)?;
    Err(foreign(partial, "belongs to another user"))
}

fn entries(folder: &Path) -> Result<Vec<String>, PackError> {
    let examine = |error| PackError::io(folder, "examine", error);
    let names = fs::read_dir(folder).map_err(examine)?.map(|entry| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).map_err(examine)
    });
    names.collect()
}

/// Everything in the folder must be a plain file that this work writes, and not be the same file as another one.
fn check_entries(partial: &Path, plan: &Plan) -> Result<(), PackError> {
    let small = [JOURNAL, UNFINISHED_JOURNAL, layout::CHECKSUMS, layout::MANIFEST];
    let planned: Vec<&str> = plan.files.iter().map(|file| file.name.as_str()).collect();
    let known = |name: &str| {
        planned.contains(&name) || small.contains(&name) || sidecar::FILES.contains(&name)
    };
    let mut names = entries(partial)?;
    if names.iter().any(|name| name == layout::EXPERTS) {
        names.retain(|name| name != layout::EXPERTS);
        let experts = partial.join(layout::EXPERTS);
        if !experts.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Err(foreign(
                partial,
                format!("holds {:?}, which is not a folder", layout::EXPERTS),
            ));
        }
        names.extend(entries(&experts)?.iter().map(|name| format!("{}/{name}", layout::EXPERTS)));
    }
    for name in names {
        let path: PathBuf = partial.join(&name);
        let found = path.symlink_metadata();
        let found = found.map_err(|error| PackError::io(&path, "examine", error))?;
        let links = || facts_at(&path).map(|facts| facts.links);
        let ours = known(&name) && found.is_file();
        if !ours || links().map_err(|error| PackError::io(&path, "examine", error))? != 1 {
            return Err(foreign(partial, format!("holds {name:?}, which pack did not write")));
        }
    }
    Ok(())
}

/// The files, from the first on, that are as the journal says.
fn whole(mut finished: Vec<Finished>, partial: &Path, plan: &Plan) -> Vec<Finished> {
    let whole = plan.files.iter().zip(&finished).take_while(|(file, finished)| {
        let metadata = partial.join(&file.name).symlink_metadata();
        finished.errors.len() == file.matrices.len()
            && metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    });
    let count = whole.count();
    finished.truncate(count);
    finished
}

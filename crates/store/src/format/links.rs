//! Which symbolic links in a model's folder are followed.
//!
//! Two kinds of folders. A snapshot of a hub's cache was downloaded: its links are somebody else's, and lead into its
//! own repository or nowhere. Every other folder was named by the user, who may have linked a model from another disk;
//! but an archive that was unpacked may hold links too, so one that leads out must lead to what its name says. It may
//! lead to a file of the same name, weights also to weights of another name, and both into the `blobs` of a hub.
//! So a chat template is never a private key, and no file of the user becomes text that a model repeats.

use std::path::{Path, PathBuf};

use super::error::FormatError;

/// Endings of files of weights, whose bytes are checked by their headers and never become text.
const WEIGHTS: [&str; 3] = ["bin", "gguf", "safetensors"];
/// The folder of a repository whose folders are its commits.
const SNAPSHOTS: &str = "snapshots";
/// The folder of a repository that holds the files themselves.
const BLOBS: &str = "blobs";
/// Beginning of the name of a repository's folder.
const REPOSITORY: &str = "models--";

/// Refuses the link `link` in `folder` if it may not be followed.
pub(super) fn check(folder: &Path, link: &Path) -> Result<(), FormatError> {
    let follow = |path: &Path| {
        path.canonicalize().map_err(|error| FormatError::io(path, "follow the link", error))
    };
    let (target, folder) = (follow(link)?, follow(folder)?);
    let (allowed, remedy) = match Snapshot::around(&folder) {
        Some(snapshot) => (
            target.starts_with(&snapshot.folder) || target.parent() == Some(&snapshot.blobs()),
            "a link of a download may lead to files of that download alone; download the model again",
        ),
        None => (
            target.parent() == Some(&folder) || is_blob(&target) || is_alike(link, &target),
            "a link may lead to a file of its own name, weights to weights; put the file itself into the folder",
        ),
    };
    match allowed {
        true => Ok(()),
        false => {
            let found = format!("leads out of the folder, to {}", target.display());
            Err(FormatError::invalid(link, "symbolic link", found, remedy))
        }
    }
}

/// A commit of a repository in a hub's cache: `models--OWNER--NAME/snapshots/COMMIT`.
struct Snapshot {
    repository: PathBuf,
    folder: PathBuf,
}

impl Snapshot {
    /// The snapshot that the canonical path `folder` is or lies in, at any depth.
    fn around(folder: &Path) -> Option<Self> {
        folder.ancestors().find_map(|commit| {
            let repository = commit.parent()?.parent()?;
            let is_one = commit.parent()?.ends_with(SNAPSHOTS) && is_repository(repository);
            is_one.then(|| Self { repository: repository.to_owned(), folder: commit.to_owned() })
        })
    }

    fn blobs(&self) -> PathBuf {
        self.repository.join(BLOBS)
    }
}

/// By its name, or by what it holds where it was given another one.
fn is_repository(folder: &Path) -> bool {
    let named = folder.file_name().is_some_and(|it| it.to_string_lossy().starts_with(REPOSITORY));
    named || [SNAPSHOTS, BLOBS].iter().all(|name| folder.join(name).is_dir())
}

/// Whether a canonical path is a file in the `blobs` of some repository: what a snapshot's own links lead to.
fn is_blob(target: &Path) -> bool {
    let blobs = target.parent().filter(|parent| parent.ends_with(BLOBS));
    blobs.and_then(Path::parent).is_some_and(is_repository)
}

/// Whether a target is what the link's name says.
fn is_alike(link: &Path, target: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().into_owned());
    let weights = ending(link).filter(|ending| WEIGHTS.contains(&ending.as_str()));
    link.file_name() == target.file_name() || weights.is_some() && weights == ending(target)
}

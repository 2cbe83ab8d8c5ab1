//! Snapshots on disk: what was computed survives the server.
//!
//! `format` has the files, `folder` knows which there are and what may be added, `shared` is a folder of several
//! servers, `writer` writes to either on a thread of its own. Files are written aside, synced and renamed, so a crash
//! leaves whole files or none. They are the user's conversations: mode 0600 in folders of mode 0700. A file that is
//! damaged is removed and counted, and its prompt computed anew; nothing is used before all checksums are known to be
//! right.

mod folder;
mod format;
pub mod kept;
mod local;
mod shared;
mod slot;
mod tier;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use store::io::platform::{Access, MAKE_PRIVATE, access};
use store::shown;

pub use shared::SharedOptions;
pub(super) use slot::{POINTS_MAX, SlotFault, SlotReader, slot_bytes, slot_domain, write_slot};
pub use tier::DiskStatus;
pub(super) use tier::{Beating, DiskTier, Level};

/// The same error with the path that it is about: the system's words alone do not say which.
pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", shown::path(path)))
}

/// Where a path leads that may be a link.
pub(super) fn followed(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize().map_err(at(path))
}

/// Refuses a folder that others could read or write, and a link; `option` is what its user gave.
pub(super) fn private(path: &Path, option: &str) -> io::Result<()> {
    let reason = if !path.symlink_metadata().map_err(at(path))?.is_dir() {
        "what lies in the place of kept prompts is not a folder: remove it".to_owned()
    } else {
        match access(path).map_err(at(path))? {
            Access::OwnerOnly => return Ok(()),
            Access::OtherOwner => {
                format!("the folder of kept prompts belongs to another user: give another {option}")
            }
            Access::Others => {
                format!("the folder of kept prompts can be read by others: {MAKE_PRIVATE}")
            }
        }
    };
    Err(at(path)(io::Error::new(io::ErrorKind::PermissionDenied, reason)))
}

/// Where snapshots are kept, and how many.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The folder; it is made if it is not there. Every model has a folder of its own in it.
    pub folder: PathBuf,
    /// What must be equal for a snapshot to mean the same: model, arithmetic, precision of the state.
    pub fingerprint: u64,
    /// What `flashmoe cache` calls the model.
    pub model: String,
    /// Most bytes of all files of all models.
    pub bytes_max: u64,
    /// Most bytes written in a second.
    pub bytes_per_second: u64,
    /// Most bytes written in a day, restarts included.
    pub bytes_per_day: u64,
    /// Bytes of the file system that stay free; `None` for a tenth of it, 16 GiB at the most.
    pub bytes_free: Option<u64>,
}

impl DiskOptions {
    /// A folder without other limits than its size.
    pub fn new(folder: PathBuf, fingerprint: u64, bytes_max: u64) -> Self {
        Self {
            folder,
            fingerprint,
            model: String::new(),
            bytes_max,
            bytes_per_second: u64::MAX,
            bytes_per_day: u64::MAX,
            bytes_free: Some(0),
        }
    }

    /// Bytes that stay free on a file system of `whole` bytes.
    fn reserve(&self, whole: u64) -> u64 {
        self.bytes_free.unwrap_or((whole / 10).min(16 << 30))
    }
}

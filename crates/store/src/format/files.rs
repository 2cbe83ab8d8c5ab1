//! Opening untrusted files.
//!
//! A path from a checkpoint folder may be a pipe that never answers, a device, a sparse terabyte or a
//! link to somewhere else. Only regular files are opened, without blocking; small files are read with a
//! limit; names that come out of a file must be plain names; links are followed as `links.rs` says.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::FormatError;
use super::links;
use crate::io::platform::{facts, is_regular, open_without_waiting, special_kind};

/// Longest file name accepted from inside a file: what file systems allow.
const NAME_BYTES_MAX: usize = 255;

/// A regular file opened for reading.
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Size at open, bytes.
    pub(crate) length: u64,
    /// Last modification, nanoseconds since 1970.
    pub(crate) modified_ns: i128,
    /// Last change of anything, nanoseconds since 1970.
    pub(crate) changed_ns: i128,
}

/// Opens a regular file, and nothing else, without ever blocking.
pub(crate) fn open_regular(path: &Path) -> Result<Opened, FormatError> {
    // A look before the open: opening some devices has effects.
    let before = path.metadata().map_err(|error| FormatError::io(path, "open", error))?;
    if !before.is_file() {
        return Err(special(path, &before.file_type()));
    }
    let file = open_without_waiting(path).map_err(|error| FormatError::io(path, "open", error))?;
    // And one after it: the path may have been replaced in between.
    let examined = |error| FormatError::io(path, "examine", error);
    if !is_regular(&file).map_err(examined)? {
        let kind = file.metadata().map_err(examined)?.file_type();
        return Err(special(path, &kind));
    }
    let found = facts(&file).map_err(examined)?;
    let (modified_ns, changed_ns) = (found.modified_ns, found.changed_ns);
    Ok(Opened { file, length: found.length, modified_ns, changed_ns })
}

fn special(path: &Path, kind: &FileType) -> FormatError {
    let found = if kind.is_dir() { "folder" } else { special_kind(kind) };
    FormatError::NotAFile { file: path.to_owned(), found }
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, FormatError> {
    let opened = open_regular(path)?;
    if opened.length > limit {
        return Err(FormatError::limit(path, "file size in bytes", opened.length, limit));
    }
    let mut bytes = Vec::new();
    let read = opened.file.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| FormatError::io(path, "read", error))?;
    Ok(bytes)
}

/// The path of a file of a folder, or `None` when there is none; links are checked.
pub(crate) fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>, FormatError> {
    let path = folder.join(name);
    match path.symlink_metadata() {
        Ok(metadata) => {
            if metadata.is_symlink() {
                links::check(folder, &path)?;
            }
            Ok(Some(path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FormatError::io(&path, "examine", error)),
    }
}

/// The path of a file named by the content of `index`: a plain name in the same folder.
pub(crate) fn find_named(
    folder: &Path,
    index: &Path,
    field: &str,
    name: &str,
) -> Result<PathBuf, FormatError> {
    let plain = !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(['/', '\\', '\0'])
        // A drive or a stream of another file there.
        && !(cfg!(windows) && name.contains(':'))
        && !name.chars().any(char::is_control);
    if !plain {
        return Err(FormatError::invalid(
            index,
            field,
            format!("file name {name:?}"),
            "it must be a plain file name in the checkpoint's folder",
        ));
    }
    find(folder, name)?.ok_or_else(|| {
        FormatError::invalid(
            index,
            field,
            format!("file {name:?} is missing"),
            "download the missing file",
        )
    })
}

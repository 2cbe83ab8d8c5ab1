//! What can be wrong with a checkpoint on disk.
//!
//! Every variant names the file and, where one is to blame, the field with the value found, and ends
//! with what to do about it. `Display` is one line whatever the file contains: names and values come
//! from untrusted files, so control characters are escaped and long values cut.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::shown::{self, message, shown};

/// A checkpoint that cannot be used, and why.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", shown::path(file))]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A pipe, device, socket or folder where a file was expected.
    #[error(
        "{}: is a {found}, not a regular file; checkpoints are read from regular files only",
        shown::path(file)
    )]
    NotAFile {
        /// The path.
        file: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// No known layout was found at the path.
    #[error("{}: {reason}", shown::path(path))]
    NotACheckpoint {
        /// The path given.
        path: PathBuf,
        /// What was looked for, and the remedy.
        reason: String,
    },
    /// A value that contradicts the format or another value.
    #[error("{}: {field}: {found}: {remedy}", shown::path(file))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The field or tensor.
        field: String,
        /// What it says, and what was expected.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A well-formed value that this version does not read.
    #[error("{}: {field}: {found} is not supported; {remedy}", shown::path(file))]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The field or tensor.
        field: String,
        /// What it says.
        found: String,
        /// What is supported.
        remedy: &'static str,
    },
    /// A size or count beyond what any real checkpoint needs.
    #[error(
        "{}: {field}: {found} exceeds the limit of {limit}; the file is damaged or hostile",
        shown::path(file)
    )]
    Limit {
        /// The file.
        file: PathBuf,
        /// The field or tensor.
        field: String,
        /// What it says.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A file that ends before what it announces, or goes on after it.
    #[error(
        "{}: {field}: needs a file of {needed} bytes, found {length}; copy or download it again",
        shown::path(file)
    )]
    Length {
        /// The file.
        file: PathBuf,
        /// The field or tensor.
        field: String,
        /// Bytes that the field asks for.
        needed: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// Bytes that do not have their checksum.
    #[error(
        "{}: {field}: checksum {found:016x} instead of {expected:016x}; the file is damaged, copy it again",
        shown::path(file)
    )]
    Checksum {
        /// The file.
        file: PathBuf,
        /// What the checksum covers.
        field: String,
        /// The checksum recorded.
        expected: u64,
        /// The checksum of the bytes found.
        found: u64,
    },
    /// Weights that lie inputs before outputs, as GPTQ and AWQ write them: a pack holds them as they are used.
    #[error(
        "{}: {field}: lies inputs before outputs (GPTQ, AWQ) and is not read in place; run `flashmoe pack` on the \
         model, which turns it without loss, and use the pack",
        shown::path(file)
    )]
    ToPack {
        /// The file.
        file: PathBuf,
        /// The tensor.
        field: String,
    },
    /// A pack that was never finished.
    #[error(
        "{}: the pack is unfinished; run the same `pack` command again to complete it",
        shown::path(path)
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
}

/// The usual remedy for contradictions inside downloaded files.
pub(crate) const DOWNLOAD_AGAIN: &str = "download or convert the checkpoint again";

impl FormatError {
    pub(crate) fn io(file: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { file: file.to_owned(), action, source }
    }

    pub(crate) fn invalid(
        file: &Path,
        field: impl AsRef<str>,
        found: impl AsRef<str>,
        remedy: &'static str,
    ) -> Self {
        Self::Invalid {
            file: file.to_owned(),
            field: shown(field.as_ref()).to_string(),
            found: message(found.as_ref()).to_string(),
            remedy,
        }
    }

    pub(crate) fn unsupported(
        file: &Path,
        field: impl AsRef<str>,
        found: impl AsRef<str>,
        remedy: &'static str,
    ) -> Self {
        Self::Unsupported {
            file: file.to_owned(),
            field: shown(field.as_ref()).to_string(),
            found: message(found.as_ref()).to_string(),
            remedy,
        }
    }

    pub(crate) fn limit(file: &Path, field: impl AsRef<str>, found: u64, limit: u64) -> Self {
        Self::Limit {
            file: file.to_owned(),
            field: shown(field.as_ref()).to_string(),
            found,
            limit,
        }
    }

    pub(crate) fn length(file: &Path, field: impl AsRef<str>, needed: u64, length: u64) -> Self {
        Self::Length {
            file: file.to_owned(),
            field: shown(field.as_ref()).to_string(),
            needed,
            length,
        }
    }
}

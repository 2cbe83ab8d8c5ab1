//! What makes a file the file that was opened, and what happened to it since.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use super::platform::{Facts, facts, facts_at};

/// What happened to a file since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// Its size differs.
    Resized {
        /// Bytes at open.
        before: u64,
        /// Bytes now.
        now: u64,
    },
    /// It was written to.
    Modified,
    /// Another file, or none, bears its name.
    Replaced,
    /// Its size and times could not be read: what the file system does for now says nothing of the file.
    Unknown,
}

impl FileChange {
    /// Whether something happened to the file, which then stays so.
    pub fn is_known(self) -> bool {
        self != Self::Unknown
    }
}

impl fmt::Display for FileChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resized { before, now } => {
                write!(out, "the file had {before} bytes when it was opened and has {now} now")
            }
            Self::Modified => out.write_str("the file was modified since it was opened"),
            Self::Replaced => out.write_str("the file was replaced or removed since it was opened"),
            Self::Unknown => out.write_str("size and times of the file cannot be read"),
        }
    }
}

/// What a file was at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(Facts);

impl Identity {
    /// That of an open file.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        facts(file).map(Self)
    }

    /// That of the file which bears a name.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        facts_at(path).map(Self)
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.0.length
    }

    /// What happened to the open file since, if anything. One `fstat`, 0.2 us.
    ///
    /// A tool that writes over a file and sets its time of modification back (`cp -p`, `rsync --inplace`) cannot set
    /// the time of change back. That time also moves when a file is linked, unlinked or gets other permissions:
    /// where these differ, they explain it, and the time of modification has to do.
    pub(crate) fn change(&self, file: &File) -> Option<FileChange> {
        let before = &self.0;
        let Ok(now) = facts(file) else { return Some(FileChange::Unknown) };
        if now.length != before.length {
            return Some(FileChange::Resized { before: before.length, now: now.length });
        }
        let explained = (now.links, now.others) != (before.links, before.others);
        let touched = now.changed_ns != before.changed_ns && !explained;
        (now.modified_ns != before.modified_ns || touched).then_some(FileChange::Modified)
    }

    /// True when both are the same file, whatever it holds.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        self.0.place == other.0.place
    }
}

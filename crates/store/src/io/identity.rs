//! What makes a file the file that was opened, and what happened to it since.

use std::fmt;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

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
}

impl fmt::Display for FileChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resized { before, now } => {
                write!(out, "the file had {before} bytes when it was opened and has {now} now")
            }
            Self::Modified => out.write_str("the file was modified since it was opened"),
            Self::Replaced => out.write_str("the file was replaced or removed since it was opened"),
        }
    }
}

/// What a file was at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Links, mode and owners: what else a time of change may be about.
    others: (u64, u32, u32, u32),
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            others: (metadata.nlink(), metadata.mode(), metadata.uid(), metadata.gid()),
        }
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// What happened to the open file since, if anything. One `fstat`, 0.2 us.
    ///
    /// A tool that writes over a file and sets its time of modification back (`cp -p`, `rsync --inplace`) cannot set
    /// the time of change back. That time also moves when a file is linked, unlinked or gets other permissions:
    /// where these differ, they explain it, and the time of modification has to do.
    pub(crate) fn change(&self, file: &File) -> Option<FileChange> {
        let Ok(now) = file.metadata().map(|metadata| Self::of(&metadata)) else {
            return Some(FileChange::Replaced);
        };
        if now.length != self.length {
            return Some(FileChange::Resized { before: self.length, now: now.length });
        }
        let touched = now.changed != self.changed && now.others == self.others;
        (now.modified != self.modified || touched).then_some(FileChange::Modified)
    }

    /// True when both are the same file, whatever it holds.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

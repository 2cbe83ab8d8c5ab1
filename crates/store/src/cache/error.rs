//! Errors of the expert store. They are `Clone` because one failed read may concern several visits.

use std::path::PathBuf;

use thiserror::Error;

use crate::cache::SlotBudget;
use crate::io::FileChange;
use crate::{ExpertId, LayerId};

/// Why a read failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadCause {
    /// The system reported an error.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The file is not what it was when the checkpoint was opened.
    #[error("{0}")]
    Changed(FileChange),
    /// Fewer bytes than the file is known to hold, again and again.
    #[error("the file gave {got} of {expected} bytes although its size is unchanged")]
    Short {
        /// Bytes received.
        got: u64,
        /// Bytes that the file holds there.
        expected: u64,
    },
    /// The read was interrupted or refused for the moment, more often than is tolerated.
    #[error("interrupted {0} times in a row")]
    Interrupted(u16),
    /// The bytes do not have the checksum that was written with them.
    #[error("checksum {found:016x}, expected {expected:016x}: run `flashmoe verify`")]
    Checksum {
        /// The checksum in the pack.
        expected: u64,
        /// The checksum of the bytes read.
        found: u64,
    },
}

impl StoreError {
    /// What happened to a file, if that is the cause.
    pub fn change(&self) -> Option<FileChange> {
        match self {
            Self::Read { cause: ReadCause::Changed(change), .. }
            | Self::Row { cause: ReadCause::Changed(change), .. }
            | Self::Changed { change, .. } => Some(*change),
            _ => None,
        }
    }

    /// Whether bytes could not be had for now, which says nothing of the next read.
    pub fn is_unread(&self) -> bool {
        match self {
            Self::Read { cause, .. } | Self::Row { cause, .. } => match cause {
                ReadCause::System(_) | ReadCause::Short { .. } | ReadCause::Interrupted(_) => true,
                ReadCause::Changed(change) => !change.is_known(),
                ReadCause::Checksum { .. } => false,
            },
            Self::Changed { change, .. } => !change.is_known(),
            _ => false,
        }
    }
}

/// What can go wrong in opening or using an expert store.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// A record could not be read.
    #[error(
        "{}: reading {length} bytes at offset {offset} for layer {} expert {} failed: {cause}",
        path.display(), layer.0, expert.0
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// First byte of the read.
        offset: u64,
        /// Bytes of the read.
        length: u64,
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// What happened.
        cause: ReadCause,
    },
    /// A row of a table could not be read.
    #[error(
        "{}: reading {length} bytes at offset {offset} for row {row} of a table failed: {cause}",
        path.display()
    )]
    Row {
        /// The file.
        path: PathBuf,
        /// First byte of the read.
        offset: u64,
        /// Bytes of the read.
        length: u64,
        /// The first row that they hold.
        row: u64,
        /// What happened.
        cause: ReadCause,
    },
    /// A table has no such row.
    #[error("row {row} of a table of {rows} rows was asked for: report it")]
    NoRow {
        /// The row.
        row: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// A mapped file is not what it was.
    #[error("{}: {change}: what was computed from it is given up", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What happened.
        change: FileChange,
    },
    /// The budget does not hold what one step needs.
    #[error(
        "{asked} for experts do not hold one step, which needs {minimum_slots} slots ({minimum_bytes} bytes)"
    )]
    Budget {
        /// What was given.
        asked: SlotBudget,
        /// Slots needed, over all sizes of records.
        minimum_slots: usize,
        /// Their bytes.
        minimum_bytes: u64,
    },
    /// The arena could not be allocated.
    #[error("allocating {bytes} bytes for expert slots failed: {cause}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// The system's words.
        cause: String,
    },
    /// A file could not be opened, or not in the way asked for.
    #[error("{}: {cause}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: String,
    },
    /// The I/O engine asked for is not available.
    #[error("I/O engine {engine} is not available: {cause}")]
    Engine {
        /// Its name.
        engine: &'static str,
        /// The system's words.
        cause: String,
    },
    /// Reads cannot be checked as asked.
    #[error("reads cannot be checked: {cause}")]
    Unchecked {
        /// Why, and what to do.
        cause: &'static str,
    },
    /// An expert of the checkpoint does not lie within its files.
    #[error("layer {} expert {expert}: its extents do not lie within their files", layer.0)]
    Extents {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: usize,
    },
    /// The caller asked for something that the checkpoint does not have, or in the wrong order.
    #[error("layer {}: {what}", layer.0)]
    Visit {
        /// The layer.
        layer: LayerId,
        /// What is wrong.
        what: &'static str,
    },
    /// The visit was cancelled; its reads that had not begun were withdrawn.
    #[error("the visit was given up")]
    GivenUp,
    /// A panic has cut a change of the bookkeeping short: which record is in which slot is not certain any more.
    #[error(
        "the expert cache stopped after an internal error, which was reported when it happened: start flashmoe again"
    )]
    Interrupted,
    /// Every slot is held by visits that all wait for a slot.
    #[error(
        "layer {}: all {slots} expert slots are held by steps that wait for each other; \
         raise the memory budget or run fewer sequences",
        layer.0
    )]
    Exhausted {
        /// The layer.
        layer: LayerId,
        /// Slots of the pool.
        slots: usize,
    },
}

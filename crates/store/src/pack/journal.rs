//! The packer's journal: which files of an unfinished pack are whole.
//!
//! One line of text for the identity of the work, one per finished file with its checksums; every line
//! ends with its own checksum. A file is named only after it was synced, so a line that is whole tells
//! the truth, and whatever follows the first line that is not is ignored.

use std::path::Path;

use super::fs::{PackFile, PackFs};
use super::{PackError, write_all};
use crate::format::{files, record_checksum};

/// Larger than the lines of any model: 17 bytes for each of 131,072 records and the trunk's parts.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Identity of the work, and the checksums of each finished file.
pub(super) type Contents = (String, Vec<Vec<u64>>);

pub(super) struct Journal {
    file: Box<dyn PackFile>,
}

impl Journal {
    /// The identity and the finished files' checksums, by file number, that a journal holds.
    pub(super) fn read(path: &Path) -> Result<Option<Contents>, PackError> {
        if !path.exists() {
            return Ok(None);
        }
        let bytes = files::read_small(path, JOURNAL_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.split_inclusive('\n').map_while(|line| {
            let (body, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
            (sum == format!("{:016x}", record_checksum(body.as_bytes()))).then_some(body)
        });
        let Some(identity) = lines.next() else { return Ok(None) };
        let sums = |line: &str| -> Option<Vec<u64>> {
            line.split(' ').skip(1).map(|word| u64::from_str_radix(word, 16).ok()).collect()
        };
        let finished = lines.map_while(sums).collect();
        Ok(Some((identity.to_owned(), finished)))
    }

    /// Starts a journal anew with what is known to be finished.
    pub(super) fn create(
        fs: &dyn PackFs,
        path: &Path,
        identity: &str,
        finished: &[Vec<u64>],
    ) -> Result<Self, PackError> {
        // Beside and over: a kill leaves the old one or the new one.
        let beside = path.with_extension("new");
        let file = fs.create(&beside).map_err(|error| PackError::io(&beside, "create", error))?;
        let mut journal = Self { file };
        journal.line(path, identity.to_owned())?;
        for sums in finished {
            journal.finished(path, sums)?;
        }
        fs.rename(&beside, path).map_err(|error| PackError::io(path, "replace", error))?;
        Ok(journal)
    }

    /// Records a file as whole.
    pub(super) fn finished(&mut self, path: &Path, sums: &[u64]) -> Result<(), PackError> {
        let words = sums.iter().map(|sum| format!(" {sum:016x}")).collect::<String>();
        self.line(path, format!("file{words}"))
    }

    fn line(&mut self, path: &Path, body: String) -> Result<(), PackError> {
        let line = format!("{body} {:016x}\n", record_checksum(body.as_bytes()));
        write_all(self.file.as_mut(), line.as_bytes())
            .and_then(|()| self.file.sync())
            .map_err(|error| PackError::io(path, "write", error))
    }
}

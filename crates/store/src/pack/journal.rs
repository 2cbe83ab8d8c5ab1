//! The packer's journal: which files of an unfinished pack are whole.
//!
//! One line of text for the identity of the work, one per finished file with its checksums and the errors
//! of what was encoded anew in it; every line
//! ends with its own checksum. A file is named only after it was synced, so a line that is whole tells
//! the truth, and whatever follows the first line that is not is ignored.

use std::path::Path;

use kernels::quantize::Error;

use super::fs::{PackFile, PackFs};
use super::{PackError, write_all};
use crate::format::{files, record_checksum};

/// Larger than the lines of any model: 17 bytes for each of 131,072 records and the trunk's parts.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// What is known of a file that is whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Finished {
    /// Checksums of its covered runs, in order.
    pub(super) sums: Vec<u64>,
    /// Errors of its matrices that were encoded anew.
    pub(super) errors: Vec<Error>,
}

/// Identity of the work, and each finished file.
pub(super) type Contents = (String, Vec<Finished>);

pub(super) struct Journal {
    file: Box<dyn PackFile>,
}

impl Finished {
    /// `file`, the number of checksums, these, then four words for each error.
    fn text(&self) -> String {
        let errors = self.errors.iter().flat_map(|error| {
            let measures = [error.squared_difference, error.squared_original, error.largest];
            std::iter::once(error.count as u64).chain(measures.map(f64::to_bits))
        });
        let words = std::iter::once(self.sums.len() as u64).chain(self.sums.iter().copied());
        let words = words.chain(errors).map(|word| format!(" {word:016x}"));
        format!("file{}", words.collect::<String>())
    }

    fn parse(line: &str) -> Option<Self> {
        let words = line.split(' ').skip(1).map(|word| u64::from_str_radix(word, 16).ok());
        let words = words.collect::<Option<Vec<u64>>>()?;
        let (&count, words) = words.split_first()?;
        let (sums, errors) = words.split_at_checked(usize::try_from(count).ok()?)?;
        let error = |words: &[u64]| Error {
            count: words[0] as usize,
            squared_difference: f64::from_bits(words[1]),
            squared_original: f64::from_bits(words[2]),
            largest: f64::from_bits(words[3]),
        };
        let whole = errors.len().is_multiple_of(4);
        whole.then(|| Self {
            sums: sums.to_vec(),
            errors: errors.chunks_exact(4).map(error).collect(),
        })
    }
}

/// The identity of the work and the number of finished files that a journal of these bytes holds.
pub fn read_journal(bytes: &[u8]) -> Option<(String, usize)> {
    parse(bytes).map(|(identity, finished)| (identity, finished.len()))
}

fn parse(bytes: &[u8]) -> Option<Contents> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split_inclusive('\n').map_while(|line| {
        let (body, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        (sum == format!("{:016x}", record_checksum(body.as_bytes()))).then_some(body)
    });
    let identity = lines.next()?.to_owned();
    Some((identity, lines.map_while(Finished::parse).collect()))
}

impl Journal {
    /// The identity and the finished files, by file number, that a journal holds.
    pub(super) fn read(path: &Path) -> Result<Option<Contents>, PackError> {
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let bytes = files::read_small(path, JOURNAL_BYTES_MAX)?;
        Ok(parse(&bytes))
    }

    /// Starts a journal anew with what is known to be finished.
    pub(super) fn create(
        fs: &dyn PackFs,
        path: &Path,
        identity: &str,
        finished: &[Finished],
    ) -> Result<Self, PackError> {
        // Beside and over: a kill leaves the old one or the new one.
        let beside = path.with_extension("new");
        let file = fs.create(&beside).map_err(|error| PackError::io(&beside, "create", error))?;
        let mut journal = Self { file };
        journal.line(path, identity.to_owned())?;
        for file in finished {
            journal.finished(path, file)?;
        }
        fs.rename(&beside, path).map_err(|error| PackError::io(path, "replace", error))?;
        Ok(journal)
    }

    /// Records a file as whole.
    pub(super) fn finished(&mut self, path: &Path, file: &Finished) -> Result<(), PackError> {
        self.line(path, file.text())
    }

    fn line(&mut self, path: &Path, body: String) -> Result<(), PackError> {
        let line = format!("{body} {:016x}\n", record_checksum(body.as_bytes()));
        write_all(self.file.as_mut(), line.as_bytes())
            .and_then(|()| self.file.sync())
            .map_err(|error| PackError::io(path, "write", error))
    }
}

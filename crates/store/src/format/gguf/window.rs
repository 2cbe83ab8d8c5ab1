//! Reading the beginning of a GGUF file, no byte of it believed.
//!
//! The window is what a header may take at most. Every read is compared with the file's length and the window's
//! limit before a byte is allocated for it, and every byte read goes into the header's checksum.

use std::fmt::Arguments;
use std::hash::Hasher;
use std::io::{BufReader, Read};
use std::path::Path;

use twox_hash::XxHash3_64;

use crate::format::error::{DOWNLOAD_AGAIN, FormatError};

/// Keys and tensor descriptions of the largest known file take 20 MiB.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Bytes passed over at a time.
const SKIP_BYTES: usize = 16 << 10;

/// A file's beginning, read from front to back.
pub(super) struct Window<'a, R: Read> {
    path: &'a Path,
    reader: BufReader<R>,
    /// Bytes of the file.
    length: u64,
    /// Bytes read so far.
    position: u64,
    hasher: XxHash3_64,
}

impl<'a, R: Read> Window<'a, R> {
    /// A window over the file `path` of `length` bytes; `reader` stands at its start.
    pub(super) fn new(path: &'a Path, reader: R, length: u64) -> Self {
        let reader = BufReader::with_capacity(64 << 10, reader);
        Self { path, reader, length, position: 0, hasher: XxHash3_64::new() }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the file.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Checksum of everything read.
    pub(super) fn checksum(&self) -> u64 {
        self.hasher.finish()
    }

    /// An error about `field`.
    pub(super) fn invalid(&self, field: Arguments<'_>, found: impl AsRef<str>) -> FormatError {
        FormatError::invalid(self.path, field.to_string(), found, DOWNLOAD_AGAIN)
    }

    /// A value beyond what is read.
    pub(super) fn limit(&self, field: Arguments<'_>, found: u64, limit: u64) -> FormatError {
        FormatError::limit(self.path, field.to_string(), found, limit)
    }

    /// Checks that `bytes` more are there, before anything is done about them.
    pub(super) fn need(&self, field: Arguments<'_>, bytes: u64) -> Result<(), FormatError> {
        let end = self.position.saturating_add(bytes);
        if end > self.length {
            return Err(FormatError::length(self.path, field.to_string(), end, self.length));
        }
        if end > HEADER_BYTES_MAX {
            return Err(self.limit(
                format_args!("{field}: end of the header"),
                end,
                HEADER_BYTES_MAX,
            ));
        }
        Ok(())
    }

    fn fill(&mut self, field: Arguments<'_>, buffer: &mut [u8]) -> Result<(), FormatError> {
        self.need(field, buffer.len() as u64)?;
        let read = self.reader.read_exact(buffer);
        read.map_err(|error| FormatError::io(self.path, "read", error))?;
        self.hasher.write(buffer);
        self.position += buffer.len() as u64;
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn take<const N: usize>(
        &mut self,
        field: Arguments<'_>,
    ) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    /// A count or length of 32 bits.
    pub(super) fn u32(&mut self, field: Arguments<'_>) -> Result<u32, FormatError> {
        self.take(field).map(u32::from_le_bytes)
    }

    /// A count or length of 64 bits.
    pub(super) fn u64(&mut self, field: Arguments<'_>) -> Result<u64, FormatError> {
        self.take(field).map(u64::from_le_bytes)
    }

    /// The next `bytes` bytes, which are at most `limit`.
    pub(super) fn bytes(
        &mut self,
        field: Arguments<'_>,
        bytes: u64,
        limit: u64,
    ) -> Result<Vec<u8>, FormatError> {
        if bytes > limit {
            return Err(self.limit(format_args!("{field}: bytes"), bytes, limit));
        }
        self.need(field, bytes)?;
        let mut buffer = vec![0; bytes as usize];
        self.fill(field, &mut buffer)?;
        Ok(buffer)
    }

    /// Passes over `bytes` bytes.
    pub(super) fn skip(&mut self, field: Arguments<'_>, bytes: u64) -> Result<(), FormatError> {
        self.need(field, bytes)?;
        let mut buffer = [0; SKIP_BYTES];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(SKIP_BYTES as u64) as usize;
            self.fill(field, &mut buffer[..part])?;
            left -= part as u64;
        }
        Ok(())
    }
}

//! The file operations of the packer, behind a trait so that tests can fail any one of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use crate::arena::PAGE_BYTES;
use crate::io::platform::{self, FileExt, create_uncached, forget_pages};

/// A file being written from its start or its end.
pub trait PackFile: Send {
    /// Writes some of `bytes`; says how many.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Makes everything written survive a power loss.
    fn sync(&mut self) -> io::Result<()>;
}

/// What the packer does to the file system.
pub trait PackFs: Sync {
    /// Creates a folder; one that exists is fine, a link to one is not.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Creates a file in the place of one that exists; the old one, or what it links to, is not written to.
    fn create(&self, path: &Path) -> io::Result<Box<dyn PackFile>>;
    /// Renames a folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder survive a power loss.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Bytes that can still be written beside `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

/// Whole blocks from aligned memory are written past the page cache; the rest, and everything on file
/// systems that refuse that, through it.
struct RealFile {
    buffered: File,
    direct: Option<File>,
    offset: u64,
}

impl RealFile {
    /// How many of `bytes` can be written directly.
    fn direct_bytes(&self, bytes: &[u8]) -> usize {
        let aligned = self.offset.is_multiple_of(PAGE_BYTES as u64)
            && bytes.as_ptr().addr().is_multiple_of(PAGE_BYTES);
        if aligned { bytes.len() - bytes.len() % PAGE_BYTES } else { 0 }
    }
}

impl PackFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let whole = self.direct_bytes(bytes);
        let direct = self.direct.as_ref().filter(|_| whole > 0);
        let written = match direct.map(|file| file.write_at(&bytes[..whole], self.offset)) {
            // Refused for another alignment than ours: not asked again.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                self.direct = None;
                self.buffered.write_at(bytes, self.offset)?
            }
            Some(result) => result?,
            None => self.buffered.write_at(bytes, self.offset)?,
        };
        self.offset += written as u64;
        Ok(written)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.buffered.sync_all()?;
        // What was written will not be read again: leave the page cache to others.
        forget_pages(&self.buffered, 0, 0);
        Ok(())
    }
}

impl PackFs for RealFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_folder = path.symlink_metadata()?.is_dir();
                if is_folder { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
            }
            other => other,
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn PackFile>> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Exclusive: whatever is put there in between, a link above all, is refused.
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        // The file once more, for direct writes; a file system may refuse them.
        Ok(Box::new(RealFile { buffered: file, direct: create_uncached(path).ok(), offset: 0 }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        platform::sync_folder(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        Ok(platform::space(path)?.free)
    }
}

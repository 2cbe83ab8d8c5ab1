//! The file operations of the packer, behind a trait so that tests can fail any one of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{Advice, fadvise, statvfs};

/// A file being written from its start or its end.
pub trait PackFile: Send {
    /// Writes some of `bytes`; says how many.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Makes everything written survive a power loss.
    fn sync(&mut self) -> io::Result<()>;
}

/// What the packer does to the file system.
pub trait PackFs: Sync {
    /// Creates a folder; one that exists is fine.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Creates a file, emptying one that exists.
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

struct RealFile(File);

impl PackFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()?;
        // What was written will not be read again: leave the page cache to others. Advice only.
        let _ = fadvise(&self.0, 0, None, Advice::DontNeed);
        Ok(())
    }
}

impl PackFs for RealFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn PackFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let statistics = statvfs(path)?;
        Ok(statistics.f_bavail.saturating_mul(statistics.f_frsize))
    }
}

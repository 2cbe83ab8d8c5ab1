//! macOS: `F_NOCACHE` and `F_RDAHEAD` per open file. There is no advice to forget pages that were read buffered, and
//! the system chooses the pages of anonymous memory.
//!
//! Compiled for `aarch64-apple-darwin` in every check, not run.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use memmap2::MmapMut;
use rustix::fs::{Mode, OFlags};

use super::Pages;

pub(super) fn open_uncached(path: &Path) -> io::Result<File> {
    let file = super::unix::open_with(OFlags::empty(), path)?;
    uncached(&file)?;
    Ok(file)
}

pub(super) fn create_uncached(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

/// Records are read whole and once: what the system would read ahead of them is another expert.
fn uncached(file: &File) -> io::Result<()> {
    rustix::fs::fcntl_nocache(file, true)?;
    // SAFETY: the descriptor is open for the whole call, and this command takes an integer.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_RDAHEAD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

pub(super) fn forget_pages(_file: &File, _offset: u64, _length: u64) {}

pub(super) fn want_huge_pages(_memory: &MmapMut) {}

pub(super) fn reserved_pages(_bytes: usize) -> io::Result<Pages> {
    Err(io::ErrorKind::Unsupported.into())
}

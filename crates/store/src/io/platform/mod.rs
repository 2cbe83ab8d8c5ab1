//! What each system calls the same thing: files past the page cache, and advice about pages.
//!
//! One file per system with the same four functions: `open_uncached` and `create_uncached` (files whose reads and
//! writes bypass the page cache), `forget_pages` (pages of a range that need not stay cached) and `want_huge_pages`
//! (anonymous memory). The last two are advice: a system that declines it costs page cache or page-table walks, not
//! correctness.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
mod other;

#[cfg(target_vendor = "apple")]
use apple as system;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
use other as system;

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::MmapMut;

/// Opens a file so that its reads bypass the page cache. On Linux offsets, lengths and memory must then be multiples
/// of the logical block, and a file system may still refuse the first read.
///
/// # Errors
/// The file cannot be opened, or the system has no such reads.
pub fn open_uncached(path: &Path) -> io::Result<File> {
    system::open_uncached(path)
}

/// Opens a file that exists, not through a link, so that its writes bypass the page cache.
///
/// # Errors
/// As for [`open_uncached`].
pub(crate) fn create_uncached(path: &Path) -> io::Result<File> {
    system::create_uncached(path)
}

/// Says that `length` bytes from `offset` on, or all from there where `length` is 0, need not stay cached.
pub(crate) fn forget_pages(file: &File, offset: u64, length: u64) {
    system::forget_pages(file, offset, length);
}

/// Asks that memory be backed by huge pages.
pub(crate) fn want_huge_pages(memory: &MmapMut) {
    system::want_huge_pages(memory);
}

//! Systems without a known way past the page cache: reads are buffered.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::MmapMut;

use super::Pages;

pub(super) fn open_uncached(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn create_uncached(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn forget_pages(_file: &File, _offset: u64, _length: u64) {}

pub(super) fn want_huge_pages(_memory: &MmapMut) {}

pub(super) fn reserved_pages(_bytes: usize) -> io::Result<Pages> {
    Err(io::ErrorKind::Unsupported.into())
}

//! Linux: `O_DIRECT`, `posix_fadvise`, transparent and reserved huge pages.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;

use memmap2::MmapMut;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::mm::MapFlags;

use super::Pages;

pub(super) fn open_uncached(path: &Path) -> io::Result<File> {
    super::unix::open_with(OFlags::DIRECT, path)
}

pub(super) fn create_uncached(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

pub(super) fn forget_pages(file: &File, offset: u64, length: u64) {
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(length), Advice::DontNeed);
}

pub(super) fn want_huge_pages(memory: &MmapMut) {
    let _ = memory.advise(memmap2::Advice::HugePage);
}

pub(super) fn reserved_pages(bytes: usize) -> io::Result<Pages> {
    Pages::special(bytes, MapFlags::HUGETLB | MapFlags::POPULATE)
}

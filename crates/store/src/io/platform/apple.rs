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

use super::{MemoryUse, Pages};

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

/// Pages of the machine's memory by use, as `vm_stat` prints them.
#[allow(
    deprecated,
    reason = "the port's name alone is deprecated there, for a crate that has nothing but it"
)]
pub(super) fn memory_use() -> Option<MemoryUse> {
    let mut count = libc::HOST_VM_INFO64_COUNT;
    let mut pages = std::mem::MaybeUninit::<libc::vm_statistics64>::zeroed();
    // SAFETY: `pages` has room for the `count` words that are asked for, and all words are numbers, so those that
    // an older system leaves out are zeros; the port is this task's own name of the host and lives as long as the task.
    let pages = unsafe {
        let words = pages.as_mut_ptr().cast();
        let host = libc::mach_host_self();
        let refused = libc::host_statistics64(host, libc::HOST_VM_INFO64, words, &mut count);
        if refused != libc::KERN_SUCCESS {
            return None;
        }
        pages.assume_init()
    };
    let page = page_bytes();
    let bytes = |pages: u32| u64::from(pages) * page;
    Some(MemoryUse {
        wired: bytes(pages.wire_count),
        compressor: bytes(pages.compressor_page_count),
        private: bytes(pages.internal_page_count),
        purgeable: bytes(pages.purgeable_count),
        swapped_in: pages.swapins * page,
        swapped_out: pages.swapouts * page,
        compressed: pages.compressions * page,
        decompressed: pages.decompressions * page,
    })
}

pub(super) fn page_bytes() -> u64 {
    // SAFETY: the number is written before a program starts.
    unsafe { libc::vm_page_size as u64 }
}

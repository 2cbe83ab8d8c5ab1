//! What Linux, macOS and other Unix systems have in common.

use std::ffi::c_void;
use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{Advice, Mmap, UncheckedAdvice};
use rustix::fs::{OFlags, statvfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Access, Facts, Links, Space};

pub use std::os::unix::fs::FileExt;

/// The variable that names the user's own folder.
pub const HOME: &str = "HOME";
/// How often a file is opened, so that its reads overlap: one open file serves any number of them.
pub(crate) const HANDLES_PER_FILE: usize = 1;
/// What a failing disk answers.
pub(crate) const READ_ERROR: i32 = Errno::IO.raw_os_error();
/// Errors of a read that another attempt may not meet.
pub(crate) const PASSING_ERRORS: [i32; 2] =
    [Errno::INTR.raw_os_error(), Errno::AGAIN.raw_os_error()];
pub(super) const MAKE_PRIVATE: &str = "chmod 700 it";

impl Facts {
    fn of(metadata: &Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            place: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            links: metadata.nlink(),
            others: [metadata.mode(), metadata.uid(), metadata.gid()],
        }
    }
}

pub(super) fn facts(file: &File) -> io::Result<Facts> {
    Ok(Facts::of(&file.metadata()?))
}

pub(super) fn facts_at(path: &Path) -> io::Result<Facts> {
    Ok(Facts::of(&path.metadata()?))
}

pub(super) fn special_kind(kind: &FileType) -> &'static str {
    if kind.is_fifo() {
        "named pipe"
    } else if kind.is_socket() {
        "socket"
    } else {
        "device"
    }
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let options = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags(options)).open(path)
}

pub(super) fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    open_with(if links == Links::Refused { OFlags::NOFOLLOW } else { OFlags::empty() }, path)
}

/// Opens a regular file for reading with further flags, without waiting at a pipe.
pub(super) fn open_with(further: OFlags, path: &Path) -> io::Result<File> {
    let options = OFlags::NONBLOCK | OFlags::NOCTTY | further;
    let file = OpenOptions::new().read(true).custom_flags(flags(options)).open(path)?;
    if !is_regular(&file)? {
        return Err(super::not_regular());
    }
    // The flag is for the open alone: some reads, those of a ring among them, come back early with it.
    let now = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, now - OFlags::NONBLOCK)?;
    Ok(file)
}

pub(super) fn is_regular(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.is_file())
}

pub(super) fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)
}

pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

pub(super) fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(super) fn access(path: &Path) -> io::Result<Access> {
    let found = path.symlink_metadata()?;
    Ok(if found.uid() != rustix::process::geteuid().as_raw() {
        Access::OtherOwner
    } else if found.mode() & 0o077 != 0 {
        Access::Others
    } else {
        Access::OwnerOnly
    })
}

pub(super) fn has_owner_of(folder: &Path, file: &Path) -> io::Result<bool> {
    Ok(folder.symlink_metadata()?.uid() == file.symlink_metadata()?.uid())
}

pub(super) fn lock_folder(path: &Path) -> Result<File, TryLockError> {
    let only = flags(OFlags::NOFOLLOW | OFlags::DIRECTORY);
    let folder = OpenOptions::new().read(true).custom_flags(only).open(path);
    let folder = folder.map_err(TryLockError::Error)?;
    folder.try_lock()?;
    Ok(folder)
}

pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) fn space(path: &Path) -> io::Result<Space> {
    let found = statvfs(path)?;
    Ok(Space {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        whole: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

pub(super) fn want_mapped(map: &Mmap, offset: usize, length: usize) {
    // Where it is declined, pages arrive by faults.
    let _ = map.advise_range(Advice::WillNeed, offset, length);
}

pub(super) fn forget_mapped(map: &Mmap, offset: usize, length: usize) {
    // SAFETY: the mapping is of a file and never written: pages dropped come back from the file with the same bytes.
    let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, length) };
}

/// Anonymous memory of the system, given back when this is dropped.
pub(crate) struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value, which gives out its address and nothing else.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `bytes` that begin at a multiple of `alignment`; both are multiples of the system's page.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> io::Result<Self> {
        // As much more, so that an aligned run of `bytes` lies inside.
        let wide = bytes + alignment;
        let raw = map(wide, MapFlags::PRIVATE)?.as_ptr() as usize;
        let base = raw.next_multiple_of(alignment);
        let (head, tail) = (base - raw, raw + wide - (base + bytes));
        for (start, length) in [(raw, head), (base + bytes, tail)] {
            if length > 0 {
                // SAFETY: the range lies inside the mapping made above and outside the part kept.
                unsafe { rustix::mm::munmap(start as *mut c_void, length) }?;
            }
        }
        let base = NonNull::new(base as *mut u8).expect("a mapping never starts at zero");
        Ok(Self { base, bytes })
    }

    /// `bytes`, of pages that `more` asks for.
    #[cfg(target_os = "linux")]
    pub(super) fn special(bytes: usize, more: MapFlags) -> io::Result<Self> {
        Ok(Self { base: map(bytes, MapFlags::PRIVATE | more)?, bytes })
    }

    /// First address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

fn map(bytes: usize, flags: MapFlags) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing.
    let raw =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
    Ok(NonNull::new(raw.cast()).expect("a mapping never starts at zero"))
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and its user hands out no pointer that outlives it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping our own range cannot fail");
    }
}

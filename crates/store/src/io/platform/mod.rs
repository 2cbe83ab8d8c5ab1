//! What each system calls the same thing: files and what is known of them, files past the page cache, memory of the
//! system, folders of one user.
//!
//! `unix` and `windows` have what their families share. One more file per Unix system has what it alone can do:
//! `open_uncached` and `create_uncached` (files whose reads and writes bypass the page cache), `forget_pages` (pages
//! of a range that need not stay cached), `want_huge_pages` and `reserved_pages`. What is called advice costs page
//! cache or page-table walks where a system declines it, not correctness.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
mod other;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
use apple as system;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
use other as system;
#[cfg(unix)]
use unix as family;
#[cfg(windows)]
use {windows as system, windows as family};

use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// Reads and writes at a place: the standard library's own trait on Unix, the same methods on Windows.
pub use family::FileExt;
/// The variable that names the user's own folder.
pub use family::HOME;
pub(crate) use family::{HANDLES_PER_FILE, PASSING_ERRORS, Pages, READ_ERROR};
#[cfg(windows)]
pub use windows::{Job, peak_memory};

/// What a system says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The file system, and the file in it.
    pub(crate) place: (u64, u64),
    /// Bytes.
    pub(crate) length: u64,
    /// Last modification, nanoseconds since 1970.
    pub(crate) modified_ns: i128,
    /// Last change of anything, nanoseconds since 1970.
    pub(crate) changed_ns: i128,
    /// Names that the file has.
    pub(crate) links: u64,
    /// Mode or attributes, owners where they are numbers: what else a time of change may be about.
    pub(crate) others: [u32; 3],
}

/// Facts of an open file. One system call, two on Windows.
///
/// # Errors
/// The system does not say.
pub(crate) fn facts(file: &File) -> io::Result<Facts> {
    family::facts(file)
}

/// Facts of the file that a path leads to, through links.
///
/// # Errors
/// There is none, or it cannot be examined.
pub(crate) fn facts_at(path: &Path) -> io::Result<Facts> {
    family::facts_at(path)
}

/// What a file is that is neither a regular one nor a folder.
pub(crate) fn special_kind(kind: &FileType) -> &'static str {
    family::special_kind(kind)
}

/// Opens a file for reading without waiting for the other end of a pipe. What was opened may still be special.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    family::open_without_waiting(path)
}

/// True for a file with contents of its own; devices and pipes have none. `Metadata::is_file` does not tell them apart
/// on Windows.
///
/// # Errors
/// The system does not say.
pub(crate) fn is_regular(file: &File) -> io::Result<bool> {
    family::is_regular(file)
}

/// Whether a link in the place of a file is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// As in folders that are the user's: those of models are full of links.
    Followed,
    /// In folders that are the program's own, where no link belongs.
    Refused,
}

/// Opens a regular file for reading, and nothing else: a pipe or a device in its place is an error at once, where a
/// plain open would wait for the other end. Every data file is opened so.
///
/// # Errors
/// The file cannot be opened. [`io::ErrorKind::InvalidData`] where something else lies in its place.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    family::open_regular(path, links)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`], or more bytes: [`io::ErrorKind::FileTooLarge`].
pub fn read_regular(path: &Path, links: Links, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path, links)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(bytes)
}

/// What is said of a pipe, a device or a folder where a file should be.
fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no regular file lies there")
}

/// Opens a file with `options`, not through a link that lies in its place, and without waiting at a pipe.
///
/// # Errors
/// A link lies there, or the file cannot be opened.
pub fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    family::open_no_link(options, path)
}

/// Says that a file which `options` make is for its owner alone. On Windows the folder decides that
/// ([`create_private_folder`]).
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    family::private(options)
}

/// Makes a folder for its owner alone, and those above it that are missing.
///
/// # Errors
/// It cannot be made.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    family::create_private_folder(path)
}

/// Who may use a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner, who runs this process, and the system's administrators.
    OwnerOnly,
    /// It belongs to another user.
    OtherOwner,
    /// It is ours, and others may read it or write to it.
    Others,
}

/// Says who may use the folder or file at a path; of a link, the link itself.
///
/// # Errors
/// It cannot be examined.
pub fn access(path: &Path) -> io::Result<Access> {
    family::access(path)
}

/// How a user takes the rights of all others to a folder away.
pub const MAKE_PRIVATE: &str = family::MAKE_PRIVATE;

/// Whether a folder has the owner of a file that was made in it just now. Some file systems give every file another
/// owner than the process has, or the same one whichever user makes it.
///
/// # Errors
/// One of them cannot be examined.
pub(crate) fn has_owner_of(folder: &Path, file: &Path) -> io::Result<bool> {
    family::has_owner_of(folder, file)
}

/// Locks a folder until the file is dropped: the folder itself, on Windows a file next to it, because a folder in
/// which a handle is open cannot be renamed there. A link to a folder is refused.
///
/// # Errors
/// `WouldBlock` when another process has the lock.
pub(crate) fn lock_folder(path: &Path) -> Result<File, TryLockError> {
    family::lock_folder(path)
}

/// Makes the names in a folder survive a power loss, where the system leaves that to its programs.
///
/// # Errors
/// The folder cannot be opened or written.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    family::sync_folder(path)
}

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What the user may still write.
    pub free: u64,
    /// All.
    pub whole: u64,
}

/// The room of the file system of a path.
///
/// # Errors
/// The path does not exist or cannot be asked.
pub fn space(path: &Path) -> io::Result<Space> {
    family::space(path)
}

/// Bytes of a machine's memory by use, and what was moved since it started, as the kernel of macOS counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Cannot be moved: the kernel's own, and what GPUs work with.
    pub wired: u64,
    /// RAM that holds compressed pages.
    pub compressor: u64,
    /// Pages of processes that no file has, compressed ones not counted.
    pub private: u64,
    /// Those of them that their process lets go.
    pub purgeable: u64,
    /// Read from the swap files.
    pub swapped_in: u64,
    /// Written to them.
    pub swapped_out: u64,
    /// Compressed, counted before.
    pub compressed: u64,
    /// Decompressed, counted after.
    pub decompressed: u64,
}

/// What the machine's memory is used for; `None` where the system does not say. One system call.
#[cfg(target_vendor = "apple")]
pub fn memory_use() -> Option<MemoryUse> {
    apple::memory_use()
}

/// Bytes of a page of memory.
#[cfg(target_vendor = "apple")]
pub fn page_bytes() -> Option<u64> {
    Some(apple::page_bytes())
}

/// Opens a file so that its reads bypass the page cache. On Linux and Windows offsets, lengths and memory must then be
/// multiples of the logical block, and a file system may still refuse the first read.
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
pub fn forget_pages(file: &File, offset: u64, length: u64) {
    system::forget_pages(file, offset, length);
}

/// Asks that memory be backed by huge pages.
pub(crate) fn want_huge_pages(memory: &MmapMut) {
    system::want_huge_pages(memory);
}

/// Memory of reserved huge pages.
///
/// # Errors
/// There are too few, or the system has none.
pub(crate) fn reserved_pages(bytes: usize) -> io::Result<Pages> {
    system::reserved_pages(bytes)
}

/// Asks that a range of a mapped file be read in.
pub(crate) fn want_mapped(map: &Mmap, offset: usize, length: usize) {
    family::want_mapped(map, offset, length);
}

/// Says that a range of a mapped file is not needed for a while.
pub(crate) fn forget_mapped(map: &Mmap, offset: usize, length: usize) {
    family::forget_mapped(map, offset, length);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_known_by_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| folder.path().join(name));
        fs::write(&one, "seven b").unwrap();
        fs::write(&other, "seven b").unwrap();
        let opened = File::open(&one).unwrap();
        let found = facts(&opened).unwrap();
        assert_eq!(found, facts_at(&one).unwrap());
        assert_eq!((found.length, found.links), (7, 1));
        assert_ne!(found.place, facts_at(&other).unwrap().place);
        let modified = one.metadata().unwrap().modified().unwrap();
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        assert_eq!(found.modified_ns, since.cast_signed());
        fs::hard_link(&one, &link).unwrap();
        let linked = facts(&opened).unwrap();
        assert_eq!((linked.links, linked.place), (2, facts_at(&link).unwrap().place));
        assert!(facts_at(&folder.path().join("none")).is_err());
        assert!(is_regular(&opened).unwrap());
        assert!(has_owner_of(folder.path(), &one).unwrap());
    }

    #[test]
    fn a_null_device_is_no_regular_file() {
        let device = File::open(if cfg!(windows) { "NUL" } else { "/dev/null" }).unwrap();
        assert!(!is_regular(&device).unwrap());
    }

    #[test]
    fn only_regular_files_are_opened_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"bytes").unwrap();
        for links in [Links::Followed, Links::Refused] {
            assert_eq!(read_regular(&path, links, 5).unwrap(), b"bytes");
            let longer = read_regular(&path, links, 4).unwrap_err();
            assert_eq!(longer.kind(), io::ErrorKind::FileTooLarge);
            let folder = open_regular(folder.path(), links);
            assert!(folder.is_err(), "a folder");
        }
        #[cfg(unix)]
        {
            let [pipe, link] = ["pipe", "link"].map(|name| folder.path().join(name));
            // The command: macOS has no `mknodat`.
            let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
            assert!(made.success());
            for links in [Links::Followed, Links::Refused] {
                let refused = open_regular(&pipe, links).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            }
            assert!(open_uncached(&pipe).is_err());
            std::os::unix::fs::symlink(&path, &link).unwrap();
            assert!(open_regular(&link, Links::Refused).is_err());
            let opened = open_regular(&link, Links::Followed).unwrap();
            let flags = rustix::fs::fcntl_getfl(&opened).unwrap();
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "reads may wait for a disk");
        }
    }

    #[test]
    fn bytes_are_read_and_written_at_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = open_no_link(private(&mut options), &path).unwrap();
        file.write_all_at(b"abcdef", 2).unwrap();
        file.write_all_at(b"xy", 0).unwrap();
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 1).unwrap();
        assert_eq!(&bytes, b"yabc");
        assert_eq!(file.read_at(&mut bytes, 6).unwrap(), 2);
        assert_eq!(file.read_at(&mut bytes, 8).unwrap(), 0);
        let short = file.read_exact_at(&mut bytes, 6).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        assert!(open_no_link(&mut options, &path).is_err(), "it is there already");
    }

    #[test]
    fn a_folder_is_locked_once_and_can_be_renamed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let [path, renamed] = ["work", "done"].map(|name| folder.path().join(name));
        fs::create_dir(&path).unwrap();
        let lock = lock_folder(&path).unwrap();
        assert!(matches!(lock_folder(&path), Err(TryLockError::WouldBlock)));
        drop(lock);
        let again = lock_folder(&path).unwrap();
        fs::rename(&path, &renamed).unwrap();
        drop(again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no lock is left");
        assert!(lock_folder(&path).is_err());
        sync_folder(&renamed).unwrap();
    }

    #[test]
    fn a_private_folder_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        create_private_folder(&path).unwrap();
        create_private_folder(&path).unwrap();
        assert_eq!(access(&path).unwrap(), Access::OwnerOnly);
        fs::write(path.join("file"), "is readable").unwrap();
        assert_eq!(fs::read(path.join("file")).unwrap(), b"is readable");
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(create_private_folder(&folder.path().join("file")).is_err());
    }

    #[test]
    fn a_file_system_has_room() {
        let folder = tempfile::tempdir().unwrap();
        let found = space(folder.path()).unwrap();
        assert!(0 < found.free && found.free <= found.whole);
        assert!(space(&folder.path().join("none/at all")).is_err());
    }
}

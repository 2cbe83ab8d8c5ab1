//! Windows: positional reads by the offset of each call, `FILE_FLAG_NO_BUFFERING`, volume and index of a file as its
//! identity, anonymous memory from the page file. There is no advice about pages, and names in a folder need no sync.
//!
//! A file that is opened without `FILE_FLAG_OVERLAPPED`, as the standard library does, has one read at a time: files
//! that experts are read from are opened several times. Run under Wine in every check, not on Windows.

mod job;
mod security;

use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{FileExt as SystemFileExt, MetadataExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{Mmap, MmapMut};
use windows_sys::Win32::Foundation::{
    ERROR_CRC, ERROR_NO_SYSTEM_RESOURCES, ERROR_SHARING_VIOLATION, ERROR_WORKING_SET_QUOTA,
    FILETIME,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_REPARSE_POINT, FILE_BASIC_INFO,
    FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_DELETE_ON_CLOSE, FILE_FLAG_NO_BUFFERING,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_TYPE_DISK, FileBasicInfo, GetDiskFreeSpaceExW,
    GetFileInformationByHandle, GetFileInformationByHandleEx, GetFileType,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use super::{Facts, Links, Space};

pub use job::Job;
pub(super) use security::{access, create_private_folder, has_owner_of};

/// The variable that names the user's own folder.
pub const HOME: &str = "USERPROFILE";
/// How often a file is opened, so that its reads overlap: an open file does one at a time.
pub(crate) const HANDLES_PER_FILE: usize = 8;
/// What a failing disk answers.
pub(crate) const READ_ERROR: i32 = ERROR_CRC.cast_signed();
/// Errors of a read that another attempt may not meet: the system has too few buffers at the moment.
pub(crate) const PASSING_ERRORS: [i32; 2] =
    [ERROR_NO_SYSTEM_RESOURCES.cast_signed(), ERROR_WORKING_SET_QUOTA.cast_signed()];
pub(super) const MAKE_PRIVATE: &str =
    "icacls FOLDER /inheritance:r /grant:r \"%USERNAME%:(OI)(CI)F\"";

/// Reads and writes at a place. They move the file's cursor, which nothing that uses them asks for.
pub trait FileExt {
    /// Reads some bytes from `offset` on; 0 at the end of the file.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes some bytes from `offset` on.
    ///
    /// # Errors
    /// What the system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` when the file has fewer bytes.
    fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    bytes = &mut bytes[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all bytes from `offset` on.
    ///
    /// # Errors
    /// What the system says; `WriteZero` when it takes nothing.
    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl FileExt for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.seek_read(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.seek_write(bytes, offset)
    }
}

/// The system's error after a call that has failed, or nothing.
fn checked(succeeded: i32) -> io::Result<()> {
    if succeeded == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A path as the system's functions take it.
fn wide(path: &Path) -> Vec<u16> {
    path.as_os_str().encode_wide().chain([0]).collect()
}

/// Units of 100 ns since 1601 as nanoseconds since 1970.
fn nanoseconds(units: i64) -> i128 {
    const TO_1970: i128 = 116_444_736_000_000_000;
    (i128::from(units) - TO_1970) * 100
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub(super) fn facts(file: &File) -> io::Result<Facts> {
    let handle = file.as_raw_handle();
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open for the whole call, which writes one structure of this type.
    checked(unsafe { GetFileInformationByHandle(handle, &raw mut found) })?;
    let mut basic = FILE_BASIC_INFO::default();
    let bytes = size_of::<FILE_BASIC_INFO>() as u32;
    // SAFETY: as above; the class asks for this structure, and its size is passed.
    checked(unsafe {
        GetFileInformationByHandleEx(handle, FileBasicInfo, (&raw mut basic).cast(), bytes)
    })?;
    let FILETIME { dwHighDateTime, dwLowDateTime } = found.ftLastWriteTime;
    Ok(Facts {
        place: (
            u64::from(found.dwVolumeSerialNumber),
            joined(found.nFileIndexHigh, found.nFileIndexLow),
        ),
        length: joined(found.nFileSizeHigh, found.nFileSizeLow),
        modified_ns: nanoseconds(joined(dwHighDateTime, dwLowDateTime).cast_signed()),
        changed_ns: nanoseconds(basic.ChangeTime),
        links: u64::from(found.nNumberOfLinks),
        others: [found.dwFileAttributes, 0, 0],
    })
}

pub(super) fn facts_at(path: &Path) -> io::Result<Facts> {
    // No access is asked for, so that files in use and folders can be examined too.
    let mut options = OpenOptions::new();
    let file = options.access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)?;
    facts(&file)
}

pub(super) fn special_kind(_kind: &FileType) -> &'static str {
    "device"
}

pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(super) fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    let file = match links {
        Links::Followed => File::open(path)?,
        Links::Refused => {
            open_with(OpenOptions::new().read(true), FILE_FLAG_OPEN_REPARSE_POINT, path)?
        }
    };
    if is_regular(&file)? { Ok(file) } else { Err(super::not_regular()) }
}

pub(super) fn is_regular(file: &File) -> io::Result<bool> {
    // SAFETY: the handle is open for the whole call, which reads nothing else.
    let kind = unsafe { GetFileType(file.as_raw_handle()) };
    Ok(kind == FILE_TYPE_DISK && file.metadata()?.is_file())
}

pub(super) fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_with(options, FILE_FLAG_OPEN_REPARSE_POINT, path)
}

/// Opens what lies at `path` itself, and refuses a link.
fn open_with(options: &mut OpenOptions, flags: u32, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(flags).open(path)?;
    if file.metadata()?.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        return Err(io::Error::other("a link lies there: remove it"));
    }
    Ok(file)
}

pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(super) fn lock_folder(path: &Path) -> Result<File, TryLockError> {
    let folder = path.symlink_metadata().map_err(TryLockError::Error)?;
    if !folder.is_dir() {
        return Err(TryLockError::Error(io::ErrorKind::NotADirectory.into()));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    // Opened by one process at a time, and gone with it, however that ends.
    let mut options = OpenOptions::new();
    let flags = FILE_FLAG_DELETE_ON_CLOSE | FILE_FLAG_OPEN_REPARSE_POINT;
    options.write(true).create(true).share_mode(0);
    open_with(&mut options, flags, Path::new(&name)).map_err(|error| match error.raw_os_error() {
        Some(number) if number == ERROR_SHARING_VIOLATION.cast_signed() => TryLockError::WouldBlock,
        _ => TryLockError::Error(error),
    })
}

pub(super) fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn space(path: &Path) -> io::Result<Space> {
    // The system asks for a folder.
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let name = wide(folder);
    let mut space = Space { free: 0, whole: 0 };
    let (free, whole) = (&raw mut space.free, &raw mut space.whole);
    // SAFETY: the name ends with a zero and lives until the call returns, which writes two numbers.
    checked(unsafe { GetDiskFreeSpaceExW(name.as_ptr(), free, whole, std::ptr::null_mut()) })?;
    Ok(space)
}

pub(super) fn open_uncached(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

pub(super) fn create_uncached(path: &Path) -> io::Result<File> {
    let flags = FILE_FLAG_NO_BUFFERING | FILE_FLAG_OPEN_REPARSE_POINT;
    open_with(OpenOptions::new().write(true), flags, path)
}

pub(super) fn forget_pages(_file: &File, _offset: u64, _length: u64) {}

pub(super) fn want_huge_pages(_memory: &MmapMut) {}

pub(super) fn want_mapped(_map: &Mmap, _offset: usize, _length: usize) {}

pub(super) fn forget_mapped(_map: &Mmap, _offset: usize, _length: usize) {}

pub(super) fn reserved_pages(_bytes: usize) -> io::Result<Pages> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Most memory that this process had resident at any time, in bytes; 0 where the system does not say.
pub fn peak_memory() -> u64 {
    let mut found = PROCESS_MEMORY_COUNTERS::default();
    let bytes = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the handle of the own process is always valid, and the call writes one structure of the size passed.
    let succeeded = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut found, bytes) };
    if succeeded == 0 { 0 } else { found.PeakWorkingSetSize as u64 }
}

/// Anonymous memory of the system, given back when this is dropped.
pub(crate) struct Pages {
    base: NonNull<u8>,
    _memory: MmapMut,
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
        // Parts cannot be given back; what is never touched takes a place in the page file and no memory.
        let mut memory = MmapMut::map_anon(bytes + alignment)?;
        let first = memory.as_mut_ptr();
        let base = first.wrapping_add(first.align_offset(alignment));
        Ok(Self {
            base: NonNull::new(base).expect("a mapping never starts at zero"),
            _memory: memory,
        })
    }

    /// First address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

//! The open files of a checkpoint: direct where the file system allows it, buffered otherwise.
//!
//! Direct I/O is proven by a real read at open, not by the flag being accepted: file systems refuse
//! it at open (tmpfs), at the first read (some FUSE), or ask for another alignment. Each file keeps
//! what it was at open (device, inode, size, times), so that a failed or short read can tell a
//! disk error from a file that was truncated or replaced under the running process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::{HugePages, PAGE_BYTES, SlotArena, Target};
use crate::format::{CheckpointFile, FileId};
use crate::io::Outcome;
use crate::io::identity::{FileChange, Identity};
use crate::io::platform::{
    FileExt, HANDLES_PER_FILE, Links, forget_pages, open_regular, open_uncached,
};

/// Whether reads bypass the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Direct where a probe read succeeds; what was obtained is reported.
    #[default]
    Auto,
    /// Direct; refused with the cause where it is impossible.
    Always,
    /// Through the page cache.
    Never,
}

struct OpenFile {
    path: PathBuf,
    /// Opened for direct I/O, when that was asked for and works.
    direct: Option<File>,
    buffered: File,
    /// The same once more for reads at the same time, on systems where an open file has one at a time.
    more: Vec<File>,
    /// Which of them takes the next read.
    turn: AtomicUsize,
    identity: Identity,
}

/// The files that hold experts, by [`FileId`].
pub struct FileSet {
    files: Vec<Option<OpenFile>>,
    direct: bool,
    /// Buffered reads drop their pages behind them, so that the page cache does not grow.
    drop_behind: bool,
}

impl FileSet {
    /// Opens the files named by `used`. On failure, the file and the cause.
    ///
    /// `drop_behind`: when reads have to be buffered, ask the kernel to forget the pages at once.
    pub fn open(
        files: &[CheckpointFile],
        used: &[bool],
        direct: DirectIo,
        drop_behind: bool,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut opened = Vec::with_capacity(files.len());
        let mut all_direct = direct != DirectIo::Never;
        for (index, known) in files.iter().enumerate() {
            if !used.get(index).copied().unwrap_or(false) {
                opened.push(None);
                continue;
            }
            let name = |cause| (known.path.clone(), cause);
            let buffered = open_regular(&known.path, Links::Followed).map_err(name)?;
            let identity = Identity::of(&buffered).map_err(name)?;
            if identity.length() != known.length {
                let cause = format!(
                    "the file has {} bytes, {} when the checkpoint was opened",
                    identity.length(),
                    known.length
                );
                return Err(name(io::Error::other(cause)));
            }
            let handle = match direct {
                DirectIo::Never => None,
                DirectIo::Auto => open_direct(&known.path).ok(),
                DirectIo::Always => Some(open_direct(&known.path).map_err(name)?),
            };
            all_direct &= handle.is_some();
            let again = || match handle {
                Some(_) => open_uncached(&known.path),
                None => open_regular(&known.path, Links::Followed),
            };
            let more: io::Result<Vec<File>> = (1..HANDLES_PER_FILE).map(|_| again()).collect();
            let more = more.map_err(name)?;
            if !more.iter().all(|file| Identity::of(file).is_ok_and(|it| it == identity)) {
                return Err(name(io::Error::other(FileChange::Replaced.to_string())));
            }
            opened.push(Some(OpenFile {
                path: known.path.clone(),
                direct: handle,
                buffered,
                more,
                turn: AtomicUsize::new(0),
                identity,
            }));
        }
        Ok(Self { files: opened, direct: all_direct, drop_behind })
    }

    /// True when every file is read directly.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// The path of a file.
    pub fn path(&self, file: FileId) -> &Path {
        &self.get(file).path
    }

    /// The file to read from.
    pub fn handle(&self, file: FileId) -> &File {
        let open = self.get(file);
        open.direct.as_ref().unwrap_or(&open.buffered)
    }

    /// The file opened through the page cache.
    pub fn buffered(&self, file: FileId) -> &File {
        &self.get(file).buffered
    }

    /// Bytes of the file at open.
    pub fn length(&self, file: FileId) -> u64 {
        self.get(file).identity.length()
    }

    /// Number of files, opened or not.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// True when the file was opened.
    pub fn is_open(&self, file: FileId) -> bool {
        self.files.get(file.0 as usize).is_some_and(Option::is_some)
    }

    /// One positional read, blocking.
    pub fn read(&self, file: FileId, offset: u64, target: &mut Target) -> Outcome {
        let open = self.get(file);
        let turn = open.turn.fetch_add(1, Ordering::Relaxed) % (open.more.len() + 1);
        let handle = open.more.get(turn).unwrap_or(self.handle(file));
        match handle.read_at(target.as_mut_slice(), offset) {
            Ok(bytes) => Outcome::Read(bytes),
            Err(error) => Outcome::Failed(error.raw_os_error().unwrap_or(0)),
        }
    }

    /// Called after a read has completed: drops its pages from the page cache where that was asked
    /// for and the read was not direct.
    pub fn after_read(&self, file: FileId, offset: u64, length: u64) {
        let open = self.get(file);
        if self.drop_behind && open.direct.is_none() {
            forget_pages(&open.buffered, offset, length);
        }
    }

    /// Size or times of the open file, where they are no longer what they were at open.
    ///
    /// Asked after every read, because a file that is copied over in place keeps its inode and often its size,
    /// and would otherwise mix old weights with new ones.
    pub fn change_in_place(&self, file: FileId) -> Option<FileChange> {
        let open = self.get(file);
        open.identity.change(&open.buffered)
    }

    /// What changed about a file since it was opened, if anything; also whether another bears its name.
    pub fn change(&self, file: FileId) -> Option<FileChange> {
        if let Some(change) = self.change_in_place(file) {
            return Some(change);
        }
        let open = self.get(file);
        match Identity::at(&open.path) {
            Ok(named) if named.is_same_file(&open.identity) => None,
            Ok(_) => Some(FileChange::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(FileChange::Replaced),
            Err(_) => Some(FileChange::Unknown),
        }
    }

    fn get(&self, file: FileId) -> &OpenFile {
        self.files[file.0 as usize].as_ref().expect("requests name only files that hold experts")
    }
}

/// Opens a file for direct I/O and proves it by reading its first block.
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    let file = open_uncached(path)?;
    let arena = SlotArena::new(1, PAGE_BYTES, HugePages::Never)?;
    let mut block = arena.writer(0).expect("a fresh slot is free").take(PAGE_BYTES);
    file.read_at(block.as_mut_slice(), 0)?;
    Ok(file)
}

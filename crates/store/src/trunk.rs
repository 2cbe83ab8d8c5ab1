//! The dense part of a model in memory: every tensor outside the routed experts.
//!
//! Two ways to get it there, compared in docs/benchmarks.md (load by read against load by mapping):
//! [`LoadMode::Read`] copies the tensors into one huge-page-advised anonymous mapping, each at a 64-byte
//! boundary, in file order, by direct reads of several threads; [`LoadMode::Mmap`] maps the
//! files and hands out their bytes in place, at whatever alignment they have. Offsets were checked
//! against the file sizes when the checkpoint was opened; a file that shrank since is a typed error when
//! read. When mapped it reads as zeros beyond its end, and [`Trunk::check`] says so.
//!
//! Where the layout has checksums (the native pack), loaded tensors are compared with them: the trunk is read once,
//! and a flipped bit in it would change every answer.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapMut;
use thiserror::Error;
use twox_hash::XxHash3_64;

use crate::format::{Checkpoint, Extent, FileId, FormatError, PartSum, record_checksum};
use crate::io::FileChange;
use crate::io::guard::GuardedMap;
use crate::io::identity::Identity;
use crate::io::platform::{
    FileExt, Links, forget_pages, open_regular, open_uncached, want_huge_pages,
};
use crate::record::block_bytes;

/// How the trunk gets into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Copied into anonymous memory.
    #[default]
    Read,
    /// Mapped from the files.
    Mmap,
}

/// A tensor that could not be loaded.
#[derive(Debug, Error)]
pub enum TrunkError {
    /// The operating system refused.
    #[error("{}: reading {length} bytes at {offset}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// First byte wanted.
        offset: u64,
        /// Bytes wanted.
        length: u64,
        /// The cause.
        source: io::Error,
    },
    /// Memory for the tensors could not be had.
    #[error("no memory for {bytes} bytes of dense weights: {source}")]
    Memory {
        /// Bytes wanted.
        bytes: usize,
        /// The cause.
        source: io::Error,
    },
    /// Bytes that do not have their checksum.
    #[error(transparent)]
    Damaged(FormatError),
    /// A mapped file is not what it was when it was mapped.
    #[error(
        "{}: {change}: what was computed from it is given up; start again, with --load read if that file is in use",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// What happened.
        change: FileChange,
    },
    /// The caller stopped the load.
    #[error("loading was stopped")]
    Stopped,
}

/// The bytes of a set of tensors.
pub struct Trunk {
    backing: Backing,
    places: HashMap<Extent, usize>,
    bytes: u64,
}

enum Backing {
    Copied(MmapMut),
    /// One mapping per file of the checkpoint; `None` where no tensor lies.
    Mapped(Vec<Option<MappedFile>>),
}

struct MappedFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    map: GuardedMap,
}

impl MappedFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path, Links::Followed)?;
        let identity = Identity::of(&file)?;
        let map = GuardedMap::new(&file)?;
        Ok(Self { path: path.to_owned(), file, identity, map })
    }

    fn check(&self) -> Result<(), TrunkError> {
        let cut = || self.map.is_cut().then_some(FileChange::Modified);
        match self.identity.change(&self.file).or_else(cut) {
            Some(change) => Err(TrunkError::Changed { path: self.path.clone(), change }),
            None => Ok(()),
        }
    }
}

/// Tensors start at cache lines, so that a kernel's loads do not straddle two.
const ALIGNMENT: usize = 64;
/// Bytes of one read: large enough for full bandwidth, small enough for smooth progress.
const READ_BYTES: usize = 4 << 20;
/// Bytes of zeros that are summed at once.
const ZEROS: usize = 4096;
/// Threads that read: saturates the drives measured (docs/experiments.tsv).
const READERS: usize = 4;
/// Time between two looks at the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Trunk {
    /// Bytes of memory that [`Trunk::load`] will hold for `extents` (mapped: bytes of page cache once
    /// every tensor was touched).
    pub fn required_bytes(extents: &[Extent]) -> u64 {
        extents.iter().map(|e| e.length.next_multiple_of(ALIGNMENT as u64)).sum()
    }

    /// Brings `extents` into memory; `checked` compares them with their checksums, where the layout has some.
    /// `progress` hears the bytes done so far.
    ///
    /// # Errors
    /// The file and range that could not be read or is damaged, or [`TrunkError::Stopped`].
    pub fn load(
        checkpoint: &Checkpoint,
        extents: &[Extent],
        mode: LoadMode,
        checked: bool,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, TrunkError> {
        let mut extents = extents.to_vec();
        extents.sort_by_key(|extent| (extent.file, extent.offset));
        extents.dedup();
        let this = match mode {
            LoadMode::Read => Self::copy(checkpoint, &extents, progress)?,
            LoadMode::Mmap => Self::map(checkpoint, &extents)?,
        };
        if checked {
            this.compare_sums(checkpoint, &extents)?;
        }
        Ok(this)
    }

    /// Compares the loaded bytes with their checksums, by several threads: a tenth of the time that a fast drive
    /// takes to bring them (docs/experiments.tsv).
    fn compare_sums(&self, checkpoint: &Checkpoint, extents: &[Extent]) -> Result<(), TrunkError> {
        let sums =
            extents.iter().filter_map(|&extent| Some((extent, checkpoint.part_sum(extent)?)));
        let queue = Mutex::new(sums.collect::<Vec<_>>().into_iter());
        let compare_some = || {
            loop {
                let next = queue.lock().map_or(None, |mut queue| queue.next());
                let Some((extent, PartSum { name, padding, expected })) = next else {
                    return self.check();
                };
                let found = padded_checksum(self.bytes(extent), padding);
                if found != expected {
                    // A file that was cut meanwhile is not a damaged one.
                    self.check()?;
                    let file = checkpoint.files[extent.file.0 as usize].path.clone();
                    let field = name.to_owned();
                    let error = FormatError::Checksum { file, field, expected, found };
                    return Err(TrunkError::Damaged(error));
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(compare_some)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or(Err(TrunkError::Stopped))
            };
            threads.into_iter().try_for_each(join)
        })
    }

    /// Says whether mapped files are what they were: to be asked after computing from the bytes and before the
    /// result is handed on. Copied bytes cannot change.
    ///
    /// # Errors
    /// The file that was cut or written to.
    pub fn check(&self) -> Result<(), TrunkError> {
        match &self.backing {
            Backing::Copied(_) => Ok(()),
            Backing::Mapped(maps) => maps.iter().flatten().try_for_each(MappedFile::check),
        }
    }

    fn copy(
        checkpoint: &Checkpoint,
        extents: &[Extent],
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, TrunkError> {
        let bytes = Self::required_bytes(extents);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
        let memory = |source| TrunkError::Memory { bytes: length, source };
        let mut arena = MmapMut::map_anon(length).map_err(memory)?;
        want_huge_pages(&arena);
        let mut places = HashMap::new();
        let (mut rest, mut start) = (&mut arena[..], 0);
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        for extent in extents {
            places.insert(*extent, start);
            let padded = (extent.length as usize).next_multiple_of(ALIGNMENT);
            let (tensor, after) = rest.split_at_mut(padded);
            let tensor = &mut tensor[..extent.length as usize];
            let mut offset = extent.offset;
            for target in tensor.chunks_mut(READ_BYTES) {
                let length = target.len() as u64;
                pieces.push(Piece { file: extent.file, offset, target });
                offset += length;
            }
            (rest, start) = (after, start + padded);
        }
        read_pieces(checkpoint, pieces, progress)?;
        Ok(Self { backing: Backing::Copied(arena), places, bytes })
    }

    fn map(checkpoint: &Checkpoint, extents: &[Extent]) -> Result<Self, TrunkError> {
        let mut maps: Vec<Option<MappedFile>> = checkpoint.files.iter().map(|_| None).collect();
        let (mut places, mut bytes) = (HashMap::new(), 0);
        for extent in extents {
            let index = extent.file.0 as usize;
            let path = &checkpoint.files[index].path;
            let failed = |source| TrunkError::Read {
                path: path.clone(),
                offset: extent.offset,
                length: extent.length,
                source,
            };
            let mapped = match maps[index].take() {
                Some(mapped) => mapped,
                None => MappedFile::open(path).map_err(failed)?,
            };
            if extent.offset.saturating_add(extent.length) > mapped.map.map().len() as u64 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            places.insert(*extent, extent.offset as usize);
            bytes += extent.length;
            maps[index] = Some(mapped);
        }
        Ok(Self { backing: Backing::Mapped(maps), places, bytes })
    }

    /// The bytes of a loaded extent.
    ///
    /// # Panics
    /// When the extent was not among those loaded: a programming error.
    pub fn bytes(&self, extent: Extent) -> &[u8] {
        let start = *self.places.get(&extent).expect("the extent was loaded");
        let range = start..start + extent.length as usize;
        match &self.backing {
            Backing::Copied(arena) => &arena[range],
            Backing::Mapped(maps) => {
                let file = maps[extent.file.0 as usize].as_ref().expect("mapped when placed");
                &file.map.map()[range]
            }
        }
    }

    /// Bytes held.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes
    }
}

/// The checksum of bytes and the zeros behind them.
fn padded_checksum(bytes: &[u8], padding: u64) -> u64 {
    if padding == 0 {
        // Most bytes lie in parts of whole pages, and in one go they are summed faster.
        return record_checksum(bytes);
    }
    let zeros = [0; ZEROS];
    let mut hasher = XxHash3_64::new();
    hasher.write(bytes);
    let mut left = padding as usize;
    while left > 0 {
        let part = left.min(ZEROS);
        hasher.write(&zeros[..part]);
        left -= part;
    }
    hasher.finish()
}

/// Bytes to be read to where they belong.
struct Piece<'a> {
    file: FileId,
    offset: u64,
    target: &'a mut [u8],
}

/// Reads all pieces with [`READERS`] threads. One buffered reader gets a quarter of a fast drive's
/// bandwidth; direct reads of several threads get all of it and leave nothing in the page cache.
fn read_pieces(
    checkpoint: &Checkpoint,
    pieces: Vec<Piece<'_>>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), TrunkError> {
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let queue = Mutex::new(pieces.into_iter());
    let read_some = || {
        let mut reader = Reader::new(checkpoint);
        while !stop.load(Ordering::Relaxed) {
            let next = queue.lock().map_or(None, |mut queue| queue.next());
            let Some(piece) = next else { break };
            let length = piece.target.len() as u64;
            reader.read(piece).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            done.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(read_some)).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(POLL_INTERVAL);
            if progress(done.load(Ordering::Relaxed)).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(TrunkError::Stopped)))
    })?;
    match stop.load(Ordering::Relaxed) {
        true => Err(TrunkError::Stopped),
        false => Ok(()),
    }
}

/// Block of a direct read.
fn block() -> usize {
    block_bytes() as usize
}

/// One thread's open file and aligned buffer.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    file: Option<(FileId, File, bool)>,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        // Room for the piece, the block it begins in, the block it ends in, and the buffer's own alignment.
        Self { checkpoint, file: None, buffer: vec![0; READ_BYTES + 3 * block()] }
    }

    fn read(&mut self, piece: Piece<'_>) -> Result<(), TrunkError> {
        let path = &self.checkpoint.files[piece.file.0 as usize].path;
        let length = piece.target.len();
        let failed = |source| TrunkError::Read {
            path: path.clone(),
            offset: piece.offset,
            length: length as u64,
            source,
        };
        if self.file.as_ref().is_none_or(|(id, ..)| *id != piece.file) {
            let opened = match open_uncached(path) {
                Ok(file) => (piece.file, file, true),
                // A file system without direct reads.
                Err(_) => (piece.file, open_regular(path, Links::Followed).map_err(failed)?, false),
            };
            self.file = Some(opened);
        }
        let (_, file, direct) = self.file.as_ref().expect("opened above");
        if *direct {
            let skip = (piece.offset % block() as u64) as usize;
            let start = self.buffer.as_ptr().align_offset(block());
            let wanted = (skip + length).next_multiple_of(block());
            let buffer = &mut self.buffer[start..start + wanted];
            if fill(file, buffer, piece.offset - skip as u64, skip + length).is_ok() {
                piece.target.copy_from_slice(&buffer[skip..skip + length]);
                return Ok(());
            }
            // Some file systems take the flag and refuse the read; the buffered one tells the real cause.
            let file = open_regular(path, Links::Followed).map_err(failed)?;
            self.file = Some((piece.file, file, false));
        }
        let (_, file, _) = self.file.as_ref().expect("opened above");
        file.read_exact_at(piece.target, piece.offset).map_err(failed)?;
        // The budget counts the page cache: what was copied need not stay there.
        forget_pages(file, piece.offset, length as u64);
        Ok(())
    }
}

/// Reads until at least `needed` bytes of the buffer are filled; the last block of a file may be short.
fn fill(file: &File, buffer: &mut [u8], offset: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        // A direct read continues at a block boundary.
        let from = done / block() * block();
        match file.read_at(&mut buffer[from..], offset + from as u64) {
            Ok(count) if from + count > done => done = from + count,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

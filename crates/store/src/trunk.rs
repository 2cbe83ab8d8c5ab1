//! The dense part of a model in memory: every tensor outside the routed experts.
//!
//! Two ways to get it there, compared in docs/benchmarks.md (load by read against load by mapping):
//! [`LoadMode::Read`] copies the tensors into one huge-page-advised anonymous mapping, each at a 64-byte
//! boundary, in file order, and drops what the copy left in the page cache; [`LoadMode::Mmap`] maps the
//! files and hands out their bytes in place, at whatever alignment they have. Offsets were checked
//! against the file sizes when the checkpoint was opened; a file that shrank since is a typed error when
//! read, and when mapped the residual risk that mapping has (a fault on access).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memmap2::{Advice, Mmap, MmapMut};
use thiserror::Error;

use crate::format::{Checkpoint, Extent};

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
    Mapped(Vec<Option<Mmap>>),
}

/// Tensors start at cache lines, so that a kernel's loads do not straddle two.
const ALIGNMENT: usize = 64;
/// Bytes of one read: large enough for full bandwidth, small enough for smooth progress.
const READ_BYTES: usize = 8 << 20;

impl Trunk {
    /// Bytes of memory that [`Trunk::load`] will hold for `extents` (mapped: bytes of page cache once
    /// every tensor was touched).
    pub fn required_bytes(extents: &[Extent]) -> u64 {
        extents.iter().map(|e| e.length.next_multiple_of(ALIGNMENT as u64)).sum()
    }

    /// Brings `extents` into memory. `progress` hears the bytes done so far.
    ///
    /// # Errors
    /// The file and range that could not be read, or [`TrunkError::Stopped`].
    pub fn load(
        checkpoint: &Checkpoint,
        extents: &[Extent],
        mode: LoadMode,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, TrunkError> {
        let mut extents = extents.to_vec();
        extents.sort_by_key(|extent| (extent.file, extent.offset));
        extents.dedup();
        match mode {
            LoadMode::Read => Self::copy(checkpoint, &extents, progress),
            LoadMode::Mmap => Self::map(checkpoint, &extents),
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
        // Best effort: where huge pages are denied the copy only costs more page-table walks.
        let _ = arena.advise(Advice::HugePage);
        let (mut places, mut next, mut done) = (HashMap::new(), 0, 0);
        let mut file: Option<(crate::format::FileId, File)> = None;
        for extent in extents {
            let path = &checkpoint.files[extent.file.0 as usize].path;
            let failed = |offset: u64, length: usize, source| TrunkError::Read {
                path: path.clone(),
                offset,
                length: length as u64,
                source,
            };
            if file.as_ref().is_none_or(|(id, _)| *id != extent.file) {
                let opened = File::open(path).map_err(|e| failed(extent.offset, 0, e))?;
                file = Some((extent.file, opened));
            }
            let (_, file) = file.as_ref().expect("opened above");
            places.insert(*extent, next);
            let length = extent.length as usize;
            let mut offset = extent.offset;
            for chunk in arena[next..next + length].chunks_mut(READ_BYTES) {
                file.read_exact_at(chunk, offset).map_err(|e| failed(offset, chunk.len(), e))?;
                drop_cached(file, offset, chunk.len() as u64);
                offset += chunk.len() as u64;
                done += chunk.len() as u64;
                if progress(done).is_break() {
                    return Err(TrunkError::Stopped);
                }
            }
            next += length.next_multiple_of(ALIGNMENT);
        }
        Ok(Self { backing: Backing::Copied(arena), places, bytes })
    }

    fn map(checkpoint: &Checkpoint, extents: &[Extent]) -> Result<Self, TrunkError> {
        let mut maps: Vec<Option<Mmap>> = checkpoint.files.iter().map(|_| None).collect();
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
                None => {
                    let file = File::open(path).map_err(failed)?;
                    // SAFETY: the mapping is read-only and private to this struct. Another process
                    // that changes the file would change weights or fault us; users are told so
                    // (docs/formats.md), and every other mode copies.
                    unsafe { Mmap::map(&file) }.map_err(failed)?
                }
            };
            if extent.offset.saturating_add(extent.length) > mapped.len() as u64 {
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
                &maps[extent.file.0 as usize].as_ref().expect("mapped when placed")[range]
            }
        }
    }

    /// Bytes held.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes
    }
}

/// Tells the kernel that the copied range need not stay in the page cache: the budget counts it.
fn drop_cached(file: &File, offset: u64, length: u64) {
    // Advice only: a file system that ignores it costs page cache, not correctness.
    let _ = rustix::fs::fadvise(
        file,
        offset,
        std::num::NonZeroU64::new(length),
        rustix::fs::Advice::DontNeed,
    );
}

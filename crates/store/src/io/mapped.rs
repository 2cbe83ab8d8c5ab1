//! Checkpoint files mapped into memory: for comparison, and for machines with unified memory.
//!
//! A mapping reads whatever the file holds at the moment of the access. If the file is truncated by
//! somebody else, touching the lost pages raises SIGBUS, which no library can turn into an error: so the
//! size and time of change are checked at every visit ([`MappedFiles::check`]), which leaves the time between
//! check and use as a known risk of this mode. Files replaced by renaming are no danger: the mapping keeps
//! the old one. Writing into a mapped file changes weights under the engine: the next visit refuses it.

use std::fs::File;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::{FileChange, FileSet};
use crate::format::{Extent, FileId};

/// Maps of the files that hold experts, by [`FileId`].
pub struct MappedFiles {
    maps: Vec<Option<Mmap>>,
}

impl MappedFiles {
    /// Maps every open file of the set. On failure, the file and the cause.
    pub fn new(files: &FileSet) -> Result<Self, (FileId, std::io::Error)> {
        let mut maps = Vec::with_capacity(files.count());
        for index in 0..files.count() {
            let file = FileId(index as u32);
            let map = files.is_open(file).then(|| map(files.buffered(file)));
            maps.push(map.transpose().map_err(|cause| (file, cause))?);
        }
        Ok(Self { maps })
    }

    /// The bytes of an extent; empty when it does not lie in a mapped file, which extents that were
    /// checked at open never do.
    pub fn bytes(&self, extent: Extent) -> &[u8] {
        let map = self.maps.get(extent.file.0 as usize).and_then(Option::as_ref);
        let range = extent.offset as usize..(extent.offset + extent.length) as usize;
        map.and_then(|map| map.get(range)).unwrap_or_default()
    }

    /// Finds files that were written to or have another size since they were mapped.
    pub fn check(&self, files: &FileSet, file: FileId) -> Result<(), FileChange> {
        files.change_in_place(file).map_or(Ok(()), Err)
    }

    /// Asks the kernel to read an extent in.
    pub fn advise_needed(&self, extent: Extent) {
        if let Some(Some(map)) = self.maps.get(extent.file.0 as usize) {
            let (offset, length) = (extent.offset as usize, extent.length as usize);
            // Advice: where it is declined, pages arrive by faults.
            let _ = map.advise_range(Advice::WillNeed, offset, length);
        }
    }

    /// Tells the kernel that an extent is not needed for a while.
    pub fn advise_done(&self, extent: Extent) {
        if let Some(Some(map)) = self.maps.get(extent.file.0 as usize) {
            let (offset, length) = (extent.offset as usize, extent.length as usize);
            // SAFETY: the mapping is of a file and never written: pages dropped come back from the
            // file with the same bytes.
            let _ =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, length) };
        }
    }
}

fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the bytes are plain data without validity rules; what happens when others write to
    // or truncate the file is said in the module's documentation.
    unsafe { Mmap::map(file) }
}

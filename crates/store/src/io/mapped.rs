//! Checkpoint files mapped into memory: for comparison, and for machines with unified memory.
//!
//! A mapping reads whatever the file holds at the moment of the access. A file that is truncated by somebody else
//! reads as zeros beyond its new end ([`GuardedMap`]); a file that is written to changes weights under the engine.
//! So size and times are compared at every visit ([`MappedFiles::check`]), and again after its experts were used,
//! before a result is handed on ([`MappedFiles::check_all`]). Files replaced by renaming are no danger: the mapping
//! keeps the old one.

use super::guard::GuardedMap;
use super::platform::{forget_mapped, want_mapped};
use super::{FileChange, FileSet};
use crate::format::{Extent, FileId};

/// Maps of the files that hold experts, by [`FileId`].
pub struct MappedFiles {
    maps: Vec<Option<GuardedMap>>,
}

impl MappedFiles {
    /// Maps every open file of the set. On failure, the file and the cause.
    pub fn new(files: &FileSet) -> Result<Self, (FileId, std::io::Error)> {
        let mut maps = Vec::with_capacity(files.count());
        for index in 0..files.count() {
            let file = FileId(index as u32);
            let map = files.is_open(file).then(|| GuardedMap::new(files.buffered(file)));
            maps.push(map.transpose().map_err(|cause| (file, cause))?);
        }
        Ok(Self { maps })
    }

    /// The bytes of an extent; empty when it does not lie in a mapped file, which extents that were
    /// checked at open never do.
    pub fn bytes(&self, extent: Extent) -> &[u8] {
        let map = self.maps.get(extent.file.0 as usize).and_then(Option::as_ref);
        let range = extent.offset as usize..(extent.offset + extent.length) as usize;
        map.and_then(|guarded| guarded.map().get(range)).unwrap_or_default()
    }

    /// Says whether a file was written to or has another size since it was mapped.
    pub fn check(&self, files: &FileSet, file: FileId) -> Result<(), FileChange> {
        files.change_in_place(file).map_or(Ok(()), Err)
    }

    /// Finds the first file that was cut while it was used, was written to, or has another size.
    pub fn check_all(&self, files: &FileSet) -> Result<(), (FileId, FileChange)> {
        for (index, map) in self.maps.iter().enumerate() {
            let Some(guarded) = map else { continue };
            let file = FileId(index as u32);
            if let Some(change) = files.change_in_place(file) {
                return Err((file, change));
            }
            // Cut, and then lengthened again with its times set back.
            if guarded.is_cut() {
                return Err((file, FileChange::Modified));
            }
        }
        Ok(())
    }

    /// Asks the kernel to read an extent in.
    pub fn advise_needed(&self, extent: Extent) {
        if let Some(Some(map)) = self.maps.get(extent.file.0 as usize) {
            let (offset, length) = (extent.offset as usize, extent.length as usize);
            want_mapped(map.map(), offset, length);
        }
    }

    /// Tells the kernel that an extent is not needed for a while.
    pub fn advise_done(&self, extent: Extent) {
        if let Some(Some(map)) = self.maps.get(extent.file.0 as usize) {
            let (offset, length) = (extent.offset as usize, extent.length as usize);
            forget_mapped(map.map(), offset, length);
        }
    }
}

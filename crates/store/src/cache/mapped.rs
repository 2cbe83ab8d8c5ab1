//! The `mmap` mode: records are where the file is mapped, and the system decides what stays.
//!
//! With residency advice the records of a visit are announced when it begins, and what was used
//! longest ago is given up behind the front, so that no more than the budget's records are claimed at a
//! time. Nothing is a hit or a miss here: the store cannot know, and does not pretend to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::{ReadCause, StoreError};
use crate::format::{Checkpoint, ExpertExtents};
use crate::io::{FileSet, MappedFiles};
use crate::record::{PIECES, pieces};
use crate::{ExpertId, LayerId};

/// Mapped experts of a checkpoint.
pub(super) struct MappedExperts {
    checkpoint: Arc<Checkpoint>,
    files: Arc<FileSet>,
    maps: MappedFiles,
    /// Records announced and not given up yet, oldest first; `None` without advice.
    trail: Option<Mutex<Trail>>,
}

struct Trail {
    records: VecDeque<(LayerId, ExpertId)>,
    limit: usize,
}

impl MappedExperts {
    /// Maps the files. `advised`: how many records may stay claimed, or `None` for no advice.
    pub(super) fn new(
        checkpoint: Arc<Checkpoint>,
        files: Arc<FileSet>,
        advised: Option<usize>,
    ) -> Result<Self, StoreError> {
        let maps = MappedFiles::new(&files).map_err(|(file, cause)| StoreError::Open {
            path: files.path(file).to_path_buf(),
            cause: cause.to_string(),
        })?;
        let trail = advised
            .map(|limit| Mutex::new(Trail { records: VecDeque::with_capacity(limit + 1), limit }));
        Ok(Self { checkpoint, files, maps, trail })
    }

    /// Checks that the files of these experts still have their size, and announces the experts.
    pub(super) fn begin(&self, layer: LayerId, experts: &[ExpertId]) -> Result<(), StoreError> {
        let mut checked = None;
        for &expert in experts {
            for extent in self.extents(layer, expert).iter().flat_map(|e| pieces(e)).flatten() {
                if checked == Some(extent.file) {
                    continue;
                }
                checked = Some(extent.file);
                self.maps.check(&self.files, extent.file).map_err(|change| StoreError::Read {
                    path: self.files.path(extent.file).to_path_buf(),
                    offset: extent.offset,
                    length: extent.length,
                    layer,
                    expert,
                    cause: ReadCause::Changed(change),
                })?;
            }
        }
        if self.trail.is_some() {
            for &expert in experts {
                self.for_each_piece(layer, expert, |extent| self.maps.advise_needed(extent));
            }
        }
        Ok(())
    }

    /// Finds a file that was cut while it was used, or written to.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        self.maps.check_all(&self.files).map_err(|(file, change)| {
            let path = self.files.path(file).to_path_buf();
            StoreError::Changed { path, change }
        })
    }

    /// The pieces of an expert.
    pub(super) fn bytes(&self, layer: LayerId, expert: ExpertId) -> [&[u8]; PIECES] {
        match self.extents(layer, expert) {
            Some(extents) => pieces(extents).map(|piece| match piece {
                Some(extent) => self.maps.bytes(extent),
                None => &[],
            }),
            None => [&[]; PIECES],
        }
    }

    /// A visit is over: what lies too far behind the front is given up.
    pub(super) fn end(&self, layer: LayerId, experts: &[ExpertId]) {
        let Some(trail) = &self.trail else { return };
        // A list without invariants: a record that a panic has lost from it only stays in the page cache.
        let mut trail = trail.lock().unwrap_or_else(PoisonError::into_inner);
        for &expert in experts {
            trail.records.push_back((layer, expert));
            if trail.records.len() > trail.limit
                && let Some((layer, expert)) = trail.records.pop_front()
            {
                self.for_each_piece(layer, expert, |extent| self.maps.advise_done(extent));
            }
        }
    }

    fn extents(&self, layer: LayerId, expert: ExpertId) -> Option<&ExpertExtents> {
        self.checkpoint.experts.get(layer.index())?.as_ref()?.experts.get(expert.index())
    }

    fn for_each_piece(
        &self,
        layer: LayerId,
        expert: ExpertId,
        act: impl Fn(crate::format::Extent),
    ) {
        if let Some(extents) = self.extents(layer, expert) {
            pieces(extents).into_iter().flatten().for_each(act);
        }
    }
}

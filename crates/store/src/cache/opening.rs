//! What opening a store decides before the first read, and its report: slots, queue depth, files.

use std::sync::Arc;

use crate::SlotId;
use crate::arena::SlotArena;
use crate::cache::PolicyKind;
use crate::cache::error::StoreError;
use crate::cache::layout::StorePlan;
use crate::cache::options::{StorageMode, StoreOptions};
use crate::format::Checkpoint;

/// Reads in flight for megabyte records: more only multiplies latency (docs/experiments.tsv).
const QUEUE_DEPTH: usize = 4;
/// Reads in flight for records that lie in several pieces.
const QUEUE_DEPTH_PIECES: usize = 12;

/// How a store was opened: what was asked for and what was obtained.
#[derive(Clone, Debug)]
pub struct StoreReport {
    /// Where experts come from.
    pub mode: StorageMode,
    /// The engine that reads.
    pub engine: &'static str,
    /// Reads in flight.
    pub queue_depth: usize,
    /// True when reads bypass the page cache.
    pub direct: bool,
    /// What is evicted.
    pub policy: PolicyKind,
    /// Slots.
    pub slots: usize,
    /// Experts of the checkpoint.
    pub experts: usize,
    /// Bytes of the slots.
    pub slot_bytes: u64,
    /// Bytes of them on huge pages, where the system tells.
    pub huge_page_bytes: Option<u64>,
}

/// Checksums can only be compared where there are some, and of what is read.
pub(super) fn refuse_unchecked(
    checkpoint: &Checkpoint,
    mode: StorageMode,
) -> Result<(), StoreError> {
    if checkpoint.pack.is_none() {
        return Err(StoreError::Unchecked {
            cause: "only native packs carry checksums; make one with `flashmoe pack`",
        });
    }
    if mode == StorageMode::Mmap {
        return Err(StoreError::Unchecked {
            cause: "mapped experts are not read; choose another storage mode",
        });
    }
    Ok(())
}

/// Allocates the slots of every class: the arenas, and the first slot of each.
pub(super) fn allocate(
    plan: &StorePlan,
    options: &StoreOptions,
) -> Result<(Vec<Arc<SlotArena>>, Vec<SlotId>), StoreError> {
    let mut arenas = Vec::with_capacity(plan.classes.len());
    let mut first_slots = Vec::with_capacity(plan.classes.len());
    let mut slots = 0;
    for class in plan.classes.iter().filter(|class| class.slots > 0) {
        let arena = SlotArena::new(class.slots, class.slot_bytes, options.huge_pages);
        arenas.push(arena.map_err(|cause| StoreError::Memory {
            bytes: SlotArena::bytes_for(class.slots, class.slot_bytes) as u64,
            cause: cause.to_string(),
        })?);
        first_slots.push(SlotId(slots));
        slots += class.slots as u32;
    }
    Ok((arenas, first_slots))
}

/// Reads in flight by the size of a read: megabytes saturate a drive with few, and more only
/// lengthens the queue; the small pieces of records read in place need more (docs/experiments.tsv).
pub(super) fn default_depth(plan: &StorePlan) -> usize {
    let reads = plan.layers.iter().flatten().flat_map(|layer| layer.records.first());
    let pieces = reads.map(|record| record.reads().len()).max().unwrap_or(1);
    if pieces == 1 { QUEUE_DEPTH } else { QUEUE_DEPTH_PIECES }
}

/// The files in which some expert lies.
pub(super) fn used_files(checkpoint: &Checkpoint) -> Vec<bool> {
    let mut used = vec![false; checkpoint.files.len()];
    for expert in checkpoint.experts.iter().flatten().flat_map(|layer| &layer.experts) {
        for piece in crate::record::pieces(expert).into_iter().flatten() {
            if let Some(known) = used.get_mut(piece.file.0 as usize) {
                *known = true;
            }
        }
    }
    used
}

//! Handing reads to the engine, cut into pieces where the drive would otherwise idle.
//!
//! A drive gives its full rate only to several reads at a time. A layer of a decode step that lacks one or two
//! records does not ask for as many, so each of theirs becomes two reads: one record of 1.7 MiB arrives after 0.46 ms
//! instead of 0.57, two after 0.97 instead of 1.19 (docs/experiments.tsv). Four pieces gave no more. Which reads the
//! engine performs changes no byte of what arrives.

use std::sync::atomic::Ordering;

use crate::SlotId;
use crate::cache::shared::State;
use crate::cache::store::{ExpertStore, Source};

/// Reads that a planned one becomes at most.
const CUTS: usize = 2;
/// Least bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;

impl ExpertStore {
    /// Hands the reads that were planned under the lock to the engine.
    pub(super) fn submit(&self, state: &mut State) {
        let Source::Engine(storage) = &self.source else { return };
        let whole = state.requests.len();
        if whole == 0 {
            return;
        }
        let pieces = (self.report.queue_depth / (state.in_flight + whole)).min(CUTS);
        if pieces > 1 {
            for index in 0..whole {
                let request = &mut state.requests[index];
                let slot = &mut state.residency.slots[SlotId(request.tag).index()];
                for piece in request.split(pieces, PIECE_BYTES) {
                    slot.pending += 1;
                    state.requests.push(piece);
                }
            }
        }
        state.in_flight += state.requests.len();
        storage.submit(&mut state.requests);
    }

    /// Turns the read-ahead of a slot into demand.
    pub(super) fn promote(&self, slot: SlotId) {
        if let Source::Engine(storage) = &self.source {
            storage.promote(slot.0);
        }
    }

    /// Number of records whose reads have ended, wanted or not: their slots may be free. A loop that polls for the
    /// end of a read looks here first: the lock that [`Visit::is_ready`] takes is the one that the reads' ends need.
    pub fn ended_reads(&self) -> u64 {
        self.shared.ended.load(Ordering::Acquire)
    }
}

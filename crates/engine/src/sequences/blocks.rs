//! Rows of keys and values in blocks, on a device whose pages are its own memory: where those of a layer are written,
//! and which blocks tokens see. Blocks of every position lie in the sequence's pages, those of a window in a ring that
//! is part of its state (`window_ring.rs`).

use std::ops::Range;
use std::sync::Arc;

use kernels::KeyValueBlock;
use store::LayerId;

use super::layout::Part;
use super::snapshot::{PAGE_TOKENS, SharedPage};
use super::{SequenceId, Sequences};

/// The bytes of a page that is the sequence's own.
pub(crate) fn owned_page(page: &mut SharedPage) -> &mut [u8] {
    Arc::get_mut(page).expect("the batch's beginning gave the sequence a page of its own")
}

impl Sequences {
    /// Most tokens of a run whose rows are written before they are attended.
    pub(crate) fn part_tokens(&self, layer: LayerId) -> usize {
        self.layout.ring(layer).map_or(usize::MAX, |ring| ring.part_tokens())
    }

    /// A block of a layer, to write rows to: keys, then values. `state` is that of the sequence.
    pub(crate) fn block_mut<'s>(
        &'s mut self,
        state: &'s mut [f32],
        sequence: SequenceId,
        layer: LayerId,
        block: usize,
    ) -> &'s mut [u8] {
        match self.layout.ring(layer) {
            Some(ring) => ring.block_mut(&mut state[self.layout.range(layer, Part::Window)], block),
            None => {
                let page = owned_page(&mut self.places[sequence.place()].pages[block]);
                &mut page[self.layout.page_range(layer)]
            }
        }
    }

    /// The blocks of a layer that tokens at `positions` see, and the position where the first of them begins. `state`
    /// is that of the sequence.
    pub(crate) fn blocks<'s>(
        &'s self,
        state: &'s [f32],
        sequence: SequenceId,
        layer: LayerId,
        positions: Range<usize>,
    ) -> (usize, Vec<KeyValueBlock<'s>>) {
        if let Some(ring) = self.layout.ring(layer) {
            return ring.seen(&state[self.layout.range(layer, Part::Window)], positions);
        }
        let pages = &self.pages(sequence)[..positions.end.div_ceil(PAGE_TOKENS)];
        (0, pages.iter().map(|page| self.layout.block(layer, page)).collect())
    }
}

//! What a layer with a window keeps of a sequence on the processor: keys and values of the last positions, in a ring of
//! blocks that is part of the sequence's state, as the window of compressed attention is (`compressed_layout.rs`).
//!
//! Block `b` of a sequence lies in place `b % blocks` and has the form of a page, so that attention reads it where it
//! is. A place holds the end of one block and the beginning of another once the ring has come round: of the first only
//! rows that a window still sees are read, of the second only rows that were written. So a window of 128 needs one
//! place. Runs are computed in parts so short that no row is written over that a token of the part sees.

use std::ops::Range;

use kernels::KeyValueBlock;

use super::snapshot::PAGE_TOKENS;

/// Tokens of a part of a run, or a multiple: shorter parts would leave threads without work.
const PART_TOKENS: usize = 128;

/// The ring of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRing {
    window: usize,
    blocks: usize,
    /// Bytes of a block's keys; its values take as many and follow.
    keys_bytes: usize,
}

impl WindowRing {
    /// The ring of a window whose blocks have keys of `keys_bytes`.
    pub(crate) fn new(window: usize, keys_bytes: usize) -> Self {
        let blocks = (window + PART_TOKENS - 1).div_ceil(PAGE_TOKENS);
        Self { window, blocks, keys_bytes }
    }

    /// Values of a sequence's state that hold the ring.
    pub(crate) fn values(&self) -> usize {
        // Whole words: a block has 256 rows.
        self.blocks * 2 * self.keys_bytes / size_of::<f32>()
    }

    /// Most tokens of a run that are written before they are attended.
    pub(crate) fn part_tokens(&self) -> usize {
        (self.blocks * PAGE_TOKENS - self.window + 1) / PART_TOKENS * PART_TOKENS
    }

    /// Keys, then values of a block in the layer's part of the state.
    pub(crate) fn block_mut<'s>(&self, ring: &'s mut [f32], block: usize) -> &'s mut [u8] {
        let bytes = 2 * self.keys_bytes;
        &mut bytemuck::cast_slice_mut(ring)[block % self.blocks * bytes..][..bytes]
    }

    /// Where the rows of a position lie in the layer's part of the state, with their bytes: keys and values of `heads`.
    pub(super) fn rows(
        &self,
        position: usize,
        heads: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (block, row) = (position / PAGE_TOKENS % self.blocks, position % PAGE_TOKENS);
        let (head_bytes, start) = (self.keys_bytes / heads, 2 * block * self.keys_bytes);
        let bytes = head_bytes / PAGE_TOKENS;
        (0..2 * heads).map(move |head| (start + head * head_bytes + row * bytes, bytes))
    }

    /// The blocks that tokens at `positions` see, and the position where the first of them begins.
    pub(crate) fn seen<'s>(
        &self,
        ring: &'s [f32],
        positions: Range<usize>,
    ) -> (usize, Vec<KeyValueBlock<'s>>) {
        let first = (positions.start + 1).saturating_sub(self.window) / PAGE_TOKENS;
        let blocks = bytemuck::cast_slice::<f32, u8>(ring).chunks_exact(2 * self.keys_bytes);
        let blocks: Vec<_> = blocks.map(|block| block.split_at(self.keys_bytes)).collect();
        let seen = (first..positions.end.div_ceil(PAGE_TOKENS)).map(|block| {
            let (keys, values) = blocks[block % self.blocks];
            KeyValueBlock { keys, values }
        });
        (first * PAGE_TOKENS, seen.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are numbered as they are written: each token finds those of its window, and no part is cut shorter than
    /// promised.
    #[test]
    fn a_part_finds_every_row_of_its_windows() {
        for window in [1, 4, 128, 129, 130, 256, 300, 4096] {
            let place = WindowRing::new(window, 4 * PAGE_TOKENS);
            assert!(place.part_tokens() >= PART_TOKENS, "a window of {window}");
            let mut ring = vec![0.0; place.values()];
            let mut position = 0;
            for tokens in [1, 50, 127, place.part_tokens(), 1, 100, place.part_tokens()] {
                let tokens = tokens.min(place.part_tokens());
                for at in position..position + tokens {
                    let block = place.block_mut(&mut ring, at / PAGE_TOKENS);
                    block[4 * (at % PAGE_TOKENS)..][..4]
                        .copy_from_slice(&(at as u32).to_le_bytes());
                }
                let (first, seen) = place.seen(&ring, position..position + tokens);
                for at in position..position + tokens {
                    for row in (at + 1).saturating_sub(window)..=at {
                        let keys = seen[(row - first) / PAGE_TOKENS].keys;
                        let found = &keys[4 * (row % PAGE_TOKENS)..][..4];
                        assert_eq!(found, (row as u32).to_le_bytes(), "{window}: {row} from {at}");
                    }
                }
                position += tokens;
            }
        }
    }
}

//! Causal attention: how its work is shared out.
//!
//! Prompts have many queries: a worker takes a tile of them through all blocks. Steps have few: a worker takes
//! one block for all queries that share its keys, and what comes of the blocks is merged afterwards, in
//! the same order as a tile merges them. So it is a matter of speed which of the two is done.

use super::{Compute, Parts};
use crate::attention::{AttentionExtras, AttentionShape, BLOCK_TOKENS, KeyValueBlock};
use crate::generic::attention::{
    AttentionTask, BlockTask, MAX_HEAD_DIM, MergeTask, QueryTile, TILE_ROWS, Workspace,
};
use crate::generic::attention_tile::part_floats;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::PoisonError;

/// Floats kept between the two regions of a step. Long contexts go through in several rounds.
const PART_FLOATS: usize = 1 << 20;

/// Bytes that a [`Compute`] keeps for attention, once it has met a long context; each thread has at most half a
/// megabyte of its own in addition.
pub const ATTENTION_BYTES: usize = PART_FLOATS * size_of::<f32>();

thread_local! {
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace::new()) };
}

/// The tiles of one call: token tiles times parts of heads times key-value heads.
struct Tiles<'a> {
    shape: &'a AttentionShape,
    extras: AttentionExtras<'a>,
    q: &'a [f32],
    first_position: usize,
    tokens: usize,
    /// Tokens of a tile.
    tile_tokens: usize,
    /// Heads of a tile.
    tile_heads: usize,
    /// Tiles that share the heads of one key-value head out.
    per_share: usize,
}

impl<'a> Tiles<'a> {
    fn new(
        shape: &'a AttentionShape,
        extras: AttentionExtras<'a>,
        q: &'a [f32],
        first_position: usize,
    ) -> Self {
        let share = shape.query_heads / shape.key_value_heads;
        let tile_heads = share.min(TILE_ROWS);
        let tokens = q.len() / (shape.query_heads * shape.head_dim);
        Self {
            shape,
            extras,
            q,
            first_position,
            tokens,
            tile_tokens: (TILE_ROWS / tile_heads).min(tokens).max(1),
            tile_heads,
            per_share: share.div_ceil(tile_heads),
        }
    }

    /// Tiles of the same tokens.
    fn per_token_tile(&self) -> usize {
        self.shape.key_value_heads * self.per_share
    }

    fn count(&self) -> usize {
        self.tokens.div_ceil(self.tile_tokens) * self.per_token_tile()
    }

    /// A tile, and where its outputs begin. The last positions come first, because they take longest.
    fn get(&self, index: usize) -> (QueryTile, usize) {
        let AttentionShape { query_heads, key_value_heads, head_dim, scale, kv_type } = *self.shape;
        let share = query_heads / key_value_heads;
        let index = self.count() - 1 - index;
        let (tokens, item) = (index / self.per_token_tile(), index % self.per_token_tile());
        let (key_value_head, part) = (item / self.per_share, item % self.per_share);
        let first = tokens * self.tile_tokens;
        let row = query_heads * head_dim;
        let head = key_value_head * share + part * self.tile_heads;
        let start = first * row + head * head_dim;
        let tile = QueryTile {
            q: self.q[start..].as_ptr(),
            token_stride: row,
            tokens: self.tile_tokens.min(self.tokens - first),
            heads: self.tile_heads.min(share - part * self.tile_heads),
            head_dim,
            scale,
            kv_type,
            key_value_head,
            visible: self.first_position + first + 1,
            window: self.extras.window.unwrap_or(usize::MAX),
            sinks: self.extras.sinks.map(|sinks| sinks[head..].as_ptr()),
        };
        (tile, start)
    }
}

impl Compute {
    /// Causal attention: token `i` of `q [tokens, query_heads, head_dim]` sees the positions
    /// `0..=first_position + i`, which lie in `blocks` (block `b` from position `b * BLOCK_TOKENS`).
    /// `out` has the shape of `q`.
    ///
    /// # Panics
    ///
    /// If lengths do not fit the shape or blocks are missing.
    pub fn attention(
        &self,
        shape: &AttentionShape,
        q: &[f32],
        first_position: usize,
        blocks: &[KeyValueBlock<'_>],
        out: &mut [f32],
    ) {
        self.attention_with(shape, AttentionExtras::default(), q, first_position, blocks, out);
    }

    /// The same for layers with a window or sinks.
    ///
    /// # Panics
    ///
    /// As for [`Compute::attention`], for a window of nothing, and for a number of sinks that is not that of heads.
    pub fn attention_with(
        &self,
        shape: &AttentionShape,
        extras: AttentionExtras<'_>,
        q: &[f32],
        first_position: usize,
        blocks: &[KeyValueBlock<'_>],
        out: &mut [f32],
    ) {
        let AttentionShape { query_heads, key_value_heads, head_dim, .. } = *shape;
        assert!(extras.window != Some(0), "attention: a window of nothing");
        assert!(
            extras.sinks.is_none_or(|sinks| sinks.len() == query_heads),
            "attention: a sink for each of {query_heads} heads"
        );
        let row = query_heads * head_dim;
        assert!(
            row > 0 && q.len().is_multiple_of(row),
            "attention: {} floats in rows of {row}",
            q.len()
        );
        assert_eq!(q.len(), out.len(), "attention: outputs");
        assert!(head_dim <= MAX_HEAD_DIM, "attention: head_dim {head_dim} above {MAX_HEAD_DIM}");
        assert!(
            key_value_heads > 0 && query_heads % key_value_heads == 0,
            "attention: {query_heads} query heads over {key_value_heads}"
        );
        let tokens = q.len() / row;
        if tokens == 0 {
            return;
        }
        let needed = (first_position + tokens).div_ceil(BLOCK_TOKENS);
        assert!(needed <= blocks.len(), "attention: {needed} blocks needed, {}", blocks.len());
        // What lies before the first token's window is seen by none; positions only count differences.
        let unseen = extras.window.map_or(0, |window| (first_position + 1).saturating_sub(window));
        let first_position = first_position - unseen / BLOCK_TOKENS * BLOCK_TOKENS;
        let blocks = &blocks[unseen / BLOCK_TOKENS..needed];
        for block in blocks {
            assert_eq!(block.keys.len(), shape.block_bytes(), "bytes of a key block");
            assert_eq!(block.values.len(), shape.block_bytes(), "bytes of a value block");
        }
        let tiles = Tiles::new(shape, extras, q, first_position);
        let out = Parts::new(out);
        // Tiles enough for every worker, too little work to share, or few blocks that rows see parts of.
        let few = first_position + tokens < 16 || extras.window.is_some();
        if tiles.count() >= 2 * self.pool.workers() || few {
            self.attend_tiles(&tiles, blocks, &out);
        } else {
            self.attend_blocks(&tiles, blocks, &out);
        }
    }

    /// Each worker takes tiles through all blocks.
    fn attend_tiles(&self, tiles: &Tiles<'_>, blocks: &[KeyValueBlock<'_>], out: &Parts<f32>) {
        let body = |range: Range<usize>| {
            for index in range {
                let (tile, start) = tiles.get(index);
                // SAFETY: tiles are disjoint heads of disjoint tokens, within the outputs as the queries are;
                // `new` has checked the features and the caller the blocks and sizes.
                WORKSPACE.with_borrow_mut(|workspace| unsafe {
                    let out = out.pointer().add(start);
                    (self.table.attend)(&mut AttentionTask { workspace, tile, blocks, out });
                });
            }
        };
        if tiles.first_position + tiles.tokens < 16 {
            body(0..tiles.count());
        } else {
            self.pool.for_each(tiles.count(), 1, body);
        }
    }

    /// Each worker takes blocks of some tile; then rows are merged.
    fn attend_blocks(&self, tiles: &Tiles<'_>, blocks: &[KeyValueBlock<'_>], out: &Parts<f32>) {
        let (count, dim) = (tiles.count(), tiles.shape.head_dim);
        // Rows of all tiles, each tile with room for the most.
        let (tile_rows, part) = (tiles.tile_tokens * tiles.tile_heads, part_floats(dim));
        let per_block = count * tile_rows * part;
        let together = (PART_FLOATS / per_block).clamp(1, blocks.len());
        let mut kept = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = together * per_block + 2 * count * tile_rows;
        if kept.len() < needed {
            kept.resize(needed, 0.0);
        }
        let (parts, states) = kept[..needed].split_at_mut(together * per_block);
        let (parts, states) = (Parts::new(parts), Parts::new(states));
        for first in (0..blocks.len()).step_by(together) {
            let now = together.min(blocks.len() - first);
            self.pool.for_each(now * count, 1, |range| {
                for item in range {
                    // Neighbours in memory follow each other: one key-value head's blocks in order.
                    let (index, at) = (item / now, item % now);
                    let (tile, _) = tiles.get(index);
                    let rows = tile.tokens * tile.heads;
                    let start = at * per_block + index * tile_rows * part;
                    // SAFETY: items write disjoint parts; the rest as for tiles.
                    WORKSPACE.with_borrow_mut(|workspace| unsafe {
                        (self.table.attend_block)(&mut BlockTask {
                            workspace,
                            tile,
                            block: &blocks[first + at],
                            index: first + at,
                            parts: parts.part(start..start + rows * part),
                        });
                    });
                }
            });
            self.pool.for_each(count * tile_rows, tile_rows.div_ceil(4), |range| {
                for item in range {
                    let (index, row) = (item / tile_rows, item % tile_rows);
                    let (tile, start) = tiles.get(index);
                    if row >= tile.tokens * tile.heads {
                        continue;
                    }
                    let (token, head) = (row / tile.heads, row % tile.heads);
                    let start = start + token * tile.token_stride + head * dim;
                    let seen = (tile.visible + token).div_ceil(BLOCK_TOKENS);
                    let state = 2 * item..2 * item + 2;
                    // SAFETY: rows are disjoint in the states and the outputs; the parts were written above.
                    unsafe {
                        let state = states.part(state);
                        (self.table.attend_merge)(&mut MergeTask {
                            parts: parts.pointer().add((index * tile_rows + row) * part),
                            stride: per_block,
                            count: now.min(seen.saturating_sub(first)),
                            first: first == 0,
                            last: first + now == blocks.len(),
                            state: &mut state.as_chunks_mut::<2>().0[0],
                            sink: tile.sink(row),
                            out: out.part(start..start + dim),
                        });
                    }
                }
            });
        }
    }
}

//! Pieces of the work of attention: tiles of queries, and what is done with one.

use super::attention::Workspace;
use crate::attention::{BLOCK_TOKENS, KeyValueBlock};
use crate::kv_type::KvType;

/// Queries of one tile: some tokens times some heads that share a key-value head.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile {
    /// The first head's queries of the first token, `[tokens, heads, head_dim]` with `token_stride` floats from
    /// token to token.
    pub(crate) q: *const f32,
    /// Floats from token to token, of the outputs too.
    pub(crate) token_stride: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) kv_type: KvType,
    pub(crate) key_value_head: usize,
    /// Keys up to the first token: its position plus one. Each further token has one more.
    pub(crate) visible: usize,
    /// Of these, the last that a token sees.
    pub(crate) window: usize,
    /// A score for each head that takes weight from the others.
    pub(crate) sinks: Option<*const f32>,
}

/// A tile against every block that it sees.
pub(crate) struct AttentionTask<'a> {
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) tile: QueryTile,
    pub(crate) blocks: &'a [KeyValueBlock<'a>],
    /// As the tile's `q`.
    pub(crate) out: *mut f32,
}

/// A tile against one block; what comes of it is merged later.
pub(crate) struct BlockTask<'a> {
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) tile: QueryTile,
    pub(crate) block: &'a KeyValueBlock<'a>,
    /// Index of the block in the sequence.
    pub(crate) index: usize,
    /// Room for [`part_floats`] of each row, row by row. Rows that see nothing of the block are left alone.
    pub(crate) parts: &'a mut [f32],
}

/// The parts of one row from consecutive blocks, to be merged into what it got from those before.
pub(crate) struct MergeTask<'a> {
    /// The first part; the others follow `stride` floats apart.
    pub(crate) parts: *const f32,
    pub(crate) stride: usize,
    pub(crate) count: usize,
    /// Whether nothing comes before.
    pub(crate) first: bool,
    /// Whether nothing follows.
    pub(crate) last: bool,
    /// The score that takes weight from the others.
    pub(crate) sink: Option<f32>,
    /// Maximum and sum so far.
    pub(crate) state: &'a mut [f32; 2],
    /// Weighted values so far, `[head_dim]`.
    pub(crate) out: &'a mut [f32],
}

/// Floats of what one row gets from one block: its maximum, its sum and its weighted values.
pub(crate) const fn part_floats(head_dim: usize) -> usize {
    2 + head_dim
}

impl QueryTile {
    /// Query rows.
    #[inline(always)]
    pub(super) fn rows(&self) -> usize {
        self.tokens * self.heads
    }

    /// Keys of a block up to a row's token.
    #[inline(always)]
    pub(super) fn count(&self, row: usize, block: usize) -> usize {
        let visible = self.visible + row / self.heads;
        visible.saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS)
    }

    /// Those of them that lie before the row's window.
    #[inline(always)]
    pub(super) fn start(&self, row: usize, block: usize) -> usize {
        let before = (self.visible + row / self.heads).saturating_sub(self.window);
        before.saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS)
    }

    /// The score of a row's head that takes weight from the others.
    #[inline(always)]
    pub(crate) fn sink(&self, row: usize) -> Option<f32> {
        // SAFETY: there is one for each head of the tile.
        self.sinks.map(|sinks| unsafe { *sinks.add(row % self.heads) })
    }

    /// Floats from the start of `q` and the outputs to a row.
    #[inline(always)]
    pub(super) fn offset(&self, row: usize) -> usize {
        row / self.heads * self.token_stride + row % self.heads * self.head_dim
    }
}

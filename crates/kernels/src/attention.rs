//! Types of causal attention: shape, cache blocks, and how rows are written into them.

use crate::kv_type::KvType;

/// Positions of one cache block. Attention merges blocks of this size in order, so the size is part
/// of what decides the bits of a result.
pub const BLOCK_TOKENS: usize = 256;

/// Shape of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `key_value_heads`. Query head `i` uses key-value head
    /// `i / (query_heads / key_value_heads)`.
    pub query_heads: usize,
    /// Key-value heads.
    pub key_value_heads: usize,
    /// Dimensions of a head, at most 640.
    pub head_dim: usize,
    /// Factor of the scores, usually `head_dim^-0.5`.
    pub scale: f32,
    /// How keys and values are stored.
    pub kv_type: KvType,
}

/// What some attention layers have beside the shape.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionExtras<'a> {
    /// Each token sees so many of the last positions, its own included; all of them without.
    pub window: Option<usize>,
    /// For each query head a further score without a value, which only takes weight from the others.
    pub sinks: Option<&'a [f32]>,
}

impl AttentionShape {
    /// Bytes of the keys of one block, `[key_value_heads, BLOCK_TOKENS]` rows; its values take as many.
    pub const fn block_bytes(&self) -> usize {
        self.key_value_heads * BLOCK_TOKENS * self.kv_type.bytes_of_head(self.head_dim)
    }
}

/// Block `b` of a sequence: the positions from `b * BLOCK_TOKENS`. Positions not yet written may
/// hold anything.
#[derive(Clone, Copy, Debug)]
pub struct KeyValueBlock<'a> {
    /// Keys, after rotation: `[key_value_heads, BLOCK_TOKENS]` rows of the shape's type.
    pub keys: &'a [u8],
    /// Values, as the keys.
    pub values: &'a [u8],
}

/// The writable form of [`KeyValueBlock`].
#[derive(Debug)]
pub struct KeyValueBlockMut<'a> {
    /// Keys, after rotation.
    pub keys: &'a mut [u8],
    /// Values.
    pub values: &'a mut [u8],
}

/// Writes `keys` and `values [tokens, key_value_heads, head_dim]` into one block, token `t` at
/// position `first + t` of the block. A run of tokens that crosses a block is stored by one call
/// per block.
///
/// # Panics
///
/// If the tokens do not fit the block or a slice has the wrong length.
pub fn store_keys_values(
    shape: &AttentionShape,
    first: usize,
    keys: &[f32],
    values: &[f32],
    block: &mut KeyValueBlockMut<'_>,
) {
    let row = shape.key_value_heads * shape.head_dim;
    assert_eq!(keys.len(), values.len(), "as many keys as values");
    assert_eq!(keys.len() % row, 0, "whole rows of keys");
    assert!(first + keys.len() / row <= BLOCK_TOKENS, "tokens past the end of a block");
    store_rows(shape, first, keys, block.keys);
    store_rows(shape, first, values, block.values);
}

/// Writes `rows [tokens, key_value_heads, head_dim]`, which are keys and values at once, at the positions from `first`
/// of a block.
///
/// # Panics
///
/// As for [`store_keys_values`].
pub fn store_rows(shape: &AttentionShape, first: usize, rows: &[f32], block: &mut [u8]) {
    let tokens = rows.len() / (shape.key_value_heads * shape.head_dim);
    assert!(first + tokens <= BLOCK_TOKENS, "tokens past the end of a block");
    assert_eq!(block.len(), shape.block_bytes(), "bytes of a key-value block");
    let (heads, dim) = (shape.key_value_heads, shape.head_dim);
    let bytes = shape.kv_type.bytes_of_head(dim);
    for (token, row) in rows.chunks_exact(heads * dim).enumerate() {
        for (head, row) in row.chunks_exact(dim).enumerate() {
            let at = (head * BLOCK_TOKENS + first + token) * bytes;
            shape.kv_type.encode(row, &mut block[at..at + bytes]);
        }
    }
}

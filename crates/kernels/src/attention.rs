//! Types of causal attention: shape, cache blocks, and how rows are written into them.

use crate::float::f16_from_f32;

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
    /// Dimensions of a head, at most 512.
    pub head_dim: usize,
    /// Factor of the scores, usually `head_dim^-0.5`.
    pub scale: f32,
}

/// Cached keys or values of one block, `[key_value_heads, BLOCK_TOKENS, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum KeyValues<'a> {
    /// binary32
    F32(&'a [f32]),
    /// IEEE binary16 bits
    F16(&'a [u16]),
}

impl KeyValues<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Block `b` of a sequence: the positions from `b * BLOCK_TOKENS`. Positions not yet written may
/// hold anything.
#[derive(Clone, Copy, Debug)]
pub struct KeyValueBlock<'a> {
    /// Keys, after rotation.
    pub keys: KeyValues<'a>,
    /// Values.
    pub values: KeyValues<'a>,
}

/// The writable form of [`KeyValues`].
#[derive(Debug)]
pub enum KeyValuesMut<'a> {
    /// binary32
    F32(&'a mut [f32]),
    /// IEEE binary16 bits
    F16(&'a mut [u16]),
}

/// The writable form of [`KeyValueBlock`].
#[derive(Debug)]
pub struct KeyValueBlockMut<'a> {
    /// Keys, after rotation.
    pub keys: KeyValuesMut<'a>,
    /// Values.
    pub values: KeyValuesMut<'a>,
}

impl KeyValuesMut<'_> {
    /// Writes `rows [tokens, heads, head_dim]` at the positions from `first` of the block.
    fn store(&mut self, first: usize, heads: usize, head_dim: usize, rows: &[f32]) {
        let expected = heads * BLOCK_TOKENS * head_dim;
        let found = match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
        };
        assert_eq!(found, expected, "elements of a key-value block");
        for (token, row) in rows.chunks_exact(heads * head_dim).enumerate() {
            for (head, row) in row.chunks_exact(head_dim).enumerate() {
                let at = (head * BLOCK_TOKENS + first + token) * head_dim;
                match self {
                    Self::F32(values) => values[at..at + head_dim].copy_from_slice(row),
                    Self::F16(values) => {
                        for (to, &from) in values[at..at + head_dim].iter_mut().zip(row) {
                            *to = f16_from_f32(from);
                        }
                    }
                }
            }
        }
    }
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
    block.keys.store(first, shape.key_value_heads, shape.head_dim, keys);
    block.values.store(first, shape.key_value_heads, shape.head_dim, values);
}

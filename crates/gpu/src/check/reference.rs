//! What the processor's scalar kernels make of a check's numbers.

use kernels::{
    Arithmetic, AttentionExtras, AttentionShape, BLOCK_TOKENS, Compute, ComputeOptions, Isa,
    KeyValueBlock, KeyValueBlockMut, KvType, store_keys_values,
};

use super::Numbers;
use crate::op::attention::{Cache, Shape};

/// The processor's kernels, in f32 and without vector instructions.
pub(super) fn reference() -> Compute {
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::F32, isa: Isa::Scalar };
    Compute::new(options).expect("the scalar kernels are always there")
}

/// A run of tokens from position 0 that crosses blocks of positions, and its attention.
pub(super) struct Attended {
    pub(super) shape: Shape,
    pub(super) kv_type: KvType,
    /// `[TOKENS, query_heads, dim]`
    pub(super) query: Vec<f32>,
    /// `[TOKENS, key_value_heads, dim]`
    pub(super) key: Vec<f32>,
    /// `[TOKENS, key_value_heads, dim]`
    pub(super) value: Vec<f32>,
    /// As `query`.
    pub(super) expected: Vec<f32>,
}

impl Attended {
    pub(super) const TOKENS: usize = 300;
    /// Positions of a cache for it.
    pub(super) const CONTEXT: usize = 320;

    /// Random queries, keys and values, as `cache` keeps them.
    pub(super) fn random(
        numbers: &mut Numbers,
        cache: Cache,
        dim: usize,
        extras: AttentionExtras<'_>,
    ) -> Self {
        let (shape, tokens) = (Shape { query_heads: 4, key_value_heads: 2, dim }, Self::TOKENS);
        let query = numbers.floats(tokens * 4 * dim);
        let (key, value) = (numbers.floats(tokens * 2 * dim), numbers.floats(tokens * 2 * dim));
        let kv_type = cache.kv_type();
        let on_processor = AttentionShape {
            query_heads: 4,
            key_value_heads: 2,
            head_dim: dim,
            scale: (dim as f32).powf(-0.5),
            kv_type,
        };
        let bytes = 2 * BLOCK_TOKENS * kv_type.bytes_of_head(dim);
        let count = Self::CONTEXT.div_ceil(BLOCK_TOKENS);
        let mut blocks = vec![(vec![0; bytes], vec![0; bytes]); count];
        for (index, (keys, values)) in blocks.iter_mut().enumerate() {
            let rows =
                index * BLOCK_TOKENS * 2 * dim..((index + 1) * BLOCK_TOKENS).min(tokens) * 2 * dim;
            let mut block = KeyValueBlockMut { keys, values };
            store_keys_values(&on_processor, 0, &key[rows.clone()], &value[rows], &mut block);
        }
        let views: Vec<_> =
            blocks.iter().map(|(keys, values)| KeyValueBlock { keys, values }).collect();
        let mut expected = vec![0.0; query.len()];
        reference().attention_with(&on_processor, extras, &query, 0, &views, &mut expected);
        Self { shape, kv_type, query, key, value, expected }
    }
}

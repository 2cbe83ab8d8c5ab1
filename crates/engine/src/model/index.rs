//! Attention to the keys that an indexer chooses (reference: transformers `Qwen4ExpTextQSAIndexer`).
//!
//! Positions are cut into units. A complete unit has one index key: the mean of its tokens' keys, normed, rotated by the
//! position of its first token. A token's score of a unit is the sum over heads of what is positive of query times key;
//! it attends to the units with the best scores, of equal ones to the first, and always to the tokens behind the last
//! complete unit.

use kernels::BLOCK_TOKENS;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::ModelConfig;
use crate::EngineError;
use crate::drafts::ROUND_TOKENS;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// What chooses the keys that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Query heads.
    pub heads: usize,
    /// Values of a head and of an index key.
    pub dim: usize,
    /// Tokens of a unit; divides a block of the cache.
    pub unit: usize,
    /// Units that a token sees at most.
    pub budget: usize,
}

impl IndexConfig {
    /// Reads the shape.
    pub(super) fn read(from: &Configuration) -> Result<Self, FormatError> {
        from.get(&keys::INDEXER_KV_HEADS)?;
        let unit = from.required(&keys::INDEXER_COMPRESS_RATIO)?;
        let tokens = from.required(&keys::INDEXER_BUDGET)?;
        if !tokens.is_multiple_of(unit) {
            let found = format!("{tokens} is no multiple of indexer_compress_ratio {unit}");
            return Err(from.invalid(&keys::INDEXER_BUDGET, found));
        }
        if !BLOCK_TOKENS.is_multiple_of(unit) {
            let found = format!("{unit} does not divide {BLOCK_TOKENS}");
            return Err(from.invalid(&keys::INDEXER_COMPRESS_RATIO, found));
        }
        Ok(Self {
            heads: from.required(&keys::INDEXER_N_HEADS)?,
            dim: from.required(&keys::INDEXER_HEAD_DIM)?,
            unit,
            budget: tokens / unit,
        })
    }

    /// Relations between keys that each is plausible alone.
    pub(super) fn check(
        &self,
        model: &ModelConfig,
        from: &Configuration,
    ) -> Result<(), FormatError> {
        let rotated = model.attention.rope.dims;
        if rotated > self.dim {
            let found = format!("{}, and {rotated} are rotated", self.dim);
            return Err(from.invalid(&keys::INDEXER_HEAD_DIM, found));
        }
        Ok(())
    }

    /// Values that one token has for the indexer: queries of all heads, then its key.
    pub fn width(&self) -> usize {
        (self.heads + 1) * self.dim
    }

    /// Most tokens that a token sees of a longer sequence.
    pub fn tokens(&self) -> usize {
        (self.budget + 1) * self.unit - 1
    }

    /// Tokens whose keys a sequence keeps: those of a unit in progress, and room for a round.
    pub fn kept_tokens(&self) -> usize {
        self.unit + ROUND_TOKENS
    }
}

/// Weights of a layer's indexer.
#[derive(Clone, Copy, Debug)]
pub struct Indexer {
    /// `[(heads + 1) * dim, hidden]`: queries of all heads, then the key.
    pub query_key: MatrixId,
    /// Norm of a query head, `[dim]`.
    pub query_norm: VectorId,
    /// Norm of an index key, `[dim]`.
    pub key_norm: VectorId,
}

impl Indexer {
    /// Declares the tensors below `prefix` (`layers.N.self_attn.indexer`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        shape: &IndexConfig,
        hidden: usize,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (name, norm) = (|part: &str| format!("{prefix}.{part}"), VectorRole::Norm);
        Ok(Self {
            query_key: catalog.matrix(&name("index_qk_proj"), shape.width(), hidden)?,
            query_norm: catalog.vector(&name("q_layernorm"), shape.dim, norm)?,
            key_norm: catalog.vector(&name("k_layernorm"), shape.dim, norm)?,
        })
    }
}

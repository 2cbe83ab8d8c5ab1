//! Attention to the keys that an indexer chooses (reference: transformers `Qwen4ExpTextQSAIndexer`,
//! `DeepseekV32Indexer`, `GlmMoeDsaIndexer`).
//!
//! Positions are cut into units. A complete unit has one index key: the mean of its tokens' keys, normed, rotated by
//! the position of its first token. A token's score of a unit is the sum over heads of what is positive of query times
//! key; it attends to the units with the best scores, of equal ones to the first, and always to the tokens behind the
//! last complete unit.
//!
//! Over latent rows a unit is one token. Queries are made of the row that the layer's queries are made of, the norm of
//! keys has a mean and a bias, and each head has a weight, which the stream gives. The release of DeepSeek-V3.2 turns
//! queries and keys by a Hadamard matrix, which changes no product, and rounds both to 8 bits; here, as in the
//! reference, they are not rounded. In GLM-5.3-Flash units of latent rows have more tokens: a unit's key is the sum of
//! its tokens' keys, each value weighed by a softmax over the tokens of gates that the stream gives (reference:
//! transformers `Glm5NextTextIndexer`); nothing is rotated.

use std::ops::Range;

use kernels::BLOCK_TOKENS;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::ModelConfig;
use super::rope::Pairs;
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
    /// What queries and keys are made of.
    pub form: IndexForm,
}

/// What queries and keys of an indexer are made of, and how heads count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexForm {
    /// Of the stream by one matrix, each normed; all heads count alike.
    Joined,
    /// Queries of the row that the layer's queries are made of, a key of the stream, which also gives each head a
    /// weight. The rotation is that of attention but for what is rotated together.
    Weighed {
        /// Which values are rotated together.
        pairs: Pairs,
    },
    /// The same without a rotation, and keys of a unit are pooled by gates.
    Pooled,
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
            form: IndexForm::Joined,
        })
    }

    /// Reads the shape of what chooses latent rows.
    pub(super) fn of_rows(from: &Configuration) -> Result<Self, FormatError> {
        let pairs = match from.required(&keys::INDEXER_ROPE_INTERLEAVE)? {
            true => Pairs::Neighbours,
            false => Pairs::Halves,
        };
        Ok(Self {
            heads: from.required(&keys::INDEX_N_HEADS)?,
            dim: from.required(&keys::INDEX_HEAD_DIM)?,
            unit: 1,
            budget: from.required(&keys::INDEX_TOPK)?,
            form: IndexForm::Weighed { pairs },
        })
    }

    /// Reads the shape of what chooses pools of latent rows.
    pub(super) fn of_pools(from: &Configuration) -> Result<Self, FormatError> {
        from.get(&keys::INDEX_KPOOL_TAIL)?;
        let unit = from.required(&keys::INDEX_KPOOL)?;
        let tokens = from.required(&keys::INDEX_TOPK)?;
        if !tokens.is_multiple_of(unit) {
            let found = format!("{tokens} is no multiple of index_kpool {unit}");
            return Err(from.invalid(&keys::INDEX_TOPK, found));
        }
        if !BLOCK_TOKENS.is_multiple_of(unit) {
            let found = format!("{unit} does not divide {BLOCK_TOKENS}");
            return Err(from.invalid(&keys::INDEX_KPOOL, found));
        }
        Ok(Self {
            heads: from.required(&keys::INDEX_N_HEADS)?,
            dim: from.required(&keys::INDEX_HEAD_DIM)?,
            unit,
            budget: tokens / unit,
            form: IndexForm::Pooled,
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
            let key = match self.form {
                IndexForm::Joined => &keys::INDEXER_HEAD_DIM,
                IndexForm::Weighed { .. } | IndexForm::Pooled => &keys::INDEX_HEAD_DIM,
            };
            return Err(from.invalid(key, found));
        }
        Ok(())
    }

    /// Values of a token's queries; where its key is made with them, that is behind them.
    pub fn width(&self) -> usize {
        match self.form {
            IndexForm::Joined => (self.heads + 1) * self.dim,
            IndexForm::Weighed { .. } | IndexForm::Pooled => self.heads * self.dim,
        }
    }

    /// The positions that a token at `position` sees, in order, each range within one unit: those of the `chosen`
    /// units, then those behind the last complete unit.
    pub fn seen(self, chosen: &[u32], position: usize) -> impl Iterator<Item = Range<usize>> {
        let unit = self.unit;
        let tail = (position + 1) / unit * unit..position + 1;
        let units = chosen.iter().map(move |&it| it as usize * unit..(it as usize + 1) * unit);
        units.chain(Some(tail).filter(|tail| !tail.is_empty()))
    }

    /// Most tokens that a token sees of a longer sequence.
    pub fn tokens(&self) -> usize {
        (self.budget + 1) * self.unit - 1
    }

    /// Tokens whose keys a sequence keeps as they are, and how many values of each, its gates among them: those of a
    /// unit in progress, and room for a round; none where each token is a unit.
    pub fn kept_rows(&self) -> Option<(usize, usize)> {
        let gates = if self.form == IndexForm::Pooled { self.dim } else { 0 };
        (self.unit > 1).then_some((self.unit + ROUND_TOKENS, self.dim + gates))
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
        let [query, key] = [name("q_proj"), name("k_proj")];
        Ok(Self {
            query_key: match catalog.has(&query) {
                // As GGUF files part it.
                true => {
                    let rows = [shape.heads * shape.dim, shape.dim];
                    catalog.followed([&query, &key], rows, hidden)?
                }
                false => catalog.matrix(&name("index_qk_proj"), shape.width(), hidden)?,
            },
            query_norm: catalog.vector(&name("q_layernorm"), shape.dim, norm)?,
            key_norm: catalog.vector(&name("k_layernorm"), shape.dim, norm)?,
        })
    }
}

/// What adds to the variance in the norm of keys, whatever norms of the model add.
pub const KEY_EPSILON: f32 = 1e-6;

/// Weights of what chooses latent rows ([`IndexForm::Weighed`], [`IndexForm::Pooled`]).
#[derive(Clone, Copy, Debug)]
pub struct RowIndexer {
    /// `[heads * dim, query_rank]`
    pub query: MatrixId,
    /// `[dim, hidden]`
    pub key: MatrixId,
    /// Norm of keys, weight and bias, `[dim]` each.
    pub key_norm: [VectorId; 2],
    /// `[heads, hidden]`: what each head weighs.
    pub weights: MatrixId,
    /// What keys of a unit are pooled by.
    pub pool: Option<Pool>,
}

/// Weights by which keys of a unit are pooled.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// `[dim, hidden]`: a token's gates.
    pub gates: MatrixId,
    /// `[unit, dim]`: added to them, by the token's place in its unit.
    pub places: VectorId,
}

impl RowIndexer {
    /// Declares the tensors below `prefix` (`layers.N.self_attn.indexer`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        shape: &IndexConfig,
        [hidden, query_rank]: [usize; 2],
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let IndexConfig { heads, dim, unit, .. } = *shape;
        let name = |part: &str| format!("{prefix}.{part}");
        let pool = match shape.form {
            IndexForm::Joined | IndexForm::Weighed { .. } => None,
            IndexForm::Pooled => Some(Pool {
                gates: catalog.matrix(&name("gate_proj"), dim, hidden)?,
                places: catalog.vector(&name("position_bias"), unit * dim, VectorRole::Plain)?,
            }),
        };
        Ok(Self {
            query: catalog.matrix(&name("wq_b"), heads * dim, query_rank)?,
            key: catalog.matrix(&name("wk"), dim, hidden)?,
            key_norm: [
                catalog.vector(&name("k_norm"), dim, VectorRole::Plain)?,
                catalog.vector(&name("k_norm.bias"), dim, VectorRole::Plain)?,
            ],
            weights: catalog.matrix(&name("weights_proj"), heads, hidden)?,
            pool,
        })
    }
}

/// Which latent rows a layer sees.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// All of them.
    None,
    /// Those that its own indexer chooses.
    Own(RowIndexer),
    /// Those that the last indexer chose.
    AsBefore,
}

//! Attention over a window of tokens and over rows that stand for several tokens each (reference: transformers
//! `DeepseekV4Attention`, `DeepseekV4CSACompressor`, `DeepseekV4HCACompressor`, `DeepseekV4Indexer`).
//!
//! One row is key and value of all heads. A compressed row is the weighted sum of its tokens' values, a softmax over
//! their gates for each dimension; with overlap a row also takes part of the tokens before. Where there is an indexer,
//! a token sees only the compressed rows that score best with it.

use kernels::BLOCK_TOKENS;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::Around;
use super::config::{Mixer, ModelConfig};
use super::program::{Op, Product};
use super::register::Register;
use super::rope::Rope;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Compressed rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Tokens of a row; divides a page.
    pub ratio: usize,
    /// True when a row also takes the tokens of the row before, and an indexer chooses rows.
    pub overlap: bool,
}

impl Compression {
    /// Values and gates of a token; each row takes `dim` of them.
    pub fn width(&self, dim: usize) -> usize {
        if self.overlap { 2 * dim } else { dim }
    }

    /// Tokens whose values and gates are kept: those of the row in progress, and with overlap of the one before.
    pub fn kept_tokens(&self) -> usize {
        if self.overlap { 2 * self.ratio } else { self.ratio }
    }
}

/// What chooses compressed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowIndex {
    /// Heads.
    pub heads: usize,
    /// Values of a head and of a row's key.
    pub dim: usize,
    /// Rows that a token sees at most.
    pub top: usize,
}

/// Shape of the layers of compressed attention; heads are those of [`super::config::AttentionConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressedConfig {
    /// Width between the two matrices of queries.
    pub query_rank: usize,
    /// Width of a group between the two matrices after attention.
    pub output_rank: usize,
    /// Groups of heads there.
    pub output_groups: usize,
    /// Last positions that a token sees as they are, its own included.
    pub window: usize,
    /// Rotation in layers with compressed rows; the others have that of attention.
    pub rope: Rope,
    /// What chooses rows in layers with overlap.
    pub index: RowIndex,
}

impl CompressedConfig {
    /// Relations between keys that each is plausible alone.
    pub(super) fn check(
        &self,
        model: &ModelConfig,
        from: &Configuration,
    ) -> Result<(), FormatError> {
        let attention = &model.attention;
        if attention.key_value_heads != 1 {
            let found = format!("{}, and only 1 is computed", attention.key_value_heads);
            return Err(from.invalid(&keys::NUM_KEY_VALUE_HEADS, found));
        }
        if !attention.query_heads.is_multiple_of(self.output_groups) {
            let found = format!("{} does not divide num_attention_heads", self.output_groups);
            return Err(from.invalid(&keys::O_GROUPS, found));
        }
        if self.rope.dims > self.index.dim {
            let found = format!("{}, and {} are rotated", self.index.dim, self.rope.dims);
            return Err(from.invalid(&keys::INDEX_HEAD_DIM, found));
        }
        let dim_max = 512;
        if attention.head_dim > dim_max {
            let found = format!("{} exceeds the limit of {dim_max}", attention.head_dim);
            return Err(from.invalid(&keys::HEAD_DIM, found));
        }
        for layer in &model.layers {
            if let Mixer::Compressed(Some(compression)) = layer.mixer
                && !BLOCK_TOKENS.is_multiple_of(compression.ratio)
            {
                let found = format!("{} does not divide {BLOCK_TOKENS}", compression.ratio);
                return Err(from.invalid(&keys::COMPRESS_RATIOS, found));
            }
        }
        Ok(())
    }
}

/// Makes compressed rows of a layer, or keys of its indexer.
#[derive(Clone, Copy, Debug)]
pub struct Compressor {
    /// `[width, hidden]`
    pub values: MatrixId,
    /// `[width, hidden]`
    pub gates: MatrixId,
    /// `[ratio, width]`: added to gates by place within the row.
    pub positions: VectorId,
    /// Norm of rows.
    pub norm: VectorId,
}

/// Scores compressed rows.
#[derive(Clone, Copy, Debug)]
pub struct Indexer {
    /// `[heads * dim, query_rank]`
    pub query: MatrixId,
    /// `[heads, hidden]`
    pub weights: MatrixId,
    /// Makes the keys.
    pub keys: Compressor,
}

/// Weights of a layer.
#[derive(Clone, Copy, Debug)]
pub struct CompressedAttention {
    /// `[query_rank, hidden]`
    pub query_low: MatrixId,
    /// Norm between the matrices of queries.
    pub query_norm: VectorId,
    /// `[query_heads * head_dim, query_rank]`
    pub query: MatrixId,
    /// `[head_dim, hidden]`: keys and values.
    pub key: MatrixId,
    /// Norm of keys.
    pub key_norm: VectorId,
    /// `[query_heads]`: scores that only take weight from the others.
    pub sinks: VectorId,
    /// `[groups * output_rank, query_heads / groups * head_dim]`
    pub output_low: MatrixId,
    /// `[hidden, groups * output_rank]`
    pub output: MatrixId,
    /// What makes compressed rows, in layers that have them.
    pub compressor: Option<(Compression, Compressor)>,
    /// What chooses among them, in layers with overlap.
    pub indexer: Option<Indexer>,
}

impl Compressor {
    fn declare(
        config: &ModelConfig,
        (compression, dim): (Compression, usize),
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (name, width) = (|part: &str| format!("{prefix}.{part}"), compression.width(dim));
        let positions = compression.ratio * width;
        Ok(Self {
            values: catalog.matrix(&name("kv_proj"), width, config.hidden)?,
            gates: catalog.matrix(&name("gate_proj"), width, config.hidden)?,
            positions: catalog.vector(&name("position_bias"), positions, VectorRole::Plain)?,
            norm: catalog.vector(&name("kv_norm"), dim, VectorRole::Norm)?,
        })
    }
}

impl CompressedAttention {
    /// Declares the tensors below `prefix` (`layers.N.self_attn`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        config: &ModelConfig,
        (shape, compression): (&CompressedConfig, Option<Compression>),
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (heads, dim) = (config.attention.query_heads, config.attention.head_dim);
        let (hidden, low) = (config.hidden, shape.output_groups * shape.output_rank);
        let name = |part: &str| format!("{prefix}.{part}");
        let norm = VectorRole::Norm;
        let compressor = compression.map(|it| {
            let made = Compressor::declare(config, (it, dim), &name("compressor"), catalog)?;
            Ok::<_, EngineError>((it, made))
        });
        let indexer = compression.filter(|it| it.overlap).map(|it| {
            let (index, prefix) = (shape.index, name("indexer"));
            let width = index.heads * index.dim;
            Ok::<_, EngineError>(Indexer {
                query: catalog.matrix(&format!("{prefix}.q_b_proj"), width, shape.query_rank)?,
                weights: catalog.matrix(&format!("{prefix}.weights_proj"), index.heads, hidden)?,
                keys: Compressor::declare(config, (it, index.dim), &prefix, catalog)?,
            })
        });
        Ok(Self {
            query_low: catalog.matrix(&name("q_a_proj"), shape.query_rank, hidden)?,
            query_norm: catalog.vector(&name("q_a_norm"), shape.query_rank, norm)?,
            query: catalog.matrix(&name("q_b_proj"), heads * dim, shape.query_rank)?,
            key: catalog.matrix(&name("kv_proj"), dim, hidden)?,
            key_norm: catalog.vector(&name("kv_norm"), dim, norm)?,
            sinks: catalog.vector(&name("sinks"), heads, VectorRole::Plain)?,
            output_low: catalog.matrix_in_parts(
                &name("o_a_proj"),
                (low, heads / shape.output_groups * dim),
                shape.output_groups,
            )?,
            output: catalog.matrix(&name("o_b_proj"), hidden, low)?,
            compressor: compressor.transpose()?,
            indexer: indexer.transpose()?,
        })
    }

    /// From the streams, as `around` reads them, and back to them.
    pub(super) fn ops(self, around: &Around) -> Vec<Op> {
        use Register::{
            CompressedGates, CompressedValues, Context, IndexGates, IndexQuery, IndexValues,
            IndexWeights, Key, Normed, OutputLow, Query, QueryLatent, QueryLow,
        };
        let mut inputs = vec![(self.query_low, QueryLow), (self.key, Key)];
        if let Some((_, compressor)) = &self.compressor {
            inputs.push((compressor.values, CompressedValues));
            inputs.push((compressor.gates, CompressedGates));
        }
        if let Some(indexer) = &self.indexer {
            inputs.push((indexer.keys.values, IndexValues));
            inputs.push((indexer.keys.gates, IndexGates));
            inputs.push((indexer.weights, IndexWeights));
        }
        let mut queries = vec![(self.query, Query)];
        queries.extend(self.indexer.as_ref().map(|indexer| (indexer.query, IndexQuery)));
        let linear = |from, products: Vec<_>| {
            let products = products.into_iter().map(Product::from).collect();
            Op::Linear { from, products }
        };
        let mut ops = around.open();
        ops.extend([
            linear(Normed, inputs),
            Op::Norm { from: QueryLow, weight: self.query_norm, to: QueryLatent },
            linear(QueryLatent, queries),
            Op::AttendCompressed(self),
            Op::GroupedLinear { from: Context, matrix: self.output_low, to: OutputLow },
        ]);
        ops.extend(around.close(OutputLow, self.output));
        ops
    }
}

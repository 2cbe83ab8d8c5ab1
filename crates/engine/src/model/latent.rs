//! Multi-head latent attention: what is cached of a token is one row for all heads, the latent and a rotated key
//! (reference: transformers `DeepseekV3Attention`; DeepSeek-AI, "DeepSeek-V2", 2024).
//!
//! A head's key is `[Wk c | r]` and its value `Wv c` for the cached row `[c | r]`. Neither is formed: the query is
//! multiplied by `Wk` transposed and meets the row itself, and `Wv` is applied to the sum of rows that attention gives.
//! Prompts and answers both do so, because the other order of summation would give other bits.

use super::Around;
use super::config::{LatentConfig, ModelConfig};
use super::index::Choice;
use super::program::{Op, Product};
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Weights of a layer of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentAttention {
    /// What the row from which queries are made is made by, `[query_rank, hidden]`, and its norm.
    pub query_down: Option<(MatrixId, VectorId)>,
    /// `[query_heads * (plain_dim + rotated), query_rank or hidden]`, per head plain values first.
    pub query: MatrixId,
    /// `[rank + rotated, hidden]`: the latent and the key that is rotated.
    pub key_value: MatrixId,
    /// `[rank]`: norm of the latent.
    pub norm: VectorId,
    /// Per head `[rank, plain_dim]`: keys of the latent, transposed.
    pub absorb: HeadRows,
    /// Per head `[value_dim, rank]`: values of the latent.
    pub expand: HeadRows,
    /// `[hidden, query_heads * value_dim]`
    pub output: MatrixId,
    /// `[query_heads, hidden]`: what the sigmoids of heads are of, where they are scaled.
    pub gates: Option<MatrixId>,
}

/// The rows of each head in a matrix that has those of all heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRows {
    /// The matrix.
    pub matrix: MatrixId,
    /// Rows from one head's first to the next one's.
    pub stride: usize,
    /// A head's first row among them.
    pub first: usize,
    /// Rows of a head.
    pub count: usize,
}

impl LatentAttention {
    /// Declares the tensors below `prefix` (`layers.N.self_attn`). Keys and values of the latent come from one matrix,
    /// or from two (mlx-lm), where that of keys is transposed already.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        shape: &LatentConfig,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (hidden, heads) = (config.hidden, config.attention.query_heads);
        let LatentConfig { rank, plain_dim, value_dim, .. } = *shape;
        let name = |part: &str| format!("{prefix}.{part}");
        let query_rows = heads * (plain_dim + config.attention.rope.dims);
        let (query_down, query) = match shape.query_rank {
            None => (None, catalog.matrix(&name("q_proj"), query_rows, hidden)?),
            Some(width) => {
                let matrix = catalog.matrix(&name("q_a_proj"), width, hidden)?;
                let norm = catalog.vector(&name("q_a_layernorm"), width, VectorRole::Norm)?;
                let query = catalog.matrix(&name("q_b_proj"), query_rows, width)?;
                (Some((matrix, norm)), query)
            }
        };
        let [absorb, expand] = if catalog.has(&name("embed_q")) {
            let keys = catalog.stacked(&name("embed_q"), [heads, rank, plain_dim])?;
            let values = catalog.stacked(&name("unembed_out"), [heads, value_dim, rank])?;
            [
                HeadRows { matrix: keys, stride: rank, first: 0, count: rank },
                HeadRows { matrix: values, stride: value_dim, first: 0, count: value_dim },
            ]
        } else {
            let (both, name) = (plain_dim + value_dim, name("kv_b_proj"));
            let keys = (0..heads).map(|head| head * both..head * both + plain_dim);
            let shape = (heads * both, rank);
            let keys = catalog.transposed(&name, shape, keys.collect())?;
            // Where heads part rows that share scales, their values are decoded.
            let shared = catalog.rows_per_scale(&name, shape)?;
            let whole = plain_dim.is_multiple_of(shared) && both.is_multiple_of(shared);
            let values = if whole {
                let matrix = catalog.matrix(&name, heads * both, rank)?;
                HeadRows { matrix, stride: both, first: plain_dim, count: value_dim }
            } else {
                let rows = (0..heads).map(|head| head * both + plain_dim..(head + 1) * both);
                let [matrix] = catalog.gathered(&name, shape, [rows.collect()])?;
                HeadRows { matrix, stride: value_dim, first: 0, count: value_dim }
            };
            [HeadRows { matrix: keys, stride: rank, first: 0, count: rank }, values]
        };
        Ok(Self {
            query_down,
            query,
            key_value: catalog.matrix(
                &name("kv_a_proj_with_mqa"),
                config.attention.head_dim,
                hidden,
            )?,
            norm: catalog.vector(&name("kv_a_layernorm"), rank, VectorRole::Norm)?,
            absorb,
            expand,
            output: catalog.matrix(&name("o_proj"), hidden, heads * value_dim)?,
            gates: match shape.head_gates {
                false => None,
                true => Some(catalog.matrix(&name("g_proj"), heads, hidden)?),
            },
        })
    }

    /// `x += Wo attend(q, c)` with queries and latent from the stream, normed.
    pub(super) fn ops(self, around: &Around, choice: Choice) -> Vec<Op> {
        use Register::{
            Context, Gate, IndexGates, IndexQuery, IndexValues, IndexWeights, Key, Normed, Query,
            QueryLatent,
        };
        let (first, to) = match self.query_down {
            None => (self.query, Query),
            Some((down, _)) => (down, QueryLatent),
        };
        let mut products = [(first, to), (self.key_value, Key)].map(Product::from).to_vec();
        products.extend(self.gates.map(|gates| Product::from((gates, Gate))));
        let mut queries = vec![Product { matrix: self.query, to: Query }];
        if let Choice::Own(indexer) = choice {
            let inputs = [(indexer.key, IndexValues), (indexer.weights, IndexWeights)];
            products.extend(inputs.map(Product::from));
            products.extend(indexer.pool.map(|pool| Product::from((pool.gates, IndexGates))));
            queries.push(Product { matrix: indexer.query, to: IndexQuery });
        }
        let mut ops = around.open();
        ops.push(Op::Linear { from: Normed, products });
        if let Some((_, weight)) = self.query_down {
            ops.push(Op::NormRow { register: QueryLatent, weight });
            ops.push(Op::Linear { from: QueryLatent, products: queries });
        }
        ops.push(match choice {
            Choice::None => Op::AttendLatent(self),
            Choice::Own(indexer) => Op::AttendRows { rows: self, indexer: Some(indexer) },
            Choice::AsBefore => Op::AttendRows { rows: self, indexer: None },
        });
        ops.extend(self.gates.map(|_| Op::GateHeads { x: Context, gate: Gate }));
        ops.extend(around.close(Context, self.output));
        ops
    }
}

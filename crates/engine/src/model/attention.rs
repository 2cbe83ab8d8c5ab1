//! Softmax attention with partial rotation, of halves or of neighbours, and, where a family has them, per-head norms,
//! an output gate, biases, sinks (reference: transformers `Qwen3_5MoeAttention`, `Qwen3MoeAttention`,
//! `GptOssAttention`, `Gemma4TextAttention`).

use super::Around;
use super::config::{ModelConfig, Values};
use super::index::{IndexConfig, Indexer};
use super::program::{Op, Product};
use super::register::Register;
use super::rope::Pairs;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Weights of an attention layer.
pub struct Attention {
    /// `[query_heads * head_dim, hidden]`; with an output gate twice the rows, per head query then gate.
    pub query: MatrixId,
    /// `[key_value_heads * head_dim, hidden]`
    pub key: MatrixId,
    /// `[key_value_heads * head_dim, hidden]`; none where keys are the values.
    pub value: Option<MatrixId>,
    /// `[hidden, query_heads * head_dim]`
    pub output: MatrixId,
    /// Norms of the heads of queries and keys, `[head_dim]` each.
    pub norms: Option<[VectorId; 2]>,
    /// Norms of queries and keys of all heads together, as wide as these.
    pub whole_norms: Option<[VectorId; 2]>,
    /// What is added to queries, keys and values.
    pub biases: Option<[VectorId; 3]>,
    /// What is added to the output.
    pub output_bias: Option<VectorId>,
    /// `[query_heads]`: scores that only take weight from the others.
    pub sinks: Option<VectorId>,
    /// True when `query` carries the output gate.
    pub gated: bool,
    /// What values are.
    pub values: Values,
    /// What chooses the keys that are seen, where not all are.
    pub indexer: Option<Indexer>,
}

impl Attention {
    /// Declares the tensors of a layer below `prefix` (`layers.N.self_attn`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        layer: usize,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let shape = config.attention_of(layer);
        let (queries, keys) = (shape.query_width(), shape.key_width());
        let query_rows = if shape.output_gate { 2 * queries } else { queries };
        let pairs = shape.rope.pairs;
        let parts = shape.biases || shape.head_norms || shape.whole_norms || shape.output_gate;
        assert!(pairs == Pairs::Halves || !parts, "rows of queries and keys alone are moved");
        // Devices rotate halves: rows of other pairs are put in that order when they are loaded.
        let mut rotated = |name: &str, rows: usize, heads: usize| {
            let name = format!("{prefix}.{name}");
            match pairs.moved_rows(heads, shape.head_dim, shape.rope.dims) {
                None => catalog.matrix(&name, rows, config.hidden),
                Some(order) => {
                    let [matrix] = catalog.gathered(&name, (rows, config.hidden), [order])?;
                    Ok(matrix)
                }
            }
        };
        use VectorRole::{Norm, Plain};
        let of_heads = [("q_norm", shape.head_dim), ("k_norm", shape.head_dim)];
        let of_rows = [("q_norm", queries), ("k_norm", keys)];
        let added = [("q_proj.bias", query_rows), ("k_proj.bias", keys), ("v_proj.bias", keys)];
        let output_bias = ("o_proj.bias", config.hidden);
        Ok(Self {
            query: rotated("q_proj", query_rows, shape.query_heads)?,
            key: rotated("k_proj", keys, shape.key_value_heads)?,
            value: match shape.values {
                Values::NormedKeys => None,
                Values::Projected | Values::Normed => {
                    Some(catalog.matrix(&format!("{prefix}.v_proj"), keys, config.hidden)?)
                }
            },
            output: catalog.matrix(&format!("{prefix}.o_proj"), config.hidden, queries)?,
            norms: vectors(catalog, prefix, shape.head_norms, of_heads, Norm)?,
            whole_norms: vectors(catalog, prefix, shape.whole_norms, of_rows, Norm)?,
            biases: vectors(catalog, prefix, shape.biases, added, Plain)?,
            output_bias: vectors(catalog, prefix, shape.output_bias, [output_bias], Plain)?
                .map(|[bias]| bias),
            sinks: vectors(catalog, prefix, shape.sinks, [("sinks", shape.query_heads)], Plain)?
                .map(|[sinks]| sinks),
            gated: shape.output_gate,
            values: shape.values,
            indexer: {
                let prefix = format!("{prefix}.indexer");
                let declare =
                    |it: &IndexConfig| Indexer::declare(it, config.hidden, &prefix, catalog);
                config.index.as_ref().map(declare).transpose()?
            },
        })
    }

    /// `x += Wo (attend(q, k, v) * sigmoid(gate))` with q, k, v, gate from what `around` reads; q and k are rotated by
    /// position in a layer that `rotates`.
    pub(super) fn ops(&self, around: &Around, rotates: bool) -> Vec<Op> {
        use Register::{Context, Gate, IndexQuery, Key, Normed, Query, QueryGate, Residual, Value};
        let query = if self.gated { QueryGate } else { Query };
        let mut products = vec![(self.query, query), (self.key, Key)];
        products.extend(self.value.map(|value| (value, Value)));
        products.extend(self.indexer.map(|indexer| (indexer.query_key, IndexQuery)));
        let mut ops = around.open();
        ops.push(Op::Linear {
            from: Normed,
            products: products.into_iter().map(Product::from).collect(),
        });
        let projected = [query, Key, Value];
        if let Some(biases) = self.biases {
            let added = projected.into_iter().zip(biases);
            ops.extend(added.map(|(register, bias)| Op::AddBias { register, bias }));
        }
        if let Some(norms) = self.whole_norms {
            let rows = projected.into_iter().zip(norms);
            ops.extend(rows.map(|(register, weight)| Op::NormRow { register, weight }));
        }
        if self.gated {
            ops.push(Op::SplitQueryGate);
        }
        // Before keys are normed and rotated in place.
        ops.extend(match self.values {
            Values::Projected => None,
            Values::Normed => Some(Op::NormValues { from: Value }),
            Values::NormedKeys => Some(Op::NormValues { from: Key }),
        });
        let heads = [Query, Key];
        match self.norms {
            Some(norms) => {
                ops.extend(heads.into_iter().zip(norms).map(|(heads, weight)| match rotates {
                    true => Op::NormRotate { heads, weight },
                    false => Op::NormHeads { heads, weight },
                }))
            }
            None if rotates => ops.extend(heads.map(|heads| Op::Rotate { heads })),
            None => {}
        }
        ops.push(match self.indexer {
            Some(indexer) => Op::AttendIndexed(indexer),
            None => Op::Attend { sinks: self.sinks },
        });
        if self.gated {
            ops.push(Op::SigmoidGate { x: Context, gate: Gate });
        }
        ops.extend(around.close(Context, self.output));
        ops.extend(self.output_bias.map(|bias| Op::AddBias { register: Residual, bias }));
        ops
    }
}

/// Vectors of a layer by name and length, declared in that order; none where the family has none.
fn vectors<const N: usize>(
    catalog: &mut Catalog<'_>,
    prefix: &str,
    there: bool,
    parts: [(&str, usize); N],
    role: VectorRole,
) -> Result<Option<[VectorId; N]>, EngineError> {
    if !there {
        return Ok(None);
    }
    let declare = |(part, length)| catalog.vector(&format!("{prefix}.{part}"), length, role);
    let declared: Vec<VectorId> = parts.into_iter().map(declare).collect::<Result<_, _>>()?;
    Ok(declared.try_into().ok())
}

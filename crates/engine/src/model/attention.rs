//! Softmax attention with per-head norms, partial rotation and an optional output gate
//! (reference: transformers `Qwen3_5MoeAttention`, `Qwen3MoeAttention`).

use store::LayerId;

use super::config::ModelConfig;
use crate::EngineError;
use crate::backend::{Backend, Register};
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Weights of an attention layer.
pub struct Attention {
    /// `[query_heads * head_dim, hidden]`; with an output gate twice the rows, per head query then gate.
    pub query: MatrixId,
    /// `[key_value_heads * head_dim, hidden]`
    pub key: MatrixId,
    /// `[key_value_heads * head_dim, hidden]`
    pub value: MatrixId,
    /// `[hidden, query_heads * head_dim]`
    pub output: MatrixId,
    /// `[head_dim]`
    pub query_norm: VectorId,
    /// `[head_dim]`
    pub key_norm: VectorId,
    /// True when `query` carries the output gate.
    pub gated: bool,
}

impl Attention {
    /// Declares the tensors below `prefix` (`layers.N.self_attn`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let shape = &config.attention;
        let queries = shape.query_heads * shape.head_dim;
        let keys = shape.key_value_heads * shape.head_dim;
        let query_rows = if shape.output_gate { 2 * queries } else { queries };
        Ok(Self {
            query: catalog.matrix(&format!("{prefix}.q_proj"), query_rows, config.hidden)?,
            key: catalog.matrix(&format!("{prefix}.k_proj"), keys, config.hidden)?,
            value: catalog.matrix(&format!("{prefix}.v_proj"), keys, config.hidden)?,
            output: catalog.matrix(&format!("{prefix}.o_proj"), config.hidden, queries)?,
            query_norm: catalog.vector(
                &format!("{prefix}.q_norm"),
                shape.head_dim,
                VectorRole::Norm,
            )?,
            key_norm: catalog.vector(
                &format!("{prefix}.k_norm"),
                shape.head_dim,
                VectorRole::Norm,
            )?,
            gated: shape.output_gate,
        })
    }

    /// `x += Wo (attend(q, k, v) * sigmoid(gate))` with q, k, v, gate from the stream, normed.
    pub(super) fn forward(&self, layer: LayerId, norm: VectorId, backend: &mut dyn Backend) {
        use Register::{Key, Query, QueryGate, Value};
        let query = if self.gated { QueryGate } else { Query };
        backend.norm_linear(norm, &[(self.query, query), (self.key, Key), (self.value, Value)]);
        backend.attend_heads(layer, self.gated, self.query_norm, self.key_norm);
        backend.attention_output(self.gated, self.output);
    }
}

//! GatedDeltaNet: a causal convolution and the gated delta rule over a fixed recurrent state
//! (reference: transformers `Qwen3_5MoeGatedDeltaNet`; Yang et al., "Gated Delta Networks", 2024).

use store::LayerId;

use super::config::{DeltaConfig, ModelConfig};
use crate::EngineError;
use crate::backend::{Backend, Register};
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Weights of a GatedDeltaNet layer.
pub struct DeltaNet {
    /// `[channels, hidden]`: queries of all heads, keys of all heads, values of all heads.
    pub query_key_value: MatrixId,
    /// `[value_heads * value_dim, hidden]`: the output gate.
    pub z: MatrixId,
    /// `[value_heads, hidden]`: write strength before its sigmoid.
    pub beta: MatrixId,
    /// `[value_heads, hidden]`: decay before its softplus.
    pub decay: MatrixId,
    /// `[channels, kernel]`, newest tap last.
    pub convolution: VectorId,
    /// `[value_heads]`, `exp(A_log)`, from its logarithm or its negative.
    pub decay_rate: VectorId,
    /// `[value_heads]`, added before the softplus.
    pub decay_bias: VectorId,
    /// `[value_dim]`: the norm of each head's output, not zero-centred.
    pub norm: VectorId,
    /// `[hidden, value_heads * value_dim]`
    pub output: MatrixId,
}

impl DeltaNet {
    /// Declares the tensors below `prefix` (`layers.N.linear_attn`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        shape: &DeltaConfig,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (hidden, heads, width) = (config.hidden, shape.value_heads, shape.value_width());
        let name = |part: &str| format!("{prefix}.{part}");
        Ok(Self {
            query_key_value: catalog.matrix(&name("in_proj_qkv"), shape.channels(), hidden)?,
            z: catalog.matrix(&name("in_proj_z"), width, hidden)?,
            beta: catalog.matrix(&name("in_proj_b"), heads, hidden)?,
            decay: catalog.matrix(&name("in_proj_a"), heads, hidden)?,
            convolution: catalog.vector(
                &name("conv1d"),
                shape.channels() * shape.convolution_kernel,
                VectorRole::Plain,
            )?,
            decay_rate: match catalog.has(&name("A")) {
                true => catalog.vector(&name("A"), heads, VectorRole::Negative)?,
                false => catalog.vector(&name("A_log"), heads, VectorRole::Exponential)?,
            },
            decay_bias: catalog.vector(&name("dt_bias"), heads, VectorRole::Plain)?,
            norm: catalog.vector(&name("norm"), shape.value_dim, VectorRole::Plain)?,
            output: catalog.matrix(&name("out_proj"), hidden, width)?,
        })
    }

    /// `x += Wout (norm(delta_rule(conv(Wqkv x))) * silu(Wz x))` from the stream, normed.
    pub(super) fn forward(&self, layer: LayerId, norm: VectorId, backend: &mut dyn Backend) {
        use Register::{Beta, Decay, Z};
        let others = [(self.z, Z), (self.beta, Beta), (self.decay, Decay)];
        backend.delta_inputs(layer, norm, self.query_key_value, &others, self.convolution);
        backend.delta_rule(layer, self.decay_rate, self.decay_bias);
        backend.delta_output(self.norm, self.output);
    }
}

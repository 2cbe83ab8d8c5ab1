//! GatedDeltaNet: a causal convolution and the gated delta rule over a fixed recurrent state
//! (reference: transformers `Qwen3_5MoeGatedDeltaNet`; Yang et al., "Gated Delta Networks", 2024).

use std::ops::Range;

use super::Around;
use super::config::{DeltaConfig, ModelConfig, OutputGate};
use super::program::{Op, Product};
use super::register::Register;
use crate::EngineError;
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
    /// What the output is multiplied by, of its gate.
    pub gate: OutputGate,
}

/// Rows of one matrix among those of another, from first to last.
type Rows = Vec<Range<usize>>;

/// Rows of `in_proj_qkvz`, as Qwen3-Next stores it, and where in it are queries, keys and values of all heads, and
/// where the output gates: for each key head its query, its key, the values that share it, their gates.
fn mixed_projection(shape: &DeltaConfig) -> (usize, [Rows; 2]) {
    let DeltaConfig { key_heads, key_dim, .. } = *shape;
    let share = shape.value_width() / key_heads;
    let head = 2 * key_dim + 2 * share;
    let of_heads = |start: usize, count: usize| {
        (0..key_heads).map(move |index| index * head + start..index * head + start + count)
    };
    let queries = of_heads(0, key_dim);
    let keys = of_heads(key_dim, key_dim);
    let values = of_heads(2 * key_dim, share);
    let gates = of_heads(2 * key_dim + share, share);
    (key_heads * head, [queries.chain(keys).chain(values).collect(), gates.collect()])
}

/// The same for `in_proj_ba`: for each key head the write strengths of its value heads, then their decays.
fn mixed_gates(shape: &DeltaConfig) -> (usize, [Rows; 2]) {
    let share = shape.value_heads / shape.key_heads;
    let of_heads = |start: usize| {
        (0..shape.key_heads).map(move |head| 2 * share * head + start).map(|at| at..at + share)
    };
    (2 * shape.value_heads, [of_heads(0).collect(), of_heads(share).collect()])
}

impl DeltaNet {
    /// Declares the tensors below `prefix` (`layers.N.linear_attn`). Queries, keys, values and gates may come from one
    /// matrix by key head, and so may write strengths and decays.
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
        let [query_key_value, z] = if catalog.has(&name("in_proj_qkvz")) {
            let (rows, parts) = mixed_projection(shape);
            catalog.gathered(&name("in_proj_qkvz"), (rows, hidden), parts)?
        } else {
            [
                catalog.matrix(&name("in_proj_qkv"), shape.channels(), hidden)?,
                catalog.matrix(&name("in_proj_z"), width, hidden)?,
            ]
        };
        let [beta, decay] = if catalog.has(&name("in_proj_ba")) {
            let (rows, parts) = mixed_gates(shape);
            catalog.gathered(&name("in_proj_ba"), (rows, hidden), parts)?
        } else {
            [
                catalog.matrix(&name("in_proj_b"), heads, hidden)?,
                catalog.matrix(&name("in_proj_a"), heads, hidden)?,
            ]
        };
        Ok(Self {
            query_key_value,
            z,
            beta,
            decay,
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
            gate: shape.gate,
        })
    }

    /// `x += Wout (norm(delta_rule(conv(Wqkv x))) * silu(Wz x))` from what `around` reads.
    pub(super) fn ops(&self, around: &Around) -> Vec<Op> {
        use Register::{Beta, Context, Decay, Mixed, Normed, Z};
        let products =
            [(self.query_key_value, Mixed), (self.z, Z), (self.beta, Beta), (self.decay, Decay)];
        let mut ops = around.open();
        ops.extend([
            Op::Linear { from: Normed, products: products.map(Product::from).to_vec() },
            Op::Convolve { weight: self.convolution },
            Op::DeltaRule { decay_rate: self.decay_rate, decay_bias: self.decay_bias },
            Op::GatedNorm { weight: self.norm, gate: self.gate },
        ]);
        ops.extend(around.close(Context, self.output));
        ops
    }
}

//! GatedDeltaNet: a causal convolution and the gated delta rule over a fixed recurrent state
//! (reference: transformers `Qwen3_5MoeGatedDeltaNet`; Yang et al., "Gated Delta Networks", 2024), and Kimi Delta
//! Attention, where each channel of a key has a decay of its own (reference: transformers `KimiLinearDeltaAttention`;
//! Kimi Team, "Kimi Linear", 2025). The second has matrices and convolutions of queries, keys and values apart; the
//! state of a sequence is that of the first.

use std::ops::Range;

use kernels::DeltaDecay;

use super::Around;
use super::config::{DeltaConfig, ModelConfig, OutputGate};
use super::program::{Op, Product};
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Weights of a layer of the delta rule.
pub struct DeltaNet {
    /// Queries of all heads, keys of all heads, values of all heads.
    pub inputs: Inputs,
    /// `[value_heads * value_dim, hidden]`: the output gate.
    pub z: Factors,
    /// `[value_heads, hidden]`: write strength before its sigmoid.
    pub beta: MatrixId,
    /// `[decays, hidden]`: decays before their function.
    pub decay: Factors,
    /// What they are of.
    pub decays: DeltaDecay,
    /// `[channels, kernel]`, newest tap last.
    pub convolution: VectorId,
    /// `[value_heads]`, `exp(A_log)`, from its logarithm or its negative.
    pub decay_rate: VectorId,
    /// `[decays]`, added to decays before their function.
    pub decay_bias: VectorId,
    /// `[value_dim]`: the norm of each head's output, not zero-centred.
    pub norm: VectorId,
    /// `[hidden, value_heads * value_dim]`
    pub output: MatrixId,
    /// What the output is multiplied by, of its gate.
    pub gate: OutputGate,
}

/// What queries, keys and values are products of.
#[derive(Clone, Copy, Debug)]
pub enum Inputs {
    /// One matrix, `[channels, hidden]`.
    Joined(MatrixId),
    /// Three, `[key_heads * key_dim, hidden]` twice and `[value_heads * value_dim, hidden]`.
    Apart([MatrixId; 3]),
}

/// A matrix, or the two whose product it is.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// `[rank, hidden]`, where there are two.
    pub down: Option<MatrixId>,
    /// `[rows, rank or hidden]`
    pub up: MatrixId,
}

impl Factors {
    /// Adds the products to those `of` the stream and to those behind them, through `low`.
    fn products(self, low: Register, to: Register, of: &mut Vec<Product>, then: &mut Vec<Op>) {
        let up = Product { matrix: self.up, to };
        match self.down {
            None => of.push(up),
            Some(down) => {
                of.push(Product { matrix: down, to: low });
                then.push(Op::Linear { from: low, products: vec![up] });
            }
        }
    }
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

/// Declares `exp(A_log)` of each head.
fn rate(prefix: &str, heads: usize, catalog: &mut Catalog<'_>) -> Result<VectorId, EngineError> {
    let name = format!("{prefix}.A");
    match catalog.has(&name) {
        true => catalog.vector(&name, heads, VectorRole::Negative),
        false => catalog.vector(&format!("{prefix}.A_log"), heads, VectorRole::Exponential),
    }
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
        let whole = |up| Factors { down: None, up };
        Ok(Self {
            inputs: Inputs::Joined(query_key_value),
            z: whole(z),
            beta,
            decay: whole(decay),
            decays: shape.decay,
            convolution: catalog.vector(
                &name("conv1d"),
                shape.channels() * shape.convolution_kernel,
                VectorRole::Plain,
            )?,
            decay_rate: rate(prefix, heads, catalog)?,
            decay_bias: catalog.vector(&name("dt_bias"), heads, VectorRole::Plain)?,
            norm: catalog.vector(&name("norm"), shape.value_dim, VectorRole::Plain)?,
            output: catalog.matrix(&name("out_proj"), hidden, width)?,
            gate: shape.gate,
        })
    }

    /// Declares the tensors below `prefix` (`layers.N.self_attn`) of a layer whose queries, keys and values come from
    /// matrices of their own, and decays and output gates from one each, or from two with `low_rank` values between
    /// them.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare_apart(
        config: &ModelConfig,
        (shape, low_rank): (&DeltaConfig, Option<usize>),
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (hidden, heads, width) = (config.hidden, shape.value_heads, shape.value_width());
        let keys = shape.key_heads * shape.key_dim;
        let name = |part: &str| format!("{prefix}.{part}");
        let mut matrix = |part: &str, rows: usize, columns: usize| {
            catalog.matrix(&name(&format!("{part}_proj")), rows, columns)
        };
        let inputs =
            [matrix("q", keys, hidden)?, matrix("k", keys, hidden)?, matrix("v", width, hidden)?];
        let mut factors = |part: &str, rows: usize| -> Result<Factors, EngineError> {
            let Some(rank) = low_rank else {
                return Ok(Factors { down: None, up: matrix(part, rows, hidden)? });
            };
            let down = matrix(&format!("{part}_a"), rank, hidden)?;
            Ok(Factors { down: Some(down), up: matrix(&format!("{part}_b"), rows, rank)? })
        };
        let (decay, z) = (factors("f", shape.decays())?, factors("g", width)?);
        let (beta, output) = (matrix("b", heads, hidden)?, matrix("o", hidden, width)?);
        let taps = shape.convolution_kernel;
        let convolutions = [("q_conv1d", keys), ("k_conv1d", keys), ("v_conv1d", width)]
            .map(|(part, channels)| (name(part), channels * taps));
        Ok(Self {
            inputs: Inputs::Apart(inputs),
            z,
            beta,
            decay,
            decays: shape.decay,
            convolution: catalog.chained(&convolutions, VectorRole::Plain)?,
            decay_rate: rate(prefix, heads, catalog)?,
            decay_bias: catalog.vector(&name("dt_bias"), shape.decays(), VectorRole::Plain)?,
            norm: catalog.vector(&name("o_norm"), shape.value_dim, VectorRole::Plain)?,
            output,
            gate: shape.gate,
        })
    }

    /// `x += Wout (norm(delta_rule(conv(Wqkv x))) * gate(Wz x))` from what `around` reads.
    pub(super) fn ops(&self, around: &Around) -> Vec<Op> {
        use Register::{
            Beta, Context, Decay, DecayLow, GateLow, Key, Mixed, Normed, Query, Value, Z,
        };
        let from = [Query, Key, Value];
        let (mut products, mut then) = match self.inputs {
            Inputs::Joined(matrix) => (vec![Product { matrix, to: Mixed }], Vec::new()),
            Inputs::Apart(matrices) => {
                let products = matrices.into_iter().zip(from).map(Product::from);
                (products.collect(), vec![Op::Join { from, to: Mixed }])
            }
        };
        self.z.products(GateLow, Z, &mut products, &mut then);
        products.push(Product { matrix: self.beta, to: Beta });
        self.decay.products(DecayLow, Decay, &mut products, &mut then);
        let mut ops = around.open();
        ops.push(Op::Linear { from: Normed, products });
        ops.extend(then);
        let (decay_rate, decay_bias) = (self.decay_rate, self.decay_bias);
        ops.extend([
            Op::Convolve { weight: self.convolution },
            Op::DeltaRule { decay_rate, decay_bias, decay: self.decays },
            Op::GatedNorm { weight: self.norm, gate: self.gate },
        ]);
        ops.extend(around.close(Context, self.output));
        ops
    }
}

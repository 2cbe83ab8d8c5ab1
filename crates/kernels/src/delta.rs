//! Types of the gated delta rule: shape, form, decays, inputs.

use crate::lanes::LANES;

/// Shape of one gated delta-rule layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of q and k; divides `value_heads`.
    pub key_heads: usize,
    /// Heads of v; v-head `h` uses k-head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Dimensions of a q or k head, at most 256.
    pub key_dim: usize,
    /// Dimensions of a v head.
    pub value_dim: usize,
}

impl DeltaShape {
    /// Columns of the state that are stored together.
    pub(crate) fn column_blocks(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// Floats of the recurrent state of one sequence.
    ///
    /// Layout `[value_heads, ceil(value_dim / 16), key_dim, 16]`: element `S[i, j]` of head `h` is at
    /// `((h * blocks + j / 16) * key_dim + i) * 16 + j % 16`. A block of 16 columns is contiguous
    /// (8 KiB at `key_dim` 128) so that it stays in the first-level cache; padding columns stay zero.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.column_blocks() * self.key_dim * LANES
    }
}

/// How a run of tokens is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaForm {
    /// Token by token: a token's bits do not depend on the batch.
    Step,
    /// In chunks of 64 tokens by matrix products; agrees with `Step` to 1e-5, not to the bit. Decays by channel do not
    /// factor over a chunk within the range of binary32: with those, tokens are computed as in `Step`.
    Chunked,
}

/// What decays a state before a token is written to it; `x` is `a + dt_bias`, and `decay` is of the head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeltaDecay {
    /// One number of a head, `exp(-decay * softplus(x))`.
    Heads,
    /// The same for each channel of a head's keys: row `i` of the state has its own (Kimi Team, "Kimi Linear", 2025).
    Channels,
    /// For each channel `exp(-bound * sigmoid(decay * x))`, which is never below `exp(-bound)`.
    BoundedChannels {
        /// Largest magnitude of a decay's logarithm.
        bound: f32,
    },
}

impl DeltaDecay {
    /// Decays of a head whose keys have `key_dim` values.
    pub fn of_head(self, key_dim: usize) -> usize {
        match self {
            Self::Heads => 1,
            Self::Channels | Self::BoundedChannels { .. } => key_dim,
        }
    }
}

/// Inputs of the delta rule for a run of tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// `[tokens, key_heads, key_dim]`, before normalisation; token `t` starts at `t * qk_stride`.
    pub q: &'a [f32],
    /// As `q`.
    pub k: &'a [f32],
    /// `[tokens, value_heads, value_dim]`; token `t` starts at `t * v_stride`.
    pub v: &'a [f32],
    /// Floats from one token of `q` and `k` to the next: `key_heads * key_dim` when dense, more when
    /// they are parts of wider rows (slices of the output of the convolution).
    pub qk_stride: usize,
    /// Floats from one token of `v` to the next: `value_heads * value_dim` when dense.
    pub v_stride: usize,
    /// What `a` and `dt_bias` are.
    pub decays: DeltaDecay,
    /// `[tokens, value_heads]`, or `[tokens, value_heads, key_dim]` where channels have decays of their own.
    pub a: &'a [f32],
    /// `[tokens, value_heads]`: the write strength is `sigmoid(b)`.
    pub b: &'a [f32],
    /// `[value_heads]`: `exp(A_log)`.
    pub decay: &'a [f32],
    /// `[value_heads]`, or `[value_heads, key_dim]`.
    pub dt_bias: &'a [f32],
}

/// Decay (as a logarithm, at most 0) and write strength of one token and head.
pub(crate) fn gates(
    inputs: &DeltaInputs<'_>,
    heads: usize,
    token: usize,
    head: usize,
) -> (f32, f32) {
    let x = inputs.a[token * heads + head] + inputs.dt_bias[head];
    // softplus without overflow: log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
    let softplus = if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() };
    (-inputs.decay[head] * softplus, strength(inputs, heads, token, head))
}

/// Write strength of one token and head.
pub(crate) fn strength(inputs: &DeltaInputs<'_>, heads: usize, token: usize, head: usize) -> f32 {
    1.0 / (1.0 + (-inputs.b[token * heads + head]).exp())
}

//! The gated delta rule, token by token (Yang et al., "Gated Delta Networks", 2024):
//! `S = g S + k (beta (v - g k S))^T`, `y = q S`. A decay `g` is of a head, or of each channel of its keys (Kimi Team,
//! "Kimi Linear", 2025): then it is of a row of `S`, and [`super::delta_channels`] computes it before.
//! Queries and keys were normalised before ([`launch_heads`]).

use super::Op;
use super::attention::Run;
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a key head.
pub const KEY_DIM_LIMIT: usize = 256;
/// Added under the root when queries and keys are normalised.
pub(crate) const NORM_EPSILON: &str = "1.0e-6";

/// Heads of a delta layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Values of a key head.
    pub key_dim: usize,
    /// Values of a value head.
    pub value_dim: usize,
    /// True where value head `h` uses key head `h % key_heads`, else `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

impl Shape {
    /// Queries, keys and values of a token.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Numbers of the state of a sequence: `[value_heads, key_dim, value_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

pub(crate) fn heads(form: Form) -> (Source, String) {
    let source = Source::new()
        .write("x", "f32")
        .parameters(&["channels", "key_heads", "dim"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let body = format!(
        "let at = wid.y * p.channels + wid.x * p.dim;
        var value = 0.0;
        if lid < p.dim {{ value = x[at + lid]; }}
        red[lid] = value * value;
        let root = sqrt(tree_sum(lid) + {NORM_EPSILON});
        var factor = 1.0;
        if wid.x < p.key_heads {{ factor = 1.0 / sqrt(f32(p.dim)); }}
        if lid < p.dim {{ x[at + lid] = value * (factor / root); }}
        "
    );
    (source, body)
}

/// Normalises each head of the queries and keys of `x[tokens, channels]` in place and scales queries by the root of
/// their size.
///
/// # Errors
/// The device failed.
pub fn launch_heads(
    gpu: &mut Gpu,
    x: &Buffer,
    shape: Shape,
    tokens: usize,
) -> Result<(), GpuError> {
    assert!(shape.key_dim <= KEY_DIM_LIMIT, "key heads of {}", shape.key_dim);
    let parameters = [shape.channels() as u32, shape.key_heads as u32, shape.key_dim as u32];
    let groups = [2 * shape.key_heads as u32, tokens as u32, 1];
    gpu.dispatch(Op::DeltaHeads, &[x.all()], &parameters, groups)
}

/// Whether the part of a key head that an invocation has is whole vectors of four.
pub(crate) fn wide(key_dim: usize) -> bool {
    key_dim.is_multiple_of(32)
}

/// What the delta rule reads beside its state.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[batch, channels]`, after [`launch_heads`].
    pub x: &'a Buffer,
    /// `[batch, value_heads]`: write strengths before the sigmoid.
    pub beta: &'a Buffer,
    /// What decays the state.
    pub decays: Decays<'a>,
}

/// Decays of the delta rule.
#[derive(Clone, Copy)]
pub enum Decays<'a> {
    /// One of a head.
    Heads {
        /// `[batch, value_heads]`: decays before the softplus.
        decay: &'a Buffer,
        /// `[value_heads]`
        rate: &'a Buffer,
        /// `[value_heads]`
        bias: &'a Buffer,
    },
    /// `[batch, value_heads, key_dim]`, after [`super::delta_channels::launch`].
    Channels(&'a Buffer),
}

/// `y[batch, value_heads, value_dim]` = the delta rule over the run's rows; `state` becomes that after it.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    inputs: Inputs<'_>,
    state: &Buffer,
    y: &Buffer,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let parameters = [
        shape.key_heads as u32,
        shape.value_heads as u32,
        shape.value_dim as u32,
        u32::from(shape.tiled),
        run.first as u32,
        run.tokens as u32,
    ];
    let mut buffers = vec![inputs.x, inputs.beta];
    let channels = match inputs.decays {
        Decays::Heads { decay, rate, bias } => {
            buffers.extend([decay, rate, bias]);
            false
        }
        Decays::Channels(decays) => {
            buffers.push(decays);
            true
        }
    };
    buffers.extend([state, y]);
    let spans: Vec<_> = buffers.into_iter().map(Buffer::all).collect();
    let groups = [shape.value_heads as u32, (shape.value_dim as u32).div_ceil(32), 1];
    let wide = wide(shape.key_dim) && shape.value_dim.is_multiple_of(4);
    let op = Op::Delta { key_dim: shape.key_dim as u32, wide, channels };
    gpu.dispatch(op, &spans, &parameters, groups)
}

//! The gated delta rule, token by token (Yang et al., "Gated Delta Networks", 2024):
//! `S = g S + k (beta (v - g k S))^T`, `y = q S`.
//!
//! A workgroup owns 32 columns of one head's state; an eighth of the rows of a column is one invocation's, in
//! registers. Queries and keys were normalised before ([`launch_heads`]).

use std::fmt::Write as _;

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

pub(crate) fn source(key_dim: u32, wide: bool) -> (Source, String) {
    let source = Source::new()
        .read("x", if wide { "vec4<f32>" } else { "f32" })
        .read("beta", "f32")
        .read("decay", "f32")
        .read("rate", "f32")
        .read("bias", "f32")
        .write("state", "f32")
        .write("y", "f32")
        .parameters(&["key_heads", "value_heads", "value_dim", "tiled", "first", "tokens"])
        .shared("partial", "array<vec4<f32>, 512>");
    // An eighth of the rows, the last eighths perhaps fewer.
    let rows = key_dim.div_ceil(8);
    let mut body = format!(
        "let head = wid.x;
        var key_head = head / (p.value_heads / p.key_heads);
        if p.tiled != 0u {{ key_head = head % p.key_heads; }}
        let local = lid & 31u;
        let eighth = lid >> 5u;
        let column = wid.y * 32u + local;
        let inside = column < p.value_dim;
        let low = eighth * {rows}u;
        let channels = 2u * p.key_heads * {key_dim}u + p.value_heads * p.value_dim;
        let at_state = (head * {key_dim}u + low) * p.value_dim + column;
        "
    );
    for row in 0..rows {
        let _ = write!(
            body,
            "var s{row} = 0.0;
            if inside && low + {row}u < {key_dim}u {{ s{row} = state[at_state + {row}u * p.value_dim]; }}
            "
        );
    }
    // The query, the key, and decay, strength and value of token `row`.
    let value = if wide { "x[at_value >> 2u][at_value & 3u]" } else { "x[at_value]" };
    let mut ask = format!(
        "let at_query = row * channels + key_head * {key_dim}u + low;
        let at_key = at_query + p.key_heads * {key_dim}u;
        let at_value = row * channels + 2u * p.key_heads * {key_dim}u + head * p.value_dim + column;
        now = vec4<f32>(decay[row * p.value_heads + head], beta[row * p.value_heads + head], 0.0, 0.0);
        if inside {{ now.z = {value}; }}
        "
    );
    body.push_str(
        "let own_rate = rate[head];
        let own_bias = bias[head];
        var now = vec4<f32>(0.0);
        ",
    );
    for index in 0..rows {
        let _ = writeln!(body, "var q{index} = 0.0;\nvar k{index} = 0.0;");
        if !wide {
            let _ = writeln!(
                ask,
                "if low + {index}u < {key_dim}u {{
                    q{index} = x[at_query + {index}u];
                    k{index} = x[at_key + {index}u];
                }}"
            );
            continue;
        }
        if index % 4 == 0 {
            for name in ["query", "key"] {
                let _ = writeln!(ask, "let {name}{index} = x[(at_{name} >> 2u) + {}u];", index / 4);
            }
        }
        let (first, part) = (index / 4 * 4, ["x", "y", "z", "w"][index as usize % 4]);
        let _ = writeln!(ask, "q{index} = query{first}.{part};\nk{index} = key{first}.{part};");
    }
    let _ = write!(body, "{{\nlet row = p.first;\n{ask}}}\n");
    let _ = write!(
        body,
        "for (var t = 0u; t < p.tokens; t = t + 1u) {{
            let row = p.first + t;
            let a = now.x + own_bias;
            let softplus = max(a, 0.0) + log(1.0 + exp(-abs(a)));
            let g = exp(-(own_rate * softplus));
            let strength = 1.0 / (1.0 + exp(-now.y));
            let v = now.z;
            var u = 0.0;
            var w = 0.0;
            var qk = 0.0;
            "
    );
    for index in 0..rows {
        let _ = write!(
            body,
            "let kept{index} = k{index};
            u = fma(s{index}, k{index}, u);
            w = fma(s{index}, q{index}, w);
            qk = fma(q{index}, k{index}, qk);
            "
        );
    }
    // What the next token reads is on its way while this one waits for its sums.
    let _ = write!(body, "if t + 1u < p.tokens {{\nlet row = p.first + t + 1u;\n{ask}}}\n");
    body.push_str(
        "// Tokens take turns with the halves of `partial`: one barrier a token is enough.
            let half = (t & 1u) * 256u;
            partial[half + lid] = vec4<f32>(u, w, qk, 0.0);
            workgroupBarrier();
            var all = partial[half + local];
            for (var other = 1u; other < 8u; other = other + 1u) { all = all + partial[half + other * 32u + local]; }
            if inside {
                let d = strength * (v - g * all.x);
                if eighth == 0u {
                    y[(row * p.value_heads + head) * p.value_dim + column] = fma(all.z, d, g * all.y);
                }
            "
    );
    for index in 0..rows {
        let _ = writeln!(body, "s{index} = fma(d, kept{index}, s{index} * g);");
    }
    body.push_str("}\n}\n");
    for row in 0..rows {
        let _ = writeln!(
            body,
            "if inside && low + {row}u < {key_dim}u {{ state[at_state + {row}u * p.value_dim] = s{row}; }}"
        );
    }
    (source, body)
}

/// What the delta rule reads beside its state.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[batch, channels]`, after [`launch_heads`].
    pub x: &'a Buffer,
    /// `[batch, value_heads]`: write strengths before the sigmoid.
    pub beta: &'a Buffer,
    /// `[batch, value_heads]`: decays before the softplus.
    pub decay: &'a Buffer,
    /// `[value_heads]`
    pub rate: &'a Buffer,
    /// `[value_heads]`
    pub bias: &'a Buffer,
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
    let Inputs { x, beta, decay, rate, bias } = inputs;
    let spans = [x, beta, decay, rate, bias, state, y].map(Buffer::all);
    let groups = [shape.value_heads as u32, (shape.value_dim as u32).div_ceil(32), 1];
    let wide = wide(shape.key_dim) && shape.value_dim.is_multiple_of(4);
    let op = Op::Delta { key_dim: shape.key_dim as u32, wide };
    gpu.dispatch(op, &spans, &parameters, groups)
}

//! The gated delta rule, token by token (Yang et al., "Gated Delta Networks", 2024):
//! `S = g S + k (beta (v - g k S))^T`, `y = q S`. A decay `g` is of a head, or of each channel of its keys (Kimi Team,
//! "Kimi Linear", 2025): then it is of a row of `S`, and [`super::delta_channels`] computes it before.
//!
//! A workgroup owns 32 columns of one head's state; an eighth of the rows of a column is one invocation's, in
//! registers. Where subgroups have 32 lanes, the eighths of a column are neighbours in one and add up by shuffles: no
//! token waits for a barrier. Queries and keys were normalised before ([`launch_heads`]).

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

/// How an invocation finds its column and its eighth of the column's rows, and how the sums of eighths become one.
fn eighths(form: Form) -> [&'static str; 3] {
    match form.subgroups {
        true => [
            "let local = lid >> 3u;
            let eighth = lid & 7u;
            ",
            "all = all + subgroupShuffleXor(all, 1u);
            all = all + subgroupShuffleXor(all, 2u);
            all = all + subgroupShuffleXor(all, 4u);
            ",
            "",
        ],
        // Tokens take turns with the halves of `partial`: one barrier a token is enough.
        false => [
            "let local = lid & 31u;
            let eighth = lid >> 5u;
            ",
            "let half = (t & 1u) * 256u;
            partial[half + lid] = vec4<f32>(all, 0.0);
            workgroupBarrier();
            let at = half + local;
            all = ((partial[at] + partial[at + 32u]) + (partial[at + 64u] + partial[at + 96u])
                + ((partial[at + 128u] + partial[at + 160u]) + (partial[at + 192u] + partial[at + 224u]))).xyz;
            ",
            "array<vec4<f32>, 512>",
        ],
    }
}

/// From `a`, a decay before its function with its bias, and a rate to the decay `g`.
pub(super) fn decay_of(rate: &str) -> String {
    format!(
        "let softplus = max(a, 0.0) + log(1.0 + exp(-abs(a)));
        let g = exp(-({rate} * softplus));
        "
    )
}

/// `channels`: decays are of the channels of keys, and computed.
pub(crate) fn source(key_dim: u32, wide: bool, channels: bool, form: Form) -> (Source, String) {
    let [own, add_up, shared] = eighths(form);
    let values = if wide { "vec4<f32>" } else { "f32" };
    let source = Source::new().read("x", values).read("beta", "f32");
    let source = match channels {
        true => source.read("decay", values),
        false => source.read("decay", "f32").read("rate", "f32").read("bias", "f32"),
    };
    let source = source.write("state", "f32").write("y", "f32").parameters(&[
        "key_heads",
        "value_heads",
        "value_dim",
        "tiled",
        "first",
        "tokens",
    ]);
    let source = if shared.is_empty() { source } else { source.shared("partial", shared) };
    // Vectors of four rows; those of an eighth lie apart, so that eight invocations read what lies together.
    let count = key_dim.div_ceil(32);
    let mut body = format!(
        "let head = wid.x;
        var key_head = head / (p.value_heads / p.key_heads);
        if p.tiled != 0u {{ key_head = head % p.key_heads; }}
        {own}let column = wid.y * 32u + local;
        let inside = column < p.value_dim;
        let low = eighth * 4u;
        let channels = 2u * p.key_heads * {key_dim}u + p.value_heads * p.value_dim;
        let at_state = (head * {key_dim}u + low) * p.value_dim + column;
        "
    );
    // A row of an eighth, and what must hold for it beside `inside`.
    let row = |index: u32| index / 4 * 32 + index % 4;
    let exists = |index: u32| match key_dim.is_multiple_of(32) {
        true => "true".to_owned(),
        false => format!("low + {}u < {key_dim}u", row(index)),
    };
    let part = |index: u32| ["x", "y", "z", "w"][index as usize % 4];
    for vector in 0..count {
        let _ = writeln!(body, "var s{vector} = vec4<f32>(0.0);");
    }
    for index in 0..4 * count {
        let _ = writeln!(
            body,
            "if inside && {} {{ s{}.{} = state[at_state + {}u * p.value_dim]; }}",
            exists(index),
            index / 4,
            part(index),
            row(index)
        );
    }
    // The query, the key, and decay, strength and value of token `row`.
    let value = if wide { "x[at_value >> 2u][at_value & 3u]" } else { "x[at_value]" };
    let decay = if channels { "0.0" } else { "decay[row * p.value_heads + head]" };
    let mut ask = format!(
        "let at_query = row * channels + key_head * {key_dim}u + low;
        let at_key = at_query + p.key_heads * {key_dim}u;
        let at_value = row * channels + 2u * p.key_heads * {key_dim}u + head * p.value_dim + column;
        now = vec4<f32>({decay}, beta[row * p.value_heads + head], 0.0, 0.0);
        if inside {{ now.z = {value}; }}
        "
    );
    body.push_str("var now = vec4<f32>(0.0);\n");
    match channels {
        true => {
            let _ =
                writeln!(ask, "let at_decay = (row * p.value_heads + head) * {key_dim}u + low;");
        }
        false => body.push_str("let own_rate = rate[head];\nlet own_bias = bias[head];\n"),
    }
    for vector in 0..count {
        let _ = writeln!(body, "var q{vector} = vec4<f32>(0.0);\nvar k{vector} = vec4<f32>(0.0);");
        if channels {
            let _ = writeln!(body, "var g{vector} = vec4<f32>(0.0);");
        }
        if wide && channels {
            let _ = writeln!(ask, "g{vector} = decay[(at_decay >> 2u) + {}u];", 8 * vector);
        }
        if wide {
            let _ = writeln!(
                ask,
                "q{vector} = x[(at_query >> 2u) + {at}u];\nk{vector} = x[(at_key >> 2u) + {at}u];",
                at = 8 * vector
            );
            continue;
        }
        for index in 4 * vector..4 * vector + 4 {
            let (part, row) = (part(index), row(index));
            let _ = writeln!(
                ask,
                "if {} {{
                    q{vector}.{part} = x[at_query + {row}u];
                    k{vector}.{part} = x[at_key + {row}u];
                }}",
                exists(index)
            );
            if channels {
                let _ = writeln!(
                    ask,
                    "if {} {{ g{vector}.{part} = decay[at_decay + {row}u]; }}",
                    exists(index)
                );
            }
        }
    }
    let _ = write!(body, "{{\nlet row = p.first;\n{ask}}}\n");
    let decay = match channels {
        true => String::new(),
        false => format!("let a = now.x + own_bias;\n{}", decay_of("own_rate")),
    };
    let _ = write!(
        body,
        "for (var t = 0u; t < p.tokens; t = t + 1u) {{
            let row = p.first + t;
            {decay}let strength = 1.0 / (1.0 + exp(-now.y));
            let v = now.z;
            var u = vec4<f32>(0.0);
            var w = vec4<f32>(0.0);
            var qk = vec4<f32>(0.0);
            "
    );
    for vector in 0..count {
        if channels {
            let _ = writeln!(body, "s{vector} = s{vector} * g{vector};");
        }
        let _ = write!(
            body,
            "let kept{vector} = k{vector};
            u = fma(s{vector}, k{vector}, u);
            w = fma(s{vector}, q{vector}, w);
            qk = fma(q{vector}, k{vector}, qk);
            "
        );
    }
    // What of the old state is decayed behind its sums: where channels have decays of their own, it is decayed already.
    let [sum_k, sum_q, decays] =
        if channels { ["all.x", "all.y", ""] } else { ["g * all.x", "g * all.y", " * g"] };
    // What the next token reads is on its way while this one waits for its sums.
    let _ = write!(
        body,
        "if t + 1u < p.tokens {{\nlet row = p.first + t + 1u;\n{ask}}}
        var all = vec3<f32>((u.x + u.y) + (u.z + u.w), (w.x + w.y) + (w.z + w.w), (qk.x + qk.y) + (qk.z + qk.w));
        {add_up}let d = strength * (v - {sum_k});
        if inside && eighth == 0u {{
            y[(row * p.value_heads + head) * p.value_dim + column] = fma(all.z, d, {sum_q});
        }}
        "
    );
    for vector in 0..count {
        let _ = writeln!(body, "s{vector} = fma(vec4<f32>(d), kept{vector}, s{vector}{decays});");
    }
    body.push_str("}\n");
    for index in 0..4 * count {
        let _ = writeln!(
            body,
            "if inside && {} {{ state[at_state + {}u * p.value_dim] = s{}.{}; }}",
            exists(index),
            row(index),
            index / 4,
            part(index)
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

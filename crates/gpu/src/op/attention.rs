//! A cache of keys and values, and attention over it with an online softmax.
//!
//! A cache holds rows `[positions, key_value_heads, dim]` of f32, or of f16 two to a word. One workgroup computes one
//! query head of one token: scores of 256 positions, one per invocation, then their values, one dimension per
//! invocation. Blocks begin at multiples of 256, so that a token's sums do not depend on its batch.

use super::Op;
use crate::source::{Source, TREE_MAX, TREE_SUM};
use crate::{Buffer, Gpu, GpuError};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Binary32.
    F32,
    /// Binary16.
    F16,
}

impl Cache {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_value_heads: usize,
    /// Values of a head, even.
    pub dim: usize,
}

/// A run of tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Row of its first token in the batch.
    pub first: usize,
    /// Tokens.
    pub tokens: usize,
    /// Position of its first token in the sequence.
    pub position: usize,
}

pub(crate) fn append(cache: Cache) -> (Source, String) {
    let source = Source::new()
        .read("key", "f32")
        .read("value", "f32")
        .write("keys", "u32")
        .write("values", "u32")
        .parameters(&["width", "first", "position"]);
    let (per, pack) = match cache {
        Cache::F32 => (1, "bitcast<u32>(FROM[source])"),
        Cache::F16 => (2, "pack2x16float(vec2<f32>(FROM[source], FROM[source + 1u]))"),
    };
    let (key, value) = (pack.replace("FROM", "key"), pack.replace("FROM", "value"));
    let body = format!(
        "let word = wid.x * 256u + lid;
        let words = p.width / {per}u;
        if word < words {{
            let source = (p.first + wid.y) * p.width + word * {per}u;
            let to = (p.position + wid.y) * words + word;
            keys[to] = {key};
            values[to] = {value};
        }}
        "
    );
    (source, body)
}

/// Writes the run's rows of `key` and `value`, `[batch, key_value_heads * dim]`, to its cache.
///
/// # Errors
/// The device failed.
pub fn launch_append(
    gpu: &mut Gpu,
    cache: Cache,
    (key, value): (&Buffer, &Buffer),
    (keys, values): (&Buffer, &Buffer),
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let width = (shape.key_value_heads * shape.dim) as u32;
    let parameters = [width, run.first as u32, run.position as u32];
    let spans = [key.all(), value.all(), keys.all(), values.all()];
    let words = width / (4 / cache.bytes() as u32);
    let groups = [words.div_ceil(256), run.tokens as u32, 1];
    gpu.dispatch(Op::Append(cache), &spans, &parameters, groups)
}

pub(crate) fn source(cache: Cache) -> (Source, String) {
    let source = Source::new()
        .read("query", "f32")
        .read("keys", "u32")
        .read("values", "u32")
        .write("y", "f32")
        .parameters(&["query_heads", "key_value_heads", "dim", "first", "position", "scale"])
        .shared("red", "array<f32, 256>")
        .shared("q", "array<f32, 256>")
        .shared("weights", "array<f32, 256>")
        .function(TREE_SUM)
        .function(TREE_MAX);
    let (dot, value) = match cache {
        Cache::F32 => (
            "for (var d = 0u; d < p.dim; d = d + 1u) { score = fma(q[d], bitcast<f32>(keys[at + d]), score); }",
            "bitcast<f32>(values[at])",
        ),
        Cache::F16 => (
            "for (var d = 0u; d < p.dim; d = d + 2u) {
                let pair = unpack2x16float(keys[(at + d) >> 1u]);
                score = fma(q[d + 1u], pair.y, fma(q[d], pair.x, score));
            }",
            "unpack2x16float(values[at >> 1u] >> ((at & 1u) * 16u)).x",
        ),
    };
    let body = format!(
        "let head = wid.x;
        let row = p.first + wid.y;
        let position = p.position + wid.y;
        let pair_head = head / (p.query_heads / p.key_value_heads);
        let at_query = (row * p.query_heads + head) * p.dim;
        if lid < p.dim {{ q[lid] = query[at_query + lid] * bitcast<f32>(p.scale); }}
        workgroupBarrier();
        let parts = 256u / p.dim;
        let d = lid % p.dim;
        let part = lid / p.dim;
        var greatest = -3.0e38;
        var total = 0.0;
        var sum = 0.0;
        for (var block = 0u; block <= position; block = block + 256u) {{
            let mine = block + lid;
            var score = -3.0e38;
            if mine <= position {{
                score = 0.0;
                let at = (mine * p.key_value_heads + pair_head) * p.dim;
                {dot}
            }}
            red[lid] = score;
            let now = max(greatest, tree_max(lid));
            var weight = 0.0;
            if mine <= position {{ weight = exp(score - now); }}
            weights[lid] = weight;
            red[lid] = weight;
            let keep = exp(greatest - now);
            total = fma(total, keep, tree_sum(lid));
            greatest = now;
            if part < parts {{
                sum = sum * keep;
                let count = min(256u, position - block + 1u);
                for (var j = part; j < count; j = j + parts) {{
                    let at = ((block + j) * p.key_value_heads + pair_head) * p.dim + d;
                    sum = fma(weights[j], {value}, sum);
                }}
            }}
            workgroupBarrier();
        }}
        red[lid] = sum;
        workgroupBarrier();
        if lid < p.dim {{
            var all = red[lid];
            for (var other = 1u; other < parts; other = other + 1u) {{ all = all + red[lid + other * p.dim]; }}
            y[at_query + lid] = all / total;
        }}
        "
    );
    (source, body)
}

/// `y[batch, query_heads, dim]` = causal attention of the run's rows of `query` over its cache, which holds the run
/// already.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    cache: Cache,
    query: &Buffer,
    (keys, values): (&Buffer, &Buffer),
    y: &Buffer,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let parameters = [
        shape.query_heads as u32,
        shape.key_value_heads as u32,
        shape.dim as u32,
        run.first as u32,
        run.position as u32,
        (shape.dim as f32).powf(-0.5).to_bits(),
    ];
    let spans = [query.all(), keys.all(), values.all(), y.all()];
    let groups = [shape.query_heads as u32, run.tokens as u32, 1];
    gpu.dispatch(Op::Attend(cache), &spans, &parameters, groups)
}

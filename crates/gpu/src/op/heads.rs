//! Heads of queries and keys: parting queries from gates, norm and rotation.

use super::attention::{Cache, KeyValue, Run, Shape};
use super::{Op, q8};
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a head.
pub const HEAD_DIM_LIMIT: usize = 256;

pub(crate) fn source(form: Form) -> (Source, String) {
    let source = Source::new()
        .read("weight", "f32")
        .read("angles", "f32")
        .write("x", "f32")
        .parameters(&["heads", "dim", "pairs", "epsilon"])
        .shared("red", "array<f32, 256>")
        .shared("row", "array<f32, 256>")
        .function(tree_sum(form));
    let body = "
        let at = (wid.y * p.heads + wid.x) * p.dim;
        var value = 0.0;
        if lid < p.dim { value = x[at + lid]; }
        red[lid] = value * value;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
        // In two parts: NVIDIA's compiler multiplies factor and weight first where it sees both, and a step's kernel
        // then has other bits (67 of 192 on an H200).
        row[lid] = value * factor;
        workgroupBarrier();
        if lid < p.dim { row[lid] = row[lid] * weight[lid]; }
        workgroupBarrier();
        if lid < p.pairs {
            let angle = (wid.y * p.pairs + lid) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = row[lid];
            let b = row[lid + p.pairs];
            x[at + lid] = fma(a, c, -(b * s));
            x[at + lid + p.pairs] = fma(a, s, b * c);
        } else if lid >= 2u * p.pairs && lid < p.dim {
            x[at + lid] = row[lid];
        }
        ";
    (source, body.to_owned())
}

/// Rows of heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Rows.
    pub tokens: usize,
    /// Heads of each.
    pub heads: usize,
    /// Values of a head.
    pub dim: usize,
}

/// Norms each head of `x[tokens, heads, dim]` and turns its pairs `(j, j + pairs)` by `angles[tokens, pairs]`, cosine
/// and sine of each.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (x, weight, angles): (&Buffer, &Buffer, &Buffer),
    Heads { tokens, heads, dim }: Heads,
    pairs: usize,
    epsilon: f32,
) -> Result<(), GpuError> {
    assert!(dim <= HEAD_DIM_LIMIT && 2 * pairs <= dim, "heads of {dim}, {pairs} pairs");
    let parameters = [heads as u32, dim as u32, pairs as u32, epsilon.to_bits()];
    let spans = [weight.all(), angles.all(), x.all()];
    gpu.dispatch(Op::Heads, &spans, &parameters, [heads as u32, tokens as u32, 1])
}

pub(crate) fn split() -> (Source, String) {
    let source = Source::new()
        .read("both", "f32")
        .write("query", "f32")
        .write("gate", "f32")
        .parameters(&["width", "dim"]);
    let body = "
        let column = wid.x * 256u + lid;
        if column < p.width {
            let source = (wid.y * p.width + column / p.dim * p.dim) * 2u + column % p.dim;
            query[wid.y * p.width + column] = both[source];
            gate[wid.y * p.width + column] = both[source + p.dim];
        }
        ";
    (source, body.to_owned())
}

/// Parts `both[tokens, heads, 2, dim]` into queries and gates.
///
/// # Errors
/// The device failed.
pub fn launch_split(
    gpu: &mut Gpu,
    (both, query, gate): (&Buffer, &Buffer, &Buffer),
    Heads { tokens, heads, dim }: Heads,
) -> Result<(), GpuError> {
    let width = (heads * dim) as u32;
    let spans = [both.all(), query.all(), gate.all()];
    gpu.dispatch(Op::Split, &spans, &[width, dim as u32], [width.div_ceil(256), tokens as u32, 1])
}

/// Buffers and parameters of [`prepare`].
fn prepare_source(cache: Cache, gated: bool, form: Form) -> Source {
    let mut source = Source::new();
    if gated {
        source = source.read("both", "f32");
    }
    source
        .read("key", "f32")
        .read("value", "f32")
        .read("query_weight", "f32")
        .read("key_weight", "f32")
        .read("angles", "f32")
        .write("query", "f32")
        .write("keys", "u32")
        .write("values", "u32")
        .parameters(&[
            "query_heads",
            "key_value_heads",
            "dim",
            "pairs",
            "epsilon",
            "row",
            "position",
        ])
        .shared("red", "array<f32, 256>")
        .shared("row", "array<f32, 256>")
        .function(tree_sum(form))
        .function(&q8::stores(cache, &["row"]))
}

pub(crate) fn prepare(cache: Cache, gated: bool, form: Form) -> (Source, String) {
    let query = match gated {
        true => "both[((p.row * p.query_heads + wid.x) * 2u) * p.dim + lid]",
        false => "query[(p.row * p.query_heads + wid.x) * p.dim + lid]",
    };
    let store = store(cache, "(p.row * p.query_heads + wid.x) * p.dim + lid", "turned");
    let body = format!(
        "let of_query = wid.x < p.query_heads;
        let other = wid.x - p.query_heads;
        let of_key = !of_query && other < p.key_value_heads;
        let at = p.row * p.key_value_heads * p.dim + lid;
        var number = 0.0;
        var weight = 0.0;
        if lid < p.dim {{
            if of_query {{
                number = {query};
                weight = query_weight[lid];
            }} else if of_key {{
                number = key[at + other * p.dim];
                weight = key_weight[lid];
            }} else {{
                number = value[at + (other - p.key_value_heads) * p.dim];
            }}
        }}
        red[lid] = number * number;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
        row[lid] = select(number, number * factor * weight, of_query || of_key);
        workgroupBarrier();
        // As in `source`; values are not turned.
        var turned = row[lid];
        if (of_query || of_key) && lid < 2u * p.pairs {{
            let pair = select(lid, lid - p.pairs, lid >= p.pairs);
            let angle = (p.row * p.pairs + pair) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = row[pair];
            let b = row[pair + p.pairs];
            turned = select(fma(a, c, -(b * s)), fma(a, s, b * c), lid >= p.pairs);
        }}
        workgroupBarrier();
        row[lid] = turned;
        workgroupBarrier();
        {store}"
    );
    (prepare_source(cache, gated, form), body)
}

/// The end of a kernel that prepares heads of one token: of a query `number` goes to `query[at]`, keys and values go
/// from `row` to the cache. `of_query`, `of_key` and `other` say which head the workgroup has.
pub(super) fn store(cache: Cache, at: &str, number: &str) -> String {
    let (words, pack) = match cache {
        Cache::F32 => ("p.dim / 1u", "bitcast<u32>(row[lid])"),
        Cache::F16 => ("p.dim / 2u", "pack2x16float(vec2<f32>(row[2u * lid], row[2u * lid + 1u]))"),
        Cache::Q8 => ("p.dim / 64u * 17u", "word_row(0u, lid, p.dim)"),
    };
    format!(
        "if of_query {{
            if lid < p.dim {{ query[{at}] = {number}; }}
            return;
        }}
        if lid < {words} {{
            let word = {pack};
            let to = (p.position * p.key_value_heads + other % p.key_value_heads) * ({words}) + lid;
            if of_key {{ keys[to] = word; }} else {{ values[to] = word; }}
        }}
        "
    )
}

/// The buffers of [`launch_prepare`].
#[derive(Clone, Copy)]
pub struct Prepared<'a> {
    /// `[batch, query_heads, 2, dim]`: queries and gates; `None` where queries come without, in `query`.
    pub both: Option<&'a Buffer>,
    /// `[batch, key_value_heads, dim]`
    pub key: &'a Buffer,
    /// `[batch, key_value_heads, dim]`
    pub value: &'a Buffer,
    /// `[dim]` each: of queries and keys.
    pub weights: [&'a Buffer; 2],
    /// As in [`launch`].
    pub angles: &'a Buffer,
    /// `[batch, query_heads, dim]`
    pub query: &'a Buffer,
    /// Keys and values of the sequence.
    pub places: KeyValue<'a>,
}

/// Of a run of one token: [`launch_split`] without gates, [`launch`] of
/// queries and of keys, and [`super::attention::launch_append`].
///
/// # Errors
/// The device failed.
pub fn launch_prepare(
    gpu: &mut Gpu,
    cache: Cache,
    of: Prepared<'_>,
    shape: Shape,
    run: Run,
    pairs: usize,
    epsilon: f32,
) -> Result<(), GpuError> {
    let dim = shape.dim;
    assert!(dim <= HEAD_DIM_LIMIT && 2 * pairs <= dim, "heads of {dim}, {pairs} pairs");
    assert!(cache.prepares(dim), "heads of {dim} to {cache:?}");
    let parameters = [
        shape.query_heads as u32,
        shape.key_value_heads as u32,
        dim as u32,
        pairs as u32,
        epsilon.to_bits(),
        run.first as u32,
        run.position as u32,
    ];
    let [query_weight, key_weight] = of.weights;
    let mut spans: Vec<_> = of.both.iter().map(|it| it.all()).collect();
    let KeyValue { keys, values } = of.places;
    let others = [of.key, of.value, query_weight, key_weight, of.angles, of.query, keys, values];
    spans.extend(others.map(Buffer::all));
    let groups = [(shape.query_heads + 2 * shape.key_value_heads) as u32, 1, 1];
    gpu.dispatch(Op::Prepare { cache, gated: of.both.is_some() }, &spans, &parameters, groups)
}

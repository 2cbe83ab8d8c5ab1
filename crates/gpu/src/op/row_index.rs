//! What latent rows are chosen by: queries of an indexer, an index key of each token, whose norm has a mean and a bias,
//! and a score of each row that a token may see. [`super::row_choice`] chooses by them.

use super::attention::{Cache, Run};
use super::{Op, attention_wide, row_choice};
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a query head, and of an index key.
pub const DIM_LIMIT: usize = 256;
/// Heads whose queries are in workgroup memory at once.
const HEADS: u32 = 8;

/// A kernel of the choice of rows, or of attention to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Queries of an indexer, and index keys to a cache.
    Rows(Cache),
    /// Scores of rows by index keys.
    Scores(Cache),
    /// The choice of rows by scores.
    Choice,
    /// Attention to the rows of lists.
    Attention(Cache),
}

impl Kernel {
    /// Declarations and body.
    pub(crate) fn source(self, form: Form) -> (Source, String) {
        match self {
            Self::Rows(cache) => rows(cache, form),
            Self::Scores(cache) => scores(cache),
            Self::Choice => row_choice::source(),
            Self::Attention(cache) => attention_wide::source(cache, true),
        }
    }
}

/// Whether heads of so many values are computed.
pub const fn serves(dim: usize) -> bool {
    dim <= DIM_LIMIT && dim.is_multiple_of(4)
}

/// How index keys are stored next to rows: as floats.
pub fn key_cache(rows: Cache) -> Cache {
    if rows == Cache::F32 { Cache::F32 } else { Cache::F16 }
}

/// Query heads of an indexer.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Values of a head, and of a key.
    pub dim: usize,
    /// First values that are rotated, even.
    pub rotated: usize,
    /// True where values `2 j` and `2 j + 1` are a pair as they come; `j` and `j + rotated / 2` without.
    pub neighbours: bool,
}

fn rows(cache: Cache, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("given", "f32")
        .read("norm", "f32")
        .read("bias", "f32")
        .read("angles", "f32")
        .write("queries", "f32")
        .write("keys", "u32")
        .parameters(&["heads", "dim", "pairs", "step", "apart", "first", "position", "epsilon"])
        .shared("red", "array<f32, 256>")
        .shared("row", &format!("array<f32, {DIM_LIMIT}>"))
        .function(tree_sum(form));
    let store = match cache {
        Cache::F32 => {
            "if lid < p.dim { keys[(p.position + wid.y) * p.dim + lid] = bitcast<u32>(row[lid]); }"
        }
        Cache::F16 | Cache::Q8 => {
            "if 2u * lid < p.dim {
                keys[(p.position + wid.y) * (p.dim / 2u) + lid] =
                    pack2x16float(vec2<f32>(row[2u * lid], row[2u * lid + 1u]));
            }"
        }
    };
    let body = format!(
        "let token = p.first + wid.y;
        let start = (token * p.heads + wid.x) * p.dim;
        let is_key = wid.x == p.heads;
        var value = 0.0;
        if lid < p.dim {{
            if is_key {{ value = given[token * p.dim + lid]; }} else {{ value = queries[start + lid]; }}
        }}
        if is_key {{
            red[lid] = value;
            let mean = tree_sum(lid) / f32(p.dim);
            let off = select(0.0, value - mean, lid < p.dim);
            red[lid] = off * off;
            let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
            if lid < p.dim {{ value = fma(off * factor, norm[lid], bias[lid]); }}
        }}
        row[lid] = value;
        workgroupBarrier();
        var turned = vec2<f32>(0.0);
        if lid < p.pairs {{
            let angle = (token * p.pairs + lid) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = row[lid * p.step];
            let b = row[lid * p.step + p.apart];
            turned = vec2<f32>(fma(a, c, -(b * s)), fma(a, s, b * c));
        }}
        workgroupBarrier();
        if lid < p.pairs {{
            row[lid] = turned.x;
            row[lid + p.pairs] = turned.y;
        }}
        workgroupBarrier();
        if is_key {{
            {store}
        }} else if lid < p.dim {{
            queries[start + lid] = row[lid];
        }}
        "
    );
    (source, body)
}

/// The buffers of [`launch_rows`].
#[derive(Clone, Copy)]
pub struct Indexed<'a> {
    /// `[batch, heads, dim]`: queries, rotated in place; values of a pair are left half the rotated values apart.
    pub queries: &'a Buffer,
    /// `[batch, dim]`: what keys are made of.
    pub given: &'a Buffer,
    /// `[dim]` each: weight and bias of the norm of keys.
    pub norm: [&'a Buffer; 2],
    /// `[batch, rotated / 2]`: cosine and sine of each pair.
    pub angles: &'a Buffer,
    /// `[positions, dim]`: the index keys of the run's sequence.
    pub keys: &'a Buffer,
}

/// Rotates the queries of the run, and norms and rotates its keys and writes them to `keys`; `epsilon` is added to the
/// variance.
///
/// # Errors
/// The device failed.
pub fn launch_rows(
    gpu: &mut Gpu,
    rows: Cache,
    of: Indexed<'_>,
    shape: Heads,
    epsilon: f32,
    run: Run,
) -> Result<(), GpuError> {
    let Heads { heads, dim, rotated, neighbours } = shape;
    assert!(serves(dim) && rotated <= dim && rotated.is_multiple_of(2), "{shape:?}");
    let pairs = rotated / 2;
    let [step, apart] = if neighbours { [2, 1] } else { [1, pairs] };
    let sizes = [heads, dim, pairs, step, apart, run.first, run.position].map(|size| size as u32);
    let parameters = [&sizes[..], &[epsilon.to_bits()]].concat();
    let spans = [of.given, of.norm[0], of.norm[1], of.angles, of.queries, of.keys];
    let groups = [heads as u32 + 1, run.tokens as u32, 1];
    gpu.dispatch(
        Op::ChosenRows(Kernel::Rows(key_cache(rows))),
        &spans.map(Buffer::all),
        &parameters,
        groups,
    )
}

fn scores(cache: Cache) -> (Source, String) {
    let (kind, key) = match cache {
        Cache::F32 => ("vec4<u32>", "bitcast<vec4<f32>>(keys[at + d])"),
        Cache::F16 | Cache::Q8 => (
            "vec2<u32>",
            "vec4<f32>(unpack2x16float(keys[at + d].x), unpack2x16float(keys[at + d].y))",
        ),
    };
    let source = Source::new()
        .read("queries", "vec4<f32>")
        .read("factors", "f32")
        .read("keys", kind)
        .write("scores", "f32")
        .parameters(&["heads", "dim", "top", "first", "position", "stride"])
        .shared("staged", &format!("array<vec4<f32>, {}>", HEADS * DIM_LIMIT as u32 / 4));
    let each = |text: &dyn Fn(u32) -> String| (0..HEADS).map(text).collect::<String>();
    let zero = each(&|at| format!("var sum{at} = vec4<f32>(0.0);\n"));
    let add = each(&|at| format!("sum{at} = fma(staged[{at}u * quads + d], key, sum{at});\n"));
    let weigh = each(&|at| {
        format!(
            "if head + {at}u < p.heads {{
                let product = (sum{at}.x + sum{at}.y) + (sum{at}.z + sum{at}.w);
                score = fma(factors[token * p.heads + head + {at}u], max(product, 0.0), score);
            }}
            "
        )
    });
    let body = format!(
        "let visible = p.position + wid.y + 1u;
        if visible <= p.top || wid.x * 256u >= visible {{ return; }}
        let row = wid.x * 256u + lid;
        let token = p.first + wid.y;
        let quads = p.dim >> 2u;
        // Behind the last row stands that one, whose score is not wanted again.
        let at = min(row, visible - 1u) * quads;
        var score = 0.0;
        for (var head = 0u; head < p.heads; head = head + {HEADS}u) {{
            let begin = (token * p.heads + head) * quads;
            let live = min(p.heads - head, {HEADS}u) * quads;
            workgroupBarrier();
            for (var i = lid; i < {HEADS}u * quads; i = i + 256u) {{
                var four = vec4<f32>(0.0);
                if i < live {{ four = queries[begin + i]; }}
                staged[i] = four;
            }}
            workgroupBarrier();
            {zero}for (var d = 0u; d < quads; d = d + 1u) {{
                let key = {key};
                {add}}}
            {weigh}}}
        if row < visible {{ scores[wid.y * p.stride + row] = score; }}
        "
    );
    (source, body)
}

/// The buffers of [`launch_scores`].
#[derive(Clone, Copy)]
pub struct Scored<'a> {
    /// `[batch, heads, dim]`, rotated.
    pub queries: &'a Buffer,
    /// `[batch, heads]`: what each head weighs.
    pub factors: &'a Buffer,
    /// `[positions, dim]`: the index keys of the run's sequence.
    pub keys: &'a Buffer,
    /// `[tokens, stride]`: of the run's tokens, those of rows that each may see.
    pub scores: &'a Buffer,
    /// Scores from a token's to the next one's.
    pub stride: usize,
}

/// Of each of the run's tokens that may see more than `top` rows, the score of each of them: the sum over heads of a
/// weight times the positive part of query times key. All keys of the run are there.
///
/// # Errors
/// The device failed.
pub fn launch_scores(
    gpu: &mut Gpu,
    rows: Cache,
    of: Scored<'_>,
    Heads { heads, dim, .. }: Heads,
    top: usize,
    run: Run,
) -> Result<(), GpuError> {
    assert!(serves(dim), "heads of {dim}");
    let most = run.position + run.tokens;
    assert!(most <= of.stride, "{run:?}, {} scores", of.stride);
    let parameters = [heads, dim, top, run.first, run.position, of.stride].map(|size| size as u32);
    let spans = [of.queries, of.factors, of.keys, of.scores].map(Buffer::all);
    let groups = [(most as u32).div_ceil(256), run.tokens as u32, 1];
    gpu.dispatch(Op::ChosenRows(Kernel::Scores(key_cache(rows))), &spans, &parameters, groups)
}

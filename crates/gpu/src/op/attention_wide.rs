//! Attention of heads that are wider than [`super::attention`] serves, over rows that may be keys and values at once.
//!
//! A workgroup computes one query head of one token, blocks of 64 positions one behind the other: scores as there, then
//! two values per invocation. A token's sums do not depend on its batch.
//!
//! Where an indexer has chosen rows ([`launch_chosen`]), blocks are of the listed rows in their order. A list of all
//! rows gives the bits of attention without a list.

use super::attention::{Cache, KeyValue, Run};
use super::row_index::Kernel;
use super::{Op, q8};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Most values of a query.
pub const ROW_LIMIT: usize = super::latent::ROW_LIMIT;
/// Most values of a head's result.
pub const VALUES_LIMIT: usize = 512;

/// Heads of such a layer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query heads.
    pub query_heads: usize,
    /// Heads of keys, and of values.
    pub key_value_heads: usize,
    /// Values of a query and of a key, even.
    pub row: usize,
    /// Values of a value, the first of a row where rows are both; even.
    pub values: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Shape {
    /// Whether the kernels compute it.
    pub fn is_served(&self) -> bool {
        let even = self.row.is_multiple_of(2) && self.values.is_multiple_of(2);
        even && self.row <= ROW_LIMIT && self.values <= VALUES_LIMIT.min(self.row)
    }
}

/// Parameters of attention to all rows.
const PARAMETERS: [&str; 7] =
    ["query_heads", "key_value_heads", "row", "values", "first", "position", "scale"];

pub(crate) fn source(cache: Cache, chosen: bool) -> (Source, String) {
    let mut source = Source::new().read("query", "f32").read("keys", "u32").read("values", "u32");
    if chosen {
        source = source.read("chosen", "u32");
    }
    source = source.write("y", "f32").parameters(&PARAMETERS);
    if chosen {
        source = source.parameters(&["listed", "top"]);
    }
    let source = source
        .shared("red", "array<f32, 256>")
        .shared("q", &format!("array<f32, {ROW_LIMIT}>"))
        .shared("scores", "array<vec4<f32>, 16>")
        .shared("weights", "array<vec4<f32>, 16>")
        .function(&q8::loads(cache));
    let (step, score, add) = match cache {
        Cache::F32 => (
            1,
            "score = fma(q[d], bitcast<f32>(keys[at + d]), score);",
            "if lid < p.values { near = fma(weight_of, bitcast<f32>(values[start + lid]), near); }
            if lid + 256u < p.values { far = fma(weight_of, bitcast<f32>(values[start + lid + 256u]), far); }",
        ),
        Cache::F16 => (
            2,
            "let pair = unpack2x16float(keys[(at + d) >> 1u]);
            score = fma(q[d + 1u], pair.y, fma(q[d], pair.x, score));",
            "if 2u * lid < p.values {
                let pair = unpack2x16float(values[(start >> 1u) + lid]);
                near = fma(weight_of, pair.x, near);
                far = fma(weight_of, pair.y, far);
            }",
        ),
        Cache::Q8 => (
            2,
            "let pair = pair_keys(at / p.row, p.row, d / 2u);
            score = fma(q[d + 1u], pair.y, fma(q[d], pair.x, score));",
            "if 2u * lid < p.values {
                let pair = pair_values(start / p.row, p.row, lid);
                near = fma(weight_of, pair.x, near);
                far = fma(weight_of, pair.y, far);
            }",
        ),
    };
    let write = match cache {
        Cache::F32 => {
            "if lid < p.values { y[at_y + lid] = sum / total; }
            if lid + 256u < p.values { y[at_y + lid + 256u] = more / total; }"
        }
        Cache::F16 | Cache::Q8 => {
            "if 2u * lid < p.values {
                y[at_y + 2u * lid] = sum / total;
                y[at_y + 2u * lid + 1u] = more / total;
            }"
        }
    };
    let body =
        BODY.replace("STEP_ALL", &format!("{}u", 4 * step)).replace("STEP", &format!("{step}u"));
    let body = body.replace("SCORE", score).replace("ADD", add).replace("WRITE", write);
    let [position, of_mine, of_other] = if chosen { LISTED } else { ALL };
    let body = body.replace("POSITION", position);
    (source, body.replace("ROW_OF_MINE", of_mine).replace("ROW_OF_OTHER", of_other))
}

/// The last place in the order of rows, the row at the place `mine`, and that at `block + j`: of all rows.
const ALL: [&str; 3] = ["let position = p.position + wid.y;", "mine", "(block + j)"];
/// Of listed rows. A token that may see no more than are listed sees all of them.
const LISTED: [&str; 3] = [
    "let own = p.position + wid.y;
        let chooses = own >= p.top;
        let position = min(own, p.top - 1u);
        let list = (p.listed + wid.y) * p.top;",
    "select(mine, chosen[list + mine], chooses)",
    "select(block + j, chosen[list + block + j], chooses)",
];

const BODY: &str = "
        let head = wid.x;
        POSITION
        let pair_head = head / (p.query_heads / p.key_value_heads);
        let at_query = ((p.first + wid.y) * p.query_heads + head) * p.row;
        let at_y = ((p.first + wid.y) * p.query_heads + head) * p.values;
        for (var i = lid; i < p.row; i = i + 256u) { q[i] = query[at_query + i] * bitcast<f32>(p.scale); }
        workgroupBarrier();
        var greatest = -3.0e38;
        var total = 0.0;
        var sum = 0.0;
        var more = 0.0;
        for (var block = 0u; block <= position; block = block + 64u) {
            let mine = block + (lid >> 2u);
            var score = 0.0;
            if mine <= position {
                let at = (ROW_OF_MINE * p.key_value_heads + pair_head) * p.row;
                for (var d = (lid & 3u) * STEP; d < p.row; d = d + STEP_ALL) {
                    SCORE
                }
            }
            red[lid] = score;
            workgroupBarrier();
            let same = lid & 252u;
            score = (red[same] + red[same + 1u]) + (red[same + 2u] + red[same + 3u]);
            if mine > position { score = -3.0e38; }
            if (lid & 3u) == 0u { scores[lid >> 4u][(lid >> 2u) & 3u] = score; }
            workgroupBarrier();
            var best = scores[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) { best = max(best, scores[fourth]); }
            let most = max(max(best.x, best.y), max(best.z, best.w));
            if (lid & 3u) == 0u {
                weights[lid >> 4u][(lid >> 2u) & 3u] = select(exp(score - most), 0.0, mine > position);
            }
            workgroupBarrier();
            var four = weights[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) { four = four + weights[fourth]; }
            let weight = (four.x + four.y) + (four.z + four.w);
            var near = 0.0;
            var far = 0.0;
            let count = min(64u, position - block + 1u);
            for (var j = 0u; j < count; j = j + 1u) {
                let weight_of = weights[j >> 2u][j & 3u];
                let start = (ROW_OF_OTHER * p.key_value_heads + pair_head) * p.row;
                ADD
            }
            let now = max(greatest, most);
            let keep = exp(greatest - now);
            let share = exp(most - now);
            total = fma(total, keep, weight * share);
            sum = fma(sum, keep, near * share);
            more = fma(more, keep, far * share);
            greatest = now;
        }
        WRITE
        ";

/// The buffers of [`launch`].
#[derive(Clone, Copy)]
pub struct Attended<'a> {
    /// `[batch, query_heads, row]`
    pub query: &'a Buffer,
    /// The cache of the run's sequence.
    pub places: KeyValue<'a>,
    /// `[batch, query_heads, values]`
    pub y: &'a Buffer,
}

/// Rows that tokens of a batch see at most, ascending.
#[derive(Clone, Copy)]
pub struct Chosen<'a> {
    /// `[batch, top]`
    pub rows: &'a Buffer,
    /// The run's first token among those that have a list.
    pub first: usize,
    /// Rows of a token. A token that may see no more has no list.
    pub top: usize,
}

fn parameters(shape: Shape, run: Run) -> Vec<u32> {
    assert!(shape.is_served(), "{shape:?}");
    let Shape { query_heads, key_value_heads, row, values: width, scale } = shape;
    let sizes = [query_heads, key_value_heads, row, width, run.first, run.position];
    [&sizes.map(|size| size as u32)[..], &[scale.to_bits()]].concat()
}

/// `y` of the run = causal attention of `query` over its cache, which holds the run already.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    cache: Cache,
    of: Attended<'_>,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let spans = [of.query, of.places.keys, of.places.values, of.y].map(Buffer::all);
    let groups = [shape.query_heads as u32, run.tokens as u32, 1];
    gpu.dispatch(Op::AttendWide(cache), &spans, &parameters(shape, run), groups)
}

/// As [`launch`], but a token that may see more rows than are listed sees those of its list.
///
/// # Errors
/// The device failed.
pub fn launch_chosen(
    gpu: &mut Gpu,
    cache: Cache,
    of: Attended<'_>,
    chosen: Chosen<'_>,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let mut parameters = parameters(shape, run);
    parameters.extend([chosen.first as u32, chosen.top as u32]);
    let spans = [of.query, of.places.keys, of.places.values, chosen.rows, of.y].map(Buffer::all);
    let groups = [shape.query_heads as u32, run.tokens as u32, 1];
    gpu.dispatch(Op::ChosenRows(Kernel::Attention(cache)), &spans, &parameters, groups)
}

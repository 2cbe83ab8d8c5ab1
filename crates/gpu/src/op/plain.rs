//! Heads that are rotated without a norm, biases of rows, rows of three parts: what only some families have.

use super::attention::{Cache, KeyValue, Run, Shape};
use super::heads::{self, HEAD_DIM_LIMIT};
use super::{Op, q8};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

pub(crate) fn rotate() -> (Source, String) {
    let source = Source::new()
        .read("angles", "f32")
        .write("x", "f32")
        .parameters(&["heads", "dim", "pairs"]);
    let body = "
        let pair = lid % p.pairs;
        let head = wid.x * (256u / p.pairs) + lid / p.pairs;
        if lid / p.pairs < 256u / p.pairs && head < p.heads {
            let at = (wid.y * p.heads + head) * p.dim + pair;
            let angle = (wid.y * p.pairs + pair) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = x[at];
            let b = x[at + p.pairs];
            x[at] = fma(a, c, -(b * s));
            x[at + p.pairs] = fma(a, s, b * c);
        }
        ";
    (source, body.to_owned())
}

/// Turns the pairs `(j, j + pairs)` of each head of `x[tokens, heads, dim]` by `angles[tokens, pairs]`, cosine and sine
/// of each.
///
/// # Errors
/// The device failed.
pub fn launch_rotate(
    gpu: &mut Gpu,
    (x, angles): (&Buffer, &Buffer),
    (tokens, heads, dim): (usize, usize, usize),
    pairs: usize,
) -> Result<(), GpuError> {
    assert!(pairs <= 256 && 2 * pairs <= dim, "heads of {dim}, {pairs} pairs");
    let parameters = [heads as u32, dim as u32, pairs as u32];
    let groups = [heads.div_ceil(256 / pairs) as u32, tokens as u32, 1];
    gpu.dispatch(Op::Rotate, &[angles.all(), x.all()], &parameters, groups)
}

pub(crate) fn add_bias() -> (Source, String) {
    let source = Source::new().read("bias", "f32").write("x", "f32").parameters(&["width"]);
    let body = "
        let column = wid.x * 256u + lid;
        if column < p.width {
            let at = wid.y * p.width + column;
            x[at] = x[at] + bias[column];
        }
        ";
    (source, body.to_owned())
}

/// `x[rows, width] += bias[width]`
///
/// # Errors
/// The device failed.
pub fn launch_add_bias(
    gpu: &mut Gpu,
    (x, bias): (&Buffer, &Buffer),
    (rows, width): (usize, usize),
) -> Result<(), GpuError> {
    let groups = [width.div_ceil(256) as u32, rows as u32, 1];
    gpu.dispatch(Op::AddBias, &[bias.all(), x.all()], &[width as u32], groups)
}

pub(crate) fn join() -> (Source, String) {
    let source = Source::new()
        .read("first", "f32")
        .read("second", "f32")
        .read("third", "f32")
        .write("y", "f32")
        .parameters(&["first_width", "second_width", "third_width"]);
    let body = "
        let two = p.first_width + p.second_width;
        let width = two + p.third_width;
        let column = wid.x * 256u + lid;
        if column < width {
            var value = 0.0;
            if column < p.first_width {
                value = first[wid.y * p.first_width + column];
            } else if column < two {
                value = second[wid.y * p.second_width + (column - p.first_width)];
            } else {
                value = third[wid.y * p.third_width + (column - two)];
            }
            y[wid.y * width + column] = value;
        }
        ";
    (source, body.to_owned())
}

/// Each of `y[rows, sum of widths]` = the rows of the three parts, one behind the other.
///
/// # Errors
/// The device failed.
pub fn launch_join(
    gpu: &mut Gpu,
    parts: [&Buffer; 3],
    y: &Buffer,
    widths: [usize; 3],
    rows: usize,
) -> Result<(), GpuError> {
    let [first, second, third] = parts.map(Buffer::all);
    let groups = [widths.iter().sum::<usize>().div_ceil(256) as u32, rows as u32, 1];
    let parameters = widths.map(|width| width as u32);
    gpu.dispatch(Op::Join, &[first, second, third, y.all()], &parameters, groups)
}

pub(crate) fn prepare(cache: Cache) -> (Source, String) {
    let source = Source::new()
        .read("key", "f32")
        .read("value", "f32")
        .read("query_bias", "f32")
        .read("key_bias", "f32")
        .read("value_bias", "f32")
        .read("angles", "f32")
        .write("query", "f32")
        .write("keys", "u32")
        .write("values", "u32")
        .parameters(&["query_heads", "key_value_heads", "dim", "pairs", "row", "position"])
        .shared("row", "array<f32, 256>")
        .function(&q8::stores(cache, &["row"]));
    let store = heads::store(cache, "at_query", "number");
    let body = format!(
        "let of_query = wid.x < p.query_heads;
        let other = wid.x - p.query_heads;
        let of_key = !of_query && other < p.key_value_heads;
        let at_query = (p.row * p.query_heads + wid.x) * p.dim + lid;
        let at = p.row * p.key_value_heads * p.dim + lid;
        var number = 0.0;
        if lid < p.dim {{
            if of_query {{
                number = query[at_query] + query_bias[wid.x * p.dim + lid];
            }} else if of_key {{
                number = key[at + other * p.dim] + key_bias[other * p.dim + lid];
            }} else {{
                let head = (other - p.key_value_heads) * p.dim;
                number = value[at + head] + value_bias[head + lid];
            }}
        }}
        row[lid] = number;
        workgroupBarrier();
        // As in `rotate`; values are not turned.
        if (of_query || of_key) && lid < 2u * p.pairs {{
            let pair = select(lid, lid - p.pairs, lid >= p.pairs);
            let angle = (p.row * p.pairs + pair) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = row[pair];
            let b = row[pair + p.pairs];
            number = select(fma(a, c, -(b * s)), fma(a, s, b * c), lid >= p.pairs);
        }}
        workgroupBarrier();
        row[lid] = number;
        workgroupBarrier();
        {store}"
    );
    (source, body)
}

/// The buffers of [`launch_prepare`].
#[derive(Clone, Copy)]
pub struct Prepared<'a> {
    /// `[batch, query_heads, dim]`
    pub query: &'a Buffer,
    /// `[batch, key_value_heads, dim]`
    pub key: &'a Buffer,
    /// `[batch, key_value_heads, dim]`
    pub value: &'a Buffer,
    /// Of queries, keys and values, as wide as a row of each.
    pub biases: [&'a Buffer; 3],
    /// As in [`launch_rotate`].
    pub angles: &'a Buffer,
    /// Keys and values of the sequence.
    pub places: KeyValue<'a>,
}

/// Of a run of one token, whose position is that in its cache: [`launch_add_bias`] of queries, keys and values,
/// [`launch_rotate`] of queries and keys, and [`super::attention::launch_append`].
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
) -> Result<(), GpuError> {
    let dim = shape.dim;
    assert!(dim <= HEAD_DIM_LIMIT && 2 * pairs <= dim, "heads of {dim}, {pairs} pairs");
    assert!(cache.prepares(dim), "heads of {dim} to {cache:?}");
    let numbers = [shape.query_heads, shape.key_value_heads, dim, pairs, run.first, run.position];
    let [query_bias, key_bias, value_bias] = of.biases;
    let KeyValue { keys, values } = of.places;
    let spans =
        [of.key, of.value, query_bias, key_bias, value_bias, of.angles, of.query, keys, values];
    let groups = [(shape.query_heads + 2 * shape.key_value_heads) as u32, 1, 1];
    let parameters = numbers.map(|number| number as u32);
    gpu.dispatch(Op::PreparePlain(cache), &spans.map(Buffer::all), &parameters, groups)
}

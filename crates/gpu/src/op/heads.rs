//! Heads of queries and keys: parting queries from gates, norm and rotation.

use super::Op;
use crate::source::{Source, TREE_SUM};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a head.
pub const HEAD_DIM_LIMIT: usize = 256;

pub(crate) fn source() -> (Source, String) {
    let source = Source::new()
        .read("weight", "f32")
        .read("angles", "f32")
        .write("x", "f32")
        .parameters(&["heads", "dim", "pairs", "epsilon"])
        .shared("red", "array<f32, 256>")
        .shared("row", "array<f32, 256>")
        .function(TREE_SUM);
    let body = "
        let at = (wid.y * p.heads + wid.x) * p.dim;
        var value = 0.0;
        if lid < p.dim { value = x[at + lid]; }
        red[lid] = value * value;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
        if lid < p.dim { row[lid] = value * factor * weight[lid]; }
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

/// Norms each head of `x[tokens, heads, dim]` and turns its pairs `(j, j + pairs)` by `angles[tokens, pairs]`, cosine
/// and sine of each.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (x, weight, angles): (&Buffer, &Buffer, &Buffer),
    (tokens, heads, dim): (usize, usize, usize),
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
    (tokens, heads, dim): (usize, usize, usize),
) -> Result<(), GpuError> {
    let width = (heads * dim) as u32;
    let spans = [both.all(), query.all(), gate.all()];
    gpu.dispatch(Op::Split, &spans, &[width, dim as u32], [width.div_ceil(256), tokens as u32, 1])
}

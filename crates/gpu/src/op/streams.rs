//! Several residual streams for each token: the weights that follow from them, what a block reads of them, and how its
//! output is given back.
//!
//! A site's products with the streams are [`super::product`]'s. A workgroup makes weights of those of one token; the
//! order of its sums does not depend on the number of tokens.

use std::fmt::Write as _;

use super::Op;
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most streams.
pub const STREAMS_LIMIT: usize = 8;

/// The streams of some tokens.
#[derive(Clone, Copy)]
pub struct Streams<'a> {
    /// `[tokens, count, hidden]`
    pub values: &'a Buffer,
    /// Streams of a token.
    pub count: usize,
    /// Values of a stream.
    pub hidden: usize,
    /// Tokens.
    pub tokens: usize,
}

/// A place where streams are read.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// `[outputs]`
    pub base: &'a Buffer,
    /// Factors of the outputs: of weights of the input, of the output, of the mixture; of the first alone at a site
    /// that only reads.
    pub scale: &'a Buffer,
    /// Passes that balance rows and columns of the mixture; `None` at a site that only reads.
    pub iterations: Option<usize>,
    /// Added to weights and to the sums that they are divided by.
    pub epsilon: f32,
    /// Added to the mean square of the streams.
    pub norm_epsilon: f32,
}

/// What is computed of residual streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Weights, of the streams' products with a site's matrix.
    Weigh {
        /// Whether they are weights of the input alone.
        reads_alone: bool,
    },
    /// Their sum, or their mean.
    Collapse {
        /// Which.
        weighed: bool,
    },
    /// A row as each of them.
    Spread,
    /// All of them mixed, with a row added to each.
    Mix {
        /// Streams.
        count: u32,
    },
}

pub(crate) fn source(kernel: Kernel, form: Form) -> (Source, String) {
    match kernel {
        Kernel::Weigh { reads_alone } => weigh(reads_alone, form),
        Kernel::Collapse { weighed } => collapse(weighed),
        Kernel::Spread => spread(),
        Kernel::Mix { count } => mix(count),
    }
}

fn weigh(reads_alone: bool, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("streams", "f32")
        .read("base", "f32")
        .read("scale", "f32")
        .write("weights", "f32")
        .parameters(&["count", "hidden", "iterations", "epsilon", "norm_epsilon"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let mut body = "
        let epsilon = bitcast<f32>(p.epsilon);
        let width = p.count * p.hidden;
        let start = wid.x * width;
        var squares = 0.0;
        for (var i = lid; i < width; i = i + 256u) { squares = fma(streams[start + i], streams[start + i], squares); }
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(width) + bitcast<f32>(p.norm_epsilon));
        let at = wid.x * OUTPUTS;
        if lid < p.count {
            let read = weights[at + lid] * factor * scale[0] + base[lid];
            weights[at + lid] = 1.0 / (1.0 + exp(-read)) + epsilon;
        }
        "
    .replace("OUTPUTS", if reads_alone { "p.count" } else { "p.count * (p.count + 2u)" });
    if reads_alone {
        return (source, body);
    }
    body.push_str(MIXTURE);
    (source.shared("mixed", "array<f32, 64>"), body)
}

/// The weights of the output and the mixture: an invocation has a number of the square matrix.
const MIXTURE: &str = "
        let own = p.count + lid;
        if lid < p.count {
            let write = weights[at + own] * factor * scale[1] + base[own];
            weights[at + own] = 2.0 / (1.0 + exp(-write));
        }
        let square = p.count * p.count;
        let place = 2u * p.count + lid;
        if lid < square { mixed[lid] = weights[at + place] * factor * scale[2] + base[place]; }
        workgroupBarrier();
        let row = lid / p.count * p.count;
        let column = lid % p.count;
        var mine = 0.0;
        if lid < square {
            var most = mixed[row];
            for (var j = 1u; j < p.count; j = j + 1u) { most = max(most, mixed[row + j]); }
            var total = 0.0;
            for (var j = 0u; j < p.count; j = j + 1u) { total = total + exp(mixed[row + j] - most); }
            mine = exp(mixed[lid] - most) / total + epsilon;
        }
        workgroupBarrier();
        if lid < square { mixed[lid] = mine; }
        workgroupBarrier();
        for (var round = 1u; round < 2u * p.iterations; round = round + 1u) {
            // Columns first, and last.
            let by_column = (round & 1u) == 1u;
            let first = select(row, column, by_column);
            let step = select(1u, p.count, by_column);
            if lid < square {
                var sum = 0.0;
                for (var j = 0u; j < p.count; j = j + 1u) { sum = sum + mixed[first + j * step]; }
                mine = mixed[lid] / (sum + epsilon);
            }
            workgroupBarrier();
            if lid < square { mixed[lid] = mine; }
            workgroupBarrier();
        }
        if lid < square { weights[at + place] = mine; }
";

/// Makes the site's weights of `weights[tokens, outputs]`, the products of the streams with its matrix: of the input
/// alone, or of the input, of the output, and the mixture by rows.
///
/// # Errors
/// The device failed.
pub fn launch_weigh(
    gpu: &mut Gpu,
    streams: Streams<'_>,
    site: Site<'_>,
    weights: &Buffer,
) -> Result<(), GpuError> {
    let Streams { values, count, hidden, tokens } = streams;
    assert!((1..=STREAMS_LIMIT).contains(&count), "{count} streams");
    let passes = site.iterations.unwrap_or(1) as u32;
    let bits = [site.epsilon, site.norm_epsilon].map(f32::to_bits);
    let parameters = [count as u32, hidden as u32, passes, bits[0], bits[1]];
    let spans = [values, site.base, site.scale, weights].map(Buffer::all);
    let op = Op::Streams(Kernel::Weigh { reads_alone: site.iterations.is_none() });
    gpu.dispatch(op, &spans, &parameters, [tokens as u32, 1, 1])
}

fn collapse(weighed: bool) -> (Source, String) {
    let source = Source::new().read("streams", "f32");
    let source = if weighed { source.read("weights", "f32") } else { source };
    let source = source.write("y", "f32").parameters(&["count", "hidden", "outputs"]);
    let (term, end) = match weighed {
        true => ("sum = fma(weights[wid.y * p.outputs + s], value, sum);", "sum"),
        false => ("sum = sum + value;", "sum / f32(p.count)"),
    };
    let body = format!(
        "let i = wid.x * 256u + lid;
        if i < p.hidden {{
            let start = wid.y * p.count * p.hidden + i;
            var sum = 0.0;
            for (var s = 0u; s < p.count; s = s + 1u) {{
                let value = streams[start + s * p.hidden];
                {term}
            }}
            y[wid.y * p.hidden + i] = {end};
        }}
        "
    );
    (source, body)
}

/// `y[tokens, hidden]` = the sum of each token's streams by the first of its `weights[tokens, outputs]`, or their mean.
///
/// # Errors
/// The device failed.
pub fn launch_collapse(
    gpu: &mut Gpu,
    streams: Streams<'_>,
    weights: Option<(&Buffer, usize)>,
    y: &Buffer,
) -> Result<(), GpuError> {
    let outputs = weights.map_or(0, |(_, outputs)| outputs);
    let mut spans = vec![streams.values.all()];
    spans.extend(weights.map(|(weights, _)| weights.all()));
    spans.push(y.all());
    let op = Op::Streams(Kernel::Collapse { weighed: weights.is_some() });
    gpu.dispatch(op, &spans, &streams.parameters(outputs), streams.groups())
}

fn spread() -> (Source, String) {
    let source = Source::new()
        .read("x", "f32")
        .write("streams", "f32")
        .parameters(&["count", "hidden", "outputs"]);
    let body = "let i = wid.x * 256u + lid;
        if i < p.hidden {
            let value = x[wid.y * p.hidden + i];
            let start = wid.y * p.count * p.hidden + i;
            for (var s = 0u; s < p.count; s = s + 1u) { streams[start + s * p.hidden] = value; }
        }
        ";
    (source, body.to_owned())
}

/// Every stream of a token becomes its row of `x[tokens, hidden]`.
///
/// # Errors
/// The device failed.
pub fn launch_spread(gpu: &mut Gpu, x: &Buffer, streams: Streams<'_>) -> Result<(), GpuError> {
    let spans = [x.all(), streams.values.all()];
    gpu.dispatch(Op::Streams(Kernel::Spread), &spans, &streams.parameters(0), streams.groups())
}

fn mix(count: u32) -> (Source, String) {
    let source = Source::new()
        .read("weights", "f32")
        .read("x", "f32")
        .write("streams", "f32")
        .parameters(&["count", "hidden", "outputs"]);
    let mut body = "let i = wid.x * 256u + lid;
        if i < p.hidden {
            let own = x[wid.y * p.hidden + i];
            let start = wid.y * p.count * p.hidden + i;
            let at = wid.y * p.outputs;
        "
    .to_owned();
    for stream in 0..count {
        let _ = writeln!(body, "let before{stream} = streams[start + {stream}u * p.hidden];");
    }
    for to in 0..count {
        let mut sum = "0.0".to_owned();
        for from in 0..count {
            sum = format!("fma(weights[at + {}u], before{from}, {sum})", (2 + from) * count + to);
        }
        let _ = writeln!(
            body,
            "streams[start + {to}u * p.hidden] = fma(weights[at + {}u], own, {sum});",
            count + to
        );
    }
    body.push_str("}\n");
    (source, body)
}

/// Stream `j` of a token becomes its weight of the output times its row of `x[tokens, hidden]`, plus the streams by
/// column `j` of the mixture: both of `weights[tokens, outputs]`, as [`launch_weigh`] leaves them.
///
/// # Errors
/// The device failed.
pub fn launch_mix(
    gpu: &mut Gpu,
    weights: &Buffer,
    x: &Buffer,
    streams: Streams<'_>,
) -> Result<(), GpuError> {
    let count = streams.count;
    let spans = [weights, x, streams.values].map(Buffer::all);
    let parameters = streams.parameters(count * (count + 2));
    gpu.dispatch(
        Op::Streams(Kernel::Mix { count: count as u32 }),
        &spans,
        &parameters,
        streams.groups(),
    )
}

impl Streams<'_> {
    fn parameters(&self, outputs: usize) -> [u32; 3] {
        [self.count, self.hidden, outputs].map(|size| size as u32)
    }

    fn groups(&self) -> [u32; 3] {
        [(self.hidden as u32).div_ceil(256), self.tokens as u32, 1]
    }
}

//! Rows of compressed attention: heads whose last values are rotated in pairs of neighbours, rows of a window, rows
//! that stand for several tokens, and what a sequence keeps of tokens whose row is not complete.
//!
//! What a row holds follows from absolute positions alone, so neither chunks nor batches change a bit.

use super::Op;
use super::attention::Run;
use super::rounded::{E2M1_VALUE, HADAMARD, Stored};
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a row.
pub const ROW_LIMIT: usize = 512;
/// Most values of a key of the indexer.
pub const KEY_LIMIT: usize = 128;

/// A kernel whose workgroup shares a row.
fn of_row(source: Source, form: Form) -> Source {
    source
        .shared("red", "array<f32, 256>")
        .shared("row", &format!("array<f32, {ROW_LIMIT}>"))
        .shared("scales", "array<u32, 8>")
        .function(tree_sum(form))
}

/// Rotates the last values of `row`; `angle` is the place of the first pair's cosine.
const TURN: &str = "
fn turn(lid: u32, angle: u32, direction: f32) {
    for (var j = lid; j < p.pairs; j = j + 256u) {
        let c = angles[angle + 2u * j];
        let s = angles[angle + 2u * j + 1u] * direction;
        let at = p.dim - 2u * p.pairs + 2u * j;
        let x = row[at];
        let y = row[at + 1u];
        row[at] = fma(x, c, -(y * s));
        row[at + 1u] = fma(y, c, x * s);
    }
    workgroupBarrier();
}
";

/// What becomes of heads in addition to their rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turned {
    /// Nothing.
    Alone,
    /// An RMS norm before it.
    Normed,
    /// A Hadamard transform and rounding to 4 bits behind it.
    Rounded,
}

impl Turned {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Alone, Self::Normed, Self::Rounded];
}

/// What is computed of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The rotation of ends of heads.
    Turn(Turned),
    /// Rows of a window.
    Store(Stored),
    /// Compressed rows, or keys of their indexer.
    Pool(Stored),
    /// Values and gates of tokens whose row is not complete.
    Keep,
}

pub(crate) fn source(kernel: Kernel, form: Form) -> (Source, String) {
    match kernel {
        Kernel::Turn(turned) => turn(turned, form),
        Kernel::Store(stored) => store(stored),
        Kernel::Pool(stored) => pool(stored, form),
        Kernel::Keep => keep(),
    }
}

fn turn(turned: Turned, form: Form) -> (Source, String) {
    let source = Source::new().read("angles", "f32");
    let source = match turned {
        Turned::Normed => source.read("weight", "f32"),
        Turned::Alone | Turned::Rounded => source,
    };
    let source = source.write("x", "f32").parameters(&[
        "heads",
        "dim",
        "pairs",
        "angle",
        "direction",
        "epsilon",
        "factor",
    ]);
    let source = of_row(source, form).function(TURN);
    let (source, end) = match turned {
        Turned::Rounded => (
            source.function(HADAMARD).function(&Stored::Fp4.stores()).function(E2M1_VALUE),
            "hadamard(lid, p.dim, bitcast<f32>(p.factor));
            scale(lid);
            workgroupBarrier();
            for (var i = lid; i < p.dim; i = i + 256u) {
                x[start + i] = value_of(code_at(i)) * power(scales[i >> 5u]);
            }
            ",
        ),
        _ => (source, "for (var i = lid; i < p.dim; i = i + 256u) { x[start + i] = row[i]; }\n"),
    };
    let begin = match turned {
        Turned::Normed => {
            "var squares = 0.0;
            for (var i = lid; i < p.dim; i = i + 256u) { squares = fma(x[start + i], x[start + i], squares); }
            red[lid] = squares;
            let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
            for (var i = lid; i < p.dim; i = i + 256u) { row[i] = x[start + i] * factor * weight[i]; }
            "
        }
        _ => "for (var i = lid; i < p.dim; i = i + 256u) { row[i] = x[start + i]; }\n",
    };
    let body = format!(
        "let start = (wid.y * p.heads + wid.x) * p.dim;
        {begin}workgroupBarrier();
        turn(lid, p.angle + wid.y * 2u * p.pairs, bitcast<f32>(p.direction));
        {end}"
    );
    (source, body)
}

/// Cosine and sine of each pair's angle, `[tokens, pairs]` from number `first` on.
#[derive(Clone, Copy)]
pub struct Angles<'a> {
    /// All of them.
    pub buffer: &'a Buffer,
    /// See above.
    pub first: usize,
    /// Pairs of a head.
    pub pairs: usize,
}

/// Heads of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Tokens.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Values of a head.
    pub dim: usize,
}

/// What is done to heads.
#[derive(Clone, Copy)]
pub enum Turn<'a> {
    /// As [`Turned::Alone`].
    Forth,
    /// That, by the angles' opposites.
    Back,
    /// As [`Turned::Normed`], with `[dim]` and an epsilon.
    Normed(&'a Buffer, f32),
    /// As [`Turned::Rounded`].
    Rounded,
}

/// Turns the last values of each head of `x[tokens, heads, dim]`, in pairs of neighbours.
///
/// # Errors
/// The device failed.
pub fn launch_turn(
    gpu: &mut Gpu,
    x: &Buffer,
    angles: Angles<'_>,
    Heads { tokens, heads, dim }: Heads,
    turn: Turn<'_>,
) -> Result<(), GpuError> {
    assert!(dim <= ROW_LIMIT && 2 * angles.pairs <= dim, "{dim} values");
    let mut spans = vec![angles.buffer.all()];
    let (mut direction, mut epsilon, mut factor) = (1.0f32, 0.0f32, 0.0f32);
    let turned = match turn {
        Turn::Forth => Turned::Alone,
        Turn::Back => {
            direction = -1.0;
            Turned::Alone
        }
        Turn::Normed(weight, added) => {
            spans.push(weight.all());
            epsilon = added;
            Turned::Normed
        }
        Turn::Rounded => {
            factor = hadamard_factor(dim);
            Turned::Rounded
        }
    };
    spans.push(x.all());
    let sizes = [heads, dim, angles.pairs, angles.first].map(|size| size as u32);
    let bits = [direction, epsilon, factor].map(f32::to_bits);
    let parameters = [&sizes[..], &bits].concat();
    gpu.dispatch(
        Op::CompressedRows(Kernel::Turn(turned)),
        &spans,
        &parameters,
        [heads as u32, tokens as u32, 1],
    )
}

/// What the transform of keys multiplies by.
fn hadamard_factor(dim: usize) -> f32 {
    assert!(dim.is_power_of_two() && dim <= KEY_LIMIT, "{dim} values of a key");
    (dim as f64).powf(-0.5) as f32
}

/// How the rows of a layer are stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows {
    /// The form.
    pub stored: Stored,
    /// Values of a row.
    pub dim: usize,
    /// Last values of an 8-bit row that are not rounded to 8 bits.
    pub plain: usize,
    /// Words of a row.
    pub words: usize,
}

/// Where the compressed rows of a layer lie in a sequence's pages.
#[derive(Clone, Copy)]
pub struct PageRows<'a> {
    /// The pages.
    pub pages: &'a Buffer,
    /// Words of a page.
    pub page: usize,
    /// The first word of the layer's rows in each.
    pub place: usize,
    /// Rows of a page.
    pub rows: usize,
}

fn store(stored: Stored) -> (Source, String) {
    let source = Source::new()
        .read("keys", "f32")
        .write("to", "u32")
        .parameters(&["first", "position", "modulus", "base", "dim", "plain", "words"])
        .shared("row", &format!("array<f32, {ROW_LIMIT}>"))
        .shared("scales", "array<u32, 8>")
        .function(&stored.stores());
    let body = "
        let start = (p.first + wid.x) * p.dim;
        for (var i = lid; i < p.dim; i = i + 256u) { row[i] = keys[start + i]; }
        workgroupBarrier();
        scale(lid);
        workgroupBarrier();
        let at = p.base + (p.position + wid.x) % p.modulus * p.words;
        for (var word = lid; word < p.words; word = word + 256u) { to[at + word] = pack(word); }
        ";
    (source, body.to_owned())
}

/// A ring of rows in a buffer.
#[derive(Clone, Copy)]
pub struct RowRing<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// The first word.
    pub base: usize,
    /// Rows of it: position `p` has row `p % rows`.
    pub rows: usize,
}

/// Stores rows of `keys[batch, dim]`, those of the run, in a ring.
///
/// # Errors
/// The device failed.
pub fn launch_store(
    gpu: &mut Gpu,
    keys: &Buffer,
    ring: RowRing<'_>,
    rows: StoredRows,
    run: Run,
) -> Result<(), GpuError> {
    assert!(run.tokens <= ring.rows, "{} tokens in {} rows", run.tokens, ring.rows);
    let StoredRows { stored, dim, plain, words } = rows;
    let sizes = [run.first, run.position, ring.rows, ring.base, dim, plain, words];
    let spans = [keys.all(), ring.buffer.all()];
    let groups = [run.tokens as u32, 1, 1];
    gpu.dispatch(
        Op::CompressedRows(Kernel::Store(stored)),
        &spans,
        &sizes.map(|size| size as u32),
        groups,
    )
}

/// Values and gates that a compressor's matrices gave the tokens of a batch, and those of earlier tokens that a
/// sequence keeps.
#[derive(Clone, Copy)]
pub struct Pooled<'a> {
    /// `[batch, width]`
    pub values: &'a Buffer,
    /// As many.
    pub gates: &'a Buffer,
    /// `[ratio, width]`: added to gates by place within a row.
    pub added: &'a Buffer,
    /// The state of the sequence.
    pub state: &'a Buffer,
    /// The first of the kept values in it; as many gates follow.
    pub tail: usize,
    /// Tokens of a row.
    pub ratio: usize,
    /// Whether a row takes part of the tokens of the row before as well: their first half, and the second of its own.
    pub overlap: bool,
    /// Values of a row.
    pub dim: usize,
}

impl Pooled<'_> {
    fn width(&self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    fn kept(&self) -> usize {
        if self.overlap { 2 * self.ratio } else { self.ratio }
    }
}

/// Gates, with what their place adds, and values of a token at `q`; `at` is the half that the row takes.
const POOLED: &str = "
fn gate_at(q: u32, at: u32) -> f32 {
    if q < p.position { return state[p.tail + (p.kept + q % p.kept) * p.width + at]; }
    return gates[(p.first + q - p.position) * p.width + at] + added[q % p.ratio * p.width + at];
}
fn value_at(q: u32, at: u32) -> f32 {
    if q < p.position { return state[p.tail + q % p.kept * p.width + at]; }
    return values[(p.first + q - p.position) * p.width + at];
}
";

fn pool(stored: Stored, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("values", "f32")
        .read("gates", "f32")
        .read("added", "f32")
        .read("norm", "f32")
        .read("angles", "f32")
        .read("state", "f32")
        .write("pages", "u32")
        .parameters(&["first", "tokens", "position", "ratio", "kept", "width", "tail"])
        .parameters(&["dim", "plain", "words", "page", "place", "page_rows"])
        .parameters(&["pairs", "angle", "epsilon", "factor"]);
    let source = of_row(source, form).function(TURN).function(POOLED).function(&stored.stores());
    let (source, transform) = match stored {
        Stored::Fp4 => {
            (source.function(HADAMARD), "hadamard(lid, p.dim, bitcast<f32>(p.factor));\n")
        }
        _ => (source, ""),
    };
    let body = format!(
        "let number = p.position / p.ratio + wid.x;
        let start = number * p.ratio;
        let last = start + p.ratio - 1u;
        if last >= p.position + p.tokens {{ return; }}
        let overlaps = p.kept > p.ratio;
        let begin = select(start, start - p.ratio, overlaps && start > 0u);
        var squares = 0.0;
        for (var d = lid; d < p.dim; d = d + 256u) {{
            var most = -3.4e38;
            for (var q = begin; q <= last; q = q + 1u) {{
                most = max(most, gate_at(q, d + select(0u, p.dim, overlaps && q >= start)));
            }}
            var total = 0.0;
            var sum = 0.0;
            for (var q = begin; q <= last; q = q + 1u) {{
                let at = d + select(0u, p.dim, overlaps && q >= start);
                let weight = exp(gate_at(q, at) - most);
                total = total + weight;
                sum = fma(weight, value_at(q, at), sum);
            }}
            row[d] = sum / total;
            squares = fma(row[d], row[d], squares);
        }}
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.dim) + bitcast<f32>(p.epsilon));
        for (var d = lid; d < p.dim; d = d + 256u) {{ row[d] = row[d] * factor * norm[d]; }}
        workgroupBarrier();
        turn(lid, p.angle + (p.first + last - p.position) * 2u * p.pairs, 1.0);
        {transform}scale(lid);
        workgroupBarrier();
        let to = number / p.page_rows * p.page + p.place + number % p.page_rows * p.words;
        for (var word = lid; word < p.words; word = word + 256u) {{ pages[to + word] = pack(word); }}
        "
    );
    (source, body)
}

/// What becomes of a pooled row.
#[derive(Clone, Copy)]
pub struct Made<'a> {
    /// Weight of its norm, `[dim]`.
    pub norm: &'a Buffer,
    /// Added to its mean square.
    pub epsilon: f32,
    /// Of the first position of each token's row.
    pub angles: Angles<'a>,
    /// How it is stored.
    pub rows: StoredRows,
    /// Where.
    pub to: PageRows<'a>,
}

/// Makes the compressed rows that a run completes: of each dimension a sum weighed by a softmax over gates, then norm
/// and rotation.
///
/// # Errors
/// The device failed.
pub fn launch_pool(
    gpu: &mut Gpu,
    of: Pooled<'_>,
    Made { norm, epsilon, angles, rows, to }: Made<'_>,
    run: Run,
) -> Result<(), GpuError> {
    let StoredRows { stored, dim, plain, words } = rows;
    assert!(dim == of.dim && dim <= ROW_LIMIT, "{dim} values");
    let factor = if stored == Stored::Fp4 { hadamard_factor(dim) } else { 0.0 };
    let sizes = [run.first, run.tokens, run.position, of.ratio, of.kept(), of.width(), of.tail];
    let places = [dim, plain, words, to.page, to.place, to.rows, angles.pairs, angles.first];
    let sizes = sizes.into_iter().chain(places).map(|size| size as u32);
    let parameters: Vec<_> = sizes.chain([epsilon.to_bits(), factor.to_bits()]).collect();
    let spans =
        [of.values, of.gates, of.added, norm, angles.buffer, of.state, to.pages].map(Buffer::all);
    // One at least: a step's launches are the same whether it completes a row.
    let rows = ((run.position + run.tokens) / of.ratio - run.position / of.ratio).max(1);
    gpu.dispatch(Op::CompressedRows(Kernel::Pool(stored)), &spans, &parameters, [rows as u32, 1, 1])
}

fn keep() -> (Source, String) {
    let source = Source::new()
        .read("values", "f32")
        .read("gates", "f32")
        .read("added", "f32")
        .write("state", "f32")
        .parameters(&["first", "position", "ratio", "kept", "width", "tail"]);
    let body = "
        let i = wid.x * 256u + lid;
        if i < p.width {
            let at = (p.first + wid.y) * p.width + i;
            let q = p.position + wid.y;
            let to = p.tail + q % p.kept * p.width + i;
            state[to] = values[at];
            state[to + p.kept * p.width] = gates[at] + added[q % p.ratio * p.width + i];
        }
        ";
    (source, body.to_owned())
}

/// Keeps values and gates of the run's last tokens, after [`launch_pool`].
///
/// # Errors
/// The device failed.
pub fn launch_keep(gpu: &mut Gpu, of: Pooled<'_>, run: Run) -> Result<(), GpuError> {
    let left = run.tokens.saturating_sub(of.kept());
    let (first, position) = (run.first + left, run.position + left);
    let sizes = [first, position, of.ratio, of.kept(), of.width(), of.tail];
    let spans = [of.values, of.gates, of.added, of.state].map(Buffer::all);
    let groups = [(of.width() as u32).div_ceil(256), (run.tokens - left) as u32, 1];
    gpu.dispatch(Op::CompressedRows(Kernel::Keep), &spans, &sizes.map(|size| size as u32), groups)
}

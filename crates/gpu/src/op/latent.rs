//! Rows of latent attention: what is cached of a token is one row for all heads, a normed latent and a rotated key; and
//! the rotated ends of queries that meet such rows.

use super::attention::{Cache, Run};
use super::{Op, q8};
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// Most values of a row.
pub const ROW_LIMIT: usize = 1024;

/// What a row is.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Values of the latent.
    pub rank: usize,
    /// Values of the rotated key, even.
    pub rotated: usize,
    /// True where values `2 j` and `2 j + 1` are a pair as they come; `j` and `j + rotated / 2` without.
    pub neighbours: bool,
}

impl Row {
    /// Values of a row.
    pub fn width(&self) -> usize {
        self.rank + self.rotated
    }

    /// Places of a pair's values among those that are rotated.
    fn steps(&self) -> [u32; 2] {
        match self.neighbours {
            true => [2, 1],
            false => [1, self.rotated as u32 / 2],
        }
    }
}

pub(crate) fn append(cache: Cache, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("rows", "f32")
        .read("norm", "f32")
        .read("angles", "f32")
        .write("cache", "u32")
        .parameters(&["rank", "pairs", "step", "apart", "first", "position", "epsilon"])
        .shared("red", "array<f32, 256>")
        .shared("row", &format!("array<f32, {ROW_LIMIT}>"))
        .function(tree_sum(form))
        .function(&q8::stores(cache, &["row"]));
    let (words, pack) = match cache {
        Cache::F32 => ("width / 1u", "bitcast<u32>(row[word])"),
        Cache::F16 => {
            ("width / 2u", "pack2x16float(vec2<f32>(row[2u * word], row[2u * word + 1u]))")
        }
        Cache::Q8 => ("width / 64u * 17u", "word_row(0u, word, width)"),
    };
    let body = format!(
        "let token = p.first + wid.x;
        let width = p.rank + 2u * p.pairs;
        let start = token * width;
        var squares = 0.0;
        for (var i = lid; i < p.rank; i = i + 256u) {{ squares = fma(rows[start + i], rows[start + i], squares); }}
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.rank) + bitcast<f32>(p.epsilon));
        for (var i = lid; i < p.rank; i = i + 256u) {{ row[i] = rows[start + i] * factor * norm[i]; }}
        for (var j = lid; j < p.pairs; j = j + 256u) {{
            let angle = (token * p.pairs + j) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let a = rows[start + p.rank + j * p.step];
            let b = rows[start + p.rank + j * p.step + p.apart];
            row[p.rank + j] = fma(a, c, -(b * s));
            row[p.rank + p.pairs + j] = fma(a, s, b * c);
        }}
        workgroupBarrier();
        let words = {words};
        for (var word = lid; word < words; word = word + 256u) {{
            cache[(p.position + wid.x) * words + word] = {pack};
        }}
        "
    );
    (source, body)
}

/// The buffers of [`launch_append`].
#[derive(Clone, Copy)]
pub struct Appended<'a> {
    /// `[batch, rank + rotated]`
    pub rows: &'a Buffer,
    /// `[rank]`
    pub norm: &'a Buffer,
    /// `[batch, rotated / 2]`: cosine and sine of each pair.
    pub angles: &'a Buffer,
    /// The cache of the run's sequence.
    pub to: &'a Buffer,
}

/// Norms the latents and rotates the keys of the run's rows and writes them to its cache.
///
/// # Errors
/// The device failed.
pub fn launch_append(
    gpu: &mut Gpu,
    cache: Cache,
    Appended { rows, norm, angles, to }: Appended<'_>,
    row: Row,
    epsilon: f32,
    run: Run,
) -> Result<(), GpuError> {
    assert!(row.width() <= ROW_LIMIT && row.width().is_multiple_of(2), "{row:?}");
    assert!(cache != Cache::Q8 || q8::serves(1, row.width()), "{row:?}");
    let [step, apart] = row.steps();
    let (rank, pairs) = (row.rank as u32, row.rotated as u32 / 2);
    let (first, position) = (run.first as u32, run.position as u32);
    let parameters = [rank, pairs, step, apart, first, position, epsilon.to_bits()];
    let spans = [rows, norm, angles, to].map(Buffer::all);
    gpu.dispatch(Op::LatentAppend(cache), &spans, &parameters, [run.tokens as u32, 1, 1])
}

pub(crate) fn turn() -> (Source, String) {
    let source = Source::new()
        .read("query", "f32")
        .read("angles", "f32")
        .write("turned", "f32")
        .parameters(&["heads", "plain", "rank", "pairs", "step", "apart", "first"]);
    let body = "
        let number = wid.x * 256u + lid;
        if number < p.heads * p.pairs {
            let head = number / p.pairs;
            let j = number % p.pairs;
            let token = p.first + wid.y;
            let angle = (token * p.pairs + j) * 2u;
            let c = angles[angle];
            let s = angles[angle + 1u];
            let start = (token * p.heads + head) * (p.plain + 2u * p.pairs) + p.plain + j * p.step;
            let a = query[start];
            let b = query[start + p.apart];
            let to = (wid.y * p.heads + head) * (p.rank + 2u * p.pairs) + p.rank + j;
            turned[to] = fma(a, c, -(b * s));
            turned[to + p.pairs] = fma(a, s, b * c);
        }
        ";
    (source, body.to_owned())
}

/// The buffers of [`launch_turn`].
#[derive(Clone, Copy)]
pub struct Turned<'a> {
    /// `[batch, heads, plain + rotated]`
    pub query: &'a Buffer,
    /// `[batch, rotated / 2]`: cosine and sine of each pair.
    pub angles: &'a Buffer,
    /// `[tokens, heads, rank + rotated]`
    pub turned: &'a Buffer,
}

/// Heads of queries.
#[derive(Clone, Copy, Debug)]
pub struct QueryHeads {
    /// Heads.
    pub heads: usize,
    /// Values of a head that are not rotated.
    pub plain: usize,
}

/// Rotates the ends of `tokens` tokens' `query[batch, heads, plain + rotated]` from token `first` on into those of
/// `turned[tokens, heads, rank + rotated]`.
///
/// # Errors
/// The device failed.
pub fn launch_turn(
    gpu: &mut Gpu,
    Turned { query, angles, turned }: Turned<'_>,
    row: Row,
    QueryHeads { heads, plain }: QueryHeads,
    (first, tokens): (usize, usize),
) -> Result<(), GpuError> {
    let [step, apart] = row.steps();
    let pairs = row.rotated / 2;
    let sizes = [heads, plain, row.rank, pairs].map(|size| size as u32);
    let parameters = [&sizes[..], &[step, apart, first as u32]].concat();
    let spans = [query, angles, turned].map(Buffer::all);
    let groups = [((heads * pairs) as u32).div_ceil(256), tokens as u32, 1];
    gpu.dispatch(Op::LatentTurn, &spans, &parameters, groups)
}

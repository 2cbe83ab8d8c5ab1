//! The choice of compressed rows, and attention over a window and the rows chosen. One row is key and value of all
//! heads.
//!
//! A workgroup computes one query head of one token, as [`super::attention_wide`] does: rows in blocks of 64, the
//! window first, then compressed rows in their order. Which they are follows from the token's position and its scores
//! alone.

use super::Op;
use super::attention::Run;
use super::compressed_rows::{KEY_LIMIT, PageRows, ROW_LIMIT, RowRing, StoredRows};
use super::rounded::{E2M1_VALUE, Stored};
use super::row_choice::{self, Choice};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Rows that a workgroup scores.
const SCORED: u32 = 16;

/// What scores compressed rows.
#[derive(Clone, Copy)]
pub struct Scored<'a> {
    /// `[batch, heads, dim]`
    pub query: &'a Buffer,
    /// `[batch, heads]`: factors of heads.
    pub factors: &'a Buffer,
    /// Heads.
    pub heads: usize,
    /// The keys.
    pub keys: (StoredRows, PageRows<'a>),
    /// Tokens of a row.
    pub ratio: usize,
    /// Rows that a token sees at most.
    pub top: usize,
    /// `[tokens, stride]`, from the first token of a launch on.
    pub scores: &'a Buffer,
    /// Scores of a token.
    pub stride: usize,
    /// `[batch, top]`
    pub chosen: &'a Buffer,
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Scores of compressed rows.
    Score(Stored),
    /// Attention over a window and compressed rows.
    Attend(Stored),
}

pub(crate) fn source(kernel: Kernel) -> (Source, String) {
    match kernel {
        Kernel::Score(stored) => score(stored),
        Kernel::Attend(stored) => attend(stored),
    }
}

fn score(stored: Stored) -> (Source, String) {
    let source = Source::new()
        .read("query", "f32")
        .read("factors", "f32")
        .read("pages", "u32")
        .write("scores", "f32")
        .parameters(&["first", "position", "ratio", "heads", "dim", "top", "stride"])
        .parameters(&["page", "place", "page_rows", "words"])
        .shared("keys", &format!("array<f32, {}>", SCORED as usize * KEY_LIMIT))
        .shared("red", "array<f32, 256>")
        .function("\nfn word_of(memory: u32, at: u32) -> u32 { return pages[at]; }\n");
    let source = match stored {
        Stored::Fp4 => source.function(E2M1_VALUE),
        _ => source,
    };
    let source = source.function(&stored.loads("pair_of"));
    let body = "
        let visible = (p.position + wid.y + 1u) / p.ratio;
        if visible <= p.top || wid.x * 16u >= visible { return; }
        let halves = p.dim >> 1u;
        for (var i = lid; i < 16u * halves; i = i + 256u) {
            let number = min(wid.x * 16u + (i & 15u), visible - 1u);
            let at = number / p.page_rows * p.page + p.place + number % p.page_rows * p.words;
            let pair = pair_of(0u, at, i >> 4u);
            // Rows next to each other: invocations that follow each other have other rows.
            keys[(i >> 4u) * 32u + (i & 15u)] = pair.x;
            keys[(i >> 4u) * 32u + 16u + (i & 15u)] = pair.y;
        }
        workgroupBarrier();
        let own = lid & 15u;
        var score = 0.0;
        for (var head = lid >> 4u; head < p.heads; head = head + 16u) {
            let at = ((p.first + wid.y) * p.heads + head) * p.dim;
            var product = 0.0;
            for (var d = 0u; d < p.dim; d = d + 1u) { product = fma(query[at + d], keys[d * 16u + own], product); }
            score = fma(factors[(p.first + wid.y) * p.heads + head], max(product, 0.0), score);
        }
        red[lid] = score;
        workgroupBarrier();
        let number = wid.x * 16u + lid;
        if lid < 16u && number < visible {
            var sum = 0.0;
            for (var part = 0u; part < 16u; part = part + 1u) { sum = sum + red[part * 16u + lid]; }
            scores[wid.y * p.stride + number] = sum;
        }
        ";
    (source, body.to_owned())
}

/// Chooses the rows of the best scores for each token of a run that has more than `top` to choose from, ascending; of
/// equal scores the first. A score is the sum over heads of a factor times the positive part of query times key.
///
/// # Errors
/// The device failed.
pub fn launch_choose(gpu: &mut Gpu, of: Scored<'_>, run: Run) -> Result<(), GpuError> {
    let Scored { heads, keys: (rows, to), ratio, top, stride, .. } = of;
    let visible = (run.position + run.tokens) / ratio;
    assert!(rows.dim <= KEY_LIMIT && visible <= stride, "{visible} rows of {rows:?}");
    let sizes = [run.first, run.position, ratio, heads, rows.dim, top, stride];
    let places = [to.page, to.place, to.rows, rows.words];
    let parameters: Vec<_> = sizes.into_iter().chain(places).map(|size| size as u32).collect();
    let spans = [of.query, of.factors, to.pages, of.scores].map(Buffer::all);
    let groups = [(visible as u32).div_ceil(SCORED), run.tokens as u32, 1];
    gpu.dispatch(Op::Compressed(Kernel::Score(rows.stored)), &spans, &parameters, groups)?;
    let choice = Choice { scores: of.scores, stride, ratio, chosen: of.chosen };
    row_choice::launch(gpu, choice, top, run)
}

/// What the tokens of a run attend to.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// Rows of the window, in the state of the sequence.
    pub ring: RowRing<'a>,
    /// Rows of the run's own tokens, where the ring has not those.
    pub span: Option<&'a Buffer>,
    /// Compressed rows and the tokens of each, where the layer has some; otherwise the pages are not read.
    pub pages: (PageRows<'a>, Option<usize>),
    /// `[batch, top]`, and `top`: the rows of tokens with more; all are seen without.
    pub chosen: (&'a Buffer, Option<usize>),
    /// `[heads]`
    pub sinks: &'a Buffer,
}

fn attend(stored: Stored) -> (Source, String) {
    let source = Source::new()
        .read("query", "f32")
        .read("span", "u32")
        .read("state", "u32")
        .read("pages", "u32")
        .read("chosen", "u32")
        .read("sinks", "f32")
        .write("y", "f32")
        .parameters(&["heads", "first", "position", "start", "ring", "window", "ratio", "top"])
        .parameters(&["page", "place", "page_rows", "dim", "plain", "words", "scale"])
        .shared("red", "array<f32, 256>")
        .shared("q", &format!("array<f32, {ROW_LIMIT}>"))
        .shared("scores", "array<vec4<f32>, 16>")
        .shared("weights", "array<vec4<f32>, 16>")
        .shared("starts", "array<u32, 64>")
        .function(
            "
fn word_of(memory: u32, at: u32) -> u32 {
    if memory == 0u { return pages[at]; }
    if memory == 1u { return state[at]; }
    return span[at];
}
",
        )
        .function(&stored.loads("pair_of"));
    (source, ATTEND.to_owned())
}

/// A row is named by its first word and, in the two highest bits, by the memory in which it lies.
const ATTEND: &str = "
        let head = wid.x;
        let position = p.position + wid.y;
        let near = min(position + 1u, p.window);
        let visible = select(0u, (position + 1u) / max(p.ratio, 1u), p.ratio > 0u);
        let listed = visible > p.top;
        let all = near + select(visible, p.top, listed);
        let at_row = ((p.first + wid.y) * p.heads + head) * p.dim;
        for (var i = lid; i < p.dim; i = i + 256u) { q[i] = query[at_row + i] * bitcast<f32>(p.scale); }
        workgroupBarrier();
        var greatest = -3.0e38;
        var total = 0.0;
        var sum = 0.0;
        var more = 0.0;
        for (var block = 0u; block < all; block = block + 64u) {
            if lid < 64u && block + lid < all {
                let index = block + lid;
                if index < near {
                    let at = position + 1u - near + index;
                    starts[lid] = p.ring + at % p.window * p.words + 0x40000000u;
                    if at >= p.start { starts[lid] = (at - p.start) * p.words + 0x80000000u; }
                } else {
                    var number = index - near;
                    if listed { number = chosen[(p.first + wid.y) * p.top + number]; }
                    starts[lid] = number / p.page_rows * p.page + p.place + number % p.page_rows * p.words;
                }
            }
            workgroupBarrier();
            let mine = lid >> 2u;
            let there = block + mine < all;
            var score = 0.0;
            if there {
                let memory = starts[mine] >> 30u;
                let start = starts[mine] & 0x3fffffffu;
                for (var d = lid & 3u; 2u * d < p.dim; d = d + 4u) {
                    let pair = pair_of(memory, start, d);
                    score = fma(q[2u * d + 1u], pair.y, fma(q[2u * d], pair.x, score));
                }
            }
            red[lid] = score;
            workgroupBarrier();
            let same = lid & 252u;
            score = (red[same] + red[same + 1u]) + (red[same + 2u] + red[same + 3u]);
            if !there { score = -3.0e38; }
            if (lid & 3u) == 0u { scores[lid >> 4u][(lid >> 2u) & 3u] = score; }
            workgroupBarrier();
            var best = scores[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) { best = max(best, scores[fourth]); }
            let most = max(max(best.x, best.y), max(best.z, best.w));
            if (lid & 3u) == 0u { weights[lid >> 4u][(lid >> 2u) & 3u] = select(0.0, exp(score - most), there); }
            workgroupBarrier();
            var four = weights[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) { four = four + weights[fourth]; }
            let weight = (four.x + four.y) + (four.z + four.w);
            var one = 0.0;
            var other = 0.0;
            let count = min(64u, all - block);
            for (var j = 0u; j < count; j = j + 1u) {
                if 2u * lid < p.dim {
                    let pair = pair_of(starts[j] >> 30u, starts[j] & 0x3fffffffu, lid);
                    let weight_of = weights[j >> 2u][j & 3u];
                    one = fma(weight_of, pair.x, one);
                    other = fma(weight_of, pair.y, other);
                }
            }
            let now = max(greatest, most);
            let keep = exp(greatest - now);
            let share = exp(most - now);
            total = fma(total, keep, weight * share);
            sum = fma(sum, keep, one * share);
            more = fma(more, keep, other * share);
            greatest = now;
            workgroupBarrier();
        }
        let now = max(greatest, sinks[head]);
        let keep = exp(greatest - now);
        total = fma(total, keep, exp(sinks[head] - now));
        if 2u * lid < p.dim {
            y[at_row + 2u * lid] = sum * keep / total;
            y[at_row + 2u * lid + 1u] = more * keep / total;
        }
        ";

/// `y[batch, heads, dim]` of the run = attention of `query[batch, heads, dim]` over the rows that each token sees.
///
/// # Errors
/// The device failed.
pub fn launch_attend(
    gpu: &mut Gpu,
    (query, y): (&Buffer, &Buffer),
    heads: usize,
    rows: StoredRows,
    seen: Seen<'_>,
    run: Run,
) -> Result<(), GpuError> {
    let StoredRows { stored, dim, plain, words } = rows;
    assert!(dim <= ROW_LIMIT && dim.is_multiple_of(2) && plain.is_multiple_of(2), "{rows:?}");
    let (Seen { ring, span, pages: (to, ratio), chosen: (chosen, top), sinks }, end) =
        (seen, run.position + run.tokens);
    // Without a buffer of their own no row of the run lies behind the ring.
    let start = if span.is_some() { run.position } else { end };
    let top = top.unwrap_or(u32::MAX as usize);
    let sizes = [heads, run.first, run.position, start, ring.base, ring.rows, ratio.unwrap_or(0)];
    let places = [top, to.page, to.place, to.rows, dim, plain, words];
    let sizes = sizes.into_iter().chain(places).map(|size| size as u32);
    let scale = (dim as f32).powf(-0.5);
    let parameters: Vec<_> = sizes.chain([scale.to_bits()]).collect();
    let span = span.unwrap_or(ring.buffer);
    let spans = [query, span, ring.buffer, to.pages, chosen, sinks, y].map(Buffer::all);
    let groups = [heads as u32, run.tokens as u32, 1];
    gpu.dispatch(Op::Compressed(Kernel::Attend(stored)), &spans, &parameters, groups)
}

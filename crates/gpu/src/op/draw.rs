//! The most likely tokens of a row of logits, as the host's samplers order them: by falling logit, equal ones (zero of
//! either sign is one number) by ascending id.
//!
//! A logit becomes an integer of the same order; one that is not a number, or plus infinity, becomes the greatest, so
//! that it is found wherever it is. Passes over a row give pairs of such integers and ids, further passes join them.

use super::Op;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Tokens of a ranking.
pub const RANKED: usize = 64;
/// Candidates of a workgroup that ranks.
const SORTED: usize = 1024;
/// Candidates of a workgroup that finds the most likely.
const SEARCHED: usize = 4096;
/// Stands for a token where a row has a logit that is no number.
pub const NOT_FINITE: u32 = u32::MAX;

const ORDER: &str = "
fn ordered(logit: u32) -> u32 {
    let size = logit & 0x7fffffffu;
    if size > 0x7f800000u || logit == 0x7f800000u { return 0xffffffffu; }
    if size == 0u { return 0x80000000u; }
    return select(logit | 0x80000000u, ~logit, logit >> 31u == 1u);
}
fn precedes(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}
";

/// Reads candidate `i` of a row: a logit of the row, or a pair.
fn candidate(row: bool) -> &'static str {
    match row {
        true => "vec2<u32>(ordered(given[wid.y * p.stride + i]), i)",
        false => {
            "vec2<u32>(given[(wid.y * p.stride + i) * 2u], given[(wid.y * p.stride + i) * 2u + 1u])"
        }
    }
}

pub(crate) fn most_likely(row: bool) -> (Source, String) {
    let source = Source::new()
        .read("given", "u32")
        .write("found", "u32")
        .parameters(&["count", "stride", "searched", "lists"])
        .shared("best", "array<vec2<u32>, 256>")
        .function(ORDER);
    let give = match row {
        true => {
            "let at = (wid.y * p.lists + wid.x) * 2u;
            found[at] = best[0].x;
            found[at + 1u] = best[0].y;"
        }
        false => "found[wid.y] = select(best[0].y, 0xffffffffu, best[0].x == 0xffffffffu);",
    };
    let body = format!(
        "var first = vec2<u32>(0u, 0xffffffffu);
        let end = min((wid.x + 1u) * p.searched, p.count);
        for (var i = wid.x * p.searched + lid; i < end; i = i + 256u) {{
            let other = {candidate};
            if precedes(other, first) {{ first = other; }}
        }}
        best[lid] = first;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half = half >> 1u) {{
            if lid < half && precedes(best[lid + half], best[lid]) {{ best[lid] = best[lid + half]; }}
            workgroupBarrier();
        }}
        if lid == 0u {{
            {give}
        }}
        ",
        candidate = candidate(row)
    );
    (source, body)
}

pub(crate) fn rank(row: bool) -> (Source, String) {
    let source = Source::new()
        .read("given", "u32")
        .write("found", "u32")
        .parameters(&["count", "first"])
        .shared("keys", &format!("array<vec2<u32>, {SORTED}>"))
        .function(ORDER);
    // A network of exchanges, descending; the first of the sorted are kept.
    let candidate = match row {
        true => "vec2<u32>(ordered(given[p.first + i]), i)",
        false => "vec2<u32>(given[i * 2u], given[i * 2u + 1u])",
    };
    let body = format!(
        "for (var local = lid; local < {SORTED}u; local = local + 256u) {{
            let i = wid.x * {SORTED}u + local;
            var key = vec2<u32>(0u, 0xffffffffu);
            if i < p.count {{ key = {candidate}; }}
            keys[local] = key;
        }}
        for (var size = 2u; size <= {SORTED}u; size = size << 1u) {{
            for (var stride = size >> 1u; stride > 0u; stride = stride >> 1u) {{
                workgroupBarrier();
                for (var pair = lid; pair < {SORTED}u / 2u; pair = pair + 256u) {{
                    let low = (pair / stride) * stride * 2u + pair % stride;
                    let high = low + stride;
                    let falling = (low & size) == 0u;
                    let a = keys[low];
                    let b = keys[high];
                    if precedes(b, a) == falling {{
                        keys[low] = b;
                        keys[high] = a;
                    }}
                }}
            }}
        }}
        workgroupBarrier();
        if lid < {RANKED}u {{
            let at = (wid.x * {RANKED}u + lid) * 2u;
            found[at] = keys[lid].x;
            found[at + 1u] = keys[lid].y;
        }}
        "
    );
    (source, body)
}

/// Words of each of the two scratch buffers for rows of `columns` logits, `rows` of them at once.
pub fn scratch_words(columns: usize, rows: usize) -> usize {
    (2 * RANKED * columns.div_ceil(SORTED)).max(2 * rows * columns.div_ceil(SEARCHED))
}

/// The most likely token of each of `rows` rows of `columns` logits, or [`NOT_FINITE`], into the first words of `out`.
///
/// # Errors
/// The device failed.
pub fn launch_most_likely(
    gpu: &mut Gpu,
    logits: &Buffer,
    scratch: &Buffer,
    out: &Buffer,
    (rows, columns): (usize, usize),
) -> Result<(), GpuError> {
    let lists = columns.div_ceil(SEARCHED);
    let parameters = [columns as u32, columns as u32, SEARCHED as u32, lists as u32];
    let groups = [lists as u32, rows as u32, 1];
    let spans = [logits.all(), scratch.all()];
    gpu.dispatch(Op::MostLikely { row: true }, &spans, &parameters, groups)?;
    let parameters = [lists as u32, lists as u32, lists as u32, 1];
    let spans = [scratch.all(), out.all()];
    gpu.dispatch(Op::MostLikely { row: false }, &spans, &parameters, [1, rows as u32, 1])
}

/// Which of the two scratch buffers has the ranking of a row of `columns` logits.
pub fn ranking_place(columns: usize) -> usize {
    let (mut lists, mut passes) = (columns.div_ceil(SORTED), 0);
    while lists > 1 {
        lists = (lists * RANKED).div_ceil(SORTED);
        passes += 1;
    }
    passes % 2
}

/// The [`RANKED`] most likely tokens of a row of `columns` logits that begins at number `first`: pairs of words that
/// [`ranked`] reads, best first, in the scratch buffer [`ranking_place`].
///
/// # Errors
/// The device failed.
pub fn launch_rank(
    gpu: &mut Gpu,
    logits: &Buffer,
    scratch: [&Buffer; 2],
    (first, columns): (usize, usize),
) -> Result<(), GpuError> {
    let mut lists = columns.div_ceil(SORTED);
    let spans = [logits.all(), scratch[0].all()];
    let parameters = [columns as u32, first as u32];
    gpu.dispatch(Op::Rank { row: true }, &spans, &parameters, [lists as u32, 1, 1])?;
    let mut place = 0;
    while lists > 1 {
        let count = lists * RANKED;
        lists = count.div_ceil(SORTED);
        let spans = [scratch[place].all(), scratch[1 - place].all()];
        let groups = [lists as u32, 1, 1];
        gpu.dispatch(Op::Rank { row: false }, &spans, &[count as u32, 0], groups)?;
        place = 1 - place;
    }
    Ok(())
}

/// Token and logit of a pair; `None` for a logit that is no number or plus infinity. Minus infinity also stands for a
/// token that the row does not have.
pub fn ranked(ordered: u32, token: u32) -> Option<(u32, f32)> {
    if ordered == u32::MAX {
        return None;
    }
    let bits = if ordered >> 31 == 1 { ordered & 0x7fff_ffff } else { !ordered };
    let logit = f32::from_bits(bits);
    Some((token, if logit.is_nan() { f32::NEG_INFINITY } else { logit }))
}

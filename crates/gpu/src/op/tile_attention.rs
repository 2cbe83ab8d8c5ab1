//! Attention of prompts by cooperative matrices, over a cache of f16: 64 queries of one head a workgroup, 64 keys at a
//! time.
//!
//! Keys are passed twice: first for the greatest score of each query and the sum of its weights, then for the weighted
//! values, so that sums in matrices need no rescaling. Tiles of keys begin at multiples of 64: a query's sums do not
//! depend on where a prompt was cut.

use std::fmt::Write as _;

use super::Op;
use super::attention::{Run, Shape};
use super::halves::Halves;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Queries and keys of a tile.
pub const TILE: usize = 64;
/// The step from a row of weights in workgroup memory to the next, in vectors of four.
const STEP: u32 = 18;

/// True where the kernel serves heads of so many values and a cache of so many positions.
pub fn serves(dim: usize, capacity: usize) -> bool {
    matches!(dim, 128 | 256) && capacity >= TILE
}

/// Products of this subgroup's queries and keys, scaled and masked, in `scores`.
fn scores(dim: u32) -> String {
    let mut text = String::from(
        "var score0 = coop_mat16x16<f32, C>();
        var score1 = coop_mat16x16<f32, C>();
        ",
    );
    for step in 0..dim / 16 {
        let at = step * 4;
        let _ = write!(
            text,
            "{{
                let low = coopLoadT<coop_mat16x16<f16, A>>(&x[queries + low_half + {at}u], query_step);
                let high = coopLoadT<coop_mat16x16<f16, A>>(&x[queries + {at}u], query_step);
                let key0 = coopLoad<coop_mat16x16<f16, B>>(&keys[first_key + {at}u], key_step);
                let key1 = coopLoad<coop_mat16x16<f16, B>>(&keys[first_key + 16u * key_step + {at}u], key_step);
                score0 = coopMultiplyAdd(low, key0, score0);
                score1 = coopMultiplyAdd(low, key1, score1);
                score0 = coopMultiplyAdd(high, key0, score0);
                score1 = coopMultiplyAdd(high, key1, score1);
            }}
            "
        );
    }
    text.push_str(
        "coopStoreT(score0, &scores[(subgroup >> 1u) * 1024u + (subgroup & 1u) * 32u], 64u);
        coopStoreT(score1, &scores[(subgroup >> 1u) * 1024u + (subgroup & 1u) * 32u + 16u], 64u);
        workgroupBarrier();
        ",
    );
    text
}

pub(crate) fn source(dim: u32, gated: bool) -> (Source, String) {
    let mut source = Source::new()
        .extension("f16")
        .extension("wgpu_cooperative_matrix")
        .read("x", "vec4<f16>")
        .read("factors", "f32");
    if gated {
        source = source.read("both", "f32");
    }
    let source = source
        .read("keys", "vec4<f16>")
        .read("values", "vec4<f16>")
        .write("y", "f32")
        .parameters(&[
            "query_heads",
            "key_value_heads",
            "first",
            "tokens",
            "position",
            "capacity",
            "scale",
        ])
        .shared("scores", "array<f32, 4096>")
        .shared("left", &format!("array<vec4<f16>, {}>", 2 * 64 * STEP))
        .shared("greatest", "array<f32, 256>")
        .shared("totals", "array<f32, 256>");
    let columns = dim / 128;
    let mut body = format!(
        "let subgroup = lid >> 5u;
        let lane = lid & 31u;
        let head = wid.y;
        let pair_head = head / (p.query_heads / p.key_value_heads);
        let begin = wid.x * 64u;
        let low_half = p.query_heads * {quads}u;
        let query_step = 2u * low_half;
        let queries = (p.first + begin + (subgroup >> 1u) * 16u) * query_step + head * {quads}u;
        let key_step = p.key_value_heads * {quads}u;
        let last = p.position + min(begin + 63u, p.tokens - 1u);
        // Of scores four invocations share a query, each with every fourth vector.
        let row = lid >> 2u;
        let part = lid & 3u;
        let mine = p.position + min(begin + row, p.tokens - 1u);
        let scale = factors[p.first + min(begin + row, p.tokens - 1u)] * 16.0 * bitcast<f32>(p.scale);
        var most = -3.0e38;
        var total = 0.0;
        for (var block = 0u; block <= last; block = block + 64u) {{
            let start = min(block, p.capacity - 64u);
            let first_key = (start + (subgroup & 1u) * 32u) * key_step + pair_head * {quads}u;
        ",
        quads = dim / 4
    );
    body.push_str(&scores(dim));
    body.push_str(
        "var now = most;
            for (var i = part; i < 64u; i = i + 4u) {
                let key = start + i;
                if key >= block && key <= mine { now = max(now, scores[row * 64u + i] * scale); }
            }
            greatest[lid] = now;
            workgroupBarrier();
            let same = lid & 252u;
            now = max(max(greatest[same], greatest[same + 1u]), max(greatest[same + 2u], greatest[same + 3u]));
            var sum = 0.0;
            for (var i = part; i < 64u; i = i + 4u) {
                let key = start + i;
                if key >= block && key <= mine { sum = sum + exp(scores[row * 64u + i] * scale - now); }
            }
            total = fma(total, exp(most - now), sum);
            most = now;
            workgroupBarrier();
        }
        totals[lid] = total;
        workgroupBarrier();
        let four = lid & 252u;
        total = (totals[four] + totals[four + 1u]) + (totals[four + 2u] + totals[four + 3u]);
        workgroupBarrier();
        if part == 0u { totals[row] = total; }
        ",
    );
    for i in 0..4 {
        for j in 0..columns {
            let _ = writeln!(body, "var acc{i}_{j} = coop_mat16x16<f32, C>();");
        }
    }
    let _ = write!(
        body,
        "for (var block = 0u; block <= last; block = block + 64u) {{
            let start = min(block, p.capacity - 64u);
            let first_key = (start + (subgroup & 1u) * 32u) * key_step + pair_head * {}u;
        ",
        dim / 4
    );
    body.push_str(&scores(dim));
    let _ = write!(
        body,
        "for (var quad = part; quad < 16u; quad = quad + 4u) {{
            var weight = vec4<f32>(0.0);
            let key = start + quad * 4u;
            let at = row * 64u + quad * 4u;
            let four_scores = vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
            if key >= block {{
                let all = exp(four_scores * scale - most) * 1024.0;
                let numbers = vec4<u32>(key) + vec4<u32>(0u, 1u, 2u, 3u);
                weight = select(vec4<f32>(0.0), all, numbers <= vec4<u32>(mine));
            }}
            let high = bitcast<vec4<f32>>(bitcast<vec4<u32>>(weight) & vec4<u32>(0xffffe000u));
            left[row * {STEP}u + quad] = vec4<f16>(high);
            left[{}u + row * {STEP}u + quad] = vec4<f16>(weight - high);
        }}
        workgroupBarrier();
        let across = subgroup * {}u + pair_head * {}u;
        ",
        64 * STEP,
        columns * 4,
        dim / 4
    );
    for step in 0..4 {
        body.push_str("{\n");
        for j in 0..columns {
            let _ = writeln!(
                body,
                "let value{j} = coopLoadT<coop_mat16x16<f16, B>>(\
                 &values[(start + {}u) * key_step + across + {}u], key_step);",
                step * 16,
                j * 4
            );
        }
        for i in 0..4 {
            for (part, name) in [(1, "low"), (0, "high")] {
                let _ = writeln!(
                    body,
                    "let {name}{i} = coopLoadT<coop_mat16x16<f16, A>>(&left[{}u], {STEP}u);",
                    part * 64 * STEP + i * 16 * STEP + step * 4
                );
                for j in 0..columns {
                    let _ = writeln!(
                        body,
                        "acc{i}_{j} = coopMultiplyAdd({name}{i}, value{j}, acc{i}_{j});"
                    );
                }
            }
        }
        body.push_str("}\n");
    }
    body.push_str("workgroupBarrier();\n}\n");
    let gate = match gated {
        true => " * (1.0 / (1.0 + exp(-both[(at_head * 2u) * DIMu + column])))",
        false => "",
    };
    let gate = gate.replace("DIM", &dim.to_string());
    for i in 0..4 {
        for j in 0..columns {
            let _ = write!(
                body,
                "coopStoreT(acc{i}_{j}, &scores[subgroup * 256u], 16u);
                workgroupBarrier();
                for (var n = lane; n < 256u; n = n + 32u) {{
                    let query = {i}u * 16u + (n >> 4u);
                    let column = subgroup * {}u + {j}u * 16u + (n & 15u);
                    if begin + query < p.tokens {{
                        let at_head = (p.first + begin + query) * p.query_heads + head;
                        let sum = scores[subgroup * 256u + n] * 0.0009765625 / totals[query];
                        y[at_head * {dim}u + column] = sum{gate};
                    }}
                }}
                workgroupBarrier();
                ",
                columns * 16
            );
        }
    }
    (source, body)
}

/// [`super::attention::launch`] of a run of a prompt over a cache of f16 for `capacity` positions, with the batch's
/// queries in halves. There must be room for [`TILE`] rows behind the run's first.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (query, both): (&Halves, Option<&Buffer>),
    (keys, values, capacity): (&Buffer, &Buffer, usize),
    y: &Buffer,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    assert!(serves(shape.dim, capacity), "heads of {}, {capacity} positions", shape.dim);
    let parameters = [
        shape.query_heads as u32,
        shape.key_value_heads as u32,
        run.first as u32,
        run.tokens as u32,
        run.position as u32,
        capacity as u32,
        (shape.dim as f32).powf(-0.5).to_bits(),
    ];
    let mut spans = vec![query.values.all(), query.factors.all()];
    spans.extend(both.map(Buffer::all));
    spans.extend([keys.all(), values.all(), y.all()]);
    let groups = [run.tokens.div_ceil(TILE) as u32, shape.query_heads as u32, 1];
    let op = Op::TileAttend { dim: shape.dim as u32, gated: both.is_some() };
    gpu.dispatch(op, &spans, &parameters, groups)
}

//! Attention of a prompt's tokens over a cache of f16 or of 8 bits: 32 rows a workgroup, which are some tokens times
//! the query heads that share a head of keys, so that keys and values are read once for all of them.
//!
//! It runs where products of prompts go by matrices, and needs more workgroup memory than a step's kernels have
//! ([`super::attention`]). Positions go by blocks of 64 from the first on with an online softmax, so a row's bits
//! depend neither on the other rows nor on how a prompt is cut.

use std::fmt::Write as _;

use super::attention::{Cache, KeyValue, Queries, Run, Shape};
use super::{Op, q8};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Values of heads that are served.
pub const DIMS: [usize; 3] = [64, 128, 256];
/// Rows of a workgroup.
const ROWS: usize = 32;
/// Positions of a block.
const BLOCK: u32 = 64;
/// Values of a head that are in workgroup memory at once, in vectors of four, and the step from a position to the next.
const DEPTH: u32 = 8;
const STEP: u32 = DEPTH + 1;

/// True where a layer of this shape is computed here.
pub fn serves(cache: Cache, shape: Shape) -> bool {
    cache != Cache::F32
        && DIMS.contains(&shape.dim)
        && shape.query_heads / shape.key_value_heads <= ROWS
}

/// Eight values of keys or of values: how a kernel declares them, reads them by row and place, and makes two vectors.
struct Eight {
    array: &'static str,
    zero: &'static str,
    parts: fn(&str) -> [String; 2],
    read: fn(&str, &str, &str, u32) -> String,
}

/// As halves in vectors, which are the caches' own.
const HALVES: Eight = Eight {
    array: "vec4<u32>",
    zero: "vec4<u32>(0u)",
    parts: |eight| {
        [("x", "y"), ("z", "w")].map(|(a, b)| {
            format!("vec4<f32>(unpack2x16float({eight}.{a}), unpack2x16float({eight}.{b}))")
        })
    },
    read: |array, row, at, dim| format!("{array}[({row}) * {}u + {at}]", dim / 8),
};

/// As bytes under a scale.
const BYTES: Eight = Eight {
    array: "u32",
    zero: "mat2x4<f32>()",
    parts: |eight| [0, 1].map(|half| format!("{eight}[{half}]")),
    read: |array, row, at, dim| format!("eight_{array}({row}, {dim}u, {at})"),
};

pub(crate) fn source(cache: Cache, dim: u32, gated: bool) -> (Source, String) {
    let eight = if cache == Cache::Q8 { &BYTES } else { &HALVES };
    let mut source = Source::new().read("query", "vec4<f32>");
    if gated {
        source = source.read("both", "vec4<f32>");
    }
    let source = source
        .read("keys", eight.array)
        .read("values", eight.array)
        .write("y", "vec4<f32>")
        .parameters(&["query_heads", "key_value_heads", "first", "position", "tokens", "scale"])
        .shared("q", &format!("array<vec4<f32>, {}>", ROWS as u32 * DEPTH))
        .shared("k", &format!("array<vec4<f32>, {}>", BLOCK * STEP))
        .shared("weights", "array<vec4<f32>, 512>")
        .shared("red", "array<f32, 256>")
        .shared("sums", "array<f32, 256>")
        .shared("keeps", "array<f32, 32>");
    let source = if cache == Cache::Q8 { source.function(&q8::loads_of_eight()) } else { source };
    // An invocation sums eight values of so many rows.
    let (groups, rows) = (dim / 8, dim / 64);
    let mut body = format!(
        "let group = p.query_heads / p.key_value_heads;
        let each = {ROWS}u / group;
        let begin = wid.y * each;
        let end = min(begin + each, p.tokens) - 1u;
        let last = p.position + end;
        // For maxima and sums a row is eight invocations', for scores two rows are sixteen's.
        let own = lid & 31u;
        let eighth = lid >> 5u;
        let own_position = p.position + min(begin + own / group, end);
        let pair = (lid >> 4u) * 2u;
        let place = lid & 15u;
        let part = lid % {groups}u;
        let mine = lid / {groups}u * {rows}u;
        var greatest = -3.0e38;
        var total = 0.0;
        "
    );
    for row in 0..rows {
        let _ = writeln!(body, "var near{row} = vec4<f32>(0.0);\nvar far{row} = vec4<f32>(0.0);");
    }
    let _ = write!(
        body,
        "for (var block = 0u; block <= last; block = block + {BLOCK}u) {{
            {}{}{}}}
        ",
        scores(eight, dim),
        SOFTMAX,
        add(eight, dim)
    );
    let _ = write!(
        body,
        "if eighth == 0u {{ keeps[own] = total; }}
        workgroupBarrier();
        "
    );
    for row in 0..rows {
        let gate = |at: u32| match gated {
            true => format!(
                " / (vec4<f32>(1.0) + exp(-both[at * {}u + {}u + part * 2u + {at}u]))",
                dim / 2,
                dim / 4
            ),
            false => String::new(),
        };
        let _ = write!(
            body,
            "{{
                let m = mine + {row}u;
                let token = begin + m / group;
                if m < each * group && token <= end {{
                    let at = (p.first + token) * p.query_heads + wid.x * group + m % group;
                    let to = at * {}u + part * 2u;
                    let all = vec4<f32>(keeps[m]);
                    y[to] = near{row} / all{};
                    y[to + 1u] = far{row} / all{};
                }}
            }}
            ",
            dim / 4,
            gate(0),
            gate(1)
        );
    }
    (source, body)
}

/// The scores of a block into `weights`, by position and row: two rows and four positions an invocation.
fn scores(eight: &Eight, dim: u32) -> String {
    let each = |text: &dyn Fn(u32, u32) -> String| -> String {
        (0..2)
            .flat_map(|row| (0..4).map(move |at| (row, at)))
            .map(|(row, at)| text(row, at))
            .collect()
    };
    let begin = each(&|row, at| format!("var s{row}_{at} = 0.0;\n"));
    let reads: String = (0..4)
        .map(|at| format!("let k{at} = k[(place + {}u) * {STEP}u + e];\n", 16 * at))
        .collect();
    let products = each(&|row, at| {
        let term = |part: &str, sum: String| format!("fma(q{row}.{part}, k{at}.{part}, {sum})");
        let sum =
            ["x", "y", "z", "w"].iter().fold(format!("s{row}_{at}"), |sum, part| term(part, sum));
        format!("s{row}_{at} = {sum};\n")
    });
    let ends = each(&|row, at| {
        format!(
            "weights[(place + {}u) * 8u + (pair >> 2u)][(pair & 3u) + {row}u] = s{row}_{at};\n",
            16 * at
        )
    });
    let [low, high] = (eight.parts)("eight");
    let read =
        (eight.read)("keys", "position * p.key_value_heads + wid.x", "c * 4u + (lid & 3u)", dim);
    format!(
        "{begin}for (var c = 0u; c < {}u; c = c + 1u) {{
            workgroupBarrier();
            {{
                let m = lid >> 3u;
                let token = min(begin + m / group, end);
                let head = (p.first + token) * p.query_heads + wid.x * group + m % group;
                q[lid] = query[head * {}u + c * {DEPTH}u + (lid & 7u)] * bitcast<f32>(p.scale);
                let position = block + (lid >> 2u);
                var eight = {};
                if position <= last {{
                    eight = {read};
                }}
                let to = (lid >> 2u) * {STEP}u + (lid & 3u) * 2u;
                k[to] = {low};
                k[to + 1u] = {high};
            }}
            workgroupBarrier();
            for (var e = 0u; e < {DEPTH}u; e = e + 1u) {{
                let q0 = q[pair * {DEPTH}u + e];
                let q1 = q[pair * {DEPTH}u + {DEPTH}u + e];
                {reads}{products}
            }}
        }}
        {ends}workgroupBarrier();
        ",
        dim / 32,
        dim / 4,
        eight.zero
    )
}

/// Scores become weights; `keeps` is what each row's sums so far are multiplied by.
const SOFTMAX: &str = "
            var most = -3.0e38;
            for (var i = eighth * 8u; i < eighth * 8u + 8u; i = i + 1u) {
                if block + i <= own_position { most = max(most, weights[i * 8u + (own >> 2u)][own & 3u]); }
            }
            red[lid] = most;
            workgroupBarrier();
            var now = greatest;
            for (var other = 0u; other < 8u; other = other + 1u) { now = max(now, red[other * 32u + own]); }
            var sum = 0.0;
            for (var i = eighth * 8u; i < eighth * 8u + 8u; i = i + 1u) {
                let score = weights[i * 8u + (own >> 2u)][own & 3u];
                let weight = select(0.0, exp(score - now), block + i <= own_position);
                weights[i * 8u + (own >> 2u)][own & 3u] = weight;
                sum = sum + weight;
            }
            sums[lid] = sum;
            let keep = exp(greatest - now);
            greatest = now;
            if eighth == 0u { keeps[own] = keep; }
            workgroupBarrier();
            let all = ((sums[own] + sums[own + 32u]) + (sums[own + 64u] + sums[own + 96u]))
                + ((sums[own + 128u] + sums[own + 160u]) + (sums[own + 192u] + sums[own + 224u]));
            total = fma(total, keep, all);
";

/// Adds a block's values to the sums.
fn add(eight: &Eight, dim: u32) -> String {
    let (rows, mut text) = (dim / 64, String::new());
    for row in 0..rows {
        let _ = write!(
            text,
            "near{row} = near{row} * keeps[mine + {row}u];
            far{row} = far{row} * keeps[mine + {row}u];
            "
        );
    }
    let mut four = String::new();
    for at in 0..4 {
        let _ = write!(
            four,
            "var eight{at} = {};
            if j + {at}u < count {{
                eight{at} = {};
            }}
            ",
            eight.zero,
            (eight.read)(
                "values",
                &format!("(block + j + {at}u) * p.key_value_heads + wid.x"),
                "part",
                dim
            )
        );
    }
    for at in 0..4 {
        let [low, high] = (eight.parts)(&format!("eight{at}"));
        let _ = write!(
            four,
            "let a{at} = {low};
            let b{at} = {high};
            let w{at} = weights[(j + {at}u) * 8u + (mine >> 2u)];
            "
        );
        for row in 0..rows {
            let weight = match rows {
                4 => format!("w{at}[{row}u]"),
                _ => format!("w{at}[(mine & 3u) + {row}u]"),
            };
            let _ = write!(
                four,
                "near{row} = fma(vec4<f32>({weight}), a{at}, near{row});
                far{row} = fma(vec4<f32>({weight}), b{at}, far{row});
                "
            );
        }
    }
    format!(
        "{text}let count = min({BLOCK}u, last - block + 1u);
        for (var j = 0u; j < count; j = j + 4u) {{
            {four}
        }}
        "
    )
}

/// As [`super::attention::launch`], where [`serves`].
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    cache: Cache,
    Queries { query, both }: Queries<'_>,
    KeyValue { keys, values }: KeyValue<'_>,
    y: &Buffer,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    debug_assert!(serves(cache, shape), "{cache:?}, {shape:?}");
    let parameters = [
        shape.query_heads as u32,
        shape.key_value_heads as u32,
        run.first as u32,
        run.position as u32,
        run.tokens as u32,
        (shape.dim as f32).powf(-0.5).to_bits(),
    ];
    let spans = std::iter::once(query).chain(both).chain([keys, values, y]);
    let spans: Vec<_> = spans.map(Buffer::all).collect();
    let each = ROWS * shape.key_value_heads / shape.query_heads;
    let groups = [shape.key_value_heads as u32, run.tokens.div_ceil(each) as u32, 1];
    let op = Op::AttendPrompt { cache, dim: shape.dim as u32, gated: both.is_some() };
    gpu.dispatch(op, &spans, &parameters, groups)
}

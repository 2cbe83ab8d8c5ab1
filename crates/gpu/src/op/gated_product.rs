//! Of one token the norm of each head times a function of a gate, and a matrix of that, added to a row: a launch where
//! two were. Each workgroup has the sums of all heads; they have the order of `norm::gated`.

use std::fmt::Write as _;

use super::Op;
use super::fused::Spec;
use super::norm::Gate;
use super::packing::Packing;
use super::product::TEAMS;
use crate::source::{Form, Source};
use crate::{Buffer, Gpu, GpuError, Planes};

/// Most heads.
const HEADS: usize = 128;
/// Most values of a head; they are a multiple of 32.
const WIDTH: usize = 128;

/// The factors of all heads: those of sixteen at a time, each by sixteen invocations.
const FACTORS: &str = "
        let heads = p.columns / p.width;
        let quads = p.width >> 2u;
        for (var some = 0u; some < heads; some = some + 16u) {
            workgroupBarrier();
            let end = min(16u, heads - some) * quads;
            for (var i = lid; i < end; i = i + 256u) {
                let four = x[some * quads + i];
                staged[i] = fma(four, four, vec4<f32>(0.0));
            }
            workgroupBarrier();
            let head = some + (lid >> 4u);
            if head < heads {
                let begin = (lid >> 4u) * p.width + (lid & 15u);
                let a = pair_of(begin, 0u, p.width) + pair_of(begin, 32u, p.width);
                let b = pair_of(begin, 64u, p.width) + pair_of(begin, 96u, p.width);
                red[lid] = a + b;
            }
            workgroupBarrier();
            if head < heads && (lid & 15u) == 0u {
                let a = (red[lid] + red[lid + 1u]) + (red[lid + 2u] + red[lid + 3u]);
                let b = (red[lid + 4u] + red[lid + 5u]) + (red[lid + 6u] + red[lid + 7u]);
                let c = (red[lid + 8u] + red[lid + 9u]) + (red[lid + 10u] + red[lid + 11u]);
                let d = (red[lid + 12u] + red[lid + 13u]) + (red[lid + 14u] + red[lid + 15u]);
                let squares = (a + b) + (c + d);
                factors[head] = 1.0 / sqrt(squares / f32(p.width) + bitcast<f32>(p.epsilon));
            }
        }
";

/// Values `at` and sixteen behind it of the squares from `begin` on, where a head has them.
const PAIR_OF: &str = "
fn pair_of(begin: u32, at: u32, width: u32) -> f32 {
    if at >= width { return 0.0; }
    let low = begin + at;
    let high = low + 16u;
    return staged[low >> 2u][low & 3u] + staged[high >> 2u][high & 3u];
}
";

/// True where the kernel computes heads of such a width with a matrix of this packing and so many columns.
pub fn serves(packing: Packing, columns: usize, width: usize) -> bool {
    let heads = columns / width;
    super::fused::serves(packing, columns)
        && (1..=HEADS).contains(&heads)
        && width <= WIDTH
        && width.is_multiple_of(32)
}

/// The function of a gate's values.
fn function(gate: Gate) -> String {
    let name = name(gate);
    let quotient = gate.of("vec4<f32>(1.0)");
    format!("fn {name}(z: vec4<f32>) -> vec4<f32> {{ return {quotient}; }}\n")
}

fn name(gate: Gate) -> String {
    format!("{gate:?}").to_lowercase()
}

pub(crate) fn source(spec: Spec, gate: Gate, form: Form) -> (Source, String) {
    let sums = spec.sums(form);
    let source = super::fused::declare(Source::new(), spec, 0);
    let source = source
        .read("x", "vec4<f32>")
        .read("weight", "vec4<f32>")
        .read("gate", "vec4<f32>")
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups", "width", "epsilon"]);
    let source = sums.declare(source).shared("red", "array<f32, 256>");
    let source = source
        .shared("factors", &format!("array<f32, {HEADS}>"))
        .function(PAIR_OF)
        .function(&function(gate));
    let mut body = sums.begin();
    let _ = writeln!(body, "let first = (wid.x * {TEAMS}u + team) * {}u;", spec.rows);
    for row in 0..spec.rows {
        let _ = writeln!(body, "let row{row} = min(first + {row}u, p.rows - 1u);");
    }
    body.push_str(&super::fused::starts(spec));
    let load = |of: u32, _: u32, index: &str| format!("{}[{index}]", super::fused::plane(0, of));
    let value = format!(
        "x[vec_at] * factors[vec_at / quads] * weight[vec_at % quads] * {}(gate[vec_at])",
        name(gate)
    );
    body.push_str(&sums.accumulate_of(&|each| each(&load), FACTORS, &value));
    body.push_str(&sums.finish(
        "let row = first + r;
        if row < p.rows { y[row] = y[row] + sum; }",
    ));
    (source, body)
}

/// `y[rows] += W (x / rms(x) * weight * function(gate))` of one token, the norm by heads of `width` values.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    matrix: &Planes,
    ([x, weight, gate], function): ([&Buffer; 3], Gate),
    y: &Buffer,
    width: usize,
    epsilon: f32,
) -> Result<(), GpuError> {
    assert!(serves(matrix.packing, matrix.columns, width), "heads of {width}");
    let spec = Spec::new(matrix, matrix.rows);
    let (columns, packing) = (matrix.columns, matrix.packing);
    let parameters = [
        matrix.rows as u32,
        columns as u32,
        packing.row_step(columns),
        packing.row_groups(columns),
        width as u32,
        epsilon.to_bits(),
    ];
    let mut spans = matrix.spans(None);
    spans.extend([x, weight, gate, y].map(Buffer::all));
    let groups = [(matrix.rows as u32).div_ceil(TEAMS * spec.rows), 1, 1];
    gpu.dispatch(Op::GatedProduct { spec, gate: function }, &spans, &parameters, groups)
}

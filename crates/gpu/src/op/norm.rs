//! RMS norms: of rows, and of heads with a gate.

use super::Op;
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError};

/// What a normed value is multiplied by, of its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `z sigmoid(z)`
    Silu,
    /// `sigmoid(z)`
    Sigmoid,
}

impl Gate {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Silu, Self::Sigmoid];

    /// The quotient of a value of the gate, `z`; `one` is as wide.
    pub(super) fn of(self, one: &str) -> String {
        let above = if self == Self::Silu { "z" } else { one };
        format!("{above} / ({one} + exp(-z))")
    }
}

/// The text of a norm.
pub(crate) fn source(op: Op, form: Form) -> (Source, String) {
    match op {
        Op::NormAdd => added(form),
        Op::NormInPlace => in_place(form),
        Op::GatedNorm { gate } => gated(gate, form),
        _ => rows(form),
    }
}

fn rows(form: Form) -> (Source, String) {
    let source = Source::new()
        .read("x", "f32")
        .read("weight", "f32")
        .write("y", "f32")
        .parameters(&["width", "epsilon"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let body = "
        let row = wid.x * p.width;
        var squares = 0.0;
        for (var i = lid; i < p.width; i = i + 256u) { squares = fma(x[row + i], x[row + i], squares); }
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.width) + bitcast<f32>(p.epsilon));
        for (var i = lid; i < p.width; i = i + 256u) { y[row + i] = x[row + i] * factor * weight[i]; }
        ";
    (source, body.to_owned())
}

/// `y[rows, width]` = `x / rms(x) * weight` by row.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (x, weight, y): (&Buffer, &Buffer, &Buffer),
    size: (usize, usize),
    epsilon: f32,
) -> Result<(), GpuError> {
    launch_rows(gpu, Op::Norm, [x, weight, y], size, epsilon)
}

fn launch_rows(
    gpu: &mut Gpu,
    op: Op,
    buffers: [&Buffer; 3],
    (rows, width): (usize, usize),
    epsilon: f32,
) -> Result<(), GpuError> {
    let parameters = [width as u32, epsilon.to_bits()];
    let spans = buffers.map(Buffer::all);
    gpu.dispatch(op, &spans, &parameters, [rows as u32, 1, 1])
}

fn in_place(form: Form) -> (Source, String) {
    let source = Source::new()
        .read("weight", "f32")
        .write("x", "f32")
        .parameters(&["rows", "width", "epsilon"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let body = "
        let number = wid.y * 65535u + wid.x;
        if number >= p.rows { return; }
        let row = number * p.width;
        var squares = 0.0;
        for (var i = lid; i < p.width; i = i + 256u) { squares = fma(x[row + i], x[row + i], squares); }
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.width) + bitcast<f32>(p.epsilon));
        for (var i = lid; i < p.width; i = i + 256u) { x[row + i] = x[row + i] * factor * weight[i]; }
        ";
    (source, body.to_owned())
}

fn added(form: Form) -> (Source, String) {
    let (source, body) = rows(form);
    (source, body.replace("y[row + i] = x", "y[row + i] = y[row + i] + x"))
}

/// `y[rows, width]` += `x / rms(x) * weight` by row.
///
/// # Errors
/// The device failed.
pub fn launch_added(
    gpu: &mut Gpu,
    (x, weight, y): (&Buffer, &Buffer, &Buffer),
    size: (usize, usize),
    epsilon: f32,
) -> Result<(), GpuError> {
    launch_rows(gpu, Op::NormAdd, [x, weight, y], size, epsilon)
}

/// `x[rows, width]` = `x / rms(x) * weight` by row, in place.
///
/// # Errors
/// The device failed.
pub fn launch_in_place(
    gpu: &mut Gpu,
    (x, weight): (&Buffer, &Buffer),
    (rows, width): (usize, usize),
    epsilon: f32,
) -> Result<(), GpuError> {
    let parameters = [rows as u32, width as u32, epsilon.to_bits()];
    let groups = [rows.min(65535) as u32, rows.div_ceil(65535) as u32, 1];
    gpu.dispatch(Op::NormInPlace, &[weight.all(), x.all()], &parameters, groups)
}

fn gated(gate: Gate, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("weight", "f32")
        .read("gate", "f32")
        .write("x", "f32")
        .parameters(&["width", "epsilon"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let body = format!(
        "
        let row = (wid.y * 65535u + wid.x) * p.width;
        var squares = 0.0;
        for (var i = lid; i < p.width; i = i + 256u) {{ squares = fma(x[row + i], x[row + i], squares); }}
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.width) + bitcast<f32>(p.epsilon));
        for (var i = lid; i < p.width; i = i + 256u) {{
            let z = gate[row + i];
            x[row + i] = x[row + i] * factor * weight[i] * ({});
        }}
        ",
        gate.of("1.0")
    );
    (source, body)
}

/// The buffers of [`launch_gated`].
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// `[rows, width]`
    pub x: &'a Buffer,
    /// `[width]`
    pub weight: &'a Buffer,
    /// `[rows, width]`
    pub gate: &'a Buffer,
    /// The function of the gate.
    pub function: Gate,
}

/// `x[rows, width]` = `x / rms(x) * weight * function(gate)` by row, in place.
///
/// # Errors
/// The device failed.
pub fn launch_gated(
    gpu: &mut Gpu,
    Gated { x, weight, gate, function }: Gated<'_>,
    (rows, width): (usize, usize),
    epsilon: f32,
) -> Result<(), GpuError> {
    let parameters = [width as u32, epsilon.to_bits()];
    let spans = [weight.all(), gate.all(), x.all()];
    let groups = [rows.min(65535) as u32, rows.div_ceil(65535) as u32, 1];
    gpu.dispatch(Op::GatedNorm { gate: function }, &spans, &parameters, groups)
}

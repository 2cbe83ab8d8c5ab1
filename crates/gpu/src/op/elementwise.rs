//! Gates.

use super::Op;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Workgroups in one direction.
const ROW: usize = 32768;

const INDEX: &str = "let i = (wid.y * 32768u + wid.x) * 256u + lid;\n";

pub(crate) fn sigmoid_gate() -> (Source, String) {
    let source = Source::new().read("gate", "f32").write("x", "f32").parameters(&["count"]);
    let body =
        format!("{INDEX}if i < p.count {{ x[i] = x[i] * (1.0 / (1.0 + exp(-gate[i]))); }}\n");
    (source, body)
}

pub(crate) fn sigmoid() -> (Source, String) {
    let source = Source::new().write("x", "f32").parameters(&["count"]);
    let body = format!("{INDEX}if i < p.count {{ x[i] = 1.0 / (1.0 + exp(-x[i])); }}\n");
    (source, body)
}

pub(crate) fn swiglu() -> (Source, String) {
    let source = Source::new().read("up", "f32").write("gate", "f32").parameters(&["count"]);
    let body =
        format!("{INDEX}if i < p.count {{ gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i]; }}\n");
    (source, body)
}

fn launch(gpu: &mut Gpu, op: Op, from: &Buffer, to: &Buffer, count: usize) -> Result<(), GpuError> {
    gpu.dispatch(op, &[from.all(), to.all()], &[count as u32], groups(count))
}

fn groups(count: usize) -> [u32; 3] {
    let groups = count.div_ceil(256);
    [groups.min(ROW) as u32, groups.div_ceil(ROW) as u32, 1]
}

/// `x *= sigmoid(gate)`
///
/// # Errors
/// The device failed.
pub fn launch_sigmoid_gate(
    gpu: &mut Gpu,
    gate: &Buffer,
    x: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    launch(gpu, Op::SigmoidGate, gate, x, count)
}

/// `x = sigmoid(x)`
///
/// # Errors
/// The device failed.
pub fn launch_sigmoid(gpu: &mut Gpu, x: &Buffer, count: usize) -> Result<(), GpuError> {
    gpu.dispatch(Op::Sigmoid, &[x.all()], &[count as u32], groups(count))
}

/// `gate = silu(gate) * up`
///
/// # Errors
/// The device failed.
pub fn launch_swiglu(
    gpu: &mut Gpu,
    up: &Buffer,
    gate: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    launch(gpu, Op::SwiGlu, up, gate, count)
}

//! Operations on values one by one: gates, activations, factors, caps.

use super::Op;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Workgroups in one direction.
const ROW: usize = 32768;

/// The value of an invocation, of [`groups`] of them.
pub(super) const INDEX: &str = "let i = (wid.y * 32768u + wid.x) * 256u + lid;\n";

/// The text of an operation on values one by one.
pub(crate) fn source(op: Op) -> (Source, String) {
    match op {
        Op::SigmoidGate => sigmoid_gate(),
        Op::GateHeads => gate_heads(),
        Op::Sigmoid => sigmoid(),
        Op::GeGlu => geglu(),
        Op::Limited => limited(),
        Op::Scale => scale(),
        Op::Cap => cap(),
        Op::WeighExperts => weigh_experts(),
        _ => swiglu(),
    }
}

fn sigmoid_gate() -> (Source, String) {
    let source = Source::new().read("gate", "f32").write("x", "f32").parameters(&["count"]);
    let body =
        format!("{INDEX}if i < p.count {{ x[i] = x[i] * (1.0 / (1.0 + exp(-gate[i]))); }}\n");
    (source, body)
}

fn gate_heads() -> (Source, String) {
    let parameters = ["count", "values"];
    let source = Source::new().read("gate", "f32").write("x", "f32").parameters(&parameters);
    let body = format!(
        "{INDEX}if i < p.count {{ x[i] = x[i] * (1.0 / (1.0 + exp(-gate[i / p.values]))); }}\n"
    );
    (source, body)
}

fn sigmoid() -> (Source, String) {
    let source = Source::new().write("x", "f32").parameters(&["count"]);
    let body = format!("{INDEX}if i < p.count {{ x[i] = 1.0 / (1.0 + exp(-x[i])); }}\n");
    (source, body)
}

/// The hyperbolic tangent: near zero by its series, elsewhere by an exponential that may be infinite. That of a driver
/// may overflow.
const TANH: &str = "
fn tangent(x: f32) -> f32 {
    let s = x * x;
    let near = x * (1.0 + s * (-0.33333334 + s * (0.13333334 + s * (-0.053968254 + s * 0.021869488))));
    let far = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    return select(far, near, s < 0.0625);
}
";

/// The GELU, by a hyperbolic tangent.
pub(super) const GELU: &str = "
fn gelu(x: f32) -> f32 {
    let at = 0.7978846 * (x + 0.044715 * x * x * x);
    // (1 + tanh(at)) / 2 is a sigmoid, whose exponential may be infinite.
    return x / (1.0 + exp(-2.0 * at));
}
";

/// Statements that clamp `gate` to `g` and `up` to `u`. What is no number stays none: comparisons with it are false.
pub(super) const LIMITED: &str = "let g = select(gate, limit, gate > limit);
let u = select(select(up, limit, up > limit), -limit, up < -limit);
";

fn limited() -> (Source, String) {
    let source =
        Source::new().read("ups", "f32").write("gates", "f32").parameters(&["count", "limit"]);
    let body = format!(
        "{INDEX}if i < p.count {{
            let limit = bitcast<f32>(p.limit);
            let gate = gates[i];
            let up = ups[i];
            {LIMITED}gates[i] = g / (1.0 + exp(-g)) * u;
        }}
        "
    );
    (source, body)
}

fn geglu() -> (Source, String) {
    let source = Source::new().read("up", "f32").write("gate", "f32").parameters(&["count"]);
    let body = format!("{INDEX}if i < p.count {{ gate[i] = gelu(gate[i]) * up[i]; }}\n");
    (source.function(GELU), body)
}

fn scale() -> (Source, String) {
    let source = Source::new().read("factor", "f32").write("x", "f32").parameters(&["count"]);
    let body = format!("{INDEX}if i < p.count {{ x[i] = x[i] * factor[0]; }}\n");
    (source, body)
}

fn cap() -> (Source, String) {
    let source = Source::new().write("x", "f32").parameters(&["count", "cap"]).function(TANH);
    let body = format!(
        "{INDEX}let most = bitcast<f32>(p.cap);
        if i < p.count {{ x[i] = most * tangent(x[i] / most); }}
        "
    );
    (source, body)
}

fn weigh_experts() -> (Source, String) {
    let source = Source::new()
        .read("ids", "u32")
        .read("factors", "f32")
        .write("weights", "f32")
        .parameters(&["count", "first_id"]);
    let body = format!(
        "{INDEX}if i < p.count {{ weights[i] = weights[i] * factors[ids[p.first_id + i]]; }}\n"
    );
    (source, body)
}

fn swiglu() -> (Source, String) {
    let source = Source::new().read("up", "f32").write("gate", "f32").parameters(&["count"]);
    let body =
        format!("{INDEX}if i < p.count {{ gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i]; }}\n");
    (source, body)
}

fn launch(gpu: &mut Gpu, op: Op, from: &Buffer, to: &Buffer, count: usize) -> Result<(), GpuError> {
    gpu.dispatch(op, &[from.all(), to.all()], &[count as u32], groups(count))
}

/// Workgroups of so many values.
pub(super) fn groups(count: usize) -> [u32; 3] {
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

/// `x[heads, values] *= sigmoid(gate[heads])`
///
/// # Errors
/// The device failed.
pub fn launch_gate_heads(
    gpu: &mut Gpu,
    (gate, x): (&Buffer, &Buffer),
    (heads, values): (usize, usize),
) -> Result<(), GpuError> {
    let (count, spans) = (heads * values, [gate.all(), x.all()]);
    gpu.dispatch(Op::GateHeads, &spans, &[count as u32, values as u32], groups(count))
}

/// `x = sigmoid(x)`
///
/// # Errors
/// The device failed.
pub fn launch_sigmoid(gpu: &mut Gpu, x: &Buffer, count: usize) -> Result<(), GpuError> {
    gpu.dispatch(Op::Sigmoid, &[x.all()], &[count as u32], groups(count))
}

/// `gate = gelu(gate) * up`, the GELU by a hyperbolic tangent
///
/// # Errors
/// The device failed.
pub fn launch_geglu(
    gpu: &mut Gpu,
    up: &Buffer,
    gate: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    launch(gpu, Op::GeGlu, up, gate, count)
}

/// `gate = silu(g) * u` with `g = min(gate, limit)` and `u = up` within `-limit..=limit`
///
/// # Errors
/// The device failed.
pub fn launch_limited(
    gpu: &mut Gpu,
    up: &Buffer,
    gate: &Buffer,
    limit: f32,
    count: usize,
) -> Result<(), GpuError> {
    let parameters = [count as u32, limit.to_bits()];
    gpu.dispatch(Op::Limited, &[up.all(), gate.all()], &parameters, groups(count))
}

/// `x *= factor[0]`
///
/// # Errors
/// The device failed.
pub fn launch_scale(
    gpu: &mut Gpu,
    factor: &Buffer,
    x: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    launch(gpu, Op::Scale, factor, x, count)
}

/// `x = cap tanh(x / cap)`
///
/// # Errors
/// The device failed.
pub fn launch_cap(gpu: &mut Gpu, x: &Buffer, cap: f32, count: usize) -> Result<(), GpuError> {
    gpu.dispatch(Op::Cap, &[x.all()], &[count as u32, cap.to_bits()], groups(count))
}

/// `weights[count] *= factors[ids]`, with `ids` from number `first_id` on.
///
/// # Errors
/// The device failed.
pub fn launch_weigh_experts(
    gpu: &mut Gpu,
    (ids, first_id): (&Buffer, usize),
    factors: &Buffer,
    weights: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    let spans = [ids.all(), factors.all(), weights.all()];
    gpu.dispatch(Op::WeighExperts, &spans, &[count as u32, first_id as u32], groups(count))
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

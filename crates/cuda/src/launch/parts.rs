//! Launches of parts that only some families have: biases, interleaved rows of gate and up, clamped activations, GELU
//! (`kernels/parts.cu`).

use super::experts::ExpertArguments;
use super::{Groups, Kernel, expect};
use crate::abi::mirrors;
use crate::{CudaError, ExpertShapes, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct BiasArguments {
    x: u64,
    bias: u64,
    starts: u64,
    width: u32,
    experts: u32,
}

/// What routed experts compute between their matrices, where it is not SwiGLU alone.
#[derive(Clone, Copy)]
pub struct ExpertActivation {
    /// Biases of gate and up, `[experts, inner]` each, and of down, `[experts, hidden]`.
    pub biases: Option<[Span<f32>; 3]>,
    /// Factor of the gate within the sigmoid, or 0 for SwiGLU of clamped values, and what gate (from above) and up (on
    /// both sides) are clamped to.
    pub clamped: Option<(f32, f32)>,
    /// Whether rows of gate and up lie in turns, gate first, through both matrices.
    pub in_turns: bool,
    /// Whether the shared expert is clamped as well.
    pub shared: bool,
    /// Whether the gate goes through GELU, approximated by a hyperbolic tangent, instead of SiLU.
    pub gelu: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ActivationArguments {
    gate_bias: u64,
    up_bias: u64,
    down_bias: u64,
    alpha: f32,
    limit: f32,
    in_turns: u32,
    shared: u32,
    gelu: u32,
    padding: u32,
}

impl ExpertActivation {
    /// Experts that there are biases of.
    pub(super) fn experts(&self, shapes: &ExpertShapes) -> usize {
        self.biases.map_or(0, |[gate, ..]| gate.len() / shapes.inner())
    }

    fn arguments(&self, experts: usize, inner: usize, hidden: usize) -> ActivationArguments {
        if let Some([gate, up, down]) = self.biases {
            expect("biases of gate", gate.len(), experts * inner);
            expect("biases of up", up.len(), experts * inner);
            expect("biases of down", down.len(), experts * hidden);
        }
        let [gate_bias, up_bias, down_bias] =
            self.biases.map_or([0; 3], |biases| biases.map(|bias| bias.address));
        let (alpha, limit) = self.clamped.unwrap_or((0.0, 0.0));
        let [in_turns, shared, gelu] = [self.in_turns, self.shared, self.gelu].map(u32::from);
        ActivationArguments {
            gate_bias,
            up_bias,
            down_bias,
            alpha,
            limit,
            in_turns,
            shared,
            gelu,
            padding: 0,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PrepareArguments {
    gate: u64,
    up: u64,
    starts: u64,
    addresses: u64,
    activation: ActivationArguments,
    experts: u32,
    inner: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ExpertPartsArguments {
    experts: ExpertArguments,
    activation: ActivationArguments,
}

impl ExpertPartsArguments {
    /// For `count` experts of these shapes.
    pub(super) fn new(
        experts: ExpertArguments,
        activation: &ExpertActivation,
        shapes: &ExpertShapes,
        count: usize,
    ) -> Self {
        let (inner, hidden) = (shapes.inner(), shapes.gate.columns());
        Self { experts, activation: activation.arguments(count, inner, hidden) }
    }
}

/// `x += bias` for each of the rows `[rows, bias.len()]`.
///
/// # Errors
/// The device failed.
pub fn add_bias(stream: &Stream, x: Span<f32>, bias: Span<f32>) -> Result<(), CudaError> {
    let (width, rows) = (bias.len(), x.len() / bias.len());
    expect("rows with a bias", x.len(), rows * width);
    let (x, bias) = (x.address, bias.address);
    let arguments = BiasArguments { x, bias, starts: 0, width: width as u32, experts: 0 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::AddBias, (rows, 1, 1), 256, 0, &arguments) }
}

/// Adds to each pair's outputs `x` `[pairs, hidden]` the bias `[experts, hidden]` of its expert.
///
/// # Errors
/// The device failed.
pub fn add_pair_bias(
    stream: &Stream,
    x: Span<f32>,
    bias: Span<f32>,
    groups: &Groups,
) -> Result<(), CudaError> {
    let (pairs, experts) = (groups.pair_token.len(), groups.starts.len() - 1);
    let width = bias.len() / experts;
    expect("biases of experts", bias.len(), experts * width);
    expect("outputs of pairs", x.len(), pairs * width);
    let arguments = BiasArguments {
        x: x.address,
        bias: bias.address,
        starts: groups.starts.address,
        width: width as u32,
        experts: experts as u32,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::AddBias, (pairs, 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LimitArguments {
    gate: u64,
    up: u64,
    count: u64,
    limit: f32,
    padding: u32,
}

/// Clamps `count` values of `gate` from above and of `up` on both sides.
///
/// # Errors
/// The device failed.
pub fn limit(
    stream: &Stream,
    gate: Span<f32>,
    up: Span<f32>,
    count: usize,
    limit: f32,
) -> Result<(), CudaError> {
    expect("gate values", gate.len(), count);
    expect("up values", up.len(), count);
    let (gate, up) = (gate.address, up.address);
    let arguments = LimitArguments { gate, up, count: count as u64, limit, padding: 0 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::Limit, (count.div_ceil(256), 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GeluArguments {
    gate: u64,
    up: u64,
    count: u64,
}

/// Makes of `count` values of `gate` and `up` what `silu(gate) * up` then is `gelu(gate) * up` of, the GELU
/// approximated by a hyperbolic tangent.
///
/// # Errors
/// The device failed.
pub fn gelu_pairs(
    stream: &Stream,
    gate: Span<f32>,
    up: Span<f32>,
    count: usize,
) -> Result<(), CudaError> {
    expect("gate values", gate.len(), count);
    expect("up values", up.len(), count);
    let arguments = GeluArguments { gate: gate.address, up: up.address, count: count as u64 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::GeluPairs, (count.div_ceil(256), 1, 1), 256, 0, &arguments) }
}

/// `gate = GELU(gate) * up` over `count` values.
///
/// # Errors
/// The device failed.
pub fn geglu(
    stream: &Stream,
    gate: Span<f32>,
    up: Span<f32>,
    count: usize,
) -> Result<(), CudaError> {
    expect("gate values", gate.len(), count);
    expect("up values", up.len(), count);
    let arguments = GeluArguments { gate: gate.address, up: up.address, count: count as u64 };
    let grid = (count.div_ceil(256), 1, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::Geglu, grid, 256, 0, &arguments) }
}

/// Makes of gate and up `[pairs, inner]`, as their matrices gave them, what `silu(gate) * up` then is the activation
/// of; for the pairs whose expert has an address.
///
/// # Errors
/// The device failed.
pub(super) fn prepare_pairs(
    stream: &Stream,
    (gate, up): (Span<f32>, Span<f32>),
    groups: &Groups,
    addresses: Span<u64>,
    activation: &ExpertActivation,
    shapes: &ExpertShapes,
) -> Result<(), CudaError> {
    let (inner, hidden) = (shapes.inner(), shapes.gate.columns());
    let (experts, pairs) = (addresses.len(), groups.pair_token.len());
    expect("gate values", gate.len(), pairs * inner);
    expect("up values", up.len(), pairs * inner);
    let arguments = PrepareArguments {
        gate: gate.address,
        up: up.address,
        starts: groups.starts.address,
        addresses: addresses.address,
        activation: activation.arguments(experts, inner, hidden),
        experts: experts as u32,
        inner: inner as u32,
    };
    let shared = if activation.in_turns { 2 * inner * 4 } else { 0 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::PreparePairs, (pairs, 1, 1), 256, shared, &arguments) }
}

mirrors! {
    BiasArguments as BiasArguments { x, bias, starts, width, experts } for AddBias;
    ActivationArguments as Activation { gate_bias, up_bias, down_bias, alpha, limit, in_turns, shared, gelu, padding };
    PrepareArguments as PrepareArguments { gate, up, starts, addresses, activation, experts, inner } for PreparePairs;
    LimitArguments as LimitArguments { gate, up, count, limit, padding } for Limit;
    GeluArguments as GeluArguments { gate, up, count } for GeluPairs, Geglu;
    ExpertPartsArguments as ExpertPartsArguments { experts, activation } for ExpertInnerParts, ExpertOuterParts,
        ExpertInnerPartsPlanes, ExpertOuterPartsPlanes;
}

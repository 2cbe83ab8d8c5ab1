//! The experts of a step where gate and up are clamped before SwiGLU, the shared expert's as well, in planes
//! (`kernels/step_planes.cu`).

use super::form::{StepForm, form_of, staged_bytes};
use super::{
    ExpertStep, Kernel, StepExpertArguments, StepInput, StepShared, expert_arguments,
    step_serves_experts, step_serves_pair,
};
use crate::abi::{INNER_THREADS, STEP_THREADS, UNIT};
use crate::launch::SharedExpert;
use crate::{CudaError, Device, ExpertShapes, Matrix, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct StepLimitedArguments {
    pub(super) step: StepExpertArguments,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) shared_inner: u64,
    pub(super) limit: f32,
    pub(super) padding: u32,
}

/// True when [`step_experts_limited`] serves experts of these shapes with this shared expert.
pub fn step_serves_limited(
    device: &Device,
    shapes: &ExpertShapes,
    shared: Option<&SharedExpert>,
) -> bool {
    let down = shared.map(|shared| &shared.down);
    let pair = |shared: &SharedExpert| {
        step_serves_pair(device, &shared.gate, &shared.up)
            && form_of(device, [&shared.gate]) == Some(StepForm::Planes)
    };
    step_serves_experts(device, shapes, down)
        && form_of(device, [&shapes.gate]) == Some(StepForm::Planes)
        && shared.is_none_or(pair)
}

/// As [`super::experts`], of the stream `input`, which must not have changed since the kernel before routing, with gate
/// clamped to `limit` from above and up on both sides.
///
/// # Errors
/// The device failed.
pub fn step_experts_limited(
    stream: &Stream,
    tokens: usize,
    input: &StepInput,
    step: &ExpertStep,
    shapes: &ExpertShapes,
    shared: Option<&SharedExpert>,
    limit: f32,
) -> Result<(), CudaError> {
    assert!(step_serves_limited(stream.device(), shapes, shared), "experts served");
    let (hidden, inner) = (shapes.gate.columns(), shapes.inner());
    let half = shared.map(|shared| StepShared {
        down: shared.down,
        factor: shared.factor,
        inner: shared.inner,
    });
    let (arguments, split, form) =
        expert_arguments(stream.device(), tokens, input, step, shapes, half.as_ref());
    let none = Matrix { rows: 0, ..shapes.gate };
    let limited = StepLimitedArguments {
        step: arguments,
        gate: shared.map_or(none, |shared| shared.gate),
        up: shared.map_or(none, |shared| shared.up),
        shared_inner: shared.map_or(0, |shared| shared.inner.address),
        limit,
        padding: 0,
    };
    let width = shared.map_or(0, |shared| shared.gate.rows());
    let (inner_blocks, outer_blocks) = split.blocks(inner.max(width), hidden);
    let ranks = step.k + usize::from(shared.is_some());
    let first = (Kernel::StepInnerLimited, (inner_blocks, ranks, tokens));
    let second = (Kernel::StepOuterPlanes, (outer_blocks, tokens, 1));
    let (staged, both) = (
        staged_bytes(form, hidden),
        staged_bytes(form, step.k * inner.next_multiple_of(UNIT) + width),
    );
    // SAFETY: the structures are the kernels'; `expert_arguments` checked lengths; records lie where the table says.
    unsafe {
        stream.launch_overlapping(first.0, first.1, INNER_THREADS, staged, &limited)?;
        stream.launch_overlapping(second.0, second.1, STEP_THREADS, both, &arguments)
    }
}

//! The experts of a step that choose themselves, where every record is in device memory (`kernels/step_routed.cu`).

use super::super::experts::{RouteArguments, Routing};
use super::form::{StepForm, form_of};
use super::{Kernel, StepExpertArguments};
use crate::{Device, ExpertShapes};

/// Experts among which a lane of such a kernel has sixteen.
const ROUTED_EXPERTS: usize = 512;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct StepRoutedArguments {
    pub(super) step: StepExpertArguments,
    pub(super) route: RouteArguments,
}

/// True when [`super::step_experts`] can make the choice of `routing` itself. Every record must be in device memory.
pub fn step_serves_routing(device: &Device, shapes: &ExpertShapes, routing: &Routing) -> bool {
    form_of(device, [&shapes.gate]) == Some(StepForm::Affine)
        && routing.table.len() <= ROUTED_EXPERTS
        && routing.scored.is_none()
        && routing.guess.is_none()
        && routing.copies.is_none()
}

/// The kernel that does the same as `first` and chooses itself.
pub(super) fn routed(first: Kernel) -> Kernel {
    match first {
        Kernel::StepInner => Kernel::StepInnerRouted,
        Kernel::StepInnerNarrow => Kernel::StepInnerNarrowRouted,
        Kernel::SeveralInner => Kernel::SeveralInnerRouted,
        Kernel::SeveralInnerNarrow => Kernel::SeveralInnerNarrowRouted,
        Kernel::SeveralInnerFour => Kernel::SeveralInnerFourRouted,
        Kernel::SeveralInnerFourNarrow => Kernel::SeveralInnerFourNarrowRouted,
        _ => unreachable!("{}: its routing is a kernel of its own", first.name()),
    }
}

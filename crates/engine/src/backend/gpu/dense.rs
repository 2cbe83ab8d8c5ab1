//! Networks that every token uses, of layers without experts and next to them.

use gpu::op::{elementwise, product};
use gpu::{Buffer, Gpu, GpuError};

use super::GpuBackend;
use crate::EngineError;
use crate::backend::Register;
use crate::model::activation::Activation;
use crate::model::dense::Dense;
use store::LayerId;

/// `gate` = what a network's inner values are: of dense layers and of experts that every token uses.
pub(super) fn activate(
    gpu: &mut Gpu,
    activation: Activation,
    up: &Buffer,
    gate: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    match activation {
        Activation::Limited { limit } => elementwise::launch_limited(gpu, up, gate, limit, count),
        Activation::GeGlu => elementwise::launch_geglu(gpu, up, gate, count),
        _ => elementwise::launch_swiglu(gpu, up, gate, count),
    }
}

impl GpuBackend {
    /// `Residual += down(activation(gate x, up x))` with `x` in `Normed`; where it has an output of its own, that is
    /// written.
    pub(super) fn run_dense(&mut self, layer: LayerId, dense: &Dense) -> Result<(), EngineError> {
        let (to, add) = (dense.to.unwrap_or(Register::Residual), dense.to.is_none());
        let [normed, to] =
            [Register::Normed, to].map(|register| self.registers[register as usize].clone());
        let (inner, up) = (self.mixture.shared_gate.clone(), self.mixture.shared_up.clone());
        let count = self.tokens * self.trunk.matrix(dense.gate.index()).rows;
        let firsts = [(dense.gate, inner.clone()), (dense.up, up.clone())];
        self.products_of(&normed, &firsts)?;
        let gpu = &mut self.residency.device_mut().gpu;
        activate(gpu, dense.activation, &up, &inner, count)?;
        if self.by_matrices() {
            self.tiled(&inner, &[(dense.down, to)], add)?;
        } else {
            let down = self.trunk.matrix(dense.down.index());
            let gpu = &mut self.residency.device_mut().gpu;
            product::launch(gpu, down, &inner, &to, self.tokens, add)?;
        }
        let alone = !self.config.layers[layer.index()].feed_forward.has_mixture();
        if alone && self.steps.runs() {
            // The layer's piece ends like that of others: with nothing chosen.
            self.step_routed(layer)?;
            self.steps.note_combine(&self.residency.device().gpu);
        }
        Ok(())
    }
}

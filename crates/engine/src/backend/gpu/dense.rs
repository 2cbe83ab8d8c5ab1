//! Networks that every token uses, of layers without experts.

use gpu::op::{elementwise, product};

use super::GpuBackend;
use crate::EngineError;
use crate::backend::Register;
use crate::model::dense::Dense;
use store::LayerId;

impl GpuBackend {
    /// `Residual += down(silu(gate x) * up x)` with `x` in `Normed`.
    pub(super) fn run_dense(&mut self, layer: LayerId, dense: &Dense) -> Result<(), EngineError> {
        let [normed, residual] = [Register::Normed, Register::Residual]
            .map(|register| self.registers[register as usize].clone());
        let (inner, up) = (self.mixture.shared_gate.clone(), self.mixture.shared_up.clone());
        let count = self.tokens * self.trunk.matrix(dense.gate.index()).rows;
        let firsts = [(dense.gate, inner.clone()), (dense.up, up.clone())];
        if self.by_matrices() {
            self.tiled(&normed, &firsts, false)?;
        } else {
            for (matrix, y) in &firsts {
                let matrix = self.trunk.matrix(matrix.index());
                let gpu = &mut self.residency.device_mut().gpu;
                product::launch(gpu, matrix, &normed, y, self.tokens, false)?;
            }
        }
        elementwise::launch_swiglu(&mut self.residency.device_mut().gpu, &up, &inner, count)?;
        if self.by_matrices() {
            self.tiled(&inner, &[(dense.down, residual)], true)?;
        } else {
            let down = self.trunk.matrix(dense.down.index());
            let gpu = &mut self.residency.device_mut().gpu;
            product::launch(gpu, down, &inner, &residual, self.tokens, true)?;
        }
        if self.steps.runs() {
            // The layer's piece ends like that of others: with nothing chosen.
            self.step_routed(layer)?;
            self.steps.note_combine(&self.residency.device().gpu);
        }
        Ok(())
    }
}

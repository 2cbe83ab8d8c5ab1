//! Norms and factors of families that norm what a block gives before it is added: one by one, and those of a step that
//! follow each other at once.

use cuda::launch::{self, Factor, NormsBetween, NormsJoin};
use store::LayerId;

use super::fuse::SandwichNorms;
use super::{CudaBackend, Register};
use crate::EngineError;
use crate::model::mixture::Mixture;
use crate::weights::VectorId;

impl CudaBackend {
    /// `Value` = RMS norm of each head of `from`, without a weight.
    pub(super) fn norm_values(&mut self, layer: LayerId, from: Register) {
        self.run(|this| {
            let (count, dim) = this.heads_in(layer, from);
            let (x, out) = (this.register(from), this.register(Register::Value));
            let (rows, epsilon) = ((this.tokens * count, dim), this.config.rms_epsilon);
            launch::norm_rows(&this.stream, rows, x, None, epsilon, out, false)
        });
    }

    /// `to += norm(from)`
    pub(super) fn norm_add(&mut self, from: Register, weight: VectorId, to: Register) {
        self.run(|this| {
            let (x, weight, out) = (this.register(from), this.vector(weight), this.register(to));
            let (rows, epsilon) = ((this.tokens, weight.len()), this.config.rms_epsilon);
            launch::norm_rows(&this.stream, rows, x, Some(weight), epsilon, out, true)
        });
    }

    /// `register *= factor`
    pub(super) fn scale(&mut self, register: Register, factor: VectorId) {
        self.run(|this| {
            let factor = Factor::Stored(this.vector(factor));
            launch::scale(&this.stream, this.register(register), factor)
        });
    }

    /// A mixture of a step with the norms before and behind it. What it gives stays where the last ones read it.
    ///
    /// # Errors
    /// A launch that failed, of these or before.
    pub(super) fn step_sandwich(
        &mut self,
        layer: LayerId,
        weights: &SandwichNorms,
        mixture: &Mixture,
    ) -> Result<(), EngineError> {
        self.run(|this| {
            let register = |register| this.register(register);
            let output = this.own_output();
            let (epsilon, branch) = (this.config.rms_epsilon, register(Register::Branch));
            let between = NormsBetween {
                branch,
                branch_weight: this.vector(weights.dense),
                x: register(Register::Residual),
                weights: weights.before.map(|weight| this.vector(weight)),
                out: [Register::RouterInput, Register::Normed].map(register),
                zeros: output,
                epsilon,
            };
            launch::norm_between(&this.stream, this.tokens, &between)?;
            this.launch_mixture(layer, None, mixture, output)?;
            let join = NormsJoin {
                x: output,
                weight: this.vector(weights.mixture),
                branch,
                branch_weight: this.vector(weights.after),
                out: register(Register::Residual),
                factor: this.vector(weights.factor),
                epsilon,
            };
            launch::norm_join(&this.stream, this.tokens, &join)
        });
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

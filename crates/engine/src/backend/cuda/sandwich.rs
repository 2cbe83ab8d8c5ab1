//! Norms and factors of families that norm what a block gives before it is added: one by one, and those of a step that
//! follow each other at once.

use cuda::launch::{self, Factor, NormsBetween, NormsJoin};
use store::LayerId;

use super::{CudaBackend, Register};
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

    /// `Branch` = its norm, `RouterInput` and `Normed` = norms of `Residual`.
    pub(super) fn norm_between(&mut self, branch: VectorId, of_stream: [VectorId; 2]) {
        self.run(|this| {
            let norms = NormsBetween {
                branch: this.register(Register::Branch),
                branch_weight: this.vector(branch),
                x: this.register(Register::Residual),
                weights: of_stream.map(|weight| this.vector(weight)),
                out: [Register::RouterInput, Register::Normed].map(|to| this.register(to)),
                epsilon: this.config.rms_epsilon,
            };
            launch::norm_between(&this.stream, this.tokens, &norms)
        });
    }

    /// `Branch += norm(Normed)`, then `Residual = (Residual + norm(Branch)) * factor`.
    pub(super) fn norm_join(&mut self, mixture: VectorId, branch: VectorId, factor: VectorId) {
        self.run(|this| {
            let join = NormsJoin {
                x: this.register(Register::Normed),
                weight: this.vector(mixture),
                branch: this.register(Register::Branch),
                branch_weight: this.vector(branch),
                out: this.register(Register::Residual),
                factor: this.vector(factor),
                epsilon: this.config.rms_epsilon,
            };
            launch::norm_join(&this.stream, this.tokens, &join)
        });
    }
}

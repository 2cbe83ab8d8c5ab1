//! Residual streams that gates read, on the GPU, one kernel after the other.

use cuda::launch::{self, GateMatrices, StepGates, Streams};
use cuda::{CudaError, Span};

use super::{CudaBackend, Register};
use crate::weights::{MatrixId, VectorId};

impl CudaBackend {
    /// The streams that a register has.
    pub(super) fn streams_in(&self, register: Register) -> Streams {
        let (count, hidden) = (self.config.streams(), self.sizes.hidden);
        Streams { values: self.register(register), count, hidden }
    }

    pub(super) fn launch_norm_streams(&mut self, weight: VectorId) {
        self.run(|this| {
            let (streams, out) =
                (this.streams_in(Register::Residual), this.register(Register::StreamsNormed));
            let norm = (this.vector(weight), this.config.rms_epsilon);
            launch::norm_streams(&this.stream, this.tokens, &streams, norm, out)
        });
    }

    /// What the streams give a block, or the output head: then the rows of all tokens lie one after the other.
    pub(super) fn launch_gate_streams(&mut self, up: MatrixId, to: Register) {
        self.run(|this| {
            let (low, gates) =
                (this.register(Register::GateLow), this.register(Register::StreamValues));
            let streams = this.streams_in(Register::StreamsNormed);
            launch::activate_gates(&this.stream, low, streams.count)?;
            this.products(low, &[(this.matrix(up), gates)], false)?;
            let out = this.register(to).part(0, this.tokens * this.sizes.hidden);
            launch::merge_gated(&this.stream, this.tokens, &streams, gates, out)
        });
    }

    /// What a step's streams give a block, and what they will take of its output. Not to the output head, whose input
    /// lies where the streams do.
    pub(super) fn fused_gates(
        &mut self,
        norm: VectorId,
        (down, inject, up): (MatrixId, Option<MatrixId>, MatrixId),
    ) {
        self.run(|this| {
            let matrices = GateMatrices {
                down: this.matrix(down),
                inject: inject.map(|id| this.matrix(id)),
                up: this.matrix(up),
            };
            let gates = StepGates {
                norm: this.vector(norm),
                epsilon: this.config.rms_epsilon,
                matrices,
                inject: this.register(Register::Inject),
                block: this.register(Register::Normed).part(0, this.tokens * this.sizes.hidden),
                partial: this.register(Register::StreamValues),
            };
            let streams = this.streams_in(Register::Residual);
            launch::step_gates(&this.stream, this.tokens, &streams, &gates)
        });
    }

    pub(super) fn launch_inject_streams(&mut self, from: Register) {
        self.run(|this| this.inject(this.register(from)));
    }

    /// Gives a block's output to the streams.
    pub(super) fn inject(&self, output: Span<f32>) -> Result<(), CudaError> {
        let streams = self.streams_in(Register::Residual);
        let weights = self.register(Register::Inject);
        launch::inject_streams(&self.stream, self.tokens, &streams, weights, output)
    }

    /// Where a mixture adds its output before the streams take it: no gate is needed any more.
    pub(super) fn gated_output(&self) -> Span<f32> {
        self.register(Register::StreamValues).part(0, self.tokens * self.sizes.hidden)
    }
}

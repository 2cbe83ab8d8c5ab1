//! Layers without experts: a network that every token uses, in a step as two kernels where the matrices allow it, of a
//! prompt in blocks of tokens, because such networks are several times as wide as an expert.

use cuda::launch::{self, StepJob};
use cuda::{CudaError, Matrix};

use super::buffers::DENSE_TOKENS;
use super::{CudaBackend, Register};
use crate::model::activation::Activation;
use crate::model::dense::Dense;
use crate::weights::VectorId;

impl CudaBackend {
    /// `Residual += down(activation(gate x) * up x)` of `Normed`, or what is added into a register of its own.
    pub(super) fn run_dense(&mut self, dense: &Dense) {
        let matrices = [dense.gate, dense.up, dense.down].map(|id| self.matrix(id));
        self.run(|this| match this.single {
            true => this.dense_rows(dense, matrices),
            false => this.dense_chunk(dense, matrices),
        });
    }

    /// The same of the residual stream, normed, by fused kernels.
    pub(super) fn fused_dense(&mut self, norm: VectorId, dense: &Dense) {
        let matrices = [dense.gate, dense.up, dense.down].map(|id| self.matrix(id));
        self.run(|this| this.dense_step(norm, dense, matrices));
    }

    /// A step by fused kernels.
    fn dense_step(
        &self,
        norm: VectorId,
        dense: &Dense,
        [gate, up, down]: [Matrix; 3],
    ) -> Result<(), CudaError> {
        let (stream, tokens, width) = (&self.stream, self.tokens, self.tokens * gate.rows());
        let (x, ups) =
            (self.buffers.shared_gate.part(0, width), self.buffers.shared_up.part(0, width));
        let input = self.normed_input(norm);
        if dense.activation == Activation::GeGlu {
            let jobs = [StepJob::Store(gate, x), StepJob::Store(up, ups)];
            launch::step_linear(stream, tokens, &input, &jobs)?;
            launch::geglu(stream, x, ups, width)?;
        } else {
            launch::step_linear(stream, tokens, &input, &[StepJob::SwiGlu(gate, up, x)])?;
        }
        let out = self.register(dense.to.unwrap_or(Register::Residual));
        self.products(x, &[(down, out)], dense.to.is_none())
    }

    /// A step, operation by operation, of `Normed`.
    fn dense_rows(&self, dense: &Dense, [gate, up, down]: [Matrix; 3]) -> Result<(), CudaError> {
        let (stream, width) = (&self.stream, self.tokens * gate.rows());
        let gates = self.buffers.shared_gate.part(0, width);
        let ups = self.buffers.shared_up.part(0, width);
        let out = self.register(dense.to.unwrap_or(Register::Residual));
        let normed = self.register(Register::Normed);
        self.products(normed, &[(gate, gates), (up, ups)], false)?;
        match dense.activation {
            Activation::GeGlu => launch::geglu(stream, gates, ups, width)?,
            _ => launch::swiglu(stream, gates, ups, width)?,
        }
        self.products(gates, &[(down, out)], dense.to.is_none())
    }

    /// A chunk of a prompt, of `Normed`.
    fn dense_chunk(&self, dense: &Dense, [gate, up, down]: [Matrix; 3]) -> Result<(), CudaError> {
        let (stream, hidden, width) = (&self.stream, self.sizes.hidden, gate.rows());
        let to = self.register(dense.to.unwrap_or(Register::Residual));
        let (normed, add) = (self.register(Register::Normed), dense.to.is_none());
        for first in (0..self.tokens).step_by(DENSE_TOKENS) {
            let tokens = DENSE_TOKENS.min(self.tokens - first);
            let x = normed.part(first * hidden, tokens * hidden);
            let out = to.part(first * hidden, tokens * hidden);
            let gates = self.buffers.shared_gate.part(0, tokens * width);
            let ups = self.buffers.shared_up.part(0, tokens * width);
            let split = self.split_rows(x, tokens, [&gate, &up])?;
            let jobs = [(gate, gates), (up, ups)];
            launch::tile_products(stream, x, tokens, &jobs, false, split.as_ref())?;
            if dense.activation == Activation::GeGlu {
                launch::gelu_pairs(stream, gates, ups, tokens * width)?;
            }
            if let Some(form) = launch::split_form(stream.device(), &down) {
                let inner = self.buffers.split_tokens(1, form, &self.sizes);
                launch::split(stream, gates, Some(ups), (tokens, width), None, &inner)?;
                let jobs = [(down, out)];
                launch::tile_products(stream, gates, tokens, &jobs, add, Some(&inner))?;
            } else {
                launch::swiglu(stream, gates, ups, tokens * width)?;
                launch::tile_linear(stream, gates, tokens, down, out, add, None)?;
            }
        }
        Ok(())
    }
}

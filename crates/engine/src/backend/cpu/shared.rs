//! The shared expert of a mixture on the CPU: alone, or in the regions of the experts that a token chose.
//!
//! Its three products are small (1.8 MB beside 14 MB of eight chosen experts of the 35B shape), and each region ends
//! with a wait for the last worker. So where some chosen experts are in memory, gate and up go into the region of
//! theirs, and down into that of their downs; where all have to be read, the shared expert is computed meanwhile.

use kernels::format::Matrix;
use kernels::{Activations, Compute, MatmulJob, Tokens};

use super::{CpuBackend, CpuOptions};
use crate::model::activation::Activation;
use crate::model::config::ModelConfig;
use crate::model::mixture::Mixture;

/// Buffers of the shared expert, one row per token.
pub(super) struct SharedScratch {
    /// What each token's outputs are multiplied with: the product of its gate, then the sigmoid of that.
    pub(super) factor: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    activated: Vec<f32>,
    inner: Activations,
    pub(super) out: Vec<f32>,
}

impl SharedScratch {
    /// Buffers for batches of `options`; of nothing where the model has no shared expert.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Self {
        let shared = config.moe.shared_intermediate.unwrap_or(0);
        let tokens = if shared == 0 { 0 } else { options.batch_tokens };
        Self {
            factor: vec![0.0; tokens],
            gate: vec![0.0; tokens * shared],
            up: vec![0.0; tokens * shared],
            activated: vec![0.0; tokens * shared],
            inner: Activations::with_capacity(tokens, shared.max(1)),
            out: vec![0.0; tokens * config.hidden],
        }
    }

    /// The products with gate and up of the `x` that all experts get.
    pub(super) fn outer<'a>(
        &'a mut self,
        [gate, up]: [Matrix<'a>; 2],
        x: &'a Activations,
    ) -> [MatmulJob<'a>; 2] {
        let (tokens, inner) = (Tokens::All, x.tokens() * gate.rows);
        let (gates, ups) = (&mut self.gate[..inner], &mut self.up[..inner]);
        [(gate, gates), (up, ups)].map(|(matrix, out)| MatmulJob { matrix, x, tokens, out })
    }

    /// Between the products: the activation, prepared for `down`, and the factors of `tokens` tokens.
    pub(super) fn activate(
        &mut self,
        compute: &Compute,
        activation: Activation,
        (tokens, gated): (usize, bool),
        down: &Matrix<'_>,
    ) {
        let inner = tokens * down.columns;
        let (gates, ups) = (&mut self.gate[..inner], &mut self.up[..inner]);
        if let Activation::Limited { .. } = activation {
            activation.prepare(compute, None, gates, ups);
        }
        let activated = &mut self.activated[..inner];
        activation.combine(compute, gates, ups, activated);
        compute.prepare(activated, down.columns, &[down.encoding], &mut self.inner);
        let factors = &mut self.factor[..tokens];
        if gated {
            factors.iter_mut().for_each(|factor| *factor = 1.0 / (1.0 + (-*factor).exp()));
        } else {
            factors.fill(1.0);
        }
    }

    /// The product with `down` of what [`SharedScratch::activate`] has prepared.
    pub(super) fn down<'a>(&'a mut self, down: Matrix<'a>) -> MatmulJob<'a> {
        let x = &self.inner;
        let out = &mut self.out[..x.tokens() * down.rows];
        MatmulJob { matrix: down, x, tokens: Tokens::All, out }
    }
}

impl CpuBackend {
    /// The shared expert over the whole batch: arithmetic for the time that reads take.
    pub(super) fn run_shared(&mut self, mixture: &Mixture) {
        let Some(shared) = &mixture.shared else { return };
        let [gate, up, down] =
            [shared.gate, shared.up, shared.down].map(|id| self.weights.matrix(id));
        let scratch = &mut self.scratch.shared;
        self.compute.matmul(&mut scratch.outer([gate, up], &self.prepared));
        let tokens = (self.tokens.len(), shared.gate_weight.is_some());
        scratch.activate(&self.compute, self.config.moe.activation, tokens, &down);
        self.compute.matmul(&mut [scratch.down(down)]);
    }
}

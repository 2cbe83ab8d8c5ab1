//! Networks that all tokens use on the CPU: one network over the batch, some tokens at a time, so that its wide inner
//! values take little memory.

use kernels::{Activations, MatmulJob, Tokens};

use super::super::Register;
use super::mixture::PACKINGS;
use super::{CpuBackend, CpuOptions};
use crate::model::config::ModelConfig;
use crate::model::dense::Dense;

/// Tokens at a time: enough that reading the weights again costs a tenth of the products.
const TOKENS: usize = 256;

/// Inner values of some tokens.
pub(super) struct DenseScratch {
    tokens: usize,
    gate: Vec<f32>,
    up: Vec<f32>,
    activated: Vec<f32>,
    inner: Activations,
}

impl DenseScratch {
    /// Room for models with such layers.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let (tokens, width) = (options.batch_tokens.min(TOKENS), config.dense_width());
        let values = || vec![0.0; tokens * width];
        (width > 0).then(|| Self {
            tokens,
            gate: values(),
            up: values(),
            activated: values(),
            inner: Activations::with_capacity(tokens, width),
        })
    }

    /// Bytes that [`DenseScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let (tokens, width) = (options.batch_tokens.min(TOKENS), config.dense_width());
        if width == 0 {
            return 0;
        }
        3 * tokens * width * size_of::<f32>() + Activations::bytes_bound(tokens, width, PACKINGS)
    }
}

impl CpuBackend {
    /// `Residual +=` the network of `Normed`, or the register that the operation names becomes that.
    pub(super) fn run_dense(&mut self, dense: &Dense) {
        let [gate, up, down] = [dense.gate, dense.up, dense.down].map(|id| self.weights.matrix(id));
        let (hidden, width) = (self.config.hidden, gate.rows);
        let scratch = self.dense.as_mut().expect("a model with such layers has room for them");
        let normed = self.registers.get(Register::Normed);
        let blocks = normed.chunks(scratch.tokens * hidden);
        for (x, out) in blocks.zip(self.projected.chunks_mut(scratch.tokens * hidden)) {
            let inner = x.len() / hidden * width;
            self.compute.prepare(x, hidden, &[gate.encoding, up.encoding], &mut self.prepared);
            let (gates, ups) = (&mut scratch.gate[..inner], &mut scratch.up[..inner]);
            let (x, tokens) = (&self.prepared, Tokens::All);
            self.compute.matmul(&mut [
                MatmulJob { matrix: gate, x, tokens, out: gates },
                MatmulJob { matrix: up, x, tokens, out: ups },
            ]);
            let (gates, ups) = (&mut scratch.gate[..inner], &mut scratch.up[..inner]);
            dense.activation.prepare(&self.compute, None, gates, ups);
            let activated = &mut scratch.activated[..inner];
            dense.activation.combine(&self.compute, gates, ups, activated);
            self.compute.prepare(activated, width, &[down.encoding], &mut scratch.inner);
            let out = &mut out[..inner / width * hidden];
            self.compute.matmul(&mut [MatmulJob { matrix: down, x: &scratch.inner, tokens, out }]);
        }
        let out = &self.projected[..self.tokens.len() * hidden];
        match dense.to {
            None => self.compute.add(self.registers.get_mut(Register::Residual), out),
            Some(to) => self.registers.get_mut(to).copy_from_slice(out),
        }
    }
}

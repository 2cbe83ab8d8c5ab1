//! Several residual streams: what a block reads of them, what it gives back, and the one that the head reads.
//!
//! The weights of a site lie in a buffer of their own until the block's output has come. Products with a site's matrix
//! are never computed by matrices: they would be weights of all that follows in half the digits.

use gpu::op::streams::{self, Streams};
use gpu::op::{embedding, norm, product};
use gpu::{Buffer, Gpu, GpuError};

use super::{GpuBackend, Register};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::hyper_connections::Site;
use crate::weights::{MatrixId, VectorId};

/// Numbers of the buffers: weights of sites, and rows that blocks read or give.
pub(super) fn sizes(config: &ModelConfig, tokens: usize) -> [usize; 2] {
    let Some(hyper) = &config.hyper else { return [0; 2] };
    [tokens * hyper.outputs(), tokens * config.hidden]
}

/// Rows of a batch.
pub(super) struct StreamBuffers {
    /// `[tokens, outputs]`
    weights: Buffer,
    /// `[tokens, hidden]`: an embedding; what a block reads before its norm, or what a mixture gives; what the head
    /// reads.
    pub(super) read: Buffer,
}

impl StreamBuffers {
    pub(super) fn new(gpu: &mut Gpu, [weights, read]: [usize; 2]) -> Result<Self, EngineError> {
        let mut numbers = |count: usize| gpu.buffer("residual streams", 4 * count as u64);
        Ok(Self { weights: numbers(weights)?, read: numbers(read)? })
    }
}

impl GpuBackend {
    fn streams(&self) -> Streams<'_> {
        Streams {
            values: &self.registers[Register::Residual as usize],
            count: self.config.streams(),
            hidden: self.config.hidden,
            tokens: self.tokens,
        }
    }

    /// Where what is added to the residual stream goes where there are several, and what the head reads then.
    pub(super) fn stream_rows(&self) -> &Buffer {
        match self.config.hyper {
            Some(_) => &self.streams.read,
            None => &self.registers[Register::Residual as usize],
        }
    }

    /// Embeddings of the batch's tokens, to what [`GpuBackend::spread`] takes.
    pub(super) fn launch_embed(&mut self, table: MatrixId) -> Result<(), GpuError> {
        let (table, to) = (self.trunk.matrix(table.index()), self.stream_rows().clone());
        let gpu = &mut self.residency.device_mut().gpu;
        embedding::launch(gpu, table, &self.token_ids, &to, self.tokens)
    }

    /// Where there are several streams, begins each with the embedding.
    pub(super) fn spread(&mut self) -> Result<(), GpuError> {
        if self.config.hyper.is_none() {
            return Ok(());
        }
        let residual = self.registers[Register::Residual as usize].clone();
        let streams = Streams { values: &residual, ..self.streams() };
        let read = self.streams.read.clone();
        let gpu = &mut self.residency.device_mut().gpu;
        streams::launch_spread(gpu, &read, streams)
    }

    /// Products of the streams with a site's matrix, made into weights, and the sum of the streams by the first.
    fn read_streams(&mut self, site: &Site, last: bool) -> Result<(), GpuError> {
        let Some(hyper) = self.config.hyper else { return Ok(()) };
        let matrix = self.trunk.matrix(site.matrix.index());
        let residual = &self.registers[Register::Residual as usize];
        let (count, hidden, tokens) = (hyper.streams, self.config.hidden, self.tokens);
        let of = Streams { values: residual, count, hidden, tokens };
        let [base, scale] = [site.base, site.scale].map(|id| &self.vectors[id.index()]);
        let epsilons = (hyper.epsilon, self.config.rms_epsilon);
        let iterations = (!last).then_some(hyper.iterations);
        let (epsilon, norm_epsilon) = epsilons;
        let site = streams::Site { base, scale, iterations, epsilon, norm_epsilon };
        let StreamBuffers { weights, read } = &self.streams;
        let gpu = &mut self.residency.device_mut().gpu;
        product::launch(gpu, matrix, residual, weights, tokens, false)?;
        streams::launch_weigh(gpu, of, site, weights)?;
        let outputs = if last { count } else { hyper.outputs() };
        streams::launch_collapse(gpu, of, Some((weights, outputs)), read)
    }

    /// `Normed` = the normed sum of the streams that a block reads.
    pub(super) fn open_streams(&mut self, site: &Site, norm: VectorId) -> Result<(), GpuError> {
        self.read_streams(site, false)?;
        let normed = &self.registers[Register::Normed as usize];
        let buffers = (&self.streams.read, &self.vectors[norm.index()], normed);
        let (shape, epsilon) = ((self.tokens, self.config.hidden), self.config.rms_epsilon);
        norm::launch(&mut self.residency.device_mut().gpu, buffers, shape, epsilon)
    }

    /// Mixes the streams and gives them a block's output, as the last site that was opened says.
    pub(super) fn close_streams(&mut self, from: Register) -> Result<(), GpuError> {
        let from = self.registers[from as usize].clone();
        self.mix_streams(&from)
    }

    /// Gives the streams what a mixture gave, where there are several.
    pub(super) fn give_streams(&mut self) -> Result<(), GpuError> {
        if self.config.hyper.is_none() {
            return Ok(());
        }
        let read = self.streams.read.clone();
        self.mix_streams(&read)
    }

    fn mix_streams(&mut self, from: &Buffer) -> Result<(), GpuError> {
        let residual = self.registers[Register::Residual as usize].clone();
        let streams = Streams { values: &residual, ..self.streams() };
        let weights = &self.streams.weights;
        streams::launch_mix(&mut self.residency.device_mut().gpu, weights, from, streams)
    }

    /// The streams of each token become one, which the head reads: their sum at a last site, or their mean.
    pub(super) fn merge_streams(&mut self, site: Option<&Site>) -> Result<(), GpuError> {
        if let Some(site) = site {
            return self.read_streams(site, true);
        }
        let residual = self.registers[Register::Residual as usize].clone();
        let streams = Streams { values: &residual, ..self.streams() };
        let read = &self.streams.read;
        streams::launch_collapse(&mut self.residency.device_mut().gpu, streams, None, read)
    }
}

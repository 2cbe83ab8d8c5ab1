//! Several residual streams on the CPU: what a block reads, what it gives back, and the one that the head reads.
//!
//! Every token's numbers are sums in one order, so that batches change no bit.

use kernels::{MatmulJob, Tokens};

use super::super::Register;
use super::{CpuBackend, CpuOptions};
use crate::model::config::ModelConfig;
use crate::model::hyper_connections::{HyperConfig, STREAMS_MAX, Site};
use crate::weights::VectorId;

/// Values of a row that are worked on together.
const LANES: usize = 16;

/// Buffers of the sites.
pub(super) struct StreamScratch {
    /// `[tokens, outputs]`: products, then weights.
    weights: Vec<f32>,
    /// `[tokens, hidden]`: what a block reads, before its norm.
    read: Vec<f32>,
}

impl StreamScratch {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let (hyper, tokens) = (config.hyper.as_ref()?, options.batch_tokens);
        let weights = vec![0.0; tokens * hyper.outputs()];
        Some(Self { weights, read: vec![0.0; tokens * config.hidden] })
    }

    /// Bytes that [`StreamScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let floats = config.hyper.map_or(0, |hyper| hyper.outputs() + config.hidden);
        options.batch_tokens * floats * size_of::<f32>()
    }
}

/// Sum of squares in lanes, then of the lanes.
pub(super) fn sum_of_squares(row: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (pieces, rest) = row.as_chunks::<LANES>();
    for piece in pieces {
        for (sum, value) in sums.iter_mut().zip(piece) {
            *sum = value.mul_add(*value, *sum);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}

/// `out = sum_i weights[i] * row[i]` over the streams of a token.
fn collapse(row: &[f32], weights: &[f32], out: &mut [f32]) {
    let hidden = out.len();
    out.fill(0.0);
    for (stream, &weight) in row.chunks_exact(hidden).zip(weights) {
        for (sum, value) in out.iter_mut().zip(stream) {
            *sum += weight * value;
        }
    }
}

/// Stream `j` becomes `writes[j] * output + sum_i mix[i][j]` of stream `i`.
fn mix(row: &mut [f32], writes: &[f32], mix: &[f32], output: &[f32]) {
    let (hidden, streams) = (output.len(), writes.len());
    let mut first = 0;
    while first < hidden {
        let count = LANES.min(hidden - first);
        let mut before = [[0.0f32; LANES]; STREAMS_MAX];
        for (i, before) in before.iter_mut().enumerate().take(streams) {
            before[..count].copy_from_slice(&row[i * hidden + first..][..count]);
        }
        let mut given = [0.0f32; LANES];
        given[..count].copy_from_slice(&output[first..first + count]);
        for j in 0..streams {
            let mut sums = [0.0f32; LANES];
            for (i, before) in before.iter().enumerate().take(streams) {
                let weight = mix[i * streams + j];
                for (sum, value) in sums.iter_mut().zip(before) {
                    *sum += weight * value;
                }
            }
            for (sum, value) in sums.iter_mut().zip(&given) {
                *sum += writes[j] * value;
            }
            row[j * hidden + first..][..count].copy_from_slice(&sums[..count]);
        }
        first += count;
    }
}

/// The first stream of a token becomes the mean of all: their sum in order, then divided.
fn mean(row: &mut [f32], hidden: usize) {
    let streams = row.len() / hidden;
    let (first, others) = row.split_at_mut(hidden);
    for other in others.chunks_exact(hidden) {
        first.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
    }
    first.iter_mut().for_each(|sum| *sum /= streams as f32);
}

impl CpuBackend {
    fn hyper(&self) -> HyperConfig {
        self.config.hyper.expect("only called for models with several streams")
    }

    /// Products of the streams with the site's matrix, and `weigh` of them and the inverse root mean square.
    fn weigh_streams(
        &mut self,
        site: &Site,
        outputs: usize,
        weigh: impl Fn(&HyperConfig, &mut [f32], f32, &[f32], &[f32]) + Sync,
    ) {
        let (hyper, epsilon) = (self.hyper(), self.config.rms_epsilon);
        let width = hyper.streams * self.config.hidden;
        let matrix = self.weights.matrix(site.matrix);
        let residual = self.registers.get(Register::Residual);
        self.compute.prepare(residual, width, &[matrix.encoding], &mut self.prepared);
        let scratch = self.streams.as_mut().expect("a model with several streams");
        let out = &mut scratch.weights[..self.tokens.len() * outputs];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        let base = self.weights.vector(site.base);
        let scale = self.weights.vector(site.scale);
        let out = &mut scratch.weights[..self.tokens.len() * outputs];
        self.compute.for_rows(out, outputs, 4, |token, products| {
            let row = &residual[token * width..(token + 1) * width];
            let factor = 1.0 / (sum_of_squares(row) / width as f32 + epsilon).sqrt();
            weigh(&hyper, products, factor, base, scale);
        });
    }

    pub(super) fn run_open_streams(&mut self, site: &Site, norm: VectorId) {
        let (hyper, hidden) = (self.hyper(), self.config.hidden);
        let outputs = hyper.outputs();
        self.weigh_streams(site, outputs, HyperConfig::weigh);
        let width = hyper.streams * hidden;
        let scratch = self.streams.as_mut().expect("a model with several streams");
        let (residual, normed) = self.registers.pair(Register::Residual, Register::Normed);
        let read = &mut scratch.read[..normed.len()];
        let weights = &scratch.weights;
        self.compute.for_rows(read, hidden, 2, |token, out| {
            let row = &residual[token * width..(token + 1) * width];
            collapse(row, &weights[token * outputs..][..hyper.streams], out);
        });
        let norm = self.weights.vector(norm);
        self.compute.rms_norm(read, norm, self.config.rms_epsilon, normed);
    }

    pub(super) fn run_close_streams(&mut self, from: Register) {
        let (hyper, hidden) = (self.hyper(), self.config.hidden);
        let (streams, outputs) = (hyper.streams, hyper.outputs());
        let weights = &self.streams.as_ref().expect("a model with several streams").weights;
        let (from, residual) = self.registers.pair(from, Register::Residual);
        self.compute.for_rows(residual, streams * hidden, 2, |token, row| {
            let weights = &weights[token * outputs + streams..(token + 1) * outputs];
            let output = &from[token * hidden..(token + 1) * hidden];
            mix(row, &weights[..streams], &weights[streams..], output);
        });
    }

    /// The merged stream takes the place of each token's first.
    pub(super) fn run_merge_streams(&mut self, site: &Site) {
        let (hyper, hidden) = (self.hyper(), self.config.hidden);
        let streams = hyper.streams;
        self.weigh_streams(site, streams, |hyper, reads, factor, base, scale| {
            hyper.weigh_reads(reads, factor, base, scale[0]);
        });
        let scratch = self.streams.as_mut().expect("a model with several streams");
        let residual = self.registers.get_mut(Register::Residual);
        let (weights, merged) = (&scratch.weights, &mut scratch.read);
        for (token, row) in residual.chunks_exact_mut(streams * hidden).enumerate() {
            let merged = &mut merged[..hidden];
            collapse(row, &weights[token * streams..][..streams], merged);
            row[..hidden].copy_from_slice(merged);
        }
    }

    /// The mean of the streams takes the place of each token's first.
    pub(super) fn run_mean_of_streams(&mut self) {
        let (streams, hidden) = (self.hyper().streams, self.config.hidden);
        let residual = self.registers.get_mut(Register::Residual);
        self.compute.each_row(residual, streams * hidden, |_, row| mean(row, hidden));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mixture is by columns: stream `j` takes `mix[i][j]` of stream `i`.
    #[test]
    fn streams_take_columns_of_the_mixture() {
        let hidden = 19;
        let mut row: Vec<f32> = (0..2 * hidden).map(|i| i as f32).collect();
        let before = row.clone();
        let output: Vec<f32> = (0..hidden).map(|i| (i * i) as f32).collect();
        mix(&mut row, &[0.5, 2.0], &[0.25, 0.75, 1.5, 3.0], &output);
        for d in 0..hidden {
            let (x, y) = (before[d], before[hidden + d]);
            assert_eq!(row[d], 0.25 * x + 1.5 * y + 0.5 * output[d]);
            assert_eq!(row[hidden + d], 0.75 * x + 3.0 * y + 2.0 * output[d]);
        }
        let mut out = vec![0.0; hidden];
        collapse(&before, &[2.0, -1.0], &mut out);
        assert_eq!(out[3], 2.0 * before[3] - before[hidden + 3]);
    }

    #[test]
    fn the_first_stream_becomes_the_mean() {
        let mut row = [1.0, 2.0, 3.0, 6.0, 5.0, 1.0];
        mean(&mut row, 2);
        assert_eq!(row, [3.0, 3.0, 3.0, 6.0, 5.0, 1.0]);
    }
}

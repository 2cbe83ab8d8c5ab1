//! Residual streams that gates read, on the CPU.
//!
//! Every token's numbers are sums in one order, so that batches change no bit.

use kernels::{MatmulJob, Tokens};

use super::super::Register;
use super::CpuBackend;
use super::streams::sum_of_squares;
use crate::weights::{MatrixId, VectorId};

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// What each value of a row is multiplied by in an RMS norm, before its weight.
pub(super) fn inverse_rms(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (sum_of_squares(row) / row.len() as f32 + epsilon).sqrt()
}

/// `out` = RMS norm of `row`.
pub(super) fn norm_row(row: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let factor = inverse_rms(row, epsilon);
    for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * factor * weight;
    }
}

impl CpuBackend {
    pub(super) fn run_norm_streams(&mut self, weight: VectorId) {
        let (hidden, epsilon) = (self.config.hidden, self.config.rms_epsilon);
        let streams = self.config.streams();
        let weight = self.weights.vector(weight);
        let (residual, normed) = self.registers.pair(Register::Residual, Register::StreamsNormed);
        self.compute.for_rows(normed, hidden, 2, |index, out| {
            let row = &residual[index * hidden..(index + 1) * hidden];
            let weight = &weight[index % streams * hidden..][..hidden];
            norm_row(row, weight, epsilon, out);
        });
    }

    pub(super) fn run_gate_streams(&mut self, up: MatrixId, to: Register) {
        let (hidden, streams) = (self.config.hidden, self.config.streams());
        let wide = streams * hidden;
        let low = self.registers.get_mut(Register::GateLow);
        let rank = low.len() / self.tokens.len();
        self.compute.for_rows(low, rank, 16, |_, row| {
            for value in row {
                let scaled = *value / streams as f32;
                *value = scaled * sigmoid(scaled);
            }
        });
        let matrix = self.weights.matrix(up);
        let low = self.registers.get(Register::GateLow);
        self.compute.prepare(low, rank, &[matrix.encoding], &mut self.prepared);
        let out = self.registers.get_mut(Register::StreamValues);
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        let (gates, normed) = self.registers.pair(Register::StreamValues, Register::StreamsNormed);
        self.compute.scale_by_sigmoid(normed, gates);
        // The head reads the first stream of the residual.
        let width = self.registers.width(to);
        let (normed, to) = self.registers.pair(Register::StreamsNormed, to);
        self.compute.for_rows(to, width, 2, |token, out| {
            let out = &mut out[..hidden];
            out.fill(0.0);
            for stream in normed[token * wide..(token + 1) * wide].chunks_exact(hidden) {
                out.iter_mut().zip(stream).for_each(|(sum, value)| *sum += value);
            }
            out.iter_mut().for_each(|value| *value /= streams as f32);
        });
    }

    pub(super) fn run_inject_streams(&mut self, from: Register) {
        let (hidden, streams) = (self.config.hidden, self.config.streams());
        let (inject, from, residual) =
            self.registers.two_inputs(Register::Inject, from, Register::Residual);
        self.compute.for_rows(residual, hidden, 2, |index, row| {
            let weight = 2.0 * sigmoid(inject[index] / streams as f32);
            let output = &from[index / streams * hidden..][..hidden];
            row.iter_mut().zip(output).for_each(|(value, output)| *value += weight * output);
        });
    }
}

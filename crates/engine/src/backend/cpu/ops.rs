//! The operations of a program on the processor, one by one.

use kernels::{DeltaInputs, MatmulJob, Tokens};
use store::LayerId;

use super::{CpuBackend, delta_shape};
use crate::EngineError;
use crate::backend::{Cancel, Register};
use crate::model::program::{Op, Product};
use crate::sequences::Part;
use crate::weights::{MatrixId, VectorId};

impl CpuBackend {
    /// Runs one operation of a layer.
    ///
    /// # Errors
    /// As [`crate::backend::Backend::run_stage`].
    pub(super) fn run_op(
        &mut self,
        layer: LayerId,
        op: &Op,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        match op {
            &Op::Norm { from, weight, to } => self.rms_norm(from, weight, to),
            &Op::NormRow { register, weight } => self.norm_row(register, weight),
            Op::Linear { from, products } => self.linear(*from, products),
            &Op::LinearAdd { from, matrix, to } => self.linear_add(from, matrix, to),
            &Op::GroupedLinear { from, matrix, to } => self.run_grouped_linear(from, matrix, to),
            &Op::AddBias { register, bias } => self.add_bias(register, bias),
            Op::SplitQueryGate => self.split_query_gate(),
            &Op::NormRotate { heads, weight } => self.norm_and_rotate(heads, weight),
            &Op::Rotate { heads } => self.rotate(heads),
            &Op::Attend { sinks } => self.run_attend(layer, sinks),
            Op::AttendLatent(weights) => self.run_latent(layer, weights),
            Op::AttendCompressed(weights) => self.run_compressed(layer, weights),
            &Op::SigmoidGate { x, gate } => self.sigmoid_gate(x, gate),
            &Op::Convolve { weight } => self.convolve(layer, weight),
            &Op::DeltaRule { decay_rate, decay_bias } => {
                self.delta_rule(layer, decay_rate, decay_bias);
            }
            &Op::GatedNorm { weight } => self.gated_norm(weight),
            Op::OpenStreams { site, norm } => self.run_open_streams(site, *norm),
            &Op::CloseStreams { from } => self.run_close_streams(from),
            Op::MergeStreams { site } => self.run_merge_streams(site),
            Op::Mixture(mixture) => return self.run_mixture(layer, mixture, cancel),
            Op::Dense(dense) => self.run_dense(dense),
        }
        Ok(())
    }

    fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register) {
        let (from, to) = self.registers.pair(from, to);
        let weight = self.weights.vector(weight);
        self.compute.rms_norm(from, weight, self.config.rms_epsilon, to);
    }

    fn linear(&mut self, from: Register, products: &[Product]) {
        let matrices = products.iter().map(|product| self.weights.matrix(product.matrix));
        let matrices: Vec<_> = matrices.collect();
        let uses: Vec<_> = matrices.iter().map(|matrix| matrix.encoding).collect();
        let columns = matrices[0].columns;
        self.compute.prepare(self.registers.get(from), columns, &uses, &mut self.prepared);
        let outputs = self.registers.many(products.iter().map(|product| product.to));
        let (x, tokens) = (&self.prepared, self.tokens.len());
        let jobs = matrices.into_iter().zip(outputs).map(|(matrix, out)| {
            // A register is as wide as any layer needs.
            let out = &mut out[..tokens * matrix.rows];
            MatmulJob { matrix, x, tokens: Tokens::All, out }
        });
        let mut jobs: Vec<_> = jobs.collect();
        self.compute.matmul(&mut jobs);
    }

    fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register) {
        let matrix = self.weights.matrix(matrix);
        let input = &self.registers.get(from)[..self.tokens.len() * matrix.columns];
        self.compute.prepare(input, matrix.columns, &[matrix.encoding], &mut self.prepared);
        let out = &mut self.projected[..self.tokens.len() * matrix.rows];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        let out = &self.projected[..self.tokens.len() * matrix.rows];
        self.compute.add(self.registers.get_mut(to), out);
    }

    fn split_query_gate(&mut self) {
        let dim = self.config.attention.head_dim;
        let (both, query, gate) =
            self.registers.three(Register::QueryGate, Register::Query, Register::Gate);
        for (first, to) in [(0, query), (dim, gate)] {
            self.compute.each_row(to, dim, |head, row| {
                row.copy_from_slice(&both[2 * dim * head + first..][..dim]);
            });
        }
    }

    fn norm_and_rotate(&mut self, heads: Register, weight: VectorId) {
        let x = self.registers.get_mut(heads);
        let weight = self.weights.vector(weight);
        self.compute.rms_norm_in_place(x, weight, self.config.rms_epsilon);
        self.rotate(heads);
    }

    fn rotate(&mut self, heads: Register) {
        let attention = &self.config.attention;
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let (dim, rotated) = (attention.head_dim, attention.rope.dims);
        let x = self.registers.get_mut(heads);
        let frequencies = &self.inverse_frequencies;
        self.compute.rope(x, count, dim, rotated, &self.positions, frequencies);
        let magnitude = attention.rope.magnitude();
        if magnitude != 1.0 {
            for head in x.chunks_exact_mut(dim) {
                head[..rotated].iter_mut().for_each(|value| *value *= magnitude);
            }
        }
    }

    fn add_bias(&mut self, register: Register, bias: VectorId) {
        self.compute.add_to_rows(self.registers.get_mut(register), self.weights.vector(bias));
    }

    fn norm_row(&mut self, register: Register, weight: VectorId) {
        let epsilon = self.latent_epsilon();
        let (x, weight) = (self.registers.get_mut(register), self.weights.vector(weight));
        self.compute.rms_norm_in_place(x, weight, epsilon);
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) {
        let (gate, x) = self.registers.pair(gate, x);
        self.compute.scale_by_sigmoid(&mut x[..gate.len()], gate);
    }

    fn convolve(&mut self, layer: LayerId, weight: VectorId) {
        let shape = self.config.delta.as_ref().expect("a delta layer has a shape");
        let (channels, kernel) = (shape.channels(), shape.convolution_kernel);
        let weight = self.weights.vector(weight);
        for (run, span) in self.spans.iter().enumerate() {
            let tail = self.sequences.convolution_tail(span.sequence, layer);
            let rows = span.first * channels..(span.first + span.tokens) * channels;
            let (mixed, out) = self.registers.pair(Register::Mixed, Register::Convolved);
            let (x, out) = (&mixed[rows.clone()], &mut out[rows]);
            self.compute.causal_convolution(tail, x, weight, kernel, out);
            self.sequences.keep(layer, Part::Tail, run);
        }
    }

    fn delta_rule(&mut self, layer: LayerId, decay_rate: VectorId, decay_bias: VectorId) {
        let shape = delta_shape(self.delta_config());
        let (decay_rate, decay_bias) =
            (self.weights.vector(decay_rate), self.weights.vector(decay_bias));
        let config = self.config.delta.as_ref().expect("a delta layer has a shape");
        for (run, span) in self.spans.iter().enumerate() {
            let rows = |width: usize| span.first * width..(span.first + span.tokens) * width;
            let state = self.sequences.recurrent_state(span.sequence, layer);
            let (convolved, beta, decay, context) = self.registers.four(
                Register::Convolved,
                Register::Beta,
                Register::Decay,
                Register::Context,
            );
            let channels = config.channels();
            let convolved = &convolved[rows(channels)];
            let keys = config.key_heads * config.key_dim;
            let inputs = DeltaInputs {
                q: convolved,
                k: &convolved[keys..],
                v: &convolved[2 * keys..],
                qk_stride: channels,
                v_stride: channels,
                a: &decay[rows(config.value_heads)],
                b: &beta[rows(config.value_heads)],
                decay: decay_rate,
                dt_bias: decay_bias,
            };
            let out = &mut context[rows(config.value_width())];
            let form = self.options.delta_form;
            match &mut self.tiled {
                Some(tiled) => tiled.delta_rule(&self.compute, state, &inputs, form, out),
                None => self.compute.delta_rule(&shape, state, &inputs, form, out),
            }
            self.sequences.keep(layer, Part::State, run);
        }
    }

    fn gated_norm(&mut self, weight: VectorId) {
        let weight = self.weights.vector(weight);
        let (z, context) = self.registers.pair(Register::Z, Register::Context);
        let context = &mut context[..z.len()];
        self.compute.gated_rms_norm_in_place(context, weight, z, self.config.rms_epsilon);
    }
}

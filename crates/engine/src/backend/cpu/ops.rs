//! The operations of a program on the processor, one by one.

use kernels::{Compute, DeltaForm, DeltaInputs, DeltaShape, MatmulJob, Tokens};
use store::LayerId;

use super::gated_streams::sigmoid;
use super::tiled::Tiled;
use super::{CpuBackend, delta_shape};
use crate::EngineError;
use crate::backend::{Cancel, Register};
use crate::model::config::OutputGate;
use crate::model::program::{Op, Product, Stage};
use crate::model::rope::Rope;
use crate::sequences::{Part, SequenceId};
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
            &Op::NormAdd { from, weight, to } => self.norm_add(from, weight, to),
            &Op::NormValues { from } => self.norm_values(layer, from),
            &Op::Scale { register, factor } => self.scale(register, factor),
            Op::Linear { from, products } => self.linear(*from, products),
            &Op::LinearAdd { from, matrix, to } => self.linear_add(from, matrix, to),
            &Op::GroupedLinear { from, matrix, to } => self.run_grouped_linear(from, matrix, to),
            &Op::AddBias { register, bias } => self.add_bias(register, bias),
            Op::SplitQueryGate => self.split_query_gate(),
            &Op::NormRotate { heads, weight } => self.norm_and_rotate(layer, heads, weight),
            &Op::NormHeads { heads, weight } => self.norm_heads(layer, heads, weight),
            &Op::Rotate { heads } => self.rotate(layer, heads),
            &Op::NormPair { embedding, hidden } => self.norm_pair([embedding, hidden]),
            Op::KeepKeys => self.keep_keys(layer),
            &Op::Attend { sinks } => self.run_attend(layer, sinks),
            Op::AttendLatent(weights) => self.run_latent(layer, weights),
            Op::AttendRows { rows, indexer } => self.run_chosen_rows(layer, rows, indexer.as_ref()),
            Op::AttendCompressed(weights) => self.run_compressed(layer, weights),
            Op::AttendIndexed(weights) => self.run_indexed(layer, weights),
            &Op::SigmoidGate { x, gate } => self.sigmoid_gate(x, gate),
            &Op::GateHeads { x, gate } => self.gate_heads(x, gate),
            &Op::Convolve { weight } => self.convolve(layer, weight),
            &Op::Join { from, to } => self.join(from, to),
            &Op::DeltaRule { decay_rate, decay_bias, .. } => {
                self.delta_rule(layer, decay_rate, decay_bias);
            }
            &Op::GatedNorm { weight, gate } => self.gated_norm(weight, gate),
            Op::GatherRows { .. } => return self.run_gather_rows(layer),
            Op::MixNgrams(weights) => self.run_mix_ngrams(layer, weights),
            &Op::NormStreams { weight } => self.run_norm_streams(weight),
            &Op::GateStreams { up, to } => self.run_gate_streams(up, to),
            &Op::InjectStreams { from } => self.run_inject_streams(from),
            Op::OpenStreams { site, norm } => self.run_open_streams(site, *norm),
            &Op::CloseStreams { from } => self.run_close_streams(from),
            Op::MergeStreams { site: Some(site) } => self.run_merge_streams(site),
            Op::MergeStreams { site: None } => self.run_mean_of_streams(),
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
        // A register is as wide as any layer needs.
        let input = &self.registers.get(from)[..self.tokens.len() * columns];
        self.compute.prepare(input, columns, &uses, &mut self.prepared);
        let outputs = self.registers.many(products.iter().map(|product| product.to));
        let (x, tokens) = (&self.prepared, self.tokens.len());
        let jobs = matrices.into_iter().zip(outputs).map(|(matrix, out)| {
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

    /// Values of all tokens' heads in a layer: queries, or keys and values.
    fn head_values(&self, layer: LayerId, heads: Register) -> usize {
        let attention = self.config.attention_of(layer.index());
        let width = match heads {
            Register::Query => attention.query_width(),
            _ => attention.key_width(),
        };
        self.tokens.len() * width
    }

    fn norm_and_rotate(&mut self, layer: LayerId, heads: Register, weight: VectorId) {
        self.norm_heads(layer, heads, weight);
        self.rotate(layer, heads);
    }

    fn norm_heads(&mut self, layer: LayerId, heads: Register, weight: VectorId) {
        let values = self.head_values(layer, heads);
        let x = &mut self.registers.get_mut(heads)[..values];
        let weight = self.weights.vector(weight);
        self.compute.rms_norm_in_place(x, weight, self.config.rms_epsilon);
    }

    fn norm_values(&mut self, layer: LayerId, from: Register) {
        let dim = self.config.attention_of(layer.index()).head_dim;
        let (values, epsilon) = (self.head_values(layer, from), self.config.rms_epsilon);
        let ones = &self.ones[..dim];
        if from == Register::Value {
            let x = &mut self.registers.get_mut(from)[..values];
            return self.compute.rms_norm_in_place(x, ones, epsilon);
        }
        let (x, out) = self.registers.pair(from, Register::Value);
        self.compute.rms_norm(&x[..values], ones, epsilon, &mut out[..values]);
    }

    fn rotate(&mut self, layer: LayerId, heads: Register) {
        let (attention, values) =
            (self.config.attention_of(layer.index()), self.head_values(layer, heads));
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let x = &mut self.registers.get_mut(heads)[..values];
        let frequencies = match &self.windowed_frequencies {
            Some(frequencies) if self.config.layers[layer.index()].window.is_some() => frequencies,
            _ => &self.inverse_frequencies,
        };
        let rotation = Rotation { rope: &attention.rope, frequencies };
        rotation.turn(&self.compute, x, (count, attention.head_dim), &self.positions);
    }

    fn add_bias(&mut self, register: Register, bias: VectorId) {
        self.compute.add_to_rows(self.registers.get_mut(register), self.weights.vector(bias));
    }

    fn norm_row(&mut self, register: Register, weight: VectorId) {
        let epsilon = self.latent_epsilon();
        let (x, weight) = (self.registers.get_mut(register), self.weights.vector(weight));
        self.compute.rms_norm_in_place(x, weight, epsilon);
    }

    fn norm_add(&mut self, from: Register, weight: VectorId, to: Register) {
        let (x, weight) = (self.registers.get(from), self.weights.vector(weight));
        let normed = &mut self.projected[..x.len()];
        self.compute.rms_norm(x, weight, self.config.rms_epsilon, normed);
        self.compute.add(self.registers.get_mut(to), normed);
    }

    fn scale(&mut self, register: Register, factor: VectorId) {
        let (factor, width) = (self.weights.vector(factor)[0], self.registers.width(register));
        self.compute.each_row(self.registers.get_mut(register), width, |_, row| {
            row.iter_mut().for_each(|value| *value *= factor);
        });
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) {
        let (gate, x) = self.registers.pair(gate, x);
        self.compute.scale_by_sigmoid(&mut x[..gate.len()], gate);
    }

    fn gate_heads(&mut self, x: Register, gate: Register) {
        let latent = self.config.latent.as_ref().expect("heads of latent attention have gates");
        let values = latent.value_dim;
        let (gates, x) = self.registers.pair(gate, x);
        self.compute.each_row(&mut x[..gates.len() * values], values, |head, row| {
            let factor = sigmoid(gates[head]);
            row.iter_mut().for_each(|value| *value *= factor);
        });
    }

    fn join(&mut self, from: [Register; 3], to: Register) {
        let delta = self.delta_config();
        let keys = delta.key_heads * delta.key_dim;
        let widths = [keys, keys, delta.value_width()];
        let [a, b, c] = from;
        let (a, b, c, to) = self.registers.four(a, b, c, to);
        self.compute.each_row(to, widths.iter().sum(), |token, row| {
            let mut rest = row;
            for (from, width) in [a, b, c].into_iter().zip(widths) {
                let (part, behind) = rest.split_at_mut(width);
                part.copy_from_slice(&from[token * width..][..width]);
                rest = behind;
            }
        });
    }

    fn convolve(&mut self, layer: LayerId, weight: VectorId) {
        let shape = self.config.delta.as_ref().expect("a delta layer has a shape");
        let (channels, kernel) = (shape.channels(), shape.convolution_kernel);
        let weight = self.weights.vector(weight);
        for (run, span) in self.spans.iter().enumerate() {
            let (tail, replay) = self.sequences.delta(span.sequence, layer, Part::Tail);
            let rows = span.first * channels..(span.first + span.tokens) * channels;
            let (mixed, out) = self.registers.pair(Register::Mixed, Register::Convolved);
            let (x, out) = (&mixed[rows.clone()], &mut out[rows]);
            if let Some(mut replay) = replay.filter(|_| self.answers && span.tokens > 1) {
                replay.note_convolution(tail, x);
            }
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
                decays: config.decay,
                a: &decay[rows(config.decays())],
                b: &beta[rows(config.value_heads)],
                decay: decay_rate,
                dt_bias: decay_bias,
            };
            let out = &mut context[rows(config.value_width())];
            let mut rule = Rule {
                compute: &self.compute,
                shape: &shape,
                form: self.options.delta_form,
                tiled: self.tiled.as_mut(),
            };
            let lag = self.sequences.lag(span.sequence);
            let (state, replay) = self.sequences.delta(span.sequence, layer, Part::State);
            let (Some(mut replay), Some(scratch)) = (replay, &mut self.round) else {
                rule.run(state, &inputs, out);
                self.sequences.keep(layer, Part::State, run);
                continue;
            };
            if lag > 0 {
                let behind = &mut scratch.out[..lag * config.value_width()];
                rule.step(state, &replay.rule(lag, decay_rate, decay_bias), behind);
            }
            if self.answers && span.tokens > 1 {
                replay.note_rule(convolved, inputs.a, inputs.b);
                let head = state.len() / shape.value_heads;
                self.compute.each_row(&mut scratch.state, head, |index, to| {
                    to.copy_from_slice(&state[index * head..][..head]);
                });
                rule.step(&mut scratch.state, &inputs, out);
            } else {
                rule.run(state, &inputs, out);
                self.sequences.keep(layer, Part::State, run);
            }
        }
    }

    /// Applies what was kept of the last round of a sequence to its recurrent states.
    pub(super) fn catch_up(&mut self, sequence: SequenceId) {
        let lag = self.sequences.lag(sequence);
        if lag > 0
            && let Some(scratch) = &mut self.round
        {
            let config = self.config.delta.as_ref().expect("rounds of a delta layer");
            let shape = delta_shape(config);
            let behind = &mut scratch.out[..lag * config.value_width()];
            for number in self.options.layers.clone() {
                for op in self.program.layers[number].stage(Stage::Mixer) {
                    let &Op::DeltaRule { decay_rate, decay_bias, .. } = op else { continue };
                    let layer = LayerId(number as u16);
                    let (state, replay) = self.sequences.delta(sequence, layer, Part::State);
                    let Some(replay) = replay else { continue };
                    let weights = [decay_rate, decay_bias].map(|id| self.weights.vector(id));
                    let mut rule = Rule {
                        compute: &self.compute,
                        shape: &shape,
                        form: self.options.delta_form,
                        tiled: self.tiled.as_mut(),
                    };
                    rule.step(state, &replay.rule(lag, weights[0], weights[1]), behind);
                }
            }
        }
        self.sequences.caught_up(sequence);
    }

    fn gated_norm(&mut self, weight: VectorId, gate: OutputGate) {
        let weight = self.weights.vector(weight);
        let (z, context) = self.registers.pair(Register::Z, Register::Context);
        let context = &mut context[..z.len()];
        let epsilon = self.config.rms_epsilon;
        match gate {
            OutputGate::Silu => self.compute.gated_rms_norm_in_place(context, weight, z, epsilon),
            OutputGate::Sigmoid => {
                self.compute.rms_norm_in_place(context, weight, epsilon);
                self.compute.scale_by_sigmoid(context, z);
            }
        }
    }
}

/// The rotation of the first values of heads.
pub(super) struct Rotation<'a> {
    pub(super) rope: &'a Rope,
    pub(super) frequencies: &'a [f32],
}

impl Rotation<'_> {
    /// Turns `x [positions, heads, dim]` by position.
    pub(super) fn turn(
        &self,
        compute: &Compute,
        x: &mut [f32],
        (heads, dim): (usize, usize),
        positions: &[u32],
    ) {
        let rotated = self.rope.dims;
        if rotated == 0 {
            return;
        }
        compute.rope(x, heads, dim, rotated, positions, self.frequencies);
        let magnitude = self.rope.magnitude();
        if magnitude != 1.0 {
            for head in x.chunks_exact_mut(dim) {
                head[..rotated].iter_mut().for_each(|value| *value *= magnitude);
            }
        }
    }
}

/// The delta rule of a layer.
struct Rule<'a> {
    compute: &'a Compute,
    shape: &'a DeltaShape,
    form: DeltaForm,
    /// Where value heads are in tiled order.
    tiled: Option<&'a mut Tiled>,
}

impl Rule<'_> {
    /// Tokens as they are computed in a run.
    fn run(&mut self, state: &mut [f32], inputs: &DeltaInputs<'_>, out: &mut [f32]) {
        match &mut self.tiled {
            Some(tiled) => tiled.delta_rule(self.compute, state, inputs, self.form, out),
            None => self.compute.delta_rule(self.shape, state, inputs, self.form, out),
        }
    }

    /// Tokens with the bits of steps.
    fn step(&mut self, state: &mut [f32], inputs: &DeltaInputs<'_>, out: &mut [f32]) {
        if self.form == DeltaForm::Step {
            return self.run(state, inputs, out);
        }
        let DeltaShape { value_heads, key_dim, value_dim, .. } = *self.shape;
        let decays = value_heads * inputs.decays.of_head(key_dim);
        for (token, out) in out.chunks_exact_mut(value_heads * value_dim).enumerate() {
            let at = token * inputs.qk_stride;
            let gates = token * value_heads..(token + 1) * value_heads;
            let one = DeltaInputs {
                q: &inputs.q[at..],
                k: &inputs.k[at..],
                v: &inputs.v[token * inputs.v_stride..],
                a: &inputs.a[token * decays..(token + 1) * decays],
                b: &inputs.b[gates],
                ..*inputs
            };
            self.run(state, &one, out);
        }
    }
}

//! The operations of a program on a GPU of any maker, and the launches that stand for several.

use gpu::GpuError;
use gpu::op::{convolution, elementwise, heads, norm, plain};
use store::LayerId;

use super::fuse::{Kind, Launch};
use super::{GpuBackend, Register};
use crate::EngineError;
use crate::backend::Cancel;
use crate::model::config::OutputGate;
use crate::model::program::{Op, Product};
use crate::sequences::Part;
use crate::weights::VectorId;

/// The kernels' name of a gate's function.
pub(super) fn gate_of(gate: OutputGate) -> norm::Gate {
    match gate {
        OutputGate::Silu => norm::Gate::Silu,
        OutputGate::Sigmoid => norm::Gate::Sigmoid,
    }
}

impl GpuBackend {
    /// The kind of the batch in progress.
    pub(super) fn kind(&self) -> Kind {
        match (self.tokens, self.by_matrices()) {
            (1, false) => Kind::Token,
            (1, true) => Kind::PromptToken,
            _ => Kind::Tokens,
        }
    }

    /// Runs a launch of a layer. Those that cannot report a failure leave it to the next one that can.
    ///
    /// # Errors
    /// As [`crate::backend::Backend::run_stage`].
    pub(super) fn launch(
        &mut self,
        layer: LayerId,
        launch: &Launch,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        match launch {
            Launch::NormMixture { norm, mixture } => {
                self.settle()?;
                return self.run_mixture(layer, Some(*norm), mixture, cancel);
            }
            Launch::Plain(Op::Mixture(mixture)) => {
                self.settle()?;
                return self.run_mixture(layer, None, mixture, cancel);
            }
            Launch::Plain(Op::Dense(dense)) => {
                self.settle()?;
                return self.run_dense(layer, dense);
            }
            _ => {}
        }
        self.attempt(|this| match launch {
            Launch::Plain(op) => this.run_op(layer, op),
            Launch::Several { norm, products } => this.launch_several(*norm, products),
            Launch::DeltaInputs { norm, products, convolution } => {
                this.launch_delta_inputs(layer, *norm, products, *convolution)
            }
            &Launch::ConvolvedRule { convolution, rule, decay } => {
                this.convolve_heads(layer, convolution)?;
                this.run_delta_rule(layer, rule, decay)
            }
            &Launch::GatedProduct { norm, gate, matrix } => {
                this.launch_gated_product((norm, gate), matrix)
            }
            &Launch::AttendNormed { gated, norms } => this.attend_normed(layer, gated, norms),
            &Launch::AttendBiased { biases, sinks } => this.attend_with(layer, sinks, Some(biases)),
            Launch::NormMixture { .. } => unreachable!("it ran above"),
        });
        Ok(())
    }

    /// Runs one operation in its plain form.
    fn run_op(&mut self, layer: LayerId, op: &Op) -> Result<(), GpuError> {
        match op {
            &Op::Norm { from, weight, to } => self.rms_norm(from, weight, to),
            Op::Linear { from, products } => self.products(*from, products, false),
            &Op::LinearAdd { from, matrix, to } => {
                self.products(from, &[Product { matrix, to }], true)
            }
            &Op::AddBias { register, bias } => self.launch_add_bias(register, bias),
            Op::SplitQueryGate => self.split_query_gate(),
            &Op::NormRotate { heads, weight } => self.norm_and_rotate(layer, heads, weight),
            &Op::Rotate { heads } => self.launch_rotate(layer, heads),
            &Op::Attend { sinks } => self.attend_with(layer, sinks, None),
            Op::AttendLatent(weights) => self.attend_latent(layer, weights, None),
            Op::AttendRows { rows, indexer } => self.attend_rows(layer, rows, indexer.as_ref()),
            &Op::SigmoidGate { x, gate } => self.sigmoid_gate(x, gate),
            &Op::GateHeads { x, gate } => self.gate_heads(x, gate),
            &Op::Convolve { weight } => self.convolve(layer, weight),
            &Op::DeltaRule { decay_rate, decay_bias, decay } => {
                self.normalise_heads()?;
                self.run_delta_rule(layer, [decay_rate, decay_bias], decay)
            }
            &Op::GatedNorm { weight, gate } => self.gated_norm(weight, gate),
            &Op::Join { from, to } => self.join(from, to),
            &Op::NormAdd { from, weight, to } => self.norm_add(from, weight, to),
            &Op::NormValues { from } => self.norm_values(layer, from),
            &Op::Scale { register, factor } => self.scale(register, factor),
            &Op::NormRow { register, weight } => self.norm_row(register, weight),
            &Op::NormHeads { heads, weight } => self.norm_heads(layer, heads, weight),
            &Op::GroupedLinear { from, matrix, to } => self.grouped_linear(from, matrix, to),
            Op::AttendCompressed(weights) => self.attend_compressed(layer, weights),
            Op::OpenStreams { site, norm } => self.open_streams(site, *norm),
            &Op::CloseStreams { from } => self.close_streams(from),
            Op::MergeStreams { site } => self.merge_streams(site.as_ref()),
            Op::AttendIndexed(_)
            | Op::GatherRows { .. }
            | Op::NormPair { .. }
            | Op::KeepKeys
            | Op::MixNgrams(_)
            | Op::NormStreams { .. }
            | Op::GateStreams { .. }
            | Op::InjectStreams { .. }
            | Op::Mixture(_)
            | Op::Dense(_) => unreachable!("{}: refused when the model was loaded", op.name()),
        }
    }

    fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register) -> Result<(), GpuError> {
        let [x, y] = [from, to].map(|register| &self.registers[register as usize]);
        let weight = &self.vectors[weight.index()];
        let shape = (self.tokens, Register::widths(&self.config)[to as usize]);
        norm::launch(
            &mut self.residency.device_mut().gpu,
            (x, weight, y),
            shape,
            self.config.rms_epsilon,
        )
    }

    fn norm_row(&mut self, register: Register, weight: VectorId) -> Result<(), GpuError> {
        let width = Register::widths(&self.config)[register as usize];
        let (x, weight) = (&self.registers[register as usize], &self.vectors[weight.index()]);
        let latent = self.config.latent.as_ref();
        let epsilon = latent.map_or(self.config.rms_epsilon, |latent| latent.rms_epsilon);
        let shape = (self.tokens, width);
        norm::launch_in_place(&mut self.residency.device_mut().gpu, (x, weight), shape, epsilon)
    }

    fn norm_add(&mut self, from: Register, weight: VectorId, to: Register) -> Result<(), GpuError> {
        let [x, y] = [from, to].map(|register| &self.registers[register as usize]);
        let buffers = (x, &self.vectors[weight.index()], y);
        let (shape, epsilon) = ((self.tokens, self.config.hidden), self.config.rms_epsilon);
        norm::launch_added(&mut self.residency.device_mut().gpu, buffers, shape, epsilon)
    }

    fn norm_values(&mut self, layer: LayerId, from: Register) -> Result<(), GpuError> {
        let attention = self.config.attention_of(layer.index());
        let (heads, dim) = (self.tokens * attention.key_value_heads, attention.head_dim);
        let [x, y] = [from, Register::Value].map(|register| &self.registers[register as usize]);
        let gpu = &mut self.residency.device_mut().gpu;
        if from != Register::Value {
            gpu.copy(x, 0, y, 0, 4 * (heads * dim) as u64);
        }
        let buffers = (y, &self.constants.ones);
        norm::launch_in_place(gpu, buffers, (heads, dim), self.config.rms_epsilon)
    }

    fn scale(&mut self, register: Register, factor: VectorId) -> Result<(), GpuError> {
        let count = self.tokens * Register::widths(&self.config)[register as usize];
        let (x, factor) = (&self.registers[register as usize], &self.vectors[factor.index()]);
        elementwise::launch_scale(&mut self.residency.device_mut().gpu, factor, x, count)
    }

    fn norm_heads(
        &mut self,
        layer: LayerId,
        heads: Register,
        weight: VectorId,
    ) -> Result<(), GpuError> {
        let attention = self.config.attention_of(layer.index());
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let (x, weight) = (&self.registers[heads as usize], &self.vectors[weight.index()]);
        let (shape, epsilon) = ((self.tokens * count, attention.head_dim), self.config.rms_epsilon);
        norm::launch_in_place(&mut self.residency.device_mut().gpu, (x, weight), shape, epsilon)
    }

    fn split_query_gate(&mut self) -> Result<(), GpuError> {
        let [both, query, gate] = [Register::QueryGate, Register::Query, Register::Gate]
            .map(|register| &self.registers[register as usize]);
        let attention = &self.config.attention;
        let (heads, dim) = (attention.query_heads, attention.head_dim);
        let shape = heads::Heads { tokens: self.tokens, heads, dim };
        heads::launch_split(&mut self.residency.device_mut().gpu, (both, query, gate), shape)
    }

    fn norm_and_rotate(
        &mut self,
        layer: LayerId,
        heads: Register,
        weight: VectorId,
    ) -> Result<(), GpuError> {
        let attention = self.config.attention_of(layer.index());
        if attention.head_dim > heads::HEAD_DIM_LIMIT {
            self.norm_heads(layer, heads, weight)?;
            return self.launch_rotate(layer, heads);
        }
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let (x, weight) = (&self.registers[heads as usize], &self.vectors[weight.index()]);
        let shape = heads::Heads { tokens: self.tokens, heads: count, dim: attention.head_dim };
        let (angles, pairs) = self.angles_of(layer);
        let (angles, epsilon) = (angles.clone(), self.config.rms_epsilon);
        heads::launch(
            &mut self.residency.device_mut().gpu,
            (x, weight, &angles),
            shape,
            pairs,
            epsilon,
        )
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) -> Result<(), GpuError> {
        let attention = &self.config.attention;
        let count = self.tokens * attention.query_heads * attention.head_dim;
        let [x, gate] = [x, gate].map(|register| &self.registers[register as usize]);
        elementwise::launch_sigmoid_gate(&mut self.residency.device_mut().gpu, gate, x, count)
    }

    fn gate_heads(&mut self, x: Register, gate: Register) -> Result<(), GpuError> {
        let Some(latent) = &self.config.latent else { return Ok(()) };
        let shape = (self.tokens * self.config.attention.query_heads, latent.value_dim);
        let [x, gate] = [x, gate].map(|register| &self.registers[register as usize]);
        elementwise::launch_gate_heads(&mut self.residency.device_mut().gpu, (gate, x), shape)
    }

    fn convolve(&mut self, layer: LayerId, weight: VectorId) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let (channels, taps) = (config.channels(), config.convolution_kernel);
        for (index, span) in self.spans.iter().enumerate() {
            let (_, tail) = self.places.recurrent(span.sequence, layer);
            let [x, y] = [Register::Mixed, Register::Convolved]
                .map(|register| &self.registers[register as usize]);
            let weight = &self.vectors[weight.index()];
            let buffers = convolution::Filtered { x, weight, tail, y };
            convolution::launch(
                &mut self.residency.device_mut().gpu,
                buffers,
                channels,
                taps,
                span.into(),
            )?;
            let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
            self.sequences.keep(&mut memory, (layer, Part::Tail), index)?;
        }
        Ok(())
    }

    /// Rows of `to` from those of three registers, which are channels of the delta rule.
    fn join(&mut self, from: [Register; 3], to: Register) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let keys = config.key_heads * config.key_dim;
        let parts = from.map(|register| &self.registers[register as usize]);
        let (to, widths) = (&self.registers[to as usize], [keys, keys, config.value_width()]);
        plain::launch_join(&mut self.residency.device_mut().gpu, parts, to, widths, self.tokens)
    }

    fn gated_norm(&mut self, weight: VectorId, gate: OutputGate) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let [z, context] =
            [Register::Z, Register::Context].map(|register| &self.registers[register as usize]);
        let shape = (self.tokens * config.value_heads, config.value_dim);
        let (weight, function) = (&self.vectors[weight.index()], gate_of(gate));
        let buffers = norm::Gated { x: context, weight, gate: z, function };
        norm::launch_gated(
            &mut self.residency.device_mut().gpu,
            buffers,
            shape,
            self.config.rms_epsilon,
        )
    }
}

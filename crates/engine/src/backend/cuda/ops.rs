//! The operations of a program on an NVIDIA GPU, and the launches that stand for several.

use cuda::launch;
use store::LayerId;

use super::buffers::Input;
use super::fuse::Launch;
use super::{CudaBackend, Register};
use crate::EngineError;
use crate::backend::Cancel;
use crate::model::config::OutputGate;
use crate::model::program::{Op, Product};
use crate::weights::{MatrixId, VectorId};

impl CudaBackend {
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
            Launch::Plain(op) => return self.run_op(layer, op, cancel),
            Launch::NormLinear { norm, products } => self.fused_norm_linear(*norm, products),
            &Launch::Gates { norm, down, inject, up } => self.fused_gates(norm, (down, inject, up)),
            Launch::DeltaInputs { norm, products, convolution } => {
                self.fused_delta_inputs(layer, *norm, products, *convolution);
            }
            &Launch::DeltaOutput { norm, gate, matrix } => {
                self.fused_delta_output((norm, gate), matrix);
            }
            &Launch::Inject { heads, matrix } => self.fused_inject(heads, matrix),
            &Launch::Heads { norms, values } => self.fused_heads(layer, false, norms, values),
            &Launch::GatedHeads { norms, matrix } => {
                self.fused_heads(layer, true, norms, None);
                self.fused_gated_output(matrix);
            }
            &Launch::SplitHeads { norms } => {
                self.fused_heads(layer, true, norms, None);
                self.split_query_gate();
                self.sigmoid_gate(Register::Context, Register::Gate);
            }
            Launch::NormMixture { norm, mixture, shared } => {
                return self.step_mixture(layer, Some((*norm, *shared)), mixture);
            }
            Launch::NormDense { norm, dense } => self.fused_dense(*norm, dense),
            Launch::Sandwich { norms, mixture } => {
                return self.step_sandwich(layer, norms, mixture);
            }
        }
        Ok(())
    }

    /// Runs one operation by itself.
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
            &Op::GroupedLinear { from, matrix, to } => self.launch_grouped_linear(from, matrix, to),
            &Op::AddBias { register, bias } => self.add_bias(register, bias),
            Op::SplitQueryGate => self.split_query_gate(),
            &Op::NormAdd { from, weight, to } => self.norm_add(from, weight, to),
            &Op::NormValues { from } => self.norm_values(layer, from),
            &Op::Scale { register, factor } => self.scale(register, factor),
            &Op::NormRotate { heads, weight } => self.norm_and_rotate(layer, heads, weight),
            &Op::NormHeads { heads, weight } => self.norm_heads(layer, heads, weight),
            &Op::Rotate { heads } => self.launch_rotate(layer, heads),
            &Op::Attend { sinks } => self.launch_attend(layer, sinks),
            Op::AttendLatent(weights) => self.launch_attend_latent(layer, weights),
            Op::AttendCompressed(weights) => self.launch_attend_compressed(layer, weights),
            &Op::SigmoidGate { x, gate } => self.sigmoid_gate(x, gate),
            &Op::Convolve { weight } => self.launch_convolve(layer, weight),
            &Op::DeltaRule { decay_rate, decay_bias, .. } => {
                self.launch_delta_rule(layer, decay_rate, decay_bias);
            }
            &Op::GatedNorm { weight, gate } => self.gated_norm(weight, gate),
            Op::OpenStreams { site, norm } => self.launch_open_streams(site, *norm),
            &Op::CloseStreams { from } => self.launch_close_streams(from),
            Op::MergeStreams { site: Some(site) } => self.launch_merge_streams(site),
            Op::Mixture(mixture) if self.single => return self.step_mixture(layer, None, mixture),
            Op::Mixture(mixture) => return self.chunk_mixture(layer, mixture, cancel),
            Op::Dense(dense) => self.run_dense(dense),
            &Op::NormPair { embedding, hidden } => self.norm_pair([embedding, hidden]),
            Op::KeepKeys => self.keep_keys(layer),
            Op::AttendIndexed(weights) => self.launch_attend_indexed(layer, weights),
            Op::AttendRows { rows, indexer } => {
                self.launch_attend_rows(layer, rows, indexer.as_ref());
            }
            &Op::GateHeads { x, gate } => self.gate_heads(x, gate),
            Op::MergeStreams { site: None } => unreachable!("refused when the model is loaded"),
            &Op::Join { from, to } => self.join(from, to),
            Op::GatherRows { .. } => return self.launch_gather_rows(layer),
            Op::MixNgrams(weights) => self.launch_mix_ngrams(layer, weights),
            &Op::NormStreams { weight } => self.launch_norm_streams(weight),
            &Op::GateStreams { up, to } => self.launch_gate_streams(up, to),
            &Op::InjectStreams { from } => self.launch_inject_streams(from),
        }
        Ok(())
    }

    pub(super) fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register) {
        self.run(|this| {
            let (x, out) = (this.register(from), this.register(to));
            let epsilon = this.config.rms_epsilon;
            launch::rms_norm(&this.stream, this.tokens, x, None, this.vector(weight), epsilon, out)
        });
    }

    fn linear(&mut self, from: Register, products: &[Product]) {
        self.run(|this| {
            let job = |it: &Product| (this.matrix(it.matrix), this.register(it.to));
            let (few, jobs): (Vec<_>, Vec<_>) =
                products.iter().map(job).partition(|(matrix, _)| {
                    let streams = !this.single && from == Register::StreamsNormed;
                    streams && launch::serves_stream_products(matrix)
                });
            let x = this.register(from);
            for (matrix, out) in few {
                launch::stream_products(&this.stream, this.tokens, x, matrix, out)?;
            }
            if jobs.is_empty() {
                return Ok(());
            }
            this.products(x, &jobs, false)
        });
    }

    fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register) {
        self.run(|this| {
            let job = (this.matrix(matrix), this.register(to));
            this.products(this.register(from), &[job], true)
        });
    }

    fn split_query_gate(&mut self) {
        self.run(|this| {
            let attention = &this.config.attention;
            let heads = this.tokens * attention.query_heads;
            let [both, query, gate] =
                [Register::QueryGate, Register::Query, Register::Gate].map(|r| this.register(r));
            launch::split_query_gate(&this.stream, heads, attention.head_dim, both, query, gate)
        });
    }

    fn norm_and_rotate(&mut self, layer: LayerId, heads: Register, weight: VectorId) {
        self.run(|this| {
            let positions = this.input(Input::Position, 0, this.tokens);
            let (x, weight) = (this.register(heads), this.vector(weight));
            let norm = Some((weight, this.config.rms_epsilon));
            let (heads, rotation) = (this.heads_in(layer, heads), this.rotation(layer));
            launch::norm_and_rotate(&this.stream, heads, x, norm, rotation, positions)
        });
    }

    fn norm_heads(&mut self, layer: LayerId, heads: Register, weight: VectorId) {
        self.run(|this| {
            let (x, weight) = (this.register(heads), this.vector(weight));
            let rows = this.tokens * this.heads_in(layer, heads).0;
            launch::rms_norm(&this.stream, rows, x, None, weight, this.config.rms_epsilon, x)
        });
    }

    fn add_bias(&mut self, register: Register, bias: VectorId) {
        self.run(|this| launch::add_bias(&this.stream, this.register(register), this.vector(bias)));
    }

    fn norm_row(&mut self, register: Register, weight: VectorId) {
        self.run(|this| {
            let (x, weight) = (this.register(register), this.vector(weight));
            let latent = this.config.latent.as_ref();
            let epsilon = latent.map_or(this.config.rms_epsilon, |latent| latent.rms_epsilon);
            launch::rms_norm(&this.stream, this.tokens, x, None, weight, epsilon, x)
        });
    }

    fn sigmoid_gate(&mut self, x: Register, gate: Register) {
        self.run(|this| {
            let gate = this.register(gate);
            launch::sigmoid_gate(&this.stream, gate.len(), this.register(x), gate)
        });
    }

    fn join(&mut self, from: [Register; 3], to: Register) {
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let keys = delta.key_heads * delta.key_dim;
            let [queries, all_keys, values] = from.map(|register| this.register(register));
            let parts = [(queries, keys), (all_keys, keys), (values, delta.value_width())];
            launch::join_rows(&this.stream, this.tokens, parts, this.register(to))
        });
    }

    /// Each head of latent attention times the sigmoid of its gate.
    fn gate_heads(&mut self, x: Register, gate: Register) {
        self.run(|this| {
            let (x, gate) = (this.register(x), this.register(gate));
            let Some(latent) = &this.config.latent else { return Ok(()) };
            launch::gate_heads(&this.stream, latent.value_dim, x, gate)
        });
    }

    fn gated_norm(&mut self, weight: VectorId, gate: OutputGate) {
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let heads = this.tokens * delta.value_heads;
            let (x, z) = (this.register(Register::Context), this.register(Register::Z));
            let epsilon = this.config.rms_epsilon;
            let z = (z, gate == OutputGate::Sigmoid);
            launch::gated_norm(&this.stream, heads, x, z, this.vector(weight), epsilon)
        });
    }
}

//! The fused kernels of a step, each for several operations ([`super::fuse`]) where the matrices allow it
//! (`cuda::launch::step_serves`).

use cuda::launch::{
    self, ExpertActivation, ExpertStep, HeadsStep, KeyValueCache, Routing, SharedExpert,
    StepConvolution, StepInput, StepJob, StepShared, Visible,
};
use cuda::{CudaError, Span};
use store::LayerId;

use super::super::prepared::Prepared;
use super::buffers::Input;
use super::fuse::{self, Facts, FusedShared, Launch};
use super::{CudaBackend, Mode, Register};
use crate::model::config::OutputGate;
use crate::model::mixture::Mixture;
use crate::model::program::{Product, Program};
use crate::weights::{MatrixId, VectorId};

impl CudaBackend {
    /// Turns operations into launches, as [`super::fuse`] says.
    pub(super) fn prepare_program(&self, program: &Program) -> Prepared<Launch> {
        let facts = Facts {
            config: &self.config,
            device: self.stream.device(),
            matrix: &|id| self.matrix(id),
            experts: &|layer| {
                let aligned = self.experts.aligned[layer.index()];
                aligned.then(|| *self.experts.shapes(layer))
            },
            guess: &|layer| {
                let (router, _) = self.prefetch.as_ref()?.next_router(layer, 0)?;
                Some(self.matrix(router))
            },
        };
        fuse::prepare(program, &self.options.layers, &facts)
    }

    /// The input of products: the normed residual stream, or `Normed` where that is there already.
    pub(super) fn block_input(&self, norm: Option<VectorId>) -> StepInput {
        match norm {
            Some(norm) => self.normed_input(norm),
            None => StepInput::Plain { x: self.register(Register::Normed) },
        }
    }

    /// The normed residual stream as the input of products.
    pub(super) fn normed_input(&self, norm: VectorId) -> StepInput {
        let (x, weight) = (self.register(Register::Residual), self.vector(norm));
        StepInput::Norm { x, weight, epsilon: self.config.rms_epsilon }
    }

    fn stores(&self, products: &[Product]) -> Vec<StepJob> {
        let job = |it: &Product| StepJob::Store(self.matrix(it.matrix), self.register(it.to));
        products.iter().map(job).collect()
    }

    pub(super) fn fused_norm_linear(&mut self, norm: VectorId, products: &[Product]) {
        self.run(|this| {
            let (input, jobs) = (this.normed_input(norm), this.stores(products));
            launch::step_linear(&this.stream, this.tokens, &input, &jobs)
        });
    }

    pub(super) fn fused_delta_inputs(
        &mut self,
        layer: LayerId,
        norm: Option<VectorId>,
        products: &[Product],
        convolution: VectorId,
    ) {
        self.run(|this| {
            let [mixed, others @ ..] = products else { return Ok(()) };
            let (weight, ring) = (this.vector(convolution), this.round_ring(layer));
            if ring.is_some() && this.tokens > 1 {
                // A token of a run is convolved with products that other blocks have.
                let (input, jobs) = (this.block_input(norm), this.stores(products));
                launch::step_linear(&this.stream, this.tokens, &input, &jobs)?;
                let (_, places) = this.places()[0];
                return this.convolve_runs(layer, weight, &places);
            }
            let (tails, stride) = this.layer_tails(layer);
            let input = |which| this.input(which, 0, this.tokens);
            let convolution = StepConvolution {
                weight,
                tails,
                stride,
                sequences: input(Input::Sequence),
                rounds: ring.map(|ring| (ring, input(Input::Position), input(Input::Lag))),
            };
            let to = this.register(Register::Convolved);
            let mut jobs = vec![StepJob::Convolve(this.matrix(mixed.matrix), to, convolution)];
            jobs.extend(this.stores(others));
            launch::step_linear(&this.stream, this.tokens, &this.block_input(norm), &jobs)
        });
    }

    /// `Residual += matrix input`, of an input that is made while it is staged.
    fn fused_add(&mut self, matrix: MatrixId, input: impl FnOnce(&Self) -> StepInput) {
        self.run(|this| {
            let job = StepJob::Add(this.matrix(matrix), this.register(Register::Residual));
            launch::step_linear(&this.stream, this.tokens, &input(this), &[job])
        });
    }

    pub(super) fn fused_delta_output(
        &mut self,
        (norm, gate): (VectorId, OutputGate),
        matrix: MatrixId,
    ) {
        self.fused_add(matrix, |this| this.gated_heads(norm, gate));
    }

    /// `Context`, each head normed and gated.
    fn gated_heads(&self, norm: VectorId, gate: OutputGate) -> StepInput {
        StepInput::HeadNorm {
            x: self.register(Register::Context),
            gate: self.register(Register::Z),
            weight: self.vector(norm),
            epsilon: self.config.rms_epsilon,
            sigmoid: gate == OutputGate::Sigmoid,
        }
    }

    /// The streams take a product of `Context`, whose heads are normed and gated where that is said.
    pub(super) fn fused_inject(&mut self, heads: Option<(VectorId, OutputGate)>, matrix: MatrixId) {
        self.run(|this| {
            let input = match heads {
                Some((norm, gate)) => this.gated_heads(norm, gate),
                None => StepInput::Plain { x: this.register(Register::Context) },
            };
            let (streams, weights) =
                (this.register(Register::Residual), this.register(Register::Inject));
            let job = StepJob::Inject(this.matrix(matrix), streams, weights);
            launch::step_linear(&this.stream, this.tokens, &input, &[job])
        });
    }

    /// `Context` of a step's heads as projected; gates stay in `QueryGate`. Each head of `values` is normed, where they
    /// are said, and is then a value.
    pub(super) fn fused_heads(
        &mut self,
        layer: LayerId,
        gated: bool,
        [query_norm, key_norm]: [VectorId; 2],
        values: Option<Register>,
    ) {
        self.run(|this| {
            let projected = if gated { Register::QueryGate } else { Register::Query };
            let step = HeadsStep {
                projected: this.register(projected),
                gated,
                keys: this.register(Register::Key),
                values: this.register(values.unwrap_or(Register::Value)),
                norm_values: values.is_some(),
                positions: this.places()[0].1.positions,
                query_norm: this.vector(query_norm),
                key_norm: this.vector(key_norm),
                rotation: this.rotation(layer),
                epsilon: this.config.rms_epsilon,
                queries: this.register(Register::Query),
            };
            let shape = &this.attention_shape(layer);
            let (places, cache) = this
                .step_window(layer)
                .or_else(|| this.draft_rows(layer))
                .unwrap_or_else(|| (this.places()[0].1, this.cache(layer)));
            launch::attention_heads(&this.stream, shape, &places, &cache, &step)?;
            let (queries, out) = (step.queries, this.register(Register::Context));
            let scratch = this.buffers.attention.all();
            let window = this.config.layers[layer.index()].window;
            let visible = Visible { window, sinks: None };
            launch::attend(&this.stream, shape, &places, &cache, queries, out, scratch, visible)
        });
    }

    /// Keys and values of a layer that keeps all positions.
    pub(super) fn cache(&self, layer: LayerId) -> KeyValueCache {
        let index = self.sizes.layout.index(layer);
        KeyValueCache {
            keys: self.buffers.keys[index].span(0, self.sizes.cache_layer),
            values: self.buffers.values[index].span(0, self.sizes.cache_layer),
            context: self.options.context,
            kv_type: self.options.kv_type,
        }
    }

    /// `Residual += matrix (Context * sigmoid(gate))` with the gates of a step's heads in `QueryGate`.
    pub(super) fn fused_gated_output(&mut self, matrix: MatrixId) {
        self.fused_add(matrix, |this| StepInput::Gated {
            x: this.register(Register::Context),
            both: this.register(Register::QueryGate),
            dim: this.sizes.attention.dim,
        });
    }

    /// What gate and up of a step's experts are clamped to, where a fused kernel does that.
    pub(super) fn limited_experts(
        &self,
        layer: LayerId,
        shared: Option<&SharedExpert>,
        activation: Option<&ExpertActivation>,
    ) -> Option<f32> {
        let &ExpertActivation {
            biases: None,
            clamped: Some((0.0, limit)),
            in_turns: false,
            shared: clamps,
            gelu: false,
        } = activation?
        else {
            return None;
        };
        let shapes = self.experts.shapes(layer);
        let served = self.experts.aligned[layer.index()]
            && (clamps || shared.is_none())
            && launch::step_serves_limited(self.stream.device(), shapes, shared);
        served.then_some(limit)
    }

    /// Router logits, those from which the next layer's choice is guessed, and for the shared expert its factor and
    /// inner values.
    pub(super) fn fused_router(
        &self,
        layer: LayerId,
        norm: Option<VectorId>,
        mixture: &Mixture,
        shared: Option<&SharedExpert>,
        how: FusedShared,
    ) -> Result<(), CudaError> {
        let mut jobs = vec![StepJob::Store(self.matrix(mixture.router), self.router_logits())];
        jobs.extend(self.guess_product(layer).map(|(router, to)| StepJob::Store(router, to)));
        let inner = shared.map(|shared| StepJob::SwiGlu(shared.gate, shared.up, shared.inner));
        let input = self.block_input(norm);
        match how {
            FusedShared::Within => {
                jobs.extend(inner);
                let gate = mixture.shared.as_ref().and_then(|shared| shared.gate_weight);
                if let (Some(shared), Some(gate)) = (shared, gate) {
                    jobs.push(StepJob::Store(self.matrix(gate), shared.factor));
                }
            }
            FusedShared::Apart => {
                let inner: Vec<_> = inner.into_iter().collect();
                launch::step_linear(&self.stream, self.tokens, &input, &inner)?;
            }
        }
        launch::step_linear(&self.stream, self.tokens, &input, &jobs)
    }

    /// The experts of a step after [`CudaBackend::fused_router`], and after routing unless `routing` says how they
    /// choose themselves.
    pub(super) fn fused_experts(
        &self,
        layer: LayerId,
        (norm, how): (Option<VectorId>, FusedShared),
        step: &ExpertStep,
        shared: Option<&SharedExpert>,
        routing: Option<&Routing>,
    ) -> Result<(), CudaError> {
        let (stream, tokens, input) = (&self.stream, self.tokens, self.block_input(norm));
        let shapes = self.experts.shapes(layer);
        let within = shared.filter(|_| how == FusedShared::Within).map(|shared| StepShared {
            down: shared.down,
            factor: shared.factor,
            inner: shared.inner,
        });
        launch::step_experts(stream, tokens, &input, step, shapes, within.as_ref(), routing)?;
        let Some(shared) = shared.filter(|_| how == FusedShared::Apart) else { return Ok(()) };
        let job = StepJob::Add(shared.down, step.out);
        launch::step_linear(stream, tokens, &StepInput::Plain { x: shared.inner }, &[job])
    }

    /// Logits of all tokens of the batch from the residual stream; false when no fused kernel serves them.
    pub(super) fn fused_head(
        &self,
        norm: VectorId,
        head: MatrixId,
        logits: Span<f32>,
    ) -> Result<bool, CudaError> {
        if !self.single || !launch::step_serves(self.stream.device(), [&self.matrix(head)]) {
            return Ok(false);
        }
        let job = StepJob::Store(self.matrix(head), logits);
        launch::step_linear(&self.stream, self.tokens, &self.normed_input(norm), &[job])?;
        Ok(true)
    }

    /// Launches, unless the batch is replayed or a launch before has failed.
    pub(super) fn run(&mut self, launch: impl FnOnce(&Self) -> Result<(), CudaError>) {
        if self.mode != Mode::Replay
            && self.failure.is_none()
            && let Err(error) = launch(self)
        {
            self.failure = Some(error);
        }
    }
}

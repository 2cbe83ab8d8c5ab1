//! Operations of a step that run as one kernel each where the matrices allow it (`cuda::launch::step_serves`).
//!
//! Between two of them the whole device waits for the slowest block, so a step is as fast as it has few of them. What
//! is not served goes operation by operation.

use cuda::launch::{
    self, ExpertActivation, ExpertStep, HeadsStep, KeyValueCache, SharedExpert, StepConvolution,
    StepInput, StepJob, StepShared, Visible,
};
use cuda::{CudaError, Matrix, Span};
use store::LayerId;

use super::{Backend, CudaBackend, Mode, Register};
use crate::model::mixture::Mixture;
use crate::model::router::Score;
use crate::weights::{MatrixId, VectorId};

/// Where a step computes the shared expert of a fused mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FusedShared {
    /// With the router and with the routed experts; or there is none.
    Within,
    /// By kernels of its own, because other ones read its matrices; it has no gate.
    Apart,
}

impl CudaBackend {
    /// True when the batch is a step and a fused kernel serves products of the matrices in one launch.
    pub(super) fn fuses(&self, matrices: impl IntoIterator<Item = MatrixId>) -> bool {
        let matrices: Vec<Matrix> = matrices.into_iter().map(|id| self.matrix(id)).collect();
        self.single && launch::step_serves(self.stream.device(), &matrices)
    }

    /// The normed residual stream as the input of products.
    pub(super) fn normed_input(&self, norm: VectorId) -> StepInput {
        let (x, weight) = (self.register(Register::Residual), self.vector(norm));
        StepInput::Norm { x, weight, epsilon: self.config.rms_epsilon }
    }

    fn stores(&self, products: &[(MatrixId, Register)]) -> Vec<StepJob> {
        let job = |&(matrix, to): &(MatrixId, Register)| {
            StepJob::Store(self.matrix(matrix), self.register(to))
        };
        products.iter().map(job).collect()
    }

    pub(super) fn fused_norm_linear(&mut self, norm: VectorId, products: &[(MatrixId, Register)]) {
        if !self.fuses(products.iter().map(|product| product.0)) {
            self.rms_norm(Register::Residual, norm, Register::Normed);
            return self.linear(Register::Normed, products);
        }
        self.run(|this| {
            let (input, jobs) = (this.normed_input(norm), this.stores(products));
            launch::step_linear(&this.stream, this.tokens, &input, &jobs)
        });
    }

    pub(super) fn fused_delta_inputs(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixed: MatrixId,
        others: &[(MatrixId, Register)],
        convolution: VectorId,
    ) {
        if !self.fuses(others.iter().map(|other| other.0).chain([mixed])) {
            let mut products = vec![(mixed, Register::Mixed)];
            products.extend_from_slice(others);
            self.fused_norm_linear(norm, &products);
            return self.convolve(layer, convolution);
        }
        self.run(|this| {
            let stride = this.sizes.delta_layers * this.sizes.tail;
            let start = this.sizes.layout.index(layer) * this.sizes.tail;
            let convolution = StepConvolution {
                weight: this.vector(convolution),
                tails: this.buffers.tails.part(start, this.sizes.sequences * stride - start),
                stride,
                sequences: this.input(2, 0, this.tokens),
            };
            let to = this.register(Register::Convolved);
            let mut jobs = vec![StepJob::Convolve(this.matrix(mixed), to, convolution)];
            jobs.extend(this.stores(others));
            launch::step_linear(&this.stream, this.tokens, &this.normed_input(norm), &jobs)
        });
    }

    /// `Residual += matrix input`, of an input that is made while it is staged.
    fn fused_add(&mut self, matrix: MatrixId, input: impl FnOnce(&Self) -> StepInput) {
        self.run(|this| {
            let job = StepJob::Add(this.matrix(matrix), this.register(Register::Residual));
            launch::step_linear(&this.stream, this.tokens, &input(this), &[job])
        });
    }

    pub(super) fn fused_delta_output(&mut self, norm: VectorId, matrix: MatrixId) {
        let dim = self.config.delta.as_ref().map_or(0, |delta| delta.value_dim);
        if !self.fuses([matrix]) || !launch::step_serves_head(dim) {
            self.gated_norm(norm);
            return self.linear_add(Register::Context, matrix, Register::Residual);
        }
        self.fused_add(matrix, |this| StepInput::HeadNorm {
            x: this.register(Register::Context),
            gate: this.register(Register::Z),
            weight: this.vector(norm),
            epsilon: this.config.rms_epsilon,
        });
    }

    pub(super) fn fused_attend_heads(
        &mut self,
        layer: LayerId,
        gated: bool,
        query_norm: VectorId,
        key_norm: VectorId,
    ) {
        if !self.single || self.config.layers[layer.index()].kept_window().is_some() {
            if gated {
                self.split_query_gate();
            }
            self.norm_and_rotate(Register::Query, query_norm);
            self.norm_and_rotate(Register::Key, key_norm);
            return self.attend(layer, None);
        }
        self.run(|this| {
            let projected = if gated { Register::QueryGate } else { Register::Query };
            let step = HeadsStep {
                projected: this.register(projected),
                gated,
                keys: this.register(Register::Key),
                values: this.register(Register::Value),
                query_norm: this.vector(query_norm),
                key_norm: this.vector(key_norm),
                rotation: this.rotation(),
                epsilon: this.config.rms_epsilon,
                queries: this.register(Register::Query),
            };
            let (shape, cache) = (&this.sizes.attention, this.cache(layer));
            let (_, places) = this.places()[0];
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

    pub(super) fn fused_attention_output(&mut self, gated: bool, matrix: MatrixId) {
        if !self.fuses([matrix]) || !self.sizes.attention.dim.is_multiple_of(8) {
            if gated {
                // Heads of a step were not split: the gate lies beside the queries.
                if self.single {
                    self.split_query_gate();
                }
                self.sigmoid_gate(Register::Context, Register::Gate);
            }
            return self.linear_add(Register::Context, matrix, Register::Residual);
        }
        self.fused_add(matrix, |this| {
            let (x, dim) = (this.register(Register::Context), this.sizes.attention.dim);
            match gated {
                true => StepInput::Gated { x, both: this.register(Register::QueryGate), dim },
                false => StepInput::Plain { x },
            }
        });
    }

    /// How norm, router and shared expert of a step's mixture run as one kernel and the experts as two; `None` where
    /// they do not.
    pub(super) fn fused_mixture(&self, layer: LayerId, mixture: &Mixture) -> Option<FusedShared> {
        let biased_logits =
            mixture.router_bias.is_some() && self.config.moe.router.score == Score::Softmax;
        if biased_logits || self.activation(mixture).is_some() {
            return None;
        }
        let device = self.stream.device();
        let mut routers = vec![self.matrix(mixture.router)];
        routers.extend(self.guess_product(layer).map(|product| product.0));
        let shapes = self.experts.shapes(layer);
        let served = |products: &[Matrix], down| {
            launch::step_serves(device, products)
                && launch::step_serves_experts(device, shapes, down)
        };
        if !self.single || !self.experts.aligned[layer.index()] {
            return None;
        }
        let Some(shared) = &mixture.shared else {
            return served(&routers, None).then_some(FusedShared::Within);
        };
        let [gate, up, down] =
            [shared.gate, shared.up, shared.down].map(|matrix| self.matrix(matrix));
        if !launch::step_serves_pair(device, &gate, &up) {
            return None;
        }
        let factor = shared.gate_weight.map(|id| self.matrix(id));
        let all: Vec<Matrix> = routers.iter().copied().chain(factor).chain([gate, up]).collect();
        if served(&all, Some(&down)) {
            return Some(FusedShared::Within);
        }
        let apart = factor.is_none() && launch::step_serves(device, [&down]);
        (apart && served(&routers, None)).then_some(FusedShared::Apart)
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
        norm: VectorId,
        mixture: &Mixture,
        shared: Option<&SharedExpert>,
        how: FusedShared,
    ) -> Result<(), CudaError> {
        let mut jobs = vec![StepJob::Store(self.matrix(mixture.router), self.router_logits())];
        jobs.extend(self.guess_product(layer).map(|(router, to)| StepJob::Store(router, to)));
        let inner = shared.map(|shared| StepJob::SwiGlu(shared.gate, shared.up, shared.inner));
        let input = self.normed_input(norm);
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

    /// The experts of a step after [`CudaBackend::fused_router`] and routing.
    pub(super) fn fused_experts(
        &self,
        layer: LayerId,
        norm: VectorId,
        step: &ExpertStep,
        shared: Option<&SharedExpert>,
        how: FusedShared,
    ) -> Result<(), CudaError> {
        let (stream, tokens, input) = (&self.stream, self.tokens, self.normed_input(norm));
        let shapes = self.experts.shapes(layer);
        let within = shared.filter(|_| how == FusedShared::Within).map(|shared| StepShared {
            down: shared.down,
            factor: shared.factor,
            inner: shared.inner,
        });
        launch::step_experts(stream, tokens, &input, step, shapes, within.as_ref())?;
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
        if !self.fuses([head]) {
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

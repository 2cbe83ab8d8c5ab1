//! Launches that stand for several operations ([`super::fuse`]), and products of prompts by matrices, where the GPU has
//! them.
//!
//! A launch of several operations gives the bits of the operations one by one. Products by matrices give others: a
//! prompt always uses them, and an answer never, so that neither depends on how its tokens are batched.

use gpu::op::halves::{self, Halves};
use gpu::op::{
    attention, combine, convolution, delta, delta_channels, elementwise, fused, gated_product,
    heads, norm, product, prompt, tile,
};
use gpu::{Buffer, GpuError};
use kernels::DeltaDecay;
use store::LayerId;
use store::cache::Phase;

use super::dense::activate;
use super::fuse::{Shape, alike};
use super::ops::gate_of;
use super::requirements::Sizes;
use super::{GpuBackend, Register};
use crate::EngineError;
use crate::model::activation::Activation;
use crate::model::config::{DeltaConfig, HeadOrder, OutputGate};
use crate::model::mixture::Mixture;
use crate::model::program::Product;
use crate::model::router::Score;
use crate::sequences::Part;
use crate::weights::{MatrixId, VectorId};

/// The kernels' view of a delta layer.
pub(super) fn delta_shape(config: &DeltaConfig) -> delta::Shape {
    delta::Shape {
        key_heads: config.key_heads,
        value_heads: config.value_heads,
        key_dim: config.key_dim,
        value_dim: config.value_dim,
        tiled: config.order == HeadOrder::Tiled,
    }
}

/// Buffers for rows in halves, where the GPU multiplies matrices.
pub(super) fn halves(
    numbers: &mut dyn FnMut(&str, usize) -> Result<Buffer, GpuError>,
    sizes: &Sizes,
    matrices: bool,
) -> Result<Option<Halves>, GpuError> {
    if !matrices {
        return Ok(None);
    }
    let [values, factors] = sizes.halves;
    Ok(Some(Halves { values: numbers("halves", values)?, factors: numbers("halves", factors)? }))
}

impl GpuBackend {
    fn register(&self, register: Register) -> &Buffer {
        &self.registers[register as usize]
    }

    /// True for a batch of one token that continues an answer.
    pub(super) fn alone(&self) -> bool {
        self.tokens == 1 && !self.by_matrices()
    }

    /// True where products are computed by matrices: of prompts, on GPUs that have them.
    pub(super) fn by_matrices(&self) -> bool {
        self.halves.is_some() && self.phase == Phase::Prefill
    }

    /// Products of a prompt's rows.
    pub(super) fn tiled_products(
        &mut self,
        from: Register,
        products: &[Product],
        add: bool,
    ) -> Result<(), GpuError> {
        let output = |it: &Product| (it.matrix, self.register(it.to).clone());
        let outputs = products.iter().map(output);
        let (outputs, from) = (outputs.collect::<Vec<_>>(), self.register(from).clone());
        self.tiled(&from, &outputs, add)
    }

    /// Products of a prompt's rows by matrices of one width.
    pub(super) fn tiled(
        &mut self,
        x: &Buffer,
        products: &[(MatrixId, Buffer)],
        add: bool,
    ) -> Result<(), GpuError> {
        let Some(parted) = &self.halves else { return Ok(()) };
        let mut ready = false;
        for (matrix, y) in products {
            let matrix = self.trunk.matrix(matrix.index());
            if !tile::serves(matrix.rows, matrix.columns) {
                product::launch(
                    &mut self.residency.device_mut().gpu,
                    matrix,
                    x,
                    y,
                    self.tokens,
                    add,
                )?;
                continue;
            }
            if !ready {
                halves::launch(
                    &mut self.residency.device_mut().gpu,
                    x,
                    parted,
                    (self.tokens, matrix.columns),
                )?;
                ready = true;
            }
            tile::launch(
                &mut self.residency.device_mut().gpu,
                matrix,
                parted,
                y,
                self.tokens,
                add,
            )?;
        }
        Ok(())
    }

    /// The norm of `Residual`, and products of that.
    pub(super) fn launch_several(
        &mut self,
        norm: VectorId,
        products: &[Product],
    ) -> Result<(), GpuError> {
        let residual = &self.registers[Register::Residual as usize];
        let (weight, epsilon) = (&self.vectors[norm.index()], self.config.rms_epsilon);
        let pair =
            |it: &Product| (self.trunk.matrix(it.matrix.index()), &self.registers[it.to as usize]);
        let pairs: Vec<_> = products.iter().map(pair).collect();
        let gpu = &mut self.residency.device_mut().gpu;
        pairs.chunks(fused::MATRICES).try_for_each(|some| {
            fused::launch_several(gpu, some, (residual, weight), epsilon, None)
        })
    }

    /// The norm of `Residual`, products of that, the first one through the convolution into `Convolved`.
    pub(super) fn launch_delta_inputs(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        products: &[Product],
        weight: VectorId,
    ) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let place = |number: usize| {
            let Product { matrix, to } = products[number];
            let to = if number == 0 { Register::Convolved } else { to };
            (self.trunk.matrix(matrix.index()), &self.registers[to as usize])
        };
        let matrices: [_; fused::MATRICES] = std::array::from_fn(place);
        let span = &self.spans[0];
        let (_, tail) = self.places.recurrent(span.sequence, layer);
        let residual = &self.registers[Register::Residual as usize];
        let from = (residual, &self.vectors[norm.index()]);
        let filter = (&self.vectors[weight.index()], tail, config.convolution_kernel);
        let epsilon = self.config.rms_epsilon;
        let gpu = &mut self.residency.device_mut().gpu;
        fused::launch_delta_inputs(gpu, matrices, from, epsilon, filter)?;
        self.sequences.keep(&mut self.places.memory(gpu), (layer, Part::Tail), 0)
    }

    /// The norms of the heads of queries and keys that the delta rule takes.
    pub(super) fn normalise_heads(&mut self) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let x = &self.registers[Register::Convolved as usize];
        let gpu = &mut self.residency.device_mut().gpu;
        delta::launch_heads(gpu, x, delta_shape(config), self.tokens)
    }

    /// The delta rule of heads that are normalised.
    pub(super) fn run_delta_rule(
        &mut self,
        layer: LayerId,
        weights: [VectorId; 2],
        of: DeltaDecay,
    ) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let shape = delta_shape(config);
        let [x, beta, decay, y] =
            [Register::Convolved, Register::Beta, Register::Decay, Register::Context]
                .map(|register| &self.registers[register as usize]);
        let [rate, bias] = weights.map(|id| &self.vectors[id.index()]);
        let gpu = &mut self.residency.device_mut().gpu;
        let tokens = self.tokens;
        let mut by_channel = |bound| {
            delta_channels::launch(gpu, decay, [rate, bias], bound, shape, tokens)
                .map(|()| delta::Decays::Channels(decay))
        };
        let decays = match of {
            DeltaDecay::Heads => delta::Decays::Heads { decay, rate, bias },
            DeltaDecay::Channels => by_channel(None)?,
            DeltaDecay::BoundedChannels { bound } => by_channel(Some(bound))?,
        };
        let inputs = delta::Inputs { x, beta, decays };
        for (index, span) in self.spans.iter().enumerate() {
            let (state, _) = self.places.recurrent(span.sequence, layer);
            delta::launch(gpu, inputs, state, y, shape, span.into())?;
            let part = (layer, Part::State);
            self.sequences.keep(&mut self.places.memory(gpu), part, index)?;
        }
        Ok(())
    }

    /// The gated norm of `Context` and its product with a matrix, added to `Residual`.
    pub(super) fn launch_gated_product(
        &mut self,
        (norm, gate): (VectorId, OutputGate),
        matrix: MatrixId,
    ) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let (matrix, width) = (self.trunk.matrix(matrix.index()), config.value_dim);
        let [z, context, residual] = [Register::Z, Register::Context, Register::Residual]
            .map(|register| &self.registers[register as usize]);
        let inputs = ([context, &self.vectors[norm.index()], z], gate_of(gate));
        let (gpu, epsilon) = (&mut self.residency.device_mut().gpu, self.config.rms_epsilon);
        gated_product::launch(gpu, matrix, inputs, residual, width, epsilon)
    }

    /// The convolution of one token, and the norms of its heads.
    pub(super) fn convolve_heads(
        &mut self,
        layer: LayerId,
        weight: VectorId,
    ) -> Result<(), GpuError> {
        let Some(config) = &self.config.delta else { return Ok(()) };
        let (shape, taps) = (delta_shape(config), config.convolution_kernel);
        let span = &self.spans[0];
        let (_, tail) = self.places.recurrent(span.sequence, layer);
        let [x, y] = [Register::Mixed, Register::Convolved]
            .map(|register| &self.registers[register as usize]);
        let weight = &self.vectors[weight.index()];
        let buffers = convolution::Filtered { x, weight, tail, y };
        convolution::launch_with_heads(
            &mut self.residency.device_mut().gpu,
            buffers,
            shape,
            taps,
            span.first,
        )?;
        let mut memory = self.places.memory(&mut self.residency.device_mut().gpu);
        self.sequences.keep(&mut memory, (layer, Part::Tail), 0)
    }

    /// From projected queries, keys and values to what attention gives, times its gate.
    pub(super) fn attend_normed(
        &mut self,
        layer: LayerId,
        gated: bool,
        [query_norm, key_norm]: [VectorId; 2],
    ) -> Result<(), GpuError> {
        let (cache, shape) = (self.cache(), self.attention_shape(layer));
        let by_rows = self.by_matrices() && prompt::serves(cache, shape);
        let [both, query, gate, key, value, context] = [
            Register::QueryGate,
            Register::Query,
            Register::Gate,
            Register::Key,
            Register::Value,
            Register::Context,
        ]
        .map(|register| &self.registers[register as usize]);
        let (pairs, epsilon) = (self.frequencies.len(), self.config.rms_epsilon);
        let weights = [query_norm, key_norm].map(|id| &self.vectors[id.index()]);
        let (tokens, dim, gpu) = (self.tokens, shape.dim, &mut self.residency.device_mut().gpu);
        let gates = gated.then_some(both);
        let together = tokens == 1 && cache.prepares(dim);
        if together {
            let span = &self.spans[0];
            let (keys, values) = self.places.cache(span.sequence, layer);
            let places = attention::KeyValue { keys, values };
            let of = heads::Prepared {
                both: gates,
                key,
                value,
                weights,
                angles: &self.angles,
                query,
                places,
            };
            heads::launch_prepare(gpu, cache, of, shape, span.into(), pairs, epsilon)?;
        } else {
            if gated {
                let heads = heads::Heads { tokens, heads: shape.query_heads, dim };
                heads::launch_split(gpu, (both, query, gate), heads)?;
            }
            for (x, weight, count) in
                [(query, weights[0], shape.query_heads), (key, weights[1], shape.key_value_heads)]
            {
                let buffers = (x, weight, &self.angles);
                let heads = heads::Heads { tokens, heads: count, dim };
                heads::launch(gpu, buffers, heads, pairs, epsilon)?;
            }
        }
        for span in &self.spans {
            let (keys, values) = self.places.cache(span.sequence, layer);
            let (places, run) = (attention::KeyValue { keys, values }, span.into());
            let queries = attention::Queries { query, both: gates };
            if !together {
                let rows = attention::KeyValue { keys: key, values: value };
                attention::launch_append(gpu, cache, rows, places, shape, run)?;
            }
            if by_rows {
                prompt::launch(gpu, cache, queries, places, context, shape, run)?;
                continue;
            }
            let to = attention::Split { partial: &self.partial, y: context };
            attention::launch_split(gpu, cache, queries, places, to, shape, run)?;
        }
        Ok(())
    }

    /// Logits of the router and what the shared expert needs before the choice: behind a flag that it raises only
    /// experts run.
    pub(super) fn mixture_inputs(
        &mut self,
        norm: Option<VectorId>,
        mixture: &Mixture,
    ) -> Result<(), EngineError> {
        let buffers = &self.mixture;
        let normed = self.registers[Register::Normed as usize].clone();
        let shared = mixture.shared.as_ref();
        let mut first = vec![(mixture.router, buffers.router_logits.clone())];
        let factor = shared.and_then(|shared| shared.gate_weight);
        first.extend(factor.map(|factor| (factor, buffers.shared_factor.clone())));
        let apart = mixture.router_input != Register::Normed;
        if self.alone()
            && !apart
            && let Some(norm) = norm
        {
            let residual = &self.registers[Register::Residual as usize];
            let weight = &self.vectors[norm.index()];
            let of = |(id, to): &(MatrixId, Buffer)| (self.trunk.matrix(id.index()), to.clone());
            let pairs: Vec<_> = first.iter().map(of).collect();
            let pairs: Vec<_> = pairs.iter().map(|(matrix, to)| (*matrix, to)).collect();
            let shapes: Vec<_> = pairs.iter().map(|(matrix, _)| Shape::from(*matrix)).collect();
            if alike(&shapes) {
                let (from, epsilon) = ((residual, weight), self.config.rms_epsilon);
                fused::launch_several(
                    &mut self.residency.device_mut().gpu,
                    &pairs,
                    from,
                    epsilon,
                    Some(&normed),
                )?;
                return self.shared_inputs(mixture, &normed);
            }
        }
        if let Some(norm) = norm {
            let residual = &self.registers[Register::Residual as usize];
            let weight = &self.vectors[norm.index()];
            let shape = (self.tokens, self.config.hidden);
            let buffers = (residual, weight, &normed);
            norm::launch(
                &mut self.residency.device_mut().gpu,
                buffers,
                shape,
                self.config.rms_epsilon,
            )?;
        }
        if apart {
            let input = self.registers[mixture.router_input as usize].clone();
            return Ok(self.products_of(&input, &first)?);
        }
        if self.by_matrices() {
            if let Some(shared) = shared {
                first.push((shared.gate, self.mixture.shared_gate.clone()));
                first.push((shared.up, self.mixture.shared_up.clone()));
            }
            self.tiled(&normed, &first, false)?;
            let Some(shared) = shared else { return Ok(()) };
            let (gate, up) = (self.mixture.shared_gate.clone(), self.mixture.shared_up.clone());
            let count = self.tokens * self.trunk.matrix(shared.gate.index()).rows;
            let gpu = &mut self.residency.device_mut().gpu;
            activate(gpu, mixture.activation, &up, &gate, count)?;
            let rows = self.mixture.shared_rows.clone();
            return Ok(self.tiled(&gate, &[(shared.down, rows)], false)?);
        }
        self.products_of(&normed, &first)?;
        self.shared_inputs(mixture, &normed)
    }

    /// Products of one input.
    pub(super) fn products_of(
        &mut self,
        input: &Buffer,
        products: &[(MatrixId, Buffer)],
    ) -> Result<(), GpuError> {
        if self.by_matrices() {
            return self.tiled(input, products, false);
        }
        for (matrix, to) in products {
            let matrix = self.trunk.matrix(matrix.index());
            let gpu = &mut self.residency.device_mut().gpu;
            product::launch(gpu, matrix, input, to, self.tokens, false)?;
        }
        Ok(())
    }

    /// The shared expert of an answer: of one token its first half alone.
    fn shared_inputs(&mut self, mixture: &Mixture, normed: &Buffer) -> Result<(), EngineError> {
        let Some(shared) = &mixture.shared else { return Ok(()) };
        let [gate, up] = [shared.gate, shared.up].map(|id| self.trunk.matrix(id.index()));
        if self.joins(mixture) {
            return Ok(());
        }
        let (gpu, buffers, tokens) =
            (&mut self.residency.device_mut().gpu, &self.mixture, self.tokens);
        let plain = mixture.activation == Activation::SwiGlu;
        if tokens == 1 && plain && alike(&[gate.into(), up.into()]) && gate.rows == up.rows {
            fused::launch_gated(gpu, [gate, up], normed, &buffers.shared_gate)?;
        } else {
            product::launch(gpu, gate, normed, &buffers.shared_gate, tokens, false)?;
            product::launch(gpu, up, normed, &buffers.shared_up, tokens, false)?;
            let count = tokens * gate.rows;
            let (up, gate) = (&buffers.shared_up, &buffers.shared_gate);
            activate(gpu, mixture.activation, up, gate, count)?;
        }
        if !self.closes(mixture) {
            let (x, y) = (&self.mixture.shared_gate, &self.mixture.shared_rows);
            let down = self.trunk.matrix(shared.down.index());
            product::launch(&mut self.residency.device_mut().gpu, down, x, y, tokens, false)?;
        }
        Ok(())
    }

    /// True where the shared expert's first half is computed beside the choice of the others.
    pub(super) fn joins(&self, mixture: &Mixture) -> bool {
        mixture.shared.as_ref().filter(|_| self.closes(mixture)).is_some_and(|shared| {
            let [gate, up] = [shared.gate, shared.up].map(|id| self.trunk.matrix(id.index()));
            alike(&[gate.into(), up.into()]) && gate.rows == up.rows
        })
    }

    /// True where the shared expert's second half is computed with the sum of its layer.
    fn closes(&self, mixture: &Mixture) -> bool {
        mixture.shared.as_ref().is_some_and(|shared| {
            let down = self.trunk.matrix(shared.down.index());
            self.alone()
                && shared.gate_weight.is_some()
                && self.config.moe.router.score == Score::Softmax
                && self.config.hyper.is_none()
                && mixture.activation == Activation::SwiGlu
                && fused::serves(down.packing, down.columns)
        })
    }

    /// `Residual +=` the sum of the layer's experts.
    pub(super) fn mixture_sum(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
    ) -> Result<(), EngineError> {
        let (closes, k) = (self.closes(mixture), self.options.top_k);
        let (gpu, buffers) = (&mut self.residency.device_mut().gpu, &self.mixture);
        let to = mixture.to.unwrap_or(Register::Residual);
        let hyper = self.config.hyper.is_some();
        let (add, residual) = match hyper {
            true => (false, &self.streams.read),
            false => (mixture.to.is_none(), &self.registers[to as usize]),
        };
        if let Some(factors) = mixture.expert_scales {
            // Here, where a step that missed an expert goes on.
            let pairs = self.tokens * k;
            let first = if self.steps.runs() { layer.index() * pairs } else { 0 };
            let (factors, weights) = (&self.vectors[factors.index()], &buffers.weights);
            elementwise::launch_weigh_experts(gpu, (&buffers.ids, first), factors, weights, pairs)?;
        }
        let rows = combine::Weighed { rows: &buffers.rows, weights: &buffers.weights };
        if let (true, Some(shared)) = (closes, &mixture.shared) {
            let down = self.trunk.matrix(shared.down.index());
            let (x, factor) = (&buffers.shared_gate, &buffers.shared_factor);
            return Ok(fused::launch_close(gpu, down, x, factor, rows, residual, k)?);
        }
        let shared = mixture.shared.as_ref().map(|shared| combine::Shared {
            rows: &buffers.shared_rows,
            factor: shared.gate_weight.map(|_| &buffers.shared_factor),
        });
        let size = combine::Combined { tokens: self.tokens, k, width: self.config.hidden, add };
        combine::launch(gpu, rows, shared, residual, size)?;
        Ok(self.give_streams()?)
    }
}

//! Chunks of a prompt: every expert of a layer once, its tokens together.
//!
//! Records in device memory are used where they are. The others pass through a staging area in two halves: one is
//! copied into, by a stream of its own, while the tensor cores work on the other.

use std::sync::Arc;

use cuda::launch::{self, ExpertActivation, ExpertParts, Groups, PairBuffers, SplitTokens};
use cuda::{Event, Matrix, Span};
use store::cache::{Held, Phase};
use store::{ExpertId, LayerId};

use super::requirements::STAGING_RECORDS;
use super::{Cancel, CudaBackend, Register};
use crate::EngineError;
use crate::model::mixture::Mixture;

/// What the routed experts of a chunk's layer compute from and with.
struct ChunkInputs<'a> {
    /// `[tokens, hidden]`
    normed: Span<f32>,
    /// Tokens times experts per token.
    pairs: usize,
    groups: &'a Groups,
    buffers: &'a PairBuffers,
    /// Split activations, where they serve the layer's experts.
    parts: Option<ExpertParts>,
    /// What the experts compute, where it is not SwiGLU alone.
    activation: Option<ExpertActivation>,
}

impl CudaBackend {
    /// A mixture of many tokens.
    pub(super) fn chunk_mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let (tokens, k, experts) = (self.tokens, self.options.top_k, self.sizes.experts);
        let (pairs, hidden) = (tokens * k, self.sizes.hidden);
        let normed = self.register(Register::Normed);
        let mut routers = self.router_products(mixture);
        if mixture.router_input != Register::Normed {
            let products = std::mem::take(&mut routers);
            self.products(self.register(mixture.router_input), &products, false)?;
        }
        let shared = mixture.shared.as_ref();
        let shared_matrices = shared.map(|s| [s.gate, s.up].map(|id| self.matrix(id)));
        let shapes = self.experts.shapes(layer);
        let experts_form = launch::split_form_of_experts(self.stream.device(), shapes)
            .filter(|_| self.experts.aligned[layer.index()]);
        let first = experts_form.map(|_| shapes.gate());
        let inputs = routers.iter().map(|router| router.0);
        let inputs: Vec<Matrix> =
            inputs.chain(shared_matrices.into_iter().flatten()).chain(first).collect();
        let split = self.split_input(normed, &inputs)?;
        // The shared expert's first products with the router's: few tokens are multiplied with all of them at once.
        let shared_width = tokens * self.sizes.shared;
        let inner_of_shared = [&self.buffers.shared_gate, &self.buffers.shared_up]
            .map(|buffer| buffer.part(0, shared_width));
        let mut jobs = routers;
        jobs.extend(shared_matrices.into_iter().flatten().zip(inner_of_shared));
        launch::tile_products(&self.stream, normed, tokens, &jobs, false, split.as_ref())?;
        self.add_router_biases(layer, mixture)?;
        let replaced = self.replace_chunk(layer)?;
        let buffers = &self.buffers;
        let route = self.routing_of(layer, mixture, replaced, 0, false);
        launch::route(&self.stream, tokens, &route)?;
        let groups = Groups {
            starts: buffers.starts.span(0, experts + 1),
            pair_token: buffers.pair_token.span(0, pairs),
            place: buffers.place.span(0, pairs),
            tiles: buffers.tiles.span(0, 3 * launch::tile_limit(pairs, experts)),
            tile_count: buffers.tile_count.span(0, 1),
        };
        launch::group(&self.stream, route.chosen, tokens, k, &groups)?;
        let mut shared_out = None;
        if let Some(shared) = &mixture.shared {
            let [gate, up] = inner_of_shared;
            let out = buffers.shared_out.part(0, tokens * hidden);
            let product = |matrix, x, out, split: Option<&SplitTokens>| {
                launch::tile_products(&self.stream, x, tokens, &[(matrix, out)], false, split)
            };
            if let Some((_, limit)) = self.clamped().filter(|_| self.clamps_shared()) {
                launch::limit(&self.stream, gate, up, shared_width, limit)?;
            }
            let down = self.matrix(shared.down);
            if let Some(form) = launch::split_form(self.stream.device(), &down) {
                let (inner, shape) =
                    (buffers.split_tokens(1, form, &self.sizes), (tokens, self.sizes.shared));
                launch::split(&self.stream, gate, Some(up), shape, None, &inner)?;
                product(down, gate, out, Some(&inner))?;
            } else {
                launch::swiglu(&self.stream, gate, up, shared_width)?;
                product(down, gate, out, None)?;
            }
            shared_out = Some((out, self.shared_factor()));
        }
        let pair_buffers = PairBuffers {
            gate: buffers.pair_gate.part(0, pairs * self.sizes.inner),
            up: buffers.pair_up.part(0, pairs * self.sizes.inner),
            out: buffers.pair_out.part(0, pairs * hidden),
        };
        let parts = match (experts_form, split) {
            (None, _) => None,
            (Some(form), Some(split)) if split.form == form => Some(split),
            // The routed experts take the other form; what shares the input is done with its own.
            (Some(_), _) => self.split_input(normed, first.as_ref())?,
        };
        let parts = parts.map(|tokens| {
            let inner = buffers.split_tokens(1, tokens.form, &self.sizes);
            ExpertParts { tokens, inner }
        });
        let inputs = ChunkInputs {
            normed,
            pairs,
            groups: &groups,
            buffers: &pair_buffers,
            parts,
            activation: self.activation(mixture),
        };
        let residency = &self.experts.residency;
        if residency.can_move() && !residency.all_in_device() {
            self.stage_experts(layer, &inputs, cancel)?;
        } else {
            let shapes = self.experts.shapes(layer);
            let row = self.table_row(layer);
            launch::experts_tiles(
                &self.stream,
                normed,
                pairs,
                &groups,
                row,
                shapes,
                &pair_buffers,
                inputs.parts.as_ref(),
                inputs.activation.as_ref(),
            )?;
            // Which experts these were stays on the device: all of them, at the most.
            self.experts.residency.note_prompt_hits(pairs.min(experts));
        }
        let (weights, out) = (route.weights, self.mixture_output(mixture)?);
        let routed = pair_buffers.out;
        if let Some([_, _, bias]) = inputs.activation.and_then(|activation| activation.biases) {
            launch::add_pair_bias(&self.stream, routed, bias, &groups)?;
        }
        launch::combine(
            &self.stream,
            tokens,
            hidden,
            k,
            routed,
            &groups,
            weights,
            shared_out,
            out,
        )?;
        self.give_output(mixture, out)?;
        self.experts.residency.note_prompt_layer();
        if self.sizes.is_last(layer) {
            self.settle()?;
            self.check_status(Ok(()))?;
        }
        Ok(())
    }

    /// The generator's logits for the chunk in device memory, where routing is replaced.
    fn replace_chunk(&mut self, layer: LayerId) -> Result<Option<Span<f32>>, EngineError> {
        if !self.routing.replaces() {
            return Ok(None);
        }
        self.stream.wait()?;
        let count = self.tokens * self.sizes.experts;
        let mut logits = vec![0.0; count];
        self.routing.override_logits(layer, self.sizes.experts, &mut logits);
        self.buffers.pinned.replaced.hand_over(0, logits);
        // The next step's were prepared in the same place.
        self.steps.forget_prepared();
        let to = self.buffers.replaced.part(0, count);
        self.stream.copy(self.buffers.pinned.replaced.span(0, count), to)?;
        Ok(Some(to))
    }

    /// The routed experts of a layer when some of them are outside device memory: first those inside, then the
    /// others in waves of half the staging area, reads of what is on disk running ahead.
    fn stage_experts(
        &mut self,
        layer: LayerId,
        inputs: &ChunkInputs<'_>,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let pairs = inputs.pairs;
        let uses = self.buffers.pinned.uses.span(0, pairs);
        self.stream.copy(self.buffers.uses.span(0, pairs), uses)?;
        self.stream.wait()?;
        self.check_status(Ok(()))?;
        self.experts.residency.begin_prompt_layer()?;
        let mut wanted = vec![false; self.sizes.experts];
        for expert in self.buffers.pinned.uses.collect(0..pairs) {
            wanted[expert as usize] = true;
        }
        let wanted: Vec<ExpertId> =
            (0..wanted.len()).filter(|&e| wanted[e]).map(|e| ExpertId(e as u16)).collect();
        let (wave, outside) = self.experts.residency.split(layer, &wanted);
        self.experts.residency.note_prompt_hits(wave.len());
        if !wave.is_empty() {
            self.launch_wave(layer, &wave, inputs)?;
        }
        let store = Arc::clone(self.experts.residency.store());
        let mut visit = store.visit(layer, &outside, Phase::Prefill)?;
        self.read_ahead(layer, pairs);
        let slots = self.experts.residency.device();
        let half = STAGING_RECORDS / 2;
        let mut used: [Option<Event>; 2] = [None, None];
        let order: Vec<usize> = visit.order().to_vec();
        for (turn, members) in order.chunks(half).enumerate() {
            let side = turn % 2;
            if let Some(event) = used[side].take() {
                // The half is free once the products that read it are done.
                slots.copy_stream.wait_for(&event)?;
            }
            let mut wave = Vec::with_capacity(half);
            let mut held: Vec<Held> = Vec::with_capacity(half);
            for (place, &member) in members.iter().enumerate() {
                if let Err(error) = visit.wait_while(member, &|| !cancel.is_cancelled()) {
                    // The records on their way to the device stay in their slots until they are there.
                    slots.copy_stream.wait()?;
                    return Err(error.into());
                }
                let expert = outside[member];
                let record = store.hold(layer, expert).expect("the visit keeps the record");
                let from = slots.source(&record);
                let offset = (side * half + place) * self.experts.slot_bytes;
                let to = self.experts.staging.span::<u8>(offset, from.len());
                slots.copy_stream.fetch(from, to)?;
                wave.push((expert, to.address()));
                held.push(record);
            }
            let copied = Event::new(self.stream.device())?;
            copied.record(&slots.copy_stream)?;
            self.stream.wait_for(&copied)?;
            self.launch_wave(layer, &wave, inputs)?;
            let event = Event::new(self.stream.device())?;
            event.record(&self.stream)?;
            used[side] = Some(event);
            // The records were copied: their slots may serve others.
            slots.copy_stream.wait()?;
            drop(held);
            members.iter().for_each(|&member| visit.release(member));
        }
        Ok(())
    }

    /// Products of the experts of `wave`, whose records are at the given addresses.
    fn launch_wave(
        &self,
        layer: LayerId,
        wave: &[(ExpertId, u64)],
        inputs: &ChunkInputs<'_>,
    ) -> Result<(), EngineError> {
        let experts = self.sizes.experts;
        let index = self.wave_turn.get();
        self.wave_turn.set((index + 1) % super::WAVES);
        if index == 0 {
            // All address lists are in use: the oldest must have been read.
            self.stream.wait()?;
        }
        let mut addresses = vec![0; experts];
        for (expert, address) in wave {
            addresses[expert.index()] = *address;
        }
        self.buffers.pinned.wave.hand_over(index * experts, addresses);
        let list = self.buffers.wave.span(0, experts);
        self.stream.copy(self.buffers.pinned.wave.span(index * experts, experts), list)?;
        let shapes = self.experts.shapes(layer);
        let ChunkInputs { normed, pairs, groups, buffers, parts, activation } = inputs;
        launch::experts_tiles(
            &self.stream,
            *normed,
            *pairs,
            groups,
            list,
            shapes,
            buffers,
            parts.as_ref(),
            activation.as_ref(),
        )?;
        Ok(())
    }
}

//! Chunks of a prompt: every expert of a layer once, its tokens together.
//!
//! Records in device memory are used where they are. The others pass through a staging area in two halves: one is
//! copied into, by a stream of its own, while the tensor cores work on the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda::launch::{self, Groups, PairBuffers};
use cuda::{Event, Span};
use store::cache::{Held, Phase};
use store::{ExpertId, LayerId};

use super::requirements::STAGING_RECORDS;
use super::{Cancel, CudaBackend, Register};
use crate::EngineError;
use crate::model::mixture::Mixture;

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
        for (matrix, out) in self.router_products(mixture) {
            launch::tile_linear(&self.stream, normed, tokens, matrix, out, false)?;
        }
        let replaced = self.replace_chunk(layer)?;
        let buffers = &self.buffers;
        let route = self.routing_of(layer, replaced, 0, false);
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
            let width = tokens * self.sizes.shared;
            let (gate, up) = (buffers.shared_gate.part(0, width), buffers.shared_up.part(0, width));
            let out = buffers.shared_out.part(0, tokens * hidden);
            let product = |matrix, x, out| {
                launch::tile_linear(&self.stream, x, tokens, self.matrix(matrix), out, false)
            };
            product(shared.gate, normed, gate)?;
            product(shared.up, normed, up)?;
            launch::swiglu(&self.stream, gate, up, width)?;
            product(shared.down, gate, out)?;
            shared_out = Some((out, self.shared_factor()));
        }
        let pair_buffers = PairBuffers {
            gate: buffers.pair_gate.part(0, pairs * self.sizes.inner),
            up: buffers.pair_up.part(0, pairs * self.sizes.inner),
            out: buffers.pair_out.part(0, pairs * hidden),
        };
        if self.experts.can_move {
            self.stage_experts(layer, normed, pairs, &groups, &pair_buffers, cancel)?;
        } else {
            let shapes = &self.experts.shapes[layer.index()];
            let row = self.table_row(layer);
            launch::experts_tiles(
                &self.stream,
                normed,
                pairs,
                &groups,
                row,
                shapes,
                &pair_buffers,
            )?;
            // Which experts these were stays on the device: all of them, at the most.
            self.experts.prefill.requests += pairs.min(experts) as u64;
            self.experts.prefill.hits += pairs.min(experts) as u64;
        }
        let (weights, out) = (route.weights, self.register(Register::Residual));
        let routed = pair_buffers.out;
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
        self.experts.prefill.visits += 1;
        if layer.index() + 1 == self.sizes.layers {
            self.settle()?;
            self.check_router()?;
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
        for (word, value) in self.buffers.pinned.replaced.words().iter().zip(&logits) {
            word.store(value.to_bits(), Ordering::Release);
        }
        let to = self.buffers.replaced.part(0, count);
        self.stream.copy(self.buffers.pinned.replaced.span(0, count), to)?;
        Ok(Some(to))
    }

    /// The routed experts of a layer when some of them are outside device memory: first those inside, then the
    /// others in waves of half the staging area, reads of what is on disk running ahead.
    fn stage_experts(
        &mut self,
        layer: LayerId,
        normed: Span<f32>,
        pairs: usize,
        groups: &Groups,
        buffers: &PairBuffers,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let uses = self.buffers.pinned.uses.span::<u32>(0, pairs);
        self.stream.copy(self.buffers.uses.span(0, pairs), uses)?;
        self.stream.wait()?;
        self.check_router()?;
        if self.experts.can_miss && !std::mem::replace(&mut self.steps.unnamed, true) {
            // What steps hold would leave the prompt few slots to read into.
            self.experts.release_host_copies()?;
        }
        let mut wanted = vec![false; self.sizes.experts];
        for word in &self.buffers.pinned.uses.words()[..pairs] {
            wanted[word.load(Ordering::Acquire) as usize] = true;
        }
        let wanted: Vec<ExpertId> =
            (0..wanted.len()).filter(|&e| wanted[e]).map(|e| ExpertId(e as u16)).collect();
        let placement = &self.experts.placement;
        let inside = |expert: &ExpertId| placement.in_device(placement.key(layer, *expert));
        let (resident, outside): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(inside);
        self.experts.prefill.requests += resident.len() as u64;
        self.experts.prefill.hits += resident.len() as u64;
        let words = placement.words();
        let wave: Vec<(ExpertId, u64)> =
            resident.iter().map(|e| (*e, words[placement.key(layer, *e) as usize])).collect();
        if !wave.is_empty() {
            self.launch_wave(layer, &wave, normed, pairs, groups, buffers)?;
        }
        let store = Arc::clone(&self.experts.store);
        let mut visit = store.visit(layer, &outside, Phase::Prefill)?;
        self.read_ahead(layer, pairs);
        let half = STAGING_RECORDS / 2;
        let mut used: [Option<Event>; 2] = [None, None];
        let order: Vec<usize> = visit.order().to_vec();
        for (turn, members) in order.chunks(half).enumerate() {
            let side = turn % 2;
            if let Some(event) = used[side].take() {
                // The half is free once the products that read it are done.
                self.experts.copy_stream.wait_for(&event)?;
            }
            let mut wave = Vec::with_capacity(half);
            let mut held: Vec<Held> = Vec::with_capacity(half);
            for (place, &member) in members.iter().enumerate() {
                if let Err(error) = visit.wait_while(member, &|| !cancel.is_cancelled()) {
                    // The records on their way to the device stay in their slots until they are there.
                    self.experts.copy_stream.wait()?;
                    return Err(error.into());
                }
                let expert = outside[member];
                let record = store.hold(layer, expert).expect("the visit keeps the record");
                let from = self.experts.host_source(&record);
                let offset = (side * half + place) * self.experts.slot_bytes;
                let to = self.experts.staging.span::<u8>(offset, from.len());
                self.experts.copy_stream.fetch(from, to)?;
                wave.push((expert, to.address()));
                held.push(record);
            }
            let copied = Event::new(self.stream.device())?;
            copied.record(&self.experts.copy_stream)?;
            self.stream.wait_for(&copied)?;
            self.launch_wave(layer, &wave, normed, pairs, groups, buffers)?;
            let event = Event::new(self.stream.device())?;
            event.record(&self.stream)?;
            used[side] = Some(event);
            // The records were copied: their slots may serve others.
            self.experts.copy_stream.wait()?;
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
        normed: Span<f32>,
        pairs: usize,
        groups: &Groups,
        buffers: &PairBuffers,
    ) -> Result<(), EngineError> {
        let experts = self.sizes.experts;
        let index = self.wave_turn.get();
        self.wave_turn.set((index + 1) % super::WAVES);
        if index == 0 {
            // All address lists are in use: the oldest must have been read.
            self.stream.wait()?;
        }
        let words = &self.buffers.pinned.wave.long_words()[index * experts..(index + 1) * experts];
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (expert, address) in wave {
            words[expert.index()].store(*address, Ordering::Release);
        }
        let list = self.buffers.wave.span(0, experts);
        self.stream.copy(self.buffers.pinned.wave.span(index * experts * 8, experts), list)?;
        let shapes = &self.experts.shapes[layer.index()];
        launch::experts_tiles(&self.stream, normed, pairs, groups, list, shapes, buffers)?;
        Ok(())
    }

    /// Asks for the next layer's records when this chunk will need nearly all of them.
    fn read_ahead(&self, layer: LayerId, pairs: usize) {
        let next = LayerId(layer.0 + 1);
        if !self.experts.can_miss
            || next.index() >= self.sizes.layers
            || pairs < 3 * self.sizes.experts
        {
            return;
        }
        let placement = &self.experts.placement;
        let outside = |expert: &ExpertId| !placement.in_device(placement.key(next, *expert));
        let all = (0..self.sizes.experts as u16).map(ExpertId);
        self.experts.store.read_ahead(next, &all.filter(outside).collect::<Vec<_>>());
    }
}

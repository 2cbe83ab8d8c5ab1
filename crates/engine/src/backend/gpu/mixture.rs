//! A layer's mixture on a portable GPU, step by step: its inputs, the choice, the chosen experts, their sum.
//!
//! Which of four ways the experts run follows from the batch and from where records can be ([`Path`]).

use std::sync::Arc;

use gpu::op::router_scored::{self, Moves, Scored};
use gpu::op::{chosen, experts, fused, router, tile};
use store::cache::{Phase, QueueCounters, StoreCounters};
use store::{ExpertId, LayerId};

use super::super::{Cancel, Register};
use super::GpuBackend;
use super::experts::{Assignments, Routed};
use super::slots::GpuSlots;
use super::step::{CONTROL_BYTES, CONTROL_WORDS, STEP_TOKENS, flag_of, words};
use crate::EngineError;
use crate::model::activation::Activation;
use crate::model::mixture::{ExpertBiases, Mixture};
use crate::model::router::{Router, Score};
use crate::residency::Residency;
use crate::weights::VectorId;

/// How a layer's routed experts run: decided by what the batch is and where the layer's records can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// One token, every record within reach: the choice with the first halves of the chosen experts, then the second
    /// halves with the layer's sum.
    Chosen,
    /// Few tokens: each pair of a token and an expert by itself, as the device found it.
    Pairs,
    /// Many tokens, every record in a slot: pairs are sorted by expert on the device.
    AllInSlots,
    /// Many tokens, or records that can be missing: the choice is read back.
    Grouped,
}

/// How scores become a choice, where experts are chosen by scores.
fn scored(router: &Router) -> Option<Scored> {
    let normalise = router.normalise;
    match router.score {
        Score::Sigmoid { groups, scale } => Some(Scored {
            score: router_scored::Score::Sigmoid,
            groups: groups.count,
            kept: groups.kept,
            normalise,
            least: 1e-20,
            scale,
        }),
        Score::BalancedSoftmax { least_sum } => Some(Scored {
            score: router_scored::Score::Softmax,
            groups: 1,
            kept: 1,
            normalise: true,
            least: least_sum,
            scale: 1.0,
        }),
        Score::SqrtSoftplus { scale } => Some(Scored {
            score: router_scored::Score::SqrtSoftplus,
            groups: 1,
            kept: 1,
            normalise,
            least: 1e-20,
            scale,
        }),
        Score::Softmax => None,
    }
}

impl GpuBackend {
    /// The path of the batch in progress through a mixture, but for [`Path::Chosen`], which also asks for its kernels
    /// ([`GpuBackend::chooses_at_once`]).
    fn path(&self) -> Path {
        let (few, holds_all) = (self.tokens <= STEP_TOKENS, !self.residency.can_move());
        match self.steps.runs() {
            true => Path::Pairs,
            false if holds_all && few && !self.by_matrices() => Path::Pairs,
            false if holds_all => Path::AllInSlots,
            false => Path::Grouped,
        }
    }

    /// True where nothing happens between one token's choice and its experts: none can be missing, and neither router
    /// nor experts have biases, which have kernels of their own.
    fn chooses_at_once(&self, mixture: &Mixture) -> bool {
        let reached = self.steps.runs() && self.residency.device().finds_all();
        let softmax = self.config.moe.router.score == Score::Softmax;
        let plain = softmax
            && mixture.router_bias.is_none()
            && mixture.biases.is_none()
            && mixture.activation == Activation::SwiGlu
            && mixture.expert_scales.is_none()
            && mixture.router_input == Register::Normed
            && mixture.to.is_none()
            && self.config.hyper.is_none();
        let whole = mixture.shared.is_none() || self.joins(mixture);
        (!self.residency.can_move() || reached) && self.alone() && plain && whole
    }

    /// `Residual += mixture(Normed)`, with the norm before where it is given.
    pub(super) fn run_mixture(
        &mut self,
        layer: LayerId,
        norm: Option<VectorId>,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.mixture_inputs(norm, mixture)?;
        if let Some(ExpertBiases { gate, down, .. }) = &mixture.biases {
            // The catalog has joined those of gate and up.
            let vector = |id: &VectorId| self.vectors[id.index()].clone();
            self.mixture.biases[layer.index()].get_or_insert_with(|| [gate, down].map(vector));
        }
        self.residency.device_mut().write_table()?;
        let path = self.choose(layer, mixture)?;
        let step = self.steps.runs();
        if step {
            self.step_routed(layer)?;
        }
        match path {
            Path::Chosen => {}
            Path::Pairs => self.run_pairs(layer)?,
            Path::AllInSlots => self.run_all_in_slots(layer)?,
            Path::Grouped => self.run_grouped(layer, cancel)?,
        }
        if !step && matches!(path, Path::Chosen | Path::Pairs) {
            self.note_ungrouped(self.phase, self.tokens * self.options.top_k);
        }
        self.steps.note_combine(&self.residency.device().gpu);
        match path {
            Path::Chosen => Ok(()),
            _ => self.mixture_sum(layer, mixture),
        }
    }

    /// The choice of a layer, from its router's logits or from those that replace them, and what runs with it.
    fn choose(&mut self, layer: LayerId, mixture: &Mixture) -> Result<Path, EngineError> {
        let (path, at_once) = (self.path(), self.chooses_at_once(mixture));
        let joined = mixture.shared.as_ref().filter(|_| self.joins(mixture));
        let (tokens, k, step) = (self.tokens, self.options.top_k, self.steps.runs());
        let moe = &self.config.moe;
        let record = self.residency.device().layout(layer).record_shape();
        let (slots, buffers) = (self.residency.device_mut(), &self.mixture);
        let bias = mixture.router_bias;
        let (logits, added) = match &mut self.replaced {
            None => (buffers.router_logits.all(), bias.map(|bias| &self.vectors[bias.index()])),
            Some(it) => (it.logits(&mut slots.gpu, (layer, tokens), &buffers.router_logits)?, None),
        };
        let gpu = &mut slots.gpu;
        let normed = &self.registers[Register::Normed as usize];
        let input = &self.registers[mixture.router_input as usize];
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.note_router(layer, (mixture.router, bias));
            if step {
                let held = (&self.trunk, &self.vectors[..]);
                prefetch.guess(gpu, layer, input, held, moe.router.score)?;
            }
        }
        let choice = router::Choice {
            ids: &buffers.ids,
            first_id: if step { layer.index() * tokens * k } else { 0 },
            weights: &buffers.weights,
            tiles: &buffers.own_tiles,
            table_start: layer.index() * moe.experts,
            flag: if path == Path::Pairs { flag_of(layer) } else { 0 },
        };
        let normalise = moe.router.normalise;
        let work = chosen::Work {
            record: &record,
            slabs: &slots.slabs,
            choice,
            shape: (moe.experts, k),
            shared: joined
                .map(|it| [it.gate, it.up, it.down].map(|id| self.trunk.matrix(id.index()))),
            inner: &buffers.inner,
        };
        if at_once && work.is_served(gpu) {
            chosen::launch_gate_up(gpu, work, (logits, normalise), normed)?;
            let residual = &self.registers[Register::Residual as usize];
            chosen::launch_down(gpu, work, &buffers.shared_factor, residual)?;
            return Ok(Path::Chosen);
        }
        match joined {
            Some(shared) => {
                let matrices = [shared.gate, shared.up].map(|id| self.trunk.matrix(id.index()));
                let (slabs, experts) = (&slots.slabs, moe.experts);
                let of = fused::Router { logits, slabs, choice, experts, k, normalise };
                fused::launch_choose(gpu, matrices, normed, &buffers.shared_gate, of)?;
            }
            None if let Some(of) = scored(&moe.router) => {
                let shape = router::Chosen { tokens, experts: moe.experts, k };
                let moves = match mixture.table {
                    Some(table) => Moves::Given(self.given.of(table, &self.token_ids)),
                    None => added.into(),
                };
                let from = (logits, moves);
                router_scored::launch(gpu, of, from, &slots.slabs, choice, shape)?;
            }
            None => {
                let shape = router::Chosen { tokens, experts: moe.experts, k };
                router::launch(gpu, logits, added, &slots.slabs, choice, shape, normalise)?;
            }
        }
        Ok(path)
    }

    /// Every pair of a token and an expert by itself.
    fn run_pairs(&mut self, layer: LayerId) -> Result<(), EngineError> {
        let (residency, routed) = self.routed();
        let work = experts::Work {
            tiles: &routed.buffers.own_tiles,
            first: 0,
            count: routed.tokens * routed.top_k,
            pairs: 1,
            order: &routed.buffers.own_order,
            k: routed.top_k,
            table_start: layer.index() * routed.experts,
            flag: flag_of(layer),
            activation: routed.buffers.activation(layer),
        };
        routed.run_tiles(residency.device_mut(), layer, work)
    }

    /// Many tokens, whose records all have slots.
    fn run_all_in_slots(&mut self, layer: LayerId) -> Result<(), EngineError> {
        let (residency, routed) = self.routed();
        let pairs = routed.tokens * routed.top_k;
        routed.run_all(residency.device_mut(), layer)?;
        residency.note_prompt_hits(pairs);
        residency.note_prompt_layer();
        if layer.index() + 1 == self.options.layers.end {
            // No layer before has looked.
            let gpu = &mut self.residency.device_mut().gpu;
            let control = gpu.control().clone();
            let found = words(&gpu.read(&[(&control, 0, CONTROL_BYTES)])?);
            self.check_finite(found[1])?;
        }
        Ok(())
    }

    /// Counts a layer of few tokens whose records all have slots.
    fn note_ungrouped(&mut self, phase: Phase, pairs: usize) {
        match phase {
            Phase::Decode | Phase::Draft => self.residency.note_resident(1, pairs),
            Phase::Prefill => {
                self.residency.note_prompt_hits(pairs);
                self.residency.note_prompt_layer();
            }
        }
    }

    /// The parts that launches of experts and the copies of their records need.
    pub(super) fn routed(&mut self) -> (&mut Residency<GpuSlots>, Routed<'_>) {
        let whole = tile::serves_experts(self.config.hidden, self.config.moe.intermediate);
        let routed = Routed {
            buffers: &self.mixture,
            normed: &self.registers[Register::Normed as usize],
            halves: self.halves.as_ref().filter(|_| whole && self.phase == Phase::Prefill),
            tokens: self.tokens,
            top_k: self.options.top_k,
            experts: self.config.moe.experts,
        };
        (&mut self.residency, routed)
    }

    /// Reads the choice back and runs the experts in groups: those that have slots, then the others as they land.
    fn run_grouped(&mut self, layer: LayerId, cancel: &dyn Cancel) -> Result<(), EngineError> {
        let bytes = 4 * (self.tokens * self.options.top_k) as u64;
        let gpu = &mut self.residency.device_mut().gpu;
        let control = gpu.control().clone();
        let places = [(&control, 0, CONTROL_BYTES), (&self.mixture.ids, 0, bytes)];
        let words = words(&gpu.read(&places)?);
        let (control, chosen) = words.split_at(CONTROL_WORDS);
        self.check_finite(control[1])?;
        let (pairs, layers) = (chosen.len(), self.options.layers.end);
        let (phase, experts) = (self.phase, self.config.moe.experts);
        let (residency, routed) = self.routed();
        residency.begin_prompt_layer()?;
        residency.tell_words(GpuSlots::follow);
        let work = Assignments::new(chosen, experts);
        let slots = residency.device_mut();
        let (mut there, mut missing) = work.parted(slots, layer);
        let in_slot = |slots: &GpuSlots, member: usize| {
            slots.in_slot(slots.key(layer, ExpertId(work.experts[member] as u16)))
        };
        if slots.finds_all() && slots.has_scratch() {
            // Kernels of many tokens would read the record several times, or slowly.
            let tiles = |member| routed.halves.is_some() || work.has_tiles(member);
            (missing, there) = there.into_iter().partition(|&it| !in_slot(slots, it) && tiles(it));
        }
        slots.gpu.write_words(&routed.buffers.order, 0, &work.order)?;
        slots.note_used(layer, chosen);
        routed.run_members(slots, layer, &work, &there)?;
        // What runs already is queued before anything that is written from here on.
        slots.gpu.submit()?;
        let in_slots = there.iter().filter(|&&it| in_slot(slots, it)).count();
        residency.note_prompt_hits(in_slots);
        residency.note_prompt_reads(there.len() - in_slots);
        residency.note_prompt_layer();
        if missing.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = missing.iter().map(|&it| ExpertId(work.experts[it] as u16)).collect();
        let store = Arc::clone(residency.store());
        let mut visit = store.visit(layer, &ids, phase)?;
        let next = LayerId(layer.0 + 1);
        if residency.can_miss() && next.index() < layers && pairs >= 3 * experts {
            // A chunk of so many tokens needs nearly all of the next layer's records.
            residency.read_ahead(next);
        }
        let slots = residency.device_mut();
        slots.begin_group();
        let wanted = || !cancel.is_cancelled();
        let mut group = Vec::new();
        for place in visit.order().to_vec() {
            visit.wait_while(place, &wanted)?;
            let held = store.hold(layer, ids[place]).expect("the visit keeps the record");
            let key = slots.key(layer, ids[place]);
            if !slots.put(key, &held)? {
                routed.run_members(slots, layer, &work, &group)?;
                group.clear();
                slots.begin_group();
                slots.put(key, &held)?;
            }
            drop(held);
            visit.release(place);
            group.push(missing[place]);
        }
        routed.run_members(slots, layer, &work, &group)
    }

    /// What the store counted, with the uses that never reached it and what was handed over.
    pub(super) fn all_counters(&self) -> StoreCounters {
        let mut counters = self.residency.counters();
        if let Some(prefetch) = &self.prefetch {
            prefetch.count(&mut counters.device.prefetched);
        }
        let slots = self.residency.device();
        counters.device.copied = slots.written();
        counters.device.slots = slots.slabs.slots() as u64;
        let gpu::Counts { dispatches, ahead, submissions, waits, waited } = slots.gpu.counts();
        let waited_us = waited.as_micros() as u64;
        counters.device.queue = QueueCounters { dispatches, ahead, submissions, waits, waited_us };
        counters
    }
}

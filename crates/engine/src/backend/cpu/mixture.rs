//! A mixture layer on the CPU: route, fetch, compute what is there while the rest is read, sum in order.
//!
//! All experts of the batch are looked up at once ([`store::cache::ExpertStore::visit`]), so that every
//! missing record is being read before any arithmetic starts. The shared expert and the experts already
//! in memory run first, together (`shared.rs`); each further expert runs when its record has landed.
//! Outputs are kept apart and added by ascending expert id, so the order of arrival cannot change a bit.
//! When a batch has more (token, expert) pairs than the scratch holds, experts are taken in ascending order
//! in groups, each group added before the next: the same sums in the same order.

mod between;

use std::ops::Range;
use std::time::Instant;

use kernels::format::{Encoding, Matrix};
use kernels::{Activations, MatmulJob, Tokens};
use store::cache::{ExpertBytes, Phase, Visit};
use store::format::{Projection, ProjectionShape};
use store::{ExpertId, LayerId};

use super::super::{Cancel, Register};
use super::shared::SharedScratch;
use super::{CpuBackend, CpuOptions};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::mixture::Mixture;

/// Packings that one input is prepared in at the most: three widths of weights, or two and one more group.
pub(super) const PACKINGS: usize = 3;

/// Buffers of the mixture; `rows` is the number of (token, expert) pairs held at once.
pub(super) struct MixtureScratch {
    rows: usize,
    router_logits: Vec<f32>,
    chosen: Vec<u16>,
    factors: Vec<f32>,
    pub(super) assignments: Assignments,
    /// `[rows, intermediate]`
    gate: Vec<f32>,
    /// `[rows, intermediate]`
    up: Vec<f32>,
    /// `[rows, intermediate]`
    activated: Vec<f32>,
    inner: Activations,
    /// One pair's gate and up, `2 * intermediate`.
    both: Vec<f32>,
    /// `[rows, hidden]`
    out: Vec<f32>,
    /// Which members of the visit are done.
    done: Vec<bool>,
    /// `0, 1, 2, ...`: the rows of a group as token indices.
    identity: Vec<u32>,
    pub(super) shared: SharedScratch,
    /// Sum over the experts, `[tokens, hidden]`.
    sum: Vec<f32>,
}

/// Which tokens go to which experts, experts ascending. An expert has a token once at most, so never more pairs than
/// the batch has tokens, which is what a group of experts has room for.
#[derive(Default)]
pub(super) struct Assignments {
    /// Distinct experts, ascending.
    pub(super) experts: Vec<ExpertId>,
    /// Expert `i` has the pairs `starts[i]..starts[i + 1]`.
    pub(super) starts: Vec<usize>,
    /// Token of each pair, ascending within an expert.
    tokens: Vec<u32>,
    /// Router weight of each pair.
    pub(super) weights: Vec<f32>,
    /// Pairs per expert, then the next free place of each: scratch of the counting sort.
    cursor: Vec<usize>,
}

impl MixtureScratch {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Self {
        let (tokens, moe) = (options.batch_tokens, &config.moe);
        let pairs = tokens * options.top_k;
        let rows = Self::rows(options);
        Self {
            rows,
            router_logits: vec![0.0; tokens * moe.experts],
            chosen: vec![0; pairs],
            factors: vec![0.0; pairs],
            assignments: Assignments {
                experts: Vec::with_capacity(moe.experts),
                starts: Vec::with_capacity(moe.experts + 1),
                tokens: vec![0; pairs],
                weights: vec![0.0; pairs],
                cursor: vec![0; moe.experts],
            },
            gate: vec![0.0; rows * moe.intermediate],
            up: vec![0.0; rows * moe.intermediate],
            activated: vec![0.0; rows * moe.intermediate],
            inner: Activations::with_capacity(rows, moe.intermediate),
            both: vec![0.0; 2 * moe.intermediate],
            out: vec![0.0; rows * config.hidden],
            done: Vec::with_capacity(moe.experts),
            identity: (0..rows.max(tokens) as u32).collect(),
            shared: SharedScratch::new(config, options),
            sum: vec![0.0; tokens * config.hidden],
        }
    }

    /// Fills what a layer computes with NaN: a layer that reads what it has not written shows it.
    pub(super) fn spoil(&mut self) {
        let Self { router_logits, factors, gate, up, activated, both, out, sum, .. } = self;
        for buffer in [router_logits, factors, gate, up, activated, both, out, sum] {
            buffer.fill(f32::NAN);
        }
    }

    /// Bytes that [`MixtureScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let (tokens, moe, rows) = (options.batch_tokens, &config.moe, Self::rows(options));
        let shared = moe.shared_intermediate.unwrap_or(0);
        let shared_tokens = if shared == 0 { 0 } else { tokens };
        let floats = tokens * (moe.experts + config.hidden)
            + rows * (3 * moe.intermediate + config.hidden + 1)
            + 2 * moe.intermediate
            + shared_tokens * (1 + 3 * shared + config.hidden);
        // Chosen ids and factors, tokens and weights of the sorted pairs.
        let pairs = tokens * options.top_k * (2 + 4 + 4 + 4);
        floats * size_of::<f32>()
            + pairs
            + Activations::bytes_bound(rows, moe.intermediate, PACKINGS)
            + Activations::bytes_bound(shared_tokens, shared, PACKINGS)
    }

    /// Pairs held at once: one expert may get every token of the batch, and a few sequences decoded
    /// together should run whichever of their experts is there.
    fn rows(options: &CpuOptions) -> usize {
        options.batch_tokens.max(16 * options.top_k)
    }
}

impl Assignments {
    /// Sorts `chosen` (`[tokens, k]`, with `factors`) by expert; an error is the number of a token that has one twice.
    fn sort(&mut self, chosen: &[u16], factors: &[f32], k: usize) -> Result<(), usize> {
        self.cursor.fill(0);
        for &expert in chosen {
            self.cursor[usize::from(expert)] += 1;
        }
        self.experts.clear();
        self.starts.clear();
        let mut next = 0;
        for (expert, cursor) in self.cursor.iter_mut().enumerate() {
            let count = std::mem::replace(cursor, next);
            if count > 0 {
                self.experts.push(ExpertId(expert as u16));
                self.starts.push(next);
                next += count;
            }
        }
        self.starts.push(next);
        for (pair, (&expert, &factor)) in chosen.iter().zip(factors).enumerate() {
            let (token, place) = (pair / k, &mut self.cursor[usize::from(expert)]);
            if chosen[token * k..pair].contains(&expert) {
                return Err(token);
            }
            self.tokens[*place] = token as u32;
            self.weights[*place] = factor;
            *place += 1;
        }
        Ok(())
    }

    /// The experts from `first` on whose pairs fit `rows` together, that one at least, as long as `wanted` has them.
    fn group(&self, first: usize, rows: usize, wanted: impl Fn(usize) -> bool) -> Range<usize> {
        let base = self.starts[first];
        let fits = |&next: &usize| self.starts[next + 1] - base <= rows && wanted(next);
        let more = (first + 1..self.experts.len()).take_while(fits).count();
        first..first + 1 + more
    }

    fn pairs(&self, index: usize) -> Range<usize> {
        self.starts[index]..self.starts[index + 1]
    }
}

/// A projection of an expert as a matrix.
fn matrix<'a>(shape: &ProjectionShape, bytes: &ExpertBytes<'a>, which: Projection) -> Matrix<'a> {
    let (weight, scales, biases) = (bytes.weight(which), bytes.scales(which), bytes.biases(which));
    Matrix::new(shape.encoding, shape.rows, shape.columns, weight, scales, biases)
        .expect("the store checked every record against its shapes")
}

/// Experts that are computed together.
#[derive(Clone, Copy)]
struct Group<'a> {
    /// Ascending indices into the visit.
    experts: &'a [usize],
    /// The pair whose row is the first of the buffers.
    base: usize,
}

impl CpuBackend {
    pub(super) fn run_mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let tokens = self.tokens.len();
        let shapes = self.expert_shapes[layer.index()].expect("a mixture has experts");
        let apart = mixture.router_input != Register::Normed;
        self.prepare_router(layer, mixture, (!apart).then_some(&shapes));
        let (phase, begun) = (self.phase(layer), Instant::now());
        self.route(layer, mixture)?;
        match phase {
            Phase::Draft => self.leave_out_absent(layer),
            _ => self.routing_time[usize::from(phase == Phase::Decode)] += begun.elapsed(),
        }
        if apart {
            let uses = [Projection::Gate, Projection::Up].map(|p| shapes[p as usize].encoding);
            let normed = self.registers.get(Register::Normed);
            self.compute.prepare(normed, self.config.hidden, &uses, &mut self.prepared);
        }
        let experts = self.experts.clone();
        let mut visit = experts.visit(layer, &self.scratch.assignments.experts, phase)?;
        self.read_ahead(layer, phase);
        let few = tokens * self.options.top_k <= self.scratch.rows;
        if !few || visit.is_empty() {
            self.run_shared(mixture);
        }
        let hidden = self.config.hidden;
        self.compute.each_row(&mut self.scratch.sum[..tokens * hidden], hidden, |_, row| {
            row.fill(0.0);
        });
        let done = if few {
            self.run_as_they_land(&mut visit, mixture, &shapes, cancel)
        } else {
            self.run_in_order(&mut visit, mixture, &shapes, cancel)
        };
        drop(visit);
        if matches!(done, Err(EngineError::Cancelled)) {
            self.forget_ahead(LayerId(layer.0 + 1));
        }
        done?;
        let sum = &mut self.scratch.sum[..tokens * hidden];
        if mixture.shared.is_some() {
            let shared = &self.scratch.shared;
            let (out, factors) = (&shared.out[..tokens * hidden], &shared.factor[..tokens]);
            self.compute.add_scaled_rows(sum, out, factors);
        }
        if let Some(to) = mixture.to {
            self.registers.get_mut(to).copy_from_slice(sum);
        } else if self.config.hyper.is_some() {
            self.registers.get_mut(Register::Normed).copy_from_slice(sum);
            self.run_close_streams(Register::Normed);
        } else if self.config.gated.is_some() {
            self.registers.get_mut(Register::Normed).copy_from_slice(sum);
            self.run_inject_streams(Register::Normed);
        } else {
            self.compute.add(self.registers.get_mut(Register::Residual), sum);
        }
        Ok(())
    }

    /// Prepares what the router reads for every encoding that reads it in this layer; where experts read the same, for
    /// theirs as well.
    fn prepare_router(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        experts: Option<&[ProjectionShape; 3]>,
    ) {
        let mut uses: Vec<Encoding> = Vec::with_capacity(7);
        uses.push(self.weights.matrix(mixture.router).encoding);
        uses.extend(self.routing.next_router(layer).map(|id| self.weights.matrix(id).encoding));
        if let Some(shapes) = experts {
            uses.extend([Projection::Gate, Projection::Up].map(|p| shapes[p as usize].encoding));
        }
        if let Some(shared) = &mixture.shared {
            let matrices = shared.gate_weight.into_iter().chain([shared.gate, shared.up]);
            uses.extend(matrices.map(|id| self.weights.matrix(id).encoding));
        }
        let input = self.registers.get(mixture.router_input);
        self.compute.prepare(input, self.config.hidden, &uses, &mut self.prepared);
    }

    /// Chooses each token's experts and sorts the choice by expert.
    fn route(&mut self, layer: LayerId, mixture: &Mixture) -> Result<(), EngineError> {
        let (tokens, experts) = (self.tokens.len(), self.config.moe.experts);
        let k = self.options.top_k;
        let scratch = &mut self.scratch;
        let logits = &mut scratch.router_logits[..tokens * experts];
        let router = MatmulJob {
            matrix: self.weights.matrix(mixture.router),
            x: &self.prepared,
            tokens: Tokens::All,
            out: logits,
        };
        match mixture.shared.as_ref().and_then(|shared| shared.gate_weight) {
            None => self.compute.matmul(&mut [router]),
            Some(gate) => {
                let factor = MatmulJob {
                    matrix: self.weights.matrix(gate),
                    x: &self.prepared,
                    tokens: Tokens::All,
                    out: &mut scratch.shared.factor[..tokens],
                };
                self.compute.matmul(&mut [router, factor]);
            }
        }
        let logits = &mut scratch.router_logits[..tokens * experts];
        // Without an early end, so that the search is done in vectors.
        let broken = |row: &[f32]| row.iter().fold(false, |found, v| found | !v.is_finite());
        if let Some(token) = logits.chunks_exact(experts).position(broken) {
            let position = self.positions[token] as usize;
            return Err(EngineError::NotFinite { position });
        }
        self.routing.override_logits(layer, experts, logits);
        let chosen = &mut scratch.chosen[..tokens * k];
        let factors = &mut scratch.factors[..tokens * k];
        let bias = mixture.router_bias.map(|bias| self.weights.vector(bias));
        let router = &self.config.moe.router;
        match mixture.table.map(|table| self.weights.table(table)) {
            None => router.choose(&self.compute, (logits, bias), (experts, k), chosen, factors),
            Some(table) => {
                let mut given = self.tokens.iter().map(|&token| table.row(token as usize));
                router.weigh_given(logits, (experts, k), &mut given, chosen, factors);
            }
        }
        if let Some(scales) = mixture.expert_scales.map(|id| self.weights.vector(id)) {
            for (factor, &expert) in factors.iter_mut().zip(chosen.iter()) {
                *factor *= scales[usize::from(expert)];
            }
        }
        self.routing.record(layer, k, chosen, factors);
        scratch.assignments.sort(chosen, factors, k).map_err(|token| {
            let position = self.positions[token] as usize;
            EngineError::Choice { layer: layer.index(), position }
        })?;
        self.guess_next(layer);
        Ok(())
    }

    /// When a recorder wants to know: what the next layer's router would choose from this layer's input.
    fn guess_next(&mut self, layer: LayerId) {
        let Some(router) = self.routing.next_router(layer) else { return };
        if layer.index() + 1 < self.config.moe.hashed_layers {
            // What the next layer uses is known, and no guess.
            return;
        }
        let (moe, k, tokens) = (&self.config.moe, self.options.top_k, self.tokens.len());
        let bias = self.routing.next_router_bias(layer).map(|bias| self.weights.vector(bias));
        let Some(guess) = self.routing.guess(tokens, moe.experts, k) else { return };
        let matrix = self.weights.matrix(router);
        let (x, out) = (&self.prepared, guess.logits.as_mut_slice());
        self.compute.matmul(&mut [MatmulJob { matrix, x, tokens: Tokens::All, out }]);
        let (chosen, weights) = (&mut guess.chosen, &mut guess.weights);
        let logits = (&mut *guess.logits, bias);
        moe.router.choose(&self.compute, logits, (moe.experts, k), chosen, weights);
    }

    /// Few pairs: experts run in whatever order they land, and are added when all are done.
    fn run_as_they_land(
        &mut self,
        visit: &mut Visit<'_>,
        mixture: &Mixture,
        shapes: &[ProjectionShape; 3],
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let count = visit.len();
        self.scratch.done.clear();
        self.scratch.done.resize(count, false);
        let mut group: Vec<usize> = Vec::with_capacity(count);
        let mut remaining = count;
        let mut shared = mixture.shared.is_some();
        while remaining > 0 {
            group.clear();
            let done = &self.scratch.done;
            group.extend((0..count).filter(|&index| !done[index] && visit.is_ready(index)));
            if group.is_empty() {
                if std::mem::take(&mut shared) {
                    self.run_shared(mixture);
                    continue;
                }
                let next = visit.order().iter().copied().find(|&index| !self.scratch.done[index]);
                group.push(next.expect("members remain"));
            }
            let group_shared = std::mem::take(&mut shared);
            self.run_group(
                visit,
                mixture,
                shapes,
                Group { experts: &group, base: 0 },
                group_shared,
                cancel,
            )?;
            for &index in &group {
                self.scratch.done[index] = true;
                visit.release(index);
            }
            remaining -= group.len();
        }
        self.add_outputs(0..count, 0);
        Ok(())
    }

    /// Many pairs: ascending groups, each as large as is ready and fits, added before the next.
    fn run_in_order(
        &mut self,
        visit: &mut Visit<'_>,
        mixture: &Mixture,
        shapes: &[ProjectionShape; 3],
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let (mut next, mut group) = (0, Vec::with_capacity(visit.len()));
        while next < visit.len() {
            let assignments = &self.scratch.assignments;
            let base = assignments.starts[next];
            let range = assignments.group(next, self.scratch.rows, |index| visit.is_ready(index));
            next = range.end;
            group.clear();
            group.extend(range.clone());
            self.run_group(visit, mixture, shapes, Group { experts: &group, base }, false, cancel)?;
            group.iter().for_each(|&index| visit.release(index));
            self.add_outputs(range, base);
        }
        Ok(())
    }

    /// Feed-forward of the experts of a group; with `shared` the shared expert is computed in the same regions.
    fn run_group(
        &mut self,
        visit: &Visit<'_>,
        mixture: &Mixture,
        shapes: &[ProjectionShape; 3],
        Group { experts: group, base }: Group<'_>,
        shared: bool,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let shared = mixture.shared.as_ref().filter(|_| shared);
        let wanted = || !cancel.is_cancelled();
        let bytes = group.iter().map(|&index| visit.wait_while(index, &wanted));
        let bytes = bytes.collect::<Result<Vec<_>, _>>()?;
        let [gate, up, down] = shapes;
        let (inner_width, hidden) = (gate.rows, down.rows);
        let scratch = &mut self.scratch;
        let assignments = &scratch.assignments;
        let mut jobs = Vec::with_capacity(2 * group.len() + 2);
        let mut gates = Split::new(&mut scratch.gate, inner_width);
        let mut ups = Split::new(&mut scratch.up, inner_width);
        for (&index, bytes) in group.iter().zip(&bytes) {
            let pairs = assignments.pairs(index);
            let tokens = Tokens::Rows(&assignments.tokens[pairs.clone()]);
            let rows = pairs.start - base..pairs.end - base;
            for (shape, which, split) in
                [(gate, Projection::Gate, &mut gates), (up, Projection::Up, &mut ups)]
            {
                let out = split.take(rows.clone());
                let matrix = matrix(shape, bytes, which);
                jobs.push(MatmulJob { matrix, x: &self.prepared, tokens, out });
            }
        }
        if let Some(shared) = shared {
            let both = [shared.gate, shared.up].map(|id| self.weights.matrix(id));
            jobs.extend(scratch.shared.outer(both, &self.prepared));
        }
        self.compute.matmul(&mut jobs);
        self.prepare_activation(mixture, group, base);
        self.activate(mixture, group, base, inner_width);
        let scratch = &mut self.scratch;
        let assignments = &scratch.assignments;
        // The rows of a group need not be adjacent; those between belong to experts already added up or
        // still to come, and preparing one span keeps the row numbers.
        let first = assignments.pairs(group[0]).start - base;
        let last = assignments.pairs(group[group.len() - 1]).end - base;
        let span = first * inner_width..last * inner_width;
        let uses = [down.encoding];
        self.compute.prepare(&scratch.activated[span], inner_width, &uses, &mut scratch.inner);
        let mut jobs = Vec::with_capacity(group.len() + 1);
        let mut outputs = Split::new(&mut scratch.out, hidden);
        for (&index, bytes) in group.iter().zip(&bytes) {
            let pairs = assignments.pairs(index);
            let rows = pairs.start - base..pairs.end - base;
            let out = outputs.take(rows.clone());
            let tokens = Tokens::Rows(&scratch.identity[rows.start - first..rows.end - first]);
            let matrix = matrix(down, bytes, Projection::Down);
            jobs.push(MatmulJob { matrix, x: &scratch.inner, tokens, out });
        }
        if let Some(shared) = shared {
            let down = self.weights.matrix(shared.down);
            let tokens = (self.tokens.len(), shared.gate_weight.is_some());
            let activation = self.config.moe.activation;
            scratch.shared.activate(&self.compute, activation, tokens, &down);
            jobs.push(scratch.shared.down(down));
        }
        self.compute.matmul(&mut jobs);
        self.add_down_biases(mixture, group, base);
        Ok(())
    }

    /// Adds the outputs of the experts `range`, ascending, to their tokens' sums.
    fn add_outputs(&mut self, range: Range<usize>, base: usize) {
        let hidden = self.config.hidden;
        let scratch = &mut self.scratch;
        let assignments = &scratch.assignments;
        let pairs = assignments.starts[range.start]..assignments.starts[range.end];
        let out = &scratch.out[(pairs.start - base) * hidden..(pairs.end - base) * hidden];
        self.compute.scatter_add_scaled(
            &mut scratch.sum,
            hidden,
            &assignments.tokens[pairs.clone()],
            &assignments.weights[pairs],
            out,
        );
    }
}

/// Hands out ascending, disjoint row ranges of a buffer.
struct Split<'a> {
    rest: &'a mut [f32],
    taken: usize,
    width: usize,
}

impl<'a> Split<'a> {
    fn new(buffer: &'a mut [f32], width: usize) -> Self {
        Self { rest: buffer, taken: 0, width }
    }

    fn take(&mut self, rows: Range<usize>) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.rest);
        let (_, rest) = rest.split_at_mut((rows.start - self.taken) * self.width);
        let (out, rest) = rest.split_at_mut(rows.len() * self.width);
        self.rest = rest;
        self.taken = rows.end;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignments(experts: usize, pairs: usize) -> Assignments {
        Assignments {
            tokens: vec![0; pairs],
            weights: vec![0.0; pairs],
            cursor: vec![0; experts],
            ..Assignments::default()
        }
    }

    /// Groups hold every expert once, in order, and no more pairs than there are rows, however few those are.
    #[test]
    fn groups_cover_all_experts_and_fit_the_rows() {
        let (tokens, k, experts) = (7, 2, 5);
        // The third expert has every token.
        let chosen: Vec<u16> =
            (0..tokens as u16).flat_map(|t| [2, [0, 1, 3, 4][t as usize % 4]]).collect();
        let mut all = assignments(experts, tokens * k);
        assert_eq!(all.sort(&chosen, &[0.5; 14], k), Ok(()));
        for ready in [false, true] {
            for rows in tokens..2 * tokens + 2 {
                let (mut next, mut seen) = (0, 0);
                while next < all.experts.len() {
                    let group = all.group(next, rows, |_| ready);
                    assert!(group.start == next && !group.is_empty());
                    let pairs = all.starts[group.end] - all.starts[group.start];
                    assert!(pairs <= rows, "{pairs} of {rows}");
                    (next, seen) = (group.end, seen + pairs);
                }
                assert_eq!(seen, tokens * k);
            }
        }
    }

    #[test]
    fn a_token_that_has_an_expert_twice_is_named() {
        let mut all = assignments(4, 6);
        assert_eq!(all.sort(&[0, 1, 3, 2, 1, 1], &[0.5; 6], 2), Err(2));
        assert_eq!(all.sort(&[0, 1, 1, 0, 0, 1], &[0.5; 6], 2), Ok(()));
    }
}

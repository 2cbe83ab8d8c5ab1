//! What is between the matrices of an expert and behind them: activations and biases.

use super::super::CpuBackend;
use crate::model::activation::GateUpRows;
use crate::model::config::MoeConfig;
use crate::model::mixture::Mixture;

impl CpuBackend {
    /// Biases of the second matrices.
    pub(super) fn add_down_biases(&mut self, mixture: &Mixture, group: &[usize], base: usize) {
        let Some(biases) = &mixture.biases else { return };
        let (biases, hidden) = (self.weights.vector(biases.down), self.config.hidden);
        let scratch = &mut self.scratch;
        let assignments = &scratch.assignments;
        for &index in group {
            let pairs = assignments.pairs(index);
            let bias = &biases[assignments.experts[index].0 as usize * hidden..][..hidden];
            let rows = (pairs.start - base) * hidden..(pairs.end - base) * hidden;
            self.compute.add_to_rows(&mut scratch.out[rows], bias);
        }
    }

    /// What is between the matrices, of the experts of `group`. Experts whose pairs are adjacent are one region: an
    /// expert's own pairs are too few for all workers.
    pub(super) fn activate(
        &mut self,
        mixture: &Mixture,
        group: &[usize],
        base: usize,
        width: usize,
    ) {
        let scratch = &mut self.scratch;
        let assignments = &scratch.assignments;
        for experts in group.chunk_by(|before, after| before + 1 == *after) {
            let pairs =
                assignments.starts[experts[0]]..assignments.pairs(experts[experts.len() - 1]).end;
            let span = (pairs.start - base) * width..(pairs.end - base) * width;
            let activated = &mut scratch.activated[span.clone()];
            let (gates, ups) = (&scratch.gate[span.clone()], &scratch.up[span]);
            mixture.activation.combine(&self.compute, gates, ups, activated);
        }
    }

    /// Brings gates and inputs of the experts of `group` into the form of [`Compute::swiglu`], where they are not.
    pub(super) fn prepare_activation(&mut self, mixture: &Mixture, group: &[usize], base: usize) {
        let MoeConfig { activation, rows, intermediate: width, .. } = self.config.moe;
        let biases = mixture.biases.as_ref();
        let biases = biases.map(|it| [it.gate, it.up].map(|id| self.weights.vector(id)));
        if activation.is_plain() && (rows, biases) == (GateUpRows::Apart, None) {
            return;
        }
        let scratch = &mut self.scratch;
        for &index in group {
            let pairs = scratch.assignments.pairs(index);
            let expert = scratch.assignments.experts[index].0 as usize;
            let biases = biases.map(|biases| biases.map(|all| &all[expert * width..][..width]));
            let span = (pairs.start - base) * width..(pairs.end - base) * width;
            let gates = scratch.gate[span.clone()].chunks_exact_mut(width);
            for (gate, up) in gates.zip(scratch.up[span].chunks_exact_mut(width)) {
                rows.part(gate, up, &mut scratch.both);
                activation.prepare(&self.compute, biases, gate, up);
            }
        }
    }
}

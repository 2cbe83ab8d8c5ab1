//! Latent attention to the rows that an indexer chooses, on the CPU.
//!
//! A token that sees no more rows than the budget attends to all, as in any other layer of latent attention. For a
//! later one the rows of chosen units are gathered, in order of positions, with those behind the last complete unit,
//! and handed to the kernel of attention as a cache of their own. The choice follows from the token's position and the
//! scores alone, so that neither chunks nor batches change a bit. Layers without an indexer take the choice of the last
//! one that has one, which is kept for the batch.

use kernels::{AttentionExtras, BLOCK_TOKENS, KeyValueBlock};
use store::LayerId;

use super::super::{PAGE_TOKENS, Register};
use super::indexed::IndexScratch;
use super::latent::LatentScratch;
use super::ops::Rotation;
use super::state::LayerParts;
use super::{CpuBackend, Span};
use crate::model::index::{IndexConfig, IndexForm, KEY_EPSILON, Pool, RowIndexer};
use crate::model::latent::LatentAttention;
use crate::model::rope::Pairs;
use crate::sequences::{Part, key_type, owned_page};
use crate::weights::VectorId;

/// `out = (row - mean) / sqrt(variance + epsilon) * weight + bias`
fn layer_norm(row: &[f32], [weight, bias]: [&[f32]; 2], epsilon: f32, out: &mut [f32]) {
    let mean = row.iter().sum::<f32>() / row.len() as f32;
    let square = |value: &f32| (value - mean) * (value - mean);
    let variance = row.iter().map(square).sum::<f32>() / row.len() as f32;
    let factor = 1.0 / (variance + epsilon).sqrt();
    for ((out, value), (weight, bias)) in out.iter_mut().zip(row).zip(weight.iter().zip(bias)) {
        *out = (value - mean) * factor * weight + bias;
    }
}

/// `out` = the sum of the keys of a unit's tokens, each value weighed by the softmax over the tokens of its gates and
/// what `places` adds to them; a token's row is its key and its gates.
fn pool_keys<'a>(rows: impl Iterator<Item = &'a [f32]> + Clone, places: &[f32], out: &mut [f32]) {
    let dim = out.len();
    for (value, out) in out.iter_mut().enumerate() {
        let gates = rows.clone().zip(places.chunks_exact(dim));
        let gates = gates.map(|(row, place)| row[dim + value] + place[value]);
        let most = gates.clone().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = gates.clone().map(|gate| (gate - most).exp()).sum();
        let terms =
            gates.zip(rows.clone()).map(|(gate, row)| (gate - most).exp() / sum * row[value]);
        *out = terms.sum();
    }
}

/// Copies a head so that the values of a pair that is rotated lie half the rotated values apart.
fn part_head(pairs: Pairs, rotated: usize, from: &[f32], to: &mut [f32]) {
    pairs.part(&from[..rotated], &mut to[..rotated]);
    to[rotated..].copy_from_slice(&from[rotated..]);
}

fn pairs(index: &IndexConfig) -> Pairs {
    match index.form {
        IndexForm::Weighed { pairs } => pairs,
        // Nothing is rotated.
        IndexForm::Pooled => Pairs::Halves,
        IndexForm::Joined => unreachable!("latent rows are chosen by weighed heads"),
    }
}

impl CpuBackend {
    /// Latent attention to the rows that `indexer` chooses, or without one to those that the last indexer chose.
    pub(super) fn run_chosen_rows(
        &mut self,
        layer: LayerId,
        weights: &LatentAttention,
        indexer: Option<&RowIndexer>,
    ) {
        let index = self.config.index.expect("a layer with an indexer has a shape");
        let mut choice = self.index.take().expect("a model with such layers has room for them");
        if let Some(indexer) = indexer {
            self.turn_row_queries(&index, &mut choice);
            for run in 0..self.spans.len() {
                let span = self.spans[run];
                match &indexer.pool {
                    None => self.append_row_keys(layer, &index, indexer, span, &mut choice),
                    Some(pool) => {
                        let norm = indexer.key_norm;
                        self.append_pooled_keys(layer, &index, (norm, pool), span, &mut choice);
                        self.sequences.keep(layer, Part::Index, run);
                    }
                }
            }
        }
        self.run_rows(layer, weights, |it, scratch, span, tokens, first| {
            // Tokens that see all rows come first.
            let all = (index.tokens() + span.first).saturating_sub(span.position);
            let all = all.clamp(tokens.start, tokens.end);
            if tokens.start < all {
                it.attend_all_rows(scratch, layer, span, tokens.start..all, first);
            }
            for token in all..tokens.end {
                it.choose_rows(layer, &index, indexer.is_some(), (span, token), &mut choice);
                it.attend_chosen_rows(scratch, &mut choice, layer, (span, token), first);
            }
        });
        self.index = Some(choice);
    }

    /// Rotates the indexer's queries.
    fn turn_row_queries(&mut self, index: &IndexConfig, choice: &mut IndexScratch) {
        let (heads, dim, pairs) = (index.heads, index.dim, pairs(index));
        let rotation =
            Rotation { rope: &self.config.attention.rope, frequencies: &self.inverse_frequencies };
        let given = self.registers.get(Register::IndexQuery);
        let queries = &mut choice.queries[..self.tokens.len() * heads * dim];
        self.compute.each_row(queries, dim, |row, to| {
            part_head(pairs, rotation.rope.dims, &given[row * dim..][..dim], to);
        });
        rotation.turn(&self.compute, queries, (heads, dim), &self.positions);
    }

    /// Norms, rotates and keeps the index keys of a span.
    fn append_row_keys(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        indexer: &RowIndexer,
        span: Span,
        choice: &mut IndexScratch,
    ) {
        let (dim, pairs) = (index.dim, pairs(index));
        let kind = key_type(self.options.kv_type).expect("a cache whose keys are floats");
        let norm = indexer.key_norm.map(|id| self.weights.vector(id));
        let rotation =
            Rotation { rope: &self.config.attention.rope, frequencies: &self.inverse_frequencies };
        let given = self.registers.get(Register::IndexValues);
        let LayerParts { layout, pages, .. } =
            self.sequences.parts(span.sequence, layer, Part::Index);
        let layout = layout.side();
        let mut normed = vec![0.0f32; dim];
        for at in 0..span.tokens {
            let position = span.position + at;
            let row = &given[(span.first + at) * dim..][..dim];
            layer_norm(row, norm, KEY_EPSILON, &mut normed);
            part_head(pairs, rotation.rope.dims, &normed, &mut choice.key);
            rotation.turn(&self.compute, &mut choice.key, (1, dim), &[position as u32]);
            let page = owned_page(&mut pages[position / PAGE_TOKENS]);
            let number = position % PAGE_TOKENS;
            kind.encode(&choice.key, &mut page[layout.keys(layer.index(), number..number + 1)]);
        }
    }

    /// Norms and keeps the index keys of a span with their gates, and makes those of the units that they complete.
    fn append_pooled_keys(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        (norm, pool): ([VectorId; 2], &Pool),
        span: Span,
        choice: &mut IndexScratch,
    ) {
        let (unit, dim) = (index.unit, index.dim);
        let kind = key_type(self.options.kv_type).expect("a cache whose keys are floats");
        let norm = norm.map(|id| self.weights.vector(id));
        let places = self.weights.vector(pool.places);
        let given = [Register::IndexValues, Register::IndexGates].map(|it| self.registers.get(it));
        let LayerParts { layout, state: rows, pages } =
            self.sequences.parts(span.sequence, layer, Part::Index);
        let (ring, layout) = (layout.ring_of(layer, Part::Index), layout.side());
        for at in 0..span.tokens {
            let position = span.position + at;
            let [key, gates] = given.map(|values| &values[(span.first + at) * dim..][..dim]);
            let row = &mut rows[ring.row(position)];
            layer_norm(key, norm, KEY_EPSILON, &mut row[..dim]);
            row[dim..].copy_from_slice(gates);
            if !(position + 1).is_multiple_of(unit) {
                continue;
            }
            let first = position + 1 - unit;
            let rows = &*rows;
            pool_keys((first..=position).map(|it| &rows[ring.row(it)]), places, &mut choice.key);
            let page = owned_page(&mut pages[first / PAGE_TOKENS]);
            let number = first % PAGE_TOKENS / unit;
            kind.encode(&choice.key, &mut page[layout.keys(layer.index(), number..number + 1)]);
        }
    }

    /// The units that a token of a span sees, by the layer's own scores or as the last indexer chose them.
    fn choose_rows(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        owner: bool,
        (span, token): (Span, usize),
        choice: &mut IndexScratch,
    ) {
        let kept = token * index.budget..(token + 1) * index.budget;
        if !owner {
            choice.chosen.clear();
            choice.chosen.extend_from_slice(&choice.choices[kept]);
            return;
        }
        let weights = &self.registers.get(Register::IndexWeights)[token * index.heads..];
        let share = (index.heads as f32).powf(-0.5);
        choice.factors.iter_mut().zip(weights).for_each(|(to, weight)| *to = weight * share);
        self.choose_units(layer, index, span, token - span.first, choice);
        if !choice.choices.is_empty() {
            choice.choices[kept].copy_from_slice(&choice.chosen);
        }
    }

    /// Lets the queries of a token meet the chosen rows; `first` is the first token of the scratch.
    fn attend_chosen_rows(
        &mut self,
        scratch: &mut LatentScratch,
        choice: &mut IndexScratch,
        layer: LayerId,
        (span, token): (Span, usize),
        first: usize,
    ) {
        let shape = self.row_attention(scratch);
        let position = span.position + token - span.first;
        let (_, blocks) = self.sequences.blocks(span.sequence, layer, position..position + 1);
        let row = shape.kv_type.bytes_of_head(shape.head_dim);
        let [rows, _] = &mut choice.gathered;
        let index = self.config.index.expect("a layer with an indexer has a shape");
        let mut filled = 0;
        for positions in index.seen(&choice.chosen, position) {
            // A unit lies in one block.
            let (block, at) = (positions.start / BLOCK_TOKENS, positions.start % BLOCK_TOKENS);
            let block = &blocks[block];
            let to = &mut rows[filled * row..(filled + positions.len()) * row];
            to.copy_from_slice(&block.keys[at * row..(at + positions.len()) * row]);
            filled += positions.len();
        }
        let bytes = filled.div_ceil(BLOCK_TOKENS) * shape.block_bytes();
        let blocks = rows[..bytes].chunks_exact(shape.block_bytes());
        let blocks: Vec<_> =
            blocks.map(|rows| KeyValueBlock { keys: rows, values: rows }).collect();
        let (query, context) = scratch.sides(token - first..token - first + 1);
        let extras = AttentionExtras::default();
        self.compute.attention_with(&shape, extras, query, filled - 1, &blocks, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_norm_has_a_mean_and_a_bias() {
        let mut out = [0.0; 2];
        layer_norm(&[5.0, 1.0], [&[2.0, 3.0], &[0.5, -0.5]], 0.0, &mut out);
        assert_eq!(out, [2.5, -3.5]);
        // What adds to the variance is seen where there is little.
        layer_norm(&[1e-3, -1e-3], [&[1.0; 2], &[0.0; 2]], KEY_EPSILON, &mut out);
        assert!((out[0] - 0.5f32.sqrt()).abs() < 1e-4, "{out:?}");
    }

    #[test]
    fn keys_are_pooled_by_gates_of_each_value() {
        let third = (1.0f32 / 3.0).ln();
        let rows: [[f32; 4]; 2] = [[4.0, 1.0, 0.0, 90.0], [8.0, 2.0, 0.0, -90.0]];
        let mut out = [0.0; 2];
        pool_keys(rows.iter().map(|row| &row[..]), &[0.0, 0.0, third, 0.0], &mut out);
        assert!((out[0] - 5.0).abs() < 1e-5 && out[1] == 1.0, "{out:?}");
    }

    #[test]
    fn neighbours_are_parted_within_the_rotated_values_alone() {
        let mut out = [0.0; 6];
        part_head(Pairs::Neighbours, 4, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut out);
        assert_eq!(out, [1.0, 3.0, 2.0, 4.0, 5.0, 6.0]);
        part_head(Pairs::Halves, 4, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut out);
        assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}

//! Latent attention on the CPU: queries meet the cached rows themselves, so that prompts and answers do the same sums.
//!
//! Some tokens at a time go through, because queries and contexts are as wide as the row for every head. Nothing of a
//! token depends on which others go with it.

use std::ops::Range;

use kernels::format::Matrix;
use kernels::{Activations, AttentionExtras, AttentionShape, Compute, MatmulJob, Tokens};
use store::LayerId;

use super::super::Register;
use super::mixture::PACKINGS;
use super::{CpuBackend, CpuOptions, Span};
use crate::model::config::{LatentConfig, ModelConfig};
use crate::model::latent::{HeadRows, LatentAttention};
use crate::model::rope::Rope;

/// Tokens at a time: matrices of heads are then read as fast as they are multiplied.
const TOKENS: usize = 32;

/// Rows of some tokens.
pub(super) struct LatentScratch {
    sizes: Sizes,
    /// `[tokens, heads, plain or rank]`: inputs of the products by head.
    inputs: Vec<f32>,
    prepared: Activations,
    /// `[heads, tokens, rank or values]`: what those products give.
    staged: Vec<f32>,
    /// `[heads, tokens]`: the rows of a head's inputs.
    rows: Vec<u32>,
    /// `[tokens, heads, rotated]`
    rotated: Vec<f32>,
    /// `[tokens, heads, rank + rotated]`: queries that meet cached rows.
    query: Vec<f32>,
    /// `[tokens, heads, rank + rotated]`: sums of cached rows.
    context: Vec<f32>,
}

/// Widths, and how many tokens go together.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    heads: usize,
    plain: usize,
    rotated: usize,
    rank: usize,
    values: usize,
}

impl Sizes {
    fn of(config: &ModelConfig, shape: &LatentConfig, options: &CpuOptions) -> Self {
        Self {
            tokens: options.batch_tokens.min(TOKENS),
            heads: config.attention.query_heads,
            plain: shape.plain_dim,
            rotated: config.attention.rope.dims,
            rank: shape.rank,
            values: shape.value_dim,
        }
    }

    /// Values of a cached row.
    fn row(&self) -> usize {
        self.rank + self.rotated
    }

    /// Values of a head's widest input, and of the widest output of its products.
    fn widest(&self) -> [usize; 2] {
        [self.plain, self.values].map(|width| self.rank.max(width))
    }
}

/// What rows are rotated by.
struct RotatedBy<'a> {
    compute: &'a Compute,
    rope: &'a Rope,
    frequencies: &'a [f32],
}

/// Which values of rows are rotated: of `heads` rows a position, `width` values each, those from `at` on.
struct Ends {
    heads: usize,
    width: usize,
    at: usize,
}

impl LatentScratch {
    /// Queries that meet rows, and what becomes of them, of some tokens by number.
    pub(super) fn sides(&mut self, tokens: Range<usize>) -> (&[f32], &mut [f32]) {
        let width = self.sizes.heads * self.sizes.row();
        let values = tokens.start * width..tokens.end * width;
        (&self.query[values.clone()], &mut self.context[values])
    }

    /// Room for models with latent attention.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let sizes = Sizes::of(config, config.latent.as_ref()?, options);
        let (pairs, [input, output]) = (sizes.tokens * sizes.heads, sizes.widest());
        let row = |head: usize| (0..sizes.tokens).map(move |token| token * sizes.heads + head);
        Some(Self {
            sizes,
            inputs: vec![0.0; pairs * input],
            prepared: Activations::with_capacity(pairs, input),
            staged: vec![0.0; pairs * output],
            rows: (0..sizes.heads).flat_map(row).map(|row| row as u32).collect(),
            rotated: vec![0.0; pairs * sizes.rotated],
            query: vec![0.0; pairs * sizes.row()],
            context: vec![0.0; pairs * sizes.row()],
        })
    }

    /// Bytes that [`LatentScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let Some(shape) = &config.latent else { return 0 };
        let sizes = Sizes::of(config, shape, options);
        let (pairs, [input, output]) = (sizes.tokens * sizes.heads, sizes.widest());
        let floats = input + output + 1 + sizes.rotated + 2 * sizes.row();
        pairs * floats * size_of::<f32>() + Activations::bytes_bound(pairs, input, PACKINGS)
    }

    /// Multiplies `inputs [tokens, heads, columns]` by each head's rows of `matrix`, into `staged [heads, tokens,
    /// rows]`.
    fn by_head(&mut self, compute: &Compute, matrix: &Matrix<'_>, rows: HeadRows, tokens: usize) {
        let Sizes { heads, tokens: most, .. } = self.sizes;
        let inputs = &self.inputs[..tokens * heads * matrix.columns];
        compute.prepare(inputs, matrix.columns, &[matrix.encoding], &mut self.prepared);
        let outputs = self.staged.chunks_exact_mut(tokens * rows.count);
        let places = self.rows.chunks_exact(most);
        let jobs = outputs.zip(places).enumerate().map(|(head, (out, places))| MatmulJob {
            matrix: matrix.part(head * rows.stride + rows.first, rows.count),
            x: &self.prepared,
            tokens: Tokens::Rows(&places[..tokens]),
            out,
        });
        compute.matmul(&mut jobs.collect::<Vec<_>>());
    }

    /// Rotates the ends of `rows` into `rotated`.
    fn rotate(&mut self, by: RotatedBy<'_>, rows: &[f32], ends: Ends, positions: &[u32]) {
        let RotatedBy { compute, rope, frequencies } = by;
        let Ends { heads, width, at } = ends;
        let dims = rope.dims;
        if dims == 0 {
            return;
        }
        let rotated = &mut self.rotated[..positions.len() * heads * dims];
        compute.each_row(rotated, dims, |row, to| {
            rope.pairs.part(&rows[row * width + at..][..width - at], to);
        });
        compute.rope(rotated, heads, dims, dims, positions, frequencies);
        let magnitude = rope.magnitude();
        if magnitude != 1.0 {
            compute.each_row(rotated, dims, |_, to| {
                to.iter_mut().for_each(|value| *value *= magnitude)
            });
        }
    }
}

impl CpuBackend {
    pub(super) fn run_latent(&mut self, layer: LayerId, weights: &LatentAttention) {
        self.run_rows(layer, weights, |it, scratch, span, tokens, first| {
            it.attend_all_rows(scratch, layer, span, tokens, first);
        });
    }

    /// Latent attention where `attend` lets queries meet rows: those of tokens of a span, whose first in the scratch is
    /// the token `first` of the batch.
    pub(super) fn run_rows(
        &mut self,
        layer: LayerId,
        weights: &LatentAttention,
        mut attend: impl FnMut(&mut Self, &mut LatentScratch, Span, Range<usize>, usize),
    ) {
        let mut scratch = self.latent.take().expect("a model with such layers has room for them");
        let tokens = self.tokens.len();
        for first in (0..tokens).step_by(scratch.sizes.tokens) {
            let count = scratch.sizes.tokens.min(tokens - first);
            self.cache_rows(&mut scratch, weights, first, count);
            self.absorb_queries(&mut scratch, weights, first, count);
            for run in 0..self.spans.len() {
                let span = self.spans[run];
                let begin = span.first.max(first);
                let end = (span.first + span.tokens).min(first + count);
                if begin < end {
                    self.append_rows_of(&scratch, layer, span, begin..end);
                    attend(self, &mut scratch, span, begin..end, first);
                }
            }
            self.expand_values(&mut scratch, weights, first, count);
        }
        self.latent = Some(scratch);
    }

    /// Norms and rotates the rows in `Key`.
    fn cache_rows(
        &mut self,
        scratch: &mut LatentScratch,
        weights: &LatentAttention,
        first: usize,
        count: usize,
    ) {
        let Sizes { rank, rotated, .. } = scratch.sizes;
        let row = scratch.sizes.row();
        let (norm, epsilon) = (self.weights.vector(weights.norm), self.latent_epsilon());
        let rows = &mut self.registers.get_mut(Register::Key)[first * row..(first + count) * row];
        let rotation = RotatedBy {
            compute: &self.compute,
            rope: &self.config.attention.rope,
            frequencies: &self.inverse_frequencies,
        };
        let positions = &self.positions[first..first + count];
        scratch.rotate(rotation, rows, Ends { heads: 1, width: row, at: rank }, positions);
        for (at, row) in rows.chunks_exact_mut(row).enumerate() {
            let (latent, key) = row.split_at_mut(rank);
            self.compute.rms_norm_in_place(latent, norm, epsilon);
            key.copy_from_slice(&scratch.rotated[at * rotated..(at + 1) * rotated]);
        }
    }

    /// Makes the queries that meet cached rows.
    fn absorb_queries(
        &mut self,
        scratch: &mut LatentScratch,
        weights: &LatentAttention,
        first: usize,
        count: usize,
    ) {
        let Sizes { heads, plain, rotated, rank, .. } = scratch.sizes;
        let (row, width) = (scratch.sizes.row(), plain + rotated);
        let all = heads * width;
        let query = &self.registers.get(Register::Query)[first * all..(first + count) * all];
        let pairs = count * heads;
        self.compute.each_row(&mut scratch.inputs[..pairs * plain], plain, |pair, to| {
            to.copy_from_slice(&query[pair * width..][..plain]);
        });
        let matrix = self.weights.matrix(weights.absorb.matrix);
        scratch.by_head(&self.compute, &matrix, weights.absorb, count);
        let rotation = RotatedBy {
            compute: &self.compute,
            rope: &self.config.attention.rope,
            frequencies: &self.inverse_frequencies,
        };
        let positions = &self.positions[first..first + count];
        scratch.rotate(rotation, query, Ends { heads, width, at: plain }, positions);
        let (staged, rotations) = (&scratch.staged, &scratch.rotated);
        self.compute.each_row(&mut scratch.query[..pairs * row], row, |pair, to| {
            let at = (pair % heads * count + pair / heads) * rank;
            let (latent, key) = to.split_at_mut(rank);
            latent.copy_from_slice(&staged[at..at + rank]);
            key.copy_from_slice(&rotations[pair * rotated..(pair + 1) * rotated]);
        });
    }

    /// Attention of all heads over rows.
    pub(super) fn row_attention(&self, scratch: &LatentScratch) -> AttentionShape {
        AttentionShape {
            query_heads: scratch.sizes.heads,
            key_value_heads: 1,
            head_dim: scratch.sizes.row(),
            scale: self.config.latent.as_ref().map_or(1.0, |latent| latent.scale),
            kv_type: self.options.kv_type,
        }
    }

    /// Appends the rows of some tokens of a span, which are in `Key`, to the layer's cache.
    fn append_rows_of(
        &mut self,
        scratch: &LatentScratch,
        layer: LayerId,
        span: Span,
        tokens: Range<usize>,
    ) {
        let (shape, row) = (self.row_attention(scratch), scratch.sizes.row());
        let position = span.position + tokens.start - span.first;
        let rows = &self.registers.get(Register::Key)[tokens.start * row..tokens.end * row];
        self.sequences.append(span.sequence, layer, &shape, position, &[rows]);
    }

    /// Lets the queries of some tokens of a span meet every row that each may see; `first` is the first token of the
    /// scratch.
    pub(super) fn attend_all_rows(
        &mut self,
        scratch: &mut LatentScratch,
        layer: LayerId,
        span: Span,
        tokens: Range<usize>,
        first: usize,
    ) {
        let shape = self.row_attention(scratch);
        let position = span.position + tokens.start - span.first;
        let positions = position..position + tokens.len();
        let (_, blocks) = self.sequences.blocks(span.sequence, layer, positions);
        let (query, context) = scratch.sides(tokens.start - first..tokens.end - first);
        let extras = AttentionExtras::default();
        self.compute.attention_with(&shape, extras, query, position, &blocks, context);
    }

    /// Makes the heads' values of the sums of rows.
    fn expand_values(
        &mut self,
        scratch: &mut LatentScratch,
        weights: &LatentAttention,
        first: usize,
        count: usize,
    ) {
        let Sizes { heads, rank, values, .. } = scratch.sizes;
        let (pairs, row, contexts) = (count * heads, scratch.sizes.row(), &scratch.context);
        self.compute.each_row(&mut scratch.inputs[..pairs * rank], rank, |pair, to| {
            to.copy_from_slice(&contexts[pair * row..][..rank]);
        });
        let matrix = self.weights.matrix(weights.expand.matrix);
        scratch.by_head(&self.compute, &matrix, weights.expand, count);
        let all = heads * values;
        let out = &mut self.registers.get_mut(Register::Context)[first * all..][..pairs * values];
        let staged = &scratch.staged;
        self.compute.each_row(out, values, |pair, to| {
            let at = (pair % heads * count + pair / heads) * values;
            to.copy_from_slice(&staged[at..at + values]);
        });
    }

    /// What norms of latents add to the mean square; where there are none, what all norms add.
    pub(super) fn latent_epsilon(&self) -> f32 {
        self.config.latent.as_ref().map_or(self.config.rms_epsilon, |latent| latent.rms_epsilon)
    }
}

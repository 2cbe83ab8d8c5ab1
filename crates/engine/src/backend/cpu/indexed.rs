//! Attention to the keys that an indexer chooses, on the CPU.
//!
//! A token that sees no more units than the budget attends to all keys, as in any other layer. For a later one the
//! chosen keys and values are gathered, in order of positions, and handed to the kernel of attention as a cache of
//! their own. Which of the two it is, and what is gathered, follow from the token's position and the scores alone, and
//! units are complete at absolute positions: neither chunks nor batches change a bit.

use std::ops::Range;

use kernels::format::Encoding;
use kernels::{Activations, AttentionExtras, BLOCK_TOKENS, KeyValueBlock};
use store::LayerId;

use super::super::{PAGE_TOKENS, Register};
use super::attention::attention_shape;
use super::gated_streams::norm_row;
use super::ops::Rotation;
use super::scoring::{PAGES_TOGETHER, Scoring, choose_best, float_of_keys};
use super::state::LayerParts;
use super::{CpuBackend, CpuOptions, Span};
use crate::model::config::ModelConfig;
use crate::model::index::{IndexConfig, IndexForm, Indexer};
use crate::sequences::{Part, key_type, owned_page};

/// Buffers of the layers.
pub(super) struct IndexScratch {
    /// `[tokens, heads, dim]`: queries, normed and rotated.
    pub(super) queries: Vec<f32>,
    /// One token's, prepared.
    prepared: Activations,
    /// What each head weighs: the same, where the stream does not say it.
    pub(super) factors: Vec<f32>,
    /// One index key.
    pub(super) key: Vec<f32>,
    /// `[heads, keys]` of some pages.
    head_scores: Vec<f32>,
    /// By unit.
    scores: Vec<f32>,
    /// Units that one token sees.
    pub(super) chosen: Vec<u32>,
    /// Keys, and values, that one token sees, in blocks; rows that are both are in the first.
    pub(super) gathered: [Vec<u8>; 2],
    /// `[tokens, budget]`: what every token sees, for layers that see what an earlier one chose.
    pub(super) choices: Vec<u32>,
    /// Values of `choices` for each token.
    kept: usize,
}

/// Sizes of the buffers.
struct Sizes {
    queries: usize,
    head_scores: usize,
    units: usize,
    gathered: [usize; 2],
    choices: usize,
}

impl Sizes {
    fn of(config: &ModelConfig, index: &IndexConfig, options: &CpuOptions) -> Self {
        let blocks = index.tokens().div_ceil(BLOCK_TOKENS);
        let side = blocks * attention_shape(&config.attention, options.kv_type).block_bytes();
        Self {
            queries: options.batch_tokens * index.heads * index.dim,
            head_scores: index.heads * PAGES_TOGETHER * (PAGE_TOKENS / index.unit),
            units: options.context / index.unit,
            gathered: match index.form {
                IndexForm::Joined => [side, side],
                IndexForm::Weighed { .. } | IndexForm::Pooled => [side, 0],
            },
            choices: if config.shares_choices() { options.batch_tokens * index.budget } else { 0 },
        }
    }
}

impl IndexScratch {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let index = config.index.as_ref()?;
        let sizes = Sizes::of(config, index, options);
        Some(Self {
            queries: vec![0.0; sizes.queries],
            prepared: Activations::with_capacity(index.heads, index.dim),
            factors: vec![1.0; index.heads],
            key: vec![0.0; index.dim],
            head_scores: vec![0.0; sizes.head_scores],
            scores: vec![0.0; sizes.units],
            chosen: Vec::with_capacity(sizes.units),
            gathered: sizes.gathered.map(|bytes| vec![0; bytes]),
            choices: vec![0; sizes.choices],
            kept: if sizes.choices > 0 { index.budget } else { 0 },
        })
    }

    /// Bytes that [`IndexScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let Some(index) = &config.index else { return 0 };
        let sizes = Sizes::of(config, index, options);
        let floats = sizes.queries + sizes.head_scores + 2 * sizes.units + index.heads + index.dim;
        (floats + sizes.choices) * size_of::<f32>()
            + sizes.gathered.iter().sum::<usize>()
            + Activations::bytes_bound(index.heads, index.dim, 0)
            // Those of batches put aside.
            + (options.sequences - 1) * sizes.choices * size_of::<u32>()
    }

    /// What the first `tokens` tokens see, for layers to come.
    pub(super) fn choices_of(&self, tokens: usize) -> &[u32] {
        &self.choices[..tokens * self.kept]
    }

    /// Takes up what a batch that was put aside has for layers to come.
    pub(super) fn take_choices(&mut self, choices: &[u32]) {
        self.choices[..choices.len()].copy_from_slice(choices);
    }
}

impl CpuBackend {
    pub(super) fn run_indexed(&mut self, layer: LayerId, weights: &Indexer) {
        let index = self.config.index.expect("a layer with an indexer has a shape");
        let mut scratch = self.index.take().expect("a model with such layers has room for them");
        self.turn_index_queries(&index, weights, &mut scratch);
        for run in 0..self.spans.len() {
            let span = self.spans[run];
            self.append_keys_values(layer, span);
            self.append_index_keys(layer, &index, weights, span, &mut scratch);
            // Tokens that see all keys come first.
            let all = index.tokens().saturating_sub(span.position).min(span.tokens);
            self.attend_all(layer, span, 0..all);
            for at in all..span.tokens {
                self.choose_units(layer, &index, span, at, &mut scratch);
                self.attend_chosen(layer, &index, span, at, &mut scratch);
            }
            self.sequences.keep(layer, Part::Index, run);
        }
        self.index = Some(scratch);
    }

    /// Norms and rotates the indexer's queries.
    fn turn_index_queries(
        &mut self,
        index: &IndexConfig,
        weights: &Indexer,
        scratch: &mut IndexScratch,
    ) {
        let (heads, dim, epsilon) = (index.heads, index.dim, self.config.rms_epsilon);
        let both = self.registers.get(Register::IndexQuery);
        let norm = self.weights.vector(weights.query_norm);
        let queries = &mut scratch.queries[..self.tokens.len() * heads * dim];
        self.compute.for_rows(queries, dim, 8, |row, out| {
            let from = &both[row / heads * index.width() + row % heads * dim..][..dim];
            norm_row(from, norm, epsilon, out);
        });
        let rotation =
            Rotation { rope: &self.config.attention.rope, frequencies: &self.inverse_frequencies };
        rotation.turn(&self.compute, queries, (heads, dim), &self.positions);
    }

    fn append_keys_values(&mut self, layer: LayerId, span: Span) {
        let shape = attention_shape(&self.config.attention, self.options.kv_type);
        let width = shape.key_value_heads * shape.head_dim;
        let rows = span.first * width..(span.first + span.tokens) * width;
        let sides = [Register::Key, Register::Value]
            .map(|register| &self.registers.get(register)[rows.clone()]);
        self.sequences.append(span.sequence, layer, &shape, span.position, &sides);
    }

    /// Keeps the tokens' keys of the indexer and makes those of the units that they complete.
    fn append_index_keys(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        weights: &Indexer,
        span: Span,
        scratch: &mut IndexScratch,
    ) {
        let (unit, dim, epsilon) = (index.unit, index.dim, self.config.rms_epsilon);
        let kind = key_type(self.options.kv_type).expect("a cache whose keys are floats");
        let both = self.registers.get(Register::IndexQuery);
        let norm = self.weights.vector(weights.key_norm);
        let rotation =
            Rotation { rope: &self.config.attention.rope, frequencies: &self.inverse_frequencies };
        let LayerParts { layout, state: rows, pages } =
            self.sequences.parts(span.sequence, layer, Part::Index);
        let (layout, ring) = (layout.side(), layout.ring_of(layer, Part::Index));
        for at in 0..span.tokens {
            let position = span.position + at;
            let token = &both[(span.first + at) * index.width()..][..index.width()];
            rows[ring.row(position)].copy_from_slice(&token[index.heads * dim..]);
            if !(position + 1).is_multiple_of(unit) {
                continue;
            }
            let first = position + 1 - unit;
            let mut mean = vec![0.0f32; dim];
            for position in first..=position {
                let row = &rows[ring.row(position)];
                mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            mean.iter_mut().for_each(|value| *value /= unit as f32);
            norm_row(&mean, norm, epsilon, &mut scratch.key);
            rotation.turn(&self.compute, &mut scratch.key, (1, dim), &[first as u32]);
            let page = owned_page(&mut pages[first / PAGE_TOKENS]);
            let number = first % PAGE_TOKENS / unit;
            kind.encode(&scratch.key, &mut page[layout.keys(layer.index(), number..number + 1)]);
        }
    }

    /// `Context` of some tokens of a span, by number in it, which see all keys.
    fn attend_all(&mut self, layer: LayerId, span: Span, tokens: Range<usize>) {
        if tokens.is_empty() {
            return;
        }
        let shape = attention_shape(&self.config.attention, self.options.kv_type);
        let width = shape.query_heads * shape.head_dim;
        let positions = span.position + tokens.start..span.position + tokens.end;
        let (begin, blocks) = self.sequences.blocks(span.sequence, layer, positions.clone());
        let rows = (span.first + tokens.start) * width..(span.first + tokens.end) * width;
        let (query, context) = self.registers.pair(Register::Query, Register::Context);
        self.compute.attention_with(
            &shape,
            AttentionExtras::default(),
            &query[rows.clone()],
            positions.start - begin,
            &blocks,
            &mut context[rows],
        );
    }

    /// The units of the best scores that token `at` of a span sees.
    pub(super) fn choose_units(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        span: Span,
        at: usize,
        scratch: &mut IndexScratch,
    ) {
        let (width, per_page) = (index.heads * index.dim, PAGE_TOKENS / index.unit);
        let visible = (span.position + at + 1) / index.unit;
        let encoding = Encoding::Float(float_of_keys(self.options.kv_type));
        let query = &scratch.queries[(span.first + at) * width..][..width];
        self.compute.prepare(query, index.dim, &[encoding], &mut scratch.prepared);
        let LayerParts { layout, pages, .. } =
            self.sequences.parts(span.sequence, layer, Part::Index);
        let (layout, pages) = (layout.side(), &*pages);
        let scoring = Scoring {
            compute: &self.compute,
            encoding,
            queries: &scratch.prepared,
            factors: &scratch.factors,
            dim: index.dim,
            per_page,
        };
        let scores = &mut scratch.scores[..visible];
        for (group, scores) in scores.chunks_mut(PAGES_TOGETHER * per_page).enumerate() {
            let keys = |at: usize, rows: usize| {
                let page: &[u8] = &pages[group * PAGES_TOGETHER + at];
                &page[layout.keys(layer.index(), 0..rows)]
            };
            scoring.score(&keys, &mut scratch.head_scores, scores);
            let scale = (index.dim as f32).sqrt();
            scores.iter_mut().for_each(|score| *score /= scale);
        }
        scratch.chosen.clear();
        choose_best(&scratch.scores[..visible], index.budget, &mut scratch.chosen);
    }

    /// `Context` of token `at` of a span, which sees the chosen units and what is behind the last complete one.
    fn attend_chosen(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        span: Span,
        at: usize,
        scratch: &mut IndexScratch,
    ) {
        let shape = attention_shape(&self.config.attention, self.options.kv_type);
        let position = span.position + at;
        let (begin, blocks) = self.sequences.blocks(span.sequence, layer, position..position + 1);
        assert_eq!(begin, 0, "layers with an indexer keep all positions");
        let row = shape.kv_type.bytes_of_head(shape.head_dim);
        let [keys, values] = &mut scratch.gathered;
        let mut filled = 0;
        for positions in index.seen(&scratch.chosen, position) {
            let block = &blocks[positions.start / BLOCK_TOKENS];
            let (from, to) = (positions.start % BLOCK_TOKENS, filled % BLOCK_TOKENS);
            let start = filled / BLOCK_TOKENS * shape.block_bytes();
            for head in 0..shape.key_value_heads {
                let place = |first: usize| (head * BLOCK_TOKENS + first) * row;
                let bytes = positions.len() * row;
                let from = place(from)..place(from) + bytes;
                let to = start + place(to)..start + place(to) + bytes;
                keys[to.clone()].copy_from_slice(&block.keys[from.clone()]);
                values[to].copy_from_slice(&block.values[from]);
            }
            filled += positions.len();
        }
        let bytes = filled.div_ceil(BLOCK_TOKENS) * shape.block_bytes();
        let sides = keys[..bytes]
            .chunks_exact(shape.block_bytes())
            .zip(values[..bytes].chunks_exact(shape.block_bytes()));
        let gathered = sides.map(|(keys, values)| KeyValueBlock { keys, values });
        let gathered: Vec<_> = gathered.collect();
        let width = shape.query_heads * shape.head_dim;
        let places = (span.first + at) * width..(span.first + at + 1) * width;
        let (query, context) = self.registers.pair(Register::Query, Register::Context);
        self.compute.attention_with(
            &shape,
            AttentionExtras::default(),
            &query[places.clone()],
            filled - 1,
            &gathered,
            &mut context[places],
        );
    }
}

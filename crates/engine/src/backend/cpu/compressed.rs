//! Attention over a window and compressed rows on the CPU.
//!
//! Of each token the rows that it sees are gathered, window first, then compressed rows in their order, and handed to
//! the kernel of attention as one cache. What is gathered follows from the token's position and the scores of rows
//! alone; rows are pooled at absolute positions. So neither chunks nor batches change a bit.

use kernels::format::Encoding;
use kernels::{
    Activations, AttentionExtras, AttentionShape, BLOCK_TOKENS, Compute, KeyValueBlock, KvType,
    MatmulJob, Tokens, decode_fp4, hadamard, round_fp4,
};
use store::LayerId;

use super::super::{PAGE_TOKENS, Register};
use super::pooled_rows::{KeptTail, Rows, Tail, store_key};
use super::scoring::{PAGES_TOGETHER, Scoring, choose_best, float_of_keys};
use super::state::LayerParts;
use super::{CpuBackend, CpuOptions, Span};
use crate::model::compressed_attention::{CompressedAttention, CompressedConfig, Compression};
use crate::model::config::{Mixer, ModelConfig};
use crate::model::rope::Rope;
use crate::sequences::{CompressedLayout, Part, SharedPage, key_type, owned_page};
use crate::weights::MatrixId;

/// Frequencies and magnitude of a rotation of the last values of heads, in pairs of neighbours.
pub(super) struct Rotation {
    frequencies: Vec<f32>,
    magnitude: f32,
}

impl Rotation {
    fn new(rope: &Rope) -> Self {
        Self { frequencies: rope.inverse_frequencies(), magnitude: rope.magnitude() }
    }

    /// Turns each head of `dim` values of one position; back with a `direction` of -1.
    pub(super) fn turn(&self, heads: &mut [f32], dim: usize, position: u32, direction: f32) {
        let rotated = 2 * self.frequencies.len();
        let turns = self.frequencies.iter().map(|frequency| {
            let angle = f64::from(position as f32 * frequency);
            let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
            [cos * self.magnitude, sin * self.magnitude * direction]
        });
        let turns: Vec<_> = turns.collect();
        for head in heads.chunks_exact_mut(dim) {
            let pairs = head[dim - rotated..].as_chunks_mut::<2>().0;
            for (pair, [cos, sin]) in pairs.iter_mut().zip(&turns) {
                let [x, y] = *pair;
                *pair = [x * cos - y * sin, y * cos + x * sin];
            }
        }
    }

    /// [`Rotation::turn`] of the heads of every token.
    fn turn_all(
        &self,
        compute: &Compute,
        x: &mut [f32],
        (heads, dim): (usize, usize),
        positions: &[u32],
        direction: f32,
    ) {
        compute.for_rows(x, heads * dim, 2, |token, row| {
            self.turn(row, dim, positions[token], direction);
        });
    }
}

/// Buffers of the layers.
pub(super) struct CompressedScratch {
    plain: Rotation,
    compressed: Rotation,
    /// As the weight of a norm without.
    ones: Vec<f32>,
    /// Rows of the window and of the run in progress.
    window: Vec<u8>,
    /// Rows that one token sees, in blocks.
    seen: Vec<u8>,
    /// Products of the groups, `[groups, tokens, output_rank]`.
    grouped: Vec<f32>,
    /// Rows of the prepared input that belong to each group.
    group_rows: Vec<u32>,
    /// One token's queries of the indexer.
    queries: Activations,
    /// Keys of some pages, `[rows, dim]`, where they are stored in 4 bits.
    keys: Vec<f32>,
    /// `[heads, rows]` of some pages.
    head_scores: Vec<f32>,
    /// By compressed row.
    scores: Vec<f32>,
    /// Compressed rows that one token sees.
    chosen: Vec<u32>,
    /// One compressed row.
    row: Vec<f32>,
}

/// Sizes of the buffers.
struct Sizes {
    window: usize,
    seen: usize,
    grouped: usize,
    group_rows: usize,
    queries: (usize, usize),
    keys: usize,
    head_scores: usize,
    scores: usize,
}

impl Sizes {
    fn of(config: &ModelConfig, shape: &CompressedConfig, options: &CpuOptions) -> Self {
        let (tokens, dim) = (options.batch_tokens, config.attention.head_dim);
        let row = options.kv_type.bytes_of_head(dim);
        let (mut rows, mut scored, mut page_rows) = (0, 0, 0);
        for layer in &config.layers {
            let Mixer::Compressed(Some(Compression { ratio, overlap })) = layer.mixer else {
                continue;
            };
            let all = options.context / ratio;
            rows = rows.max(if overlap { all.min(shape.index.top) } else { all });
            if overlap {
                (scored, page_rows) = (scored.max(all), page_rows.max(PAGE_TOKENS / ratio));
            }
        }
        let seen = (shape.window + rows).next_multiple_of(BLOCK_TOKENS);
        Self {
            window: (shape.window + tokens) * row,
            seen: seen * row,
            grouped: tokens * shape.output_groups * shape.output_rank,
            group_rows: tokens * shape.output_groups,
            queries: (shape.index.heads, shape.index.dim),
            keys: match key_type(options.kv_type) {
                Some(_) => 0,
                None => PAGES_TOGETHER * page_rows * shape.index.dim,
            },
            head_scores: shape.index.heads * PAGES_TOGETHER * page_rows,
            scores: scored,
        }
    }
}

impl CompressedScratch {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let shape = config.compressed.as_ref()?;
        let sizes = Sizes::of(config, shape, options);
        let (heads, dim) = sizes.queries;
        Some(Self {
            plain: Rotation::new(&config.attention.rope),
            compressed: Rotation::new(&shape.rope),
            ones: vec![1.0; config.attention.head_dim],
            window: vec![0; sizes.window],
            seen: vec![0; sizes.seen],
            grouped: vec![0.0; sizes.grouped],
            group_rows: Vec::with_capacity(sizes.group_rows),
            queries: Activations::with_capacity(heads, dim),
            keys: vec![0.0; sizes.keys],
            head_scores: vec![0.0; sizes.head_scores],
            scores: vec![0.0; sizes.scores],
            chosen: Vec::with_capacity(sizes.scores),
            row: vec![0.0; config.attention.head_dim.max(shape.index.dim)],
        })
    }

    /// Bytes that [`CompressedScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let Some(shape) = &config.compressed else { return 0 };
        let sizes = Sizes::of(config, shape, options);
        let (heads, dim) = sizes.queries;
        let scores = sizes.head_scores + 2 * sizes.scores;
        let floats = sizes.grouped + sizes.group_rows + sizes.keys + scores;
        let small = 2 * config.attention.head_dim.max(dim) + shape.rope.dims;
        sizes.window
            + sizes.seen
            + (floats + small) * size_of::<f32>()
            + Activations::bytes_bound(heads, dim, 0)
    }
}

impl CpuBackend {
    fn compressed_shape(&self) -> CompressedConfig {
        self.config.compressed.expect("only called for families with compressed attention")
    }

    pub(super) fn run_grouped_linear(&mut self, from: Register, matrix: MatrixId, to: Register) {
        let groups = self.compressed_shape().output_groups;
        let (tokens, matrix) = (self.tokens.len(), self.weights.matrix(matrix));
        let rank = matrix.rows / groups;
        let scratch = self.compressed.as_mut().expect("a family with compressed attention");
        let (input, out) = self.registers.pair(from, to);
        self.compute.prepare(input, matrix.columns, &[matrix.encoding], &mut self.prepared);
        let rows = &mut scratch.group_rows;
        rows.clear();
        let all = 0..(tokens * groups) as u32;
        rows.extend((0..groups).flat_map(|group| all.clone().skip(group).step_by(groups)));
        let parts = scratch.grouped[..tokens * groups * rank].chunks_exact_mut(tokens * rank);
        let mut jobs: Vec<_> = parts
            .zip(rows.chunks_exact(tokens))
            .enumerate()
            .map(|(group, (out, rows))| MatmulJob {
                matrix: matrix.part(group * rank, rank),
                x: &self.prepared,
                tokens: Tokens::Rows(rows),
                out,
            })
            .collect();
        self.compute.matmul(&mut jobs);
        for (token, out) in out.chunks_exact_mut(groups * rank).enumerate() {
            for (group, out) in out.chunks_exact_mut(rank).enumerate() {
                let start = (group * tokens + token) * rank;
                out.copy_from_slice(&scratch.grouped[start..start + rank]);
            }
        }
    }

    pub(super) fn run_compressed(&mut self, layer: LayerId, weights: &CompressedAttention) {
        self.turn_heads(weights);
        for run in 0..self.spans.len() {
            let span = self.spans[run];
            self.append_rows(layer, weights, span);
            self.attend_span(layer, weights, span);
            self.keep_window(layer, span);
            self.sequences.keep(layer, Part::Compressed, run);
        }
        let attention = &self.config.attention;
        let heads = (attention.query_heads, attention.head_dim);
        let scratch = self.compressed.as_ref().expect("a family with compressed attention");
        let rotation = scratch.rotation(weights);
        let context = self.registers.get_mut(Register::Context);
        rotation.turn_all(&self.compute, context, heads, &self.positions, -1.0);
    }

    /// Norms and rotations of queries and keys.
    fn turn_heads(&mut self, weights: &CompressedAttention) {
        let (shape, epsilon) = (self.compressed_shape(), self.config.rms_epsilon);
        let attention = &self.config.attention;
        let (heads, dim) = (attention.query_heads, attention.head_dim);
        let scratch = self.compressed.as_ref().expect("a family with compressed attention");
        let rotation = scratch.rotation(weights);
        let (compute, positions) = (&self.compute, &self.positions);
        let query = self.registers.get_mut(Register::Query);
        compute.rms_norm_in_place(query, &scratch.ones, epsilon);
        rotation.turn_all(compute, query, (heads, dim), positions, 1.0);
        let key = self.registers.get_mut(Register::Key);
        compute.rms_norm_in_place(key, self.weights.vector(weights.key_norm), epsilon);
        rotation.turn_all(compute, key, (1, dim), positions, 1.0);
        if weights.indexer.is_some() {
            let query = self.registers.get_mut(Register::IndexQuery);
            let heads = (shape.index.heads, shape.index.dim);
            rotation.turn_all(compute, query, heads, positions, 1.0);
            if key_type(self.options.kv_type).is_none() {
                compute.for_rows(query, shape.index.dim, 8, |_, head| {
                    hadamard(head);
                    round_fp4(head);
                });
            }
        }
    }

    /// Keeps values and gates of the span's tokens and makes the rows that they complete.
    fn append_rows(&mut self, layer: LayerId, weights: &CompressedAttention, span: Span) {
        let Some((compression, compressor)) = &weights.compressor else { return };
        let index_dim = self.compressed_shape().index.dim;
        let (dim, epsilon) = (self.config.attention.head_dim, self.config.rms_epsilon);
        let kv_type = self.options.kv_type;
        let scratch = self.compressed.as_mut().expect("a family with compressed attention");
        let LayerParts { layout, state, pages } =
            self.sequences.parts(span.sequence, layer, Part::Compressed);
        let layout = layout.compressed();
        let [_, values, gates, key_values, key_gates] = layout.parts(layer.index(), state);
        let mut made = Rows {
            compute: &self.compute,
            weights: &self.weights,
            rotation: &scratch.compressed,
            epsilon,
            row: &mut scratch.row,
        };
        for at in 0..span.tokens {
            let (token, position) = (span.first + at, span.position + at);
            let inputs = |register: Register, width: usize| {
                &self.registers.get(register)[token * width..(token + 1) * width]
            };
            let width = compression.width(dim);
            let given = Tail {
                values: inputs(Register::CompressedValues, width),
                gates: inputs(Register::CompressedGates, width),
            };
            let kept = KeptTail { values: &mut *values, gates: &mut *gates };
            made.keep(*compression, compressor, position, given, kept);
            if let Some(indexer) = &weights.indexer {
                let width = compression.width(index_dim);
                let given = Tail {
                    values: inputs(Register::IndexValues, width),
                    gates: inputs(Register::IndexGates, width),
                };
                let kept = KeptTail { values: &mut *key_values, gates: &mut *key_gates };
                made.keep(*compression, &indexer.keys, position, given, kept);
            }
            if !(position + 1).is_multiple_of(compression.ratio) {
                continue;
            }
            let first = position + 1 - compression.ratio;
            let page = owned_page(&mut pages[first / PAGE_TOKENS]);
            let row = first % PAGE_TOKENS / compression.ratio;
            let tail = Tail { values, gates };
            let place = &mut page[layout.row(layer.index(), row)];
            kv_type.encode(made.make(*compression, compressor, first, (tail, dim)), place);
            if let Some(indexer) = &weights.indexer {
                let tail = Tail { values: key_values, gates: key_gates };
                let place = &mut page[layout.keys(layer.index(), row..row + 1)];
                let key = made.make(*compression, &indexer.keys, first, (tail, index_dim));
                store_key(kv_type, key, place);
            }
        }
    }

    /// Attention over rows that serve all heads as keys and as values.
    fn row_shape(&self) -> AttentionShape {
        let attention = &self.config.attention;
        AttentionShape {
            query_heads: attention.query_heads,
            key_value_heads: 1,
            head_dim: attention.head_dim,
            scale: (attention.head_dim as f32).powf(-0.5),
            kv_type: self.options.kv_type,
        }
    }

    /// `Context` of the span's tokens.
    fn attend_span(&mut self, layer: LayerId, weights: &CompressedAttention, span: Span) {
        let shape = self.compressed_shape();
        let rows = self.row_shape();
        let AttentionShape { query_heads: heads, head_dim: dim, kv_type, .. } = rows;
        let (bytes, block) = (kv_type.bytes_of_head(dim), rows.block_bytes());
        let extras =
            AttentionExtras { window: None, sinks: Some(self.weights.vector(weights.sinks)) };
        let scratch = self.compressed.as_mut().expect("a family with compressed attention");
        let LayerParts { layout, state, pages } =
            self.sequences.parts(span.sequence, layer, Part::Compressed);
        let layout = layout.compressed();
        let [ring, ..] = layout.parts(layer.index(), state);
        let ring = bytemuck::cast_slice::<f32, u8>(ring);
        let start = span.position.saturating_sub(shape.window - 1);
        let keys = self.registers.get(Register::Key);
        for position in start..span.position + span.tokens {
            let row = &mut scratch.window[(position - start) * bytes..][..bytes];
            match position.checked_sub(span.position) {
                None => row.copy_from_slice(&ring[position % shape.window * bytes..][..bytes]),
                Some(at) => kv_type.encode(&keys[(span.first + at) * dim..][..dim], row),
            }
        }
        for at in 0..span.tokens {
            let (token, position) = (span.first + at, span.position + at);
            let from = (position + 1).saturating_sub(shape.window);
            let near = (from - start) * bytes..(position + 1 - start) * bytes;
            let mut filled = near.len();
            scratch.seen[..filled].copy_from_slice(&scratch.window[near]);
            if let Some((compression, _)) = &weights.compressor {
                let visible = (position + 1) / compression.ratio;
                scratch.chosen.clear();
                match &weights.indexer {
                    Some(_) if visible > shape.index.top => {
                        let of_token = |register, width: usize| {
                            &self.registers.get(register)[token * width..][..width]
                        };
                        let (heads, dim) = (shape.index.heads, shape.index.dim);
                        let query = of_token(Register::IndexQuery, heads * dim);
                        let factors = of_token(Register::IndexWeights, heads);
                        let (compute, ratio) = (&self.compute, compression.ratio);
                        let choice = Choice { compute, layout, kv_type, shape, layer, ratio };
                        choice.choose(visible, query, factors, pages, scratch);
                    }
                    _ => scratch.chosen.extend(0..visible as u32),
                }
                let per_page = PAGE_TOKENS / compression.ratio;
                for &row in &scratch.chosen {
                    let (page, row) = (row as usize / per_page, row as usize % per_page);
                    let page: &[u8] = &pages[page];
                    let row = &page[layout.row(layer.index(), row)];
                    scratch.seen[filled..filled + bytes].copy_from_slice(row);
                    filled += bytes;
                }
            }
            let blocks = scratch.seen[..filled.next_multiple_of(block)].chunks_exact(block);
            let both = |rows| KeyValueBlock { keys: rows, values: rows };
            let blocks: Vec<_> = blocks.map(both).collect();
            let (query, context) = self.registers.pair(Register::Query, Register::Context);
            let places = token * heads * dim..(token + 1) * heads * dim;
            self.compute.attention_with(
                &rows,
                extras,
                &query[places.clone()],
                filled / bytes - 1,
                &blocks,
                &mut context[places],
            );
        }
    }

    /// Keeps the span's last rows as the window of the next.
    fn keep_window(&mut self, layer: LayerId, span: Span) {
        let (window, dim) = (self.compressed_shape().window, self.config.attention.head_dim);
        let kv_type = self.options.kv_type;
        let bytes = kv_type.bytes_of_head(dim);
        let LayerParts { layout, state, .. } =
            self.sequences.parts(span.sequence, layer, Part::Compressed);
        let [ring, ..] = layout.compressed().parts(layer.index(), state);
        let ring = bytemuck::cast_slice_mut::<f32, u8>(ring);
        let keys = self.registers.get(Register::Key);
        for at in span.tokens.saturating_sub(window)..span.tokens {
            let row = &keys[(span.first + at) * dim..][..dim];
            let place = (span.position + at) % window * bytes;
            kv_type.encode(row, &mut ring[place..place + bytes]);
        }
    }
}

impl CompressedScratch {
    /// The rotation of a layer.
    fn rotation(&self, weights: &CompressedAttention) -> &Rotation {
        if weights.compressor.is_some() { &self.compressed } else { &self.plain }
    }
}

/// Chooses compressed rows.
struct Choice<'a> {
    compute: &'a Compute,
    layout: &'a CompressedLayout,
    kv_type: KvType,
    shape: CompressedConfig,
    layer: LayerId,
    /// Tokens of a row.
    ratio: usize,
}

impl Choice<'_> {
    /// The rows of the best scores among the first `visible`, ascending; of equal scores the first row. A score is the
    /// sum over heads of a weight times the positive part of query times key.
    fn choose(
        &self,
        visible: usize,
        query: &[f32],
        factors: &[f32],
        pages: &[SharedPage],
        scratch: &mut CompressedScratch,
    ) {
        let index = self.shape.index;
        let encoding = Encoding::Float(float_of_keys(self.kv_type));
        self.compute.prepare(query, index.dim, &[encoding], &mut scratch.queries);
        let per_page = PAGE_TOKENS / self.ratio;
        let scores = &mut scratch.scores[..visible];
        for (group, scores) in scores.chunks_mut(PAGES_TOGETHER * per_page).enumerate() {
            let stored = |at: usize, rows: usize| {
                let page: &[u8] = &pages[group * PAGES_TOGETHER + at];
                &page[self.layout.keys(self.layer.index(), 0..rows)]
            };
            if key_type(self.kv_type).is_none() {
                let keys = &mut scratch.keys[..scores.len() * index.dim];
                self.compute.for_rows(keys, index.dim, 16, |row, key| {
                    let (page, row) = (row / per_page, row % per_page);
                    decode_fp4(&stored(page, row + 1)[row * self.layout.key_bytes()..], key);
                });
            }
            let keys = |at: usize, rows: usize| match key_type(self.kv_type) {
                Some(_) => stored(at, rows),
                None => {
                    let start = at * per_page * index.dim;
                    bytemuck::cast_slice(&scratch.keys[start..start + rows * index.dim])
                }
            };
            let scoring = Scoring {
                compute: self.compute,
                encoding,
                queries: &scratch.queries,
                factors,
                dim: index.dim,
                per_page,
            };
            scoring.score(&keys, &mut scratch.head_scores, scores);
        }
        choose_best(&scratch.scores[..visible], index.top, &mut scratch.chosen);
    }
}

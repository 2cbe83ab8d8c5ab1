//! Compressed attention: the order of its launches, and what a batch needs for them.
//!
//! A row of pages is made where its last token is; a token's own row is read from the window's ring where its run has
//! no other, else from a buffer of the run, whose last rows then become the ring's. Rows are scored for some tokens at
//! a time. Nothing of a token depends on which others go with it.

use std::ops::Range;
use std::sync::Arc;

use gpu::op::attention::Run;
use gpu::op::compressed_attention::{self, Scored, Seen};
use gpu::op::compressed_rows::{
    self, Angles, Heads, KEY_LIMIT, Made, PageRows, Pooled, ROW_LIMIT, RowRing, StoredRows, Turn,
};
use gpu::op::head_product::{self, HeadRows, Rows};
use gpu::op::rounded::Stored;
use gpu::{Buffer, Gpu, GpuError};
use kernels::KvType;
use store::LayerId;

use super::places::Sides;
use super::requirements::Sizes;
use super::{GpuBackend, GpuOptions, Register, turned_at};
use crate::EngineError;
use crate::backend::PAGE_TOKENS;
use crate::model::compressed_attention::{
    CompressedAttention, CompressedConfig, Compression, Compressor,
};
use crate::model::config::{Mixer, ModelConfig};
use crate::sequences::{CompressedLayout, Part, SequenceLayout, key_type};
use crate::weights::MatrixId;

/// Tokens whose compressed rows are scored together.
const SCORED_TOKENS: usize = 32;

/// What rows are compressed how.
fn compressions(config: &ModelConfig) -> impl Iterator<Item = Compression> {
    config.layers.iter().filter_map(|layer| match layer.mixer {
        Mixer::Compressed(compression) => compression,
        _ => None,
    })
}

/// Tokens of rows, each once.
fn ratios(config: &ModelConfig) -> Vec<usize> {
    let mut ratios: Vec<_> = compressions(config).map(|it| it.ratio).collect();
    ratios.sort_unstable();
    ratios.dedup();
    ratios
}

/// Words of the buffers: angles, rows of a run, scores, chosen rows.
pub(super) fn sizes(
    config: &ModelConfig,
    options: &GpuOptions,
    layout: &SequenceLayout,
) -> [usize; 4] {
    let Some(shape) = &config.compressed else { return [0; 4] };
    let tokens = options.batch_tokens;
    let scored = compressions(config).filter(|it| it.overlap).map(|it| options.context / it.ratio);
    let scored = scored.filter(|&all| all > shape.index.top).max().unwrap_or(0);
    [
        (1 + ratios(config).len()) * tokens * shape.rope.dims,
        tokens * layout.compressed().row_bytes() / 4,
        tokens.min(SCORED_TOKENS) * scored,
        tokens * shape.index.top,
    ]
}

/// Values of the widest rows that only compressed attention multiplies.
pub(super) fn widest(config: &ModelConfig) -> usize {
    let of = |it: &CompressedConfig| it.query_rank.max(it.output_groups * it.output_rank);
    config.compressed.as_ref().map_or(0, of)
}

/// What of the widths the kernels do not compute.
pub(super) fn unserved(config: &ModelConfig) -> Option<(&'static str, String)> {
    let (shape, attention) = (config.compressed.as_ref()?, &config.attention);
    let part = attention.query_heads / shape.output_groups * attention.head_dim;
    let limits = [
        ("head_dim", attention.head_dim, ROW_LIMIT, 2),
        ("index_head_dim", shape.index.dim, KEY_LIMIT, 2),
        ("qk_rope_head_dim", shape.rope.dims, ROW_LIMIT, 2),
        ("o_groups", part, usize::MAX, 4),
    ];
    limits.into_iter().find_map(|(key, found, limit, step)| {
        let served = found <= limit && found.is_multiple_of(step);
        (!served).then(|| {
            let of = if key == "o_groups" { "makes parts of " } else { "is " };
            (key, format!("{of}{found}; the GPU kernels serve multiples of {step}, up to {limit}"))
        })
    })
}

/// What a batch needs.
pub(super) struct CompressedBuffers {
    /// Cosine and sine of each pair's angle: of the batch's tokens, then for each of [`ratios`] of the first positions
    /// of their rows.
    angles: Buffer,
    span: Buffer,
    scores: Buffer,
    chosen: Buffer,
    frequencies: Vec<f32>,
    magnitude: f32,
    ratios: Vec<usize>,
    layout: Arc<SequenceLayout>,
}

impl CompressedBuffers {
    pub(super) fn new(
        gpu: &mut Gpu,
        config: &ModelConfig,
        sizes: &Sizes,
    ) -> Result<Self, EngineError> {
        let [angles, span, scores, chosen] = sizes.compressed;
        let mut numbers = |count: usize| gpu.buffer("compressed attention", 4 * count as u64);
        let rope = config.compressed.as_ref().map(|shape| &shape.rope);
        Ok(Self {
            angles: numbers(angles)?,
            span: numbers(span)?,
            scores: numbers(scores)?,
            chosen: numbers(chosen)?,
            frequencies: rope.map_or(Vec::new(), |rope| rope.inverse_frequencies()),
            magnitude: rope.map_or(1.0, |rope| rope.magnitude()),
            ratios: ratios(config),
            layout: Arc::clone(&sizes.layout),
        })
    }

    /// A batch begins whose tokens have these positions.
    pub(super) fn tell(&self, gpu: &mut Gpu, positions: &[usize]) -> Result<(), GpuError> {
        if self.frequencies.is_empty() {
            return Ok(());
        }
        let firsts = |ratio: usize| positions.iter().map(move |at| at / ratio * ratio);
        let all = std::iter::once(1).chain(self.ratios.iter().copied());
        let all: Vec<usize> = all.flat_map(firsts).collect();
        gpu.write_floats(&self.angles, 0, &turned_at(&all, &self.frequencies, self.magnitude))
    }

    fn section(&self, number: usize, tokens: usize) -> Angles<'_> {
        let pairs = self.frequencies.len();
        Angles { buffer: &self.angles, first: number * tokens * 2 * pairs, pairs }
    }

    /// Angles of a batch's tokens.
    fn of_tokens(&self, tokens: usize) -> Angles<'_> {
        self.section(0, tokens)
    }

    /// Angles of the first positions of their rows.
    fn of_rows(&self, ratio: usize, tokens: usize) -> Angles<'_> {
        let number = self.ratios.iter().position(|it| *it == ratio);
        self.section(1 + number.expect("every layer's rows are among those"), tokens)
    }
}

/// A layer, and what its launches read and write.
struct Layer<'a> {
    config: &'a ModelConfig,
    shape: CompressedConfig,
    layout: &'a CompressedLayout,
    kv_type: KvType,
    registers: &'a [Buffer],
    vectors: &'a [Buffer],
    held: &'a CompressedBuffers,
    /// Angles of layers without compressed rows, and of this one.
    angles: Angles<'a>,
    number: usize,
    weights: &'a CompressedAttention,
    /// Weights of a norm without.
    ones: &'a Buffer,
    /// Tokens of the batch.
    tokens: usize,
    /// Most tokens of a sequence.
    context: usize,
}

/// A compressor's products: where its inputs are, its weights, and the values of what it makes.
struct Inputs<'a> {
    from: [Register; 2],
    compressor: &'a Compressor,
    dim: usize,
    /// Where the kept values are in the state.
    tail: usize,
}

impl<'a> Layer<'a> {
    fn register(&self, register: Register) -> &'a Buffer {
        &self.registers[register as usize]
    }

    /// Norms and rotations of queries and keys.
    fn turn(&self, gpu: &mut Gpu) -> Result<(), GpuError> {
        let (attention, index) = (&self.config.attention, self.shape.index);
        let (dim, epsilon, tokens) = (attention.head_dim, self.config.rms_epsilon, self.tokens);
        let of_keys = &self.vectors[self.weights.key_norm.index()];
        let mut turn = |register, heads, dim, turn| {
            let of = Heads { tokens, heads, dim };
            compressed_rows::launch_turn(gpu, self.register(register), self.angles, of, turn)
        };
        let queries = Turn::Normed(self.ones, epsilon);
        turn(Register::Query, attention.query_heads, dim, queries)?;
        turn(Register::Key, 1, dim, Turn::Normed(of_keys, epsilon))?;
        if self.weights.indexer.is_none() {
            return Ok(());
        }
        let rounded = key_type(self.kv_type).is_none();
        let kind = if rounded { Turn::Rounded } else { Turn::Forth };
        turn(Register::IndexQuery, index.heads, index.dim, kind)
    }

    /// The rotation of `Context` back.
    fn turn_back(&self, gpu: &mut Gpu) -> Result<(), GpuError> {
        let attention = &self.config.attention;
        let (tokens, heads) = (self.tokens, attention.query_heads);
        let of = Heads { tokens, heads, dim: attention.head_dim };
        let x = self.register(Register::Context);
        compressed_rows::launch_turn(gpu, x, self.angles, of, Turn::Back)
    }

    /// How rows are stored.
    fn rows(&self) -> StoredRows {
        let (stored, plain) = match self.kv_type {
            KvType::F32 => (Stored::F32, 0),
            KvType::Fp8 { rotated } => (Stored::Fp8, usize::from(rotated)),
            _ => (Stored::F16, 0),
        };
        let words = self.layout.row_bytes() / 4;
        StoredRows { stored, dim: self.config.attention.head_dim, plain, words }
    }

    /// How keys of the indexer are stored.
    fn keys(&self) -> StoredRows {
        let stored = match key_type(self.kv_type) {
            Some(KvType::F32) => Stored::F32,
            Some(_) => Stored::F16,
            None => Stored::Fp4,
        };
        let words = self.layout.key_bytes() / 4;
        StoredRows { stored, dim: self.shape.index.dim, plain: 0, words }
    }

    /// Where rows whose range in a page this is lie in the pages.
    fn in_pages<'p>(&self, pages: &'p Buffer, first: &Range<usize>) -> PageRows<'p> {
        let compression = self.weights.compressor.as_ref().map(|(compression, _)| compression);
        let rows = PAGE_TOKENS / compression.map_or(1, |it| it.ratio);
        PageRows { pages, page: self.layout.page_bytes / 4, place: first.start / 4, rows }
    }

    /// Makes the rows that a run completes, and the keys of its indexer.
    fn pool(
        &self,
        gpu: &mut Gpu,
        (state, pages): &Sides,
        compression: Compression,
        run: Run,
    ) -> Result<(), GpuError> {
        let start = self.layout.layer_rows(self.number).start;
        let [rows, keys] = self.layout.tails(self.number).map(|tail| start + tail);
        let Some((_, compressor)) = &self.weights.compressor else { return Ok(()) };
        let dim = self.config.attention.head_dim;
        let from = [Register::CompressedValues, Register::CompressedGates];
        let of = Inputs { from, compressor, dim, tail: rows };
        let to = self.in_pages(pages, &self.layout.row(self.number, 0));
        self.pool_kind(gpu, state, compression, of, (self.rows(), to), run)?;
        let Some(indexer) = &self.weights.indexer else { return Ok(()) };
        let (compressor, dim) = (&indexer.keys, self.shape.index.dim);
        let from = [Register::IndexValues, Register::IndexGates];
        let of = Inputs { from, compressor, dim, tail: keys };
        let to = self.in_pages(pages, &self.layout.keys(self.number, 0..0));
        self.pool_kind(gpu, state, compression, of, (self.keys(), to), run)
    }

    fn pool_kind(
        &self,
        gpu: &mut Gpu,
        state: &Buffer,
        Compression { ratio, overlap }: Compression,
        Inputs { from, compressor, dim, tail }: Inputs<'_>,
        to: (StoredRows, PageRows<'_>),
        run: Run,
    ) -> Result<(), GpuError> {
        let [values, gates] = from.map(|register| self.register(register));
        let added = &self.vectors[compressor.positions.index()];
        let norm = &self.vectors[compressor.norm.index()];
        let of = Pooled { values, gates, added, state, tail, ratio, overlap, dim };
        let angles = self.held.of_rows(ratio, self.tokens);
        let (epsilon, (rows, to)) = (self.config.rms_epsilon, to);
        compressed_rows::launch_pool(gpu, of, Made { norm, epsilon, angles, rows, to }, run)?;
        compressed_rows::launch_keep(gpu, of, run)
    }

    /// Chooses compressed rows for the tokens of a run that see more than they may choose.
    fn choose(
        &self,
        gpu: &mut Gpu,
        pages: &Buffer,
        ratio: usize,
        run: Run,
    ) -> Result<(), GpuError> {
        let index = self.shape.index;
        let to = self.in_pages(pages, &self.layout.keys(self.number, 0..0));
        let of = Scored {
            query: self.register(Register::IndexQuery),
            factors: self.register(Register::IndexWeights),
            heads: index.heads,
            keys: (self.keys(), to),
            ratio,
            top: index.top,
            scores: &self.held.scores,
            stride: self.context / ratio,
            chosen: &self.held.chosen,
        };
        for start in (0..run.tokens).step_by(SCORED_TOKENS) {
            let tokens = SCORED_TOKENS.min(run.tokens - start);
            let (first, position) = (run.first + start, run.position + start);
            if (position + tokens) / ratio > index.top {
                let part = Run { first, tokens, position };
                compressed_attention::launch_choose(gpu, of, part)?;
            }
        }
        Ok(())
    }

    /// A run of a sequence: its rows, the choice, attention, and the window of the next.
    fn attend(&self, gpu: &mut Gpu, sides: &Sides, run: Run) -> Result<(), GpuError> {
        let (state, pages) = sides;
        let compression = self.weights.compressor.as_ref().map(|(compression, _)| *compression);
        let mut top = None;
        if let Some(compression) = compression {
            self.pool(gpu, sides, compression, run)?;
            if self.weights.indexer.is_some() {
                self.choose(gpu, pages, compression.ratio, run)?;
                top = Some(self.shape.index.top);
            }
        }
        let (rows, key) = (self.rows(), self.register(Register::Key));
        let (base, window) = (self.layout.layer_rows(self.number).start, self.shape.window);
        let ring = RowRing { buffer: state, base, rows: window };
        let span = RowRing { buffer: &self.held.span, base: 0, rows: run.tokens };
        let alone = run.tokens == 1;
        match alone {
            true => compressed_rows::launch_store(gpu, key, ring, rows, run)?,
            false => {
                compressed_rows::launch_store(gpu, key, span, rows, Run { position: 0, ..run })?;
            }
        }
        let first = compression.map_or(0..0, |_| self.layout.row(self.number, 0));
        let seen = Seen {
            ring,
            span: (!alone).then_some(&self.held.span),
            pages: (self.in_pages(pages, &first), compression.map(|it| it.ratio)),
            chosen: (&self.held.chosen, top),
            sinks: &self.vectors[self.weights.sinks.index()],
        };
        let ends = (self.register(Register::Query), self.register(Register::Context));
        let heads = self.config.attention.query_heads;
        compressed_attention::launch_attend(gpu, ends, heads, rows, seen, run)?;
        if alone {
            return Ok(());
        }
        let left = run.tokens.saturating_sub(window);
        let (first, position) = (run.first + left, run.position + left);
        let last = Run { first, position, tokens: run.tokens - left };
        compressed_rows::launch_store(gpu, key, ring, rows, last)
    }
}

impl GpuBackend {
    /// From the products of the layer's matrices to `Context`.
    pub(super) fn attend_compressed(
        &mut self,
        layer: LayerId,
        weights: &CompressedAttention,
    ) -> Result<(), GpuError> {
        let Some(shape) = self.config.compressed else { return Ok(()) };
        let plain = Angles { buffer: &self.angles, first: 0, pairs: self.frequencies.len() };
        let of = Layer {
            config: &self.config,
            shape,
            layout: self.compressed.layout.compressed(),
            kv_type: self.options.kv_type,
            registers: &self.registers,
            vectors: &self.vectors,
            held: &self.compressed,
            angles: match weights.compressor {
                Some(_) => self.compressed.of_tokens(self.tokens),
                None => plain,
            },
            number: layer.index(),
            weights,
            ones: &self.constants.ones,
            tokens: self.tokens,
            context: self.options.context,
        };
        let gpu = &mut self.residency.device_mut().gpu;
        of.turn(gpu)?;
        for (number, span) in self.spans.iter().enumerate() {
            of.attend(gpu, self.places.compressed(span.sequence), span.into())?;
            let part = (layer, Part::Compressed);
            self.sequences.keep(&mut self.places.memory(gpu), part, number)?;
        }
        of.turn_back(gpu)
    }

    /// `to` = products of the parts of `from` with as many parts of the rows of a matrix.
    pub(super) fn grouped_linear(
        &mut self,
        from: Register,
        matrix: MatrixId,
        to: Register,
    ) -> Result<(), GpuError> {
        let Some(shape) = self.config.compressed else { return Ok(()) };
        let (heads, matrix) = (shape.output_groups, self.trunk.matrix(matrix.index()));
        let count = matrix.rows / heads;
        let rows = HeadRows { heads, stride: count, first: 0, count };
        let [from, to] = [from, to].map(|register| &self.registers[register as usize]);
        let x = Rows { buffer: from, first: 0, width: matrix.columns };
        let y = Rows { buffer: to, first: 0, width: count };
        let gpu = &mut self.residency.device_mut().gpu;
        head_product::launch(gpu, (matrix, rows), x, y, self.tokens)
    }
}

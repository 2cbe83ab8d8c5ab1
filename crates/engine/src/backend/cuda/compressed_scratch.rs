//! Scratch and constants of models with compressed attention and several residual streams: rotations, rows of a batch,
//! scores, weights of streams, tables that decide experts. What sequences keep is in `state.rs`.

use std::sync::Arc;

use cuda::launch::{self, Rotation, StoredRows, Streams};
use cuda::{CudaError, Device, DeviceBuffer, Span};
use kernels::KvType;
use kernels::format::Encoding;
use store::{ExpertId, LayerId};

use super::buffers::Floats;
use super::{CudaOptions, STEP_TOKENS};
use crate::EngineError;
use crate::model::compressed_attention::{CompressedConfig, Compression};
use crate::model::config::{Mixer, ModelConfig};
use crate::model::hyper_connections::HyperConfig;
use crate::sequences::{CompressedLayout, SequenceLayout, key_type};
use crate::weights::{Catalog, Table};

/// Tokens whose compressed rows are scored together.
const SCORED_TOKENS: usize = 32;

/// Lengths, in values of four bytes unless said otherwise.
#[derive(Clone, Debug)]
pub(super) struct CompressedSizes {
    layout: Arc<SequenceLayout>,
    shape: CompressedConfig,
    hyper: HyperConfig,
    tokens: usize,
    hidden: usize,
    heads: usize,
    dim: usize,
    context: usize,
    kv_type: KvType,
    /// Most rows that a token attends.
    seen: usize,
    /// Most rows that are scored.
    scored: usize,
    /// Bytes of the tables that decide experts.
    tables: usize,
}

impl CompressedSizes {
    pub(super) fn new(
        config: &ModelConfig,
        options: &CudaOptions,
        layout: &Arc<SequenceLayout>,
    ) -> Option<Self> {
        let (shape, hyper) = (config.compressed?, config.hyper?);
        let (mut rows, mut scored) = (0, 0);
        for layer in &config.layers {
            let Mixer::Compressed(Some(Compression { ratio, overlap })) = layer.mixer else {
                continue;
            };
            let all = options.context / ratio;
            rows = rows.max(if overlap { all.min(shape.index.top) } else { all });
            scored = scored.max(if overlap && all > shape.index.top { all } else { 0 });
        }
        let moe = &config.moe;
        let hashed = options.layers.clone().filter(|&layer| layer < moe.hashed_layers).count();
        Some(Self {
            layout: Arc::clone(layout),
            shape,
            hyper,
            tokens: options.batch_tokens,
            hidden: config.hidden,
            heads: config.attention.query_heads,
            dim: config.attention.head_dim,
            context: options.context,
            kv_type: options.kv_type,
            seen: shape.window + rows,
            scored,
            tables: config.vocabulary * moe.top_k * size_of::<u16>() * hashed,
        })
    }

    fn layout(&self) -> &CompressedLayout {
        self.layout.compressed()
    }

    fn partial(&self) -> usize {
        let tokens = STEP_TOKENS.min(self.tokens);
        launch::row_attention_scratch(tokens, self.heads, self.dim, self.seen)
    }

    /// Values of the parts of a batch's context, and of their products.
    fn grouped(&self) -> [usize; 2] {
        let low = self.shape.output_groups * self.shape.output_rank;
        [self.tokens * self.heads * self.dim, self.tokens * low]
    }

    /// Bytes of scratch, frequencies and tables.
    pub(super) fn scratch_bytes(&self) -> usize {
        let floats = self.partial()
            + self.grouped().iter().sum::<usize>()
            + SCORED_TOKENS.min(self.tokens) * self.scored
            + self.tokens * (self.hyper.outputs() + self.hidden + self.shape.index.top)
            + 2 * self.shape.rope.dims;
        4 * floats + self.tokens * self.layout().row_bytes() + self.tables
    }
}

/// Scratch and constants.
pub(super) struct Compressed {
    sizes: CompressedSizes,
    /// Rotation of layers without compressed rows, and with.
    rotations: [(Floats, f32); 2],
    /// Rows of the batch's tokens.
    span: DeviceBuffer,
    pub(super) partial: Floats,
    scores: Floats,
    chosen: DeviceBuffer,
    grouped: [Floats; 2],
    weights: Floats,
    read: Floats,
    /// Of every matrix.
    encodings: Vec<Encoding>,
    /// By table: the numbers in device memory, 16 bits each, and what the host knows.
    tables: Vec<(DeviceBuffer, Table)>,
    /// Experts that the batch's tokens decide, by layer, ascending.
    pub(super) given: Vec<(LayerId, Vec<ExpertId>)>,
    vocabulary: usize,
}

impl Compressed {
    /// Memory for a model of this kind; `None` for others.
    pub(super) fn load(
        device: &Device,
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        sizes: Option<&CompressedSizes>,
    ) -> Result<Option<Self>, EngineError> {
        let Some(sizes) = sizes.cloned() else { return Ok(None) };
        let floats = |length| Floats::new(device, length);
        let rotation = |rope: &crate::model::rope::Rope| {
            let frequencies = rope.inverse_frequencies();
            let held = Floats::new(device, frequencies.len())?;
            held.write(0, &frequencies)?;
            Ok::<_, CudaError>((held, rope.magnitude()))
        };
        let mut tables = Vec::new();
        for table in catalog.read_tables()? {
            let numbers: Vec<u8> = table.numbers().iter().flat_map(|n| n.to_le_bytes()).collect();
            let held = DeviceBuffer::new(device, numbers.len())?;
            held.write(0, &numbers)?;
            tables.push((held, table));
        }
        let [grouped, low] = sizes.grouped();
        let (tokens, top) = (sizes.tokens, sizes.shape.index.top);
        Ok(Some(Self {
            rotations: [rotation(&config.attention.rope)?, rotation(&sizes.shape.rope)?],
            span: DeviceBuffer::new(device, tokens * sizes.layout().row_bytes())?,
            partial: floats(sizes.partial())?,
            scores: floats(SCORED_TOKENS.min(tokens) * sizes.scored)?,
            chosen: DeviceBuffer::new(device, tokens * top * 4)?,
            grouped: [floats(grouped)?, floats(low)?],
            weights: floats(tokens * sizes.hyper.outputs())?,
            read: floats(tokens * sizes.hidden)?,
            encodings: catalog.matrices().map(|(_, _, encoding)| encoding).collect(),
            tables,
            given: Vec::new(),
            vocabulary: config.vocabulary,
            sizes,
        }))
    }

    pub(super) fn shape(&self) -> &CompressedConfig {
        &self.sizes.shape
    }

    pub(super) fn hyper(&self) -> &HyperConfig {
        &self.sizes.hyper
    }

    /// The rotation of a layer, by whether it has compressed rows.
    pub(super) fn rotation(&self, compressed: bool) -> Rotation {
        let (frequencies, magnitude) = &self.rotations[usize::from(compressed)];
        Rotation { frequencies: frequencies.all(), magnitude: *magnitude }
    }

    /// Most rows that a token attends.
    pub(super) fn seen(&self) -> usize {
        self.sizes.seen
    }

    /// The streams in `residual`.
    pub(super) fn streams(&self, residual: Span<f32>) -> Streams {
        let (count, hidden) = (self.sizes.hyper.streams, self.sizes.hidden);
        Streams { values: residual, count, hidden }
    }

    /// Weights of a site, `outputs` for each of `tokens` tokens.
    pub(super) fn weights(&self, tokens: usize, outputs: usize) -> Span<f32> {
        self.weights.part(0, tokens * outputs)
    }

    /// What a block reads before its norm; later, what a mixture gives.
    pub(super) fn read(&self, tokens: usize) -> Span<f32> {
        self.read.part(0, tokens * self.sizes.hidden)
    }

    /// Scratch for parts of a batch's context, and for their products.
    pub(super) fn grouped(&self, width: usize, rank: usize) -> [Span<f32>; 2] {
        [self.grouped[0].part(0, width), self.grouped[1].part(0, rank)]
    }

    /// How a matrix is stored, by its index.
    pub(super) fn encoding(&self, index: usize) -> Encoding {
        self.encodings[index]
    }

    /// A table of `[vocabulary, columns]` numbers, and the columns.
    pub(super) fn table(&self, index: usize) -> (Span<u8>, usize) {
        let (table, columns) = (&self.tables[index].0, self.tables[index].1.columns());
        (table.span(0, self.vocabulary * columns * size_of::<u16>()), columns)
    }

    /// The numbers that a table has for some tokens, distinct and ascending.
    pub(super) fn numbers_of(&self, index: usize, tokens: &[u32]) -> Vec<u16> {
        self.tables[index].1.numbers_of(tokens)
    }

    /// Rows of the `tokens` tokens of a run from `first` on.
    pub(super) fn span(&self, first: usize, tokens: usize) -> Span<u8> {
        let bytes = self.sizes.layout().row_bytes();
        self.span.span(first * bytes, tokens * bytes)
    }

    /// Compressed rows that tokens of a run see, and how many each at the most.
    pub(super) fn chosen(&self, first: usize, tokens: usize) -> (Span<u32>, usize) {
        let top = self.sizes.shape.index.top;
        (self.chosen.span(first * top * 4, tokens * top), top)
    }

    /// Tokens whose rows are scored together, and room for their scores of up to `most` rows each.
    pub(super) fn scores(&self, most: usize) -> (usize, Span<f32>) {
        let tokens = SCORED_TOKENS.min(self.sizes.tokens);
        (tokens, self.scores.part(0, if self.sizes.scored > 0 { tokens * most } else { 0 }))
    }

    /// Most compressed rows of a sequence.
    pub(super) fn most_rows(&self, compression: Compression) -> usize {
        self.sizes.context / compression.ratio
    }

    /// How a layer's rows are stored.
    pub(super) fn stored_rows(&self, layer: LayerId, compressed: bool) -> StoredRows {
        let layout = self.sizes.layout();
        let place = if compressed { layout.row(layer.index(), 0).start } else { 0 };
        let (dim, kind) = (self.sizes.dim, Some(self.sizes.kv_type));
        StoredRows { dim, kind, place, bytes: layout.row_bytes() }
    }

    /// How the keys of a layer's indexer are stored.
    pub(super) fn stored_keys(&self, layer: LayerId) -> StoredRows {
        let layout = self.sizes.layout();
        StoredRows {
            dim: self.sizes.shape.index.dim,
            kind: key_type(self.sizes.kv_type),
            place: layout.keys(layer.index(), 0..0).start,
            bytes: layout.key_bytes(),
        }
    }
}

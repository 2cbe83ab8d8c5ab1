//! What layers keep of a sequence next to keys and values or a recurrent state, and where it lies: keys of an indexer,
//! what layers of hashed n-grams need of the tokens before, and the outputs of the trunk that a head has yet to read.
//!
//! Of a fixed size, in the state of the sequence, are rings: what belongs to position `p` is in place `p` modulo their
//! length, and each is long enough for a round. Complete index keys lie in pages, as the sequence grows.

use std::ops::Range;

use kernels::KvType;

use super::compressed_layout::key_type;
use super::page_rows::Strips;
use super::placement::LayerRows;
use super::snapshot::PAGE_TOKENS;
use crate::model::config::{ModelConfig, Sees};

/// Tokens at the end of a sequence whose outputs of the trunk are kept for a head, which reads several at once.
const HELD_TOKENS: usize = 32;

/// A ring of rows of floats in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// First value among those of all rings.
    start: usize,
    rows: usize,
    width: usize,
}

impl Ring {
    /// Its values.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.width
    }

    /// What belongs to a position, within the ring.
    pub(crate) fn row(&self, position: usize) -> Range<usize> {
        let start = position % self.rows * self.width;
        start..start + self.width
    }

    /// The ring as kernels take it, with the tokens of an index key.
    fn layer_rows(&self, unit: usize) -> LayerRows {
        LayerRows { start: self.start, ratio: unit, overlap: false, window: self.rows }
    }

    /// Positions that have a row.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}

/// Sizes and places of all layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideLayout {
    /// By layer: keys of tokens whose unit is not complete.
    index: Vec<Option<Ring>>,
    /// By layer: what the convolution of n-grams has seen, and the token's id as bits of the last value.
    ngrams: Vec<Option<Ring>>,
    /// By layer: outputs of the trunk, and the token's id as bits of the last value.
    outputs: Vec<Option<Ring>>,
    /// The first byte of index keys in a page.
    first_key: usize,
    /// By layer: the first byte of its index keys in a page, where it has some.
    keys: Vec<Option<usize>>,
    /// Layers with index keys.
    indexed: usize,
    unit: usize,
    key_bytes: usize,
    pub(crate) state_values: usize,
}

impl SideLayout {
    /// What all of `config`'s layers keep; index keys begin at byte `page` of a page.
    pub(crate) fn new(config: &ModelConfig, kv_type: KvType, page: usize) -> Self {
        Self::of_layers(config, &(0..config.layers.len()), kv_type, page)
    }

    /// What the layers keep that a device computes.
    pub(crate) fn of_layers(
        config: &ModelConfig,
        computed: &Range<usize>,
        kv_type: KvType,
        mut page: usize,
    ) -> Self {
        let mut this = Self { unit: 1, first_key: page, ..Self::default() };
        if let Some(index) = &config.index {
            // Caches in which keys are in 4 bits are refused for these models.
            let kind = key_type(kv_type).unwrap_or(KvType::F16);
            (this.unit, this.key_bytes) = (index.unit, kind.bytes_of_head(index.dim));
        }
        for (layer, spec) in config.layers.iter().enumerate() {
            let computed = computed.contains(&layer);
            let index = config.index.filter(|_| computed && spec.sees == Sees::Chosen);
            this.keys.push(index.map(|_| page));
            if index.is_some() {
                this.indexed += 1;
                page += PAGE_TOKENS / this.unit * this.key_bytes;
            }
            let ring = index.and_then(|index| index.kept_rows());
            let ring = ring.map(|(rows, width)| this.push(rows, width));
            this.index.push(ring);
            let ngrams = config.ngrams.as_ref();
            let ngrams = ngrams.filter(|it| computed && it.place(layer).is_some());
            let width = config.streams() * config.hidden + 1;
            let ngrams = ngrams.map(|ngrams| this.push(ngrams.kept_tokens(), width));
            this.ngrams.push(ngrams);
            let head = computed && config.head && layer == config.trunk_layers();
            let outputs = head.then(|| this.push(HELD_TOKENS, config.hidden + 1));
            this.outputs.push(outputs);
        }
        this
    }

    fn push(&mut self, rows: usize, width: usize) -> Ring {
        let ring = Ring { start: self.state_values, rows, width };
        self.state_values += rows * width;
        ring
    }

    /// The ring of a layer's index keys, where it has one: not where each token is a unit.
    pub(crate) fn index(&self, layer: usize) -> Option<Ring> {
        self.index.get(layer).copied().flatten()
    }

    /// The ring of a layer's n-grams, where it has one.
    pub(crate) fn ngrams(&self, layer: usize) -> Option<Ring> {
        self.ngrams.get(layer).copied().flatten()
    }

    /// The ring of a head's layer.
    pub(crate) fn outputs(&self, layer: usize) -> Option<Ring> {
        self.outputs.get(layer).copied().flatten()
    }

    /// What a layer with an indexer keeps, as kernels take it: pages alone where each token is a unit.
    pub(crate) fn index_rows(&self, layer: usize) -> LayerRows {
        let alone = LayerRows { start: 0, ratio: self.unit, overlap: false, window: 0 };
        self.index(layer).map_or(alone, |ring| ring.layer_rows(self.unit))
    }

    /// What a layer of hashed n-grams keeps, as kernels take it.
    pub(crate) fn ngram_rows(&self, layer: usize) -> LayerRows {
        self.ngrams(layer).expect("a layer of n-grams").layer_rows(0)
    }

    /// Values of the state that belong to a ring.
    pub(super) fn range(ring: Option<Ring>) -> Range<usize> {
        ring.map_or(0..0, |ring| ring.range())
    }

    /// Bytes of a page's index keys.
    pub(crate) fn page_bytes(&self) -> usize {
        self.indexed * PAGE_TOKENS / self.unit * self.key_bytes
    }

    /// Where index keys of a layer lie in a page: those of its units `units`.
    pub(crate) fn keys(&self, layer: usize, units: Range<usize>) -> Range<usize> {
        let start = self.first_of(layer);
        start + units.start * self.key_bytes..start + units.end * self.key_bytes
    }

    /// Bytes of an index key.
    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Where index keys of a layer begin among those of a page.
    pub(crate) fn key_start(&self, layer: usize) -> usize {
        self.first_of(layer) - self.first_key
    }

    /// Bytes of a layer's index keys of `tokens` tokens, where those of all pages lie in one piece.
    pub(super) fn layer_bytes(&self, layer: usize, tokens: usize) -> usize {
        self.keys[layer].map_or(0, |_| tokens.div_ceil(self.unit) * self.key_bytes)
    }

    /// Where byte `start` of all pages of index keys lies, where those of each layer lie in one piece: layer and byte.
    pub(super) fn layer_place(&self, start: usize) -> (usize, usize) {
        let (page, at) = (start / self.page_bytes(), start % self.page_bytes());
        let strip = PAGE_TOKENS / self.unit * self.key_bytes;
        let first = Some(self.first_key + at / strip * strip);
        let layer = self.keys.iter().position(|it| *it == first);
        (layer.expect("strips are layers'"), page * strip + at % strip)
    }

    /// The first byte of a layer's index keys in a page.
    fn first_of(&self, layer: usize) -> usize {
        self.keys[layer].expect("a layer with an indexer")
    }

    /// What the first `tokens` tokens of a page fill of it, layer by layer: the keys of their complete units, each
    /// range with its first byte among the index keys of a page.
    pub(super) fn filled(&self, tokens: usize) -> Vec<(usize, Range<usize>)> {
        let layers = self.keys.iter().enumerate().filter(|(_, keys)| keys.is_some());
        let range = |(layer, _)| (self.key_start(layer), self.keys(layer, 0..tokens / self.unit));
        layers.map(range).collect()
    }

    /// The rows of a page, in the order of layers.
    pub(super) fn strips(&self) -> Strips {
        Strips { count: self.indexed, ratio: self.unit, row: self.key_bytes }
    }

    fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.index.iter().chain(&self.ngrams).chain(&self.outputs).flatten()
    }

    /// Most tokens that write to different rows of all rings.
    pub(super) fn round_tokens(&self) -> usize {
        self.rings().map(Ring::rows).min().unwrap_or(usize::MAX)
    }

    /// The bytes of the state of all rings that the token at `position` writes over.
    pub(super) fn overwritten(&self, position: usize) -> Vec<Range<usize>> {
        let bytes = |ring: &Ring| {
            let row = ring.row(position);
            let value = size_of::<f32>();
            (ring.start + row.start) * value..(ring.start + row.end) * value
        };
        self.rings().map(bytes).collect()
    }
}

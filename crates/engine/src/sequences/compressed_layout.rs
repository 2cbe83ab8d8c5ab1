//! What layers of compressed attention keep of a sequence, and where it lies: on every device the same.
//!
//! Of a fixed size, in the state of the sequence: the last rows of the window (position `p` in place `p % window`, so
//! that a row is written over once no later token sees it), and values and gates of the tokens whose compressed rows
//! are not complete, or overlap with one that is not. In pages, as the sequence grows: compressed rows and keys of the
//! indexer. Rows are of the cache's type; with 8-bit rows keys are in 4 bits, after a Hadamard transform.

use std::ops::Range;

use kernels::{KvType, fp4_bytes};

use super::layout::RowForm;
use super::page_rows::Strips;
use super::placement::LayerRows;
use super::snapshot::PAGE_TOKENS;
use crate::model::compressed_attention::Compression;
use crate::model::config::{Mixer, ModelConfig};

/// Places of a layer.
#[derive(Clone, Debug)]
struct CompressedPlace {
    /// First value in the state.
    state: usize,
    /// First byte in a page.
    page: usize,
    compression: Option<Compression>,
}

/// Sizes and places of all layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompressedLayout {
    /// The first layer that the device computes.
    first: usize,
    /// By layer, from the first on.
    places: Vec<CompressedPlace>,
    head_dim: usize,
    index_dim: usize,
    window: usize,
    kv_type: Option<KvType>,
    /// Rows and keys begin at multiples of so many bytes.
    step: usize,
    pub(crate) state_values: usize,
    pub(crate) page_bytes: usize,
}

/// How keys of the indexer are stored: as floats, which products read as they are. `None`: in 4 bits.
pub(crate) fn key_type(rows: KvType) -> Option<KvType> {
    match rows {
        KvType::F32 | KvType::Bf16 => Some(rows),
        KvType::F16 | KvType::Q8 => Some(KvType::F16),
        KvType::Fp8 { .. } => None,
    }
}

impl CompressedLayout {
    /// Of all layers.
    pub(crate) fn new(config: &ModelConfig, kv_type: KvType) -> Self {
        Self::of_layers(config, &(0..config.layers.len()), kv_type, RowForm::Blocks)
    }

    /// Of the layers that a device computes.
    pub(crate) fn of_layers(
        config: &ModelConfig,
        computed: &Range<usize>,
        kv_type: KvType,
        form: RowForm,
    ) -> Self {
        let Some(shape) = &config.compressed else { return Self::default() };
        let mut this = Self {
            first: computed.start,
            head_dim: config.attention.head_dim,
            index_dim: shape.index.dim,
            window: shape.window,
            kv_type: Some(kv_type),
            step: if form == RowForm::Words { size_of::<f32>() } else { 1 },
            ..Self::default()
        };
        for layer in &config.layers[computed.clone()] {
            let Mixer::Compressed(compression) = layer.mixer else { continue };
            let (state, page) = (this.state_values, this.page_bytes);
            this.places.push(CompressedPlace { state, page, compression });
            this.state_values += this.window_values();
            let Some(compression) = compression else { continue };
            let rows = PAGE_TOKENS / compression.ratio;
            this.state_values += 2 * this.tail_values(compression, this.head_dim);
            this.page_bytes += rows * this.row_bytes();
            if compression.overlap {
                this.state_values += 2 * this.tail_values(compression, this.index_dim);
                this.page_bytes += rows * this.key_bytes();
            }
        }
        this
    }

    /// Values of the state that hold a layer's window: the bytes of its rows, in words.
    fn window_values(&self) -> usize {
        (self.window * self.row_bytes()).div_ceil(size_of::<f32>())
    }

    fn tail_values(&self, compression: Compression, dim: usize) -> usize {
        compression.kept_tokens() * compression.width(dim)
    }

    /// Values of the state that belong to a layer.
    pub(crate) fn state_range(&self, layer: usize) -> Range<usize> {
        let next = self.places.get(layer + 1 - self.first);
        self.place(layer).state..next.map_or(self.state_values, |next| next.state)
    }

    /// What a layer keeps, as kernels take it.
    pub(crate) fn layer_rows(&self, layer: usize) -> LayerRows {
        let CompressedPlace { state, compression, .. } = *self.place(layer);
        LayerRows {
            start: state,
            ratio: compression.map_or(0, |it| it.ratio),
            overlap: compression.is_some_and(|it| it.overlap),
            window: self.window,
        }
    }

    /// A layer that the device computes.
    fn place(&self, layer: usize) -> &CompressedPlace {
        &self.places[layer - self.first]
    }

    /// Bytes of a compressed row.
    pub(crate) fn row_bytes(&self) -> usize {
        let bytes = |kind: KvType| kind.bytes_of_head(self.head_dim).next_multiple_of(self.step);
        self.kv_type.map_or(0, bytes)
    }

    /// Bytes of a key of the indexer.
    pub(crate) fn key_bytes(&self) -> usize {
        let bytes = |rows| match key_type(rows) {
            Some(kind) => kind.bytes_of_head(self.index_dim),
            None => fp4_bytes(self.index_dim),
        };
        self.kv_type.map_or(0, |rows| bytes(rows).next_multiple_of(self.step))
    }

    /// Where a compressed row lies in its page.
    pub(crate) fn row(&self, layer: usize, row: usize) -> Range<usize> {
        let start = self.place(layer).page + row * self.row_bytes();
        start..start + self.row_bytes()
    }

    /// Where keys of the indexer lie in a page: those of its first `rows` rows.
    pub(crate) fn keys(&self, layer: usize, rows: Range<usize>) -> Range<usize> {
        let place = self.place(layer);
        let all = PAGE_TOKENS / place.compression.map_or(1, |it| it.ratio);
        let start = place.page + all * self.row_bytes();
        start + rows.start * self.key_bytes()..start + rows.end * self.key_bytes()
    }

    /// The parts of a layer's state: the window (bytes of rows), values and gates of rows, values and gates of keys.
    pub(crate) fn parts<'s>(&self, layer: usize, state: &'s mut [f32]) -> [&'s mut [f32]; 5] {
        let compression = self.place(layer).compression;
        let tail = compression.map_or(0, |it| self.tail_values(it, self.head_dim));
        let keys = compression.filter(|it| it.overlap);
        let keys = keys.map_or(0, |it| self.tail_values(it, self.index_dim));
        let (window, rest) = state.split_at_mut(self.window_values());
        let (values, rest) = rest.split_at_mut(tail);
        let (gates, rest) = rest.split_at_mut(tail);
        let (key_values, key_gates) = rest.split_at_mut(keys);
        [window, values, gates, key_values, key_gates]
    }

    /// Where values of the last tokens lie in a layer's state, for rows and for keys; their gates follow.
    pub(crate) fn tails(&self, layer: usize) -> [usize; 2] {
        let compression = self.place(layer).compression;
        let rows = compression.map_or(0, |it| self.tail_values(it, self.head_dim));
        [self.window_values(), self.window_values() + 2 * rows]
    }

    /// Most tokens that write to different places of all windows and tails.
    pub(crate) fn round_tokens(&self) -> usize {
        let kept = self.places.iter().filter_map(|it| it.compression).map(|it| it.kept_tokens());
        let window = (!self.places.is_empty()).then_some(self.window);
        kept.chain(window).min().unwrap_or(usize::MAX)
    }

    /// The bytes of the state of all layers that the token at `position` writes over.
    pub(crate) fn overwritten(&self, position: usize) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let value = size_of::<f32>();
        for place in &self.places {
            let mut start = place.state * value;
            let row = start + position % self.window * self.row_bytes();
            ranges.push(row..row + self.row_bytes());
            start += self.window_values() * value;
            let Some(compression) = place.compression else { continue };
            let keys = compression.overlap.then_some(self.index_dim);
            for dim in std::iter::once(self.head_dim).chain(keys) {
                let width = compression.width(dim) * value;
                // Values, then gates.
                for _ in 0..2 {
                    let row = start + position % compression.kept_tokens() * width;
                    ranges.push(row..row + width);
                    start += self.tail_values(compression, dim) * value;
                }
            }
        }
        ranges
    }

    /// The rows of a page, in the order of layers.
    pub(crate) fn strips(&self) -> Vec<Strips> {
        let mut strips = Vec::new();
        for Compression { ratio, overlap } in self.places.iter().filter_map(|it| it.compression) {
            strips.push(Strips { count: 1, ratio, row: self.row_bytes() });
            strips.extend(overlap.then(|| Strips { count: 1, ratio, row: self.key_bytes() }));
        }
        strips
    }

    /// The bytes of a page that count when it holds `tokens` tokens: those of rows that are complete.
    pub(crate) fn filled(&self, tokens: usize) -> Vec<Range<usize>> {
        if tokens >= PAGE_TOKENS {
            return std::iter::once(0..self.page_bytes).collect();
        }
        let mut ranges = Vec::new();
        for (layer, place) in (self.first..).zip(&self.places) {
            let Some(compression) = place.compression else { continue };
            let rows = tokens / compression.ratio;
            let start = self.row(layer, 0).start;
            ranges.push(start..start + rows * self.row_bytes());
            ranges.extend(compression.overlap.then(|| self.keys(layer, 0..rows)));
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What V4-Flash keeps, as its shape says.
    #[test]
    fn flash_keeps_few_bytes_of_a_token() {
        let ratios = (0..43).map(|layer| match layer {
            0 | 1 => 0,
            layer if layer % 2 == 0 => 4,
            _ => 128,
        });
        let json = serde_json::json!({
            "model_type": "deepseek_v4", "vocab_size": 129_280, "hidden_size": 4096, "num_hidden_layers": 43,
            "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024,
            "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128,
            "index_topk": 512, "n_routed_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
            "compress_ratios": ratios.chain([0]).collect::<Vec<usize>>(),
        });
        let from = store::format::Configuration::new(std::path::Path::new("config.json"), json);
        let config = ModelConfig::read(&from.unwrap()).unwrap();
        assert_eq!(config.trained_kv_type(), Some(KvType::Fp8 { rotated: 64 }));
        for (kind, bytes, window) in [
            (KvType::F32, 13_760, 11_272_192),
            (KvType::F16, 6_880, 5_636_096),
            (KvType::Fp8 { rotated: 64 }, 3_509, 3_208_832),
        ] {
            let layout = CompressedLayout::new(&config, kind);
            // Not whole bytes for each token: two rows of 128 tokens in a page.
            assert_eq!(layout.page_bytes.div_ceil(PAGE_TOKENS), bytes);
            // Windows of 43 layers, and the tokens of unfinished rows.
            assert_eq!(layout.state_values * size_of::<f32>(), window + 12_206_080);
        }
    }
}

//! What each layer keeps of a sequence and where it lies: one description from which every device allocates, and by
//! which sequences are copied.
//!
//! A sequence has pages, which grow with it, and a state of a fixed size. In a page lie, layer by layer, the keys and
//! then the values of the layers that keep every position, or their latent rows alone, or compressed rows. The state
//! of a snapshot holds the recurrent states of all delta layers, then their convolution tails, then what layers of
//! compressed attention keep, then rings of rows, then windows. Layers are named by their number in the model; those
//! that a device does not compute keep nothing. Each kind is in the order of layers, so that what devices with a range
//! of layers each have of a kind, one after the other, is what one device has of it
//! ([`SequenceLayout::page_kinds`], [`SequenceLayout::state_kinds`]).

use std::ops::Range;
use std::sync::Arc;

use kernels::{DeltaShape, KeyValueBlock, KvType};
use store::LayerId;

use super::compressed_layout::CompressedLayout;
use super::page_rows::{PageRows, Strips};
use super::port::{Memory, Region};
use super::side_layout::{Ring, SideLayout};
use super::snapshot::PAGE_TOKENS;
use super::window_ring::WindowRing;
use super::window_rows::WindowRows;
use crate::model::config::{DeltaConfig, Mixer, ModelConfig};

/// What a layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Rows of every position.
    Paged,
    /// Rows of the last positions.
    Window,
    /// A recurrent state and a convolution tail.
    State,
    /// What compressed attention keeps, in the state and in pages.
    Compressed,
    /// Nothing: another device computes the layer.
    Nothing,
}

/// How a device lays out rows of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowForm {
    /// Blocks of `[heads, PAGE_TOKENS]` rows; windows are rings of such blocks.
    Blocks,
    /// Rows of all heads by position; windows are rows from a base on.
    Rows,
    /// As `Rows`, on a device that reads and copies words: compressed rows and their keys begin at whole words.
    Words,
}

/// Windows of all layers that keep one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Windows {
    /// By layer with a window.
    Rings(Vec<WindowRing>),
    /// One form for all; `None` without such layers.
    Rows(Option<WindowRows>),
}

/// A part of a snapshot's state that belongs to one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The recurrent state.
    State,
    /// The convolution tail.
    Tail,
    /// What compressed attention keeps.
    Compressed,
    /// The rows of a window.
    Window,
    /// Keys of an indexer whose unit is not complete.
    Index,
    /// What a layer of hashed n-grams needs of the tokens before.
    Ngrams,
    /// What a head has yet to read of the last tokens.
    Outputs,
}

/// Sizes and offsets of everything that a sequence carries.
#[derive(Clone, Debug)]
pub(crate) struct SequenceLayout {
    /// By layer: what it keeps, and its number among the layers that keep the same.
    layers: Vec<(Kept, usize)>,
    /// How many layers keep each.
    counts: [usize; 5],
    /// Keys and values, or rows that are both.
    sides: usize,
    /// Bytes of one position's keys in one layer that keeps every position.
    row: usize,
    /// The same in layers with a window.
    window_row: usize,
    /// Heads of keys and values in layers with a window.
    window_heads: usize,
    /// Values of a recurrent state, and of a convolution tail.
    state: usize,
    tail: usize,
    windows: Windows,
    compressed: CompressedLayout,
    side: SideLayout,
    /// Whether index keys of a layer lie in one piece in the place of its values, not by page.
    keys_by_layer: bool,
    /// Where rows lie in a page.
    rows: Arc<PageRows>,
}

/// What each layer keeps, with its number among those of its kind; and how many there are of each kind.
fn kept_by_layer(
    config: &ModelConfig,
    computed: &Range<usize>,
) -> (Vec<(Kept, usize)>, [usize; 5]) {
    let mut counts = [0; 5];
    let kept = config.layers.iter().enumerate().map(|(index, layer)| {
        let kept = match layer.mixer {
            _ if !computed.contains(&index) => Kept::Nothing,
            Mixer::Attention if layer.kept_window().is_some() => Kept::Window,
            Mixer::Attention | Mixer::Latent => Kept::Paged,
            Mixer::DeltaNet => Kept::State,
            Mixer::Compressed(_) => Kept::Compressed,
        };
        counts[kept as usize] += 1;
        (kept, counts[kept as usize] - 1)
    });
    (kept.collect(), counts)
}

/// Numbers of a recurrent state.
fn state_len(delta: &DeltaConfig, form: RowForm) -> usize {
    let &DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = delta;
    match form {
        // The processor's kernels pad columns.
        RowForm::Blocks => DeltaShape { key_heads, value_heads, key_dim, value_dim }.state_len(),
        RowForm::Rows | RowForm::Words => value_heads * key_dim * value_dim,
    }
}

impl SequenceLayout {
    /// Of a device that computes these layers: rows of `kv_type`, in the device's form.
    pub(crate) fn of_layers(
        config: &ModelConfig,
        computed: &Range<usize>,
        kv_type: KvType,
        form: RowForm,
    ) -> Self {
        let (layers, counts) = kept_by_layer(config, computed);
        let attention = &config.attention;
        let (heads, head) = (attention.key_value_heads, kv_type.bytes_of_head(attention.head_dim));
        let windowed = config.windowed.as_ref().unwrap_or(attention);
        let window_heads = windowed.key_value_heads;
        let window_row = window_heads * kv_type.bytes_of_head(windowed.head_dim);
        let sides = if config.latent.is_some() { 1 } else { 2 };
        let delta = config.delta.as_ref();
        let state = delta.map_or(0, |delta| state_len(delta, form));
        let tail = delta.map_or(0, |it| (it.convolution_kernel - 1) * it.channels());
        let windows_of = |layers: Range<usize>| {
            config.layers[layers].iter().filter_map(|layer| layer.kept_window())
        };
        let windows = match form {
            RowForm::Blocks => {
                let (own, block) = (windows_of(computed.clone()), PAGE_TOKENS * window_row);
                Windows::Rings(own.map(|window| WindowRing::new(window, block)).collect())
            }
            RowForm::Rows | RowForm::Words => {
                // As wide as on one device.
                let widest = windows_of(0..config.layers.len()).max();
                Windows::Rows(widest.map(WindowRows::new))
            }
        };
        let compressed = CompressedLayout::of_layers(config, computed, kv_type, form);
        let of_side = match form {
            RowForm::Blocks => heads,
            RowForm::Rows | RowForm::Words => 1,
        };
        let strips = sides * counts[Kept::Paged as usize] * of_side;
        let mut strips = vec![Strips::of_tokens(strips, heads * head / of_side)];
        strips.extend(compressed.strips());
        let side = {
            let page = PageRows::new(strips.clone()).bytes();
            SideLayout::of_layers(config, computed, kv_type, page)
        };
        strips.extend(Some(side.strips()).filter(|it| it.count > 0));
        let rows = Arc::new(PageRows::new(strips));
        let row = heads * head;
        Self {
            layers,
            counts,
            sides,
            row,
            window_row,
            window_heads,
            state,
            tail,
            windows,
            compressed,
            side,
            keys_by_layer: false,
            rows,
        }
    }

    /// The same of a device that has index keys of a layer in one piece, in the place of the values of rows that are
    /// both.
    pub(crate) fn with_keys_by_layer(self) -> Self {
        Self { keys_by_layer: self.sides == 1, ..self }
    }

    /// Layers of the model.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// What a layer keeps.
    pub(crate) fn kept(&self, layer: LayerId) -> Kept {
        self.layers[layer.index()].0
    }

    /// The number of a layer among those that keep the same.
    pub(crate) fn index(&self, layer: LayerId) -> usize {
        debug_assert!(self.kept(layer) != Kept::Nothing, "{layer:?} is another device's");
        self.layers[layer.index()].1
    }

    /// How many layers keep this.
    pub(crate) fn count(&self, kept: Kept) -> usize {
        self.counts[kept as usize]
    }

    /// Two, keys and values; one where rows are both.
    pub(crate) fn sides(&self) -> usize {
        self.sides
    }

    /// Bytes of one position's keys in one layer that keeps every position; its values take as many.
    pub(crate) fn row(&self) -> usize {
        self.row
    }

    /// The same in layers with a window.
    pub(crate) fn window_row(&self) -> usize {
        self.window_row
    }

    /// Bytes of a page's keys in one layer.
    pub(crate) fn side_bytes(&self) -> usize {
        PAGE_TOKENS * self.row
    }

    /// Values of a recurrent state.
    pub(crate) fn state(&self) -> usize {
        self.state
    }

    /// Values of a convolution tail.
    pub(crate) fn tail(&self) -> usize {
        self.tail
    }

    /// What layers of compressed attention keep.
    pub(crate) fn compressed(&self) -> &CompressedLayout {
        &self.compressed
    }

    /// What layers keep in addition.
    pub(crate) fn side(&self) -> &SideLayout {
        &self.side
    }

    /// Bytes of a place's index keys of the layer with number `index` among those that keep every position, where they
    /// lie in one piece.
    pub(crate) fn index_bytes(&self, index: usize, context: usize) -> usize {
        let layer = self.layers.iter().position(|it| *it == (Kept::Paged, index));
        layer.map_or(0, |layer| self.side.layer_bytes(layer, context))
    }

    /// Where bytes of the pages of index keys lie.
    pub(super) fn index_region(&self, place: usize, start: usize, bytes: usize) -> Region {
        if !self.keys_by_layer {
            return Region { place, memory: Memory::IndexPages, start, bytes };
        }
        let (layer, start) = self.side.layer_place(start);
        let memory = Memory::Rows { layer: self.layers[layer].1, side: 1 };
        Region { place, memory, start, bytes }
    }

    /// The ring of a layer, where it keeps a window in one.
    pub(crate) fn ring(&self, layer: LayerId) -> Option<WindowRing> {
        match &self.windows {
            Windows::Rings(rings) if self.kept(layer) == Kept::Window => {
                Some(rings[self.index(layer)])
            }
            _ => None,
        }
    }

    /// The form of windows that are rows from a base on.
    pub(crate) fn window_rows(&self) -> Option<WindowRows> {
        match self.windows {
            Windows::Rows(rows) => rows,
            Windows::Rings(_) => None,
        }
    }

    /// Bytes of the keys, or values, of one place and layer whose window is rows from a base on.
    pub(crate) fn window_place_bytes(&self) -> usize {
        self.window_rows().map_or(0, |rows| rows.place() * self.window_row)
    }

    /// Where rows of tokens lie in a page.
    pub(crate) fn page_rows(&self) -> &Arc<PageRows> {
        &self.rows
    }

    /// Pages of a sequence of `length` tokens.
    pub(super) fn pages(&self, length: usize) -> usize {
        if self.page_bytes() > 0 { length.div_ceil(PAGE_TOKENS) } else { 0 }
    }

    /// Sides of all layers that keep every position.
    pub(super) fn paged_sides(&self) -> usize {
        self.sides * self.count(Kept::Paged)
    }

    /// Layers whose windows are rows from a base on.
    pub(super) fn windows_by_rows(&self) -> usize {
        self.window_rows().map_or(0, |_| self.count(Kept::Window))
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Where a layer's rows lie in a page: keys, then values.
    pub(crate) fn page_range(&self, layer: LayerId) -> Range<usize> {
        let bytes = self.sides * self.side_bytes();
        self.index(layer) * bytes..(self.index(layer) + 1) * bytes
    }

    /// A layer's rows in a page, as keys and values.
    pub(crate) fn block<'p>(&self, layer: LayerId, page: &'p [u8]) -> KeyValueBlock<'p> {
        let (rows, side_bytes) = (&page[self.page_range(layer)], self.side_bytes());
        KeyValueBlock { keys: &rows[..side_bytes], values: &rows[rows.len() - side_bytes..] }
    }

    /// Values of the window of the layer with number `index` among those with one.
    fn window_values(&self, index: usize) -> usize {
        match &self.windows {
            Windows::Rings(rings) => rings[index].values(),
            // Whole words: rows come in multiples of 64.
            Windows::Rows(rows) => {
                rows.map_or(0, |rows| 2 * rows.kept() * self.window_row / size_of::<f32>())
            }
        }
    }

    /// Where the window of the layer with number `index` among those with one begins in a snapshot's state.
    fn window_start(&self, index: usize) -> usize {
        let deltas = self.count(Kept::State) * (self.state + self.tail);
        let before: usize = (0..index).map(|index| self.window_values(index)).sum();
        deltas + self.compressed.state_values + self.side.state_values + before
    }

    /// Where that window lies.
    pub(super) fn window_range(&self, index: usize) -> Range<usize> {
        let start = self.window_start(index);
        start..start + self.window_values(index)
    }

    /// The kinds of rows of a page, where each lies: rows of every position, compressed rows, index keys.
    pub(super) fn page_kinds(&self) -> [Range<usize>; 3] {
        let paged = self.paged_sides() * self.side_bytes();
        let compressed = paged + self.compressed.page_bytes;
        [0..paged, paged..compressed, compressed..self.page_bytes()]
    }

    /// The kinds of values of a snapshot's state, where each lies: recurrent states, convolution tails, what compressed
    /// attention keeps, rings of rows, windows.
    pub(super) fn state_kinds(&self) -> [Range<usize>; 5] {
        let states = self.count(Kept::State) * self.state;
        let (compressed, side) =
            (self.memory_range(Memory::Compressed), self.memory_range(Memory::Side));
        let windows = side.end..self.state_values();
        [0..states, states..compressed.start, compressed, side, windows]
    }

    /// Values of a snapshot's state.
    pub(crate) fn state_values(&self) -> usize {
        self.window_start(self.count(Kept::Window))
    }

    /// Bytes of a snapshot's state.
    pub(crate) fn state_bytes(&self) -> usize {
        self.state_values() * size_of::<f32>()
    }

    /// Most tokens of a round: what each writes over in memory of a fixed size lies apart.
    pub(super) fn round_tokens(&self) -> usize {
        let windows = match &self.windows {
            Windows::Rings(rings) => rings.iter().map(|ring| ring.part_tokens()).min(),
            // A round's rows lie behind those that are seen, and a base never moves past what was kept.
            Windows::Rows(_) => None,
        };
        let others = self.compressed.round_tokens().min(self.side.round_tokens());
        windows.unwrap_or(usize::MAX).min(others)
    }

    /// What the token at `position` writes over in memory of a fixed size, but for recurrent states and convolution
    /// tails. As many bytes of every token.
    pub(super) fn overwritten(&self, place: usize, position: usize) -> Vec<Region> {
        let mut regions = Vec::new();
        if let Windows::Rings(rings) = &self.windows {
            for (layer, ring) in rings.iter().enumerate() {
                let rows = ring.rows(position, self.window_heads).map(|(start, bytes)| Region {
                    place,
                    memory: Memory::Ring(layer),
                    start,
                    bytes,
                });
                regions.extend(rows);
            }
        }
        for (memory, ranges) in [
            (Memory::Compressed, self.compressed.overwritten(position)),
            (Memory::Side, self.side.overwritten(position)),
        ] {
            let region = |range: Range<usize>| {
                let (start, bytes) = (range.start, range.len());
                Region { place, memory, start, bytes }
            };
            regions.extend(ranges.into_iter().map(region));
        }
        regions
    }

    /// The ring of a layer that is this part of its state, where it has one.
    fn side_ring(&self, layer: LayerId, part: Part) -> Option<Ring> {
        match part {
            Part::Index => self.side.index(layer.index()),
            Part::Ngrams => self.side.ngrams(layer.index()),
            Part::Outputs => self.side.outputs(layer.index()),
            Part::State | Part::Tail | Part::Compressed | Part::Window => None,
        }
    }

    /// The ring of a layer that has one as this part.
    pub(crate) fn ring_of(&self, layer: LayerId, part: Part) -> Ring {
        self.side_ring(layer, part).expect("a layer with such a ring")
    }

    /// Where a part of a layer lies in a snapshot's state.
    pub(crate) fn range(&self, layer: LayerId, part: Part) -> Range<usize> {
        let index = self.index(layer);
        match part {
            Part::State => self.memory_range(Memory::State(index)),
            Part::Tail => self.memory_range(Memory::Tail(index)),
            Part::Window => self.window_range(index),
            Part::Compressed => {
                let start = self.memory_range(Memory::Compressed).start;
                let range = self.compressed.state_range(layer.index());
                start + range.start..start + range.end
            }
            Part::Index | Part::Ngrams | Part::Outputs => {
                let start = self.memory_range(Memory::Side).start;
                let range = SideLayout::range(self.side_ring(layer, part));
                start + range.start..start + range.end
            }
        }
    }

    /// Where memory of a fixed size whose content a snapshot has as it is lies in a snapshot's state.
    pub(crate) fn memory_range(&self, memory: Memory) -> Range<usize> {
        let (deltas, state, tail) = (self.count(Kept::State), self.state, self.tail);
        match memory {
            Memory::State(index) => index * state..(index + 1) * state,
            Memory::Tail(index) => {
                let start = deltas * state + index * tail;
                start..start + tail
            }
            Memory::Compressed => {
                let start = deltas * (state + tail);
                start..start + self.compressed.state_values
            }
            Memory::Side => {
                let start = deltas * (state + tail) + self.compressed.state_values;
                start..start + self.side.state_values
            }
            Memory::Ring(index) => self.window_range(index),
            Memory::Rows { .. } | Memory::Pages | Memory::IndexPages | Memory::Window { .. } => {
                0..0
            }
        }
    }

    /// All memory of a fixed size whose content a snapshot has as it is, in the order of its state.
    pub(crate) fn fixed(&self) -> Vec<Memory> {
        let deltas = self.count(Kept::State);
        let mut fixed: Vec<_> = (0..deltas).map(Memory::State).collect();
        fixed.extend((0..deltas).map(Memory::Tail));
        fixed.extend((self.compressed.state_values > 0).then_some(Memory::Compressed));
        fixed.extend((self.side.state_values > 0).then_some(Memory::Side));
        if let Windows::Rings(rings) = &self.windows {
            fixed.extend((0..rings.len()).map(Memory::Ring));
        }
        fixed
    }
}

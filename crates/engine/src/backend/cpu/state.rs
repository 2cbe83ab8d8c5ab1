//! What a sequence carries from token to token: key-value blocks, recurrent states, convolution tails.
//!
//! Keys and values lie in pages of `PAGE_TOKENS` positions, in each per attention layer `[key_value_heads,
//! PAGE_TOKENS]` rows of the cache's type, so that a head's keys are contiguous. Latent rows, which are keys and values
//! at once, lie there once. Pages come from one pool: allocated
//! ahead ([`KvGrowth::Ahead`]: nothing grows while generating) or as a sequence reaches them
//! ([`KvGrowth::Grow`]: a short answer never pays for the whole context; the plan counts the whole). A page
//! that a snapshot holds as well is copied before it is written. Recurrent states are f32 and of fixed size; keys and
//! values of layers that keep a window alone are part of them (`window.rs`).

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use kernels::{AttentionShape, KeyValueBlock, store_rows};
use store::LayerId;

use super::super::SequenceId;
use super::super::compressed_layout::CompressedLayout;
use super::super::pool::{Pool, Pooled};
use super::super::snapshot::{PAGE_TOKENS, Page, Room, Snapshot, read_snapshot};
use super::CpuOptions;
use super::window::{WindowLayout, WindowPlace};
use crate::EngineError;
use crate::model::config::{Mixer, ModelConfig};
use crate::sequences::page_rows::{PageRows, Strips};

/// When key-value pages are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGrowth {
    /// Page by page, as sequences grow.
    #[default]
    Grow,
    /// All at once, before the first token.
    Ahead,
}

/// Sizes of a sequence's state.
#[derive(Clone, Debug)]
pub(super) struct StateLayout {
    /// For each layer, its index among the layers of its kind.
    index: Vec<usize>,
    attention_layers: usize,
    delta_layers: usize,
    /// Bytes of a page's keys in one layer (its values take as many).
    keys_bytes: usize,
    /// Two, keys and values; one where rows are both.
    sides: usize,
    /// Values of one recurrent state.
    recurrent_values: usize,
    /// Values of one convolution tail.
    tail_values: usize,
    compressed: CompressedLayout,
    windows: WindowLayout,
    rows: Arc<PageRows>,
}

impl StateLayout {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Self {
        let (mut attention_layers, mut delta_layers, mut compressed_layers) = (0, 0, 0);
        let mut window_layers = 0;
        let index = config.layers.iter().map(|layer| {
            let counter = match layer.mixer {
                Mixer::Attention if layer.kept_window().is_some() => &mut window_layers,
                Mixer::Attention | Mixer::Latent => &mut attention_layers,
                Mixer::DeltaNet => &mut delta_layers,
                Mixer::Compressed(_) => &mut compressed_layers,
            };
            *counter += 1;
            *counter - 1
        });
        let index = index.collect();
        let (recurrent_values, tail_values) = match &config.delta {
            Some(delta) => (
                super::delta_shape(delta).state_len(),
                (delta.convolution_kernel - 1) * delta.channels(),
            ),
            None => (0, 0),
        };
        let attention = &config.attention;
        let keys_bytes = attention.key_value_heads
            * PAGE_TOKENS
            * options.kv_type.bytes_of_head(attention.head_dim);
        let sides = if config.latent.is_some() { 1 } else { 2 };
        let compressed = CompressedLayout::new(config, options.kv_type);
        let heads = sides * attention_layers * attention.key_value_heads;
        let row = options.kv_type.bytes_of_head(attention.head_dim);
        let mut strips = vec![Strips::of_tokens(heads, row)];
        strips.extend(compressed.strips());
        Self {
            index,
            attention_layers,
            delta_layers,
            keys_bytes,
            sides,
            recurrent_values,
            tail_values,
            compressed,
            windows: WindowLayout::new(config, keys_bytes),
            rows: Arc::new(PageRows::new(strips)),
        }
    }

    /// Bytes of the recurrent part of one sequence.
    pub(super) fn fixed_bytes(&self) -> usize {
        self.state_values() * size_of::<f32>()
    }

    /// Bytes of one page over all attention layers.
    pub(super) fn page_bytes(&self) -> usize {
        self.sides * self.attention_layers * self.keys_bytes + self.compressed.page_bytes
    }

    /// Values of the recurrent part of one sequence: states of all delta layers, then their tails; what layers of
    /// compressed attention keep; windows of the others.
    fn state_values(&self) -> usize {
        self.windows_start() + self.windows.values
    }

    /// Where windows begin in a state.
    fn windows_start(&self) -> usize {
        self.delta_layers * (self.recurrent_values + self.tail_values)
            + self.compressed.state_values
    }

    /// Where the ring of a layer with a window lies in a state.
    fn window_range(&self, place: &WindowPlace) -> Range<usize> {
        let (start, range) = (self.windows_start(), place.range());
        start + range.start..start + range.end
    }

    /// Where a layer's rows begin in a page.
    fn start(&self, layer: LayerId) -> usize {
        self.sides * self.index[layer.index()] * self.keys_bytes
    }

    /// A page: per attention layer keys, then values.
    fn new_page(&self) -> Page {
        Page::Bytes(vec![0; self.page_bytes()])
    }
}

/// State of one sequence.
struct Sequence {
    length: usize,
    /// Those from `length` on are this sequence's alone.
    pages: Vec<Arc<Pooled<Page>>>,
    /// As in a snapshot.
    state: Vec<f32>,
}

/// All sequences of a backend.
pub(super) struct Sequences {
    layout: StateLayout,
    context: usize,
    slots: Vec<Option<Sequence>>,
    pages: Pool<Page>,
    /// Recurrent states of snapshots.
    states: Pool<Vec<f32>>,
}

impl Sequences {
    pub(super) fn new(layout: StateLayout, options: &CpuOptions) -> Self {
        let ahead = options.kv_growth == KvGrowth::Ahead;
        let (pages, shape) = (options.pages(), layout.clone());
        let pages = Pool::new(pages, ahead, move || shape.new_page());
        let values = layout.state_values();
        let states = Pool::new(options.snapshots, ahead, move || vec![0.0; values]);
        let slots = (0..options.sequences).map(|_| None).collect();
        Self { layout, context: options.context, slots, pages, states }
    }

    pub(super) fn create(&mut self) -> Result<SequenceId, EngineError> {
        let Some(free) = self.slots.iter().position(Option::is_none) else {
            let count = self.slots.len();
            let found = format!("all {count} sequences of the plan are in use");
            return Err(EngineError::Request(found));
        };
        let layout = &self.layout;
        self.slots[free] = Some(Sequence {
            length: 0,
            pages: Vec::with_capacity(self.context.div_ceil(PAGE_TOKENS)),
            state: vec![0.0; layout.state_values()],
        });
        Ok(SequenceId(free as u32))
    }

    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.slots[sequence.0 as usize] = None;
    }

    fn get(&mut self, sequence: SequenceId) -> &mut Sequence {
        self.slots[sequence.0 as usize].as_mut().expect("the caller holds a live sequence")
    }

    pub(super) fn snapshot(&self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        let mut state = self.new_state()?;
        let held = self.slots[sequence.0 as usize].as_ref().expect("a live sequence");
        if let Some(state) = &mut state {
            state.copy_from_slice(&held.state);
        }
        Ok(self.assemble(sequence, held.length, state))
    }

    /// Memory for a snapshot's recurrent state; `None` for models without.
    pub(super) fn new_state(&self) -> Result<Option<Pooled<Vec<f32>>>, EngineError> {
        if self.layout.state_values() == 0 {
            return Ok(None);
        }
        let full = || EngineError::Request("no room for another snapshot".to_owned());
        self.states.take().ok_or_else(full).map(Some)
    }

    /// A snapshot at `length` of a sequence whose state there is `state`.
    pub(super) fn assemble(
        &self,
        sequence: SequenceId,
        length: usize,
        state: Option<Pooled<Vec<f32>>>,
    ) -> Snapshot {
        let held = self.slots[sequence.0 as usize].as_ref().expect("a live sequence");
        let pages = held.pages[..length.div_ceil(PAGE_TOKENS)].to_vec();
        let rows = Arc::clone(&self.layout.rows);
        Snapshot { length, pages, rows, state: state.map(Arc::new) }
    }

    pub(super) fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) {
        let sequence = self.get(sequence);
        sequence.length = snapshot.length;
        sequence.pages.clone_from(&snapshot.pages);
        if let Some(state) = &snapshot.state {
            sequence.state.copy_from_slice(state);
        }
    }

    /// A snapshot from outside.
    pub(super) fn read(&self, length: usize, input: &mut dyn Read) -> io::Result<Snapshot> {
        let state = self.new_state().map_err(io::Error::other)?;
        let pages = (&self.pages, length.div_ceil(PAGE_TOKENS));
        read_snapshot(length, &self.layout.rows, pages, state, input)
    }

    pub(super) fn room(&self) -> Room {
        let recurrent = self.layout.state_values() > 0;
        let states = if recurrent { self.states.free() } else { usize::MAX };
        Room { pages: self.pages.free(), states }
    }

    pub(super) fn length(&self, sequence: SequenceId) -> usize {
        self.slots[sequence.0 as usize].as_ref().map_or(0, |sequence| sequence.length)
    }

    /// Makes room for `tokens` more; gives the position of the first.
    pub(super) fn reserve(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<usize, EngineError> {
        let length = self.length(sequence);
        if length + tokens > self.context {
            let context = self.context;
            let found = format!("{length} + {tokens} tokens exceed the context of {context}");
            return Err(EngineError::Request(found));
        }
        let full = || EngineError::Request("the key-value cache is full".to_owned());
        let (pages, held) = (&self.pages, self.slots[sequence.0 as usize].as_mut());
        let held = held.expect("the caller holds a live sequence");
        if !length.is_multiple_of(PAGE_TOKENS) {
            // The page is written from `length` on; what a snapshot holds of it must stay.
            let page = &mut held.pages[length / PAGE_TOKENS];
            if Arc::get_mut(page).is_none() {
                let mut copy = pages.take().ok_or_else(full)?;
                copy.copy_from(page);
                *page = Arc::new(copy);
            }
        }
        while held.pages.len() * PAGE_TOKENS < length + tokens {
            held.pages.push(Arc::new(pages.take().ok_or_else(full)?));
        }
        Ok(length)
    }

    pub(super) fn advance(&mut self, sequence: SequenceId, tokens: usize) {
        self.get(sequence).length += tokens;
    }

    /// Writes `[tokens, key_value_heads, head_dim]` keys and values, or rows that are both, at `position` onwards.
    pub(super) fn append(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        shape: &AttentionShape,
        position: usize,
        sides: &[&[f32]],
    ) {
        assert_eq!(sides.len(), self.layout.sides, "keys and values, or rows that are both");
        let keys_bytes = self.layout.keys_bytes;
        let start = self.layout.start(layer);
        let window = self.layout.windows.place(layer);
        let window = window.map(|place| (place, self.layout.window_range(&place)));
        let width = shape.key_value_heads * shape.head_dim;
        let tokens = sides[0].len() / width;
        let sequence = self.get(sequence);
        let mut done = 0;
        while done < tokens {
            let (block, first) = ((position + done) / PAGE_TOKENS, (position + done) % PAGE_TOKENS);
            let count = (PAGE_TOKENS - first).min(tokens - done);
            let rows = done * width..(done + count) * width;
            let layer = match &window {
                Some((place, range)) => place.block_mut(&mut sequence.state[range.clone()], block),
                None => {
                    let page = owned_page(&mut sequence.pages[block]);
                    &mut page[start..start + sides.len() * keys_bytes]
                }
            };
            for (from, to) in sides.iter().zip(layer.chunks_exact_mut(keys_bytes)) {
                store_rows(shape, first, &from[rows.clone()], to);
            }
            done += count;
        }
    }

    /// Most tokens of a run whose rows are written before they are attended.
    pub(super) fn part_tokens(&self, layer: LayerId) -> usize {
        self.layout.windows.place(layer).map_or(usize::MAX, |place| place.part_tokens())
    }

    /// The blocks of a layer that tokens at `positions` see, and the position where the first of them begins.
    pub(super) fn blocks(
        &self,
        sequence: SequenceId,
        layer: LayerId,
        positions: Range<usize>,
    ) -> (usize, Vec<KeyValueBlock<'_>>) {
        let sequence = self.slots[sequence.0 as usize].as_ref().expect("a live sequence");
        if let Some(place) = self.layout.windows.place(layer) {
            return place.seen(&sequence.state[self.layout.window_range(&place)], positions);
        }
        let keys_bytes = self.layout.keys_bytes;
        let (start, values_at) = (self.layout.start(layer), (self.layout.sides - 1) * keys_bytes);
        let pages = sequence.pages[..positions.end.div_ceil(PAGE_TOKENS)].iter();
        let blocks = pages.map(|page| {
            let layer = &bytes(page)[start..];
            let values = &layer[values_at..values_at + keys_bytes];
            KeyValueBlock { keys: &layer[..keys_bytes], values }
        });
        (0, blocks.collect())
    }

    /// Copies a layer's window, where it keeps one, into the state of a snapshot.
    pub(super) fn keep_window(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        state: Option<&mut Vec<f32>>,
    ) {
        if let (Some(place), Some(state)) = (self.layout.windows.place(layer), state) {
            let range = self.layout.window_range(&place);
            state[range.clone()].copy_from_slice(&self.get(sequence).state[range]);
        }
    }

    /// What a layer of compressed attention has of a sequence.
    pub(super) fn compressed(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
    ) -> CompressedParts<'_> {
        let layout = &self.layout.compressed;
        let slot = self.slots[sequence.0 as usize].as_mut();
        let Sequence { pages, state, .. } = slot.expect("the caller holds a live sequence");
        CompressedParts { layout, state: &mut state[layout.state_range(layer.index())], pages }
    }

    /// Copies what a layer of compressed attention keeps into the state of a snapshot.
    pub(super) fn keep_compressed(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        state: Option<&mut Vec<f32>>,
    ) {
        let range = self.layout.compressed.state_range(layer.index());
        if let Some(state) = state {
            state[range.clone()].copy_from_slice(&self.get(sequence).state[range]);
        }
    }

    /// Where a layer's convolution tail lies in a state.
    fn tail_range(&self, layer: LayerId) -> Range<usize> {
        let values = self.layout.tail_values;
        let states = self.layout.delta_layers * self.layout.recurrent_values;
        let start = states + self.layout.index[layer.index()] * values;
        start..start + values
    }

    /// Where a layer's recurrent state lies in a state.
    fn state_range(&self, layer: LayerId) -> Range<usize> {
        let values = self.layout.recurrent_values;
        let start = self.layout.index[layer.index()] * values;
        start..start + values
    }

    /// `[kernel - 1, channels]` raw inputs before the next token.
    pub(super) fn convolution_tail(&mut self, sequence: SequenceId, layer: LayerId) -> &mut [f32] {
        let range = self.tail_range(layer);
        &mut self.get(sequence).state[range]
    }

    /// The recurrent state of a layer, in the layout of `kernels::delta`.
    pub(super) fn recurrent_state(&mut self, sequence: SequenceId, layer: LayerId) -> &mut [f32] {
        let range = self.state_range(layer);
        &mut self.get(sequence).state[range]
    }

    /// Copies a layer's tail into the state of a snapshot.
    pub(super) fn keep_tail(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        state: Option<&mut Vec<f32>>,
    ) {
        let range = self.tail_range(layer);
        if let Some(state) = state {
            state[range.clone()].copy_from_slice(&self.get(sequence).state[range]);
        }
    }

    /// Copies a layer's recurrent state into the state of a snapshot.
    pub(super) fn keep_state(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        state: Option<&mut Vec<f32>>,
    ) {
        let range = self.state_range(layer);
        if let Some(state) = state {
            state[range.clone()].copy_from_slice(&self.get(sequence).state[range]);
        }
    }
}

/// A page that a snapshot may hold as well.
pub(super) type SharedPage = Arc<Pooled<Page>>;

/// What a layer of compressed attention has of a sequence.
pub(super) struct CompressedParts<'a> {
    pub(super) layout: &'a CompressedLayout,
    /// Its part of the state.
    pub(super) state: &'a mut [f32],
    pub(super) pages: &'a mut [SharedPage],
}

/// The rows of a page that is the sequence's own.
pub(super) fn owned_page(page: &mut SharedPage) -> &mut [u8] {
    bytes_mut(Arc::get_mut(page).expect("`reserve` gave the sequence a page of its own"))
}

/// The rows of a page.
pub(super) fn bytes(page: &Page) -> &[u8] {
    let Page::Bytes(bytes) = page;
    bytes
}

/// The rows of a page that is the sequence's own.
fn bytes_mut(page: &mut Page) -> &mut [u8] {
    let Page::Bytes(bytes) = page;
    bytes
}

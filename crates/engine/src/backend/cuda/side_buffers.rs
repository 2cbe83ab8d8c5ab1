//! Device memory of layers of hashed n-grams, of attention to chosen keys, and of heads: what sequences keep of a fixed
//! size, index keys in pages, scratch.
//!
//! A sequence's state and pages have the layout of the processor (`sequences/side_layout.rs`), pages one after the
//! other in the sequence's place: a snapshot is a copy of them.

use std::sync::Arc;

use cuda::launch::{self, AttentionShape, SequenceRows, StoredRows, TokenPlaces};
use cuda::{CudaError, Device, DeviceBuffer, Span};
use kernels::KvType;
use store::LayerId;

use super::super::PAGE_TOKENS;
use super::buffers::Floats;
use super::{CudaOptions, STEP_TOKENS};
use crate::model::config::ModelConfig;
use crate::model::index::{IndexConfig, IndexForm};
use crate::sequences::{Ring, SequenceLayout, SideLayout, key_type};

/// Tokens whose units are scored together.
const SCORED_TOKENS: usize = 128;

/// Lengths, in values of four bytes unless said otherwise.
#[derive(Clone, Debug)]
pub(super) struct SideSizes {
    layout: Arc<SequenceLayout>,
    index: Option<IndexConfig>,
    kv_type: KvType,
    sequences: usize,
    /// Pages of a sequence.
    pages: usize,
    tokens: usize,
    context: usize,
    /// Whether there are rounds, before which states are put aside: a row of a head's ring that is read was kept.
    rounds: bool,
}

impl SideSizes {
    /// `None` for models without such layers, or where other devices have them.
    pub(super) fn new(
        config: &ModelConfig,
        options: &CudaOptions,
        layout: &Arc<SequenceLayout>,
    ) -> Option<Self> {
        let side = layout.side();
        let some = side.state_values > 0 || side.page_bytes() > 0;
        some.then(|| Self {
            layout: Arc::clone(layout),
            index: config.index,
            kv_type: options.kv_type,
            sequences: options.sequences,
            pages: options.context.div_ceil(PAGE_TOKENS),
            tokens: options.batch_tokens,
            context: options.context,
            rounds: options.round_tokens > 1 && (config.index.is_some() || config.ngrams.is_some()),
        })
    }

    fn side(&self) -> &SideLayout {
        self.layout.side()
    }

    /// Values of the states of all sequences.
    fn state_values(&self) -> usize {
        self.sequences * self.side().state_values
    }

    /// Values of what rounds put aside of them.
    fn aside_values(&self) -> usize {
        if self.rounds { self.state_values() } else { 0 }
    }

    /// Bytes of a sequence's index keys.
    fn sequence_bytes(&self) -> usize {
        self.pages * self.side().page_bytes()
    }

    /// Bytes of the index keys of all sequences.
    fn page_bytes(&self) -> usize {
        self.sequences * self.sequence_bytes()
    }

    /// Bytes of the states of all sequences, of what rounds put aside of them, and of index keys.
    pub(super) fn state_bytes(&self) -> usize {
        4 * (self.state_values() + self.aside_values()) + self.page_bytes()
    }

    /// Most units of a sequence; none where all are seen or another device has the layers that choose.
    fn scored(&self) -> usize {
        let index = self.index.filter(|_| self.side().page_bytes() > 0);
        let most = index.map_or(0, |index| self.context / index.unit);
        if index.is_some_and(|index| most > index.budget) { most } else { 0 }
    }

    fn score_values(&self) -> usize {
        SCORED_TOKENS.min(self.tokens) * self.scored()
    }

    fn chosen_values(&self) -> usize {
        let index = self.index.filter(|_| self.side().page_bytes() > 0);
        index.map_or(0, |index| self.tokens * index.budget)
    }

    /// Values of the scratch of attention of a step.
    pub(super) fn attention_scratch(&self, shape: &AttentionShape) -> Option<usize> {
        let index = self.index.filter(|index| index.form == IndexForm::Joined)?;
        let units = (index.unit, index.budget);
        Some(launch::unit_attention_scratch(shape, STEP_TOKENS.min(self.tokens), units))
    }

    /// Bytes of scratch.
    pub(super) fn scratch_bytes(&self) -> usize {
        4 * (self.score_values() + self.chosen_values())
    }
}

/// What sequences keep, and scratch.
pub(super) struct Side {
    pub(super) sizes: SideSizes,
    /// `[sequences, state_values]`
    pub(super) states: Floats,
    /// As `states`, before the last round of each sequence.
    aside: Floats,
    /// `[sequences, pages]` pages of index keys.
    pub(super) pages: DeviceBuffer,
    scores: Floats,
    chosen: DeviceBuffer,
}

impl Side {
    pub(super) fn new(device: &Device, sizes: &SideSizes) -> Result<Self, CudaError> {
        Ok(Self {
            states: Floats::new(device, sizes.state_values())?,
            aside: Floats::new(device, sizes.aside_values())?,
            pages: DeviceBuffer::new(device, sizes.page_bytes())?,
            scores: Floats::new(device, sizes.score_values())?,
            chosen: DeviceBuffer::new(device, 4 * sizes.chosen_values())?,
            sizes: sizes.clone(),
        })
    }

    /// The state of a sequence, and where it is put aside for a round, if it is.
    pub(super) fn state_and_aside(&self, place: usize) -> Option<[Span<u8>; 2]> {
        let values = self.sizes.side().state_values;
        let both =
            || [&self.states, &self.aside].map(|all| all.part(place * values, values).bytes());
        self.sizes.rounds.then(both)
    }

    /// First byte of the index keys of a sequence.
    pub(super) fn page_start(&self, sequence: usize) -> usize {
        sequence * self.sizes.sequence_bytes()
    }

    /// What a layer keeps of the sequences of a run in a ring of its state; `unit`: tokens of an index key.
    fn rows(&self, ring: Ring, places: TokenPlaces, unit: usize) -> SequenceRows {
        let (sizes, start) = (&self.sizes, SideLayout::start(ring));
        SequenceRows {
            places,
            states: self.states.part(start, sizes.state_values() - start),
            state_stride: sizes.side().state_values,
            pages: self.pages.span(0, sizes.page_bytes()),
            sequence_bytes: sizes.sequence_bytes(),
            page_bytes: sizes.side().page_bytes(),
            page_tokens: PAGE_TOKENS,
            ratio: unit,
            overlap: false,
            window: ring.rows(),
        }
    }

    /// What a layer with an indexer keeps.
    pub(super) fn index_rows(&self, layer: LayerId, places: TokenPlaces) -> SequenceRows {
        let ring = self.sizes.side().index(layer.index()).expect("a layer with an indexer");
        self.rows(ring, places, self.sizes.index.map_or(0, |index| index.unit))
    }

    /// Where the index keys of a layer lie that has one for each token.
    pub(super) fn key_rows(&self, places: TokenPlaces) -> SequenceRows {
        let sizes = &self.sizes;
        SequenceRows {
            places,
            states: self.states.part(0, 0),
            state_stride: 0,
            pages: self.pages.span(0, sizes.page_bytes()),
            sequence_bytes: sizes.sequence_bytes(),
            page_bytes: sizes.side().page_bytes(),
            page_tokens: PAGE_TOKENS,
            ratio: 1,
            overlap: false,
            window: 0,
        }
    }

    /// What a layer of hashed n-grams keeps.
    pub(super) fn ngram_rows(&self, layer: LayerId, places: TokenPlaces) -> SequenceRows {
        let ring = self.sizes.side().ngrams(layer.index()).expect("a layer of n-grams");
        self.rows(ring, places, 0)
    }

    /// How index keys of a layer are stored.
    pub(super) fn stored_keys(&self, layer: LayerId) -> StoredRows {
        let side = self.sizes.side();
        StoredRows {
            dim: self.sizes.index.map_or(0, |index| index.dim),
            kind: key_type(self.sizes.kv_type),
            place: side.key_start(layer.index()),
            bytes: side.key_bytes(),
        }
    }

    /// Units that the first tokens of a batch have chosen, for a batch that is put aside.
    pub(super) fn read_chosen(&self, tokens: usize) -> Result<Vec<u32>, CudaError> {
        let top = self.sizes.index.map_or(0, |index| index.budget);
        let mut chosen = vec![0u32; tokens * top];
        self.chosen.read_bytes(0, bytemuck::cast_slice_mut(&mut chosen))?;
        Ok(chosen)
    }

    /// Takes up what [`Side::read_chosen`] gave.
    pub(super) fn write_chosen(&self, chosen: &[u32]) -> Result<(), CudaError> {
        self.chosen.write(0, bytemuck::cast_slice(chosen))
    }

    /// Units that tokens of a run choose.
    pub(super) fn chosen(&self, first: usize, tokens: usize) -> Span<u32> {
        let top = self.sizes.index.map_or(0, |index| index.budget);
        self.chosen.span(first * top * 4, tokens * top)
    }

    /// Most units of a sequence, tokens whose units are scored together, and room for their scores.
    pub(super) fn scores(&self) -> (usize, usize, Span<f32>) {
        (self.sizes.scored(), SCORED_TOKENS.min(self.sizes.tokens), self.scores.all())
    }
}

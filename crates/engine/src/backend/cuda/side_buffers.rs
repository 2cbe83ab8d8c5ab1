//! Scratch of attention to chosen keys on the device: scores of units, and those that tokens choose. What sequences
//! keep for it is in `state.rs`.

use std::sync::Arc;

use cuda::launch::{self, AttentionShape, StoredRows};
use cuda::{CudaError, Device, DeviceBuffer, Span};
use kernels::KvType;
use store::LayerId;

use super::buffers::Floats;
use super::{CudaOptions, STEP_TOKENS};
use crate::model::config::ModelConfig;
use crate::model::index::{IndexConfig, IndexForm};
use crate::sequences::{SequenceLayout, SideLayout, key_type};

/// Tokens whose units are scored together.
const SCORED_TOKENS: usize = 128;

/// Lengths, in values of four bytes unless said otherwise.
#[derive(Clone, Debug)]
pub(super) struct SideSizes {
    layout: Arc<SequenceLayout>,
    index: Option<IndexConfig>,
    kv_type: KvType,
    tokens: usize,
    context: usize,
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
            tokens: options.batch_tokens,
            context: options.context,
        })
    }

    fn side(&self) -> &SideLayout {
        self.layout.side()
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

/// Scratch.
pub(super) struct Side {
    pub(super) sizes: SideSizes,
    scores: Floats,
    chosen: DeviceBuffer,
}

impl Side {
    pub(super) fn new(device: &Device, sizes: &SideSizes) -> Result<Self, CudaError> {
        Ok(Self {
            scores: Floats::new(device, sizes.score_values())?,
            chosen: DeviceBuffer::new(device, 4 * sizes.chosen_values())?,
            sizes: sizes.clone(),
        })
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

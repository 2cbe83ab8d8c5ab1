//! Sequences on the processor: their pages and states lie in plain memory, where kernels read and write them.
//!
//! Pages come from one pool; a page that a snapshot holds as well is copied before it is written. The state of a
//! sequence has the form that snapshots have; the rings of windows are part of it.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use kernels::{AttentionShape, KeyValueBlock, store_rows};
use store::LayerId;

use super::replay::{ReplayRows, ReplayShape};
use super::{CpuOptions, KvGrowth};
use crate::model::config::ModelConfig;
use crate::sequences::{
    Kept, Limits, PagePart, Part, Region, Ring, SequenceId, SequenceLayout, Sequences, SharedPage,
    StateMemory, cut, cut_mut, page_parts,
};

/// The states of all places, in the form of snapshots.
pub(super) struct HostMemory {
    layout: Arc<SequenceLayout>,
    /// Empty until the place is first used.
    states: Vec<Vec<f32>>,
    /// Where there are rounds, and delta layers.
    replay: Option<ReplayShape>,
    /// What the delta layers of each place were fed in a round; empty until its first.
    replays: Vec<Vec<f32>>,
}

impl HostMemory {
    fn bytes(&mut self, region: &Region) -> &mut [u8] {
        let values = &mut self.states[region.place][self.layout.memory_range(region.memory)];
        &mut bytemuck::cast_slice_mut(values)[region.start..region.start + region.bytes]
    }
}

impl StateMemory for HostMemory {
    type Error = Infallible;

    fn read(&mut self, from: &[Region], to: &mut [u8]) -> Result<(), Infallible> {
        for (region, part) in from.iter().zip(cut_mut(to, from.iter().map(|it| it.bytes))) {
            part.copy_from_slice(self.bytes(region));
        }
        Ok(())
    }

    fn write(&mut self, to: &[Region], from: &[u8]) -> Result<(), Infallible> {
        for (region, part) in to.iter().zip(cut(from, to.iter().map(|it| it.bytes))) {
            self.bytes(region).copy_from_slice(part);
        }
        Ok(())
    }

    fn clear(&mut self, regions: &[Region]) -> Result<(), Infallible> {
        for region in regions {
            if self.states[region.place].is_empty() {
                self.states[region.place] = vec![0.0; self.layout.state_values()];
            }
            self.bytes(region).fill(0);
        }
        Ok(())
    }
}

/// All sequences of the backend, and the memory in which they lie.
pub(super) struct HostSequences {
    sequences: Sequences,
    memory: HostMemory,
}

impl Deref for HostSequences {
    type Target = Sequences;
    fn deref(&self) -> &Sequences {
        &self.sequences
    }
}

impl DerefMut for HostSequences {
    fn deref_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }
}

impl HostSequences {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Self {
        let layout = Arc::new(options.layout(config));
        let memory = HostMemory {
            states: vec![Vec::new(); options.sequences],
            replay: ReplayShape::new(config, options),
            replays: vec![Vec::new(); options.sequences],
            layout: Arc::clone(&layout),
        };
        let copies = [options.pages(), options.snapshots];
        let limits = Limits {
            ahead: options.kv_growth == KvGrowth::Ahead,
            shares_pages: true,
            ..Limits::new(options.sequences, options.context, copies)
        };
        Self { sequences: Sequences::new(layout, limits), memory }
    }

    /// The owner, and its memory.
    pub(super) fn split(&mut self) -> (&mut Sequences, &mut HostMemory) {
        (&mut self.sequences, &mut self.memory)
    }

    /// Copies a part of a layer's state behind a run to the snapshots at the run's end.
    pub(super) fn keep(&mut self, layer: LayerId, part: Part, run: usize) {
        let Ok(()) = self.sequences.keep(&mut self.memory, (layer, part), run);
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
        let Self { sequences, memory: HostMemory { layout, states, .. } } = self;
        assert_eq!(sides.len(), layout.sides(), "keys and values, or rows that are both");
        let (width, state) =
            (shape.key_value_heads * shape.head_dim, &mut states[sequence.place()]);
        for PagePart { page, first, tokens } in page_parts(position, sides[0].len() / width) {
            let block = sequences.block_mut(state, sequence, layer, page);
            let side_bytes = block.len() / sides.len();
            for (from, to) in sides.iter().zip(block.chunks_exact_mut(side_bytes)) {
                store_rows(shape, first, &from[tokens.start * width..tokens.end * width], to);
            }
        }
    }

    /// The blocks of a layer that tokens at `positions` see, and the position where the first of them begins.
    pub(super) fn blocks(
        &self,
        sequence: SequenceId,
        layer: LayerId,
        positions: Range<usize>,
    ) -> (usize, Vec<KeyValueBlock<'_>>) {
        let state = &self.memory.states[sequence.place()];
        self.sequences.blocks(state, sequence, layer, positions)
    }

    /// What a layer has of a sequence, with this part of its state.
    pub(super) fn parts(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        part: Part,
    ) -> LayerParts<'_> {
        let HostMemory { layout, states, .. } = &mut self.memory;
        let state = &mut states[sequence.place()][layout.range(layer, part)];
        LayerParts { layout, state, pages: self.sequences.pages_mut(sequence) }
    }

    /// A ring that a layer has of a sequence, and its rows.
    pub(super) fn ring(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        part: Part,
    ) -> (Ring, &mut [f32]) {
        let LayerParts { layout, state, .. } = self.parts(sequence, layer, part);
        (layout.ring_of(layer, part), state)
    }

    /// The convolution tail (`[kernel - 1, channels]` raw inputs before the next token) or the recurrent state (in the
    /// layout of `kernels::delta`) of a delta layer, and what the layer was fed in a round, where there are rounds.
    pub(super) fn delta(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        part: Part,
    ) -> (&mut [f32], Option<ReplayRows<'_>>) {
        let HostMemory { layout, states, replay, replays } = &mut self.memory;
        let (layers, index) = (layout.count(Kept::State), layout.index(layer));
        let fed = &mut replays[sequence.place()];
        let rows = replay.map(|shape| shape.of_layer(fed, layers, index));
        (&mut states[sequence.place()][layout.range(layer, part)], rows)
    }
}

/// What a layer has of a sequence.
pub(super) struct LayerParts<'a> {
    pub(super) layout: &'a SequenceLayout,
    /// A part of its state.
    pub(super) state: &'a mut [f32],
    pub(super) pages: &'a mut [SharedPage],
}

//! Sequences on the processor: their pages and states lie in plain memory, where kernels read and write them.
//!
//! Pages come from one pool: allocated ahead ([`KvGrowth::Ahead`]: nothing grows while generating) or as a sequence
//! reaches them ([`KvGrowth::Grow`]: a short answer never pays for the whole context; the plan counts the whole). A
//! page that a snapshot holds as well is copied before it is written. The state of a sequence has the form that
//! snapshots have; the rings of windows are part of it.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use kernels::{AttentionShape, KeyValueBlock, store_rows};
use store::LayerId;

use super::CpuOptions;
use super::replay::{ReplayRows, ReplayShape};
use crate::model::config::ModelConfig;
use crate::sequences::{
    CompressedLayout, Kept, Limits, PAGE_TOKENS, Part, Region, Ring, RowForm, SequenceId,
    SequenceLayout, Sequences, SharedPage, SideLayout, StateMemory,
};

/// When key-value pages are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGrowth {
    /// Page by page, as sequences grow.
    #[default]
    Grow,
    /// All at once, before the first token.
    Ahead,
}

/// What a sequence carries on the processor, of the layers computed there.
pub(super) fn layout(config: &ModelConfig, options: &CpuOptions) -> SequenceLayout {
    SequenceLayout::of_layers(config, &options.layers, options.kv_type, RowForm::Blocks)
}

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
    fn part(&mut self, sequence: SequenceId, layer: LayerId, part: Part) -> &mut [f32] {
        &mut self.states[sequence.place()][self.layout.range(layer, part)]
    }

    /// A part of a delta layer, with what the layer was fed in a round, where there are rounds.
    fn delta_part(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        part: Part,
    ) -> (&mut [f32], Option<ReplayRows<'_>>) {
        let (place, layout) = (sequence.place(), &self.layout);
        let range = layout.range(layer, part);
        let rows = self.replay.map(|shape| {
            let (all, values) = (&mut self.replays[place], shape.values());
            if all.is_empty() {
                *all = vec![0.0; layout.count(Kept::State) * values];
            }
            shape.rows(&mut all[layout.index(layer) * values..][..values])
        });
        (&mut self.states[place][range], rows)
    }

    fn bytes(&mut self, region: &Region) -> &mut [u8] {
        let values = &mut self.states[region.place][self.layout.memory_range(region.memory)];
        &mut bytemuck::cast_slice_mut(values)[region.start..region.start + region.bytes]
    }
}

impl StateMemory for HostMemory {
    type Error = Infallible;

    fn shares_pages(&self) -> bool {
        true
    }

    fn read(&mut self, from: &[Region], mut to: &mut [u8]) -> Result<(), Infallible> {
        for region in from {
            let (part, rest) = to.split_at_mut(region.bytes);
            part.copy_from_slice(self.bytes(region));
            to = rest;
        }
        Ok(())
    }

    fn write(&mut self, to: &[Region], mut from: &[u8]) -> Result<(), Infallible> {
        for region in to {
            let (part, rest) = from.split_at(region.bytes);
            self.bytes(region).copy_from_slice(part);
            from = rest;
        }
        Ok(())
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), Infallible> {
        for (from, to) in pairs {
            let bytes = self.bytes(from).to_vec();
            self.bytes(to).copy_from_slice(&bytes);
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
    pub(super) memory: HostMemory,
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
        let layout = Arc::new(layout(config, options));
        let memory = HostMemory {
            layout: Arc::clone(&layout),
            states: (0..options.sequences).map(|_| Vec::new()).collect(),
            replay: ReplayShape::new(config, options),
            replays: (0..options.sequences).map(|_| Vec::new()).collect(),
        };
        let limits = Limits {
            sequences: options.sequences,
            context: options.context,
            pages: options.pages(),
            snapshots: options.snapshots,
            ahead: options.kv_growth == KvGrowth::Ahead,
            stocked: false,
            shares_pages: memory.shares_pages(),
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
        let layout = &self.memory.layout;
        assert_eq!(sides.len(), layout.sides(), "keys and values, or rows that are both");
        let ring = layout.ring(layer);
        let side_bytes = match ring {
            Some(_) => PAGE_TOKENS * layout.window_row(),
            None => layout.side_bytes(),
        };
        let width = shape.key_value_heads * shape.head_dim;
        let tokens = sides[0].len() / width;
        let mut done = 0;
        while done < tokens {
            let (block, first) = ((position + done) / PAGE_TOKENS, (position + done) % PAGE_TOKENS);
            let count = (PAGE_TOKENS - first).min(tokens - done);
            let rows = done * width..(done + count) * width;
            let layer = match ring {
                Some(ring) => {
                    ring.block_mut(self.memory.part(sequence, layer, Part::Window), block)
                }
                None => {
                    let start = self.memory.layout.page_start(layer);
                    let page = owned_page(&mut self.sequences.pages_mut(sequence)[block]);
                    &mut page[start..start + sides.len() * side_bytes]
                }
            };
            for (from, to) in sides.iter().zip(layer.chunks_exact_mut(side_bytes)) {
                store_rows(shape, first, &from[rows.clone()], to);
            }
            done += count;
        }
    }

    /// Most tokens of a run whose rows are written before they are attended.
    pub(super) fn part_tokens(&self, layer: LayerId) -> usize {
        self.memory.layout.ring(layer).map_or(usize::MAX, |ring| ring.part_tokens())
    }

    /// The blocks of a layer that tokens at `positions` see, and the position where the first of them begins.
    pub(super) fn blocks(
        &self,
        sequence: SequenceId,
        layer: LayerId,
        positions: Range<usize>,
    ) -> (usize, Vec<KeyValueBlock<'_>>) {
        let layout = &self.memory.layout;
        if let Some(ring) = layout.ring(layer) {
            let state = &self.memory.states[sequence.place()];
            return ring.seen(&state[layout.range(layer, Part::Window)], positions);
        }
        let side_bytes = layout.side_bytes();
        let (start, values_at) = (layout.page_start(layer), (layout.sides() - 1) * side_bytes);
        let pages = &self.sequences.pages(sequence)[..positions.end.div_ceil(PAGE_TOKENS)];
        let blocks = pages.iter().map(|page| {
            let layer = &page[start..];
            let values = &layer[values_at..values_at + side_bytes];
            KeyValueBlock { keys: &layer[..side_bytes], values }
        });
        (0, blocks.collect())
    }

    /// What a layer of compressed attention has of a sequence.
    pub(super) fn compressed(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
    ) -> CompressedParts<'_> {
        let HostMemory { layout, states, .. } = &mut self.memory;
        let state = &mut states[sequence.place()][layout.range(layer, Part::Compressed)];
        let pages = self.sequences.pages_mut(sequence);
        CompressedParts { layout: layout.compressed(), state, pages }
    }

    /// What a layer of attention to chosen keys has of a sequence.
    pub(super) fn index(&mut self, sequence: SequenceId, layer: LayerId) -> IndexParts<'_> {
        let HostMemory { layout, states, .. } = &mut self.memory;
        let rows = &mut states[sequence.place()][layout.range(layer, Part::Index)];
        let ring = layout.side().index(layer.index()).expect("a layer with an indexer");
        IndexParts { layout: layout.side(), ring, rows, pages: self.sequences.pages_mut(sequence) }
    }

    /// Where index keys lie that every token has, and the pages that hold them.
    pub(super) fn index_keys(&mut self, sequence: SequenceId) -> (&SideLayout, &mut [SharedPage]) {
        (self.memory.layout.side(), self.sequences.pages_mut(sequence))
    }

    /// What a layer of hashed n-grams has of the tokens before.
    pub(super) fn ngrams(&mut self, sequence: SequenceId, layer: LayerId) -> (Ring, &mut [f32]) {
        let HostMemory { layout, states, .. } = &mut self.memory;
        let ring = layout.side().ngrams(layer.index()).expect("a layer of n-grams");
        (ring, &mut states[sequence.place()][layout.range(layer, Part::Ngrams)])
    }

    /// What a head has of the last tokens.
    pub(super) fn outputs(&mut self, sequence: SequenceId, layer: LayerId) -> (Ring, &mut [f32]) {
        let HostMemory { layout, states, .. } = &mut self.memory;
        let ring = layout.side().outputs(layer.index()).expect("the layer of a head");
        (ring, &mut states[sequence.place()][layout.range(layer, Part::Outputs)])
    }

    /// `[kernel - 1, channels]` raw inputs before the next token, and what the layer was fed in a round.
    pub(super) fn convolution(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
    ) -> (&mut [f32], Option<ReplayRows<'_>>) {
        self.memory.delta_part(sequence, layer, Part::Tail)
    }

    /// The recurrent state of a layer, in the layout of `kernels::delta`, and what the layer was fed in a round.
    pub(super) fn recurrence(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
    ) -> (&mut [f32], Option<ReplayRows<'_>>) {
        self.memory.delta_part(sequence, layer, Part::State)
    }

    /// Sets the convolution tails of a sequence to those behind the first `tokens` of its last round.
    pub(super) fn cut_tails(&mut self, sequence: SequenceId, tokens: usize) {
        for layer in (0..self.memory.layout.layers()).map(|layer| LayerId(layer as u16)) {
            if self.memory.layout.kept(layer) == Kept::State
                && let (tail, Some(rows)) = self.convolution(sequence, layer)
            {
                rows.set_tail(tokens, tail);
            }
        }
    }
}

/// What a layer of compressed attention has of a sequence.
pub(super) struct CompressedParts<'a> {
    pub(super) layout: &'a CompressedLayout,
    /// Its part of the state.
    pub(super) state: &'a mut [f32],
    pub(super) pages: &'a mut [SharedPage],
}

/// What a layer of attention to chosen keys has of a sequence.
pub(super) struct IndexParts<'a> {
    pub(super) layout: &'a SideLayout,
    pub(super) ring: Ring,
    /// The rows of the ring: keys of the last tokens, as they were projected.
    pub(super) rows: &'a mut [f32],
    pub(super) pages: &'a mut [SharedPage],
}

/// The rows of a page that is the sequence's own.
pub(super) fn owned_page(page: &mut SharedPage) -> &mut [u8] {
    Arc::get_mut(page).expect("the batch's beginning gave the sequence a page of its own")
}

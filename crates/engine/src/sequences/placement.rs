//! Where places lie on a device that has one buffer of a kind for all of them: place after place, so that first bytes
//! and lengths follow from the layout alone. The device has the buffers.

use std::sync::Arc;

use super::layout::{Kept, SequenceLayout};
use super::port::{Memory, Region};
use super::snapshot::PAGE_TOKENS;

/// A buffer of all places. Numbers are those of layers among those that keep the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PlaceBuffer {
    /// Recurrent states, `[places, layers]`.
    States,
    /// Convolution tails, `[places, layers]`.
    Tails,
    /// Keys on side 0 or values on side 1 of one layer that keeps every position.
    Rows {
        /// The layer.
        layer: usize,
        /// Keys, or values.
        side: usize,
    },
    /// Keys on side 0 or values on side 1 of all layers with a window, `[layers, places]`.
    Windows(usize),
    /// States of compressed attention.
    Compressed,
    /// Pages of compressed rows.
    Pages,
    /// Rings of rows that layers keep in addition.
    Side,
    /// Pages of index keys.
    IndexPages,
}

/// Bytes of a buffer of all places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Which.
    pub(crate) buffer: PlaceBuffer,
    /// The first byte.
    pub(crate) start: usize,
    /// How many.
    pub(crate) bytes: usize,
}

/// Places of layers that keep states of one form for all of them, and pages of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowPlaces {
    /// How many.
    pub(crate) places: usize,
    /// Values of a place's state.
    pub(crate) state_values: usize,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Pages of a place.
    pub(crate) pages: usize,
    /// Whether states are put aside before rounds, place by place as they lie.
    pub(crate) aside: bool,
}

/// What a layer keeps of a sequence in states and pages of rows, as kernels take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerRows {
    /// First value in the state of a place.
    pub(crate) start: usize,
    /// Tokens of a row of pages; 0 in layers without.
    pub(crate) ratio: usize,
    /// Whether such a row takes part of the tokens of the row before as well.
    pub(crate) overlap: bool,
    /// Last positions that have a row in the state.
    pub(crate) window: usize,
}

impl RowPlaces {
    /// Values of all states.
    pub(crate) fn values(&self) -> usize {
        self.places * self.state_values
    }

    /// Values that are put aside.
    pub(crate) fn aside_values(&self) -> usize {
        if self.aside { self.values() } else { 0 }
    }

    /// Bytes of all states, and of what is put aside of them.
    pub(crate) fn bytes_of_states(&self) -> usize {
        size_of::<f32>() * (self.values() + self.aside_values())
    }

    /// Bytes of a place's pages.
    pub(crate) fn sequence_bytes(&self) -> usize {
        self.pages * self.page_bytes
    }

    /// Bytes of all pages.
    pub(crate) fn bytes_of_pages(&self) -> usize {
        self.places * self.sequence_bytes()
    }
}

/// The places of a device.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    layout: Arc<SequenceLayout>,
    places: usize,
    /// Tokens of a place.
    context: usize,
}

impl Placement {
    /// `places` places for sequences of up to `context` tokens.
    pub(crate) fn new(layout: &Arc<SequenceLayout>, places: usize, context: usize) -> Self {
        Self { layout: Arc::clone(layout), places, context }
    }

    /// What compressed attention keeps.
    pub(crate) fn compressed(&self, aside: bool) -> RowPlaces {
        let compressed = self.layout.compressed();
        self.of_rows(compressed.state_values, compressed.page_bytes, aside)
    }

    /// What layers keep in addition.
    pub(crate) fn side(&self, aside: bool) -> RowPlaces {
        let side = self.layout.side();
        self.of_rows(side.state_values, side.page_bytes(), aside)
    }

    fn of_rows(&self, state_values: usize, page_bytes: usize, aside: bool) -> RowPlaces {
        let (places, pages) = (self.places, self.context.div_ceil(PAGE_TOKENS));
        RowPlaces { places, state_values, page_bytes, pages, aside }
    }

    /// Bytes that a place has of a buffer; of [`PlaceBuffer::Windows`] in one layer.
    fn place_bytes(&self, buffer: PlaceBuffer) -> usize {
        let (layout, value) = (&self.layout, size_of::<f32>());
        let deltas = layout.count(Kept::State);
        match buffer {
            PlaceBuffer::States => deltas * layout.state() * value,
            PlaceBuffer::Tails => deltas * layout.tail() * value,
            PlaceBuffer::Rows { .. } => self.context * layout.row(),
            PlaceBuffer::Windows(_) => layout.window_place_bytes(),
            PlaceBuffer::Compressed => self.compressed(false).state_values * value,
            PlaceBuffer::Pages => self.compressed(false).sequence_bytes(),
            PlaceBuffer::Side => self.side(false).state_values * value,
            PlaceBuffer::IndexPages => self.side(false).sequence_bytes(),
        }
    }

    /// Bytes of a buffer.
    pub(crate) fn bytes(&self, buffer: PlaceBuffer) -> usize {
        let layers = match buffer {
            PlaceBuffer::Windows(_) => self.layout.count(Kept::Window),
            _ => 1,
        };
        layers * self.places * self.place_bytes(buffer)
    }

    /// Bytes of the keys, or values, of all windows.
    pub(crate) fn bytes_of_windows(&self) -> usize {
        self.bytes(PlaceBuffer::Windows(0))
    }

    /// Where a region lies.
    pub(crate) fn find(&self, region: &Region) -> Placed {
        let (place, value) = (region.place, size_of::<f32>());
        let (buffer, layer_start) = match region.memory {
            Memory::State(index) => (PlaceBuffer::States, index * self.layout.state() * value),
            Memory::Tail(index) => (PlaceBuffer::Tails, index * self.layout.tail() * value),
            Memory::Rows { layer, side } => (PlaceBuffer::Rows { layer, side }, 0),
            Memory::Window { layer, side } => {
                let buffer = PlaceBuffer::Windows(side);
                (buffer, layer * self.places * self.place_bytes(buffer))
            }
            Memory::Compressed => (PlaceBuffer::Compressed, 0),
            Memory::Pages => (PlaceBuffer::Pages, 0),
            Memory::Side => (PlaceBuffer::Side, 0),
            Memory::IndexPages => (PlaceBuffer::IndexPages, 0),
            Memory::Ring(_) => unreachable!("windows are rows from a base on"),
        };
        let start = layer_start + place * self.place_bytes(buffer) + region.start;
        Placed { buffer, start, bytes: region.bytes }
    }

    /// Where regions lie, those as one that follow each other. Regions of no bytes are left out.
    pub(crate) fn find_all(&self, regions: &[Region]) -> Vec<Placed> {
        let mut found: Vec<Placed> = Vec::with_capacity(regions.len());
        for region in regions.iter().filter(|region| region.bytes > 0) {
            let next = self.find(region);
            match found.last_mut() {
                Some(last)
                    if last.buffer == next.buffer && last.start + last.bytes == next.start =>
                {
                    last.bytes += next.bytes;
                }
                _ => found.push(next),
            }
        }
        found
    }
}

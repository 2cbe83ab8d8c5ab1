//! Buffers in which all sequences have places next to keys, values and recurrent states ([`Buffers`]): states and pages
//! of rows, and windows. Where a place lies in a buffer is said by `sequences/placement.rs`.
//!
//! [`Buffers`]: super::buffers::Buffers

use cuda::launch::{SequenceRows, TokenPlaces};
use cuda::{CudaError, Device, DeviceBuffer, Span};

use super::super::PAGE_TOKENS;
use super::buffers::{Floats, Sizes};
use crate::sequences::{LayerRows, Memory, Placement, Region, RowPlaces, WindowSizes};

/// States and pages of rows of all places. Their layout is that of the processor: a snapshot is a copy of them.
pub(super) struct RowBuffers {
    of: RowPlaces,
    /// `[sequences, state_values]`
    pub(super) states: Floats,
    /// As `states`, before the last round of each sequence.
    aside: Floats,
    /// `[sequences, pages]` pages.
    pub(super) pages: DeviceBuffer,
}

impl RowBuffers {
    /// `None` where no layer keeps any.
    fn new(device: &Device, of: RowPlaces) -> Result<Option<Self>, CudaError> {
        if of.state_values + of.page_bytes == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            states: Floats::new(device, of.values())?,
            aside: Floats::new(device, of.aside_values())?,
            pages: DeviceBuffer::new(device, of.bytes_of_pages())?,
            of,
        }))
    }

    /// The state of a sequence, and where it is put aside for a round, if it is.
    pub(super) fn state_and_aside(&self, place: usize) -> Option<[Span<u8>; 2]> {
        let values = self.of.state_values;
        let part = |all: &Floats| all.part(place * values, values).bytes();
        self.of.aside.then(|| [part(&self.states), part(&self.aside)])
    }

    /// What a layer keeps of the sequences of a run.
    pub(super) fn rows(&self, layer: LayerRows, places: TokenPlaces) -> SequenceRows {
        let LayerRows { start, ratio, overlap, window } = layer;
        SequenceRows {
            places,
            states: self.states.part(start, self.of.values() - start),
            state_stride: self.of.state_values,
            pages: self.pages.span(0, self.of.bytes_of_pages()),
            sequence_bytes: self.of.sequence_bytes(),
            page_bytes: self.of.page_bytes,
            page_tokens: PAGE_TOKENS,
            ratio,
            overlap,
            window,
        }
    }
}

/// Keys and values of layers with a window.
pub(super) struct Windows {
    pub(super) sizes: WindowSizes,
    placement: Placement,
    /// Keys and values, each `[layers, sequences]` places.
    pub(super) places: [DeviceBuffer; 2],
    /// Keys and values of the run in progress, and of the window before it.
    run: [DeviceBuffer; 2],
}

impl Windows {
    /// `None` for models all of whose layers keep all positions.
    fn new(device: &Device, of: &Sizes) -> Result<Option<Self>, CudaError> {
        let Some(sizes) = of.windows else { return Ok(None) };
        let both = |bytes: usize| -> Result<[DeviceBuffer; 2], CudaError> {
            Ok([DeviceBuffer::new(device, bytes)?, DeviceBuffer::new(device, bytes)?])
        };
        let placement = of.placement.clone();
        let (places, run) = (both(placement.bytes_of_windows())?, both(sizes.run_bytes())?);
        Ok(Some(Self { sizes, placement, places, run }))
    }

    /// Rows of a sequence's place and of those behind it: keys, values.
    pub(super) fn rows(
        &self,
        layer: usize,
        place: usize,
        (first, count): (usize, usize),
    ) -> [Span<u8>; 2] {
        let (start, bytes) = (first * self.sizes.row, count * self.sizes.row);
        [0, 1].map(|side| {
            let memory = Memory::Window { layer, side };
            let start = self.placement.find(&Region { place, memory, start, bytes }).start;
            self.places[side].span(start, bytes)
        })
    }

    /// Rows of the run in progress.
    pub(super) fn run_rows(&self, (first, count): (usize, usize)) -> [Span<u8>; 2] {
        let row = self.sizes.row;
        [&self.run[0], &self.run[1]].map(|side| side.span(first * row, count * row))
    }
}

/// Buffers of models whose layers keep more than keys, values and recurrent states.
pub(super) struct PlaceBuffers {
    /// What compressed attention keeps.
    pub(super) compressed: Option<RowBuffers>,
    /// What layers of n-grams, of attention to chosen keys, and heads keep.
    pub(super) side: Option<RowBuffers>,
    pub(super) windows: Option<Windows>,
}

impl PlaceBuffers {
    pub(super) fn new(device: &Device, sizes: &Sizes) -> Result<Self, CudaError> {
        Ok(Self {
            compressed: RowBuffers::new(device, sizes.compressed_rows)?,
            windows: Windows::new(device, sizes)?,
            side: RowBuffers::new(device, sizes.side_rows)?,
        })
    }

    /// What compressed attention keeps, in models that have it.
    pub(super) fn compressed(&self) -> &RowBuffers {
        self.compressed.as_ref().expect("a layout with compressed rows has places")
    }

    /// What layers keep in addition, in models that have such layers.
    pub(super) fn side(&self) -> &RowBuffers {
        self.side.as_ref().expect("a layout whose layers keep more has places")
    }
}

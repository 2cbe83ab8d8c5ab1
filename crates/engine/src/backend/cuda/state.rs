//! Memory of sequences on a CUDA device: what the places have of buffers that all sequences share. Where a place lies
//! in a buffer is said by `sequences/placement.rs`. Keys, values and recurrent states are in [`Buffers`], others here.
//!
//! Copies to and from the process's memory wait for the stream before; a prompt does so once a layer for each snapshot
//! that it is to leave. Regions that lie one after the other are copied as one.

use cuda::launch::{SequenceRows, TokenPlaces};
use cuda::{CudaError, Device, DeviceBuffer, Span, Stream};

use super::super::PAGE_TOKENS;
use super::buffers::{Buffers, Floats, Sizes};
use super::{CudaBackend, CudaOptions};
use crate::sequences::{
    LayerRows, Limits, Memory, PlaceBuffer, Placed, Placement, Region, RowPlaces, Sequences,
    StateMemory, WindowSizes, cut, cut_mut,
};

/// How many sequences and copies of what they have there may be. Memory of copies is not pinned: the driver would do
/// that while kernels of a step wait for the host.
pub(super) fn limits(options: &CudaOptions) -> Limits {
    let copies = [options.snapshot_pages, options.snapshots];
    Limits { stocked: true, ..Limits::new(options.sequences, options.context, copies) }
}

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

/// The buffers in which sequences lie, and the stream that copies them.
pub(super) struct CudaMemory<'a> {
    stream: &'a Stream,
    buffers: &'a Buffers,
    places: &'a PlaceBuffers,
    placement: &'a Placement,
}

impl<'a> CudaMemory<'a> {
    fn buffer(&self, which: PlaceBuffer) -> &'a DeviceBuffer {
        match which {
            PlaceBuffer::States => self.buffers.states.buffer(),
            PlaceBuffer::Tails => self.buffers.tails.buffer(),
            PlaceBuffer::Rows { layer, side } => {
                &[&self.buffers.keys, &self.buffers.values][side][layer]
            }
            PlaceBuffer::Windows(side) => {
                let windows = self.places.windows.as_ref();
                &windows.expect("a layout with windows has places").places[side]
            }
            PlaceBuffer::Compressed => self.places.compressed().states.buffer(),
            PlaceBuffer::Pages => &self.places.compressed().pages,
            PlaceBuffer::Side => self.places.side().states.buffer(),
            PlaceBuffer::IndexPages => &self.places.side().pages,
        }
    }

    fn span(&self, Placed { buffer, start, bytes }: Placed) -> Span<u8> {
        self.buffer(buffer).span(start, bytes)
    }
}

impl StateMemory for CudaMemory<'_> {
    type Error = CudaError;

    fn read(&mut self, from: &[Region], to: &mut [u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        let placed = self.placement.find_all(from);
        let mut parts = placed.iter().zip(cut_mut(to, placed.iter().map(|it| it.bytes)));
        parts.try_for_each(|(it, part)| self.buffer(it.buffer).read_bytes(it.start, part))
    }

    fn write(&mut self, to: &[Region], from: &[u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        let placed = self.placement.find_all(to);
        let mut parts = placed.iter().zip(cut(from, placed.iter().map(|it| it.bytes)));
        parts.try_for_each(|(it, part)| self.buffer(it.buffer).write(it.start, part))
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), CudaError> {
        let place = |region| self.span(self.placement.find(region));
        let mut filled = pairs.iter().filter(|(from, _)| from.bytes > 0);
        filled.try_for_each(|(from, to)| self.stream.copy(place(from), place(to)))
    }

    /// All of what compressed attention keeps of the place, or layers keep in addition, in one copy: a round writes to
    /// some places of each layer. A head's ring needs nothing: a row that is read is one that was kept.
    fn put_aside(&mut self, regions: &[Region]) -> Result<Vec<u8>, CudaError> {
        let Some(first) = regions.first() else { return Ok(Vec::new()) };
        let held = [&self.places.compressed, &self.places.side].into_iter().flatten();
        for [from, to] in held.filter_map(|it| it.state_and_aside(first.place)) {
            self.stream.copy(from, to)?;
        }
        Ok(Vec::new())
    }

    fn put_back(&mut self, regions: &[Region], _bytes: &[u8]) -> Result<(), CudaError> {
        regions.iter().try_for_each(|region| {
            let held = match region.memory {
                Memory::Compressed => self.places.compressed(),
                Memory::Side => self.places.side(),
                _ => unreachable!("only that is written over"),
            };
            // Of a head nothing was put aside.
            let Some([to, from]) = held.state_and_aside(region.place) else { return Ok(()) };
            let part = |all: Span<u8>| all.part(region.start, region.bytes);
            self.stream.copy(part(from), part(to))
        })
    }

    fn clear(&mut self, regions: &[Region]) -> Result<(), CudaError> {
        let placed = self.placement.find_all(regions);
        placed.into_iter().try_for_each(|placed| self.stream.clear(self.span(placed)))
    }
}

impl CudaBackend {
    /// The memory of the sequences.
    pub(super) fn memory(&self) -> CudaMemory<'_> {
        let Self { stream, buffers, place_buffers: places, sizes, .. } = self;
        CudaMemory { stream, buffers, places, placement: &sizes.placement }
    }

    /// The sequences, and the memory in which they lie.
    pub(super) fn sequences_in(&mut self) -> (&mut Sequences, CudaMemory<'_>) {
        let Self { sequences, stream, buffers, place_buffers: places, sizes, .. } = self;
        (sequences, CudaMemory { stream, buffers, places, placement: &sizes.placement })
    }
}

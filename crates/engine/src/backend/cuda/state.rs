//! Memory of sequences on a CUDA device: what the places have of buffers that all sequences share.
//!
//! Copies to and from the process's memory wait for the stream before; a prompt does so once a layer for each snapshot
//! that it is to leave. Regions that lie one after the other are copied as one.

use cuda::{CudaError, DeviceBuffer, Span, Stream};

use super::buffers::Buffers;
use super::places::PlaceBuffers;
use super::{CudaBackend, CudaOptions};
use crate::sequences::{
    Limits, Memory, PlaceBuffer, Placed, Placement, Region, Sequences, StateMemory,
};

/// How many sequences and copies of what they have there may be. Memory of copies is not pinned: the driver would do
/// that while kernels of a step wait for the host.
pub(super) fn limits(options: &CudaOptions) -> Limits {
    let copies = [options.snapshot_pages, options.snapshots];
    Limits { stocked: true, ..Limits::new(options.sequences, options.context, copies) }
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

    fn shares_pages(&self) -> bool {
        false
    }

    fn read(&mut self, from: &[Region], mut to: &mut [u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        for Placed { buffer, start, bytes } in self.placement.find_all(from) {
            let (part, rest) = to.split_at_mut(bytes);
            self.buffer(buffer).read_bytes(start, part)?;
            to = rest;
        }
        Ok(())
    }

    fn write(&mut self, to: &[Region], mut from: &[u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        for Placed { buffer, start, bytes } in self.placement.find_all(to) {
            let (part, rest) = from.split_at(bytes);
            self.buffer(buffer).write(start, part)?;
            from = rest;
        }
        Ok(())
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

//! Memory of sequences on a CUDA device: what the places have of buffers that all sequences share.
//!
//! Copies to and from the process's memory wait for the stream before; a prompt does so once a layer for each snapshot
//! that it is to leave. Regions that lie one after the other are copied as one.

use cuda::{CudaError, DeviceBuffer, Span, Stream};

use super::buffers::{Buffers, Sizes};
use super::compressed_buffers::Compressed;
use super::side_buffers::Side;
use super::windows::Windows;
use super::{CudaBackend, CudaOptions, Register};
use crate::EngineError;
use crate::sequences::{
    Limits, Memory, Region, SequenceId, Sequences, SnapshotPart, StateMemory, Suspended,
};

/// How many sequences and copies of what they have there may be. Memory of copies is not pinned: the driver would do
/// that while kernels of a step wait for the host.
pub(super) fn limits(options: &CudaOptions) -> Limits {
    Limits {
        sequences: options.sequences,
        context: options.context,
        pages: options.snapshot_pages,
        snapshots: options.snapshots,
        ahead: false,
        stocked: true,
        shares_pages: false,
    }
}

/// The buffers in which sequences lie, and the stream that copies them.
pub(super) struct CudaMemory<'a> {
    pub(super) stream: &'a Stream,
    pub(super) buffers: &'a Buffers,
    pub(super) compressed: Option<&'a Compressed>,
    pub(super) side: Option<&'a Side>,
    pub(super) windows: Option<&'a Windows>,
    pub(super) sizes: &'a Sizes,
}

/// Bytes of a buffer.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    buffer: &'a DeviceBuffer,
    start: usize,
    bytes: usize,
}

impl<'a> Bytes<'a> {
    fn span(&self) -> Span<u8> {
        self.buffer.span(self.start, self.bytes)
    }

    /// These and `next`, where `next` follows them.
    fn joined(&self, next: &Self) -> Option<Self> {
        let follows =
            std::ptr::eq(self.buffer, next.buffer) && self.start + self.bytes == next.start;
        follows.then(|| Self { bytes: self.bytes + next.bytes, ..*self })
    }
}

impl<'a> CudaMemory<'a> {
    /// Where a region lies.
    fn find(&self, region: &Region) -> Bytes<'a> {
        let (sizes, place) = (self.sizes, region.place);
        let layout = &sizes.layout;
        // `[sequences, delta_layers, values]`
        let of_delta = |index, values: usize| 4 * (place * sizes.delta_layers + index) * values;
        let compressed = || self.compressed.expect("a layout with compressed rows has places");
        let side = || self.side.expect("a layout whose layers keep more has places");
        let (buffer, start) = match region.memory {
            Memory::State(index) => (self.buffers.states.buffer(), of_delta(index, layout.state())),
            Memory::Tail(index) => (self.buffers.tails.buffer(), of_delta(index, layout.tail())),
            Memory::Rows { layer, side } => {
                let sides = [&self.buffers.keys, &self.buffers.values];
                (&sides[side][layer], place * (sizes.cache_layer / sizes.sequences))
            }
            Memory::Compressed => {
                let values = layout.compressed().state_values;
                (compressed().states.buffer(), 4 * place * values)
            }
            Memory::Pages => (&compressed().pages, compressed().page_start(place, 0)),
            Memory::Window { layer, side } => {
                let windows = self.windows.expect("a layout with windows has places");
                windows.place(layer, place, side)
            }
            Memory::Ring(_) => unreachable!("windows are rows from a base on"),
            Memory::Side => {
                let values = layout.side().state_values;
                (side().states.buffer(), 4 * place * values)
            }
            Memory::IndexPages => (&side().pages, side().page_start(place)),
        };
        Bytes { buffer, start: start + region.start, bytes: region.bytes }
    }

    /// Where regions lie, those as one that follow each other.
    fn find_all(&self, regions: &[Region]) -> Vec<Bytes<'a>> {
        let mut found: Vec<Bytes<'a>> = Vec::with_capacity(regions.len());
        for region in regions.iter().filter(|region| region.bytes > 0) {
            let next = self.find(region);
            match found.last().and_then(|last| last.joined(&next)) {
                Some(joined) => *found.last_mut().expect("just seen") = joined,
                None => found.push(next),
            }
        }
        found
    }
}

impl StateMemory for CudaMemory<'_> {
    type Error = CudaError;

    fn shares_pages(&self) -> bool {
        false
    }

    fn read(&mut self, from: &[Region], mut to: &mut [u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        for bytes in self.find_all(from) {
            let (part, rest) = to.split_at_mut(bytes.bytes);
            bytes.buffer.read_bytes(bytes.start, part)?;
            to = rest;
        }
        Ok(())
    }

    fn write(&mut self, to: &[Region], mut from: &[u8]) -> Result<(), CudaError> {
        self.stream.wait()?;
        for bytes in self.find_all(to) {
            let (part, rest) = from.split_at(bytes.bytes);
            bytes.buffer.write(bytes.start, part)?;
            from = rest;
        }
        Ok(())
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), CudaError> {
        pairs.iter().filter(|(from, _)| from.bytes > 0).try_for_each(|(from, to)| {
            self.stream.copy(self.find(from).span(), self.find(to).span())
        })
    }

    /// All of what compressed attention keeps of the place, or layers keep in addition, in one copy: a round writes to
    /// some places of each layer. A head's ring needs nothing: a row that is read is one that was kept.
    fn put_aside(&mut self, regions: &[Region]) -> Result<Vec<u8>, CudaError> {
        let Some(first) = regions.first() else { return Ok(Vec::new()) };
        let compressed = self.compressed.map(|it| it.state_and_aside(first.place));
        let side = self.side.and_then(|it| it.state_and_aside(first.place));
        for [from, to] in compressed.into_iter().chain(side) {
            self.stream.copy(from, to)?;
        }
        Ok(Vec::new())
    }

    fn put_back(&mut self, regions: &[Region], _bytes: &[u8]) -> Result<(), CudaError> {
        regions.iter().try_for_each(|region| {
            let held = match region.memory {
                Memory::Compressed => self.compressed.map(|it| it.state_and_aside(region.place)),
                Memory::Side => self.side.and_then(|it| it.state_and_aside(region.place)),
                _ => unreachable!("only that is written over"),
            };
            // Of a head nothing was put aside.
            let Some([to, from]) = held else { return Ok(()) };
            let part = |all: Span<u8>| all.part(region.start, region.bytes);
            self.stream.copy(part(from), part(to))
        })
    }

    fn clear(&mut self, regions: &[Region]) -> Result<(), CudaError> {
        self.find_all(regions).iter().try_for_each(|bytes| self.stream.clear(bytes.span()))
    }
}

impl CudaBackend {
    /// The memory of the sequences.
    pub(super) fn memory(&self) -> CudaMemory<'_> {
        CudaMemory {
            stream: &self.stream,
            buffers: &self.buffers,
            compressed: self.compressed.as_ref(),
            side: self.side.as_ref(),
            windows: self.windows.as_ref(),
            sizes: &self.sizes,
        }
    }

    /// The sequences, and the memory in which they lie.
    pub(super) fn sequences_in(&mut self) -> (&mut Sequences, CudaMemory<'_>) {
        let Self { sequences, stream, buffers, compressed, side, windows, sizes, .. } = self;
        let (compressed, windows) = (compressed.as_ref(), windows.as_ref());
        let side = side.as_ref();
        (sequences, CudaMemory { stream, buffers, compressed, side, windows, sizes })
    }

    /// Sets a sequence to a point of any.
    pub(super) fn return_to(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        self.settle()?;
        self.hold_cache(std::iter::once((sequence.place(), snapshot.length())))?;
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.restore(sequence.place(), snapshot);
        }
        let (sequences, mut memory) = self.sequences_in();
        sequences.restore(&mut memory, sequence, snapshot)
    }

    /// Ends the batch.
    pub(super) fn end_batch(&mut self) {
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.commit(self.sequences.spans());
        }
        let answers = self.single;
        let (sequences, mut memory) = self.sequences_in();
        if let Err(error) = sequences.commit(&mut memory, answers) {
            self.failure = Some(error);
        }
    }

    /// The batch in progress, between two layers of a prompt; `None` for a step and when a copy fails. Records that
    /// were read ahead for the next layer stay where they are.
    pub(super) fn put_aside(&mut self) -> Option<Suspended> {
        if self.single || self.failure.is_some() || self.stream.wait().is_err() {
            return None;
        }
        let mut residual = Vec::new();
        if self.at_work {
            residual.resize(self.register(Register::Residual).len(), 0.0);
            self.buffers.registers[Register::Residual as usize].read(0, &mut residual).ok()?;
        }
        let tokens = self.buffers.pinned.inputs.collect(0..self.tokens).collect();
        let side = self.side.as_ref().filter(|_| self.config.shares_choices());
        let chosen = side.map(|side| side.read_chosen(self.tokens)).transpose().ok()?;
        let mut suspended = self.sequences.suspend(tokens, residual);
        suspended.chosen = chosen.unwrap_or_default();
        Some(suspended)
    }

    /// Goes on with a prompt's batch.
    pub(super) fn take_up(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.finish_step()?;
        self.end_given_up()?;
        self.stream.wait()?;
        if let Some(side) = self.side.as_ref().filter(|_| !suspended.chosen.is_empty()) {
            side.write_chosen(&suspended.chosen)?;
        }
        let (tokens, residual) = self.sequences.resume(suspended);
        self.tokens = tokens.len();
        self.single = false;
        self.place_windows()?;
        // Rows are asked for again where their layer is still to come.
        self.expect_ngrams(tokens.iter().copied(), false);
        self.write_inputs(tokens.into_iter());
        self.upload_inputs()?;
        self.at_work = !residual.is_empty();
        if self.at_work {
            self.buffers.registers[Register::Residual as usize].write(0, &residual)?;
        }
        self.begin_step()
    }
}

//! Memory of sequences on a portable GPU: each has buffers of its own, by layer.

use std::sync::Arc;

use gpu::op::attention::Run as GpuRun;
use gpu::{Buffer, Gpu, GpuError};
use store::LayerId;

use super::GpuOptions;
use super::requirements::Sizes;
use super::windows::{Sides, Windows};
use crate::EngineError;
use crate::sequences::{
    Kept, Limits, Memory, Region, SequenceId, SequenceLayout, Sequences, Span as Placed,
    StateMemory,
};

/// A run of the batch in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) sequence: SequenceId,
    pub(super) run: GpuRun,
    /// As in [`Placed`].
    pub(super) base: usize,
}

impl From<&Placed> for Span {
    fn from(span: &Placed) -> Self {
        let Placed { sequence, first, tokens, position, base } = *span;
        Self { sequence, run: GpuRun { first, tokens, position }, base }
    }
}

/// Buffers of one sequence.
struct Place {
    /// By layer that keeps all positions: keys, values.
    caches: Vec<Sides>,
    /// By delta layer: recurrent state, convolution tail.
    states: Vec<(Buffer, Buffer)>,
}

/// Buffers of all sequences.
pub(super) struct Places {
    layout: Arc<SequenceLayout>,
    places: Vec<Place>,
    /// Of models that have layers with a window.
    pub(super) windows: Option<Windows>,
}

impl Places {
    pub(super) fn new(
        gpu: &mut Gpu,
        options: &GpuOptions,
        sizes: &Sizes,
    ) -> Result<Self, EngineError> {
        let layout = Arc::clone(&sizes.layout);
        let mut places = Vec::with_capacity(options.sequences);
        for _ in 0..options.sequences {
            let mut pairs = |count: usize, what: [&str; 2], bytes: [u64; 2]| {
                (0..count)
                    .map(|_| Ok((gpu.buffer(what[0], bytes[0])?, gpu.buffer(what[1], bytes[1])?)))
                    .collect::<Result<Vec<_>, EngineError>>()
            };
            let cache = sizes.sides_bytes();
            let recurrent = [4 * layout.state() as u64, 4 * layout.tail() as u64];
            let (deltas, what) = (layout.count(Kept::State), "recurrent state");
            places.push(Place {
                caches: pairs(layout.count(Kept::Paged), ["keys of a context"; 2], cache)?,
                states: pairs(deltas, [what, "convolution tail"], recurrent)?,
            });
        }
        let windows = sizes.windows.as_ref();
        let windows = windows.map(|sizes| Windows::new(gpu, sizes, options.sequences));
        Ok(Self { layout, places, windows: windows.transpose()? })
    }

    /// The owner of the sequences that lie here.
    pub(super) fn owner(&self, options: &GpuOptions) -> Sequences {
        let limits = Limits {
            sequences: options.sequences,
            context: options.context,
            pages: options.snapshot_pages,
            snapshots: options.snapshots,
            ahead: false,
            stocked: false,
            shares_pages: false,
        };
        Sequences::new(Arc::clone(&self.layout), limits)
    }

    /// Keys and values of a layer that keeps all positions.
    pub(super) fn cache(&self, sequence: SequenceId, layer: LayerId) -> &Sides {
        &self.places[sequence.place()].caches[self.layout.index(layer)]
    }

    /// Recurrent state and convolution tail of a layer.
    pub(super) fn recurrent(&self, sequence: SequenceId, layer: LayerId) -> &(Buffer, Buffer) {
        &self.places[sequence.place()].states[self.layout.index(layer)]
    }

    /// What sequences are copied through.
    pub(super) fn memory<'a>(&'a self, gpu: &'a mut Gpu) -> GpuMemory<'a> {
        GpuMemory { gpu, places: self }
    }

    fn buffer(&self, region: &Region) -> &Buffer {
        let place = &self.places[region.place];
        match region.memory {
            Memory::State(index) => &place.states[index].0,
            Memory::Tail(index) => &place.states[index].1,
            Memory::Rows { layer, side } => {
                let (keys, values) = &place.caches[layer];
                if side == 0 { keys } else { values }
            }
            Memory::Window { layer, side } => {
                let windows = self.windows.as_ref().expect("a layout with windows has places");
                let (keys, values) = &windows.places[region.place][layer];
                if side == 0 { keys } else { values }
            }
            Memory::Compressed
            | Memory::Side
            | Memory::Ring(_)
            | Memory::Pages
            | Memory::IndexPages => {
                unreachable!("models with {:?} are refused", region.memory)
            }
        }
    }
}

/// The memory of the places, and the device that copies it.
pub(super) struct GpuMemory<'a> {
    gpu: &'a mut Gpu,
    places: &'a Places,
}

impl StateMemory for GpuMemory<'_> {
    type Error = GpuError;

    fn shares_pages(&self) -> bool {
        false
    }

    fn read(&mut self, from: &[Region], to: &mut [u8]) -> Result<(), GpuError> {
        let part = |region: &Region| (region.start as u64, region.bytes as u64);
        let parts = from.iter().map(|region| {
            let (start, bytes) = part(region);
            (self.places.buffer(region), start, bytes)
        });
        let read = self.gpu.read(&parts.collect::<Vec<_>>())?;
        to.copy_from_slice(&read);
        Ok(())
    }

    fn write(&mut self, to: &[Region], mut from: &[u8]) -> Result<(), GpuError> {
        for region in to {
            let (part, rest) = from.split_at(region.bytes);
            self.gpu.write(self.places.buffer(region), region.start as u64, part)?;
            from = rest;
        }
        Ok(())
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), GpuError> {
        for (from, to) in pairs {
            let [source, target] = [from, to].map(|region| self.places.buffer(region));
            let (start, at, bytes) = (from.start as u64, to.start as u64, from.bytes as u64);
            match (&self.places.windows, from.place == to.place) {
                // A buffer cannot be copied to itself.
                (Some(windows), true) => {
                    self.gpu.copy(source, start, &windows.run.0, 0, bytes);
                    self.gpu.copy(&windows.run.0, 0, target, at, bytes);
                }
                _ => self.gpu.copy(source, start, target, at, bytes),
            }
        }
        Ok(())
    }

    fn clear(&mut self, regions: &[Region]) -> Result<(), GpuError> {
        regions.iter().for_each(|region| self.gpu.clear(self.places.buffer(region)));
        Ok(())
    }
}

//! Memory of sequences on a portable GPU: each has buffers of its own, by layer.

use std::sync::Arc;

use gpu::{Buffer, Gpu, GpuError};
use store::LayerId;

use super::GpuOptions;
use super::requirements::Sizes;
use crate::EngineError;
use crate::sequences::{
    Kept, Limits, Memory, Region, SequenceId, SequenceLayout, Sequences, StateMemory, cut,
};

/// Two buffers of a layer, as keys and values.
pub(super) type Sides = (Buffer, Buffer);

/// Buffers of one sequence.
struct Place {
    /// By layer that keeps all positions: keys, values; or rows that are both, index keys.
    caches: Vec<Sides>,
    /// By delta layer: recurrent state, convolution tail.
    states: Vec<Sides>,
    /// By layer with a window: keys, values.
    windows: Vec<Sides>,
    /// State and pages of compressed attention, in models that have it.
    compressed: Vec<Sides>,
}

/// Buffers of all sequences.
pub(super) struct Places {
    layout: Arc<SequenceLayout>,
    places: Vec<Place>,
    /// The run in progress behind the window before it, of models that have layers with a window.
    run: Option<Sides>,
}

impl Places {
    pub(super) fn new(
        gpu: &mut Gpu,
        options: &GpuOptions,
        sizes: &Sizes,
    ) -> Result<Self, EngineError> {
        let layout = Arc::clone(&sizes.layout);
        let mut pairs = |count: usize, what: [&str; 2], bytes: &dyn Fn(usize) -> [u64; 2]| {
            let mut one = |side: usize, it: usize| gpu.buffer(what[side], bytes(it)[side]);
            let pairs = (0..count).map(|it| Ok((one(0, it)?, one(1, it)?)));
            pairs.collect::<Result<Vec<Sides>, EngineError>>()
        };
        let recurrent = ["recurrent state", "convolution tail"];
        let (rows, of_rows) = (["state of rows", "compressed rows"], sizes.compressed_bytes());
        let (count, window) = (|kept| layout.count(kept), layout.window_place_bytes() as u64);
        let sides = |it: usize| sizes.sides_bytes(it);
        let mut places = Vec::with_capacity(options.sequences);
        for _ in 0..options.sequences {
            places.push(Place {
                caches: pairs(count(Kept::Paged), ["keys of a context"; 2], &sides)?,
                states: pairs(count(Kept::State), recurrent, &|_| sizes.recurrent_bytes())?,
                windows: pairs(count(Kept::Window), ["keys of a window"; 2], &|_| [window; 2])?,
                compressed: pairs(sizes.compressed_places(), rows, &|_| of_rows)?,
            });
        }
        let run = sizes.windows.map(|it| it.run_bytes() as u64);
        let run = pairs(run.iter().len(), ["keys of a run"; 2], &|_| [run.unwrap_or(0); 2])?.pop();
        Ok(Self { layout, places, run })
    }

    /// The owner of the sequences that lie here.
    pub(super) fn owner(&self, options: &GpuOptions) -> Sequences {
        let copies = [options.snapshot_pages, options.snapshots];
        let limits = Limits::new(options.sequences, options.context, copies);
        Sequences::new(Arc::clone(&self.layout), limits)
    }

    /// Keys and values of a layer that keeps all positions.
    pub(super) fn cache(&self, sequence: SequenceId, layer: LayerId) -> &Sides {
        &self.places[sequence.place()].caches[self.layout.index(layer)]
    }

    /// Recurrent state and convolution tail of a layer.
    pub(super) fn recurrent(&self, sequence: SequenceId, layer: LayerId) -> &Sides {
        &self.places[sequence.place()].states[self.layout.index(layer)]
    }

    /// Keys and values of a layer with a window.
    pub(super) fn window(&self, sequence: SequenceId, layer: LayerId) -> &Sides {
        &self.places[sequence.place()].windows[self.layout.index(layer)]
    }

    /// State and pages of compressed attention.
    pub(super) fn compressed(&self, sequence: SequenceId) -> &Sides {
        &self.places[sequence.place()].compressed[0]
    }

    /// Keys and values of a prompt's run in a layer with a window, and of the window before it.
    pub(super) fn run(&self) -> &Sides {
        self.run.as_ref().expect("a layout with windows has a buffer for runs")
    }

    /// What sequences are copied through.
    pub(super) fn memory<'a>(&'a self, gpu: &'a mut Gpu) -> GpuMemory<'a> {
        GpuMemory { gpu, places: self }
    }

    fn buffer(&self, region: &Region) -> &Buffer {
        let place = &self.places[region.place];
        let ((first, second), side) = match region.memory {
            Memory::State(index) => (&place.states[index], 0),
            Memory::Tail(index) => (&place.states[index], 1),
            Memory::Rows { layer, side } => (&place.caches[layer], side),
            Memory::Window { layer, side } => (&place.windows[layer], side),
            Memory::Compressed => (&place.compressed[0], 0),
            Memory::Pages => (&place.compressed[0], 1),
            memory => unreachable!("models with {memory:?} are refused"),
        };
        if side == 0 { first } else { second }
    }
}

/// The memory of the places, and the device that copies it.
pub(super) struct GpuMemory<'a> {
    gpu: &'a mut Gpu,
    places: &'a Places,
}

impl StateMemory for GpuMemory<'_> {
    type Error = GpuError;

    fn read(&mut self, from: &[Region], to: &mut [u8]) -> Result<(), GpuError> {
        let part = |it: &Region| (self.places.buffer(it), it.start as u64, it.bytes as u64);
        to.copy_from_slice(&self.gpu.read(&from.iter().map(part).collect::<Vec<_>>())?);
        Ok(())
    }

    fn write(&mut self, to: &[Region], from: &[u8]) -> Result<(), GpuError> {
        let mut parts = to.iter().zip(cut(from, to.iter().map(|it| it.bytes)));
        parts.try_for_each(|(region, part)| {
            self.gpu.write(self.places.buffer(region), region.start as u64, part)
        })
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), GpuError> {
        for (from, to) in pairs {
            let [source, target] = [from, to].map(|region| self.places.buffer(region));
            let (start, at, bytes) = (from.start as u64, to.start as u64, from.bytes as u64);
            match (&self.places.run, from.place == to.place) {
                // A buffer cannot be copied to itself.
                (Some((between, _)), true) => {
                    self.gpu.copy(source, start, between, 0, bytes);
                    self.gpu.copy(between, 0, target, at, bytes);
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

//! Keys and values of layers with a window: a sequence's place has room for its last rows alone.
//!
//! Rows lie in order of positions from a *base* on, which is a multiple of the tiles of all attention kernels. Kernels
//! are told positions from that base instead of the sequence's start: they only take differences of positions, and
//! begin tiles at multiples of their length, so that bits do not depend on where the base is. Answers append to the
//! place itself; when it is full, the window's rows are copied to its front between two steps. A run of a prompt may be
//! longer than a place: its rows and the window before them lie in a buffer that all layers share, and its last rows
//! go to the place once the layer has attended.

use cuda::launch::{self, AttentionShape, KeyValueCache, TokenPlaces, Visible};
use cuda::{CudaError, Device, DeviceBuffer, Span, Stream};
use store::LayerId;

use super::buffers::{Input, Sizes};
use super::{CudaBackend, CudaOptions, Register};
use crate::sequences::{Kept, Marks, Part, SequenceLayout, WindowRows};

/// Sizes of everything that layers with a window keep.
#[derive(Clone, Debug)]
pub(super) struct WindowSizes {
    pub(super) rows: WindowRows,
    layers: usize,
    sequences: usize,
    /// Tokens of a batch.
    tokens: usize,
    /// Bytes of one position's keys, or values, in one layer.
    row: usize,
}

impl WindowSizes {
    /// `None` for models all of whose layers keep all positions.
    pub(super) fn new(layout: &SequenceLayout, options: &CudaOptions) -> Option<Self> {
        Some(Self {
            rows: layout.window_rows()?,
            layers: layout.count(Kept::Window),
            sequences: options.sequences,
            tokens: options.batch_tokens,
            row: layout.window_row(),
        })
    }

    /// Bytes of keys, or values, of all places of a layer.
    fn layer_bytes(&self) -> usize {
        self.sequences * self.place_bytes()
    }

    fn place_bytes(&self) -> usize {
        self.rows.place() * self.row
    }

    /// Bytes of the keys, or values, of a run and of the window before it.
    fn run_bytes(&self) -> usize {
        (self.rows.kept() + self.tokens) * self.row
    }

    /// Bytes of all places.
    pub(super) fn place_bytes_of_all(&self) -> usize {
        2 * self.layers * self.layer_bytes()
    }

    /// Bytes of the buffer of a run.
    pub(super) fn scratch_bytes(&self) -> usize {
        2 * self.run_bytes()
    }
}

/// Memory of layers with a window.
pub(super) struct Windows {
    sizes: WindowSizes,
    /// Keys and values, each `[layers, sequences]` places.
    places: [DeviceBuffer; 2],
    /// Keys and values of the run in progress, and of the window before it.
    run: [DeviceBuffer; 2],
}

impl Windows {
    pub(super) fn new(device: &Device, sizes: &Sizes) -> Result<Option<Self>, CudaError> {
        let Some(sizes) = sizes.windows.clone() else { return Ok(None) };
        let both = |bytes: usize| -> Result<[DeviceBuffer; 2], CudaError> {
            Ok([DeviceBuffer::new(device, bytes)?, DeviceBuffer::new(device, bytes)?])
        };
        Ok(Some(Self {
            places: both(sizes.layers * sizes.layer_bytes())?,
            run: both(sizes.run_bytes())?,
            sizes,
        }))
    }

    /// The buffer of a side, and the first byte of a sequence's place there.
    pub(super) fn place(
        &self,
        layer: usize,
        sequence: usize,
        side: usize,
    ) -> (&DeviceBuffer, usize) {
        (&self.places[side], self.at(layer, sequence, 0))
    }

    /// First byte of row `row` of a sequence's place, of keys as of values.
    fn at(&self, layer: usize, sequence: usize, row: usize) -> usize {
        layer * self.sizes.layer_bytes()
            + sequence * self.sizes.place_bytes()
            + row * self.sizes.row
    }

    /// Rows of a sequence's place: keys, values.
    fn rows(&self, layer: usize, sequence: usize, first: usize, count: usize) -> [Span<u8>; 2] {
        let (at, bytes) = (self.at(layer, sequence, first), count * self.sizes.row);
        [&self.places[0], &self.places[1]].map(|side| side.span(at, bytes))
    }

    /// Rows of the run in progress.
    fn run_rows(&self, first: usize, count: usize) -> [Span<u8>; 2] {
        let row = self.sizes.row;
        [&self.run[0], &self.run[1]].map(|side| side.span(first * row, count * row))
    }
}

/// Copies keys and values.
fn copy(stream: &Stream, from: [Span<u8>; 2], to: [Span<u8>; 2]) -> Result<(), CudaError> {
    from.into_iter().zip(to).try_for_each(|(from, to)| stream.copy(from, to))
}

impl CudaBackend {
    /// Positions of the batch's tokens from the bases of their rows, for the device to fetch.
    pub(super) fn write_window_positions(&self) {
        let Some(windows) = &self.windows else { return };
        for part in self.sequences.spans() {
            // Rows of a prompt's run lie in the buffer of the run.
            let base = if self.single { part.base } else { windows.sizes.rows.base(part.position) };
            let first = part.position - base;
            let positions = (first..first + part.tokens).map(|place| place as u32);
            let at = Input::WindowPosition as usize * self.tokens + part.first;
            self.buffers.pinned.inputs.hand_over(at, positions);
        }
    }

    /// Appends keys and values of every run to a layer that keeps a window, then attends; windows for the places that
    /// are to be left.
    pub(super) fn attend_window(
        &self,
        layer: LayerId,
        visible: Visible,
        marks: &mut Marks,
    ) -> Result<(), CudaError> {
        let Some(windows) = &self.windows else { return Ok(()) };
        let (shape, index) = (self.attention_shape(layer), self.sizes.layout.index(layer));
        if let Some((places, cache)) = self.step_window(layer).filter(|_| self.single) {
            return self.append_and_attend(&shape, 0, &places, &cache, visible);
        }
        let rows = windows.sizes.rows;
        for (run, part) in self.sequences.spans().iter().enumerate() {
            let place = part.sequence.place();
            let (base, end) = (rows.base(part.position), part.end());
            let before = part.position - base;
            if before > 0 {
                let held = windows.rows(index, place, base - part.base, before);
                copy(&self.stream, held, windows.run_rows(0, before))?;
            }
            let places = self.window_places(part.first, part.tokens);
            // One place for all sequences.
            let cache = self.window_cache(windows.run_rows(0, before + part.tokens), 0);
            self.append_and_attend(&shape, part.first, &places, &cache, visible)?;
            let kept = end - rows.base(end);
            let last = windows.run_rows(end - kept - base, kept);
            copy(&self.stream, last, windows.rows(index, place, 0, kept))?;
            marks.keep(&self.sequences, &mut self.memory(), (layer, Part::Window), run)?;
        }
        Ok(())
    }

    /// Where a step's tokens lie in a layer that keeps a window, and its rows; `None` for one that keeps all positions.
    pub(super) fn step_window(&self, layer: LayerId) -> Option<(TokenPlaces, KeyValueCache)> {
        self.config.layers[layer.index()].kept_window()?;
        let windows = self.windows.as_ref()?;
        let (index, rows) = (self.sizes.layout.index(layer), windows.sizes.rows);
        let all = windows.rows(index, 0, 0, windows.sizes.sequences * rows.place());
        Some((self.window_places(0, self.tokens), self.window_cache(all, rows.place())))
    }

    /// Rows of windows as a cache, `context` of each sequence; 0 where all are of one.
    fn window_cache(&self, [keys, values]: [Span<u8>; 2], context: usize) -> KeyValueCache {
        KeyValueCache { keys, values, context, kv_type: self.options.kv_type }
    }

    /// Tokens of the batch and their positions from the bases of their rows.
    fn window_places(&self, first: usize, tokens: usize) -> TokenPlaces {
        TokenPlaces {
            positions: self.input(Input::WindowPosition, first, tokens),
            sequences: self.input(Input::Sequence, first, tokens),
            single: self.single,
            runs: self.step_runs(),
            // A window's keys are not shared out.
            end: 0,
        }
    }

    /// Appends keys and values of the tokens from `first` on to a cache, then attends.
    pub(super) fn append_and_attend(
        &self,
        shape: &AttentionShape,
        first: usize,
        places: &TokenPlaces,
        cache: &KeyValueCache,
        visible: Visible,
    ) -> Result<(), CudaError> {
        let count = places.positions.len();
        let (queries, keys) = (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
        let rows = |register, width: usize| {
            self.buffers.registers[register as usize].part(first * width, count * width)
        };
        let (new_keys, values) = (rows(Register::Key, keys), rows(Register::Value, keys));
        launch::append(&self.stream, shape, places, cache, new_keys, values)?;
        let (query, out) = (rows(Register::Query, queries), rows(Register::Context, queries));
        let scratch = self.buffers.attention.all();
        launch::attend(&self.stream, shape, places, cache, query, out, scratch, visible)
    }
}

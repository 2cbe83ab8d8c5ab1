//! Keys and values of layers with a window: a sequence's place has room for its last rows alone
//! ([`super::super::window_rows`]), which are part of its state.
//!
//! Kernels are told positions from the place's base instead of the sequence's start; blocks of attention begin at
//! multiples of 64 from either, so that bits do not depend on where the base is. Answers append to the place itself.
//! A run of a prompt may be longer than a place: its rows and the window before them lie in buffers that all layers
//! share, and its last rows go to the place once the layer has attended.

use gpu::{Buffer, Gpu, GpuError};

use super::super::window_rows::WindowRows;
use super::GpuOptions;
use super::sequences::Span;
use crate::model::config::ModelConfig;

/// Sizes of what layers with a window keep.
#[derive(Clone, Debug)]
pub(super) struct WindowSizes {
    pub(super) rows: WindowRows,
    layers: usize,
    /// Tokens of a batch.
    tokens: usize,
    /// Bytes of one position's keys, or values, in one layer.
    row: usize,
}

impl WindowSizes {
    /// `None` for models all of whose layers keep all positions; `row` is the bytes of a position's keys in one layer.
    pub(super) fn new(config: &ModelConfig, options: &GpuOptions, row: usize) -> Option<Self> {
        let windows = config.layers.iter().filter_map(|layer| layer.kept_window());
        let (rows, layers) = (WindowRows::new(windows.max()?), config.window_layers());
        Some(Self { rows, layers, tokens: options.batch_tokens, row })
    }

    fn place_bytes(&self) -> u64 {
        (self.rows.place() * self.row) as u64
    }

    fn run_bytes(&self) -> u64 {
        ((self.rows.kept() + self.tokens) * self.row) as u64
    }

    /// Bytes of each buffer, for `places` layers of sequences.
    pub(super) fn buffers(&self, places: usize) -> impl Iterator<Item = u64> {
        let places = std::iter::repeat_n(self.place_bytes(), 2 * places);
        places.chain([self.run_bytes(); 2])
    }

    /// Bytes of one layer's keys in a snapshot; as many of values follow.
    fn kept_bytes(&self) -> usize {
        self.rows.kept() * self.row
    }

    /// Values of a snapshot's state that hold the windows of all layers: bytes of rows, in words.
    pub(super) fn state_values(&self) -> usize {
        // Whole words: rows come in multiples of 64.
        2 * self.layers * self.kept_bytes() / size_of::<f32>()
    }
}

/// Keys and values.
pub(super) type Sides = (Buffer, Buffer);

/// Memory of layers with a window.
pub(super) struct Windows {
    pub(super) sizes: WindowSizes,
    /// By sequence, then by layer with a window.
    pub(super) places: Vec<Vec<Sides>>,
    /// The run in progress, behind the window before it.
    pub(super) run: Sides,
    /// By sequence: the position of the first row of its places.
    pub(super) bases: Vec<usize>,
}

impl Windows {
    pub(super) fn new(
        gpu: &mut Gpu,
        sizes: &WindowSizes,
        sequences: usize,
    ) -> Result<Self, GpuError> {
        let mut both = |what: &str, bytes: u64| -> Result<Sides, GpuError> {
            Ok((gpu.buffer(what, bytes)?, gpu.buffer(what, bytes)?))
        };
        let mut places = Vec::with_capacity(sequences);
        for _ in 0..sequences {
            let layers = (0..sizes.layers).map(|_| both("keys of a window", sizes.place_bytes()));
            places.push(layers.collect::<Result<_, _>>()?);
        }
        let run = both("keys of a run", sizes.run_bytes())?;
        Ok(Self { sizes: sizes.clone(), places, run, bases: vec![0; sequences] })
    }

    /// The sequence at a place has `length` tokens, whose last rows are there.
    pub(super) fn set_length(&mut self, sequence: usize, length: usize) {
        self.bases[sequence] = self.sizes.rows.base(length);
    }

    /// Copies rows of keys and of values.
    pub(super) fn copy(
        &self,
        gpu: &mut Gpu,
        (from, first): (&Sides, usize),
        (to, at): (&Sides, usize),
        rows: usize,
    ) {
        if rows == 0 {
            return;
        }
        let [first, at, bytes] = [first, at, rows].map(|rows| (rows * self.sizes.row) as u64);
        gpu.copy(&from.0, first, &to.0, at, bytes);
        gpu.copy(&from.1, first, &to.1, at, bytes);
    }

    /// Makes room in the places of a batch of answers, whose rows are appended there.
    pub(super) fn make_room(&mut self, gpu: &mut Gpu, spans: &[Span]) {
        for (index, span) in spans.iter().enumerate() {
            if spans[..index].iter().any(|it| it.sequence == span.sequence) {
                continue;
            }
            let own = spans.iter().filter(|it| it.sequence == span.sequence);
            let (tokens, place) = (own.map(|it| it.run.tokens).sum(), span.sequence.0 as usize);
            let rows = self.sizes.rows;
            let (base, moved) = rows.making_room(self.bases[place], span.run.position, tokens);
            if let Some((first, count)) = moved {
                for layer in &self.places[place] {
                    // A buffer cannot be copied to itself.
                    self.copy(gpu, (layer, first), (&self.run, 0), count);
                    self.copy(gpu, (&self.run, 0), (layer, 0), count);
                }
            }
            self.bases[place] = base;
        }
    }

    /// The last rows of all layers of a sequence of `length` tokens, whose places begin at its base.
    pub(super) fn read(
        &self,
        gpu: &mut Gpu,
        sequence: usize,
        length: usize,
        state: &mut [f32],
    ) -> Result<(), GpuError> {
        let from = self.bases[sequence];
        (0..self.sizes.layers)
            .try_for_each(|layer| self.read_layer(gpu, (sequence, layer), (from, length), state))
    }

    /// The last rows of one layer, of a place that begins at `base`. What is beyond them is zero: what the buffer held
    /// before must not get out.
    pub(super) fn read_layer(
        &self,
        gpu: &mut Gpu,
        (sequence, layer): (usize, usize),
        (base, length): (usize, usize),
        state: &mut [f32],
    ) -> Result<(), GpuError> {
        let (kept, row) = (self.sizes.kept_bytes(), self.sizes.row);
        let first = self.sizes.rows.base(length);
        let (at, live) = (((first - base) * row) as u64, (length - first) * row);
        let (keys, values) = &self.places[sequence][layer];
        let bytes = gpu.read(&[(keys, at, live as u64), (values, at, live as u64)])?;
        let state = &mut state[2 * layer * kept / 4..][..2 * kept / 4];
        state.fill(0.0);
        for (side, bytes) in state.chunks_exact_mut(kept / 4).zip(bytes.chunks_exact(live.max(4))) {
            for (value, bytes) in side.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_bits(u32::from_le_bytes(*bytes));
            }
        }
        Ok(())
    }

    /// Sets a sequence's windows to those of a snapshot of `length` tokens.
    pub(super) fn write(
        &mut self,
        gpu: &mut Gpu,
        sequence: usize,
        length: usize,
        state: &[f32],
    ) -> Result<(), GpuError> {
        self.set_length(sequence, length);
        let kept = self.sizes.kept_bytes() / 4;
        let live = (length - self.bases[sequence]) * self.sizes.row / 4;
        for (layer, (keys, values)) in self.places[sequence].iter().enumerate() {
            let sides = state[2 * layer * kept..][..2 * kept].chunks_exact(kept);
            for (side, values) in [keys, values].into_iter().zip(sides) {
                gpu.write_floats(side, 0, &values[..live])?;
            }
        }
        Ok(())
    }
}

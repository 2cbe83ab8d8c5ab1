//! Keys and values of layers with a window: a sequence's place has room for its last rows alone
//! (`sequences/window_rows.rs`), which are part of its state.
//!
//! Kernels are told positions from the place's base instead of the sequence's start; blocks of attention begin at
//! multiples of 64 from either, so that bits do not depend on where the base is. Answers append to the place itself.
//! A run of a prompt may be longer than a place: its rows and the window before them lie in buffers that all layers
//! share, and its last rows go to the place once the layer has attended.

use gpu::op::attention::NO_SINK;
use gpu::{Buffer, Gpu, GpuError};

use super::GpuOptions;
use crate::sequences::{Kept, SequenceLayout, WindowRows};

/// Sizes of what layers with a window keep.
#[derive(Clone, Debug)]
pub(super) struct WindowSizes {
    pub(super) rows: WindowRows,
    layers: usize,
    /// Tokens of a batch.
    tokens: usize,
    /// Bytes of one position's keys, or values, in one layer.
    row: usize,
    query_heads: usize,
}

impl WindowSizes {
    /// `None` for models all of whose layers keep all positions.
    pub(super) fn new(
        layout: &SequenceLayout,
        options: &GpuOptions,
        query_heads: usize,
    ) -> Option<Self> {
        Some(Self {
            rows: layout.window_rows()?,
            layers: layout.count(Kept::Window),
            tokens: options.batch_tokens,
            row: layout.window_row(),
            query_heads,
        })
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
        places.chain([self.run_bytes(); 2]).chain([4 * self.query_heads as u64])
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
    /// Sinks that take no weight: kernels with windows have sinks.
    pub(super) no_sinks: Buffer,
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
        let no_sinks = gpu.buffer("sinks", 4 * sizes.query_heads as u64)?;
        gpu.write_floats(&no_sinks, 0, &vec![NO_SINK; sizes.query_heads])?;
        Ok(Self { sizes: sizes.clone(), places, run, no_sinks })
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
}

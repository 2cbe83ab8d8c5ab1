//! Attention of layers that keep a window of keys and values alone (`sequences/window_rows.rs`).
//!
//! Kernels count positions from the base of the rows instead of the sequence's start: they only take differences of
//! positions, and begin tiles at multiples of their length, so that bits do not depend on where the base is. Answers
//! append to the place itself. A run of a prompt lies in a buffer of its own until it is attended.

use cuda::launch::{KeyValueCache, TokenPlaces, Visible};
use cuda::{CudaError, Span, Stream};
use store::LayerId;

use super::CudaBackend;
use super::buffers::Input;
use crate::sequences::{Marks, Part, WindowRun};

/// Copies keys and values.
fn copy(stream: &Stream, from: [Span<u8>; 2], to: [Span<u8>; 2]) -> Result<(), CudaError> {
    from.into_iter().zip(to).try_for_each(|(from, to)| stream.copy(from, to))
}

impl CudaBackend {
    /// Appends keys and values of every run to a layer that keeps a window, then attends; windows for the places that
    /// are to be left.
    pub(super) fn attend_window(
        &self,
        layer: LayerId,
        visible: Visible,
        marks: &mut Marks,
    ) -> Result<(), CudaError> {
        let Some(windows) = &self.place_buffers.windows else { return Ok(()) };
        let (shape, index) = (self.attention_shape(layer), self.sizes.layout.index(layer));
        if let Some((places, cache)) = self.step_window(layer).filter(|_| self.single) {
            return self.append_and_attend(&shape, 0, &places, &cache, visible);
        }
        for (run, part) in self.sequences.spans().iter().enumerate() {
            let place = part.sequence.place();
            let WindowRun { before, after } = windows.sizes.rows.run(part);
            if before.1 > 0 {
                let held = windows.rows(index, place, before);
                copy(&self.stream, held, windows.run_rows((0, before.1)))?;
            }
            let places = self.window_places(part.first, part.tokens);
            // One place for all sequences.
            let cache = self.window_cache(windows.run_rows((0, before.1 + part.tokens)), 0);
            self.append_and_attend(&shape, part.first, &places, &cache, visible)?;
            let left = windows.rows(index, place, (0, after.1));
            copy(&self.stream, windows.run_rows(after), left)?;
            marks.keep(&self.sequences, &mut self.memory(), (layer, Part::Window), run)?;
        }
        Ok(())
    }

    /// Where a step's tokens lie in a layer that keeps a window, and its rows; `None` for one that keeps all positions.
    pub(super) fn step_window(&self, layer: LayerId) -> Option<(TokenPlaces, KeyValueCache)> {
        self.config.layers[layer.index()].kept_window()?;
        let windows = self.place_buffers.windows.as_ref()?;
        let (index, rows) = (self.sizes.layout.index(layer), windows.sizes.rows.place());
        let all = windows.rows(index, 0, (0, self.sizes.sequences * rows));
        Some((self.window_places(0, self.tokens), self.window_cache(all, rows)))
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
}

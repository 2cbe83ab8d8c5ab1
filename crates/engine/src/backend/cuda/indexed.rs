//! Attention to the keys that an indexer chooses, on the GPU: one path, whether a token sees all keys or some.
//!
//! A step is recorded for every position, so its kernels decide by the token's position what they do; of a prompt's run
//! in which no token chooses, nothing is scored.

use cuda::CudaError;
use cuda::launch::{self, IndexRows, SequenceRows, TokenPlaces, UnitAttention, UnitChoice};
use store::LayerId;

use super::side_buffers::Side;
use super::{CudaBackend, Register};
use crate::model::index::{IndexConfig, Indexer};
use crate::sequences::Part;

impl CudaBackend {
    pub(super) fn side(&self) -> &Side {
        self.side.as_ref().expect("only called for models whose layers keep more")
    }

    pub(super) fn launch_attend_indexed(&mut self, layer: LayerId, weights: &Indexer) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            let Some(index) = this.config.index else { return Ok(()) };
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                this.attend_indexed_run(layer, (&index, weights), run, (first, places))?;
                marks.keep(&this.sequences, &mut this.memory(), (layer, Part::Index), run)?;
            }
            Ok(())
        });
        self.sequences.put_pending(marks);
    }

    fn attend_indexed_run(
        &self,
        layer: LayerId,
        (index, weights): (&IndexConfig, &Indexer),
        run: usize,
        (first, places): (usize, TokenPlaces),
    ) -> Result<(), CudaError> {
        let (held, tokens) = (self.side(), places.positions.len());
        let part = |register: Register, width: usize| {
            self.buffers.registers[register as usize].part(first * width, tokens * width)
        };
        let kept = self.sizes.layout.side().index_rows(layer.index());
        let rows = self.place_buffers.side().rows(kept, places);
        let job = IndexRows {
            both: part(Register::IndexQuery, index.width()),
            norms: [weights.query_norm, weights.key_norm].map(|norm| self.vector(norm)),
            rotation: self.rotation(layer),
            heads: index.heads,
            epsilon: self.config.rms_epsilon,
            keys: held.stored_keys(layer),
        };
        launch::index_rows(&self.stream, &rows, &job)?;
        let (shape, cache) = (self.attention_shape(layer), self.cache(layer));
        let width = shape.key_value_heads * shape.dim;
        let [keys, values] = [Register::Key, Register::Value].map(|register| part(register, width));
        launch::append(&self.stream, &shape, &places, &cache, keys, values)?;
        let last = self.sequences.spans()[run].end() / index.unit;
        if places.single || last > index.budget {
            self.choose_units(index, &rows, (first, job))?;
        }
        let width = shape.query_heads * shape.dim;
        let attention = UnitAttention {
            query: part(Register::Query, width),
            out: part(Register::Context, width),
            partial: self.buffers.attention.all(),
            chosen: held.chosen(first, tokens),
            unit: index.unit,
            top: index.budget,
        };
        launch::attend_units(&self.stream, &shape, &places, &cache, &attention)
    }

    /// Chooses units for the tokens of a run from `first` on, some tokens at a time.
    fn choose_units(
        &self,
        index: &IndexConfig,
        rows: &SequenceRows,
        (first, job): (usize, IndexRows),
    ) -> Result<(), CudaError> {
        let (held, tokens) = (self.side(), rows.places.positions.len());
        let (most, together, scores) = held.scores();
        for start in (0..tokens).step_by(together) {
            let count = together.min(tokens - start);
            let choice = UnitChoice {
                both: job.both.part(start * index.width(), count * index.width()),
                scores,
                chosen: held.chosen(first + start, count),
                keys: job.keys,
                heads: index.heads,
                top: index.budget,
                most,
            };
            let places = rows.places.part(start, count);
            launch::choose_units(&self.stream, &SequenceRows { places, ..*rows }, &choice)?;
        }
        Ok(())
    }
}

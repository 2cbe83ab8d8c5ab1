//! Latent attention to the rows that an indexer chooses, on the GPU.
//!
//! A token that may see no more rows than the budget sees all of them. A step is recorded for every position, so its
//! kernels decide by the token's position what they do; of a prompt's run those tokens alone choose that have to. What
//! tokens choose stays for the layers behind that see the same rows.

use cuda::CudaError;
use cuda::launch::{self, RowChoice, RowIndex, SequenceRows, TokenPlaces};
use store::LayerId;

use super::{CudaBackend, Register};
use crate::model::index::{IndexConfig, IndexForm, KEY_EPSILON, RowIndexer};
use crate::model::latent::LatentAttention;
use crate::model::rope::Pairs;

/// Tokens of a run that see all rows, because they may see no more than `budget`: its first ones. None of a step, whose
/// kernels decide for each token.
pub(super) fn seen_whole(places: &TokenPlaces, budget: usize) -> usize {
    let tokens = places.positions.len();
    if places.single { 0 } else { (budget + tokens).saturating_sub(places.end).min(tokens) }
}

impl CudaBackend {
    /// Latent attention to the rows that `indexer` chooses, or without one to those that the last indexer chose.
    pub(super) fn launch_attend_rows(
        &mut self,
        layer: LayerId,
        weights: &LatentAttention,
        indexer: Option<&RowIndexer>,
    ) {
        self.run(|this| {
            let Some(index) = this.config.index else { return Ok(()) };
            for (first, places) in this.places() {
                if let Some(indexer) = indexer {
                    this.choose_latent_rows(layer, (&index, indexer), first, places)?;
                }
                this.attend_latent_run(layer, weights, (first, places), Some(index.budget))?;
            }
            Ok(())
        });
    }

    /// Keeps the index keys of a run from token `first` on, then chooses rows for its tokens, some at a time.
    fn choose_latent_rows(
        &self,
        layer: LayerId,
        (index, indexer): (&IndexConfig, &RowIndexer),
        first: usize,
        places: TokenPlaces,
    ) -> Result<(), CudaError> {
        let (held, tokens) = (self.side(), places.positions.len());
        let of = |register: Register, first: usize, tokens: usize, width: usize| {
            self.buffers.registers[register as usize].part(first * width, tokens * width)
        };
        let kept = self.sizes.layout.side().index_rows(layer.index());
        let (rows, keys) = (self.place_buffers.side().rows(kept, places), held.stored_keys(layer));
        let IndexForm::Weighed { pairs } = index.form else {
            unreachable!("latent rows are chosen by weighed heads")
        };
        let split = launch::splits_queries(&self.stream, &rows, &keys, index.heads);
        let job = RowIndex {
            queries: of(Register::IndexQuery, first, tokens, index.width()),
            values: of(Register::IndexValues, first, tokens, index.dim),
            factors: of(Register::IndexWeights, first, tokens, index.heads),
            split,
            norm: indexer.key_norm.map(|part| self.vector(part)),
            epsilon: KEY_EPSILON,
            rotation: self.rotation(layer),
            neighbours: pairs == Pairs::Neighbours,
            heads: index.heads,
            keys,
        };
        launch::make_row_index(&self.stream, &rows, &job)?;
        let all = seen_whole(&places, index.budget);
        let (most, together, scores) = held.scores();
        for start in (all..tokens).step_by(together) {
            let count = together.min(tokens - start);
            let choice = RowChoice {
                query: of(Register::IndexQuery, first + start, count, index.width()),
                factors: of(Register::IndexWeights, first + start, count, index.heads),
                scores,
                chosen: held.chosen(first + start, count),
                keys,
                heads: index.heads,
                top: index.budget,
                most,
                split,
            };
            let places = places.part(start, count);
            launch::choose_rows(&self.stream, &SequenceRows { places, ..rows }, &choice)?;
        }
        Ok(())
    }
}

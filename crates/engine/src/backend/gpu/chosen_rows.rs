//! Latent attention to the rows that an indexer chooses.
//!
//! A token that may see no more rows than the budget sees all of them, and nothing is scored for it. What tokens choose
//! stays for the layers behind that see the same rows. Index keys lie next to a layer's latent rows.

use gpu::op::attention;
use gpu::op::row_choice::{self, Choice};
use gpu::op::row_index::{self, Heads, Indexed, Scored};
use gpu::{Buffer, Gpu, GpuError};
use store::LayerId;

use super::{GpuBackend, GpuOptions, Register};
use crate::EngineError;
use crate::model::config::{ModelConfig, Sees};
use crate::model::index::{IndexConfig, IndexForm, KEY_EPSILON, RowIndexer};
use crate::model::latent::LatentAttention;
use crate::model::rope::Pairs;

/// Most tokens whose rows are scored together, and most scores of them: 32 MiB.
const TOKENS: usize = 64;
const SCORES: usize = 8 << 20;

/// Numbers of the buffers of the choice: scores, and rows that tokens of a batch choose. None where another device has
/// the layers.
pub(super) fn sizes(config: &ModelConfig, options: &GpuOptions) -> [usize; 2] {
    let own = &config.layers[options.layers.clone()];
    let chooses = own.iter().any(|layer| layer.sees == Sees::Chosen);
    let Some(index) = config.index.filter(|_| chooses) else { return [0; 2] };
    let scores = match options.context > index.budget {
        true => together(options) * options.context,
        false => 0,
    };
    [scores, options.batch_tokens * index.budget]
}

/// Tokens whose rows are scored together. It shows in no bit.
fn together(options: &GpuOptions) -> usize {
    (SCORES / options.context).clamp(1, TOKENS).min(options.batch_tokens)
}

/// What tokens of a batch choose.
pub(super) struct ChoiceBuffers {
    /// `[tokens, context]`
    scores: Buffer,
    /// `[batch, budget]`
    pub(super) chosen: Buffer,
}

impl ChoiceBuffers {
    pub(super) fn new(gpu: &mut Gpu, [scores, chosen]: [usize; 2]) -> Result<Self, EngineError> {
        let mut numbers = |count: usize| gpu.buffer("chosen rows", 4 * count as u64);
        Ok(Self { scores: numbers(scores)?, chosen: numbers(chosen)? })
    }
}

/// Heads of an indexer, as kernels take them.
fn heads(config: &ModelConfig, index: &IndexConfig) -> Heads {
    let neighbours = index.form == IndexForm::Weighed { pairs: Pairs::Neighbours };
    let rotated = config.attention.rope.dims;
    Heads { heads: index.heads, dim: index.dim, rotated, neighbours }
}

/// What of the widths the kernels do not compute.
pub(super) fn unserved(config: &ModelConfig) -> Option<String> {
    let dim = config.index.filter(|_| config.latent.is_some())?.dim;
    (!row_index::serves(dim)).then(|| {
        let limit = row_index::DIM_LIMIT;
        format!("is {dim}; the GPU kernels serve multiples of four up to {limit}")
    })
}

impl GpuBackend {
    /// Latent attention to the rows that `indexer` chooses, or without one to those that the last indexer chose.
    pub(super) fn attend_rows(
        &mut self,
        layer: LayerId,
        weights: &LatentAttention,
        indexer: Option<&RowIndexer>,
    ) -> Result<(), GpuError> {
        let Some(index) = self.config.index else { return Ok(()) };
        if let Some(indexer) = indexer {
            self.choose_rows(layer, &index, indexer)?;
        }
        self.attend_latent(layer, weights, Some(index.budget))
    }

    /// Keeps the index keys of the batch, then chooses rows for its tokens, some at a time.
    fn choose_rows(
        &mut self,
        layer: LayerId,
        index: &IndexConfig,
        indexer: &RowIndexer,
    ) -> Result<(), GpuError> {
        let (cache, shape, top) = (self.cache(), heads(&self.config, index), index.budget);
        let [queries, given, factors] =
            [Register::IndexQuery, Register::IndexValues, Register::IndexWeights]
                .map(|register| &self.registers[register as usize]);
        let norm = indexer.key_norm.map(|id| &self.vectors[id.index()]);
        let (stride, together) = (self.options.context, together(&self.options));
        let ChoiceBuffers { scores, chosen } = &self.choice;
        let gpu = &mut self.residency.device_mut().gpu;
        for span in &self.spans {
            let (_, keys) = self.places.cache(span.sequence, layer);
            let of = Indexed { queries, given, norm, angles: &self.angles, keys };
            row_index::launch_rows(gpu, cache, of, shape, KEY_EPSILON, span.into())?;
            // Tokens that see all rows come first.
            let all = top.saturating_sub(span.position).min(span.tokens);
            for start in (all..span.tokens).step_by(together) {
                let (first, position) = (span.first + start, span.position + start);
                let run =
                    attention::Run { first, tokens: together.min(span.tokens - start), position };
                let of = Scored { queries, factors, keys, scores, stride };
                row_index::launch_scores(gpu, cache, of, shape, top, run)?;
                let of = Choice { scores, stride, ratio: 1, chosen };
                row_choice::launch(gpu, of, top, run)?;
            }
        }
        Ok(())
    }

    /// Rows that the tokens of the batch have chosen, for a batch that is put aside.
    pub(super) fn chosen_of_batch(&mut self) -> Result<Vec<u32>, GpuError> {
        let index = self.config.index.filter(|_| self.at_work && self.config.shares_choices());
        let Some(index) = index else { return Ok(Vec::new()) };
        let gpu = &mut self.residency.device_mut().gpu;
        gpu.read_words(&self.choice.chosen, 0, self.tokens * index.budget)
    }

    /// Takes up what [`GpuBackend::chosen_of_batch`] gave.
    pub(super) fn take_chosen(&mut self, chosen: &[u32]) -> Result<(), GpuError> {
        if chosen.is_empty() {
            return Ok(());
        }
        self.residency.device_mut().gpu.write_words(&self.choice.chosen, 0, chosen)
    }
}

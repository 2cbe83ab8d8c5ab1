//! Bytes that a CPU backend will hold, known before it is made: `plan` is exact because it asks here.

use std::iter::Sum;

use kernels::{Activations, KvType};

use super::compressed::CompressedScratch;
use super::dense::DenseScratch;
use super::head::HeadScratch;
use super::indexed::IndexScratch;
use super::latent::LatentScratch;
use super::mixture::{MixtureScratch, PACKINGS};
use super::ngrams::NgramRows;
use super::registers::Registers;
use super::replay::{ReplayShape, RoundScratch};
use super::streams::StreamScratch;
use super::tiled::Tiled;
use super::{CpuOptions, PAGE_TOKENS};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::sequences::{CompressedLayout, Kept, RowForm, SequenceLayout, SideLayout};

/// Memory of a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Keys and values of every sequence at its full context.
    pub key_values: u64,
    /// State of a fixed size of every sequence and snapshot: recurrent states, convolution tails, windows; and what
    /// rounds leave to be applied.
    pub recurrent: u64,
    /// Activations of one batch and logits.
    pub activations: u64,
    /// Rows of n-grams: those of a batch, buffers of their reads, and caches.
    pub rows: u64,
}

/// What several backends hold together.
impl Sum for Requirements {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let none = Self { key_values: 0, recurrent: 0, activations: 0, rows: 0 };
        all.fold(none, |sum, it| Self {
            key_values: sum.key_values + it.key_values,
            recurrent: sum.recurrent + it.recurrent,
            activations: sum.activations + it.activations,
            rows: sum.rows + it.rows,
        })
    }
}

impl CpuOptions {
    /// What a sequence carries of the layers that are computed here.
    pub(super) fn layout(&self, config: &ModelConfig) -> SequenceLayout {
        SequenceLayout::of_layers(config, &self.layers, self.kv_type, RowForm::Blocks)
    }

    /// Pages of keys and values that exist: the whole context of every sequence. Snapshots hold what sequences
    /// leave, and a sequence may have to copy the page that it shares with one.
    pub(super) fn pages(&self) -> usize {
        let shared = usize::from(self.snapshots > 0);
        self.sequences * (self.context.div_ceil(PAGE_TOKENS) + shared)
    }

    /// Values of all rows of logits; 0 where another backend has the model's last layer.
    pub(super) fn logit_values(&self, config: &ModelConfig) -> usize {
        let ends = self.layers.end == config.layers.len();
        if ends { self.logit_rows * config.vocabulary } else { 0 }
    }

    /// Refuses layers that the model does not have, and what its caches cannot hold. None, at the end of the model, are
    /// its head alone.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), EngineError> {
        if !crate::backend::is_head_alone(&self.layers, config) {
            crate::backend::check_layers(&self.layers, config)?;
        }
        if config.takes(self.kv_type) {
            return Ok(());
        }
        let kind = self.kv_type;
        let found = format!("a cache in {kind} is not what this model was trained with");
        Err(EngineError::Request(found))
    }
}

impl Requirements {
    /// What `CpuBackend::new` with these options will hold, sequences included.
    pub fn of(config: &ModelConfig, options: &CpuOptions) -> Self {
        let layout = options.layout(config);
        let float = size_of::<f32>();
        let tokens = options.batch_tokens;
        let streams = config.streams();
        let activations = Registers::bytes(config, tokens)
            + Activations::bytes_bound(tokens, Registers::widest_input(config), PACKINGS)
            + MixtureScratch::bytes(config, options)
            + StreamScratch::bytes(config, options)
            + CompressedScratch::bytes(config, options)
            + DenseScratch::bytes(config, options)
            + LatentScratch::bytes(config, options)
            + IndexScratch::bytes(config, options)
            + HeadScratch::bytes(config, options)
            + tokens * config.hidden * float
            + kernels::ATTENTION_BYTES
            + RoundScratch::bytes(config, options)
            + super::tiled_shape(config).map_or(0, |shape| Tiled::bytes(&shape))
            // Batches put aside while another runs.
            + (options.sequences - 1) * tokens * streams * config.hidden * float
            + options.logit_values(config) * float;
        let replay = ReplayShape::new(config, options).map_or(0, |shape| shape.values() * float);
        let rounds = options.sequences * layout.count(Kept::State) * replay;
        Self {
            key_values: (options.pages() * layout.page_bytes()) as u64,
            recurrent: ((options.sequences + options.snapshots) * layout.state_bytes() + rounds)
                as u64,
            activations: activations as u64,
            rows: NgramRows::bytes(config, options),
        }
    }

    /// Keys and values of one token of one sequence: a page's share, rounded up.
    pub fn key_value_bytes_per_token(config: &ModelConfig, options: &CpuOptions) -> u64 {
        options.layout(config).page_bytes().div_ceil(PAGE_TOKENS) as u64
    }

    /// Compressed rows and index keys of one token, in layers that have them.
    pub fn compressed_bytes_per_token(config: &ModelConfig, kv_type: KvType) -> u64 {
        let index_keys = SideLayout::new(config, kv_type, 0).page_bytes();
        let page = CompressedLayout::new(config, kv_type).page_bytes + index_keys;
        page.div_ceil(PAGE_TOKENS) as u64
    }

    /// One snapshot of a sequence, but for keys and values, which it shares.
    pub fn snapshot_bytes(config: &ModelConfig, options: &CpuOptions) -> u64 {
        options.layout(config).state_bytes() as u64
    }

    /// Activations of one more token in the batch, at batch sizes that prefill uses.
    pub fn activation_bytes_per_token(config: &ModelConfig, options: &CpuOptions) -> u64 {
        let at = |tokens: usize| {
            let options = CpuOptions { batch_tokens: tokens, ..options.clone() };
            Self::of(config, &options).activations
        };
        (at(2048) - at(1024)) / 1024
    }
}

//! The sizes of a CUDA backend, and the bytes of device memory that it will hold for them, known before it is made:
//! `plan` asks here.

use std::ops::Range;

use cuda::PAGE_BYTES;
use kernels::KvType;
use kernels::format::Encoding;

use super::buffers::Sizes;
use super::ngrams::Ngrams;
use super::{Prediction, STEP_TOKENS, padded};
use crate::model::config::ModelConfig;
use crate::residency::cache_pages::CachePages;
use crate::weights::Catalog;

/// Sizes of a CUDA backend.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// The layers of the model that it computes; the others are other backends'. The last has experts.
    pub layers: Range<usize>,
    /// Most tokens of one batch.
    pub batch_tokens: usize,
    /// Most tokens of one batch whose logits are asked for at once.
    pub logit_rows: usize,
    /// Most sequences at a time.
    pub sequences: usize,
    /// Most recurrent states kept by snapshots, in the process's memory.
    pub snapshots: usize,
    /// Most pages of keys and values kept by snapshots, in the process's memory.
    pub snapshot_pages: usize,
    /// Most tokens of one sequence.
    pub context: usize,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Experts per token; the trained number unless the user asked for fewer.
    pub top_k: usize,
    /// Whether steps guess what the next layer will choose.
    pub prediction: Prediction,
    /// Most tokens of a run of answers: 1 without rounds.
    pub round_tokens: usize,
}

impl CudaOptions {
    /// Most tokens of a step: a round of one sequence may fill it.
    pub(super) fn step_tokens(&self) -> usize {
        if self.round_tokens > 1 { STEP_TOKENS } else { self.sequences.clamp(1, STEP_TOKENS) }
    }
}

/// Device memory of a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaRequirements {
    /// Dense weights.
    pub weights: u64,
    /// Keys and values of every sequence at its full context.
    pub key_values: u64,
    /// State of a fixed size of every sequence: recurrent states, convolution tails, windows; and index keys, which
    /// have room for the full context from the start.
    pub recurrent: u64,
    /// Activations, logits, tables.
    pub activations: u64,
    /// Room in device memory through which the experts of a prompt pass, when not all of them stay there.
    pub staging: u64,
    /// Room in device memory for records that a step fetches before they are chosen.
    pub prefetched: u64,
}

/// How experts' slots and keys and values share device memory. Where they do, all of it is allocated at the start, and
/// pages move from the last slots to keys and values as sequences grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShare {
    /// Slots at the start, the most that there will be.
    pub start: usize,
    /// Slots when every sequence has its full context.
    pub full: usize,
    /// Pages of slots that stay.
    pub solid_pages: usize,
    /// Pages that move; none where keys and values have memory of their own.
    pub moving_pages: usize,
    /// Pages of keys and values at the start.
    pub cache_pages: usize,
}

/// Pages of one layer's keys from which on they grow: below, rounding up to pages takes more than growing gives.
const GROWING_PAGES: usize = 4;

impl SlotShare {
    /// `slots` slots beside keys and values with memory of their own.
    pub fn fixed(slots: usize) -> Self {
        Self { start: slots, full: slots, solid_pages: 0, moving_pages: 0, cache_pages: 0 }
    }

    /// Slots for `experts` records of `slot_bytes` bytes where a device maps memory in pages and `room` bytes are left
    /// for them and for keys and values. `None` where nothing would be gained.
    pub fn growing(
        config: &ModelConfig,
        options: &CudaOptions,
        room: u64,
        slot_bytes: usize,
        experts: usize,
    ) -> Option<Self> {
        let sizes = Sizes::new(config, options);
        let buffers = sizes.cache_sides * sizes.attention_layers;
        let mut cache =
            CachePages::new(sizes.sequences, options.context, sizes.cache_row, PAGE_BYTES);
        if cache.full() < GROWING_PAGES {
            return None;
        }
        cache.missing().into_iter().for_each(|page| cache.set(page, true));
        let (first, full) = (cache.count() * buffers, cache.full() * buffers);
        let room = (room / PAGE_BYTES as u64) as usize;
        let fit =
            |pages: usize| Some((room.checked_sub(pages)? * PAGE_BYTES / slot_bytes).min(experts));
        let (start, end) = (fit(first)?, fit(full)?);
        let pages = |slots: usize| (slots * slot_bytes).div_ceil(PAGE_BYTES);
        let all = (pages(start) + first).max(pages(end) + full);
        let solid = end * slot_bytes / PAGE_BYTES;
        let share = Self {
            start,
            full: end,
            solid_pages: solid,
            moving_pages: all - solid,
            cache_pages: first,
        };
        (end < start).then_some(share)
    }

    /// True when keys and values take memory from slots.
    pub fn grows(&self) -> bool {
        self.moving_pages > 0
    }

    /// Bytes that both take together where they share memory.
    pub fn shared_bytes(&self) -> u64 {
        ((self.solid_pages + self.moving_pages) * PAGE_BYTES) as u64
    }

    /// Bytes of keys and values at the start where they share memory.
    pub fn first_cache_bytes(&self) -> u64 {
        (self.cache_pages * PAGE_BYTES) as u64
    }

    /// Slots that have memory when `moving` pages are theirs.
    pub(super) fn slots_in(&self, moving: usize, slot_bytes: usize) -> usize {
        ((self.solid_pages + moving) * PAGE_BYTES / slot_bytes).min(self.start)
    }
}

/// Kernels' image and the driver's own, an estimate; small allocations round up to 2 MiB.
const OVERHEAD_BYTES: u64 = 160 << 20;
/// Records that the staging area holds; two halves, one filling while the other is used.
pub(super) const STAGING_RECORDS: usize = 64;

/// Bytes of a matrix in device memory.
pub(super) fn matrix_bytes((rows, columns, encoding): (usize, usize, Encoding)) -> usize {
    encoding.plane_bytes(rows, columns).into_iter().map(padded).sum()
}

/// Bytes of the slots into which a step copies records that are only prefetched: as many as one token uses, twice,
/// since one layer still reads its own while those of the next arrive. Nothing has to be prefetched where every record
/// has a slot.
pub(super) fn prefetch_bytes(options: &CudaOptions, slot_bytes: usize, all: bool) -> usize {
    if all || options.prediction == Prediction::Off { 0 } else { 2 * options.top_k * slot_bytes }
}

impl CudaRequirements {
    /// What `CudaBackend::new` with these options will hold, slots for experts not counted. `slot_bytes` is the
    /// size of the largest record; `all` says that every record will have a slot.
    pub fn of(
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        options: &CudaOptions,
        slot_bytes: usize,
        all: bool,
    ) -> Self {
        let sizes = Sizes::new(config, options);
        let matrices: usize = catalog.loaded().map(matrix_bytes).sum();
        let vectors: usize = catalog.loaded_lengths().map(|length| padded(length * 4)).sum();
        Self {
            weights: (matrices + vectors) as u64,
            key_values: sizes.key_value_bytes(),
            recurrent: sizes.recurrent_bytes(),
            activations: sizes.activation_bytes() + OVERHEAD_BYTES,
            staging: if all { 0 } else { (STAGING_RECORDS * slot_bytes) as u64 },
            prefetched: prefetch_bytes(options, slot_bytes, all) as u64,
        }
    }

    /// Bytes of the process's memory that rows of n-grams take: those of a batch as they are stored and decoded,
    /// buffers of their reads, and for each table a cache of `row_cache` bytes.
    pub fn row_bytes(config: &ModelConfig, options: &CudaOptions, row_cache: u64) -> u64 {
        Ngrams::bytes(config, options, row_cache)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights
            + self.key_values
            + self.recurrent
            + self.activations
            + self.staging
            + self.prefetched
    }
}

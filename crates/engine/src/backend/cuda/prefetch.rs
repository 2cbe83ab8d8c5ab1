//! Next-layer prediction in a step: copies of records that arrive before their layer asks for them.
//!
//! Beside the router of each layer the next layer's router is applied to the same input, and the device posts, best
//! first, the records that it would have to read over the bus or to wait for. Those in the host tier are copied here to
//! scratch slots while the next layer's mixer computes; those on disk are the miss service's to read. A word per record
//! tells the device of a copy: that it is under way, then that it is there. The layer's own routing decides as ever and
//! reads a record from its copy where it finds one. So answers do not depend on guesses, only where bytes come from.
//!
//! Copies are made by the copy engine. A kernel that runs with the step needs registers, and the step kernels leave
//! none: decode became 6 % slower (docs/experiments.tsv).

use std::time::Instant;

use cuda::launch::{self, COPYING, Ended, FROM_COPY, Guess};
use cuda::{CudaError, Device, DeviceBuffer, Event, PinnedBuffer, Source, Span, Stream};
use store::cache::PrefetchCounters;
use store::{ExpertId, LayerId};

use super::buffers::{Floats, Sizes};
use super::experts::Experts;
use super::requirements::prefetch_bytes;
use super::{CudaBackend, CudaOptions, STEP_TOKENS, protocol};
use crate::residency::copy_queue::{Copy, CopyQueue};
use crate::residency::predictor::{Predictor, Tier};
use crate::routing::Routing;
use crate::weights::MatrixId;

/// What prediction needs on the device and what it has learned.
pub(super) struct Prefetch {
    predictor: Predictor,
    /// By layer; `None` for one without experts.
    routers: Vec<Option<MatrixId>>,
    /// What the next layer's router makes of a layer's input, `[tokens, experts]`.
    logits: Floats,
    /// Synthetic guesses where routing is replaced, `[layers, tokens, experts]`.
    replaced: Option<Floats>,
    replaced_host: PinnedBuffer<f32>,
    scratch: Vec<f32>,
    experts: usize,
    /// Ranks that are copied, ranks that are read from disk.
    depths: PinnedBuffer<u32>,
    /// Layers of the running step that need the bus no more.
    ended: PinnedBuffer<u32>,
    ended_blocks: DeviceBuffer,
    copier: Copier,
    started: Instant,
    used: u64,
}

/// Scratch slots and the copies into them.
struct Copier {
    stream: Stream,
    scratch: DeviceBuffer,
    slot_bytes: usize,
    /// Word of each record's copy: 0, or its address, with [`COPYING`] while it is under way.
    words: DeviceBuffer,
    records: usize,
    /// Both words of each slot.
    values: PinnedBuffer<u64>,
    queue: CopyQueue<Source>,
    /// The end of the last copy, while one is under way.
    end: Event,
    running: bool,
    count: u64,
}

impl Copier {
    fn new(
        device: &Device,
        bytes: usize,
        slot_bytes: usize,
        records: usize,
    ) -> Result<Self, CudaError> {
        let slots = bytes / slot_bytes;
        let this = Self {
            stream: Stream::new(device)?,
            scratch: DeviceBuffer::new(device, bytes)?,
            slot_bytes,
            words: DeviceBuffer::new(device, records * 8)?,
            records,
            values: PinnedBuffer::new(device, slots * 2)?,
            queue: CopyQueue::new(slots),
            end: Event::new(device)?,
            running: false,
            count: 0,
        };
        for slot in 0..slots {
            let address = this.scratch.span::<u8>(slot * slot_bytes, slot_bytes).address();
            this.values.hand_over(slot * 2, [address | COPYING, address]);
        }
        Ok(this)
    }

    /// Begins the next copy when the one before has ended. One at a time: the others can still be given up when their
    /// layer has chosen, and a second one behind the first is seldom there in time and is then read twice (5 % of the
    /// 35B shape's experts in GPU memory: 322 against 341 tok/s, H100).
    fn advance(&mut self, ended: u32) -> Result<(), CudaError> {
        if self.running && !self.end.has_happened()? {
            return Ok(());
        }
        self.running = false;
        let Some(Copy { slot, key, from }) = self.queue.next(ended) else { return Ok(()) };
        let word = self.words.span::<u64>(key as usize * 8, 1);
        let to = self.scratch.span::<u8>(slot * self.slot_bytes, from.len());
        self.stream.copy(self.values.span(slot * 2, 1), word)?;
        self.stream.fetch(from, to)?;
        self.stream.copy(self.values.span(slot * 2 + 1, 1), word)?;
        self.end.record(&self.stream)?;
        self.running = true;
        self.count += 1;
        Ok(())
    }

    /// Before a step: nothing is copied any more, and no word speaks of the step before.
    fn clear(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if !self.queue.clear() {
            return Ok(());
        }
        // The last copy may still be under way.
        stream.wait_for(&self.end)?;
        stream.clear(self.words.span::<u64>(0, self.records))
    }
}

impl Prefetch {
    /// Everything for steps of a model with these routers, by layer. `replaced` says that a generator takes the
    /// routers' place.
    pub(super) fn new(
        device: &Device,
        sizes: &Sizes,
        experts: &Experts,
        options: &CudaOptions,
        routers: Vec<Option<MatrixId>>,
        replaced: bool,
    ) -> Result<Self, CudaError> {
        let rows = sizes.layers * STEP_TOKENS * sizes.experts;
        let bytes = prefetch_bytes(options, experts.slot_bytes, false);
        let records = sizes.layers * sizes.experts;
        Ok(Self {
            predictor: Predictor::new(options.prediction, options.top_k),
            routers,
            logits: Floats::new(device, STEP_TOKENS * sizes.experts)?,
            replaced: replaced.then(|| Floats::new(device, rows)).transpose()?,
            replaced_host: PinnedBuffer::new(device, if replaced { 2 * rows } else { 0 })?,
            scratch: vec![0.0; STEP_TOKENS * sizes.experts],
            experts: sizes.experts,
            depths: PinnedBuffer::new(device, launch::DEPTH_WORDS)?,
            ended: PinnedBuffer::new(device, 1)?,
            ended_blocks: DeviceBuffer::new(device, 4)?,
            copier: Copier::new(device, bytes, experts.slot_bytes, records)?,
            started: Instant::now(),
            used: 0,
        })
    }

    /// The router of the layer after `layer`, and where its products go.
    pub(super) fn next_router(
        &self,
        layer: LayerId,
        values: usize,
    ) -> Option<(MatrixId, Span<f32>)> {
        let router = self.routers.get(layer.index() + 1).copied().flatten()?;
        Some((router, self.logits.part(0, values)))
    }

    /// Words of a layer's copies.
    pub(super) fn copies(&self, layer: LayerId) -> Span<u64> {
        self.copier.words.span(layer.index() * self.experts * 8, self.experts)
    }

    /// Makes the synthetic guesses of a layer of the next step, of its replaced `logits` `[tokens, experts]`, in the
    /// half that the step will copy from.
    pub(super) fn prepare_replaced(
        &mut self,
        routing: &Routing,
        layer: LayerId,
        half: usize,
        logits: &[f32],
    ) {
        let guesses = &mut self.scratch[..logits.len()];
        routing.guess_logits(layer, self.experts, logits, guesses);
        let start = half * (self.replaced_host.len() / 2) + layer.index() * logits.len();
        self.replaced_host.hand_over(start, guesses.iter().copied());
    }

    /// Copies `values` synthetic guesses of the half to the device.
    pub(super) fn upload_replaced(
        &self,
        stream: &Stream,
        half: usize,
        values: usize,
    ) -> Result<(), CudaError> {
        let Some(replaced) = &self.replaced else { return Ok(()) };
        let start = half * (self.replaced_host.len() / 2);
        stream.copy(self.replaced_host.span(start, values), replaced.part(0, values))
    }

    /// A step is about to be given to `stream`: says how much of its guesses will be acted upon.
    pub(super) fn begin(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.copier.clear(stream)?;
        let depths = self.predictor.depths();
        self.depths.hand_over(launch::DEPTH_BUS, [depths.bus]);
        self.depths.hand_over(launch::DEPTH_DISK, [depths.disk]);
        self.ended.hand_over(0, [0]);
        self.started = Instant::now();
        Ok(())
    }

    /// The running step has prefetched a record of the host tier.
    pub(super) fn want(&mut self, layer: LayerId, key: u32, from: Source) {
        self.copier.queue.want(layer, key, from);
    }

    /// Goes on copying.
    pub(super) fn advance(&mut self) -> Result<(), CudaError> {
        self.copier.advance(protocol::ended_layers(self.ended.words()))
    }

    /// A step has run. `uses_and_guesses` has what each layer used, `[layers, tokens, k]`, then what was guessed of
    /// it; `uses` the first by layer, sorted and distinct; `tier` says where records were when the step began.
    pub(super) fn judge(
        &mut self,
        tokens: usize,
        uses_and_guesses: &[u32],
        uses: &[Vec<ExpertId>],
        tier: impl Fn(LayerId, ExpertId) -> Tier,
    ) {
        let (used, guessed) = uses_and_guesses.split_at(uses_and_guesses.len() / 2);
        let pairs = used.len() / uses.len().max(1);
        let mut taken: Vec<u32> = Vec::with_capacity(pairs);
        for (layer, chosen) in uses.iter().enumerate().skip(1) {
            if self.routers[layer - 1].is_none() || self.routers[layer].is_none() {
                // A layer without experts guesses nothing, and nothing is guessed of it.
                continue;
            }
            let range = layer * pairs..(layer + 1) * pairs;
            let id = LayerId(layer as u16);
            let guesses = &guessed[range.clone()];
            self.predictor.judge(tokens, guesses, chosen, |expert| tier(id, expert));
            taken.clear();
            taken.extend(used[range].iter().filter(|&&word| word & FROM_COPY != 0));
            taken.sort_unstable();
            taken.dedup();
            self.used += taken.len() as u64;
        }
        self.predictor.step_ended(tokens, self.started.elapsed());
    }

    /// Says what was guessed and copied; what was read from disk is not known here.
    pub(super) fn count(&self, counters: &mut PrefetchCounters) {
        (counters.guessed, counters.right) = self.predictor.counts();
        counters.bus_copied = self.copier.count;
        counters.bus_used = self.used;
    }
}

impl CudaBackend {
    /// What a step guesses of the layer after `layer`; guesses go to byte `guesses` of the uses.
    pub(super) fn guess_of(&self, layer: LayerId, guesses: usize) -> Option<Guess> {
        let (tokens, k, experts) = (self.tokens, self.options.top_k, self.sizes.experts);
        let (prefetch, values) = (self.prefetch.as_ref()?, tokens * experts);
        let (_, logits) = prefetch.next_router(layer, values)?;
        let next = LayerId(layer.0 + 1);
        let replaced = prefetch.replaced.as_ref();
        Some(Guess {
            logits: replaced.map_or(logits, |all| all.part(next.index() * values, values)),
            table: self.table_row(next),
            guesses: self.buffers.uses.span(guesses, tokens * k),
            depths: prefetch.depths.all(),
            device_slots: self.experts.all_slots(),
            ended: Ended {
                blocks: prefetch.ended_blocks.span(0, 1),
                word: prefetch.ended.span(0, 1),
                layer: layer.0.into(),
            },
        })
    }
}

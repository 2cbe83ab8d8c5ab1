//! Layers of hashed n-grams on the GPU: the host knows from token ids which rows a batch needs, reads them from when it
//! begins, and leaves them decoded in pinned memory, from where the batch copies them.
//!
//! A recorded step copies from the same place every time: its rows are there before its graph is launched. Ids of the
//! tokens before a batch are known to the host as well as to the state of a sequence, from which they come when a
//! sequence is set to another point.

use cuda::launch::{self, NgramMix, NgramValues};
use cuda::{CudaError, Device, PinnedBuffer};
use store::LayerId;
use store::rows::{RowCounters, RowStore, Rows, Ticket};

use super::super::ngram_rows::{computed, push_run};
use super::buffers::Input;
use super::{CudaBackend, CudaOptions, Mode, Register};
use crate::EngineError;
use crate::drafts::ROUND_TOKENS;
use crate::model::config::ModelConfig;
use crate::model::ngram::{NgramConfig, NgramHash, NgramMixing};
use crate::sequences::{Part, SnapshotPart, Span};

/// Rows of a prompt that a thread decodes at least, and most threads: a chunk of 4,096 tokens has 65,536 rows.
const THREAD_ROWS: usize = 2048;
const THREADS_MAX: usize = 8;

/// The rows of the layers of n-grams that the device computes.
pub(super) struct Ngrams {
    sources: Vec<NgramSource>,
    ids: TokenIds,
    /// The batch in progress.
    tokens: Vec<u32>,
    /// `[layers, batch, width]`: rows of the batch's tokens, each layer's packed.
    pinned: PinnedBuffer<f32>,
    /// Values of a layer's rows of a whole batch.
    layer_values: usize,
}

struct NgramSource {
    layer: LayerId,
    hash: NgramHash,
    store: RowStore,
    ticket: Option<Ticket>,
    /// Rows of the batch, token by token.
    wanted: Vec<u64>,
    /// The rows of the batch are in pinned memory.
    filled: bool,
}

/// Ids of the last tokens of every sequence, by position.
#[derive(Debug)]
struct TokenIds {
    /// Positions of a sequence that have a place: a round may be undone, and what was before it is still there.
    kept: usize,
    /// `[sequences, kept]`
    ids: Vec<u32>,
}

impl TokenIds {
    fn new(shape: &NgramConfig, sequences: usize) -> Self {
        let kept = shape.kept_tokens() + ROUND_TOKENS;
        Self { kept, ids: vec![0; sequences * kept] }
    }

    fn get(&self, place: usize, position: usize) -> u32 {
        self.ids[place * self.kept + position % self.kept]
    }

    fn set(&mut self, place: usize, position: usize, id: u32) {
        self.ids[place * self.kept + position % self.kept] = id;
    }

    /// The tokens of a run are now part of its sequence.
    fn append(&mut self, span: &Span, tokens: &[u32]) {
        for at in span.tokens.saturating_sub(self.kept)..span.tokens {
            self.set(span.sequence.place(), span.position + at, tokens[span.first + at]);
        }
    }
}

/// The rows of all tokens of a batch.
fn find_rows(
    hash: &NgramHash,
    (spans, tokens): (&[Span], &[u32]),
    ids: &TokenIds,
    rows: &mut Vec<u64>,
) {
    rows.clear();
    for (run, span) in spans.iter().enumerate() {
        let kept = |position| ids.get(span.sequence.place(), position);
        push_run(hash, (spans, run), tokens, kept, rows);
    }
}

/// Decodes rows to pinned memory, one after the other from value `start` on.
fn leave_rows(
    rows: &Rows,
    columns: usize,
    wanted: &[u64],
    pinned: &PinnedBuffer<f32>,
    start: usize,
) {
    let mut row = vec![0.0; columns];
    for (index, &number) in wanted.iter().enumerate() {
        rows.decode(number, &mut row);
        pinned.hand_over(start + index * columns, row.iter().copied());
    }
}

impl Ngrams {
    /// The rows of `config`'s layers from `stores`, one for each that the device computes; `None` without.
    ///
    /// # Errors
    /// More stores or fewer than there are such layers, or no pinned memory.
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        options: &CudaOptions,
        stores: Vec<RowStore>,
    ) -> Result<Option<Self>, EngineError> {
        let layers = config.ngrams.iter().flat_map(|ngrams| computed(ngrams, &options.layers));
        let layers: Vec<_> = layers.collect();
        if stores.len() != layers.len() {
            let found = format!("{} stores of rows for {} layers", stores.len(), layers.len());
            return Err(EngineError::Request(found));
        }
        let Some(shape) = config.ngrams.as_ref().filter(|_| !layers.is_empty()) else {
            return Ok(None);
        };
        let layer_values = options.batch_tokens * shape.width;
        let pinned = PinnedBuffer::new(device, layers.len() * layer_values)?;
        let sources = layers.into_iter().zip(stores).map(|((layer, hash), store)| NgramSource {
            layer: LayerId(layer as u16),
            hash: hash.clone(),
            store,
            ticket: None,
            wanted: Vec::with_capacity(options.batch_tokens * shape.rows()),
            filled: false,
        });
        Ok(Some(Self {
            sources: sources.collect(),
            ids: TokenIds::new(shape, options.sequences),
            tokens: Vec::with_capacity(options.batch_tokens),
            pinned,
            layer_values,
        }))
    }

    /// Bytes of the process's memory that [`Ngrams::new`] holds with its stores and their caches of `row_cache` bytes:
    /// decoded rows of a batch included.
    pub(super) fn bytes(config: &ModelConfig, options: &CudaOptions, row_cache: u64) -> u64 {
        let Some(ngrams) = &config.ngrams else { return 0 };
        let rows = options.batch_tokens * ngrams.rows();
        // The widest of the floats that a table may hold.
        let row = ngrams.columns() * size_of::<f32>();
        let store = RowStore::required_bytes(row, row_cache, rows);
        let batch =
            rows * size_of::<u64>() + options.batch_tokens * ngrams.width * size_of::<f32>();
        computed(ngrams, &options.layers).count() as u64 * (store + batch as u64)
    }

    /// A batch begins, or one that was put aside goes on: which rows it needs.
    fn set_batch(&mut self, spans: &[Span], tokens: impl Iterator<Item = u32>) {
        self.tokens.clear();
        self.tokens.extend(tokens);
        for source in &mut self.sources {
            // What was asked for is another batch's.
            (source.ticket, source.filled) = (None, false);
            find_rows(&source.hash, (spans, &self.tokens), &self.ids, &mut source.wanted);
        }
    }

    /// Begins to read the rows of the batch.
    fn ask(&mut self) {
        self.sources.iter_mut().for_each(|it| it.ticket = Some(it.store.ask(&it.wanted)));
    }

    /// Waits for the rows of the batch and leaves them in pinned memory, which nothing that runs reads.
    ///
    /// # Errors
    /// A read that failed.
    fn fill(&mut self) -> Result<(), EngineError> {
        for (place, source) in self.sources.iter_mut().enumerate() {
            if source.filled {
                continue;
            }
            let ticket = source.ticket.take().unwrap_or_else(|| source.store.ask(&source.wanted));
            let rows = source.store.wait(ticket)?;
            let columns = source.store.columns();
            let start = place * self.layer_values;
            let threads = (source.wanted.len() / THREAD_ROWS).clamp(1, THREADS_MAX);
            if threads == 1 {
                leave_rows(&rows, columns, &source.wanted, &self.pinned, start);
            } else {
                let each = source.wanted.len().div_ceil(threads);
                std::thread::scope(|scope| {
                    for (part, wanted) in source.wanted.chunks(each).enumerate() {
                        let (rows, pinned) = (&rows, &self.pinned);
                        let start = start + part * each * columns;
                        scope.spawn(move || {
                            leave_rows(rows, columns, wanted, pinned, start);
                        });
                    }
                });
            }
            source.filled = true;
        }
        Ok(())
    }

    /// The batch is now part of its sequences.
    pub(super) fn commit(&mut self, spans: &[Span]) {
        spans.iter().for_each(|span| self.ids.append(span, &self.tokens));
    }

    /// The sequence at `place` is set to a point.
    pub(super) fn restore(&mut self, place: usize, snapshot: &SnapshotPart) {
        let Some(layer) = self.sources.first().map(|source| source.layer) else { return };
        let length = snapshot.length();
        for position in length.saturating_sub(self.ids.kept - ROUND_TOKENS)..length {
            if let Some(id) = snapshot.token_id(layer, position) {
                self.ids.set(place, position, id);
            }
        }
    }

    /// Adds what was counted.
    pub(super) fn count(&self, counters: &mut RowCounters) {
        self.sources.iter().for_each(|source| counters.add(&source.store.counters()));
    }
}

impl CudaBackend {
    /// Looks rows of n-grams up in `stores`, one for each layer computed that does, in their order. Asked before the
    /// first batch.
    ///
    /// # Errors
    /// More stores or fewer than there are such layers, or no pinned memory.
    pub fn set_rows(&mut self, stores: Vec<RowStore>) -> Result<(), EngineError> {
        self.ngrams = Ngrams::new(self.stream.device(), &self.config, &self.options, stores)?;
        Ok(())
    }

    /// The batch has begun; with `read` its rows are asked for at once.
    pub(super) fn expect_ngrams(&mut self, tokens: impl Iterator<Item = u32>, read: bool) {
        let Some(ngrams) = &mut self.ngrams else { return };
        ngrams.set_batch(self.sequences.spans(), tokens);
        if read {
            ngrams.ask();
        }
    }

    /// The rows of the batch are where its copies find them, once this has returned.
    ///
    /// # Errors
    /// A read that failed.
    pub(super) fn fill_rows(&mut self) -> Result<(), EngineError> {
        self.ngrams.as_mut().map_or(Ok(()), Ngrams::fill)
    }

    /// `Rows` = the rows of the batch's tokens. Of a step that is recorded or replayed they come later.
    pub(super) fn launch_gather_rows(&mut self, layer: LayerId) -> Result<(), EngineError> {
        if self.mode == Mode::Eager {
            self.fill_rows()?;
        }
        let sources = self.ngrams.iter().flat_map(|ngrams| &ngrams.sources);
        let place = sources.into_iter().position(|source| source.layer == layer);
        let missing = || EngineError::Request("a layer of n-grams has no store of rows".to_owned());
        let place = place.ok_or_else(missing)?;
        self.run(|this| {
            let (to, ngrams) = (this.register(Register::Rows), this.ngrams.as_ref());
            let from = |it: &Ngrams| it.pinned.span(place * it.layer_values, to.len());
            ngrams.map_or(Ok(()), |it| this.stream.copy(from(it), to))
        });
        Ok(())
    }

    pub(super) fn launch_mix_ngrams(&mut self, layer: LayerId, weights: &NgramMixing) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            this.gate_values(weights)?;
            let Some(shape) = &this.config.ngrams else { return Ok(()) };
            let width = this.config.streams() * this.sizes.hidden;
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                let tokens = places.positions.len();
                let part = |register: Register| {
                    this.buffers.registers[register as usize].part(first * width, tokens * width)
                };
                let mix = NgramMix {
                    values: part(Register::StreamValues),
                    seen: part(Register::StreamsNormed),
                    weight: this.vector(weights.convolution),
                    streams: part(Register::Residual),
                    ids: this.input(Input::Token, first, tokens),
                    width,
                    apart: shape.tokens,
                };
                let kept = this.sizes.layout.side().ngram_rows(layer.index());
                let rows = this.place_buffers.side().rows(kept, places);
                launch::mix_ngrams(&this.stream, &rows, &mix)?;
                marks.keep(&this.sequences, &mut this.memory(), (layer, Part::Ngrams), run)?;
            }
            Ok(())
        });
        self.sequences.put_pending(marks);
    }

    /// `StreamValues` = what each stream takes of the value in `Normed`, and `StreamsNormed` its norm.
    fn gate_values(&self, weights: &NgramMixing) -> Result<(), CudaError> {
        let norms = [weights.key_norm, weights.query_norm, weights.convolution_norm];
        let values = NgramValues {
            value: self.register(Register::Normed),
            values: self.register(Register::StreamValues),
            seen: self.register(Register::StreamsNormed),
            norms: norms.map(|id| self.vector(id)),
            epsilon: self.config.rms_epsilon,
        };
        launch::gate_values(
            &self.stream,
            self.tokens,
            &self.streams_in(Register::Residual),
            &values,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sequences::SequenceId;

    /// Rows do not depend on where a text was cut, in how many runs of a batch it comes, or on rounds that were undone.
    #[test]
    fn rows_are_those_of_the_whole_text_wherever_it_is_cut() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = folder.join("../../tests/golden/flash-next-calm-hf/model");
        let config = ModelConfig::read(&store::format::open(&folder).unwrap().config).unwrap();
        let shape = config.ngrams.unwrap();
        let (hash, sequence) = (&shape.hashes[0], SequenceId(1));
        let text: Vec<u32> = (0..90).map(|at| at * 37 % 19).collect();
        let span = |first: usize, position: usize, tokens: usize| Span {
            sequence,
            first,
            tokens,
            position,
            base: 0,
        };
        let mut whole = Vec::new();
        let nothing = TokenIds::new(&shape, 2);
        find_rows(hash, (&[span(0, 0, 90)], &text), &nothing, &mut whole);
        assert_eq!(whole.len(), 90 * shape.rows());
        let expected = |from: usize, to: usize| &whole[from * shape.rows()..to * shape.rows()];
        let mut ids = TokenIds::new(&shape, 2);
        let (mut at, mut rows) = (0, Vec::new());
        for (turn, tokens) in [1, 1, 2, 30, 1, 8, 3, 1, 20, 5].into_iter().enumerate() {
            // Two runs of one batch; every other time wrong tokens first, as a round that was undone leaves them.
            let (half, batch) = (tokens / 2, &text[at..at + tokens]);
            if turn % 2 == 1 && at > 0 {
                ids.append(&span(0, at, ROUND_TOKENS), &[99; ROUND_TOKENS]);
            }
            let spans = [span(0, at, half), span(half, at + half, tokens - half)];
            let spans = if half > 0 { &spans[..] } else { &spans[1..] };
            find_rows(hash, (spans, batch), &ids, &mut rows);
            assert_eq!(rows, expected(at, at + tokens), "{tokens} tokens from {at}");
            spans.iter().for_each(|span| ids.append(span, batch));
            at += tokens;
        }
    }
}

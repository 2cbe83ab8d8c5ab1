//! What sequences carry on a portable GPU, and snapshots of it: copies in the process's memory.
//!
//! Keys and values of a sequence lie in its own buffers, so a snapshot has copies of them, in pages that several
//! snapshots share: a sequence remembers which of its full pages were copied, so that they are not copied again.

use std::io::{self, Read};
use std::sync::{Arc, Weak};

use gpu::op::attention::Run as GpuRun;
use gpu::{Buffer, Gpu};
use store::LayerId;

use super::super::pool::{Pool, Pooled};
use super::super::snapshot::{Mark, PAGE_TOKENS, Page, Room, Snapshot, read_snapshot};
use super::super::{Run, SequenceId};
use super::GpuOptions;
use super::requirements::Sizes;
use super::windows::{WindowSizes, Windows};
use crate::EngineError;
use crate::model::config::{Mixer, ModelConfig};
use crate::sequences::page_rows::{PageRows, Strips};

/// A run of the batch in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) sequence: SequenceId,
    pub(super) run: GpuRun,
}

/// Buffers of one sequence.
struct Place {
    /// `None` while the place is free.
    length: Option<usize>,
    /// By attention layer that keeps all positions: keys, values.
    caches: Vec<(Buffer, Buffer)>,
    /// By delta layer: recurrent state, convolution tail.
    states: Vec<(Buffer, Buffer)>,
    /// Copies of its full pages, as long as a snapshot holds them.
    copies: Vec<Weak<Pooled<Page>>>,
}

/// All sequences of a backend, and what snapshots are made of.
pub(super) struct Sequences {
    places: Vec<Place>,
    /// For each layer, its index among those of its kind.
    index: Vec<usize>,
    context: usize,
    /// Bytes of one position of a layer's keys.
    row_bytes: u64,
    /// Numbers of a recurrent state, and of a tail.
    state: usize,
    tail: usize,
    delta_layers: usize,
    attention_layers: usize,
    states: Pool<Vec<f32>>,
    pages: Pool<Page>,
    /// Of a page.
    rows: Arc<PageRows>,
    /// Of models that have layers with a window, which have no other state.
    pub(super) windows: Option<Windows>,
    /// Values of a snapshot's state.
    state_values: usize,
    pub(super) marks: Vec<Mark>,
    marked: Vec<Snapshot>,
}

fn full() -> EngineError {
    EngineError::Request("no room for another snapshot".to_owned())
}

impl Sequences {
    pub(super) fn new(
        gpu: &mut Gpu,
        config: &ModelConfig,
        options: &GpuOptions,
        sizes: &Sizes,
    ) -> Result<Self, EngineError> {
        let (mut attention_layers, mut delta_layers, mut window_layers) = (0, 0, 0);
        let index = config.layers.iter().map(|layer| {
            let counter = match layer.mixer {
                Mixer::Attention if layer.kept_window().is_some() => &mut window_layers,
                Mixer::Attention | Mixer::Latent | Mixer::Compressed(_) => &mut attention_layers,
                Mixer::DeltaNet => &mut delta_layers,
            };
            *counter += 1;
            *counter - 1
        });
        let index = index.collect();
        let mut places = Vec::with_capacity(options.sequences);
        for _ in 0..options.sequences {
            let mut pairs = |count: usize, what: [&str; 2], bytes: [u64; 2]| {
                (0..count)
                    .map(|_| Ok((gpu.buffer(what[0], bytes[0])?, gpu.buffer(what[1], bytes[1])?)))
                    .collect::<Result<Vec<_>, EngineError>>()
            };
            let cache = [sizes.cache_bytes; 2];
            let recurrent = [4 * sizes.state as u64, 4 * sizes.tail as u64];
            places.push(Place {
                length: None,
                caches: pairs(attention_layers, ["keys of a context"; 2], cache)?,
                states: pairs(delta_layers, ["recurrent state", "convolution tail"], recurrent)?,
                copies: Vec::new(),
            });
        }
        let row_bytes = sizes.cache_bytes / options.context as u64;
        let rows = PageRows::new(vec![Strips::of_tokens(2 * attention_layers, row_bytes as usize)]);
        let page = rows.bytes();
        let values = delta_layers * (sizes.state + sizes.tail);
        let values = values + sizes.windows.as_ref().map_or(0, WindowSizes::state_values);
        let windows = sizes.windows.as_ref();
        let windows = windows.map(|sizes| Windows::new(gpu, sizes, options.sequences));
        Ok(Self {
            windows: windows.transpose()?,
            state_values: values,
            places,
            index,
            context: options.context,
            row_bytes,
            state: sizes.state,
            tail: sizes.tail,
            delta_layers,
            attention_layers,
            states: Pool::new(options.snapshots, false, move || vec![0.0; values]),
            pages: Pool::new(options.snapshot_pages, false, move || Page::Bytes(vec![0; page])),
            rows: Arc::new(rows),
            marks: Vec::new(),
            marked: Vec::new(),
        })
    }

    pub(super) fn create(&mut self, gpu: &mut Gpu) -> Result<SequenceId, EngineError> {
        let Some(free) = self.places.iter().position(|place| place.length.is_none()) else {
            let count = self.places.len();
            let found = format!("all {count} sequences of the plan are in use");
            return Err(EngineError::Request(found));
        };
        let place = &mut self.places[free];
        place.length = Some(0);
        place.copies.clear();
        if let Some(windows) = &mut self.windows {
            windows.set_length(free, 0);
        }
        for (state, tail) in &place.states {
            gpu.clear(state);
            gpu.clear(tail);
        }
        Ok(SequenceId(free as u32))
    }

    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.places[sequence.0 as usize].length = None;
    }

    pub(super) fn exists(&self, sequence: SequenceId) -> bool {
        self.places[sequence.0 as usize].length.is_some()
    }

    pub(super) fn length(&self, sequence: SequenceId) -> usize {
        self.places[sequence.0 as usize].length.unwrap_or(0)
    }

    pub(super) fn advance(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(length) = &mut self.places[sequence.0 as usize].length {
            *length += tokens;
        }
    }

    /// A prompt's batch has ended: the places of its sequences have their last rows.
    pub(super) fn end_windows(&mut self, spans: &[Span]) {
        let Some(windows) = &mut self.windows else { return };
        for span in spans {
            windows.set_length(span.sequence.0 as usize, span.run.position + span.run.tokens);
        }
    }

    /// Where the runs of a batch lie; runs of one sequence continue each other.
    pub(super) fn spans(&self, runs: &[Run<'_>]) -> Result<Vec<Span>, EngineError> {
        let mut spans: Vec<Span> = Vec::with_capacity(runs.len());
        let mut first = 0;
        for run in runs {
            let earlier = spans.iter().filter(|span| span.sequence == run.sequence);
            let earlier: usize = earlier.map(|span| span.run.tokens).sum();
            let (position, tokens) = (self.length(run.sequence) + earlier, run.tokens.len());
            if position + tokens > self.context {
                let context = self.context;
                let found = format!("{position} + {tokens} tokens exceed the context of {context}");
                return Err(EngineError::Request(found));
            }
            let sequence = run.sequence;
            spans.push(Span { sequence, run: GpuRun { first, tokens, position } });
            first += tokens;
        }
        Ok(spans)
    }

    /// The number of a layer among those of its kind.
    pub(super) fn index(&self, layer: LayerId) -> usize {
        self.index[layer.index()]
    }

    /// Keys and values of a layer that keeps all positions.
    pub(super) fn cache(&self, sequence: SequenceId, layer: LayerId) -> &(Buffer, Buffer) {
        &self.places[sequence.0 as usize].caches[self.index[layer.index()]]
    }

    /// Recurrent state and convolution tail of a layer.
    pub(super) fn recurrent(&self, sequence: SequenceId, layer: LayerId) -> &(Buffer, Buffer) {
        &self.places[sequence.0 as usize].states[self.index[layer.index()]]
    }

    pub(super) fn room(&self) -> Room {
        let free = |needed: bool, free| if needed { free } else { usize::MAX };
        Room {
            pages: free(self.attention_layers > 0, self.pages.free()),
            states: free(self.state_values > 0, self.states.free()),
        }
    }

    /// Pages that a snapshot at `length` has to copy.
    pub(super) fn pages_needed(&self, sequence: SequenceId, length: usize) -> usize {
        if self.attention_layers == 0 {
            return 0;
        }
        let copies = self.places[sequence.0 as usize].copies.iter().take(length / PAGE_TOKENS);
        let held = copies.filter(|copy| copy.strong_count() > 0).count();
        length.div_ceil(PAGE_TOKENS) - held
    }

    fn new_state(&self) -> Result<Option<Pooled<Vec<f32>>>, EngineError> {
        if self.state_values == 0 {
            return Ok(None);
        }
        self.states.take().ok_or_else(full).map(Some)
    }

    pub(super) fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        let state = self.new_state()?;
        self.marks.push(Mark { run, state });
        Ok(())
    }

    /// Copies a layer's state after a run, or its tail, into the snapshots that are wanted there.
    pub(super) fn keep(
        &mut self,
        gpu: &mut Gpu,
        (run, sequence): (usize, SequenceId),
        layer: LayerId,
        tail: bool,
    ) -> Result<(), gpu::GpuError> {
        let index = self.index[layer.index()];
        let (states, tails) = (self.delta_layers * self.state, self.tail);
        for mark in self.marks.iter_mut().filter(|mark| mark.run == run) {
            let Some(kept) = &mut mark.state else { continue };
            let (state, rest) = &self.places[sequence.0 as usize].states[index];
            match tail {
                true => kept[states + index * tails..][..tails]
                    .copy_from_slice(&gpu.read_floats(rest, 0, tails)?),
                false => kept[index * self.state..][..self.state]
                    .copy_from_slice(&gpu.read_floats(state, 0, self.state)?),
            }
        }
        Ok(())
    }

    /// Assembles the snapshots that were wanted, when the batch's tokens are part of their sequences.
    pub(super) fn finish_marks(
        &mut self,
        gpu: &mut Gpu,
        spans: &[Span],
    ) -> Result<(), EngineError> {
        self.marked.clear();
        for mark in std::mem::take(&mut self.marks) {
            let span = &spans[mark.run];
            let length = span.run.position + span.run.tokens;
            let pages = self.copy_pages(gpu, span.sequence, length)?;
            let (rows, state) = (Arc::clone(&self.rows), mark.state.map(Arc::new));
            self.marked.push(Snapshot { length, pages, rows, state });
        }
        Ok(())
    }

    pub(super) fn take_marks(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.marked)
    }

    pub(super) fn snapshot(
        &mut self,
        gpu: &mut Gpu,
        sequence: SequenceId,
    ) -> Result<Snapshot, EngineError> {
        let mut state = self.new_state()?;
        let place = &self.places[sequence.0 as usize];
        if let Some(values) = &mut state {
            let (states, tails) = (4 * self.state as u64, 4 * self.tail as u64);
            let all = place.states.iter().map(|(state, _)| (state, 0, states));
            let all = all.chain(place.states.iter().map(|(_, tail)| (tail, 0, tails)));
            let bytes = gpu.read(&all.collect::<Vec<_>>())?;
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            if let Some(windows) = &self.windows {
                windows.read(gpu, sequence.0 as usize, self.length(sequence), values)?;
            }
        }
        let length = self.length(sequence);
        let pages = self.copy_pages(gpu, sequence, length)?;
        Ok(Snapshot { length, pages, rows: Arc::clone(&self.rows), state: state.map(Arc::new) })
    }

    /// Copies of the pages before `length`; full ones that there are already are shared.
    fn copy_pages(
        &mut self,
        gpu: &mut Gpu,
        sequence: SequenceId,
        length: usize,
    ) -> Result<Vec<Arc<Pooled<Page>>>, EngineError> {
        if self.attention_layers == 0 {
            return Ok(Vec::new());
        }
        let place = &mut self.places[sequence.0 as usize];
        let mut pages = Vec::with_capacity(length.div_ceil(PAGE_TOKENS));
        for number in 0..length.div_ceil(PAGE_TOKENS) {
            if let Some(copy) = place.copies.get(number).and_then(Weak::upgrade) {
                pages.push(copy);
                continue;
            }
            let mut page = self.pages.take().ok_or_else(full)?;
            let tokens = (length - number * PAGE_TOKENS).min(PAGE_TOKENS);
            let start = (number * PAGE_TOKENS) as u64 * self.row_bytes;
            let part = tokens as u64 * self.row_bytes;
            let both = place.caches.iter().flat_map(|(keys, values)| [keys, values]);
            let parts: Vec<_> = both.map(|rows| (rows, start, part)).collect();
            let read = gpu.read(&parts)?;
            let Page::Bytes(bytes) = &mut *page;
            let side = PAGE_TOKENS * self.row_bytes as usize;
            for (to, from) in bytes.chunks_exact_mut(side).zip(read.chunks_exact(part as usize)) {
                to[..from.len()].copy_from_slice(from);
            }
            let page = Arc::new(page);
            if tokens == PAGE_TOKENS {
                place.copies.resize_with(place.copies.len().max(number + 1), Weak::new);
                place.copies[number] = Arc::downgrade(&page);
            }
            pages.push(page);
        }
        Ok(pages)
    }

    pub(super) fn restore(
        &mut self,
        gpu: &mut Gpu,
        sequence: SequenceId,
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        let place = &mut self.places[sequence.0 as usize];
        place.copies.clear();
        if let Some(values) = &snapshot.state {
            let (states, tails) = values.split_at(self.delta_layers * self.state);
            for (index, (state, tail)) in place.states.iter().enumerate() {
                gpu.write_floats(state, 0, &states[index * self.state..][..self.state])?;
                gpu.write_floats(tail, 0, &tails[index * self.tail..][..self.tail])?;
            }
            if let Some(windows) = &mut self.windows {
                windows.write(gpu, sequence.0 as usize, snapshot.length, values)?;
            }
        }
        let side = PAGE_TOKENS * self.row_bytes as usize;
        for (number, page) in snapshot.pages.iter().enumerate() {
            let Page::Bytes(bytes) = &***page;
            let tokens = (snapshot.length - number * PAGE_TOKENS).min(PAGE_TOKENS);
            let start = (number * PAGE_TOKENS) as u64 * self.row_bytes;
            let part = tokens * self.row_bytes as usize;
            let both = place.caches.iter().flat_map(|(keys, values)| [keys, values]);
            for (rows, from) in both.zip(bytes.chunks_exact(side)) {
                gpu.write(rows, start, &from[..part])?;
            }
        }
        let whole = snapshot.pages.iter().take(snapshot.length / PAGE_TOKENS);
        place.copies = whole.map(Arc::downgrade).collect();
        place.length = Some(snapshot.length);
        Ok(())
    }

    /// A snapshot from outside.
    pub(super) fn read(&self, length: usize, input: &mut dyn Read) -> io::Result<Snapshot> {
        let count = if self.attention_layers == 0 { 0 } else { length.div_ceil(PAGE_TOKENS) };
        let state = self.new_state().map_err(io::Error::other)?;
        read_snapshot(length, &self.rows, (&self.pages, count), state, input)
    }
}

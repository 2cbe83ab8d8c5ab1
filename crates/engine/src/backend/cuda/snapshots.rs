//! Snapshots of sequences on a GPU, and batches put aside: copies in the process's memory.
//!
//! On the device keys and values lie in their sequence's place, so a snapshot has copies of them, in pages that several
//! snapshots share: a sequence remembers which of its full pages were copied before, so that they are neither copied
//! again nor, where a place still has them when somebody goes on from there, copied back. Both copies, and that of the
//! recurrent state, wait for the device; a prompt does so once a layer for each place that it is to leave.

use std::io::{self, Read};
use std::sync::Arc;

use cuda::CudaError;
use store::LayerId;

use super::super::pool::{Pool, Pooled};
use super::super::snapshot::{Mark, PAGE_TOKENS, Page, Room, Snapshot, Suspended, read_snapshot};
use super::buffers::Sizes;
use super::{Backend, CudaBackend, CudaOptions, Part, Register, SequenceId};
use crate::EngineError;
use crate::residency::held_pages::HeldPages;
use crate::sequences::page_rows::PageRows;

/// A page of several holders.
type Shared = Arc<Pooled<Page>>;

/// What snapshots are made of.
pub(super) struct Snapshots {
    /// Recurrent states of all delta layers, then their convolution tails; then what layers of compressed attention
    /// keep, then windows.
    states: Pool<Vec<f32>>,
    /// Per attention layer keys, then values, or latent rows alone, `PAGE_TOKENS` rows of the cache each.
    pages: Pool<Page>,
    /// Of a page.
    rows: Arc<PageRows>,
    recurrent: bool,
    attentive: bool,
    /// By sequence: which of its pages have copies, as long as a snapshot holds them.
    pub(super) held: HeldPages<Pooled<Page>>,
    marks: Vec<Mark>,
    marked: Vec<Snapshot>,
}

impl Snapshots {
    pub(super) fn new(sizes: &Sizes, options: &CudaOptions) -> Self {
        let state = sizes.state_values();
        let rows = sizes.page_rows();
        let page = rows.bytes();
        Self {
            states: Pool::new(options.snapshots, false, move || vec![0.0; state]),
            pages: Pool::new(options.snapshot_pages, false, move || Page::Bytes(vec![0; page])),
            rows: Arc::new(rows),
            recurrent: state > 0,
            attentive: page > 0,
            held: HeldPages::new(options.sequences, PAGE_TOKENS),
            marks: Vec::new(),
            marked: Vec::new(),
        }
    }

    /// What can still be held.
    pub(super) fn room(&self) -> Room {
        let free = |needed, free| if needed { free } else { usize::MAX };
        Room {
            pages: free(self.attentive, self.pages.free()),
            states: free(self.recurrent, self.states.free()),
        }
    }

    /// Pages that a snapshot of a sequence at `length` has to copy.
    pub(super) fn pages_needed(&self, index: usize, length: usize) -> usize {
        if !self.attentive {
            return 0;
        }
        length.div_ceil(PAGE_TOKENS) - self.held.copies(index, length / PAGE_TOKENS)
    }

    /// Memory for a recurrent state; `None` for models without.
    fn new_state(&self) -> Result<Option<Pooled<Vec<f32>>>, EngineError> {
        let full = || EngineError::Request("no room for another snapshot".to_owned());
        if self.recurrent { self.states.take().ok_or_else(full).map(Some) } else { Ok(None) }
    }

    /// A snapshot from outside.
    pub(super) fn read(&self, length: usize, input: &mut dyn Read) -> io::Result<Snapshot> {
        let count = if self.attentive { length.div_ceil(PAGE_TOKENS) } else { 0 };
        let state = self.new_state().map_err(io::Error::other)?;
        read_snapshot(length, &self.rows, (&self.pages, count), state, input)
    }

    pub(super) fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        let state = self.new_state()?;
        self.marks.push(Mark { run, state });
        Ok(())
    }

    pub(super) fn clear_marks(&mut self) {
        self.marks.clear();
    }

    /// The marks of the batch, to write to while the backend is read.
    pub(super) fn marks(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.marks)
    }

    pub(super) fn put_marks(&mut self, marks: Vec<Mark>) {
        self.marks = marks;
    }

    pub(super) fn take_marks(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.marked)
    }
}

impl CudaBackend {
    /// Where a sequence is.
    pub(super) fn take_snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        self.settle()?;
        let index = sequence.0 as usize;
        let (states, tails) = self.recurrent_values();
        let length = self.sequence_length(sequence);
        let mut state = self.snapshots.new_state()?;
        if let Some(state) = &mut state {
            self.buffers.states.read(index * states, &mut state[..states])?;
            self.buffers.tails.read(index * tails, &mut state[states..states + tails])?;
            self.read_compressed(index, &mut state[states + tails..])?;
            self.read_windows(index, length, state)?;
        }
        let full = || EngineError::Request("no room for another snapshot".to_owned());
        let pages = self.copy_pages(sequence, length)?.ok_or_else(full)?;
        let rows = Arc::clone(&self.snapshots.rows);
        Ok(Snapshot { length, pages, rows, state: state.map(Arc::new) })
    }

    /// Sets a sequence to a point of any.
    pub(super) fn return_to(
        &mut self,
        sequence: SequenceId,
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        self.settle()?;
        let index = sequence.0 as usize;
        self.hold_cache(std::iter::once((index, snapshot.length)))?;
        let (states, tails) = self.recurrent_values();
        if let Some(state) = &snapshot.state {
            self.buffers.states.write(index * states, &state[..states])?;
            self.buffers.tails.write(index * tails, &state[states..states + tails])?;
            self.write_compressed(index, &state[states + tails..])?;
            self.write_windows(index, snapshot.length, state)?;
        }
        let holders: Vec<Option<usize>> = (snapshot.pages.iter().enumerate())
            .map(|(number, page)| self.snapshots.held.place_with(index, number, page))
            .collect();
        // Until all is there, nothing is.
        self.snapshots.held.clear(index);
        for ((number, page), holder) in snapshot.pages.iter().enumerate().zip(holders) {
            match holder {
                Some(holder) if holder == index => {}
                Some(holder) => self.copy_page(holder, index, number)?,
                None => self.write_page(sequence, number, snapshot.length, page)?,
            }
        }
        self.lengths[index] = Some(snapshot.length);
        let full = snapshot.pages.iter().take(snapshot.length / PAGE_TOKENS);
        self.snapshots.held.restore(index, full);
        Ok(())
    }

    /// Copies a full page from one sequence's place to another's.
    fn copy_page(&self, from: usize, to: usize, number: usize) -> Result<(), CudaError> {
        self.copy_compressed_page(from, to, number)?;
        let [(from, part), (to, _)] = [from, to].map(|index| {
            self.page_part(SequenceId(index as u32), number, (number + 1) * PAGE_TOKENS)
        });
        for rows in self.buffers.cached() {
            self.stream.copy(rows.span::<u8>(from, part), rows.span(to, part))?;
        }
        Ok(())
    }

    /// Copies a page of a snapshot of `length` tokens to a sequence's place.
    fn write_page(
        &self,
        sequence: SequenceId,
        number: usize,
        length: usize,
        page: &Shared,
    ) -> Result<(), CudaError> {
        let Page::Bytes(bytes) = &***page;
        if self.compressed.is_some() {
            return self.write_compressed_page(sequence, number, length, bytes);
        }
        let (place, part) = self.page_part(sequence, number, length);
        for (rows, side) in self.buffers.cached().zip(bytes.chunks_exact(self.sizes.page_side())) {
            rows.write(place, &side[..part])?;
        }
        Ok(())
    }

    /// Values of a sequence's recurrent states, and of its tails.
    fn recurrent_values(&self) -> (usize, usize) {
        let layers = self.sizes.delta_layers;
        (layers * self.sizes.state, layers * self.sizes.tail)
    }

    /// At which byte of a layer's keys a page of a sequence of `length` tokens lies, and how many bytes of it count.
    fn page_part(&self, sequence: SequenceId, number: usize, length: usize) -> (usize, usize) {
        let width = self.sizes.cache_row;
        let first = sequence.0 as usize * self.options.context + number * PAGE_TOKENS;
        (first * width, (length - number * PAGE_TOKENS).min(PAGE_TOKENS) * width)
    }

    /// Copies of the pages before `length`, those that there are already shared; `None` without room. Nothing runs.
    fn copy_pages(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<Option<Vec<Shared>>, CudaError> {
        let index = sequence.0 as usize;
        if !self.snapshots.attentive {
            return Ok(Some(Vec::new()));
        }
        let mut pages = Vec::with_capacity(length.div_ceil(PAGE_TOKENS));
        for number in 0..length.div_ceil(PAGE_TOKENS) {
            let known = self.snapshots.held.copy(index, number);
            let full = (number + 1) * PAGE_TOKENS <= length;
            if let Some(page) = known.filter(|_| full) {
                pages.push(page);
                continue;
            }
            let Some(mut page) = self.snapshots.pages.take() else { return Ok(None) };
            let Page::Bytes(bytes) = &mut *page;
            let (place, part) = self.page_part(sequence, number, length);
            self.read_compressed_page(sequence, number, length, bytes)?;
            let sides = bytes.chunks_exact_mut(self.sizes.page_side());
            for (rows, side) in self.buffers.cached().zip(sides) {
                rows.read_bytes(place, &mut side[..part])?;
            }
            let page = Arc::new(page);
            if full {
                self.snapshots.held.note_copied(index, number, &page);
            }
            pages.push(page);
        }
        Ok(Some(pages))
    }

    /// After a layer's convolution of a run: its tail for those who want it.
    pub(super) fn keep_tails(
        &self,
        layer: LayerId,
        run: usize,
        marks: &mut [Mark],
    ) -> Result<(), CudaError> {
        let (states, tails) = self.recurrent_values();
        let (size, at) = (self.sizes.tail, self.index[layer.index()] * self.sizes.tail);
        for mark in marks.iter_mut().filter(|mark| mark.run == run) {
            let index = self.parts[run].sequence.0 as usize;
            let Some(state) = &mut mark.state else { continue };
            self.stream.wait()?;
            let to = &mut state[states + at..states + at + size];
            self.buffers.tails.read(index * tails + at, to)?;
        }
        Ok(())
    }

    /// After a layer's delta rule of a run: its state for those who want it.
    pub(super) fn keep_states(
        &self,
        layer: LayerId,
        run: usize,
        marks: &mut [Mark],
    ) -> Result<(), CudaError> {
        let (states, _) = self.recurrent_values();
        let (size, at) = (self.sizes.state, self.index[layer.index()] * self.sizes.state);
        for mark in marks.iter_mut().filter(|mark| mark.run == run) {
            let index = self.parts[run].sequence.0 as usize;
            let Some(state) = &mut mark.state else { continue };
            self.stream.wait()?;
            self.buffers.states.read(index * states + at, &mut state[at..at + size])?;
        }
        Ok(())
    }

    /// Makes snapshots of the marks of the batch that has ended, as far as there is room.
    pub(super) fn keep_marks(&mut self) {
        self.snapshots.marked.clear();
        for mark in self.snapshots.marks() {
            let Part { sequence, position, tokens, .. } = self.parts[mark.run];
            let length = position + tokens;
            match self.copy_pages(sequence, length) {
                Ok(Some(pages)) => {
                    let state = mark.state.map(Arc::new);
                    let rows = Arc::clone(&self.snapshots.rows);
                    self.snapshots.marked.push(Snapshot { length, pages, rows, state });
                }
                Ok(None) => {}
                Err(error) => self.failure = Some(error),
            }
        }
    }

    /// The batch in progress, between two layers of a prompt; `None` for a step and when a copy fails. Records that
    /// were read ahead for the next layer stay where they are.
    pub(super) fn put_aside(&mut self) -> Option<Suspended> {
        if self.single || self.failure.is_some() || self.stream.wait().is_err() {
            return None;
        }
        let mut residual = vec![0.0; self.register(Register::Residual).len()];
        self.buffers.registers[Register::Residual as usize].read(0, &mut residual).ok()?;
        let spans = self.parts.iter().map(|part| (part.sequence, part.position, part.tokens));
        Some(Suspended {
            spans: spans.collect(),
            tokens: self.buffers.pinned.inputs.collect(0..self.tokens).collect(),
            residual,
            marks: self.snapshots.marks(),
        })
    }

    /// Goes on with a prompt's batch.
    pub(super) fn take_up(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.finish_step()?;
        self.end_given_up()?;
        self.stream.wait()?;
        self.parts.clear();
        let mut first = 0;
        for (sequence, position, tokens) in suspended.spans {
            self.parts.push(Part { sequence, first, tokens, position, base: 0 });
            first += tokens;
        }
        self.tokens = first;
        self.single = false;
        self.place_windows()?;
        self.snapshots.put_marks(suspended.marks);
        self.write_inputs(suspended.tokens.into_iter());
        self.upload_inputs()?;
        self.buffers.registers[Register::Residual as usize].write(0, &suspended.residual)?;
        self.begin_step()
    }

    /// Tokens, positions and sequences of the batch's parts, for the device to fetch.
    pub(super) fn write_inputs(&self, tokens: impl Iterator<Item = u32>) {
        let (inputs, total) = (&self.buffers.pinned.inputs, self.tokens);
        inputs.hand_over(0, tokens);
        for part in &self.parts {
            let positions = (part.position..part.position + part.tokens).map(|place| place as u32);
            inputs.hand_over(total + part.first, positions);
            let sequences = std::iter::repeat_n(part.sequence.0, part.tokens);
            inputs.hand_over(2 * total + part.first, sequences);
        }
        self.write_window_positions();
    }

    /// Brings them to the device.
    pub(super) fn upload_inputs(&self) -> Result<(), CudaError> {
        let count = self.sizes.input_rows() * self.tokens;
        let from = self.buffers.pinned.inputs.span(0, count);
        self.stream.copy(from, self.buffers.inputs.span(0, count))
    }
}

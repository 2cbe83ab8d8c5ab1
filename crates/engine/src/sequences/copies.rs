//! Copies between the places of sequences and snapshots.

use std::ops::Range;
use std::sync::Arc;

use store::LayerId;

use super::layout::{Part, SequenceLayout};
use super::pool::Pooled;
use super::port::{Memory, Region, StateMemory};
use super::snapshot::{PAGE_TOKENS, SharedPage, SnapshotPart};
use super::{SequenceId, Sequences, full};
use crate::EngineError;

/// A snapshot in the making: the state after one run of a batch, layer by layer.
#[derive(Debug)]
struct Mark {
    /// Index of the run.
    run: usize,
    /// As in [`SnapshotPart`].
    state: Option<Pooled<Vec<f32>>>,
}

/// The snapshots in the making of a batch.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, run: usize, state: Option<Pooled<Vec<f32>>>) {
        self.0.push(Mark { run, state });
    }

    /// Copies a part of a layer's state, as it is behind a run of a prompt, to the snapshots at the run's end.
    pub(crate) fn keep<M: StateMemory + ?Sized>(
        &mut self,
        sequences: &Sequences,
        memory: &mut M,
        (layer, part): (LayerId, Part),
        run: usize,
    ) -> Result<(), M::Error> {
        for mark in self.0.iter_mut().filter(|mark| mark.run == run) {
            let Some(state) = &mut mark.state else { continue };
            let (layout, span) = (&sequences.layout, &sequences.spans[run]);
            let place = span.sequence.place();
            if let (Part::Window, Some(rows)) = (part, layout.window_rows()) {
                let at = WindowAt { place, base: rows.base(span.end()), length: span.end() };
                sequences.read_window(memory, layout.index(layer), at, state)?;
                continue;
            }
            let region = layout.region(place, layer, part);
            let to = bytemuck::cast_slice_mut(&mut state[layout.range(layer, part)]);
            memory.read(&[region], to)?;
        }
        Ok(())
    }
}

/// The window of a sequence of `length` tokens at a place whose rows begin at `base`.
#[derive(Clone, Copy)]
struct WindowAt {
    place: usize,
    base: usize,
    length: usize,
}

impl Sequences {
    /// [`Marks::keep`] of the batch's own marks.
    pub(crate) fn keep<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        part: (LayerId, Part),
        run: usize,
    ) -> Result<(), M::Error> {
        let mut marks = self.take_pending();
        let kept = marks.keep(self, memory, part, run);
        self.put_pending(marks);
        kept
    }

    /// Memory for a snapshot's state; `None` for models without.
    pub(super) fn new_state(&self) -> Result<Option<Pooled<Vec<f32>>>, EngineError> {
        self.view().new_state()
    }

    /// Where a sequence is.
    ///
    /// # Errors
    /// There is no room, or the device failed.
    pub(crate) fn snapshot<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        sequence: SequenceId,
    ) -> Result<SnapshotPart, EngineError> {
        let (place, length) = (sequence.place(), self.length(sequence));
        let mut state = self.new_state()?;
        if let Some(state) = &mut state {
            self.read_state(memory, place, length, state).map_err(Into::into)?;
        }
        let pages = self.copy_pages(memory, place, length).map_err(Into::into)?;
        let (pages, layout) = (pages.ok_or_else(full)?, Arc::clone(&self.layout));
        Ok(SnapshotPart { length, pages, layout, state: state.map(Arc::new) })
    }

    /// Sets a sequence to a point of any. After a failure it is undefined.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn restore<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        let place = sequence.place();
        if let Some(state) = &snapshot.state {
            self.write_state(memory, place, snapshot.length, state).map_err(Into::into)?;
        }
        match self.shares_pages {
            true => self.places[place].pages.clone_from(&snapshot.pages),
            false => self.write_pages(memory, place, snapshot).map_err(Into::into)?,
        }
        self.places[place].length = Some(snapshot.length);
        self.places[place].forget_round();
        Ok(())
    }

    /// Makes snapshots of the marks of the batch that has ended, as far as there is room.
    pub(super) fn finish_marks<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
    ) -> Result<(), M::Error> {
        self.marked.clear();
        let mut failed = Ok(());
        for Mark { run, state } in self.take_pending().0 {
            let (sequence, length) = (self.spans[run].sequence, self.spans[run].end());
            let place = sequence.place();
            match self.copy_pages(memory, place, length) {
                Ok(Some(pages)) => {
                    let (layout, state) = (Arc::clone(&self.layout), state.map(Arc::new));
                    let part = SnapshotPart { length, pages, layout, state };
                    self.marked.push((sequence, Some(part)));
                }
                Ok(None) => self.marked.push((sequence, None)),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// All memory of a place of which a snapshot has a part of its state.
    pub(super) fn fixed_regions(&self, place: usize) -> Vec<Region> {
        let region = |memory| {
            let bytes = self.layout.memory_range(memory).len() * size_of::<f32>();
            Region { place, memory, start: 0, bytes }
        };
        self.layout.fixed().into_iter().map(region).collect()
    }

    /// The state of a sequence of `length` tokens.
    fn read_state<M: StateMemory + ?Sized>(
        &self,
        memory: &mut M,
        place: usize,
        length: usize,
        state: &mut [f32],
    ) -> Result<(), M::Error> {
        let regions = self.fixed_regions(place);
        let bytes = regions.iter().map(|region| region.bytes).sum();
        if bytes > 0 {
            memory.read(&regions, &mut bytemuck::cast_slice_mut(state)[..bytes])?;
        }
        let at = WindowAt { place, base: self.places[place].base, length };
        (0..self.layout.windows_by_rows())
            .try_for_each(|index| self.read_window(memory, index, at, state))
    }

    /// Sets the state of a place to that of a snapshot of `length` tokens.
    fn write_state<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        place: usize,
        length: usize,
        state: &[f32],
    ) -> Result<(), M::Error> {
        let regions = self.fixed_regions(place);
        let bytes = regions.iter().map(|region| region.bytes).sum();
        if bytes > 0 {
            memory.write(&regions, &bytemuck::cast_slice(state)[..bytes])?;
        }
        let Some(rows) = self.layout.window_rows() else { return Ok(()) };
        let at = WindowAt { place, base: rows.base(length), length };
        self.places[place].base = at.base;
        for index in 0..self.layout.windows_by_rows() {
            let (strips, range) = self.window_strips(index, at);
            write_strips(memory, &strips, &bytemuck::cast_slice(state)[range])?;
        }
        Ok(())
    }

    /// The last rows of a window at its place, each with its place in what a snapshot has of the layer, and where that
    /// lies among the bytes of the snapshot's state.
    fn window_strips(
        &self,
        index: usize,
        at: WindowAt,
    ) -> (Vec<(Region, Range<usize>)>, Range<usize>) {
        let range = self.layout.window_range(index);
        let range = range.start * size_of::<f32>()..range.end * size_of::<f32>();
        let (row, side_bytes) = (self.layout.window_row(), range.len() / 2);
        let first = self.layout.window_rows().map_or(at.base, |rows| rows.base(at.length));
        let (start, bytes) = ((first - at.base) * row, (at.length - first) * row);
        let strips = [0, 1].map(|side| {
            let memory = Memory::Window { layer: index, side };
            let region = Region { place: at.place, memory, start, bytes };
            (region, side * side_bytes..side * side_bytes + bytes)
        });
        (strips.into(), range)
    }

    /// The last rows of a window, into the state of a snapshot. What is behind them there is zero.
    fn read_window<M: StateMemory + ?Sized>(
        &self,
        memory: &mut M,
        index: usize,
        at: WindowAt,
        state: &mut [f32],
    ) -> Result<(), M::Error> {
        let (strips, range) = self.window_strips(index, at);
        let to = &mut bytemuck::cast_slice_mut(state)[range];
        to.fill(0);
        read_strips(memory, &strips, to)
    }

    /// Moves rows of all windows of a place to its front.
    pub(super) fn move_windows<M: StateMemory + ?Sized>(
        &self,
        memory: &mut M,
        place: usize,
        first: usize,
        count: usize,
    ) -> Result<(), M::Error> {
        let (row, layers) = (self.layout.window_row(), 0..self.layout.windows_by_rows());
        let sides = layers.flat_map(|layer| [0, 1].map(|side| Memory::Window { layer, side }));
        let pairs = sides.map(|memory| {
            let from = Region { place, memory, start: first * row, bytes: count * row };
            (from, Region { start: 0, ..from })
        });
        memory.copy(&pairs.collect::<Vec<_>>())
    }

    /// The pages of a sequence before `length`: its own where they are shared; else copies, of which those that there
    /// are already are shared. `None` without room.
    fn copy_pages<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        place: usize,
        length: usize,
    ) -> Result<Option<Vec<SharedPage>>, M::Error> {
        let count = self.layout.pages(length);
        if self.shares_pages {
            return Ok(Some(self.places[place].pages[..count].to_vec()));
        }
        let mut pages = Vec::with_capacity(count);
        for number in 0..count {
            let full = (number + 1) * PAGE_TOKENS <= length;
            let known = self.held.copy(place, number).filter(|_| full);
            if let Some(page) = known {
                pages.push(page);
                continue;
            }
            let Some(mut page) = self.pages.take() else { return Ok(None) };
            let tokens = (length - number * PAGE_TOKENS).min(PAGE_TOKENS);
            read_strips(memory, &self.layout.page_strips(place, number, tokens), &mut page)?;
            let page = Arc::new(page);
            if full {
                self.held.note_copied(place, number, &page);
            }
            pages.push(page);
        }
        Ok(Some(pages))
    }

    /// Sets the pages of a place to those of a snapshot. A page that some place still has is copied from there.
    fn write_pages<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        place: usize,
        snapshot: &SnapshotPart,
    ) -> Result<(), M::Error> {
        let holders: Vec<Option<usize>> = (snapshot.pages.iter().enumerate())
            .map(|(number, page)| self.held.place_with(place, number, page))
            .collect();
        // Until all is there, nothing is.
        self.held.clear(place);
        for ((number, page), holder) in snapshot.pages.iter().enumerate().zip(holders) {
            if holder == Some(place) {
                continue;
            }
            let tokens = (snapshot.length - number * PAGE_TOKENS).min(PAGE_TOKENS);
            let strips = self.layout.page_strips(place, number, tokens);
            match holder {
                Some(holder) => {
                    let pairs = strips.iter().map(|&(to, _)| (Region { place: holder, ..to }, to));
                    memory.copy(&pairs.collect::<Vec<_>>())?;
                }
                None => write_strips(memory, &strips, page)?,
            }
        }
        let full = snapshot.pages.iter().take(snapshot.length / PAGE_TOKENS);
        self.held.restore(place, full);
        Ok(())
    }
}

impl SequenceLayout {
    /// Where a part of a layer's state lies at a place, where a snapshot has it as it is.
    pub(super) fn region(&self, place: usize, layer: LayerId, part: Part) -> Region {
        let index = self.index(layer);
        let memory = match part {
            Part::State => Memory::State(index),
            Part::Tail => Memory::Tail(index),
            Part::Compressed => Memory::Compressed,
            Part::Index | Part::Ngrams | Part::Outputs => Memory::Side,
            Part::Window => Memory::Ring(index),
        };
        let (whole, range) = (self.memory_range(memory), self.range(layer, part));
        let values = size_of::<f32>();
        let start = (range.start - whole.start) * values;
        Region { place, memory, start, bytes: range.len() * values }
    }

    /// The rows of the first `tokens` tokens of a page at a place, each strip with its range in the page.
    fn page_strips(
        &self,
        place: usize,
        number: usize,
        tokens: usize,
    ) -> Vec<(Region, Range<usize>)> {
        let (row, side_bytes) = (self.row(), self.side_bytes());
        let mut strips = Vec::new();
        for strip in 0..self.paged_sides() {
            let memory = Memory::Rows { layer: strip / self.sides(), side: strip % self.sides() };
            let (start, bytes) = (number * side_bytes, tokens * row);
            let region = Region { place, memory, start, bytes };
            strips.push((region, strip * side_bytes..strip * side_bytes + bytes));
        }
        let page = self.compressed().page_bytes;
        for range in self.compressed().filled(tokens).into_iter().filter(|range| !range.is_empty())
        {
            let start = number * page + range.start;
            let region = Region { place, memory: Memory::Pages, start, bytes: range.len() };
            strips.push((region, range));
        }
        let page = self.side().page_bytes();
        for (start, range) in self.side().filled(tokens) {
            let region = self.index_region(place, number * page + start, range.len());
            strips.extend((!range.is_empty()).then_some((region, range)));
        }
        strips
    }
}

/// Whether strips fill what they lie in, from its beginning to its end.
fn fill(strips: &[(Region, Range<usize>)], bytes: usize) -> bool {
    strips.iter().map(|(_, range)| range.len()).sum::<usize>() == bytes
}

/// Reads regions to their ranges of `to`.
fn read_strips<M: StateMemory + ?Sized>(
    memory: &mut M,
    strips: &[(Region, Range<usize>)],
    to: &mut [u8],
) -> Result<(), M::Error> {
    let regions: Vec<_> = strips.iter().map(|(region, _)| *region).collect();
    if fill(strips, to.len()) {
        return memory.read(&regions, to);
    }
    let mut read = vec![0; regions.iter().map(|region| region.bytes).sum()];
    memory.read(&regions, &mut read)?;
    let mut rest = read.as_slice();
    for (_, range) in strips {
        let (from, behind) = rest.split_at(range.len());
        to[range.clone()].copy_from_slice(from);
        rest = behind;
    }
    Ok(())
}

/// Writes ranges of `from` to their regions.
fn write_strips<M: StateMemory + ?Sized>(
    memory: &mut M,
    strips: &[(Region, Range<usize>)],
    from: &[u8],
) -> Result<(), M::Error> {
    let regions: Vec<_> = strips.iter().map(|(region, _)| *region).collect();
    if fill(strips, from.len()) {
        return memory.write(&regions, from);
    }
    let parts: Vec<_> = strips.iter().map(|(_, range)| &from[range.clone()]).collect();
    memory.write(&regions, &parts.concat())
}

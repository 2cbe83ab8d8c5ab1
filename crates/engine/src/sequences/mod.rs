//! What sequences carry from token to token, and the points that they can go on from: one owner for every device.
//!
//! A [`SequenceLayout`] says what each layer keeps and where it lies; [`Sequences`] creates sequences, begins and ends
//! batches of their tokens, and takes and restores snapshots ([`copies`]). Of a device it knows a few copies in its
//! memory ([`port`]). No driver is known here.
//!
//! Every batch ends with all of its tokens ([`Sequences::commit`]) or its sequences are undefined. Of a round of an
//! answer the first tokens alone may be kept afterwards ([`rounds`]).

mod blocks;
mod compressed_layout;
mod copies;
mod held_pages;
mod layout;
mod page_rows;
mod placement;
mod pool;
mod port;
mod rounds;
mod side_layout;
mod snapshot;
#[cfg(test)]
mod tests;
mod view;
mod window_ring;
mod window_rows;

use std::io;
use std::sync::Arc;

pub(crate) use self::blocks::owned_page;
pub(crate) use self::compressed_layout::{CompressedLayout, key_type};
pub(crate) use self::copies::Marks;
use self::held_pages::HeldPages;
pub(crate) use self::layout::{Kept, Part, RowForm, SequenceLayout};
pub(crate) use self::page_rows::{PagePart, page_parts};
pub(crate) use self::placement::{LayerRows, PlaceBuffer, Placed, Placement, RowPlaces};
use self::pool::{Made, Pool};
pub(crate) use self::port::{Memory, Region, StateMemory, cut, cut_mut};
use self::rounds::Round;
pub(crate) use self::side_layout::{Ring, SideLayout};
use self::snapshot::Page;
pub(crate) use self::snapshot::{BlankPart, Distant, Held, SharedPage, SnapshotShare};
pub use self::snapshot::{PAGE_TOKENS, Room, Snapshot, SnapshotPart, Suspended};
pub(crate) use self::view::SequencesView;
pub(crate) use self::window_rows::{WindowRun, WindowSizes};
use crate::EngineError;

/// A sequence known to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub u32);

impl SequenceId {
    /// Its place in the memory of the device.
    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// Tokens of one sequence in a batch: they continue it from its current length.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// The tokens, in order; at least one.
    pub tokens: &'a [u32],
}

/// Where a run of a batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Whose run.
    pub(crate) sequence: SequenceId,
    /// Index of its first token in the batch.
    pub(crate) first: usize,
    /// How many tokens.
    pub(crate) tokens: usize,
    /// Position of its first token in the sequence.
    pub(crate) position: usize,
    /// Position of the first row that layers with a window have at the sequence's place when the run begins.
    pub(crate) base: usize,
}

impl Span {
    /// The sequence's length behind the run.
    pub(crate) fn end(&self) -> usize {
        self.position + self.tokens
    }
}

/// How much there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sequences.
    pub(crate) sequences: usize,
    /// Tokens of a sequence.
    pub(crate) context: usize,
    /// Pages in the process's memory.
    pub(crate) pages: usize,
    /// States of snapshots.
    pub(crate) snapshots: usize,
    /// Whether all of them are allocated at once.
    pub(crate) ahead: bool,
    /// Whether some are made before they are needed, of pages that are there: a device's copy to fresh memory waits for
    /// each page, 57 ms for 63 MiB instead of 4.8 (H200).
    pub(crate) stocked: bool,
    /// True where pages of keys and values are the process's own and are read in place: sequences and snapshots share
    /// them, and there are no [`Memory::Rows`], [`Memory::Pages`] and [`Memory::IndexPages`].
    pub(crate) shares_pages: bool,
}

impl Limits {
    /// For `sequences` of up to `context` tokens, and so many pages and states of snapshots, where places have rows of
    /// their own.
    pub(crate) fn new(sequences: usize, context: usize, [pages, snapshots]: [usize; 2]) -> Self {
        let (ahead, stocked, shares_pages) = (false, false, false);
        Self { sequences, context, pages, snapshots, ahead, stocked, shares_pages }
    }
}

/// What is known of a place.
#[derive(Default)]
struct Place {
    /// `None` while the place is free.
    length: Option<usize>,
    /// Where pages are shared: those before `length`, and those of the batch in progress, which are the sequence's
    /// alone.
    pages: Vec<SharedPage>,
    /// Position of the first row of the place's windows.
    base: usize,
    /// A sequence was here and nobody has asked since.
    ended: bool,
    /// How many sequences had ended when the last one here did.
    left: u64,
    /// The last batch, where it was a round of which less may be kept.
    round: Option<Round>,
    /// Tokens at the end that recurrent states do not have yet: those of a round that were kept.
    lag: usize,
}

/// Bytes of pages, and of states, that are made before they are taken: those of some turns of an agent.
const STOCK_BYTES: usize = 64 << 20;

/// All sequences of a backend, and what snapshots of them are made of.
pub struct Sequences {
    layout: Arc<SequenceLayout>,
    context: usize,
    shares_pages: bool,
    places: Vec<Place>,
    /// Sequences that have ended.
    removed: u64,
    /// Where pages are copied: which pages of a place have copies that a snapshot holds.
    held: HeldPages<pool::Pooled<Page>>,
    pages: Pool<Page>,
    states: Pool<Vec<f32>>,
    spans: Vec<Span>,
    marks: Marks,
    marked: Vec<(SequenceId, Option<SnapshotPart>)>,
}

fn full() -> EngineError {
    EngineError::Request("no room for another snapshot".to_owned())
}

impl Sequences {
    /// No sequences yet.
    pub(crate) fn new(layout: Arc<SequenceLayout>, limits: Limits) -> Self {
        let (page, values) = (layout.page_bytes(), layout.state_values());
        let made = |bytes: usize| match (limits.ahead, limits.stocked) {
            (true, _) => Made::Ahead,
            (false, true) if bytes > 0 => Made::Stocked((STOCK_BYTES / bytes).max(1)),
            (false, _) => Made::Asked,
        };
        let [of_pages, of_states] = [made(page), made(values * size_of::<f32>())];
        // What is written has pages; zeros need none until then.
        let (byte, value) = if limits.stocked { (0xff, f32::NAN) } else { (0, 0.0) };
        Self {
            layout,
            context: limits.context,
            shares_pages: limits.shares_pages,
            places: (0..limits.sequences).map(|_| Place::default()).collect(),
            removed: 0,
            held: HeldPages::new(limits.sequences, PAGE_TOKENS),
            pages: Pool::new(limits.pages, of_pages, move || vec![byte; page]),
            states: Pool::new(limits.snapshots, of_states, move || vec![value; values]),
            spans: Vec::with_capacity(limits.sequences),
            marks: Marks::default(),
            marked: Vec::new(),
        }
    }

    /// What a sequence carries.
    pub(crate) fn layout(&self) -> &SequenceLayout {
        &self.layout
    }

    /// Makes an empty sequence, whose states are zero. Where rows lie at places, `home` has its place if that is free;
    /// else the place that was left first, so that what others will go on from stays where it is longest.
    ///
    /// # Errors
    /// All sequences exist already, or the device failed.
    pub(crate) fn create<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        home: Option<SequenceId>,
    ) -> Result<SequenceId, EngineError> {
        let Some(free) = self.free_place(home) else {
            let count = self.places.len();
            let found = format!("all {count} sequences of the plan are in use");
            return Err(EngineError::Request(found));
        };
        memory.clear(&self.fixed_regions(free)).map_err(Into::into)?;
        self.held.succeed(free);
        let place = &mut self.places[free];
        (place.length, place.base) = (Some(0), 0);
        place.forget_round();
        Ok(SequenceId(free as u32))
    }

    /// Where a new sequence goes.
    fn free_place(&self, home: Option<SequenceId>) -> Option<usize> {
        let is_free = |place: &usize| self.places[*place].length.is_none();
        let mut free = (0..self.places.len()).filter(is_free);
        match self.shares_pages {
            true => free.next(),
            false => {
                let home = home.map(SequenceId::place).filter(is_free);
                home.or_else(|| free.min_by_key(|&place| self.places[place].left))
            }
        }
    }

    /// Forgets a sequence.
    pub(crate) fn remove(&mut self, sequence: SequenceId) {
        self.removed += 1;
        let place = &mut self.places[sequence.place()];
        (place.length, place.ended, place.left) = (None, true, self.removed);
        place.pages.clear();
    }

    /// Whether a sequence has been forgotten at a place since this was last asked.
    pub(crate) fn take_ended(&mut self, place: usize) -> bool {
        std::mem::take(&mut self.places[place].ended)
    }

    /// Whether there is such a sequence.
    pub(crate) fn exists(&self, sequence: SequenceId) -> bool {
        self.places[sequence.place()].length.is_some()
    }

    /// Tokens that a sequence holds.
    pub(crate) fn length(&self, sequence: SequenceId) -> usize {
        self.places[sequence.place()].length.unwrap_or(0)
    }

    /// Begins a batch: where its runs lie. Runs of one sequence continue each other.
    ///
    /// # Errors
    /// A full context, or no page left where pages are shared.
    pub(crate) fn begin(&mut self, runs: &[Run<'_>]) -> Result<&[Span], EngineError> {
        self.marks.clear();
        self.spans.clear();
        let mut first = 0;
        for &Run { sequence, tokens } in runs {
            let earlier = self.spans.iter().filter(|span| span.sequence == sequence);
            let earlier: usize = earlier.map(|span| span.tokens).sum();
            let (position, tokens) = (self.length(sequence) + earlier, tokens.len());
            if position + tokens > self.context {
                let context = self.context;
                let found = format!("{position} + {tokens} tokens exceed the context of {context}");
                return Err(EngineError::Request(found));
            }
            self.spans.push(Span { sequence, first, tokens, position, base: 0 });
            first += tokens;
        }
        for index in 0..self.spans.len() {
            let span = self.spans[index];
            match self.shares_pages {
                true => self.reserve(span)?,
                false => self.held.note_written(span.sequence.place(), span.position),
            }
            self.places[span.sequence.place()].round = None;
        }
        Ok(&self.spans)
    }

    /// Gives a sequence pages of its own for a run.
    fn reserve(&mut self, span: Span) -> Result<(), EngineError> {
        let full = || EngineError::Request("the key-value cache is full".to_owned());
        let held = &mut self.places[span.sequence.place()].pages;
        if !span.position.is_multiple_of(PAGE_TOKENS) && self.layout.page_bytes() > 0 {
            // The page is written from here on; what a snapshot holds of it must stay.
            let page = &mut held[span.position / PAGE_TOKENS];
            if Arc::get_mut(page).is_none() {
                let mut copy = self.pages.take().ok_or_else(full)?;
                copy.copy_from_slice(page);
                *page = Arc::new(copy);
            }
        }
        while held.len() < self.layout.pages(span.end()) {
            held.push(Arc::new(self.pages.take().ok_or_else(full)?));
        }
        Ok(())
    }

    /// Gives a sequence pages of its own for rows of `tokens` behind its end, which no batch has begun.
    ///
    /// # Errors
    /// A full context, or no page left.
    pub(crate) fn reserve_rows(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let position = self.length(sequence);
        if position + tokens > self.context {
            return Err(EngineError::Request("the context is full".to_owned()));
        }
        self.reserve(Span { sequence, first: 0, tokens, position, base: 0 })
    }

    /// Frees the pages of such rows.
    pub(crate) fn release_rows(&mut self, sequence: SequenceId) {
        let pages = self.layout.pages(self.length(sequence));
        self.places[sequence.place()].pages.truncate(pages);
    }

    /// The runs of the batch in progress.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Says of the runs of the batch where the windows of their sequences lie, and makes room for those of a step of
    /// answers, which append to the place itself. Each run of a prompt leaves its window at its sequence's place.
    pub(crate) fn place_windows<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        answers: bool,
    ) -> Result<(), M::Error> {
        let Some(rows) = self.layout.window_rows() else { return Ok(()) };
        for index in 0..self.spans.len() {
            let Span { sequence, position, .. } = self.spans[index];
            let first = self.spans[..index].iter().all(|it| it.sequence != sequence);
            let held = self.places[sequence.place()].base;
            self.spans[index].base = match (answers, first) {
                (false, false) => rows.base(position),
                (false, true) | (true, false) => held,
                (true, true) => {
                    let own = self.spans.iter().filter(|it| it.sequence == sequence);
                    let tokens = own.map(|it| it.tokens).sum();
                    let (base, moved) = rows.making_room(held, position, tokens);
                    if let Some((first, count)) = moved {
                        self.move_windows(memory, sequence.place(), first, count)?;
                    }
                    self.places[sequence.place()].base = base;
                    base
                }
            };
        }
        Ok(())
    }

    /// Asks for a snapshot at the end of one run of the batch.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        let state = self.new_state()?;
        self.marks.push(run, state);
        Ok(())
    }

    /// The marks of the batch, to write to while the sequences are read.
    pub(crate) fn take_pending(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    /// The marks of the batch.
    pub(crate) fn put_pending(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// Ends the batch: its tokens are now part of their sequences, and its marks are snapshots, as far as there is room
    /// for their pages.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn commit<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        answers: bool,
    ) -> Result<(), M::Error> {
        let rows = self.layout.window_rows();
        for span in &self.spans {
            let place = &mut self.places[span.sequence.place()];
            if let Some(length) = &mut place.length {
                *length += span.tokens;
            }
            place.lag = place.round.as_ref().map_or(0, |_| span.tokens);
            if let (Some(rows), false) = (rows, answers) {
                place.base = rows.base(span.end());
            }
        }
        self.finish_marks(memory)
    }

    /// The snapshots that were asked for in the batch that has ended and their sequences, in the order asked; `None` of
    /// one for whose pages there was no room.
    pub(crate) fn take_marks(&mut self) -> Vec<(SequenceId, Option<SnapshotPart>)> {
        std::mem::take(&mut self.marked)
    }

    /// Forgets the batch in progress and its marks, and all sequences but those of `live`, which that batch did not
    /// change: what is left after a panic. What was suspended stays.
    pub(crate) fn recover(&mut self, live: &[SequenceId]) {
        self.spans.clear();
        self.marks.clear();
        self.marked.clear();
        for place in 0..self.places.len() {
            let sequence = SequenceId(place as u32);
            if !live.contains(&sequence) {
                self.remove(sequence);
            }
        }
    }

    /// Puts the batch aside: its tokens, and the residual stream between two layers.
    pub(crate) fn suspend(&mut self, tokens: Vec<u32>, residual: Vec<f32>) -> Suspended {
        let (spans, chosen) = (self.spans.clone(), Vec::new());
        Suspended { spans, tokens, residual, chosen, marks: self.take_pending() }
    }

    /// Goes on with a batch that was put aside; gives its tokens and the residual stream. Windows are placed anew.
    pub(crate) fn resume(&mut self, suspended: Suspended) -> (Vec<u32>, Vec<f32>) {
        let Suspended { spans, tokens, residual, marks, .. } = suspended;
        (self.spans, self.marks) = (spans, marks);
        (tokens, residual)
    }

    /// What another thread may ask while this one computes.
    pub(crate) fn view(&self) -> SequencesView {
        SequencesView {
            layout: Arc::clone(&self.layout),
            pages: self.pages.clone(),
            states: self.states.clone(),
            shares_pages: self.shares_pages,
            places: self.places.len(),
        }
    }

    /// Memory for a snapshot of `length` tokens from outside.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn blank(&self, length: usize) -> io::Result<BlankPart> {
        self.view().blank(length)
    }

    /// What can still be held.
    pub(crate) fn room(&self) -> Room {
        self.view().room()
    }

    /// Pages that `tokens` more of a sequence may take from the room while they are computed.
    pub(crate) fn batch_pages(&self, tokens: usize) -> usize {
        if self.shares_pages { tokens / PAGE_TOKENS + 2 } else { 0 }
    }

    /// Pages that a snapshot of a sequence takes once it has `length` tokens, without those it shares.
    pub(crate) fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        if self.shares_pages {
            return 0;
        }
        let copies = self.held.copies(sequence.place(), length / PAGE_TOKENS);
        self.layout.pages(length) - copies
    }

    /// Where pages are copied: rows of a place have no memory from `tokens` on.
    pub(crate) fn note_lost(&mut self, place: usize, tokens: usize) {
        self.held.note_lost(place, tokens);
    }

    /// Where pages are shared: those of a sequence.
    pub(crate) fn pages(&self, sequence: SequenceId) -> &[SharedPage] {
        &self.places[sequence.place()].pages
    }

    /// As [`Sequences::pages`], to write to those of the batch in progress.
    pub(crate) fn pages_mut(&mut self, sequence: SequenceId) -> &mut [SharedPage] {
        &mut self.places[sequence.place()].pages
    }
}

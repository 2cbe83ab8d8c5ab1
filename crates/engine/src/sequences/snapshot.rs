//! Points that sequences can go on from.
//!
//! A snapshot has everything that a sequence carried at one position: the pages of keys and values up to there,
//! shared with the sequence and with other snapshots and never written again by any of them, and a copy of
//! the recurrent state, which cannot be rolled back. Any sequence can be set to it, bit for bit; none is changed by it.
//!
//! Where several devices have a range of layers each, each has a part ([`SnapshotPart`]). The bytes that a snapshot
//! writes do not show it: kind by kind, the parts' bytes follow each other in the order of layers
//! ([`SequenceLayout::page_kinds`], [`SequenceLayout::state_kinds`]), as one device has them.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::sync::Arc;

use store::LayerId;

use super::SequenceId;
use super::copies::Marks;
use super::layout::{Part, SequenceLayout};
use super::pool::{Pool, Pooled};

/// Positions of one page of keys and values.
pub const PAGE_TOKENS: usize = kernels::BLOCK_TOKENS;

/// Keys and values of [`PAGE_TOKENS`] positions in every layer that has pages, as [`super::page_rows::PageRows`] says.
pub(crate) type Page = Vec<u8>;

/// A page of several holders.
pub(crate) type SharedPage = Arc<Pooled<Page>>;

/// What one device has of a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotPart {
    /// Tokens that the sequence held.
    pub(super) length: usize,
    /// Pages of the positions before `length`.
    pub(super) pages: Vec<SharedPage>,
    /// Where everything lies in a page and in the state.
    pub(super) layout: Arc<SequenceLayout>,
    /// What has a fixed size: recurrent states, convolution tails, windows; `None` without such layers.
    pub(super) state: Option<Arc<Pooled<Vec<f32>>>>,
}

impl SnapshotPart {
    /// Tokens before the point.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The id of the token at `position`, where a layer of hashed n-grams keeps it.
    pub(crate) fn token_id(&self, layer: LayerId, position: usize) -> Option<u32> {
        let ring = self.layout.side().ngrams(layer.index())?;
        let state = &self.state.as_ref()?[self.layout.range(layer, Part::Ngrams)];
        state[ring.row(position)].last().map(|id| id.to_bits())
    }

    /// The point at `length`, no later than this; `None` where a state has no way back.
    pub(crate) fn at(&self, length: usize) -> Option<Self> {
        match length {
            length if length == self.length => Some(self.clone()),
            length => {
                (self.state.is_none() && length < self.length).then(|| self.truncated(length))
            }
        }
    }

    /// Bytes of its recurrent state.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| size_of_val(state.as_slice()) as u64)
    }

    /// Bytes of a page, 0 without any.
    fn page_bytes(&self) -> usize {
        self.pages.first().map_or(0, |page| page.len())
    }

    /// A page as files have it: behind its last row are zeros.
    fn clean_page(&self, index: usize) -> Cow<'_, [u8]> {
        let Some(page) = self.pages.get(index) else { return Cow::Borrowed(&[]) };
        let bytes: &Page = page;
        let tokens = self.length - index * PAGE_TOKENS;
        if tokens >= PAGE_TOKENS {
            return Cow::Borrowed(bytes);
        }
        // The buffer has had other pages before, another client's as well, and a point may lie before the end of what
        // was computed: behind the last row is nothing that a file may have.
        let mut own = bytes.to_vec();
        self.layout.page_rows().clear_rest(&mut own, tokens);
        Cow::Owned(own)
    }

    /// The point at `length`, of a part without states.
    fn truncated(&self, length: usize) -> Self {
        let pages = length.div_ceil(PAGE_TOKENS).min(self.pages.len());
        let layout = Arc::clone(&self.layout);
        Self { length, pages: self.pages[..pages].to_vec(), layout, state: None }
    }
}

/// A device's part of a snapshot, wherever the device is.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotShare {
    /// In this process.
    Here(SnapshotPart),
    /// In the process of a stage.
    There(Distant),
}

/// A part that another process holds, which forgets it when the last clone of this is dropped.
#[derive(Clone)]
pub(crate) struct Distant {
    /// Tokens of the point, no more than what is held.
    length: usize,
    /// Bytes of its recurrent state.
    state_bytes: u64,
    held: Arc<dyn Held>,
}

/// What names a part in the process that holds it; dropping it has it forgotten.
pub(crate) trait Held: Send + Sync {
    /// The name.
    fn number(&self) -> u64;
}

impl std::fmt::Debug for Distant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Distant({}, {} tokens)", self.held.number(), self.length)
    }
}

impl Distant {
    /// A part of `length` tokens.
    pub(crate) fn new(length: usize, state_bytes: u64, held: Arc<dyn Held>) -> Self {
        Self { length, state_bytes, held }
    }

    /// Tokens of the point.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Its name where it is held.
    pub(crate) fn number(&self) -> u64 {
        self.held.number()
    }
}

impl SnapshotShare {
    /// Tokens before the point.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Here(part) => part.length,
            Self::There(part) => part.length,
        }
    }

    fn state_bytes(&self) -> u64 {
        match self {
            Self::Here(part) => part.state_bytes(),
            Self::There(part) => part.state_bytes,
        }
    }

    fn truncated(&self, length: usize) -> Self {
        match self {
            Self::Here(part) => Self::Here(part.truncated(length)),
            Self::There(part) => Self::There(Distant { length, ..part.clone() }),
        }
    }
}

/// A point in a sequence that any sequence can go on from: of each device of the model a part, in the order of layers.
#[derive(Clone, Debug)]
pub struct Snapshot {
    parts: Vec<SnapshotShare>,
    /// The sequence that it was made of: where its rows may still lie.
    home: Option<SequenceId>,
}

/// What a backend can still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Pages of keys and values that are free.
    pub pages: usize,
    /// Recurrent states that snapshots can still take; `usize::MAX` for models without.
    pub states: usize,
}

/// A forward pass put aside between two layers.
#[derive(Debug)]
pub struct Suspended {
    /// Where its runs lie.
    pub(super) spans: Vec<super::Span>,
    /// The batch's tokens.
    pub(super) tokens: Vec<u32>,
    /// The residual stream: what one layer leaves to the next.
    pub(super) residual: Vec<f32>,
    /// What indexers leave to later layers in addition, on the processor.
    pub(crate) chosen: Vec<u32>,
    /// Runs at whose end a snapshot is taken, with the states of the layers passed.
    pub(super) marks: Marks,
}

/// Bytes converted at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes numbers as little-endian bytes.
fn write_values<const N: usize, T: Copy>(
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    for part in values.chunks(BUFFER_BYTES / N) {
        buffer.clear();
        buffer.extend(part.iter().flat_map(|&value| bytes(value)));
        out.write_all(&buffer)?;
    }
    Ok(())
}

/// Reads what [`write_values`] wrote.
fn read_values<const N: usize, T>(
    values: &mut [T],
    value: impl Fn([u8; N]) -> T,
    input: &mut dyn Read,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for part in values.chunks_mut(BUFFER_BYTES / N) {
        let buffer = &mut buffer[..part.len() * N];
        input.read_exact(buffer)?;
        for (to, from) in part.iter_mut().zip(buffer.as_chunks::<N>().0) {
            *to = value(*from);
        }
    }
    Ok(())
}

impl Snapshot {
    /// A snapshot of what the devices of a model have, in the order of their layers.
    pub(crate) fn of(parts: Vec<SnapshotShare>) -> Self {
        let same = |two: &[SnapshotShare]| two[0].length() == two[1].length();
        assert!(parts.windows(2).all(same), "parts of one point");
        Self { parts, home: None }
    }

    /// A snapshot of the one device of a model.
    pub(crate) fn of_one(part: SnapshotPart) -> Self {
        Self::of(vec![SnapshotShare::Here(part)])
    }

    /// As it is, made of `sequence`.
    pub(crate) fn made_of(self, sequence: SequenceId) -> Self {
        Self { home: Some(sequence), ..self }
    }

    /// The sequence that it was made of, if it was made in this process; another may be at its place by now.
    pub(crate) fn home(&self) -> Option<SequenceId> {
        self.home
    }

    /// What each device has of it.
    pub(crate) fn parts(&self) -> &[SnapshotShare] {
        &self.parts
    }

    /// Tokens before the point.
    pub fn length(&self) -> usize {
        self.parts.first().map_or(0, SnapshotShare::length)
    }

    /// The parts that this process holds.
    fn here(&self) -> impl Iterator<Item = &SnapshotPart> {
        self.parts.iter().filter_map(|part| match part {
            SnapshotShare::Here(part) => Some(part),
            SnapshotShare::There(_) => None,
        })
    }

    /// Whether all of it can be written: no part is another process's.
    fn check_here(&self) -> io::Result<()> {
        if self.here().count() < self.parts.len() {
            return Err(io::Error::other("a part of this snapshot is in another process"));
        }
        Ok(())
    }

    /// The point at `length`, before this one; `None` for models with state of a fixed size, which has no
    /// way back.
    pub fn truncated(&self, length: usize) -> Option<Self> {
        let has_way =
            self.parts.iter().all(|part| part.state_bytes() == 0) && length <= self.length();
        let parts = || self.parts.iter().map(|it| it.truncated(length)).collect();
        has_way.then(|| Self { parts: parts(), home: self.home })
    }

    /// Pages that only this snapshot holds: what dropping it would free on every device of this process.
    pub fn exclusive_pages(&self) -> usize {
        let own = |part: &SnapshotPart| {
            part.pages.iter().filter(|page| Arc::strong_count(page) == 1).count()
        };
        self.here().filter(|part| !part.pages.is_empty()).map(own).min().unwrap_or(0)
    }

    /// Bytes of recurrent state.
    pub fn state_bytes(&self) -> u64 {
        self.parts.iter().map(SnapshotShare::state_bytes).sum()
    }

    /// Pages whose every position is before the point: functions of the tokens before their end.
    pub fn full_pages(&self) -> usize {
        self.length() / PAGE_TOKENS
    }

    /// Bytes that [`Snapshot::write_page`] writes; 0 for a snapshot without pages.
    pub fn page_bytes(&self) -> u64 {
        self.here().map(|part| part.page_bytes() as u64).sum()
    }

    /// Pages; the last may not be full.
    fn pages(&self) -> usize {
        self.here().map(|part| part.pages.len()).max().unwrap_or(0)
    }

    /// Bytes that [`Snapshot::write_rest`] writes.
    pub fn rest_bytes(&self) -> u64 {
        let pages = self.pages().saturating_sub(self.full_pages()) as u64;
        pages * self.page_bytes() + self.state_bytes()
    }

    /// Writes one of the pages; where it is not full, zeros behind its last row. `read_snapshot` of an
    /// equal backend reads all full ones, in order, then what [`Snapshot::write_rest`] wrote.
    ///
    /// # Errors
    /// What `out` reports, or a part is in another process.
    pub fn write_page(&self, index: usize, out: &mut dyn Write) -> io::Result<()> {
        self.check_here()?;
        let pages = self.here().filter(|part| !part.pages.is_empty());
        let pages: Vec<_> = pages.map(|part| (part.clean_page(index), &part.layout)).collect();
        if let [(page, _)] = &pages[..] {
            return out.write_all(page);
        }
        let kinds: Vec<_> = pages.iter().map(|(page, it)| (page, it.page_kinds())).collect();
        for kind in 0..kinds.first().map_or(0, |(_, kinds)| kinds.len()) {
            kinds.iter().try_for_each(|(page, kinds)| out.write_all(&page[kinds[kind].clone()]))?;
        }
        Ok(())
    }

    /// Writes the page that is not full, if there is one, and the recurrent state.
    ///
    /// # Errors
    /// What `out` reports, or a part is in another process.
    pub fn write_rest(&self, out: &mut dyn Write) -> io::Result<()> {
        (self.full_pages()..self.pages()).try_for_each(|index| self.write_page(index, out))?;
        self.check_here()?;
        let states = self.here();
        let states = states.filter_map(|it| Some((it.state.as_ref()?, it.layout.state_kinds())));
        let states: Vec<_> = states.collect();
        for kind in 0..states.first().map_or(0, |(_, kinds)| kinds.len()) {
            for (state, kinds) in &states {
                write_values(&state[kinds[kind].clone()], f32::to_le_bytes, out)?;
            }
        }
        Ok(())
    }
}

/// A part of a snapshot before its content is read.
pub(crate) struct BlankPart {
    length: usize,
    pages: Vec<Pooled<Page>>,
    layout: Arc<SequenceLayout>,
    state: Option<Pooled<Vec<f32>>>,
}

impl BlankPart {
    /// Of `length` tokens: pages from `pages`, and memory for the state.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn new(
        length: usize,
        layout: &Arc<SequenceLayout>,
        pages: &Pool<Page>,
        state: Option<Pooled<Vec<f32>>>,
    ) -> io::Result<Self> {
        let full = || io::Error::other("no room for another snapshot");
        let taken = (0..layout.pages(length)).map(|_| pages.take().ok_or_else(full));
        Ok(Self {
            length,
            pages: taken.collect::<Result<_, _>>()?,
            layout: Arc::clone(layout),
            state,
        })
    }
}

impl Snapshot {
    /// Reads a snapshot into the parts of its devices: its pages, then the recurrent state that
    /// [`Snapshot::write_rest`] wrote.
    ///
    /// # Errors
    /// What `input` reports.
    pub(crate) fn read(mut parts: Vec<BlankPart>, input: &mut dyn Read) -> io::Result<Self> {
        let pages = parts.iter().map(|part| part.pages.len()).max().unwrap_or(0);
        let kinds = |part: &BlankPart| (part.layout.page_kinds(), part.layout.state_kinds());
        let kinds: Vec<_> = parts.iter().map(kinds).collect();
        for index in 0..pages {
            for kind in 0..kinds[0].0.len() {
                for (part, (kinds, _)) in parts.iter_mut().zip(&kinds) {
                    if let Some(page) = part.pages.get_mut(index) {
                        input.read_exact(&mut page[kinds[kind].clone()])?;
                    }
                }
            }
        }
        for kind in 0..kinds.first().map_or(0, |kinds| kinds.1.len()) {
            for (part, (_, kinds)) in parts.iter_mut().zip(&kinds) {
                if let Some(state) = &mut part.state {
                    read_values(&mut state[kinds[kind].clone()], f32::from_le_bytes, input)?;
                }
            }
        }
        let part = |BlankPart { length, pages, layout, state }| SnapshotPart {
            length,
            pages: pages.into_iter().map(Arc::new).collect(),
            layout,
            state: state.map(Arc::new),
        };
        Ok(Self::of(parts.into_iter().map(part).map(SnapshotShare::Here).collect()))
    }
}

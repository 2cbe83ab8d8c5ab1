//! Points that sequences can go on from.
//!
//! A snapshot has everything that a sequence carried at one position: the pages of keys and values up to there,
//! shared with the sequence and with other snapshots and never written again by any of them, and a copy of
//! the recurrent state, which cannot be rolled back. Any sequence can be set to it, bit for bit; none is changed by it.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::copies::Marks;
use super::page_rows::PageRows;
use super::pool::{Pool, Pooled};

/// Positions of one page of keys and values.
pub const PAGE_TOKENS: usize = kernels::BLOCK_TOKENS;

/// Keys and values of [`PAGE_TOKENS`] positions in every layer that has pages, as [`PageRows`] says.
pub(crate) type Page = Vec<u8>;

/// A page of several holders.
pub(crate) type SharedPage = Arc<Pooled<Page>>;

/// A point in a sequence that any sequence can go on from.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Tokens that the sequence held.
    pub(crate) length: usize,
    /// Pages of the positions before `length`.
    pub(crate) pages: Vec<SharedPage>,
    /// Where rows of tokens lie in a page.
    pub(crate) rows: Arc<PageRows>,
    /// What has a fixed size: recurrent states, convolution tails, windows; `None` without such layers.
    pub(crate) state: Option<Arc<Pooled<Vec<f32>>>>,
}

impl Snapshot {
    /// Tokens before the point.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The point at `length`, before this one; `None` for models with state of a fixed size, which has no
    /// way back.
    pub fn truncated(&self, length: usize) -> Option<Self> {
        (self.state.is_none() && length <= self.length).then(|| Self {
            length,
            pages: self.pages[..length.div_ceil(PAGE_TOKENS)].to_vec(),
            rows: Arc::clone(&self.rows),
            state: None,
        })
    }

    /// Pages that only this snapshot holds: what dropping it would free.
    pub fn exclusive_pages(&self) -> usize {
        self.pages.iter().filter(|page| Arc::strong_count(page) == 1).count()
    }

    /// Bytes of recurrent state.
    pub fn state_bytes(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| size_of_val(state.as_slice()) as u64)
    }
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
    /// The residual stream: all that one layer leaves to the next.
    pub(super) residual: Vec<f32>,
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
    /// Pages whose every position is before the point: functions of the tokens before their end.
    pub fn full_pages(&self) -> usize {
        self.length / PAGE_TOKENS
    }

    /// Bytes that [`Snapshot::write_page`] writes; 0 for a snapshot without pages.
    pub fn page_bytes(&self) -> u64 {
        self.pages.first().map_or(0, |page| page.len() as u64)
    }

    /// Bytes that [`Snapshot::write_rest`] writes.
    pub fn rest_bytes(&self) -> u64 {
        let pages = (self.pages.len() - self.full_pages()) as u64;
        pages * self.page_bytes() + self.state_bytes()
    }

    /// Writes one of the pages; where it is not full, zeros behind its last row. `read_snapshot` of an
    /// equal backend reads all full ones, in order, then what [`Snapshot::write_rest`] wrote.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write_page(&self, index: usize, out: &mut dyn Write) -> io::Result<()> {
        let bytes: &Page = &self.pages[index];
        let tokens = self.length - index * PAGE_TOKENS;
        if tokens >= PAGE_TOKENS {
            return out.write_all(bytes);
        }
        // The buffer has had other pages before, another client's as well, and a point may lie before the end of what
        // was computed: behind the last row is nothing that a file may have.
        let mut own = bytes.clone();
        self.rows.clear_rest(&mut own, tokens);
        out.write_all(&own)
    }

    /// Writes the page that is not full, if there is one, and the recurrent state.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write_rest(&self, out: &mut dyn Write) -> io::Result<()> {
        (self.full_pages()..self.pages.len()).try_for_each(|index| self.write_page(index, out))?;
        match &self.state {
            Some(state) => write_values(state, f32::to_le_bytes, out),
            None => Ok(()),
        }
    }
}

/// Reads a snapshot of `length` tokens from outside: `count` pages of `rows` into memory of `pages`, then the recurrent
/// state that [`Snapshot::write_rest`] wrote into `state`.
pub(crate) fn read_snapshot(
    length: usize,
    rows: &Arc<PageRows>,
    (pages, count): (&Pool<Page>, usize),
    mut state: Option<Pooled<Vec<f32>>>,
    input: &mut dyn Read,
) -> io::Result<Snapshot> {
    let full = || io::Error::other("no room for another snapshot");
    let mut read = Vec::with_capacity(count);
    for _ in 0..count {
        let mut page = pages.take().ok_or_else(full)?;
        input.read_exact(&mut page)?;
        read.push(Arc::new(page));
    }
    if let Some(state) = &mut state {
        read_values(state, f32::from_le_bytes, input)?;
    }
    Ok(Snapshot { length, pages: read, rows: Arc::clone(rows), state: state.map(Arc::new) })
}

//! Which bytes of a page of keys and values belong to its first tokens.
//!
//! A page is a series of strips, each of equal rows in order of positions: the keys, or the values, of one layer; on
//! the processor those of one head; or compressed rows, each of several tokens. What lies behind the rows of a
//! sequence's last token is whatever the buffer held before, which may be another sequence's: it is never written to a
//! file ([`PageRows::clear_rest`]).

use std::ops::Range;

use super::snapshot::PAGE_TOKENS;

/// Strips of one form, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    /// How many.
    pub(crate) count: usize,
    /// Tokens of a row.
    pub(crate) ratio: usize,
    /// Bytes of a row.
    pub(crate) row: usize,
}

impl Strips {
    /// Strips with a row for each token.
    pub(crate) fn of_tokens(count: usize, row: usize) -> Self {
        Self { count, ratio: 1, row }
    }

    /// Bytes of one strip.
    fn strip_bytes(&self) -> usize {
        PAGE_TOKENS / self.ratio * self.row
    }
}

/// Tokens of a run that lie in one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagePart {
    /// The page of the sequence.
    pub(crate) page: usize,
    /// The first of the tokens in it.
    pub(crate) first: usize,
    /// Which of the run.
    pub(crate) tokens: Range<usize>,
}

/// Cuts a run of `tokens` tokens at `position` at the ends of pages.
pub(crate) fn page_parts(position: usize, tokens: usize) -> impl Iterator<Item = PagePart> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (page, first) = ((position + done) / PAGE_TOKENS, (position + done) % PAGE_TOKENS);
        let start = done;
        done += (PAGE_TOKENS - first).min(tokens - done);
        (start < done).then_some(PagePart { page, first, tokens: start..done })
    })
}

/// The strips of a page, from its first byte to its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRows {
    strips: Vec<Strips>,
}

impl PageRows {
    pub(crate) fn new(strips: Vec<Strips>) -> Self {
        Self { strips }
    }

    /// Bytes of a page.
    pub(crate) fn bytes(&self) -> usize {
        self.strips.iter().map(|it| it.count * it.strip_bytes()).sum()
    }

    /// Clears what a page that holds `tokens` tokens has behind their complete rows.
    pub(crate) fn clear_rest(&self, page: &mut [u8], tokens: usize) {
        for range in self.rest(tokens) {
            page[range].fill(0);
        }
    }

    /// The bytes of every strip behind the complete rows of `tokens` tokens, ascending.
    fn rest(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.strips.iter().flat_map(move |strips| {
            let (first, bytes) = (start, strips.strip_bytes());
            start += strips.count * bytes;
            let live = tokens.min(PAGE_TOKENS) / strips.ratio * strips.row;
            (0..strips.count).map(move |strip| {
                let at = first + strip * bytes;
                at + live..at + bytes
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_the_last_complete_row_of_each_strip_is_cleared() {
        let strips = vec![Strips::of_tokens(2, 3), Strips { count: 1, ratio: 128, row: 5 }];
        let rows = PageRows::new(strips);
        assert_eq!(rows.bytes(), 2 * 256 * 3 + 2 * 5);
        let cleared = |tokens| {
            let mut page = vec![7; rows.bytes()];
            rows.clear_rest(&mut page, tokens);
            let kept = |range: Range<usize>| page[range].iter().filter(|byte| **byte == 7).count();
            let (first, second) = (kept(0..3 * tokens), kept(768..768 + 3 * tokens));
            assert_eq!((first, second), (3 * tokens, 3 * tokens), "rows of {tokens} tokens");
            page.iter().filter(|byte| **byte == 7).count() - first - second
        };
        // Behind the rows of tokens only complete rows of 128 are left.
        assert_eq!([0, 1, 127, 128, 255, 256].map(cleared), [0, 0, 0, 5, 5, 10]);
    }

    #[test]
    fn a_run_is_cut_at_the_ends_of_pages() {
        let part = |page, first, tokens| PagePart { page, first, tokens };
        let parts = |position, tokens| page_parts(position, tokens).collect::<Vec<_>>();
        assert_eq!(parts(250, 0), []);
        assert_eq!(parts(250, 6), [part(0, 250, 0..6)]);
        assert_eq!(parts(256, 1), [part(1, 0, 0..1)]);
        let cut = [part(0, 250, 0..6), part(1, 0, 6..262), part(2, 0, 262..263)];
        assert_eq!(parts(250, 263), cut);
    }
}

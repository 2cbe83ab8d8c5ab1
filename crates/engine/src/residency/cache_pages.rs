//! Which pages of keys and values have memory, and which must.
//!
//! Every layer's keys and every layer's values lie in a buffer of one shape, `[sequences, context]` rows, and have the
//! same pages. A place keeps pages for what its sequence has written or is about to, at least for one token; what the
//! sequence before had there stays until the next one has ended, as long as nothing else wants the memory: it may be
//! gone on from there.
//!
//! Bookkeeping alone, so that its rules are tested without a device.

use std::ops::Range;

/// Tokens of a place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Of the sequence that is there: those that must have memory.
    needed: usize,
    /// Of the sequence before.
    left: usize,
}

/// The pages of each buffer.
#[derive(Clone, Debug)]
pub(crate) struct CachePages {
    row: usize,
    context: usize,
    page: usize,
    mapped: Vec<bool>,
    places: Vec<Place>,
}

impl CachePages {
    /// No pages yet: `sequences` places of `context` rows of `row` bytes, in pages of `page` bytes.
    pub(crate) fn new(sequences: usize, context: usize, row: usize, page: usize) -> Self {
        let count = (sequences * context * row).div_ceil(page);
        Self {
            row,
            context,
            page,
            mapped: vec![false; count],
            places: vec![Place::default(); sequences],
        }
    }

    /// Pages of a buffer whose places all have their whole context.
    pub(crate) fn full(&self) -> usize {
        self.mapped.len()
    }

    /// Pages that a buffer has.
    pub(crate) fn count(&self) -> usize {
        self.mapped.iter().filter(|mapped| **mapped).count()
    }

    /// The sequence at a place has, or is about to have, `tokens` tokens.
    pub(crate) fn need(&mut self, place: usize, tokens: usize) {
        let needed = &mut self.places[place].needed;
        *needed = (*needed).max(tokens);
    }

    /// The sequence at a place has ended.
    pub(crate) fn end(&mut self, place: usize) {
        let place = &mut self.places[place];
        place.left = std::mem::take(&mut place.needed);
    }

    fn pages_of(&self, place: usize, tokens: usize) -> Range<usize> {
        let start = place * self.context;
        let end = start + tokens.clamp(1, self.context);
        start * self.row / self.page..(end * self.row).div_ceil(self.page)
    }

    fn marked(&self, tokens: impl Fn(&Place) -> usize) -> Vec<bool> {
        let mut marked = vec![false; self.mapped.len()];
        for (index, place) in self.places.iter().enumerate() {
            marked[self.pages_of(index, tokens(place))].fill(true);
        }
        marked
    }

    fn select(&self, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.mapped.len()).filter(|&page| wanted(page)).collect()
    }

    /// Pages that must have memory and have none, ascending.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let needed = self.marked(|place| place.needed);
        self.select(|page| needed[page] && !self.mapped[page])
    }

    /// Pages that have memory for nothing, ascending.
    pub(crate) fn idle(&self) -> Vec<usize> {
        let kept = self.marked(|place| place.needed.max(place.left));
        self.select(|page| self.mapped[page] && !kept[page])
    }

    /// Pages that have memory for what ended sequences have left alone, ascending.
    fn left(&self) -> Vec<usize> {
        let needed = self.marked(|place| place.needed);
        self.select(|page| self.mapped[page] && !needed[page])
    }

    /// What gives way so that `short` more pages are spare: pages of ended sequences (one is a page of each of
    /// `buffers` buffers), and as many pages of slots as those do not give.
    pub(crate) fn give_way(&self, short: usize, buffers: usize) -> (Vec<usize>, usize) {
        if short == 0 {
            return (Vec::new(), 0);
        }
        let mut left = self.left();
        let wanted = short.div_ceil(buffers).min(left.len());
        // The ends of what is left go first: what is before them can still be gone on from.
        let gone = left.split_off(left.len() - wanted);
        (gone, short.saturating_sub(wanted * buffers))
    }

    /// A page has memory from now on, or no longer.
    pub(crate) fn set(&mut self, page: usize, mapped: bool) {
        self.mapped[page] = mapped;
    }

    /// The first tokens of a place that have memory.
    pub(crate) fn tokens(&self, place: usize) -> usize {
        let pages = self.pages_of(place, self.context);
        let first = pages.clone().find(|&page| !self.mapped[page]).unwrap_or(pages.end);
        (first * self.page / self.row).saturating_sub(place * self.context).min(self.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_missing(pages: &mut CachePages) -> usize {
        let missing = pages.missing();
        missing.iter().for_each(|&page| pages.set(page, true));
        missing.len()
    }

    #[test]
    fn a_place_takes_pages_as_its_sequence_grows_and_keeps_them_for_the_next() {
        // Pages of 8 rows; places of 20 rows, so that the third page is of both.
        let mut pages = CachePages::new(2, 20, 4, 32);
        assert_eq!(pages.full(), 5);
        // The first token of each.
        assert_eq!(pages.missing(), [0, 2]);
        assert_eq!(map_missing(&mut pages), 2);
        assert_eq!((pages.tokens(0), pages.tokens(1)), (8, 4));
        pages.need(0, 8);
        assert!(pages.missing().is_empty());
        pages.need(0, 9);
        assert_eq!(pages.missing(), [1]);
        map_missing(&mut pages);
        assert_eq!((pages.tokens(0), pages.count()), (20, 3));
        pages.need(1, 20);
        assert_eq!(map_missing(&mut pages), 2);
        assert!(pages.idle().is_empty() && pages.left().is_empty());
        pages.end(1);
        assert!(pages.idle().is_empty(), "the next sequence may go on from there");
        assert_eq!(pages.left(), [3, 4]);
        // A short one is there, and ends.
        pages.need(1, 3);
        assert!(pages.idle().is_empty());
        pages.end(1);
        assert_eq!(pages.idle(), [3, 4]);
        pages.set(3, false);
        pages.set(4, false);
        assert_eq!((pages.tokens(0), pages.tokens(1)), (20, 4));
    }

    #[test]
    fn ends_of_ended_sequences_give_way_before_slots_do() {
        let mut pages = CachePages::new(2, 20, 4, 32);
        pages.need(1, 20);
        map_missing(&mut pages);
        pages.end(1);
        assert_eq!(pages.left(), [3, 4]);
        assert_eq!(pages.give_way(0, 6), (vec![], 0));
        assert_eq!(pages.give_way(5, 6), (vec![4], 0));
        assert_eq!(pages.give_way(7, 6), (vec![3, 4], 0));
        assert_eq!(pages.give_way(14, 6), (vec![3, 4], 2));
        pages.set(3, false);
        pages.set(4, false);
        assert_eq!(pages.give_way(2, 6), (vec![], 2), "what is there is needed");
    }

    /// What is needed has memory once it was mapped, and nothing is idle that a sequence needs.
    #[test]
    fn any_order_of_sequences_keeps_what_they_need() {
        let mut state = 0x5eed_u64;
        let mut next = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let mut pages = CachePages::new(5, 300, 24, 512);
        let mut lengths = [0; 5];
        for _ in 0..3000 {
            let place = next(5);
            match next(6) {
                0 => {
                    pages.end(place);
                    lengths[place] = 0;
                }
                1 => {
                    let gone = if next(2) == 0 { pages.idle() } else { pages.left() };
                    gone.into_iter().for_each(|page| pages.set(page, false));
                }
                _ => {
                    lengths[place] = (lengths[place] + next(90)).min(300);
                    pages.need(place, lengths[place]);
                }
            }
            map_missing(&mut pages);
            for (place, &length) in lengths.iter().enumerate() {
                assert!(pages.tokens(place) >= length.max(1), "place {place}");
            }
            assert!(pages.count() <= pages.full());
        }
    }
}

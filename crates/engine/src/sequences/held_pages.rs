//! Which pages of keys and values the places of sequences on a device have.
//!
//! A page that was copied from a place, or to it, is the same in both until the place is written to there. Bookkeeping
//! alone, so that its rules are tested without a device.

use std::sync::{Arc, Weak};

/// Pages by place and number, as long as somebody holds the copy.
pub(crate) struct HeldPages<P> {
    /// Tokens of a page.
    page_tokens: usize,
    /// Of the sequence that is there: full pages that have a copy.
    current: Vec<Vec<Weak<P>>>,
    /// Of the sequence that was there before, up to where the sequence has written.
    left: Vec<Vec<Weak<P>>>,
}

impl<P> HeldPages<P> {
    /// Nothing has copies at any of `places` places; a page is `page_tokens` tokens.
    pub(crate) fn new(places: usize, page_tokens: usize) -> Self {
        let none = || (0..places).map(|_| Vec::new()).collect();
        Self { page_tokens, current: none(), left: none() }
    }

    /// The copy of a page of the sequence at `place`.
    pub(crate) fn copy(&self, place: usize, number: usize) -> Option<Arc<P>> {
        self.current[place].get(number).and_then(Weak::upgrade)
    }

    /// How many of the first `pages` of the sequence at `place` have copies.
    pub(crate) fn copies(&self, place: usize, pages: usize) -> usize {
        self.current[place].iter().take(pages).filter(|page| page.strong_count() > 0).count()
    }

    /// A full page of the sequence at `place` was copied.
    pub(crate) fn note_copied(&mut self, place: usize, number: usize, page: &Arc<P>) {
        let current = &mut self.current[place];
        current.resize(current.len().max(number + 1), Weak::new());
        current[number] = Arc::downgrade(page);
    }

    /// Another sequence begins at `place`, where the pages of the one before still are.
    pub(crate) fn succeed(&mut self, place: usize) {
        self.left[place] = std::mem::take(&mut self.current[place]);
    }

    /// Keys and values are written from `position` of the sequence at `place` on.
    pub(crate) fn note_written(&mut self, place: usize, position: usize) {
        self.left[place].truncate(position / self.page_tokens);
    }

    /// Keys and values at `place` have no memory from `position` on.
    pub(crate) fn note_lost(&mut self, place: usize, position: usize) {
        self.left[place].truncate(position / self.page_tokens);
        self.current[place].truncate(position / self.page_tokens);
    }

    /// Nothing is known of what is at `place`.
    pub(crate) fn clear(&mut self, place: usize) {
        self.current[place].clear();
        self.left[place].clear();
    }

    /// The sequence at `place` now has these full pages, and nothing else is known of what is there.
    pub(crate) fn restore<'a>(&mut self, place: usize, pages: impl Iterator<Item = &'a Arc<P>>)
    where
        P: 'a,
    {
        self.clear(place);
        self.current[place].extend(pages.map(Arc::downgrade));
    }

    /// A place that has `page` as its page `number`, `place` rather than others.
    pub(crate) fn place_with(&self, place: usize, number: usize, page: &Arc<P>) -> Option<usize> {
        let has = |&place: &usize| {
            let known = [&self.left[place], &self.current[place]].map(|pages| pages.get(number));
            known.into_iter().flatten().any(|known| Weak::as_ptr(known) == Arc::as_ptr(page))
        };
        Some(place).filter(has).or_else(|| (0..self.current.len()).find(has))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACES: usize = 3;
    const PAGE_TOKENS: usize = 256;
    const PAGES: usize = 4;

    #[derive(Clone, Debug)]
    enum Event {
        Create(usize),
        Append(usize, usize),
        Copy(usize),
        Restore(usize, usize),
        Forget(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let place = 0..PLACES;
        let event = prop_oneof![
            place.clone().prop_map(Event::Create),
            (place.clone(), 1..2 * PAGE_TOKENS).prop_map(|(p, n)| Event::Append(p, n)),
            place.clone().prop_map(Event::Copy),
            (place, 0..8usize).prop_map(|(p, n)| Event::Restore(p, n)),
            (0..8usize).prop_map(Event::Forget),
        ];
        proptest::collection::vec(event, 1..60)
    }

    proptest! {
        /// A device whose values are numbered as they are written; a place is only said to have a page whose values
        /// it has.
        #[test]
        fn a_place_that_is_said_to_have_a_page_has_its_values(events in events()) {
            let mut held = HeldPages::<Vec<u64>>::new(PLACES, PAGE_TOKENS);
            let mut rows = vec![vec![0u64; PAGES * PAGE_TOKENS]; PLACES];
            let mut lengths = [0usize; PLACES];
            let mut snapshots: Vec<(usize, Vec<Arc<Vec<u64>>>)> = Vec::new();
            let mut written = 0;
            for event in events {
                match event {
                    Event::Create(place) => {
                        held.succeed(place);
                        lengths[place] = 0;
                    }
                    Event::Append(place, tokens) => {
                        let end = (lengths[place] + tokens).min(PAGES * PAGE_TOKENS);
                        held.note_written(place, lengths[place]);
                        for row in &mut rows[place][lengths[place]..end] {
                            written += 1;
                            *row = written;
                        }
                        lengths[place] = end;
                    }
                    Event::Copy(place) => {
                        let full = lengths[place] / PAGE_TOKENS;
                        let pages = (0..full).map(|number| {
                            let values = &rows[place][number * PAGE_TOKENS..][..PAGE_TOKENS];
                            let page = held.copy(place, number);
                            let page = page.unwrap_or_else(|| Arc::new(values.to_vec()));
                            assert_eq!(page.as_slice(), values, "a copy of the sequence's own");
                            held.note_copied(place, number, &page);
                            page
                        });
                        snapshots.push((full * PAGE_TOKENS, pages.collect()));
                        assert_eq!(held.copies(place, full), full);
                    }
                    Event::Restore(place, which) if which < snapshots.len() => {
                        let (length, pages) = &snapshots[which];
                        let holders: Vec<_> = (pages.iter().enumerate())
                            .map(|(number, page)| held.place_with(place, number, page))
                            .collect();
                        for ((number, page), holder) in pages.iter().enumerate().zip(holders) {
                            let part = number * PAGE_TOKENS..(number + 1) * PAGE_TOKENS;
                            match holder {
                                Some(holder) => {
                                    assert_eq!(&rows[holder][part.clone()], page.as_slice());
                                    let copy = rows[holder][part.clone()].to_vec();
                                    rows[place][part].copy_from_slice(&copy);
                                }
                                None => rows[place][part].copy_from_slice(page),
                            }
                        }
                        held.restore(place, pages.iter());
                        lengths[place] = *length;
                    }
                    Event::Forget(which) if which < snapshots.len() => {
                        snapshots.swap_remove(which);
                    }
                    Event::Restore(..) | Event::Forget(_) => {}
                }
            }
        }
    }

    #[test]
    fn the_next_sequence_at_a_place_finds_the_pages_that_it_has_not_written_over() {
        let mut held = HeldPages::new(2, PAGE_TOKENS);
        let pages = [Arc::new(1), Arc::new(2)];
        for (number, page) in pages.iter().enumerate() {
            held.note_copied(0, number, page);
        }
        held.succeed(0);
        assert_eq!(held.copies(0, 2), 0, "they are not the new sequence's");
        assert_eq!(held.place_with(1, 1, &pages[1]), Some(0), "another place can copy them");
        held.note_written(0, PAGE_TOKENS);
        assert_eq!(held.place_with(0, 0, &pages[0]), Some(0));
        assert_eq!(held.place_with(0, 1, &pages[1]), None, "written over");
    }
}

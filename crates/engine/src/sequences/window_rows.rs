//! Which rows of keys and values a place has that keeps a window of a sequence: what all GPU backends lay out alike.
//!
//! Rows lie in order of positions from a *base* on, which is a multiple of the tiles of all attention kernels, so that
//! kernels can count positions from that base. Answers append to the place itself; when it is full, the window's rows
//! are copied to its front. A run of a prompt may be longer than a place: its rows lie behind the window before it in a
//! buffer that all layers share ([`WindowRun`]), and its last rows go to the place once the layer has attended.

use super::Span;
use super::layout::SequenceLayout;

/// Bases are multiples of this, and so of the keys of every kernel's tile: 16, 32 and 64.
const BASE_TOKENS: usize = 64;

/// Sizes of what layers with a window keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSizes {
    /// Where rows lie.
    pub(crate) rows: WindowRows,
    /// Bytes of one position's keys, or values, in one layer.
    pub(crate) row: usize,
    /// Tokens of a batch.
    tokens: usize,
}

impl WindowSizes {
    /// For batches of `tokens` tokens; `None` for models all of whose layers keep all positions.
    pub(crate) fn new(layout: &SequenceLayout, tokens: usize) -> Option<Self> {
        Some(Self { rows: layout.window_rows()?, row: layout.window_row(), tokens })
    }

    /// Bytes of the keys, or values, of a run and of the window before it.
    pub(crate) fn run_bytes(&self) -> usize {
        (self.rows.kept() + self.tokens) * self.row
    }
}

/// A run of a prompt in the buffer of a run. Each pair is a first row and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRun {
    /// Rows of the place that are copied before the run: the window that its first token sees.
    pub(crate) before: (usize, usize),
    /// Rows of the buffer that are copied to the place's front when the layer has attended.
    pub(crate) after: (usize, usize),
}

/// Where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRows {
    /// The longest window of a layer.
    window: usize,
}

impl WindowRows {
    pub(crate) fn new(window: usize) -> Self {
        Self { window }
    }

    /// The base of a place from which a sequence of `length` tokens goes on.
    pub(crate) fn base(self, length: usize) -> usize {
        (length + 1).saturating_sub(self.window) / BASE_TOKENS * BASE_TOKENS
    }

    /// The buffer of a prompt's run.
    pub(crate) fn run(self, span: &Span) -> WindowRun {
        let (base, last) = (self.base(span.position), self.base(span.end()));
        WindowRun {
            before: (base - span.base, span.position - base),
            after: (last - base, span.end() - last),
        }
    }

    /// The row of a run's first token: at the place for answers, in the buffer of a run for prompts.
    pub(crate) fn first_row(self, span: &Span, answers: bool) -> usize {
        span.position - if answers { span.base } else { self.base(span.position) }
    }

    /// Most rows that lie between a base and the next token.
    pub(crate) fn kept(self) -> usize {
        (self.window + BASE_TOKENS - 2).next_multiple_of(BASE_TOKENS)
    }

    /// Rows of a place: what is copied to the front does not reach where it comes from.
    pub(crate) fn place(self) -> usize {
        2 * self.kept()
    }

    /// The base from which `tokens` tokens at `position` are appended to a place whose rows begin at `base`, and
    /// the rows that have to be copied to its front before: the first of them, and how many.
    pub(crate) fn making_room(
        self,
        base: usize,
        position: usize,
        tokens: usize,
    ) -> (usize, Option<(usize, usize)>) {
        if position + tokens - base <= self.place() {
            return (base, None);
        }
        let new = self.base(position);
        (new, Some((new - base, position - new)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SequenceId;
    use super::*;

    /// A place whose rows are numbered by position: after any mix of steps, prompts' runs and restores, every token
    /// finds the rows of its window where they should be.
    #[test]
    fn every_token_finds_its_window() {
        let mut state = 0x5eed_u64;
        let mut next = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        for window in [1, 4, 63, 64, 65, 128, 129, 1000] {
            let rows = WindowRows { window };
            let (mut place, mut base, mut length) = (vec![usize::MAX; rows.place()], 0, 0);
            let check = |rows: &[usize], base: usize, position: usize| {
                for seen in (position + 1).saturating_sub(window)..=position {
                    assert_eq!(rows[seen - base], seen, "{window}: from {position}");
                }
                assert!(base.is_multiple_of(BASE_TOKENS));
            };
            for _ in 0..3000 {
                match next(12) {
                    0 => {
                        // A run: the window before it and its own rows; then its last rows.
                        let tokens = 1 + next(2 * rows.place());
                        let (sequence, first, position) = (SequenceId(0), 0, length);
                        let span = Span { sequence, first, tokens, position, base };
                        let WindowRun { before, after } = rows.run(&span);
                        assert!(before.1 <= rows.kept());
                        assert_eq!(before.1, rows.first_row(&span, false));
                        let mut run: Vec<_> = place[before.0..][..before.1].to_vec();
                        run.extend(length..span.end());
                        let from = length - before.1;
                        (length..span.end()).for_each(|position| check(&run, from, position));
                        base = rows.base(span.end());
                        place[..after.1].copy_from_slice(&run[after.0..]);
                        length = span.end();
                    }
                    1 => {
                        // Kept, and continued at another place.
                        let first = rows.base(length);
                        let kept = place[first - base..length - base].to_vec();
                        assert!(kept.len() <= rows.kept());
                        place.fill(usize::MAX);
                        place[..kept.len()].copy_from_slice(&kept);
                        base = first;
                    }
                    _ => {
                        let (new, moved) = rows.making_room(base, length, 1);
                        if let Some((first, count)) = moved {
                            assert!(count <= first, "{window}: copies do not overlap");
                            place.copy_within(first..first + count, 0);
                        }
                        base = new;
                        let (sequence, first, tokens, position) = (SequenceId(0), 0, 1, length);
                        let span = Span { sequence, first, tokens, position, base };
                        place[rows.first_row(&span, true)] = length;
                        check(&place, base, length);
                        length += 1;
                    }
                }
            }
        }
    }
}

//! How many tokens are drafted: as many as make an accepted token cheapest, by what was measured.
//!
//! The time of a step by its rows is the device's, whatever answers it served; what share of drafts is accepted at each
//! place behind the last token is an answer's own. A further draft pays where the step's time for each token that is
//! expected of it falls.

use std::time::Duration;

/// Rows of a step whose time is kept apart.
pub(super) const ROWS: usize = 8;
/// Weight of the latest time in a mean.
const TIME_WEIGHT: f64 = 0.125;
/// Weight of the latest draft in a mean.
const DRAFT_WEIGHT: f64 = 0.125;
/// What is believed of drafts before any was tried.
const FIRST_ACCEPTANCE: f64 = 0.75;
/// What a further row is believed to cost before it was measured, as a share of a step: little, so that it is tried.
const FIRST_COST: f64 = 0.15;
/// What a draft of a head is believed to cost before it was measured, as a share of a step.
const FIRST_DRAFT: f64 = 0.06;
/// Of so many rounds one is a draft deeper than the best: what was measured once need not stay true.
const PROBE_ROUNDS: u32 = 32;

/// Running means of the times of steps, and of drafts.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTimes {
    steps: [Option<f64>; ROWS],
    /// One draft of a head.
    draft: Option<f64>,
}

/// A running mean with one time more.
fn joined(mean: Option<f64>, time: f64) -> Option<f64> {
    Some(mean.map_or(time, |mean| mean + TIME_WEIGHT * (time - mean)))
}

impl StepTimes {
    /// A step of `rows` took `time`.
    pub(crate) fn note(&mut self, rows: usize, time: Duration) {
        if let Some(mean) = rows.checked_sub(1).and_then(|index| self.steps.get_mut(index)) {
            *mean = joined(*mean, time.as_secs_f64());
        }
    }

    /// `drafts` of a head took `time`.
    pub(crate) fn note_drafts(&mut self, drafts: usize, time: Duration) {
        if drafts > 0 {
            self.draft = joined(self.draft, time.as_secs_f64() / drafts as f64);
        }
    }

    /// Time of a draft of a head, in the unit of [`StepTimes::of`].
    pub(super) fn of_draft(&self) -> f64 {
        match (self.draft, self.steps[0]) {
            (Some(draft), _) if self.steps.iter().any(Option::is_some) => draft,
            (_, step) => FIRST_DRAFT * step.unwrap_or_else(|| self.of(1)),
        }
    }

    /// Time of a step of `rows`, in any unit: measured, or from the nearest number of fewer rows that was.
    fn of(&self, rows: usize) -> f64 {
        let known = (1..=rows.min(ROWS)).rev().find_map(|rows| Some((rows, self.steps[rows - 1]?)));
        match known {
            Some((known, time)) => time * (1.0 + FIRST_COST * (rows - known) as f64),
            None => 1.0 + FIRST_COST * (rows - 1) as f64,
        }
    }
}

/// What became of an answer's drafts, by their place behind the last token.
#[derive(Clone, Debug)]
pub(super) struct Acceptance {
    /// Of those whose predecessors were accepted, the share that was.
    shares: [f64; ROWS],
    rounds: u32,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { shares: [FIRST_ACCEPTANCE; ROWS], rounds: 0 }
    }
}

impl Acceptance {
    /// Of `drafted` tokens the first `accepted` were drawn.
    pub(super) fn note(&mut self, drafted: usize, accepted: usize) {
        for (place, share) in self.shares.iter_mut().enumerate().take(drafted.min(accepted + 1)) {
            let hit = f64::from(u8::from(place < accepted));
            *share += DRAFT_WEIGHT * (hit - *share);
        }
    }

    /// How many of at most `most` tokens to draft, in a step that has `others` rows of other answers and as many tokens
    /// of them. A draft itself costs `each`, in the unit of `times`.
    pub(super) fn depth(
        &mut self,
        times: &StepTimes,
        each: f64,
        others: usize,
        most: usize,
    ) -> usize {
        let (mut expected, mut reached) = (others as f64 + 1.0, 1.0);
        let mut best = (0, expected / times.of(others + 1));
        for depth in 1..=most.min(ROWS - 1) {
            reached *= self.shares[depth - 1];
            expected += reached;
            let rate = expected / (times.of(others + 1 + depth) + each * depth as f64);
            if rate > best.1 {
                best = (depth, rate);
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        let probe = usize::from(self.rounds.is_multiple_of(PROBE_ROUNDS));
        (best.0 + probe).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of steps in milliseconds, by rows.
    fn times(milliseconds: [u64; ROWS]) -> StepTimes {
        let mut times = StepTimes::default();
        for (rows, time) in milliseconds.into_iter().enumerate() {
            times.note(rows + 1, Duration::from_millis(time));
        }
        times
    }

    fn accepting(accepted: usize) -> Acceptance {
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.note(7, accepted));
        acceptance
    }

    #[test]
    fn drafts_are_as_deep_as_pays() {
        let cheap = times([100, 105, 110, 115, 120, 125, 130, 135]);
        let dear = times([100, 200, 300, 400, 500, 600, 700, 800]);
        assert_eq!(accepting(7).depth(&cheap, 0.0, 0, 7), 7);
        assert_eq!(accepting(7).depth(&cheap, 0.0, 0, 3), 3, "no more than there are");
        assert_eq!(accepting(2).depth(&cheap, 0.0, 0, 7), 2, "the third is never accepted");
        assert_eq!(accepting(0).depth(&cheap, 0.0, 0, 7), 0);
        assert_eq!(accepting(7).depth(&dear, 0.0, 0, 7), 0, "a row costs a step: no gain");
        assert_eq!(
            Acceptance::default().depth(&StepTimes::default(), 0.0, 0, 7),
            4,
            "tried at first"
        );
    }

    #[test]
    fn drafts_that_cost_are_fewer() {
        let cheap = times([100, 105, 110, 115, 120, 125, 130, 135]);
        assert_eq!(accepting(7).depth(&cheap, 0.020, 0, 7), 7);
        assert_eq!(accepting(1).depth(&cheap, 0.020, 0, 7), 1);
        assert_eq!(accepting(7).depth(&cheap, 0.200, 0, 7), 0, "a draft costs two steps");
        let mut measured = cheap;
        assert!((measured.of_draft() - 0.006).abs() < 1e-12, "believed at first");
        measured.note_drafts(2, Duration::from_millis(60));
        assert!((measured.of_draft() - 0.030).abs() < 1e-12);
    }

    #[test]
    fn what_does_not_pay_is_tried_again_now_and_then() {
        let dear = times([100, 200, 300, 400, 500, 600, 700, 800]);
        let mut acceptance = accepting(7);
        let tried: usize = (0..64).map(|_| acceptance.depth(&dear, 0.0, 0, 7)).sum();
        assert_eq!(tried, 2);
    }
}

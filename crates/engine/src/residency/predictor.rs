//! How far guesses of the next layer's experts are trusted.
//!
//! A step on the device guesses, one layer early, which experts the next layer will choose, and may act upon the best
//! guesses of each token: copy the record over the bus where it lies in the host tier, ask for it where it lies in
//! neither memory. [`Predictor`] says up to which rank that pays. It counts how often the guess of each rank came
//! true, apart for records in the host tier and on disk (those that stay in a cache are guessed better than those that
//! do not), and allows the ranks that are right often enough. Every guess is counted whether it was acted upon or
//! not, so that what is switched off can return.
//!
//! Whether acting upon guesses makes steps faster depends on what the bus and the disk have to spare, which no count of
//! right guesses tells: [`Prediction::Auto`] tries both and takes the faster, again and again.
//!
//! Bookkeeping alone: no device and no clock in here.

use std::time::Duration;

use store::ExpertId;

/// Whether decode steps guess what the next layer will choose and fetch it beforehand. The answers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prediction {
    /// No guesses are made.
    #[default]
    Off,
    /// Guesses are acted upon as far down the ranking as they are precise enough.
    On,
    /// As `On` while steps are measurably faster for it.
    Auto,
}

/// Where a record was when a step began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In device memory.
    Device,
    /// In the host tier, from where the device can read it.
    Host,
    /// On disk alone, as far as the device knew.
    Disk,
}

/// Ranks of a token's guesses, from the best, that a step acts upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Of records in the host tier: copied over the bus.
    pub(crate) bus: u32,
    /// Of records in neither memory: read from disk.
    pub(crate) disk: u32,
}

/// Least precision of a rank whose records are copied. A copy that is not used takes time of a bus that has nothing
/// else to do before the layer has chosen, and ends then.
const BUS_PRECISION: f64 = 0.3;
/// Least precision of a rank whose records are read: a read that is not used delays those that are. Engines
/// that prefetched less precise guesses from a busy drive lost by it.
const DISK_PRECISION: f64 = 0.8;
/// Guesses over which the precision of a rank is averaged: a dozen steps of forty layers, half of them elsewhere.
const MEMORY: f64 = 256.0;
/// Guesses below which a rank's own precision says nothing.
const ENOUGH: f64 = 32.0;

/// Steps of a window in which guesses are acted upon, or not, throughout.
const WINDOW: usize = 16;
/// Windows of a trial. Neighbours differ, and their order alternates: what drifts (a cache that warms up) drifts as
/// much for one arm as for the other.
const WINDOWS: [bool; 8] = [false, true, true, false, false, true, true, false];
/// Steps for which the outcome of a trial holds.
const HOLDS: usize = 2048;
/// Time of a step with guesses acted upon, as a share of the time without, that is worth it.
const WORTHWHILE: f64 = 0.98;

/// How often guesses of one rank came true, lately.
#[derive(Clone, Copy, Debug, Default)]
struct Precision {
    share: f64,
    /// Guesses counted, up to the memory of the average.
    weight: f64,
}

impl Precision {
    fn count(&mut self, right: bool) {
        self.weight = (self.weight + 1.0).min(MEMORY);
        self.share += (f64::from(u8::from(right)) - self.share) / self.weight;
    }
}

/// The ranks of one tier.
struct Ranks {
    precisions: Vec<Precision>,
    /// Least precision of a rank that is acted upon.
    least: f64,
    depth: u32,
}

impl Ranks {
    /// Ranks; the first `start` are acted upon until more is known.
    fn new(k: usize, least: f64, start: usize) -> Self {
        Self { precisions: vec![Precision::default(); k], least, depth: start as u32 }
    }

    /// The ranks up to the first that is not precise enough. One with too few guesses is taken to be as precise as the
    /// one before it, else as the first that has enough.
    fn update(&mut self) {
        let known = |precision: &&Precision| precision.weight >= ENOUGH;
        let Some(first) = self.precisions.iter().find(known) else { return };
        let mut neighbour = first.share;
        let qualified = self.precisions.iter().take_while(|precision| {
            if known(precision) {
                neighbour = precision.share;
            }
            neighbour >= self.least
        });
        self.depth = qualified.count() as u32;
    }
}

/// Steps timed with guesses acted upon and without, in turns, and what came of it.
struct Trial {
    /// Window of the trial that is running; none while the last outcome holds.
    window: Option<usize>,
    /// Steps of the window, or under the outcome.
    steps: usize,
    /// By arm (without, with): times of steps.
    times: [Vec<Duration>; 2],
    /// Guesses are acted upon.
    outcome: bool,
}

impl Trial {
    fn new() -> Self {
        let times = || Vec::with_capacity(WINDOWS.len() / 2 * WINDOW);
        Self { window: Some(0), steps: 0, times: [times(), times()], outcome: false }
    }

    fn is_on(&self) -> bool {
        self.window.map_or(self.outcome, |window| WINDOWS[window])
    }

    fn step_ended(&mut self, elapsed: Duration) {
        self.steps += 1;
        let Some(window) = self.window else {
            if self.steps == HOLDS {
                (self.window, self.steps) = (Some(0), 0);
            }
            return;
        };
        self.times[usize::from(WINDOWS[window])].push(elapsed);
        if self.steps < WINDOW {
            return;
        }
        self.steps = 0;
        self.window = Some(window + 1).filter(|&next| next < WINDOWS.len());
        if self.window.is_none() {
            let [without, with] = self.times.each_mut().map(|times| median(times));
            self.outcome = with.as_secs_f64() <= WORTHWHILE * without.as_secs_f64();
            self.times.iter_mut().for_each(Vec::clear);
        }
    }
}

/// The time in the middle, the upper of two; `times` are reordered and not empty.
fn median(times: &mut [Duration]) -> Duration {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

/// What guesses are worth, learned from the steps before.
pub(crate) struct Predictor {
    k: usize,
    host: Ranks,
    nowhere: Ranks,
    /// Only where speed decides.
    trial: Option<Trial>,
    acts: bool,
    guessed: u64,
    right: u64,
}

impl Predictor {
    /// Nothing learned yet, for tokens with `k` experts and as many guesses.
    pub(crate) fn new(prediction: Prediction, k: usize) -> Self {
        Self {
            k,
            host: Ranks::new(k, BUS_PRECISION, k),
            nowhere: Ranks::new(k, DISK_PRECISION, k / 2),
            trial: (prediction == Prediction::Auto).then(Trial::new),
            acts: prediction != Prediction::Off,
            guessed: 0,
            right: 0,
        }
    }

    /// What the next step may do.
    pub(crate) fn depths(&self) -> Depths {
        if self.acts && self.trial.as_ref().is_none_or(Trial::is_on) {
            Depths { bus: self.host.depth, disk: self.nowhere.depth }
        } else {
            Depths { bus: 0, disk: 0 }
        }
    }

    /// Compares guesses with what was chosen. `guesses` are the expert ids of one layer of a step, `[tokens][k]`, best
    /// first; `used` the experts that the layer chose over all tokens, ascending, distinct; `tier` says where a record
    /// was when the step began.
    pub(crate) fn judge(
        &mut self,
        tokens: usize,
        guesses: &[u32],
        used: &[ExpertId],
        tier: impl Fn(ExpertId) -> Tier,
    ) {
        debug_assert_eq!(guesses.len(), tokens * self.k);
        for token in guesses.chunks_exact(self.k) {
            for (rank, &guess) in token.iter().enumerate() {
                let expert = ExpertId(guess as u16);
                let right = used.binary_search(&expert).is_ok();
                self.guessed += 1;
                self.right += u64::from(right);
                match tier(expert) {
                    Tier::Device => {}
                    Tier::Host => self.host.precisions[rank].count(right),
                    Tier::Disk => self.nowhere.precisions[rank].count(right),
                }
            }
        }
    }

    /// A step has ended that took `elapsed` and acted upon [`Predictor::depths`]. Only steps of one sequence are
    /// compared with each other; others take what the last of those was to try.
    pub(crate) fn step_ended(&mut self, tokens: usize, elapsed: Duration) {
        self.host.update();
        self.nowhere.update();
        if let Some(trial) = self.trial.as_mut().filter(|_| tokens == 1) {
            trial.step_ended(elapsed);
        }
    }

    /// Guesses compared, and those that came true.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.guessed, self.right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 8;

    /// Random numbers of a seed.
    struct Dice(u64);

    impl Dice {
        fn share(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f64 / (1u64 << 31) as f64
        }
    }

    /// A layer of a step in which the guess of each rank is right with the given probability. Guesses are experts 0 to
    /// 7, all in one tier.
    fn layer(predictor: &mut Predictor, dice: &mut Dice, precision: [f64; K], tier: Tier) {
        let guesses: Vec<u32> = (0..K as u32).collect();
        let right = (0..K).filter(|&rank| dice.share() < precision[rank]);
        let used: Vec<ExpertId> = right.map(|rank| ExpertId(rank as u16)).collect();
        predictor.judge(1, &guesses, &used, |_| tier);
    }

    fn steps(
        predictor: &mut Predictor,
        dice: &mut Dice,
        count: usize,
        precision: [f64; K],
        tier: Tier,
    ) {
        for _ in 0..count {
            (0..10).for_each(|_| layer(predictor, dice, precision, tier));
            predictor.step_ended(1, Duration::from_millis(5));
        }
    }

    #[test]
    fn each_tier_takes_the_ranks_that_are_precise_enough() {
        let precision = [0.99, 0.95, 0.9, 0.7, 0.6, 0.5, 0.2, 0.9];
        for seed in 0..20 {
            let dice = &mut Dice(seed);
            let mut predictor = Predictor::new(Prediction::On, K);
            assert_eq!(predictor.depths(), Depths { bus: 8, disk: 4 }, "before anything is known");
            steps(&mut predictor, dice, 50, precision, Tier::Device);
            assert_eq!(predictor.depths(), Depths { bus: 8, disk: 4 }, "nothing is moved there");
            steps(&mut predictor, dice, 50, precision, Tier::Host);
            assert_eq!(predictor.depths(), Depths { bus: 6, disk: 4 }, "seed {seed}");
            steps(&mut predictor, dice, 50, precision, Tier::Disk);
            assert_eq!(predictor.depths(), Depths { bus: 6, disk: 3 }, "seed {seed}");
        }
    }

    #[test]
    fn ranks_fall_and_rise_with_their_precision() {
        let dice = &mut Dice(7);
        let mut predictor = Predictor::new(Prediction::On, K);
        for (precision, bus, disk) in [(0.1, 0, 0), (0.95, 8, 8), (0.5, 8, 0), (0.05, 0, 0)] {
            for tier in [Tier::Host, Tier::Disk] {
                steps(&mut predictor, dice, 200, [precision; K], tier);
            }
            assert_eq!(predictor.depths(), Depths { bus, disk }, "precision {precision}");
        }
    }

    #[test]
    fn a_rank_with_few_guesses_takes_its_neighbours_precision() {
        let mut predictor = Predictor::new(Prediction::On, 3);
        let nowhere = |wanted: u16| {
            move |expert: ExpertId| if expert.0 == wanted { Tier::Disk } else { Tier::Device }
        };
        // Only the guess of the second rank is ever elsewhere, and it is right.
        for _ in 0..100 {
            predictor.judge(1, &[4, 5, 6], &[ExpertId(5)], nowhere(5));
        }
        predictor.step_ended(1, Duration::ZERO);
        assert_eq!(predictor.depths(), Depths { bus: 3, disk: 3 });
        // A few wrong ones of the first say nothing yet, many do.
        for (count, disk) in [(20, 3), (20, 0)] {
            for _ in 0..count {
                predictor.judge(1, &[4, 5, 6], &[ExpertId(5)], nowhere(4));
            }
            predictor.step_ended(1, Duration::ZERO);
            assert_eq!(predictor.depths().disk, disk);
        }
    }

    #[test]
    fn all_guesses_of_all_tokens_are_counted() {
        let mut predictor = Predictor::new(Prediction::Off, 2);
        let used = [1, 3, 9].map(ExpertId);
        predictor.judge(2, &[3, 4, 9, 3], &used, |expert| match expert.0 {
            9 => Tier::Host,
            _ => Tier::Device,
        });
        assert_eq!(predictor.counts(), (4, 3));
        assert_eq!(predictor.depths(), Depths { bus: 0, disk: 0 });
    }

    /// Runs `count` steps that take as long as `time` says of the step's number and of whether it acts upon guesses.
    /// Gives the number of those that did.
    fn timed(
        predictor: &mut Predictor,
        count: usize,
        tokens: usize,
        time: impl Fn(usize, bool) -> f64,
    ) -> usize {
        let mut acted = 0;
        for step in 0..count {
            let on = predictor.depths().bus > 0;
            acted += usize::from(on);
            predictor.step_ended(tokens, Duration::from_secs_f64(time(step, on)));
        }
        acted
    }

    const TRIAL: usize = WINDOW * WINDOWS.len();

    #[test]
    fn a_trial_takes_the_faster_and_is_repeated() {
        for (with, worth) in
            [(0.9, true), (0.975, true), (0.985, false), (1.0, false), (1.3, false)]
        {
            let mut predictor = Predictor::new(Prediction::Auto, K);
            let time = |_, on: bool| 5e-3 * if on { with } else { 1.0 };
            assert_eq!(timed(&mut predictor, TRIAL, 1, time), TRIAL / 2);
            let held = timed(&mut predictor, HOLDS, 1, time);
            assert_eq!(held, if worth { HOLDS } else { 0 }, "{with} of the time");
            // The machine has changed: the next trial finds out.
            let other = |_, on: bool| 5e-3 * if on == worth { 1.5 } else { 1.0 };
            assert_eq!(timed(&mut predictor, TRIAL, 1, other), TRIAL / 2);
            assert_eq!(timed(&mut predictor, HOLDS, 1, other), if worth { 0 } else { HOLDS });
        }
    }

    #[test]
    fn neither_a_warming_cache_nor_outliers_pass_for_a_gain() {
        let mut predictor = Predictor::new(Prediction::Auto, K);
        // Steps become a third shorter during the trial; some of the slow arm's take long.
        let time = |step: usize, on: bool| {
            let late = if !on && step.is_multiple_of(5) { 50e-3 } else { 0.0 };
            6e-3 * (1.0 - step as f64 / (3 * TRIAL) as f64) + late
        };
        timed(&mut predictor, TRIAL, 1, time);
        assert_eq!(timed(&mut predictor, 100, 1, time), 0);
    }

    #[test]
    fn steps_of_several_sequences_leave_a_trial_where_it_is() {
        let mut predictor = Predictor::new(Prediction::Auto, K);
        let time = |_, on: bool| 5e-3 * if on { 0.5 } else { 1.0 };
        assert_eq!(timed(&mut predictor, 1000, 4, time), 0, "the first window is without");
        timed(&mut predictor, TRIAL, 1, time);
        assert_eq!(timed(&mut predictor, 3 * HOLDS, 4, time), 3 * HOLDS);
        assert_eq!(timed(&mut predictor, HOLDS, 1, time), HOLDS);
    }
}

//! Guessing, one layer early, which experts a decode step will choose.

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

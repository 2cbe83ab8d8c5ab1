//! Residency policies: what is worth keeping.
//!
//! A policy sees every decode visit of every `(layer, expert)`, resident or not, and gives a score; the
//! evictable slot with the smallest score gives way. Scores are compared between entries touched at
//! different times, so they must not need updating while nothing happens: see
//! [`lfru`] for how a decaying frequency manages that.

mod lfru;
mod lfu;
mod lru;

pub use lfru::DecayedLfru;
pub use lfu::Lfu;
pub use lru::Lru;

/// What is remembered of one `(layer, expert)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    /// Sequence number of its last use; 0 for never.
    pub last: u64,
    /// Uses so far.
    pub uses: u32,
    /// For policies with a memory of their own.
    pub weight: f64,
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Uses of any expert so far, this one included: a total order.
    pub sequence: u64,
    /// Decode visits of this layer so far: about the tokens generated.
    pub step: u64,
}

/// What is worth keeping.
pub trait Policy: Send {
    /// An expert is used.
    fn touch(&self, history: &mut History, now: Moment);

    /// How much it is worth to keep it: the smallest goes first.
    fn score(&self, history: &History) -> f64;
}

/// The policies that a store can be opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PolicyKind {
    /// Least recently used goes first.
    Lru,
    /// Least frequently used goes first, counted since the start.
    Lfu,
    /// Least frequently used goes first, where a use counts half after some steps.
    #[default]
    DecayedLfru,
}

impl PolicyKind {
    /// The policy.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::Lfu => Box::new(Lfu),
            Self::DecayedLfru => Box::new(DecayedLfru::default()),
        }
    }
}

//! The end of a server in order: not ready at once, no new work after a delay, closed when what runs is done.
//!
//! Routers learn from `/readyz` that a server goes, a few seconds after it knows itself; until then they send work,
//! which is taken. What comes later is told to go elsewhere. Requests that were taken are finished, also those that
//! wait.

use std::sync::atomic::{AtomicU8, Ordering};

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// All work is taken.
    Open,
    /// All work is taken, and `/readyz` says that soon it will not be.
    Leaving,
    /// Only what was taken is finished.
    Closed,
}

/// The phase, shared by connections.
#[derive(Debug, Default)]
pub(crate) struct Drain(AtomicU8);

impl Drain {
    pub(crate) fn phase(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Leaving,
            _ => Phase::Closed,
        }
    }

    /// Goes on to a phase; never back.
    pub(crate) fn go_on(&self, phase: Phase) {
        self.0.fetch_max(phase as u8, Ordering::AcqRel);
    }
}

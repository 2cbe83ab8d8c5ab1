//! Parts of snapshots that are in a stage's process: by number there, by a handle here whose last clone has them
//! forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::messages::{NumberedPart, PARTS_MAX};
use crate::EngineError;
use crate::backend::SnapshotPart;
use crate::sequences::{Distant, Held, SnapshotShare};

/// Numbers that nothing in the first process holds any more, until the stage hears of it.
#[derive(Default)]
pub(super) struct Forgotten {
    numbers: Mutex<Vec<u64>>,
    /// Whether the room that the stage told of last is older than this.
    stale: AtomicBool,
}

impl Forgotten {
    /// A handle on a part.
    pub(super) fn hold(
        self: &Arc<Self>,
        (number, length): NumberedPart,
        state_bytes: u64,
    ) -> SnapshotShare {
        let held = Arc::new(Handle { number, forgotten: Arc::clone(self) });
        SnapshotShare::There(Distant::new(length, state_bytes, held))
    }

    /// What the stage is to be told.
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.numbers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether something was forgotten since this was asked last.
    pub(super) fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::Relaxed)
    }
}

struct Handle {
    number: u64,
    forgotten: Arc<Forgotten>,
}

impl Held for Handle {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let numbers = &self.forgotten.numbers;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        self.forgotten.stale.store(true, Ordering::Relaxed);
    }
}

/// The parts that a stage holds for the first process.
#[derive(Default)]
pub(super) struct Parts {
    held: HashMap<u64, SnapshotPart>,
    next: u64,
}

impl Parts {
    /// Keeps a part.
    ///
    /// # Errors
    /// There are more than any first process asks for.
    pub(super) fn keep(&mut self, part: SnapshotPart) -> Result<NumberedPart, EngineError> {
        if self.held.len() >= PARTS_MAX {
            let found = format!("{PARTS_MAX} parts of snapshots are held; no more fit");
            return Err(EngineError::Request(found));
        }
        let named = (self.next, part.length());
        self.held.insert(self.next, part);
        self.next += 1;
        Ok(named)
    }

    /// The point of so many tokens of a part.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(&self, (number, length): NumberedPart) -> Result<SnapshotPart, EngineError> {
        let part = self.held.get(&number).and_then(|part| part.at(length));
        part.ok_or_else(|| {
            EngineError::Request(format!("there is no part {number} of {length} tokens"))
        })
    }

    /// Forgets parts; of those that there are not nothing is known.
    pub(super) fn forget(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.held.remove(number);
        }
    }
}

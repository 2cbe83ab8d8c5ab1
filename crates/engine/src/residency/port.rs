//! What a device offers to the residency of experts: memory with slots, and a running step that asks for records.
//!
//! Both are small, so that all of this is tested without a device, and each kind of device writes these functions
//! alone. The address table is not written through the port: a device whose kernels read the host tier takes the words
//! that it has to write ([`super::Residency::changed_words`]) when its step's own order of work has room for them; one
//! whose kernels read slots alone keeps a table of what its slots have, and copies each record that a step asks for.

use store::LayerId;
use store::cache::{Admission, Held};

use crate::EngineError;

/// Slots in the memory of a device, and copies between them and the host tier.
pub(crate) trait DeviceMemory {
    /// A copy into a slot.
    type Filling;
    /// A copy out of a slot.
    type Saving;

    /// True where kernels read records of the host tier in place; false where they read slots alone and a step asks
    /// for what it finds in none.
    fn reads_host(&self) -> bool {
        true
    }
    /// Copies the record `key` of the host tier into a slot that no step can name yet, and waits.
    fn load(&mut self, from: &Held, slot: u32, key: u32) -> Result<(), EngineError>;
    /// Begins to copy the record `key` of the host tier into a slot.
    fn fill(&mut self, from: &Held, slot: u32, key: u32) -> Result<Self::Filling, EngineError>;
    /// True when the copy has ended.
    fn is_filled(&mut self, filling: &Self::Filling) -> Result<bool, EngineError>;
    /// Begins to copy a slot to the host tier.
    fn save(&mut self, slot: u32, to: Admission) -> Result<Self::Saving, EngineError>;
    /// True when the copy has ended.
    fn is_saved(&mut self, saving: &Self::Saving) -> Result<bool, EngineError>;
    /// Waits for the copy's end and gives the written memory back.
    fn finish(&mut self, saving: Self::Saving) -> Result<Admission, EngineError>;
    /// Waits for the copy's end.
    fn wait_for(&mut self, filling: &Self::Filling) -> Result<(), EngineError>;
    /// Copies what slots have to others, pairs from and to that have nothing in common, and waits.
    fn relocate(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError>;
}

/// A record that a step asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The record.
    pub(crate) key: u32,
    /// The layer has not chosen it yet.
    pub(crate) prefetched: bool,
}

/// Where a record is that a step asked for.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    /// Its address in the host tier, for a device that reads it there.
    pub(crate) address: u64,
    /// Its bytes, for a device that copies them.
    pub(crate) held: &'a Held,
}

/// The way to a running step.
pub(crate) trait RunningStep {
    /// The next record asked for, if there is one. The same record may be asked for more than once.
    fn take_request(&mut self) -> Option<Request>;
    /// A record of the host tier that a layer will probably choose may be copied to the device, where it is not yet.
    fn copy_ahead(&mut self, layer: LayerId, key: u32, held: &Held);
    /// Tells the step where a record is; `None` when it cannot be had, which ends the step soon.
    fn answer(&mut self, key: u32, found: Option<Found<'_>>);
    /// True when the step has ended.
    ///
    /// # Errors
    /// The device failed.
    fn is_done(&mut self) -> Result<bool, EngineError>;
    /// Nothing has happened in a whole turn. `reading` says that the step waits for a read.
    ///
    /// # Errors
    /// The device failed.
    fn rest(&mut self, _reading: bool) -> Result<(), EngineError> {
        std::thread::yield_now();
        Ok(())
    }
}

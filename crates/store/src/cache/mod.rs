//! Expert records in slots: the database buffer pool of a mixture of experts.
//!
//! [`ExpertStore`] owns a fixed number of slots and a table `(layer, expert) -> slot`. A layer's
//! [`visit`](ExpertStore::visit) looks up all its experts first, pins what is resident, chooses
//! victims that the visit does not need, and issues all missing reads at once; the caller computes
//! with what is ready and waits for the rest, one expert at a time. A [`Visit`] is a guard: as long as it
//! holds a member, that record neither moves nor changes.
//!
//! Invariants: memory is allocated at open and never grows; a record is published only after all of
//! its bytes have arrived; a failed read is an error of the visit that began it and of nothing else, since who
//! joined it reads once more; where bytes were found never changes what they are.

mod admit;
mod certain;
mod counters;
mod error;
mod heap;
mod held;
mod layout;
mod mapped;
mod members;
mod opening;
mod options;
pub mod policy;
mod shared;
pub(crate) mod state;
mod store;
mod submit;
pub(crate) mod verdict;
mod visit;
mod withdraw;

pub use admit::Admission;
pub use counters::{
    DeviceCounters, Histogram, PhaseCounters, PrefetchCounters, QueueCounters, StoreCounters,
};
pub use error::{ReadCause, StoreError};
pub use held::Held;
pub use layout::{SlotClass, StorePlan};
pub use opening::StoreReport;
pub use options::{LoadProgress, Phase, SlotBudget, StorageMode, StoreOptions};
pub use policy::PolicyKind;
pub use store::ExpertStore;
pub use visit::{ExpertBytes, Visit};

//! How an expert store is opened.

use std::fmt;

use crate::arena::HugePages;
use crate::cache::PolicyKind;
use crate::io::{DirectIo, IoEngine, Storage};

/// The usual [`StoreOptions::prefill_part`]: layers of a prompt visit all their experts, and what is not read ahead is
/// waited for.
const PREFILL_PART: usize = 4;

/// Where experts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageMode {
    /// All records are loaded into slots at open.
    Resident,
    /// Reads into a fixed pool of slots; the page cache does not grow.
    #[default]
    Budget,
    /// Buffered reads into a fixed pool of slots: what leaves it may still be in the system's cache.
    Buffered,
    /// Buffered reads into buffers that are given back after each visit: the system caches.
    PageCache,
    /// The mapped files themselves.
    Mmap,
}

/// How much memory the slots may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotBudget {
    /// This many slots in all.
    Slots(usize),
    /// As many slots as this many bytes hold.
    Bytes(u64),
    /// What this many steps need: the minimum of each size of records, so many times.
    Steps(usize),
}

impl fmt::Display for SlotBudget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(slots) => write!(out, "{slots} slots"),
            Self::Bytes(bytes) => write!(out, "{bytes} bytes"),
            Self::Steps(steps) => write!(out, "slots of {steps} steps"),
        }
    }
}

/// What the engine is doing when it visits a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A step of one or few tokens: its experts are worth keeping.
    Decode,
    /// A draft of a token: experts that are in memory, worth keeping; no decode waits for them.
    Draft,
    /// A chunk of many tokens sweeping through all experts: it must not flush what decode needs.
    Prefill,
}

/// Called while `Resident` loads: bytes loaded, bytes in all.
pub type LoadProgress = Box<dyn Fn(u64, u64) + Send>;

/// How an expert store is opened. Start from [`StoreOptions::new`].
pub struct StoreOptions {
    /// Where experts come from.
    pub mode: StorageMode,
    /// Memory of the slots; not used by `Resident` and `Mmap`.
    pub slots: SlotBudget,
    /// Slots below which opening is refused: the trained top-k, times the sequences decoded at once.
    pub minimum_slots: usize,
    /// A sweep of a prompt may hold one part in this many of the slots, beyond what is free anyway: what it takes,
    /// decode loses, and so does the prompt itself where its later layers would have found records there.
    pub prefill_part: usize,
    /// The engine that reads.
    pub io: IoEngine,
    /// Whether reads bypass the page cache. `Buffered` and `PageCache` never do.
    pub direct: DirectIo,
    /// What is evicted.
    pub policy: PolicyKind,
    /// Reads in flight; `None` for the measured default of the record size.
    pub queue_depth: Option<usize>,
    /// Verify the checksum of every record read, where the checkpoint has one.
    pub check_reads: bool,
    /// `Mmap`: advise the kernel of what is needed next and no longer.
    pub residency_advice: bool,
    /// Pages of the slots.
    pub huge_pages: HugePages,
    /// An engine to use instead of a real one.
    pub storage: Option<Box<dyn Storage>>,
    /// Told about the loading of `Resident`.
    pub progress: Option<LoadProgress>,
}

impl StoreOptions {
    /// The defaults of a mode, with the smallest pool that holds one step.
    pub fn new(mode: StorageMode, minimum_slots: usize) -> Self {
        Self {
            mode,
            slots: SlotBudget::Slots(minimum_slots),
            minimum_slots,
            prefill_part: PREFILL_PART,
            io: IoEngine::Auto,
            direct: DirectIo::Auto,
            policy: PolicyKind::default(),
            queue_depth: None,
            check_reads: false,
            residency_advice: false,
            huge_pages: HugePages::Transparent,
            storage: None,
            progress: None,
        }
    }
}

//! Windows: the system's own calls, by the library that wraps them. There are no control groups.
//!
//! Run under Wine in every check, not on Windows.

use sysinfo::{MemoryRefreshKind, System};

pub(super) use super::library::{cached_bytes, has_nvidia_card, load, may_have_gpu, reset_peak};
use super::library::{named, resident_bytes};
use super::{Identity, Memory, ProcessMemory, Swapping};

pub(super) fn memory() -> Memory {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    Memory { total: system.total_memory(), available: system.available_memory(), group: None }
}

pub(super) fn swapping() -> Option<Swapping> {
    None
}

pub(super) fn process_memory() -> ProcessMemory {
    let peak = store::io::platform::peak_memory();
    ProcessMemory { peak, anonymous: resident_bytes() }
}

pub(super) fn identity() -> Identity {
    named(None)
}

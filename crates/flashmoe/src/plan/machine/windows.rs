//! Windows: the system's own calls, by the library that wraps them. There are no control groups.
//!
//! Run under Wine in every check, not on Windows.

use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, System};

use super::{Memory, ProcessMemory};

pub(super) fn memory() -> Memory {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    Memory { total: system.total_memory(), available: system.available_memory(), group: None }
}

pub(super) fn process_memory() -> ProcessMemory {
    let resident = sysinfo::get_current_pid().ok().and_then(|own| {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
        system.process(own).map(|process| process.memory())
    });
    let peak = store::io::platform::peak_memory();
    ProcessMemory { peak, anonymous: resident.unwrap_or(0) }
}

pub(super) fn reset_peak() {}

pub(super) fn cached_bytes() -> u64 {
    0
}

pub(super) fn load() -> Option<f64> {
    None
}

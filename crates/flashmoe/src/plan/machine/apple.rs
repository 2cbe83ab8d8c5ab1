//! macOS: the system's own calls, by the libraries that wrap them. There are no control groups.
//!
//! Compiled for `aarch64-apple-darwin` in every check, not run.

use nix::sys::resource::{UsageWho, getrusage};
use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, System};

use super::{Memory, ProcessMemory};

pub(super) fn memory() -> Memory {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    Memory { total: system.total_memory(), available: system.available_memory(), group: None }
}

pub(super) fn process_memory() -> ProcessMemory {
    // Bytes on macOS, unlike elsewhere.
    let peak = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss().max(0) as u64);
    let resident = sysinfo::get_current_pid().ok().and_then(|own| {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
        system.process(own).map(|process| process.memory())
    });
    ProcessMemory { peak, anonymous: resident.unwrap_or(0) }
}

pub(super) fn reset_peak() {}

pub(super) fn cached_bytes() -> u64 {
    0
}

pub(super) fn load() -> Option<f64> {
    None
}

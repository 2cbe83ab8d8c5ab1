//! Windows: the system's own calls, by the library that wraps them. There are no control groups.
//!
//! Run under Wine in every check, not on Windows.

use sysinfo::{
    CpuRefreshKind, MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
};

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

/// Every PC has one.
pub(super) fn may_have_gpu() -> bool {
    true
}

pub(super) fn has_nvidia_card() -> bool {
    false
}

pub(super) fn identity() -> Identity {
    let wanted = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(wanted);
    let chip = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
    let name = System::long_os_version().unwrap_or_else(|| std::env::consts::OS.to_owned());
    let kernel = System::kernel_version().unwrap_or_default();
    Identity {
        system: format!("{name}, kernel {kernel}"),
        chip: chip.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        page: None,
    }
}

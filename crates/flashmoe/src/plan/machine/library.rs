//! What macOS and Windows answer alike, by the library that wraps their calls.

use sysinfo::{CpuRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

use super::Identity;

/// What this process has in RAM.
pub(super) fn resident_bytes() -> u64 {
    let resident = sysinfo::get_current_pid().ok().and_then(|own| {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
        system.process(own).map(|process| process.memory())
    });
    resident.unwrap_or(0)
}

pub(super) fn reset_peak() {}

pub(super) fn cached_bytes() -> u64 {
    0
}

pub(super) fn load() -> Option<f64> {
    None
}

/// Every Mac and every PC has one.
pub(super) fn may_have_gpu() -> bool {
    true
}

pub(super) fn has_nvidia_card() -> bool {
    false
}

/// The system and the processor; `page` is what the system says of its pages.
pub(super) fn named(page: Option<u64>) -> Identity {
    let wanted = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(wanted);
    let chip = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
    let name = System::long_os_version().unwrap_or_else(|| std::env::consts::OS.to_owned());
    let kernel = System::kernel_version().unwrap_or_default();
    Identity {
        system: format!("{name}, kernel {kernel}"),
        chip: chip.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        page,
    }
}

//! macOS: the system's own calls, by the libraries that wrap them. There are no control groups.
//!
//! Compiled and linked for `aarch64-apple-darwin` in every check, not run; the arithmetic is in `unified.rs`, which is
//! tested everywhere.

use nix::sys::resource::{UsageWho, getrusage};
use store::io::platform::memory_use;
use sysinfo::{
    CpuRefreshKind, MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
};

use super::unified::available;
use super::{Identity, Memory, ProcessMemory, Swapping};

pub(super) fn memory() -> Memory {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let total = system.total_memory();
    // Without the kernel's counts what the library takes for used, which is made of the same ones.
    let available = memory_use()
        .map_or_else(|| total.saturating_sub(system.used_memory()), |used| available(total, &used));
    Memory { total, available, group: None }
}

pub(super) fn swapping() -> Option<Swapping> {
    let found = memory_use()?;
    Some(Swapping {
        swapped_in: found.swapped_in,
        swapped_out: found.swapped_out,
        compressed: found.compressed,
        decompressed: found.decompressed,
    })
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

/// Every Mac has one.
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
        page: store::io::platform::page_bytes(),
    }
}

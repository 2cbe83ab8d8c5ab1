//! macOS: the system's own calls, by the libraries that wrap them. There are no control groups.
//!
//! Compiled and linked for `aarch64-apple-darwin` in every check, not run; the arithmetic is in `unified.rs`, which is
//! tested everywhere.

use nix::sys::resource::{UsageWho, getrusage};
use store::io::platform::memory_use;
use sysinfo::{MemoryRefreshKind, System};

pub(super) use super::library::{cached_bytes, has_nvidia_card, load, may_have_gpu, reset_peak};
use super::library::{named, resident_bytes};
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
    ProcessMemory { peak, anonymous: resident_bytes() }
}

pub(super) fn identity() -> Identity {
    named(store::io::platform::page_bytes())
}

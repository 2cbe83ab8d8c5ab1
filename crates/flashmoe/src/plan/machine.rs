//! What this machine can give: memory that is free, the limit of the control group we run in, and what this process
//! holds. One file per system reads the figures.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(not(any(target_vendor = "apple", windows)))]
mod proc;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
use apple as system;
#[cfg(not(any(target_vendor = "apple", windows)))]
use proc as system;
#[cfg(windows)]
use windows as system;

/// What a system and a desktop leave of RAM.
const IDLE_SHARE: f64 = 0.9;

/// Memory of the machine and of our control group, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// RAM.
    pub(crate) total: u64,
    /// What new allocations can have without swapping, by the kernel's estimate.
    pub(crate) available: u64,
    /// Limit of the tightest control group above us, and what is in use in it (page cache, which the
    /// kernel gives back under pressure, not counted).
    pub(crate) group: Option<Group>,
}

/// A control group's memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Its limit.
    pub(crate) limit: u64,
    /// Memory in use that cannot be reclaimed.
    pub(crate) used: u64,
    /// Page cache charged to it.
    pub(crate) cached: u64,
}

impl Memory {
    /// Asks the system.
    pub(crate) fn read() -> Self {
        system::memory()
    }

    /// Of a machine of so much RAM that does little else.
    pub(crate) fn of(total: u64) -> Self {
        Self { total, available: (total as f64 * IDLE_SHARE) as u64, group: None }
    }

    /// What a process may take now.
    pub(crate) fn spare(&self) -> u64 {
        match &self.group {
            Some(group) => self.available.min(group.limit.saturating_sub(group.used)),
            None => self.available,
        }
    }
}

/// What this process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Most memory resident at any time.
    pub(crate) peak: u64,
    /// Anonymous memory resident now (page cache of mapped files not counted, where the system tells them apart).
    pub(crate) anonymous: u64,
}

impl ProcessMemory {
    /// Asks the system.
    pub(crate) fn read() -> Self {
        system::process_memory()
    }
}

/// Makes the peak of [`ProcessMemory`] start again from what is held now. A system that cannot leaves the old peak,
/// which is an upper bound.
pub(crate) fn reset_peak() {
    system::reset_peak();
}

/// Bytes of page cache: of our control group where it is limited, else of the machine. Zero where the system does
/// not say.
pub(crate) fn cached_bytes() -> u64 {
    system::cached_bytes()
}

/// Programs that run or wait to, on average over the last minute; `None` where the system does not say.
pub(crate) fn load() -> Option<f64> {
    system::load()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::read();
        assert!(memory.total > 0 && memory.available <= memory.total);
        assert!(memory.spare() <= memory.available);
        assert!(ProcessMemory::read().peak > 0);
    }
}

//! What this machine can give: memory that is free, the limit of the control group we run in, and what this process
//! holds. One file per system reads the figures.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(any(target_vendor = "apple", windows))]
mod library;
#[cfg(not(any(target_vendor = "apple", windows)))]
mod proc;
pub(crate) mod unified;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
use apple as system;
#[cfg(not(any(target_vendor = "apple", windows)))]
use proc as system;
#[cfg(windows)]
use windows as system;

use crate::arguments::ByteSize;

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

/// What the system moved between RAM, its compressor and its swap since it started, in bytes: memory that was promised
/// to more than there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swapping {
    pub(crate) swapped_in: u64,
    pub(crate) swapped_out: u64,
    /// Counted before compression.
    pub(crate) compressed: u64,
    /// Counted after decompression.
    pub(crate) decompressed: u64,
}

impl Swapping {
    /// Asks the system; `None` where it does not say.
    pub(crate) fn read() -> Option<Self> {
        system::swapping()
    }

    /// What came since an earlier reading.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            swapped_in: self.swapped_in.saturating_sub(before.swapped_in),
            swapped_out: self.swapped_out.saturating_sub(before.swapped_out),
            compressed: self.compressed.saturating_sub(before.compressed),
            decompressed: self.decompressed.saturating_sub(before.decompressed),
        }
    }
}

impl Swapping {
    /// What was moved, in words; `None` where nothing was.
    pub(crate) fn line(&self) -> Option<String> {
        let parts = [
            (self.swapped_in, "swapped in"),
            (self.swapped_out, "swapped out"),
            (self.compressed, "compressed"),
            (self.decompressed, "decompressed"),
        ];
        let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
        let parts: Vec<_> =
            parts.map(|(bytes, what)| format!("{} {what}", ByteSize(bytes))).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Whether there may be a GPU, as far as the system shows its hardware without a driver being asked.
pub(crate) fn may_have_gpu() -> bool {
    system::may_have_gpu()
}

/// Whether a card of NVIDIA's is in the machine, with or without its driver; false where the system does not say.
pub(crate) fn has_nvidia_card() -> bool {
    system::has_nvidia_card()
}

/// What the machine is, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The system and its version.
    pub(crate) system: String,
    /// The processor's name.
    pub(crate) chip: String,
    /// Bytes of a page, where the system says.
    pub(crate) page: Option<u64>,
}

impl Identity {
    /// Asks the system.
    pub(crate) fn read() -> Self {
        system::identity()
    }
}

/// Programs that run or wait to, on average over the last minute; `None` where the system does not say.
pub(crate) fn load() -> Option<f64> {
    system::load()
}

/// The share of their time in which so many threads of ours find a processor while others, `load` in number, want one.
pub(crate) fn share(load: f64, threads: usize) -> f64 {
    let processors = std::thread::available_parallelism().map_or(threads, usize::from);
    share_of(processors as f64, load, threads as f64)
}

fn share_of(processors: f64, load: f64, threads: f64) -> f64 {
    (processors / (load + threads).max(1e-9)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_leave_a_share_of_the_processors() {
        assert_eq!(share_of(2.0, 0.0, 2.0), 1.0);
        assert_eq!(share_of(2.0, 6.0, 2.0), 0.25);
        assert_eq!(share_of(16.0, 4.0, 8.0), 1.0);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::read();
        assert!(memory.total > 0 && memory.available <= memory.total);
        assert!(memory.spare() <= memory.available);
        assert!(ProcessMemory::read().peak > 0);
    }

    #[test]
    fn what_was_moved_is_said_by_kind() {
        let mut moved = Swapping::default();
        assert_eq!(moved.line(), None);
        (moved.swapped_out, moved.compressed) = (3 << 20, 5 << 30);
        let line = moved.line().expect("something was");
        assert_eq!(line, "3.00 MiB swapped out, 5.00 GiB compressed");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_swapped_only_grows() {
        let before = Swapping::read().expect("Linux counts it");
        let since = Swapping::read().expect("still").since(before);
        assert!(since.swapped_in < 1 << 40 && since.swapped_out < 1 << 40);
        assert_eq!(before.since(before), Swapping::default());
    }
}

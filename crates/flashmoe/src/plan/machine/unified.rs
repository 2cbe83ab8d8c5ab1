//! One memory for processor and GPU, as a Mac has it: what is free of it, and how much of it a GPU may take.
//!
//! The figures are the system's: pages by use from the kernel, the working set from Metal. The arithmetic is here, free
//! of the system, so that it is tested where no Mac is.

#[cfg(any(target_vendor = "apple", test))]
use store::io::platform::MemoryUse;

use crate::arguments::ByteSize;

/// What the system and its programs keep of RAM that a GPU shares, at least, or half of a small machine: pages of a GPU
/// cannot be moved, and macOS stalls when too few others are left.
const LEFT_BYTES: u64 = 8 << 30;

/// Bytes that new memory can have without anything being compressed or swapped out for it: all but what is wired, what
/// holds compressed pages and what programs have for themselves ("Memory Used" of Activity Monitor). Other programs'
/// active pages count as theirs, cached files do not.
#[cfg(any(target_vendor = "apple", test))]
pub(crate) fn available(total: u64, used: &MemoryUse) -> u64 {
    let programs = used.private.saturating_sub(used.purgeable);
    let taken = [used.compressor, programs].into_iter().fold(used.wired, u64::saturating_add);
    total.saturating_sub(taken)
}

/// What bounds a GPU that shares RAM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// RAM, bytes.
    pub(crate) ram: u64,
    /// What Metal calls `recommendedMaxWorkingSetSize`: above it a GPU loses its memory while it works.
    pub(crate) working_set: u64,
}

impl Shared {
    /// Bytes that a GPU takes of a process's `budget` where no `--vram` was given: three quarters of it, as the other
    /// devices with one memory do. Of a budget that was asked for, up to all of the working set; else at most three
    /// quarters of that, and so much that the system keeps [`LEFT_BYTES`].
    pub(crate) fn automatic(&self, budget: u64, asked: bool) -> u64 {
        let part = budget / 4 * 3;
        if asked {
            return part.min(self.working_set);
        }
        let left = LEFT_BYTES.min(self.ram / 2);
        part.min(self.working_set / 4 * 3).min(self.ram.saturating_sub(left))
    }

    /// Why a GPU cannot have as much as was asked for.
    pub(crate) fn refusal(&self, asked: u64) -> Option<String> {
        (asked > self.working_set).then(|| {
            let (asked, most) = (ByteSize(asked), ByteSize(self.working_set));
            format!(
                "--vram {asked}: Metal recommends at most {most} of this Mac's {} for the GPU \
                 (recommendedMaxWorkingSetSize); leave --vram out, --memory alone is enough",
                ByteSize(self.ram)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn other_programs_memory_is_not_spare() {
        // 48 GiB with 20 of programs, 3 wired, 2 that hold compressed pages: the rest is free or cached files.
        let mut used = MemoryUse {
            wired: 3 * GIB,
            compressor: 2 * GIB,
            private: 20 * GIB,
            ..MemoryUse::default()
        };
        assert_eq!(available(48 * GIB, &used), 23 * GIB);
        used.purgeable = GIB;
        assert_eq!(available(48 * GIB, &used), 24 * GIB);
        // What was counted at another moment, or of a system that counts otherwise, gives no huge number.
        used.purgeable = 30 * GIB;
        assert_eq!(available(48 * GIB, &used), 43 * GIB);
        used.wired = 60 * GIB;
        assert_eq!(available(48 * GIB, &used), 0);
        used.wired = u64::MAX;
        assert_eq!(available(48 * GIB, &used), 0);
        // Nothing known to be used.
        assert_eq!(available(8 * GIB, &MemoryUse::default()), 8 * GIB);
    }

    #[test]
    fn a_gpu_leaves_the_system_its_part() {
        // RAM, working set, budget; what an automatic and an asked budget give the GPU.
        for (ram, working_set, budget, automatic, asked) in [
            (48, 36, 20, 15, 15),
            // Three quarters of the working set, or all of it.
            (48, 36, 40, 27, 30),
            (48, 36, 48, 27, 36),
            // A raised limit (iogpu.wired_limit_mb) does not take the system's part unasked.
            (48, 48, 48, 36, 36),
            (16, 16, 16, 8, 12),
            // Small machines keep a half.
            (8, 5, 8, 3, 5),
            (128, 96, 100, 72, 75),
            (48, 36, 0, 0, 0),
        ] {
            let shared = Shared { ram: ram * GIB, working_set: working_set * GIB };
            let found = [false, true].map(|it| shared.automatic(budget * GIB, it) / GIB);
            assert_eq!(found, [automatic, asked], "{ram} {working_set} {budget}");
        }
    }

    #[test]
    fn more_than_the_working_set_is_refused_with_the_value() {
        let shared = Shared { ram: 48 * GIB, working_set: 36 * GIB };
        assert_eq!(shared.refusal(36 * GIB), None);
        let reason = shared.refusal(36 * GIB + 1).expect("a byte more");
        for word in ["--vram", "36.00 GiB", "48.00 GiB", "recommendedMaxWorkingSetSize", "--memory"]
        {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
}

//! What this machine can give: memory that is free, and the limit of the control group we run in.

use std::fs;
use std::path::{Path, PathBuf};

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
    /// Reads /proc/meminfo and the control-group files (version 2, else version 1).
    pub(crate) fn read() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        let total = field("MemTotal").unwrap_or(0);
        let available = field("MemAvailable").unwrap_or(total);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { total, available, group: tightest_group(&groups, total) }
    }

    /// What a process may take now.
    pub(crate) fn spare(&self) -> u64 {
        match &self.group {
            Some(group) => self.available.min(group.limit.saturating_sub(group.used)),
            None => self.available,
        }
    }
}

/// The smallest limit among our control groups and their parents.
fn tightest_group(groups: &str, total: u64) -> Option<Group> {
    let mut found: Option<Group> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, limit, used, cached): (&str, &str, &str, &str) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "anon", "file"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "rss", "cache")
            }
            _ => continue,
        };
        let mut folder = PathBuf::from(root).join(path.trim_start_matches('/'));
        loop {
            if let Some(bytes) = read_number(&folder.join(limit)).filter(|&bytes| bytes < total)
                && found.as_ref().is_none_or(|group| bytes < group.limit)
            {
                let figures = folder.join("memory.stat");
                let (used, cached) = (statistic(&figures, used), statistic(&figures, cached));
                found = Some(Group { limit: bytes, used, cached });
            }
            if folder == Path::new(root) || !folder.pop() {
                break;
            }
        }
    }
    found
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A field of memory.stat; zero when it is not there.
fn statistic(path: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok()).flatten()
    });
    value.unwrap_or(0)
}

/// What this process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Most memory resident at any time.
    pub(crate) peak: u64,
    /// Anonymous memory resident now (page cache of mapped files not counted).
    pub(crate) anonymous: u64,
}

impl ProcessMemory {
    /// Reads /proc/self/status.
    pub(crate) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        Self { peak: field("VmHWM:").unwrap_or(0), anonymous: field("RssAnon:").unwrap_or(0) }
    }
}

/// Makes the peak of [`ProcessMemory`] start again from what is held now. A kernel that does not know how
/// leaves the old peak, which is an upper bound.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of page cache: of our control group where it is limited, else of the machine.
pub(crate) fn cached_bytes() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    let total = field("MemTotal:").unwrap_or(0);
    match tightest_group(&groups, total) {
        Some(group) => group.cached,
        None => field("Cached:").unwrap_or(0),
    }
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

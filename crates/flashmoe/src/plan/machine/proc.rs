//! Linux: /proc and the files of control groups, version 2, else version 1.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Group, Identity, Memory, ProcessMemory, Swapping};

pub(super) fn memory() -> Memory {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = field(&meminfo, "MemTotal:").unwrap_or(0);
    let available = field(&meminfo, "MemAvailable:").unwrap_or(total);
    Memory { total, available, group: tightest_group(total) }
}

/// A line `NAME: N kB` in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The smallest limit among our control groups and their parents.
fn tightest_group(total: u64) -> Option<Group> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
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

/// Pages that were swapped, and those that zswap compressed, as /proc/vmstat counts them.
pub(super) fn swapping() -> Option<Swapping> {
    let counts = fs::read_to_string("/proc/vmstat").ok()?;
    let page = page_bytes()?;
    let bytes = |name: &str| {
        let value = counts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Some(value?.trim().parse::<u64>().ok()? * page)
    };
    Some(Swapping {
        swapped_in: bytes("pswpin")?,
        swapped_out: bytes("pswpout")?,
        compressed: bytes("zswpout").unwrap_or(0),
        decompressed: bytes("zswpin").unwrap_or(0),
    })
}

/// Bytes of a page, which the kernel tells each process among its start values.
fn page_bytes() -> Option<u64> {
    const AT_PAGESZ: usize = 6;
    const WORD: usize = size_of::<usize>();
    let values = fs::read("/proc/self/auxv").ok()?;
    let word = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = values.chunks_exact(2 * WORD);
    let size = pairs.find(|pair| word(&pair[..WORD]) == Some(AT_PAGESZ))?;
    Some(word(&size[WORD..])? as u64)
}

pub(super) fn process_memory() -> ProcessMemory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name| field(&status, name).unwrap_or(0);
    ProcessMemory { peak: field("VmHWM:"), anonymous: field("RssAnon:") }
}

pub(super) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

pub(super) fn cached_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = field(&meminfo, "MemTotal:").unwrap_or(0);
    match tightest_group(total) {
        Some(group) => group.cached,
        None => field(&meminfo, "Cached:").unwrap_or(0),
    }
}

pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Nodes of drivers that draw or compute: of the kernel's, of NVIDIA's, and of Windows' for its guest.
pub(super) fn may_have_gpu() -> bool {
    let renders = fs::read_dir("/dev/dri").into_iter().flatten().filter_map(Result::ok);
    let mut renders = renders.map(|entry| entry.file_name());
    renders.any(|name| name.to_string_lossy().starts_with("renderD"))
        || Path::new("/dev/nvidiactl").exists()
        || Path::new("/dev/dxg").exists()
}

/// By the bus: NVIDIA's number, and the class of what draws or computes.
pub(super) fn has_nvidia_card() -> bool {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten();
    devices.filter_map(Result::ok).any(|device| {
        let is = |name: &str, begins: &[&str]| {
            let text = fs::read_to_string(device.path().join(name)).unwrap_or_default();
            begins.iter().any(|begin| text.starts_with(begin))
        };
        is("vendor", &["0x10de"]) && is("class", &["0x03", "0x12"])
    })
}

pub(super) fn identity() -> Identity {
    let quoted = |path: &str, name: &str| {
        let text = fs::read_to_string(path).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim_start_matches([' ', '\t', ':', '=']).trim_matches('"').to_owned())
    };
    let name = quoted("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| "Linux".to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let chip = quoted("/proc/cpuinfo", "model name");
    Identity {
        system: format!("{name}, kernel {}", kernel.trim()),
        chip: chip.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        page: page_bytes(),
    }
}

//! Slot memory: one mapping, cut into equal slots, handed out by leases that make it safe.
//!
//! The mapping is aligned to 2 MiB and asked to be backed by huge pages: with 4 KiB pages the block
//! layer splits a record into several requests, which halves bandwidth and multiplies the processor
//! time of a read (docs/experiments.tsv). Its size is exact and known before it is allocated
//! ([`SlotArena::bytes_for`]), and it is populated at start so that nothing grows while generating.
//!
//! Every slot has a small atomic count of writers and readers. A [`SlotWriter`] exists only without
//! readers, a [`SlotReader`] only without a writer, and a writer cuts its slot into disjoint
//! [`Target`]s that travel with the read requests. Whatever the cache above does wrong, bytes under a
//! reader never change: it would be refused a lease. The `unsafe` of this file rests on that alone.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_os = "linux")]
use rustix::mm::Advice;

use crate::io::platform::{Pages, reserved_pages};

/// Alignment and granularity of the mapping: the huge page of x86-64 and of 4 KiB-page aarch64.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Granularity of slots: direct I/O needs memory aligned to the logical block, at most this.
pub const PAGE_BYTES: usize = 4096;
/// Byte that fills a slot before it is written in debug builds, so that a stale read is seen.
const POISON: u8 = 0xa5;
/// Readers are counted in the upper half of a slot's state, writers in the lower.
const READER: u32 = 1 << 16;
const WRITERS: u32 = READER - 1;

/// Which pages back an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ask for transparent huge pages; the kernel may give fewer.
    #[default]
    Transparent,
    /// Reserved huge pages (`vm.nr_hugepages`); refused when there are too few.
    Reserved,
    /// Ordinary pages: for comparison.
    Never,
}

/// A mapping that this module owns.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Unmapped when this is dropped, and no lease outlives the arena (they hold it).
    _pages: Pages,
}

// SAFETY: the mapping is plain memory owned by this value; access is regulated by the leases.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared access goes through atomic slot states only.
unsafe impl Sync for Mapping {}

/// Memory of `slots` slots of `slot_bytes` each.
pub struct SlotArena {
    memory: Mapping,
    slot_bytes: usize,
    states: Box<[AtomicU32]>,
}

impl SlotArena {
    /// Bytes that an arena of this shape occupies.
    pub const fn bytes_for(slots: usize, slot_bytes: usize) -> usize {
        (slots * slot_bytes).next_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Maps and populates an arena. `slot_bytes` must be a positive multiple of [`PAGE_BYTES`].
    pub fn new(slots: usize, slot_bytes: usize, pages: HugePages) -> std::io::Result<Arc<Self>> {
        assert!(slot_bytes > 0 && slot_bytes.is_multiple_of(PAGE_BYTES), "slots are whole pages");
        assert!(u32::try_from(slots).is_ok() && u32::try_from(slot_bytes).is_ok());
        let memory = Mapping::new(Self::bytes_for(slots.max(1), slot_bytes), pages)?;
        let states = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Ok(Arc::new(Self { memory, slot_bytes, states }))
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.states.len()
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// First address and length of the mapping, for registration with the kernel.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.memory.base.as_ptr(), self.memory.bytes)
    }

    /// Bytes of this arena that are backed by huge pages, as the kernel reports it. `None` where
    /// the system does not say.
    pub fn huge_page_bytes(&self) -> Option<usize> {
        // For each mapping the kernel walks all its pages: what lies behind our own is not asked for.
        let maps = BufReader::new(File::open("/proc/self/smaps").ok()?);
        let start = self.memory.base.as_ptr() as usize;
        let end = start + self.memory.bytes;
        let mut inside = false;
        let mut total = 0;
        for line in maps.lines() {
            let line = line.ok()?;
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((low, high)) = first.split_once('-') {
                let low = usize::from_str_radix(low, 16).ok()?;
                let high = usize::from_str_radix(high, 16).ok()?;
                if low >= end {
                    break;
                }
                inside = high > start;
            } else if inside
                && matches!(first, "AnonHugePages:" | "Private_Hugetlb:" | "Shared_Hugetlb:")
            {
                let kilobytes = line.split_whitespace().nth(1)?.parse::<usize>().ok()?;
                total += kilobytes << 10;
            }
        }
        // The kernel may have merged the mapping with a neighbour: never claim more than our own.
        Some(total.min(self.memory.bytes))
    }

    /// Exclusive permission to fill a slot; `None` while it is read or written.
    pub fn writer(self: &Arc<Self>, slot: usize) -> Option<SlotWriter> {
        self.states[slot].compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let mut rest = Target {
            arena: Arc::clone(self),
            slot: slot as u32,
            start: 0,
            length: self.slot_bytes as u32,
        };
        if cfg!(debug_assertions) {
            rest.as_mut_slice().fill(POISON);
        }
        Some(SlotWriter { rest })
    }

    /// Shared permission to read a slot; `None` while it is written.
    pub fn reader(self: &Arc<Self>, slot: usize) -> Option<SlotReader> {
        let take = |state: u32| {
            let writers = state & WRITERS;
            (writers == 0).then(|| state.checked_add(READER)).flatten()
        };
        self.states[slot].fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        Some(SlotReader { arena: Arc::clone(self), slot: slot as u32 })
    }
}

// SAFETY: the mapping is made once, keeps its place, and is unmapped only when the arena is dropped.
unsafe impl kernels::memory::StableMemory for SlotArena {
    fn range(&self) -> (*const u8, usize) {
        (self.memory.base.as_ptr(), self.memory.bytes)
    }
}

impl Mapping {
    fn new(bytes: usize, pages: HugePages) -> std::io::Result<Self> {
        if pages == HugePages::Reserved {
            let reserved = reserved_pages(bytes)?;
            return Ok(Self { base: reserved.base(), bytes, _pages: reserved });
        }
        let aligned = Pages::aligned(bytes, HUGE_PAGE_BYTES)?;
        let mapping = Self { base: aligned.base(), bytes, _pages: aligned };
        mapping.advise_pages(pages);
        mapping.populate();
        Ok(mapping)
    }

    /// Asks for huge pages. A kernel without them answers with an error that changes nothing:
    /// what was obtained is measured, not assumed.
    #[cfg(target_os = "linux")]
    fn advise_pages(&self, pages: HugePages) {
        let advice = match pages {
            HugePages::Never => Advice::LinuxNoHugepage,
            HugePages::Transparent | HugePages::Reserved => Advice::LinuxHugepage,
        };
        // SAFETY: the range is this mapping; the advice does not change its contents.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_pages(&self, _pages: HugePages) {}

    /// Makes every page present, on all processors: the kernel zeroes about 5 GB/s on one.
    fn populate(&self) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        let share = self.bytes.div_ceil(threads).next_multiple_of(HUGE_PAGE_BYTES);
        std::thread::scope(|scope| {
            for start in (0..self.bytes).step_by(share) {
                let length = share.min(self.bytes - start);
                scope.spawn(move || self.populate_part(start, length));
            }
        });
    }

    fn populate_part(&self, start: usize, length: usize) {
        let first = self.base.as_ptr().wrapping_add(start);
        #[cfg(target_os = "linux")]
        {
            let advice = Advice::LinuxPopulateWrite;
            // SAFETY: the range lies in this mapping, which no other code uses yet.
            if unsafe { rustix::mm::madvise(first.cast(), length, advice) }.is_ok() {
                return;
            }
        }
        for offset in (0..length).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping, which is writable and not shared yet.
            unsafe { first.add(offset).write_volatile(0) };
        }
    }
}

/// Exclusive permission to fill one slot, cut from the front into [`Target`]s.
pub struct SlotWriter {
    rest: Target,
}

impl SlotWriter {
    /// Cuts the next `length` bytes off; they follow the bytes cut before.
    ///
    /// # Panics
    /// When the slot has fewer bytes left: record layouts are checked against the slot at open.
    pub fn take(&mut self, length: usize) -> Target {
        assert!(length <= self.rest.len(), "a record fits its slot");
        self.rest.arena.states[self.rest.slot as usize].fetch_add(1, Ordering::Relaxed);
        let part = Target {
            arena: Arc::clone(&self.rest.arena),
            slot: self.rest.slot,
            start: self.rest.start,
            length: length as u32,
        };
        self.rest.start += length as u32;
        self.rest.length -= length as u32;
        part
    }
}

/// Exclusive permission to write a run of bytes of a slot. The slot is unreadable until every target
/// and its writer are dropped.
pub struct Target {
    arena: Arc<SlotArena>,
    slot: u32,
    start: u32,
    length: u32,
}

impl Target {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True when nothing is left to write.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Gives up the first `bytes`: they have been written.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "no more is written than was asked for");
        self.start += bytes as u32;
        self.length -= bytes as u32;
    }

    /// Cuts off what follows the first `bytes`.
    ///
    /// # Panics
    /// When there are fewer bytes.
    pub fn split_off(&mut self, bytes: usize) -> Self {
        assert!(bytes <= self.len(), "a target is cut inside");
        self.arena.states[self.slot as usize].fetch_add(1, Ordering::Relaxed);
        let rest = Self {
            arena: Arc::clone(&self.arena),
            slot: self.slot,
            start: self.start + bytes as u32,
            length: self.length - bytes as u32,
        };
        self.length = bytes as u32;
        rest
    }

    /// The address to hand to the kernel; valid for `len()` bytes while this value lives.
    pub fn pointer(&self) -> *mut u8 {
        let offset = self.slot as usize * self.arena.slot_bytes + self.start as usize;
        self.arena.memory.base.as_ptr().wrapping_add(offset)
    }

    /// The bytes to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the run lies in the mapping (`take` checked it); targets of a slot are disjoint
        // by construction, and the writer count kept by this value excludes readers.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len()) }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Release: what was written is visible to a thread that acquires the slot for reading.
        self.arena.states[self.slot as usize].fetch_sub(1, Ordering::Release);
    }
}

/// Shared permission to read one slot.
pub struct SlotReader {
    arena: Arc<SlotArena>,
    slot: u32,
}

impl SlotReader {
    /// The whole slot.
    pub fn bytes(&self) -> &[u8] {
        let offset = self.slot as usize * self.arena.slot_bytes;
        // SAFETY: the slot lies in the mapping, which is initialised (zeroed by the kernel); the
        // reader count kept by this value excludes writers.
        unsafe {
            let first = self.arena.memory.base.as_ptr().add(offset);
            std::slice::from_raw_parts(first, self.arena.slot_bytes)
        }
    }
}

impl Drop for SlotReader {
    fn drop(&mut self) {
        self.arena.states[self.slot as usize].fetch_sub(READER, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_and_writers_exclude_each_other() {
        let arena = SlotArena::new(2, PAGE_BYTES, HugePages::Transparent).unwrap();
        let mut writer = arena.writer(1).unwrap();
        let mut first = writer.take(16);
        let mut second = first.split_off(8);
        assert_eq!((first.len(), second.len()), (8, 8));
        drop(writer);
        first.as_mut_slice().fill(1);
        second.as_mut_slice().fill(2);
        assert!(arena.reader(1).is_none() && arena.writer(1).is_none());
        assert!(arena.reader(0).is_some(), "the other slot is not concerned");
        drop((first, second));
        let reader = arena.reader(1).unwrap();
        let again = arena.reader(1).unwrap();
        assert_eq!(reader.bytes()[..16], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert!(arena.writer(1).is_none());
        drop((reader, again));
        assert!(arena.writer(1).is_some());
    }

    #[test]
    fn the_mapping_is_aligned_and_exact() {
        let arena = SlotArena::new(3, 5 * PAGE_BYTES, HugePages::Transparent).unwrap();
        let (base, bytes) = arena.span();
        assert!((base as usize).is_multiple_of(HUGE_PAGE_BYTES));
        assert_eq!(bytes, SlotArena::bytes_for(3, 5 * PAGE_BYTES));
        assert_eq!(bytes, HUGE_PAGE_BYTES);
    }
}

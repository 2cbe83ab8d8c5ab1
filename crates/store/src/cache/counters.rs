//! The counters of the store: one set, from which statistics, benchmarks, metrics and traces all draw.

use std::time::Duration;

use crate::cache::Phase;
use crate::cache::state::Claim;
use crate::rows::RowCounters;

/// Buckets of a [`Histogram`]: bucket `i` holds times of `[2^i, 2^(i+1))` microseconds.
const BUCKETS: usize = 32;

/// A histogram of times in powers of two of a microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    total_us: u64,
}

impl Histogram {
    pub(super) fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.counts[(micros.max(1).ilog2() as usize).min(BUCKETS - 1)] += 1;
        self.total_us = self.total_us.saturating_add(micros);
    }

    /// Times recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all times, microseconds.
    pub fn total_us(&self) -> u64 {
        self.total_us
    }

    /// Count of times in `[2^i, 2^(i+1))` microseconds, for each `i`.
    pub fn buckets(&self) -> &[u64] {
        &self.counts
    }

    /// The upper edge, in microseconds, of the bucket in which the given share of all times lies;
    /// zero when nothing was recorded.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return 2u64 << index;
            }
        }
        0
    }

    /// Adds the times of another.
    fn join(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total_us = self.total_us.saturating_add(other.total_us);
    }

    fn since(&self, earlier: &Self) -> Self {
        let counts = std::array::from_fn(|i| self.counts[i] - earlier.counts[i]);
        Self { counts, total_us: self.total_us - earlier.total_us }
    }
}

/// Counters of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounters {
    /// Visits of a layer.
    pub visits: u64,
    /// Experts asked for: `hits + joined + misses`.
    pub requests: u64,
    /// Found resident.
    pub hits: u64,
    /// Found on their way already: read ahead, or asked for by another visit.
    pub joined: u64,
    /// Had to be read.
    pub misses: u64,
    /// Time that callers slept for records, microseconds.
    pub stall_us: u64,
    /// Time that the processor took to choose the experts, microseconds. The store itself chooses none.
    pub routing_us: u64,
}

/// Uses of records by a device with memory of its own; the store itself counts none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Uses by decode found in device memory.
    pub hits: u64,
    /// Uses by decode read over the bus from host memory.
    pub over_bus: u64,
    /// Records of prompts found in device memory.
    pub resident: u64,
    /// Records copied to device memory because decode used them.
    pub copied: u64,
    /// Records copied back to host memory because device memory gave them up.
    pub returned: u64,
    /// Records that are in device memory and in host memory, at this moment and not since a snapshot.
    pub in_both: u64,
    /// Slots for records in device memory, at this moment.
    pub slots: u64,
    /// Records whose slots went to keys and values.
    pub given_up: u64,
    /// Bytes of device memory that keys and values have, at this moment.
    pub cache_bytes: u64,
    /// What was done on the strength of guesses.
    pub prefetched: PrefetchCounters,
    /// What the host handed to the device and waited for; zero where a backend does not count it.
    pub queue: QueueCounters,
}

/// A device's queue as the host sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Kernels that were launched.
    pub dispatches: u64,
    /// Those of them that were recorded while the step before ran.
    pub ahead: u64,
    /// Times that recorded work was handed over.
    pub submissions: u64,
    /// Times that the host stood still until work was done.
    pub waits: u64,
    /// How long it did, microseconds.
    pub waited_us: u64,
}

/// Guesses, one layer early, of the experts that decode will choose, and what was done before the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCounters {
    /// Guesses of all ranks, wherever their records are.
    pub guessed: u64,
    /// Of these, chosen.
    pub right: u64,
    /// Copies of records over the bus that were begun.
    pub bus_copied: u64,
    /// Of these, chosen.
    pub bus_used: u64,
    /// Reads of records that were begun.
    pub disk_read: u64,
    /// Of these, asked for.
    pub disk_used: u64,
}

/// Everything that the store counts since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Visits in decode.
    pub decode: PhaseCounters,
    /// Visits of drafts, for experts in memory alone.
    pub draft: PhaseCounters,
    /// Visits in prefill.
    pub prefill: PhaseCounters,
    /// Records read, demand and ahead.
    pub records_read: u64,
    /// Bytes moved from files, alignment included.
    pub bytes_read: u64,
    /// Time from submission to publication of a record.
    pub read_time: Histogram,
    /// Resident records that gave way to another.
    pub evictions: u64,
    /// Records whose read-ahead was issued.
    pub ahead_issued: u64,
    /// Of these, asked for by a visit later.
    pub ahead_used: u64,
    /// Of these, evicted before any visit asked for them.
    pub ahead_wasted: u64,
    /// Pinned members given up by their own visit because it had no other slot left; each costs
    /// one more read.
    pub given_up: u64,
    /// Records whose reading was given up before all of it had begun, because no visit waited any more.
    pub withdrawn: u64,
    /// Short, interrupted or refused reads that were continued.
    pub retries: u64,
    /// Records that could not be read.
    pub errors: u64,
    /// Reads that were submitted and have not ended: a number of the moment.
    pub in_flight: u64,
    /// Uses by a device.
    pub device: DeviceCounters,
    /// Rows of tables; the store of experts itself counts none.
    pub rows: RowCounters,
}

impl StoreCounters {
    /// The counters of a phase.
    pub fn phase(&self, phase: Phase) -> &PhaseCounters {
        match phase {
            Phase::Decode => &self.decode,
            Phase::Draft => &self.draft,
            Phase::Prefill => &self.prefill,
        }
    }

    /// A slot was claimed.
    pub(super) fn note_eviction(&mut self, claim: &Claim) {
        if let Some((_, in_vain)) = claim.evicted {
            self.evictions += 1;
            self.ahead_wasted += u64::from(in_vain);
        }
    }

    pub(super) fn phase_mut(&mut self, phase: Phase) -> &mut PhaseCounters {
        match phase {
            Phase::Decode => &mut self.decode,
            Phase::Draft => &mut self.draft,
            Phase::Prefill => &mut self.prefill,
        }
    }

    /// Adds those of another store, of other layers: numbers of the moment as well.
    pub fn add(&mut self, other: &Self) {
        self.decode.add(&other.decode);
        self.draft.add(&other.draft);
        self.prefill.add(&other.prefill);
        self.records_read += other.records_read;
        self.bytes_read += other.bytes_read;
        self.read_time.join(&other.read_time);
        self.evictions += other.evictions;
        self.ahead_issued += other.ahead_issued;
        self.ahead_used += other.ahead_used;
        self.ahead_wasted += other.ahead_wasted;
        self.given_up += other.given_up;
        self.withdrawn += other.withdrawn;
        self.retries += other.retries;
        self.errors += other.errors;
        self.in_flight += other.in_flight;
        self.device.add(&other.device);
        self.rows.add(&other.rows);
    }

    /// What was counted after `earlier`, a snapshot of the same store.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            decode: self.decode.since(&earlier.decode),
            draft: self.draft.since(&earlier.draft),
            prefill: self.prefill.since(&earlier.prefill),
            records_read: self.records_read - earlier.records_read,
            bytes_read: self.bytes_read - earlier.bytes_read,
            read_time: self.read_time.since(&earlier.read_time),
            evictions: self.evictions - earlier.evictions,
            ahead_issued: self.ahead_issued - earlier.ahead_issued,
            ahead_used: self.ahead_used - earlier.ahead_used,
            ahead_wasted: self.ahead_wasted - earlier.ahead_wasted,
            given_up: self.given_up - earlier.given_up,
            withdrawn: self.withdrawn - earlier.withdrawn,
            retries: self.retries - earlier.retries,
            errors: self.errors - earlier.errors,
            in_flight: self.in_flight,
            device: self.device.since(&earlier.device),
            rows: self.rows.since(&earlier.rows),
        }
    }
}

impl DeviceCounters {
    /// Adds another device's.
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.over_bus += other.over_bus;
        self.resident += other.resident;
        self.copied += other.copied;
        self.returned += other.returned;
        self.in_both += other.in_both;
        self.slots += other.slots;
        self.given_up += other.given_up;
        self.cache_bytes += other.cache_bytes;
        self.prefetched.add(&other.prefetched);
        self.queue.add(&other.queue);
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            hits: self.hits - earlier.hits,
            over_bus: self.over_bus - earlier.over_bus,
            resident: self.resident - earlier.resident,
            copied: self.copied - earlier.copied,
            returned: self.returned - earlier.returned,
            in_both: self.in_both,
            slots: self.slots,
            given_up: self.given_up - earlier.given_up,
            cache_bytes: self.cache_bytes,
            prefetched: self.prefetched.since(&earlier.prefetched),
            queue: self.queue.since(&earlier.queue),
        }
    }
}

impl QueueCounters {
    /// Adds another device's.
    fn add(&mut self, other: &Self) {
        self.dispatches += other.dispatches;
        self.ahead += other.ahead;
        self.submissions += other.submissions;
        self.waits += other.waits;
        self.waited_us += other.waited_us;
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            dispatches: self.dispatches - earlier.dispatches,
            ahead: self.ahead - earlier.ahead,
            submissions: self.submissions - earlier.submissions,
            waits: self.waits - earlier.waits,
            waited_us: self.waited_us - earlier.waited_us,
        }
    }
}

impl PrefetchCounters {
    /// Adds another device's.
    fn add(&mut self, other: &Self) {
        self.guessed += other.guessed;
        self.right += other.right;
        self.bus_copied += other.bus_copied;
        self.bus_used += other.bus_used;
        self.disk_read += other.disk_read;
        self.disk_used += other.disk_used;
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            guessed: self.guessed - earlier.guessed,
            right: self.right - earlier.right,
            bus_copied: self.bus_copied - earlier.bus_copied,
            bus_used: self.bus_used - earlier.bus_used,
            disk_read: self.disk_read - earlier.disk_read,
            disk_used: self.disk_used - earlier.disk_used,
        }
    }
}

impl PhaseCounters {
    /// Share of requests found resident; zero without requests.
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }

    /// Adds another store's.
    fn add(&mut self, other: &Self) {
        self.visits += other.visits;
        self.requests += other.requests;
        self.hits += other.hits;
        self.joined += other.joined;
        self.misses += other.misses;
        self.stall_us += other.stall_us;
        self.routing_us += other.routing_us;
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            visits: self.visits - earlier.visits,
            requests: self.requests - earlier.requests,
            hits: self.hits - earlier.hits,
            joined: self.joined - earlier.joined,
            misses: self.misses - earlier.misses,
            stall_us: self.stall_us - earlier.stall_us,
            routing_us: self.routing_us - earlier.routing_us,
        }
    }
}

//! What of a job outlives it: snapshots in memory, and their way to the folders.

use std::time::Instant;

use engine::backend::Room;

use super::PrefixStatus;
use super::disk::{DiskStatus, DiskTier, Level};
use super::prefix::Place;
use super::scheduler::Scheduler;

/// Tells the status what the folders hold.
pub(super) fn note_disk(prefix: &mut PrefixStatus, [local, shared]: [DiskStatus; 2]) {
    (prefix.disk, prefix.shared) = (local, shared);
}

impl Scheduler {
    /// Keeps a snapshot of where a job's sequence is.
    pub(super) fn keep(&mut self, index: usize, place: Place) {
        let active = &self.active[index];
        let (sequence, side) = (active.sequence, active.is_side());
        let length = self.engine.sequence_length(sequence);
        let tokens = &active.tokens[..length];
        let backend = self.engine.backend();
        let rules = backend.rules();
        let replays = length <= active.prompt() || rules.answers_replay;
        if !active.job.cache_prompt || rules.cut_tokens != 1 || !replays || length == 0 {
            return;
        }
        let domain = active.domain;
        if !self.prefix.has(domain, tokens) {
            let pages = backend.snapshot_pages(sequence, length);
            if !self.make_room(side, |room| room.states > 0 && room.pages >= pages) {
                return;
            }
        } else if backend.len() > 1 && backend.room().states == 0 {
            // What is left is for marks of batches under way, and this point is kept already.
            return;
        }
        let (active, backend) = (&self.active[index], self.engine.backend());
        let tokens = &active.tokens[..length];
        let Ok(snapshot) = backend.snapshot(sequence, self.prefix.base(domain, tokens)) else {
            return;
        };
        let session = active.job.session.as_deref();
        self.prefix.insert(domain, tokens, snapshot, place, side, session);
        self.active[index].kept = (length, Instant::now());
    }

    /// Hands the latest snapshot that a folder does not have yet to the thread that writes there.
    pub(super) fn spill(&mut self, level: Level) {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.has(level)) else { return };
        for (level, domain, tokens) in disk.given_back() {
            self.prefix.not_stored(level, domain, &tokens);
        }
        self.prefix.spill(level, 1, &mut |domain, tokens, snapshot| {
            disk.offer(level, domain, tokens, snapshot)
        });
    }

    /// Has everything written that is not on disk yet, and waits for that.
    pub(super) fn spill_all(mut self) {
        let Some(disk) = self.disk.take() else { return };
        disk.hurry();
        for (level, domain, tokens) in disk.given_back() {
            self.prefix.not_stored(level, domain, &tokens);
        }
        for level in Level::ALL.into_iter().filter(|&level| disk.has(level)) {
            self.prefix.spill(level, usize::MAX, &mut |domain, tokens, snapshot| {
                disk.push(level, domain, tokens, snapshot);
                true
            });
        }
        note_disk(&mut self.status.prefix, disk.finish());
        self.shared.publish(&self.status);
    }

    /// Gives up entries until there is enough room; false when there never is. What waits to be written holds room
    /// as well.
    pub(super) fn make_room(&mut self, side: bool, enough: impl Fn(Room) -> bool) -> bool {
        let backend = self.engine.backend();
        if self.prefix.make_room(side, &enough, || backend.room()) {
            return true;
        }
        self.disk.as_ref().is_some_and(DiskTier::release)
            && self.prefix.make_room(side, &enough, || backend.room())
    }
}

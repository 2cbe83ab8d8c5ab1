//! What was computed and may be needed again: snapshots, found by the tokens before them.
//!
//! A prompt goes on from the longest snapshot of its own domain whose tokens it begins with; tokens are compared one by
//! one, so that no hash can be wrong. What other domains keep is not looked at, only counted in what room there
//! is. Models without recurrent state may leave a snapshot earlier, at any token.
//!
//! When room is short the entry goes whose loss costs least: the tokens that would have to be computed again
//! (from the next shorter entry of its chain), less the longer it was not used. Since an entry that loses its
//! neighbour gains what the neighbour saved, a long chain stays covered, sparsely where it is old and densely
//! at its end. Side jobs evict side entries only. Time is counted in entries made: nothing ages in an idle night.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::backend::{Room, Snapshot};

use super::disk::Level;
use super::owner::Domain;

/// Entries made until one that is not used counts half.
const HALF_LIFE: f64 = 16.0;
/// An entry at the end of a turn is worth this many times one at any token.
const TURN_WORTH: f64 = 4.0;
/// What an entry of a side job, and one that its session has left, are worth.
const SIDE_WORTH: f64 = 0.1;
const LEFT_WORTH: f64 = 0.25;
/// Prompts that share fewer tokens than this have nothing to do with each other.
const RELATED_TOKENS: usize = 16;

/// Where an entry was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At the end of a turn or of an answer: a likely place to go on from.
    Turn,
    /// On the way through a long prompt, or where it was given up.
    Way,
}

/// A snapshot and its tokens.
#[derive(Debug)]
struct Entry {
    /// Whose it is.
    domain: Domain,
    tokens: Arc<[u32]>,
    snapshot: Snapshot,
    place: Place,
    side: bool,
    session: Option<String>,
    /// Its session went on elsewhere.
    left: bool,
    used: u64,
    /// It was given to the folder of each level.
    stored: [bool; 2],
}

/// A place to go on from.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) snapshot: Snapshot,
}

/// Why a prompt is computed from its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub(super) reason: &'static str,
    /// Tokens that it shares with the most similar entry: the index of the first that differs.
    pub(super) shared: usize,
}

/// Sums for the status.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) saved: u64,
    pub(super) restored: u64,
    pub(super) evicted: u64,
    pub(super) full: BTreeMap<&'static str, u64>,
}

/// The entries in memory.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    entries: Vec<Entry>,
    clock: u64,
    pub(super) counters: Counters,
}

/// Tokens at the beginning of both.
pub(super) fn shared_tokens(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl PrefixCache {
    /// The entries of a domain.
    fn of(&self, domain: Domain) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.domain == domain)
    }

    fn exactly(&mut self, domain: Domain, tokens: &[u32]) -> Option<&mut Entry> {
        let exact = |entry: &&mut Entry| entry.domain == domain && *entry.tokens == *tokens;
        self.entries.iter_mut().find(exact)
    }

    /// The longest point that `prompt` can go on from, with at least one token left to run; marks it as used.
    /// `session` tells whose other entries are no longer where their conversation is.
    pub(super) fn find(
        &mut self,
        domain: Domain,
        prompt: &[u32],
        session: Option<&str>,
    ) -> Result<Found, Miss> {
        let mut best: Option<(usize, usize)> = None;
        let mut most_shared = 0;
        let own = |(_, entry): &(usize, &mut Entry)| entry.domain == domain;
        for (index, entry) in self.entries.iter_mut().enumerate().filter(own) {
            let shared = shared_tokens(&entry.tokens, prompt);
            most_shared = most_shared.max(shared);
            if session.is_some() && entry.session.as_deref() == session {
                entry.left = shared < entry.tokens.len();
            }
            let length = usable(entry, shared.min(prompt.len() - 1));
            if length > 0 && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((index, length));
            }
        }
        let Some((index, length)) = best else {
            let reason = match most_shared {
                _ if !self.of(domain).any(|_| true) => "nothing_kept",
                shared if shared < RELATED_TOKENS => "unrelated",
                _ => "no_snapshot_before_difference",
            };
            return Err(Miss { reason, shared: most_shared });
        };
        let entry = &mut self.entries[index];
        entry.used = self.clock;
        self.counters.restored += 1;
        let snapshot = entry.snapshot.truncated(length).unwrap_or_else(|| entry.snapshot.clone());
        Ok(Found { snapshot })
    }

    /// How many tokens of `prompt` an entry would save, without using it.
    pub(super) fn reach(&self, domain: Domain, prompt: &[u32]) -> usize {
        let limit = prompt.len().saturating_sub(1);
        let reach = |entry: &Entry| usable(entry, shared_tokens(&entry.tokens, prompt).min(limit));
        self.of(domain).map(reach).max().unwrap_or(0)
    }

    /// Whether there is an entry for exactly these tokens.
    pub(super) fn has(&self, domain: Domain, tokens: &[u32]) -> bool {
        self.of(domain).any(|entry| *entry.tokens == *tokens)
    }

    /// The longest entry that is a beginning of `tokens`.
    pub(super) fn base(&self, domain: Domain, tokens: &[u32]) -> Option<&Snapshot> {
        let bases = self.of(domain).filter(|entry| tokens.starts_with(&entry.tokens));
        bases.max_by_key(|entry| entry.tokens.len()).map(|entry| &entry.snapshot)
    }

    /// The entries that are beginnings of `tokens`, the longest first, at most `most`: that one alone where it can be
    /// left at any token, else the ends of turns after it.
    pub(super) fn points(&self, domain: Domain, tokens: &[u32], most: usize) -> Vec<&Snapshot> {
        let of = self.of(domain).filter(|entry| tokens.starts_with(&entry.tokens));
        let mut entries: Vec<&Entry> = of.collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.tokens.len()));
        let whole = entries.first().is_some_and(|entry| entry.snapshot.truncated(0).is_some());
        let turns = entries.iter().skip(1).filter(|it| !whole && it.place == Place::Turn);
        let points = entries.first().into_iter().chain(turns);
        points.take(most).map(|entry| &entry.snapshot).collect()
    }

    /// Keeps a snapshot, whose tokens are `tokens`.
    pub(super) fn insert(
        &mut self,
        domain: Domain,
        tokens: &[u32],
        snapshot: Snapshot,
        place: Place,
        side: bool,
        session: Option<&str>,
    ) {
        debug_assert_eq!(tokens.len(), snapshot.length(), "a snapshot's tokens");
        if tokens.is_empty() {
            return;
        }
        self.clock += 1;
        let clock = self.clock;
        if let Some(known) = self.exactly(domain, tokens) {
            known.used = clock;
            known.left = false;
            known.side &= side;
            if place == Place::Turn {
                known.place = place;
            }
            return;
        }
        if snapshot.truncated(0).is_some() {
            // What can be left at any token needs no entries on the way.
            self.entries
                .retain(|entry| entry.domain != domain || !tokens.starts_with(&entry.tokens));
        }
        self.counters.saved += 1;
        self.entries.push(Entry {
            domain,
            tokens: tokens.into(),
            snapshot,
            place,
            side,
            session: session.map(str::to_owned),
            left: false,
            used: self.clock,
            stored: [false; 2],
        });
    }

    /// Gives up the least valuable entry; with `side_only`, among those of side jobs. False when there is none.
    pub(super) fn evict(&mut self, side_only: bool) -> bool {
        let allowed = |entry: &Entry| entry.side || !side_only;
        let candidates = (0..self.entries.len()).filter(|&index| allowed(&self.entries[index]));
        let least = candidates.min_by(|&a, &b| self.worth(a).total_cmp(&self.worth(b)));
        let Some(index) = least else { return false };
        self.entries.swap_remove(index);
        self.counters.evicted += 1;
        true
    }

    /// Gives up the entries that are beginnings of `tokens`; how many tokens the longest had.
    pub(super) fn erase(&mut self, domain: Domain, tokens: &[u32]) -> usize {
        let of = |entry: &Entry| entry.domain == domain && tokens.starts_with(&entry.tokens);
        let longest = self.entries.iter().filter(|entry| of(entry)).map(|it| it.tokens.len()).max();
        let before = self.entries.len();
        self.entries.retain(|entry| !of(entry));
        self.counters.evicted += (before - self.entries.len()) as u64;
        longest.unwrap_or(0)
    }

    /// Gives up all entries.
    pub(super) fn forget(&mut self) {
        self.counters.evicted += self.entries.len() as u64;
        self.entries.clear();
    }

    /// Gives up entries until `room` says that there is enough; false when it never is.
    pub(super) fn make_room(
        &mut self,
        side_only: bool,
        enough: &impl Fn(Room) -> bool,
        mut room: impl FnMut() -> Room,
    ) -> bool {
        while !enough(room()) {
            if !self.evict(side_only) {
                return false;
            }
        }
        true
    }

    /// Tokens that losing an entry would cost, weighed by how likely they are to be asked for.
    fn worth(&self, index: usize) -> f64 {
        let entry = &self.entries[index];
        let shorter = self.of(entry.domain).filter(|other| {
            other.tokens.len() < entry.tokens.len() && entry.tokens.starts_with(&other.tokens)
        });
        let next = shorter.map(|other| other.tokens.len()).max().unwrap_or(0);
        let age = (self.clock - entry.used) as f64;
        let place = if entry.place == Place::Turn { TURN_WORTH } else { 1.0 };
        let side = if entry.side { SIDE_WORTH } else { 1.0 };
        let left = if entry.left { LEFT_WORTH } else { 1.0 };
        (entry.tokens.len() - next) as f64 * place * side * left * 0.5f64.powf(age / HALF_LIFE)
    }

    /// Gives up to `most` of the entries that were not given before to `store`, the latest first, until that takes no
    /// more. What servers share are the ends of turns: others go on from there.
    pub(super) fn spill(
        &mut self,
        level: Level,
        most: usize,
        store: &mut dyn FnMut(Domain, &[u32], &Snapshot) -> bool,
    ) {
        let wanted = |entry: &Entry| level == Level::Local || entry.place == Place::Turn;
        let fresh =
            |entry: &&mut Entry| !entry.stored[level as usize] && !entry.side && wanted(entry);
        let mut fresh: Vec<_> = self.entries.iter_mut().filter(fresh).collect();
        fresh.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        for entry in fresh.into_iter().take(most) {
            let stored = store(entry.domain, &entry.tokens, &entry.snapshot);
            entry.stored[level as usize] = stored;
            if !stored {
                return;
            }
        }
    }

    /// The entry for exactly these tokens was not stored after all.
    pub(super) fn not_stored(&mut self, level: Level, domain: Domain, tokens: &[u32]) {
        if let Some(entry) = self.exactly(domain, tokens) {
            entry.stored[level as usize] = false;
        }
    }

    /// Counts a prompt that began from nothing.
    pub(super) fn count_full(&mut self, reason: &'static str) {
        *self.counters.full.entry(reason).or_default() += 1;
    }

    /// Tokens before each entry, ascending.
    pub(super) fn positions(&self) -> Vec<usize> {
        let mut positions: Vec<_> = self.entries.iter().map(|entry| entry.tokens.len()).collect();
        positions.sort_unstable();
        positions
    }

    /// Bytes of recurrent states.
    pub(super) fn state_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.snapshot.state_bytes()).sum()
    }
}

/// Tokens that an entry saves a prompt that shares `shared` tokens with it.
fn usable(entry: &Entry, shared: usize) -> usize {
    if entry.tokens.len() <= shared {
        entry.tokens.len()
    } else if entry.snapshot.truncated(shared).is_some() {
        shared
    } else {
        0
    }
}

//! Slots: the last conversation under each number, and its way into and out of files that clients name.
//!
//! llama.cpp's server has slots, each with the state of what it computed last, which `/slots/N` saves, restores and
//! erases. Here a state is a snapshot that any conversation finds by its tokens; a slot is a number under which the
//! last one is remembered: the `id_slot` of its request, or the lowest that was free. So restoring puts a snapshot
//! among the others, and the next conversation that begins with its tokens goes on from it. A slot that another key's
//! request used last is empty to all but that key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::PAGE_TOKENS;
use store::io::platform::{create_private_folder, space};
use thiserror::Error;
use tokio::sync::oneshot;

use super::disk::{self, Beating, SlotFault};
use super::owner::{Domain, Salt};
use super::prefix::Place;
use super::scheduler::Scheduler;
use crate::log::Level;

/// Files that the folder may have.
const FILES_MAX: usize = 1000;
/// Longest name.
const NAME_BYTES_MAX: usize = 128;
/// What tells keys apart; no slot can have its name.
const SALT: &str = ".salt";
/// What stays free of the file system: this part, or at most so much.
const FREE_PART: u64 = 10;
const FREE_MAX: u64 = 16 << 30;

/// Where slots are saved.
#[derive(Clone, Debug)]
pub struct SlotOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// What must be equal for a state to mean the same: model, arithmetic, precision.
    pub fingerprint: u64,
}

/// The name of a slot's file: letters, digits, `.`, `_` and `-`, not beginning with `.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotName(String);

impl SlotName {
    /// A name of a client's.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(name: &str) -> Result<Self, String> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(format!("must have 1 to {NAME_BYTES_MAX} characters"));
        }
        if name.starts_with('.') || !name.bytes().all(known) {
            return Err(
                "must be a name of letters, digits, '.', '_' and '-', and not begin with '.'"
                    .to_owned(),
            );
        }
        Ok(Self(name.to_owned()))
    }
}

impl std::fmt::Display for SlotName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// What is to be done with a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Its state is written to this file.
    Save(SlotName),
    /// It gets the state of this file.
    Restore(SlotName),
    /// Its state is forgotten; files stay.
    Erase,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotDone {
    /// Tokens of the state.
    pub tokens: usize,
    /// Bytes of the file; 0 where none was touched.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// Why nothing was done.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SlotError {
    /// The server has no folder for slots.
    #[error("slots are not saved: start the server with --slot-save-path FOLDER")]
    NoFolder,
    /// There are fewer slots.
    #[error("there are slots 0 to {}", .0 - 1)]
    NoSlot(usize),
    /// Nothing is remembered under the number.
    #[error("the slot is empty: nothing is kept of a conversation in it")]
    Empty,
    /// No file of this name, for this key.
    #[error("there is no file of this name")]
    NoFile,
    /// A file that cannot be used.
    #[error("the file {0}")]
    Foreign(&'static str),
    /// The name is taken by a file that is not the client's.
    #[error("the name is taken: choose another")]
    Taken,
    /// There is no room, in memory or on the disk.
    #[error("{0}")]
    Room(&'static str),
    /// The file system failed; the log says how.
    #[error("the file could not be read or written; the server's log says why")]
    Failed,
    /// The server ends, or too many wait.
    #[error("slots are not served now; come again")]
    Later,
}

/// An order for the engine's thread.
pub(super) struct SlotOrder {
    pub(super) slot: usize,
    pub(super) action: SlotAction,
    pub(super) domain: Domain,
    pub(super) reply: oneshot::Sender<Result<SlotDone, SlotError>>,
}

/// What is remembered under a number.
pub(super) struct Slot {
    domain: Domain,
    tokens: Arc<[u32]>,
}

/// The slots of a worker and their folder.
pub(super) struct Slots {
    options: Option<SlotOptions>,
    slots: Vec<Option<Slot>>,
}

impl Slots {
    /// Opens the folder for `count` slots.
    ///
    /// # Errors
    /// It cannot be made, or is open to others.
    pub(super) fn open(options: Option<SlotOptions>, count: usize) -> std::io::Result<Self> {
        if let Some(SlotOptions { folder, .. }) = &options {
            create_private_folder(folder).map_err(disk::at(folder))?;
            disk::private(&disk::followed(folder)?, "--slot-save-path")?;
        }
        let slots = (0..count).map(|_| None).collect();
        Ok(Self { options, slots })
    }

    /// The salt of the folder, by which its files keep their keys over restarts.
    pub(super) fn salt(&self) -> Option<std::io::Result<Salt>> {
        let options = self.options.as_ref()?;
        Some(Salt::at(&options.folder.join(SALT)).map(|(salt, _)| salt))
    }

    /// Remembers what a slot had last.
    pub(super) fn remember(&mut self, slot: usize, domain: Domain, tokens: &[u32]) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Slot { domain, tokens: tokens.into() });
        }
    }

    /// What a domain has in a slot.
    fn of(&self, slot: usize, domain: Domain) -> Result<Arc<[u32]>, SlotError> {
        let slot = self.slots.get(slot).ok_or(SlotError::NoSlot(self.slots.len()))?;
        let own = slot.as_ref().filter(|slot| slot.domain == domain);
        own.map(|slot| Arc::clone(&slot.tokens)).ok_or(SlotError::Empty)
    }
}

/// That a file of `bytes` may be written at `path`.
fn check_room(folder: &Path, path: &Path, bytes: u64) -> Result<(), SlotError> {
    let there = path.symlink_metadata().is_ok();
    let count = || std::fs::read_dir(folder).map_or(0, Iterator::count);
    if !there && count() > FILES_MAX {
        return Err(SlotError::Room("the folder of slots has as many files as it may have"));
    }
    let space = space(folder).map_err(|_| SlotError::Failed)?;
    let free = (space.whole / FREE_PART).min(FREE_MAX);
    if space.free < bytes.saturating_add(free) {
        return Err(SlotError::Room("the disk of the folder of slots is full"));
    }
    Ok(())
}

impl Scheduler {
    /// Does what clients asked of slots.
    pub(super) fn serve_slots(&mut self) {
        loop {
            let order = self.shared.queue().orders.pop_front();
            let Some(SlotOrder { slot, action, domain, reply }) = order else { return };
            let begun = Instant::now();
            let done = match &action {
                SlotAction::Save(name) => self.save_slot(slot, domain, name),
                SlotAction::Restore(name) => self.restore_slot(slot, domain, name),
                SlotAction::Erase => self.erase_slot(slot, domain),
            };
            let done =
                done.map(|(tokens, bytes)| SlotDone { tokens, bytes, took: begun.elapsed() });
            // A client that has gone does not want to know.
            let _gone = reply.send(done);
        }
    }

    fn path_of(&self, name: &SlotName) -> Result<(SlotOptions, PathBuf), SlotError> {
        let options = self.slots.options.clone().ok_or(SlotError::NoFolder)?;
        let path = options.folder.join(&name.0);
        Ok((options, path))
    }

    fn slot_fault(&self, path: &Path, fault: SlotFault) -> SlotError {
        match fault {
            SlotFault::Missing => SlotError::NoFile,
            SlotFault::Foreign(problem) => SlotError::Foreign(problem),
            SlotFault::Room => SlotError::Room("there is no room in memory for the state"),
            SlotFault::Io(error) => {
                let path = store::shown::path(path);
                self.shared.log(Level::Error, &format!("slot {path}: {error}"));
                SlotError::Failed
            }
        }
    }

    fn save_slot(
        &mut self,
        slot: usize,
        domain: Domain,
        name: &SlotName,
    ) -> Result<(usize, u64), SlotError> {
        let (options, path) = self.path_of(name)?;
        let tokens = self.slots.of(slot, domain)?;
        match disk::slot_domain(&path) {
            Ok(whose) if whose == domain => {}
            Err(SlotFault::Missing) => {}
            Ok(_) | Err(_) => return Err(SlotError::Taken),
        }
        let points = self.prefix.points(domain, &tokens, disk::POINTS_MAX);
        let longest = points.first().ok_or(SlotError::Empty)?;
        let tokens = &tokens[..longest.length()];
        let bytes = disk::slot_bytes(&points);
        check_room(&options.folder, &path, bytes)?;
        let beat = || self.shared.beat();
        let saved = disk::write_slot(&path, options.fingerprint, domain, tokens, &points, &beat);
        saved.map_err(|fault| self.slot_fault(&path, fault))?;
        Ok((tokens.len(), bytes))
    }

    fn restore_slot(
        &mut self,
        slot: usize,
        domain: Domain,
        name: &SlotName,
    ) -> Result<(usize, u64), SlotError> {
        let (options, path) = self.path_of(name)?;
        if slot >= self.sequences {
            return Err(SlotError::NoSlot(self.sequences));
        }
        let limits = (self.context, self.engine.config().vocabulary);
        let opened = disk::SlotReader::open(&path, options.fingerprint, domain, limits);
        let reader = opened.map_err(|fault| self.slot_fault(&path, fault))?;
        let bytes = reader.bytes;
        let shared = Arc::clone(&self.shared);
        let beat = || shared.beat();
        let read = reader.read(&mut |tokens, input| {
            let pages = tokens.div_ceil(PAGE_TOKENS);
            if !self.make_room(false, |room| room.pages >= pages && room.states > 0) {
                return Ok(None);
            }
            let mut input = Beating(input, &beat);
            self.engine.backend().read_snapshot(tokens, &mut input).map(Some)
        });
        let (tokens, snapshots) = read.map_err(|fault| self.slot_fault(&path, fault))?;
        // The longest is the last to go.
        for snapshot in snapshots.into_iter().rev() {
            let own = &tokens[..snapshot.length()];
            self.prefix.insert(domain, own, snapshot, Place::Turn, false, None);
        }
        self.slots.remember(slot, domain, &tokens);
        Ok((tokens.len(), bytes))
    }

    fn erase_slot(&mut self, slot: usize, domain: Domain) -> Result<(usize, u64), SlotError> {
        let tokens = match self.slots.of(slot, domain) {
            Err(SlotError::Empty) => return Ok((0, 0)),
            tokens => tokens?,
        };
        self.slots.slots[slot] = None;
        Ok((self.prefix.erase(domain, &tokens), 0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_slot_s_name_is_a_name_and_no_path() {
        for name in ["a", "chat-1.bin", "A_b.c", "0", &"x".repeat(128)] {
            assert_eq!(SlotName::new(name).unwrap().to_string(), name);
        }
        let long = "x".repeat(129);
        for name in ["", ".", "..", ".salt", "a/b", "../a", "a\\b", "C:a", "a b", "a\0", "ä", &long]
        {
            SlotName::new(name).unwrap_err();
        }
    }
}

//! The engine's end of what outlives the server: a folder of its own, one that servers share, or both.
//!
//! What the engine reads is what a prompt waits for. The server's own folder is read on the engine's thread; a shared
//! one may stop answering, so it has a thread that is waited for with a deadline (`shared/reader`). All that is written
//! is written by a thread for each folder.

use std::io::{self, Read};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::backend::Snapshot;
use engine::stages::Stages;

use super::super::owner::{Domain, Salt};
use super::folder::Folder;
use super::local::Local;
use super::shared::{Reader, SharedFolder};
use super::writer::{Counts, Log, Shelf, Writer};
use super::{DiskOptions, SharedOptions};

/// Which of the folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::work) enum Level {
    /// This server's.
    Local,
    /// That of several servers.
    Shared,
}

impl Level {
    /// The nearer first.
    pub(in crate::work) const ALL: [Self; 2] = [Self::Local, Self::Shared];
}

/// How long the end of the server waits for what is written to a shared folder.
const FAREWELL: Duration = Duration::from_secs(30);

/// A folder and the thread that writes to it.
struct Tier<S: Shelf> {
    writer: Arc<Writer<S>>,
    thread: Option<JoinHandle<()>>,
    restored: u64,
}

impl<S: Shelf> Tier<S> {
    fn start(shelf: S, name: &str, log: Log) -> io::Result<Self> {
        let writer = Arc::new(Writer::new(shelf, log));
        let for_thread = Arc::clone(&writer);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = Some(thread.spawn(move || for_thread.run())?);
        Ok(Self { writer, thread, restored: 0 })
    }

    /// Waits until all is written.
    fn close(&mut self) {
        self.writer.close();
        // A file system over a network may hold the thread for ever.
        let ended = S::WAITS || self.writer.ended_within(FAREWELL);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            // A writer that panicked has reported itself; what it wrote is whole or not there.
            let _ = thread.join();
        }
    }

    fn status(&self, bytes: u64, rejected: u64, failed: u64) -> DiskStatus {
        let Counts { written, dropped } = self.writer.counts();
        DiskStatus {
            bytes,
            bytes_written: written,
            dropped,
            restored: self.restored,
            rejected,
            failed,
        }
    }
}

impl<S: Shelf> Drop for Tier<S> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The engine's end of the folders.
pub(in crate::work) struct DiskTier {
    local: Option<Tier<Local>>,
    shared: Option<Tier<SharedFolder>>,
    /// Of the shared folder.
    reader: Option<Reader>,
}

/// Numbers of a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskStatus {
    /// Bytes in it; of a shared one as far as this server knows.
    pub bytes: u64,
    /// Bytes that this server has written since its start.
    pub bytes_written: u64,
    /// Snapshots that were not written, by reason (`folder_full`, `daily_limit`, `disk_full`, `error`).
    pub dropped: std::collections::BTreeMap<&'static str, u64>,
    /// Snapshots restored from it.
    pub restored: u64,
    /// Files that were damaged or foreign and were removed.
    pub rejected: u64,
    /// Times that the file system of a shared folder failed; each was a miss.
    pub failed: u64,
}

impl DiskTier {
    /// Opens the folders and starts the threads that write; `None` without a folder.
    ///
    /// # Errors
    /// A folder cannot be made, is open to others, is used by another server though it is not a shared one, or cannot
    /// be read.
    pub(in crate::work) fn open(
        local: Option<DiskOptions>,
        shared: Option<SharedOptions>,
        log: impl Fn(&str) + Clone + Send + Sync + 'static,
    ) -> io::Result<Option<Self>> {
        let boxed = || Box::new(log.clone()) as Log;
        let local = local.map(|options| {
            Tier::start(Local::new(Folder::open(options)?), "keep-prompts", boxed())
        });
        let shared = shared
            .map(|options| Tier::start(SharedFolder::open(options)?, "share-prompts", boxed()));
        let (local, shared) = (local.transpose()?, shared.transpose()?);
        let source = shared.as_ref().map(|it: &Tier<SharedFolder>| Arc::clone(&it.writer.shelf));
        let reader = source.map(|source| Reader::start(source)).transpose()?;
        Ok((local.is_some() || shared.is_some()).then_some(Self { local, shared, reader }))
    }

    /// The salt of the domains: where folders are shared, the one that all servers have.
    pub(in crate::work) fn salt(&self) -> Option<Salt> {
        let local = || self.local.as_ref().map(|local| local.writer.shelf.folder().salt.clone());
        self.shared.as_ref().map(|shared| shared.writer.shelf.salt.clone()).or_else(local)
    }

    /// The longest snapshot of `domain` that `prompt` can go on from, if it saves more than `more_than` tokens, and
    /// where it is. A shared one must save more than the local one.
    pub(in crate::work) fn find(
        &self,
        domain: Domain,
        prompt: &[u32],
        more_than: usize,
    ) -> Option<(Level, usize)> {
        let local = self.local.as_ref();
        let local = local.and_then(|it| it.writer.shelf.folder().find(domain, prompt, more_than));
        let more_than = local.unwrap_or(more_than);
        let asked = self.reader.as_ref().map(|it| it.find(domain, prompt, more_than));
        let shared = asked.and_then(|found| found.inspect_err(|error| self.note(error)).ok()?);
        let shared = shared.map(|length| (Level::Shared, length));
        shared.or(local.map(|length| (Level::Local, length)))
    }

    /// Reads the snapshot of the first `length` tokens of `prompt`, for which the backend has room; `beat` is called
    /// all the while. `None` when it was damaged (it is gone then) or cannot be read.
    pub(in crate::work) fn load(
        &mut self,
        level: Level,
        domain: Domain,
        prompt: &[u32],
        length: usize,
        backend: &mut Stages,
        beat: &dyn Fn(),
    ) -> Option<Snapshot> {
        let tokens = &prompt[..length];
        match level {
            Level::Local => {
                let local = self.local.as_mut()?;
                let mut pieces = local.writer.shelf.folder().pieces(domain, tokens)?;
                let snapshot = backend.read_snapshot(length, &mut Beating(&mut pieces, beat));
                let snapshot = snapshot.and_then(|it| pieces.finish().map(|()| it));
                local.restored += u64::from(snapshot.is_ok());
                let rejected = |_| local.writer.shelf.folder().reject(pieces.last());
                snapshot.map_err(rejected).ok()
            }
            Level::Shared => {
                let shared = self.shared.as_mut()?;
                let snapshot = self.reader.as_ref()?.read(domain, tokens).and_then(|mut stream| {
                    let snapshot =
                        backend.read_snapshot(length, &mut Beating(&mut stream, beat))?;
                    stream.finish().map(|()| snapshot)
                });
                shared.restored += u64::from(snapshot.is_ok());
                // What is wrong with a file the thread that read it has noted.
                let silent = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
                snapshot
                    .inspect_err(|it| {
                        if silent(it) {
                            shared.writer.shelf.note(it)
                        }
                    })
                    .ok()
            }
        }
    }

    /// Counts a failure of the shared folder.
    fn note(&self, error: &io::Error) {
        self.shared.iter().for_each(|shared| shared.writer.shelf.note(error));
    }

    /// Whether there is such a folder.
    pub(in crate::work) fn has(&self, level: Level) -> bool {
        match level {
            Level::Local => self.local.is_some(),
            Level::Shared => self.shared.is_some(),
        }
    }

    /// Takes a snapshot to be written; false when too many wait.
    pub(in crate::work) fn offer(
        &self,
        level: Level,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
    ) -> bool {
        match level {
            Level::Local => self.local.as_ref().map(|it| it.writer.offer(domain, tokens, snapshot)),
            Level::Shared => {
                self.shared.as_ref().map(|it| it.writer.offer(domain, tokens, snapshot))
            }
        }
        .unwrap_or(false)
    }

    /// Says whether the engine has something to do: writing to the drive of the experts waits meanwhile.
    pub(in crate::work) fn set_busy(&self, busy: bool) {
        if let Some(local) = &self.local {
            local.writer.set_busy(busy);
        }
    }

    /// Gives back the memory of snapshots that wait or are being written; true when there was some.
    pub(in crate::work) fn release(&self) -> bool {
        let local = self.local.as_ref().is_some_and(|local| local.writer.release());
        self.shared.as_ref().is_some_and(|shared| shared.writer.release()) || local
    }

    /// Snapshots that were let go unwritten since the last call, by folder, domain and tokens.
    pub(in crate::work) fn given_back(&self) -> Vec<(Level, Domain, Vec<u32>)> {
        let local = self.local.as_ref().map(|local| local.writer.given_back());
        let shared = self.shared.as_ref().map(|shared| shared.writer.given_back());
        let each = [(Level::Local, local), (Level::Shared, shared)];
        let each = each.into_iter().flat_map(|(level, given)| {
            given.into_iter().flatten().map(move |(domain, tokens)| (level, domain, tokens))
        });
        each.collect()
    }

    /// From now on nothing waits for the engine or the pace: the server ends.
    pub(in crate::work) fn hurry(&self) {
        self.local.iter().for_each(|local| local.writer.hurry());
        self.shared.iter().for_each(|shared| shared.writer.hurry());
    }

    /// After [`DiskTier::hurry`]: has a snapshot written, waiting until the queue takes it.
    pub(in crate::work) fn push(
        &self,
        level: Level,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
    ) {
        match level {
            Level::Local => {
                self.local.iter().for_each(|it| it.writer.push(domain, tokens, snapshot))
            }
            Level::Shared => {
                self.shared.iter().for_each(|it| it.writer.push(domain, tokens, snapshot));
            }
        }
    }

    /// Waits until all is written.
    pub(in crate::work) fn finish(mut self) -> [DiskStatus; 2] {
        self.local.iter_mut().for_each(Tier::close);
        self.shared.iter_mut().for_each(Tier::close);
        self.status()
    }

    /// Numbers of the moment, by [`Level`].
    pub(in crate::work) fn status(&self) -> [DiskStatus; 2] {
        let local = self.local.as_ref().map(|local| {
            let folder = local.writer.shelf.folder();
            let (bytes, rejected) = (folder.bytes(), folder.rejected);
            drop(folder);
            local.status(bytes, rejected, 0)
        });
        let shared = self.shared.as_ref().map(|shared| {
            let shelf = &shared.writer.shelf;
            shared.status(shelf.bytes(), shelf.rejected(), shelf.failed())
        });
        [local.unwrap_or_default(), shared.unwrap_or_default()]
    }
}

/// Sends keep-alives while something is read that may come over a network.
pub(in crate::work) struct Beating<'a, R: ?Sized>(
    pub(in crate::work) &'a mut R,
    pub(in crate::work) &'a dyn Fn(),
);

impl<R: Read + ?Sized> Read for Beating<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (self.1)();
        self.0.read(bytes)
    }
}

//! Snapshots on disk: what was computed survives the server.
//!
//! `format` has the files, `folder` knows which there are and what may be added, `writer` writes them on a thread of
//! its own. Files are written aside, synced and renamed, so a crash leaves whole files or none. They are the user's
//! conversations: mode 0600 in folders of mode 0700. A file that is damaged is removed and counted, and its prompt
//! computed anew; nothing is used before all checksums are known to be right.

mod folder;
mod format;
pub mod kept;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use engine::backend::{Backend, Snapshot};
use store::shown;

use self::folder::Folder;
use self::writer::{Counts, Shared};
use super::owner::{Domain, Salt};

/// Takes lines of the log.
type Log = Box<dyn Fn(&str) + Send + Sync>;

/// The same error with the path that it is about: the system's words alone do not say which.
fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", shown::path(path)))
}

/// Where snapshots are kept, and how many.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The folder; it is made if it is not there. Every model has a folder of its own in it.
    pub folder: PathBuf,
    /// What must be equal for a snapshot to mean the same: model, arithmetic, precision of the state.
    pub fingerprint: u64,
    /// What `flashmoe cache` calls the model.
    pub model: String,
    /// Most bytes of all files of all models.
    pub bytes_max: u64,
    /// Most bytes written in a second.
    pub bytes_per_second: u64,
    /// Most bytes written in a day, restarts included.
    pub bytes_per_day: u64,
    /// Bytes of the file system that stay free; `None` for a tenth of it, 16 GiB at the most.
    pub bytes_free: Option<u64>,
}

impl DiskOptions {
    /// A folder without other limits than its size.
    pub fn new(folder: PathBuf, fingerprint: u64, bytes_max: u64) -> Self {
        Self {
            folder,
            fingerprint,
            model: String::new(),
            bytes_max,
            bytes_per_second: u64::MAX,
            bytes_per_day: u64::MAX,
            bytes_free: Some(0),
        }
    }

    /// Bytes that stay free on a file system of `whole` bytes.
    fn reserve(&self, whole: u64) -> u64 {
        self.bytes_free.unwrap_or((whole / 10).min(16 << 30))
    }
}

/// The engine's end of the disk tier.
pub(super) struct DiskTier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pub(super) restored: u64,
}

/// Numbers of the moment.
pub(super) struct DiskStatus {
    pub(super) bytes: u64,
    pub(super) rejected: u64,
    pub(super) counts: Counts,
}

impl DiskTier {
    /// Opens the folder, reads the headers in it, and starts the thread that writes.
    ///
    /// # Errors
    /// The folder cannot be made, is open to others, is used by another server, or cannot be read.
    pub(super) fn open(options: DiskOptions, log: Log) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(Folder::open(options)?, log));
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("keep-prompts".to_owned());
        let thread = Some(thread.spawn(move || writer.run())?);
        Ok(Self { shared, thread, restored: 0 })
    }

    /// The salt of the folder's domains.
    pub(super) fn salt(&self) -> Salt {
        self.shared.folder().salt.clone()
    }

    /// The longest snapshot of `domain` that `prompt` can go on from, if it saves more than `more_than` tokens.
    pub(super) fn find(&self, domain: Domain, prompt: &[u32], more_than: usize) -> Option<usize> {
        self.shared.folder().find(domain, prompt, more_than)
    }

    /// Reads the snapshot of the first `length` tokens of `prompt`, for which the backend has room. `None` when it
    /// was damaged: it is gone then.
    pub(super) fn load(
        &mut self,
        domain: Domain,
        prompt: &[u32],
        length: usize,
        backend: &mut dyn Backend,
    ) -> Option<Snapshot> {
        let mut pieces = self.shared.folder().pieces(domain, &prompt[..length])?;
        let read = backend.read_snapshot(length, &mut pieces);
        match read.and_then(|snapshot| pieces.finish().map(|()| snapshot)) {
            Ok(snapshot) => {
                self.restored += 1;
                Some(snapshot)
            }
            Err(_) => {
                self.shared.folder().reject(pieces.last());
                None
            }
        }
    }

    /// Takes a snapshot to be written when the engine has nothing to do; false when too many wait.
    pub(super) fn offer(&self, domain: Domain, tokens: &[u32], snapshot: &Snapshot) -> bool {
        self.shared.offer(domain, tokens, snapshot)
    }

    /// Says whether the engine has something to do: writing waits meanwhile.
    pub(super) fn set_busy(&self, busy: bool) {
        self.shared.set_busy(busy);
    }

    /// Gives back the memory of snapshots that wait or are being written; true when there was some.
    pub(super) fn release(&self) -> bool {
        self.shared.release()
    }

    /// Domain and tokens of snapshots that were let go unwritten since the last call.
    pub(super) fn given_back(&self) -> Vec<(Domain, Vec<u32>)> {
        self.shared.given_back()
    }

    /// From now on nothing waits for the engine or the pace: the server ends.
    pub(super) fn hurry(&self) {
        self.shared.hurry();
    }

    /// After [`DiskTier::hurry`]: has a snapshot written, waiting until the queue takes it.
    pub(super) fn push(&self, domain: Domain, tokens: &[u32], snapshot: &Snapshot) {
        self.shared.push(domain, tokens, snapshot);
    }

    /// Waits until all is written.
    pub(super) fn finish(mut self) -> DiskStatus {
        self.shared.close();
        self.join();
        self.status()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has reported itself; what it wrote is whole or not there.
            let _ = thread.join();
        }
    }

    pub(super) fn status(&self) -> DiskStatus {
        let folder = self.shared.folder();
        let (bytes, rejected) = (folder.bytes(), folder.rejected);
        drop(folder);
        DiskStatus { bytes, rejected, counts: self.shared.counts() }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.shared.close();
        self.join();
    }
}

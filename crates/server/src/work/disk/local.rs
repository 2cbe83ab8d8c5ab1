//! The folder of one server as a shelf of its writer.

use std::io;
use std::sync::{Mutex, MutexGuard};

use engine::backend::Snapshot;

use super::super::lock::hold;
use super::super::owner::Domain;
use super::folder::Folder;
use super::format::{self, Gate};
use super::writer::{Refused, Shelf};

/// The engine's thread looks things up while the other writes.
pub(super) struct Local {
    /// A panic can leave a file uncounted, or counted and gone: every file is checked before it is used.
    folder: Mutex<Folder>,
    rate: u64,
}

impl Local {
    pub(super) fn new(folder: Folder) -> Self {
        let rate = folder.options.bytes_per_second;
        Self { folder: Mutex::new(folder), rate }
    }

    pub(super) fn folder(&self) -> MutexGuard<'_, Folder> {
        hold(&self.folder)
    }
}

impl Shelf for Local {
    const WAITS: bool = true;

    fn rate(&self) -> u64 {
        self.rate
    }

    fn has(&self, domain: Domain, tokens: &[u32]) -> bool {
        self.folder().has(domain, tokens)
    }

    /// Writes one snapshot and what of its pages is missing.
    fn write(
        &self,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
        gate: &mut Gate<'_>,
    ) -> io::Result<Result<u64, Refused>> {
        let mut folder = self.folder();
        let order = match folder.order(domain, tokens, snapshot)? {
            Ok(order) => order,
            Err(refused) => return Ok(Err(refused)),
        };
        let fingerprint = folder.options.fingerprint;
        let paths = order.missing.iter().map(|&index| folder.order_page(&order, index));
        let paths: Vec<_> = paths.collect();
        drop(folder);
        let written = (|| {
            let keys = &order.pages;
            for (&index, path) in order.missing.iter().zip(&paths) {
                let parent = index.checked_sub(1).map_or(domain.0, |before| keys[before]);
                format::write_page(path, fingerprint, parent, tokens, index, snapshot, gate)?;
            }
            format::write_snapshot(&order.path, fingerprint, domain, tokens, snapshot, gate)
        })();
        // The engine's thread may ask for the folder: it is not held while the disk syncs.
        let written = written.and_then(|()| format::sync_folder(&order.path));
        let mut folder = self.folder();
        if let Err(error) = written {
            folder.give_up(&order);
            return Err(error);
        }
        folder.commit(domain, tokens, order).map(Ok)
    }

    fn advice(refused: Refused) -> &'static str {
        match refused {
            Refused::Full => {
                "a prompt is not kept: it does not fit the folder (raise --cache-disk-size, or `flashmoe cache purge`)"
            }
            Refused::Daily => {
                "prompts are not kept any more today: --cache-disk-daily is written (drives wear)"
            }
            Refused::NoSpace => {
                "prompts are not kept: the file system has no more than the reserve free (--cache-disk-reserve)"
            }
        }
    }
}

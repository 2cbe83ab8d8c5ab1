//! One blob on its way to the cache: a prefix of the file that grows, its checksum, and the lock that keeps other
//! programs from writing the same.
//!
//! The names are the hub's own: `blobs/ID.incomplete` is a prefix of the file that any tool may go on with, `blobs/ID`
//! the whole. A writer holds `.locks/models--OWNER--NAME/ID.lock`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use store::io::platform::{Links, open_no_link, open_regular};

use crate::error::HubError;
use crate::repository::{BlobId, RepositoryFile};
use crate::unfinished::INCOMPLETE;

/// The folders of one repository in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// `models--OWNER--NAME`
    pub(crate) repository: PathBuf,
    /// `.locks/models--OWNER--NAME`
    pub(crate) locks: PathBuf,
}

impl Places {
    pub(crate) fn blob(&self, blob: &BlobId) -> PathBuf {
        self.repository.join("blobs").join(blob.digits())
    }

    pub(crate) fn incomplete(&self, blob: &BlobId) -> PathBuf {
        self.repository.join("blobs").join(format!("{}{INCOMPLETE}", blob.digits()))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository.join("snapshots").join(commit)
    }

    /// Whether some program holds the lock of a blob.
    pub(crate) fn are_written(&self) -> bool {
        let locks = std::fs::read_dir(&self.locks).into_iter().flatten().flatten();
        locks.filter(|entry| entry.path().extension().is_some_and(|it| it == "lock")).any(|entry| {
            let lock = open_regular(&entry.path(), Links::Refused);
            lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
        })
    }

    /// Whether the blob of `file` is there in its full size.
    pub(crate) fn has(&self, file: &RepositoryFile) -> bool {
        let found = self.blob(&file.blob).symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() == file.size)
    }

    /// Bytes of `file` that are there, whole or begun.
    pub(crate) fn present(&self, file: &RepositoryFile) -> u64 {
        if self.has(file) {
            return file.size;
        }
        let found = self.incomplete(&file.blob).symlink_metadata();
        found.map_or(0, |found| if found.len() <= file.size { found.len() } else { 0 })
    }
}

enum Checksum {
    Sha256(Sha256),
    Git(sha1::Sha1),
}

impl Checksum {
    fn new(blob: &BlobId, size: u64) -> Self {
        match blob {
            BlobId::Sha256(_) => Self::Sha256(Sha256::new()),
            BlobId::Git(_) => {
                Self::Git(sha1::Sha1::new().chain_update(format!("blob {size}\0").as_bytes()))
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => sha1::Digest::update(hasher, bytes),
        }
    }

    fn digits(self) -> String {
        let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hasher) => hexadecimal(&hasher.finalize()),
            Self::Git(hasher) => hexadecimal(&sha1::Digest::finalize(hasher)),
        }
    }
}

/// A blob that is being written; its lock is held until this is dropped.
pub(crate) struct BlobWriter {
    places: Places,
    wanted: RepositoryFile,
    file: File,
    checksum: Checksum,
    written: u64,
    _lock: File,
}

/// What came of trying to begin.
pub(crate) enum Begun {
    /// The blob can be written.
    Writer(Box<BlobWriter>),
    /// Another program writes it.
    Busy,
    /// It is there, whole.
    There,
}

impl BlobWriter {
    /// Begins to write `wanted`, or goes on where an earlier attempt stopped: its bytes are read for the checksum.
    pub(crate) fn begin(places: &Places, wanted: &RepositoryFile) -> Result<Begun, HubError> {
        for folder in [&places.locks, &places.repository.join("blobs")] {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| HubError::io(folder, "create", error))?;
        }
        let name = places.locks.join(format!("{}.lock", wanted.blob.digits()));
        let lock = open(&name, false)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Begun::Busy),
            Err(TryLockError::Error(error)) => return Err(HubError::io(&name, "lock", error)),
        }
        if places.has(wanted) {
            return Ok(Begun::There);
        }
        let path = places.incomplete(&wanted.blob);
        let mut file = open(&path, true)?;
        let fail = |action| {
            let path = &path;
            move |error| HubError::io(path, action, error)
        };
        let mut checksum = Checksum::new(&wanted.blob, wanted.size);
        let length = file.metadata().map_err(fail("examine"))?.len();
        let mut written = 0;
        if length > wanted.size {
            file.set_len(0).map_err(fail("shorten"))?;
        } else {
            let mut piece = vec![0; 1 << 20];
            loop {
                match file.read(&mut piece).map_err(fail("read"))? {
                    0 => break,
                    count => {
                        checksum.update(&piece[..count]);
                        written += count as u64;
                    }
                }
            }
        }
        let places = places.clone();
        let wanted = wanted.clone();
        Ok(Begun::Writer(Box::new(Self { places, wanted, file, checksum, written, _lock: lock })))
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| self.failed("write", error))?;
        self.checksum.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Compares the checksum and gives the blob its name. Bytes with another checksum are removed.
    pub(crate) fn finish(self) -> Result<(), HubError> {
        let path = self.places.incomplete(&self.wanted.blob);
        let fail = |action| {
            let path = &path;
            move |error| HubError::io(path, action, error)
        };
        let found = self.checksum.digits();
        let expected = self.wanted.blob.digits();
        if found != expected {
            std::fs::remove_file(&path).map_err(fail("remove"))?;
            let file = store::shown::shown(&self.wanted.path).to_string();
            return Err(HubError::Checksum { file, expected: expected.to_owned(), found });
        }
        self.file.sync_all().map_err(fail("write"))?;
        let blob = self.places.blob(&self.wanted.blob);
        std::fs::rename(&path, &blob).map_err(|error| HubError::io(&blob, "create", error))
    }

    fn failed(&self, action: &'static str, error: std::io::Error) -> HubError {
        HubError::io(&self.places.incomplete(&self.wanted.blob), action, error)
    }
}

/// Opens a file of the cache, made if it is not there. It follows no link and does not wait at a pipe.
fn open(path: &Path, appending: bool) -> Result<File, HubError> {
    let mut options = OpenOptions::new();
    options.read(true).create(true);
    if appending {
        options.append(true);
    } else {
        options.write(true);
    }
    let file = open_no_link(&mut options, path);
    let file = file.map_err(|error| HubError::io(path, "open", error))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(HubError::io(path, "open", std::io::Error::other("it is no file")));
    }
    Ok(file)
}

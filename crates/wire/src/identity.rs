//! What a process shows of itself: a folder with a key and a certificate, made once on each host; and the certificates
//! of others that it trusts.

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use store::io::platform::{Access, Links, access, read_regular};

use crate::{WireError, tls};

/// Longest file of certificates or of a key.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The file that others get.
const CERTIFICATE: &str = "certificate.pem";
/// The file that stays.
const KEY: &str = "key.pem";

/// A folder with a key and its certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    folder: PathBuf,
}

impl Identity {
    /// The identity in a folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file that the other side gets a copy of.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join(CERTIFICATE)
    }

    fn key(&self) -> PathBuf {
        self.folder.join(KEY)
    }

    /// Whether it was made.
    pub fn exists(&self) -> bool {
        self.certificate().exists() || self.key().exists()
    }

    /// Makes it: a new key, which its owner alone may read, and its certificate. What is there is not replaced.
    ///
    /// # Errors
    /// There is one, or a file cannot be written.
    pub fn make(&self) -> Result<(), WireError> {
        let made = store::io::platform::create_private_folder(&self.folder);
        made.map_err(|error| WireError::file(&self.folder, error))?;
        let (certificate, key) = tls::make()?;
        for (file, text) in [(self.key(), key), (self.certificate(), certificate)] {
            let mut options = std::fs::OpenOptions::new();
            let options = store::io::platform::private(options.write(true).create_new(true));
            let opened = store::io::platform::open_no_link(options, &file);
            let written = opened.and_then(|mut it| {
                it.write_all(text.as_bytes())?;
                it.sync_all()
            });
            written.map_err(|error| WireError::file(&file, error))?;
        }
        Ok(())
    }

    /// The sum of its certificate, for people to compare.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn fingerprint(&self) -> Result<String, WireError> {
        let certificates = tls::certificates(&self.certificate(), &read(&self.certificate())?)?;
        let sum = Sha256::digest(&certificates[0]);
        Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether others than the owner may read the key.
    pub fn is_readable_by_others(&self) -> bool {
        matches!(access(&self.key()), Ok(Access::Others))
    }

    #[cfg(not(target_os = "macos"))]
    pub(crate) fn texts(&self) -> Result<[(PathBuf, Vec<u8>); 2], WireError> {
        let of = |file: PathBuf| read(&file).map(|text| (file, text));
        Ok([of(self.certificate())?, of(self.key())?])
    }
}

/// Files of certificates that are trusted.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// The files, each with one certificate or several.
    pub files: Vec<PathBuf>,
}

#[cfg(not(target_os = "macos"))]
impl Trusted {
    pub(crate) fn texts(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, WireError> {
        self.files.iter().map(|file| read(file).map(|text| (file.clone(), text))).collect()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, WireError> {
    read_regular(file, Links::Followed, FILE_BYTES_MAX)
        .map_err(|error| WireError::file(file, error))
}

//! Whose requests may go on from each other's prompts.
//!
//! An answer says how many tokens of its prompt were not computed again, so a client that shares kept prompts with
//! others can find out what they asked, token by token. Therefore each API key has kept prompts of its own. In memory
//! and on disk a key stands as its [`Domain`]: a hash with a salt, from which the key cannot be had.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use store::io::platform::{Links, open_no_link, private, read_regular};

/// Whose request it is: the holder of a key, or everybody where kept prompts are shared.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Owner(Option<Arc<str>>);

impl Owner {
    /// Everybody: servers without keys, and those that share kept prompts between keys.
    pub fn everybody() -> Self {
        Self(None)
    }

    /// The holders of an API key.
    pub fn of_key(key: &str) -> Self {
        Self(Some(key.into()))
    }
}

impl fmt::Debug for Owner {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Owner(a key)" } else { "Owner(everybody)" })
    }
}

/// An owner as the prefix cache knows it. Prompts of different domains have no beginning in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Domain(pub(super) [u64; 2]);

impl Domain {
    /// That of everybody.
    pub(super) const EVERYBODY: Self = Self([0; 2]);
}

/// Goes into every hash of a key.
#[derive(Clone, Debug)]
pub(super) struct Salt([u8; SALT_BYTES]);

const SALT_BYTES: usize = 32;
/// More than any salt has: a longer file is damaged.
const NOTE_BYTES_MAX: u64 = 4096;
/// How often, and how long apart, a common salt is looked at that is not whole.
const SALT_ATTEMPTS: usize = 20;
const SALT_PATIENCE: Duration = Duration::from_millis(100);

impl Salt {
    /// For a worker whose kept prompts end with it.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub(super) fn random() -> io::Result<Self> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(io::Error::other)?;
        Ok(Self(salt))
    }

    /// That of a folder: the one in the file at `path`, or a new one where there is none. The folder's lock must be
    /// held. Second: whether a damaged one was replaced, so that nothing of any key is found again.
    ///
    /// # Errors
    /// The file can be neither read nor written.
    pub(super) fn at(path: &Path) -> io::Result<(Self, bool)> {
        let found = match read_regular(path, Links::Refused, NOTE_BYTES_MAX) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let damaged = match found.map(<[u8; SALT_BYTES]>::try_from) {
            Some(Ok(salt)) => return Ok((Self(salt), false)),
            Some(Err(_)) => true,
            None => false,
        };
        let salt = Self::random()?;
        let aside = path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file =
            open_no_link(private(options.write(true).create(true).truncate(true)), &aside)?;
        file.write_all(&salt.0)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        Ok((salt, damaged))
    }

    /// That of a folder which several servers share: the one in the file at `path`, or a new one where there is none.
    /// Whichever server makes the file first wins; the others read it.
    ///
    /// # Errors
    /// The file can be neither read nor written, or is damaged: servers that run have the salt that was in it.
    pub(super) fn common(path: &Path) -> io::Result<Self> {
        let salt = Self::random()?;
        let mut options = OpenOptions::new();
        match open_no_link(private(options.write(true).create_new(true)), path) {
            Ok(mut file) => {
                file.write_all(&salt.0)?;
                file.sync_all()?;
                return Ok(salt);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // Another server may be writing it just now.
        for _ in 0..SALT_ATTEMPTS {
            let found = read_regular(path, Links::Refused, NOTE_BYTES_MAX)?;
            if let Ok(salt) = <[u8; SALT_BYTES]>::try_from(found) {
                return Ok(Self(salt));
            }
            std::thread::sleep(SALT_PATIENCE);
        }
        let reason = "the salt of the shared prompts is damaged: stop the servers that share the \
                      folder, remove the file, and start them again";
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    }

    /// The domain of an owner.
    pub(super) fn domain(&self, owner: &Owner) -> Domain {
        let Some(key) = &owner.0 else { return Domain::EVERYBODY };
        let digest = Sha256::new().chain_update(self.0).chain_update(key.as_bytes()).finalize();
        let (words, _) = digest.as_chunks::<8>();
        Domain([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_of_one_key_and_one_salt_and_shows_neither() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("salt");
        let (salt, replaced) = Salt::at(&path).unwrap();
        assert!(!replaced);
        let of = |key: &str| salt.domain(&Owner::of_key(key));
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
        assert_ne!(of(""), Domain::EVERYBODY);
        assert_eq!(salt.domain(&Owner::everybody()), Domain::EVERYBODY);
        let (again, _) = Salt::at(&path).unwrap();
        assert_eq!(again.domain(&Owner::of_key("a")), of("a"), "after a restart");
        let other = Salt::random().unwrap();
        assert_ne!(other.domain(&Owner::of_key("a")), of("a"));
        fs::write(&path, "short").unwrap();
        let (new, replaced) = Salt::at(&path).unwrap();
        assert!(replaced && new.domain(&Owner::of_key("a")) != of("a"));
        let common = folder.path().join("common");
        let salts = [Salt::common(&common).unwrap(), Salt::common(&common).unwrap()];
        assert_eq!(salts[0].domain(&Owner::of_key("a")), salts[1].domain(&Owner::of_key("a")));
        fs::write(&common, "short").unwrap();
        assert_eq!(Salt::common(&common).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(!format!("{:?}", Owner::of_key("sesame")).contains("sesame"));
    }
}

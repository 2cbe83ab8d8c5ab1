//! A small file written whole or not at all, while other threads, processes and hosts may write the same one.

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;

use super::platform::{open_no_link, private};

/// Who may read a file that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner.
    Owner,
    /// Whom the user's settings of the system let.
    Others,
}

/// Writes `bytes` to the file `path`, renamed into place: a link that lies there is replaced and not written through.
///
/// Until it is whole the file has a name that no other writer has. A process number would not do: two threads share it,
/// and so may two containers.
///
/// # Errors
/// The folder cannot be written to. What was at `path` stays.
pub fn replace(path: &Path, readers: Readers, bytes: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    // Keys of the system's randomness; the hasher of the standard library is seeded with them.
    aside.push(format!(".{:016x}.new", RandomState::new().hash_one(())));
    let aside = Path::new(&aside);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if readers == Readers::Owner {
        private(&mut options);
    }
    let written = open_no_link(&mut options, aside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(aside, path));
    if written.is_err() {
        // The first failure is the one to report.
        let _ = fs::remove_file(aside);
    }
    written
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn writers_at_once_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        let contents = [b'a', b'b', b'c', b'd'].map(|byte| vec![byte; 4096]);
        std::thread::scope(|scope| {
            for content in &contents {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..100 {
                        replace(path, Readers::Owner, content).unwrap();
                        assert_eq!(fs::read(path).unwrap().len(), content.len());
                    }
                });
            }
        });
        assert!(contents.contains(&fs::read(&path).unwrap()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        // A folder cannot be replaced by a file.
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, Readers::Others, b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(path.is_dir());
    }
}

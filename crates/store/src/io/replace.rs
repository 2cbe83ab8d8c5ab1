//! A small file written whole or not at all, while other threads, processes and hosts may write the same one.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::platform::{open_no_link, private};

/// How names of files end that are not whole yet.
const ENDING: &str = ".new";
/// Longer than a living writer takes from making a file to renaming it.
const LEFT: Duration = Duration::from_secs(60);

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
/// and so may two containers. What a killed writer left is removed by a later one.
///
/// # Errors
/// The folder cannot be written to. What was at `path` stays.
pub fn replace(path: &Path, readers: Readers, bytes: &[u8]) -> io::Result<()> {
    remove_left(path);
    let mut aside = path.as_os_str().to_owned();
    // Keys of the system's randomness; the hasher of the standard library is seeded with them.
    aside.push(format!(".{:016x}{ENDING}", RandomState::new().hash_one(())));
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

/// Removes what writers of `path` left that were killed before they could rename it.
fn remove_left(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return;
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_ours = |found: &str| {
        let middle = found.strip_prefix(name).and_then(|rest| rest.strip_suffix(ENDING));
        let digits = middle.and_then(|middle| middle.strip_prefix('.'));
        digits.is_some_and(|digits| {
            digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_old = || {
            let changed = entry.metadata().ok().and_then(|found| found.modified().ok());
            changed.and_then(|when| when.elapsed().ok()).is_some_and(|age| age > LEFT)
        };
        if entry.file_name().to_str().is_some_and(is_ours) && is_old() {
            let _next_time = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * LEFT;
        let make = |name: &str, old_enough: bool| {
            let path = folder.path().join(name);
            let file = fs::File::create(&path).unwrap();
            if old_enough {
                file.set_modified(old).unwrap();
            }
            path
        };
        let left = make("note.0123456789abcdef.new", true);
        let others = [
            make("note.fedcba9876543210.new", false),
            make("notes.0123456789abcdef.new", true),
            make("note.new", true),
            make("note.0123456789abcdeg.new", true),
        ];
        replace(&folder.path().join("note"), Readers::Owner, b"x").unwrap();
        assert!(!left.exists());
        assert!(others.iter().all(|other| other.exists()));
    }

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

//! Keeping a shared folder within its limit: every server that writes looks it through from time to time.
//!
//! Several may do so at once: each removes what was used longest ago by the files' times, so they remove the same;
//! what is gone already is passed over. A page that goes before a snapshot that needs it makes that one a miss. Only
//! names that servers make are touched, whatever else lies there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::at;
use super::super::folder::is_kept;
use super::super::format::{ASIDE_SUFFIX, PAGE_SUFFIX, key_of};

/// A file that no server can be writing any more.
const ASIDE_AGE: Duration = Duration::from_secs(3600);
/// Times further ahead than clocks of hosts differ.
const AHEAD: Duration = Duration::from_secs(3600);
/// Of the limit, what a sweep that has to remove something leaves free, so that not every write needs one.
const SLACK_PART: u64 = 16;

/// An object.
struct Found {
    used: SystemTime,
    /// Snapshots go before pages of the same age.
    is_page: bool,
    path: PathBuf,
    bytes: u64,
}

/// Looks through all models of a folder, removes what was used longest ago until `most` bytes are left, and gives the
/// bytes that there are.
pub(super) fn sweep(folder: &Path, most: u64) -> io::Result<u64> {
    let now = SystemTime::now();
    let mut found = Vec::new();
    let named = |path: &PathBuf, digits: usize| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|it| it.len() == digits && it.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let models = fs::read_dir(folder).map_err(at(folder))?;
    let models = models.flatten().map(|entry| entry.path()).filter(|path| named(path, 16));
    let shards = models.flat_map(|model| inside(&model)).filter(|path| named(path, 2));
    let places = shards.flat_map(|shard| inside(&shard)).filter(|path| named(path, 32));
    for path in places.flat_map(|place| inside(&place)).filter(|path| is_kept(path)) {
        // What is gone meanwhile is gone.
        let Ok(file) = fs::symlink_metadata(&path) else { continue };
        let used = file.modified().unwrap_or(UNIX_EPOCH);
        let aside = path.extension().is_some_and(|suffix| suffix == ASIDE_SUFFIX);
        if aside && now.duration_since(used).is_ok_and(|age| age >= ASIDE_AGE) {
            remove(&path);
            continue;
        }
        // A clock that was wrong must not keep a file for ever.
        let used = if used > now + AHEAD { UNIX_EPOCH } else { used };
        let is_page = key_of(&path, PAGE_SUFFIX).is_some();
        found.push(Found { used, is_page, path, bytes: file.len() });
    }
    let mut bytes: u64 = found.iter().map(|object| object.bytes).sum();
    if bytes <= most {
        return Ok(bytes);
    }
    let target = most - most / SLACK_PART;
    found.sort_by_key(|object| (object.used, object.is_page));
    for object in found {
        if bytes <= target {
            break;
        }
        remove(&object.path);
        bytes -= object.bytes;
    }
    Ok(bytes)
}

fn inside(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Removes an object, and its place when that is empty.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

//! A folder of kept prompts that several servers use, on a network file system or not.
//!
//! `FOLDER/FINGERPRINT/xx/KEY/` belongs to the page of that key: the page itself (`KEY.page`) and every snapshot whose
//! last full page it is (`TAIL-KEY.prefix`, by its further tokens); snapshots shorter than a page lie under their
//! domain's key. So what a prompt can go on from is found by its own hashes, in the folder as it is now: no index, no
//! lock, and no server needs to know of another. Objects never change. They are written under a name of their own,
//! synced, closed and renamed, and a reader compares its fingerprint, its tokens and its checksum before anything
//! is used; what is gone, stale or cut short is a miss. The fingerprint is of the model's contents, because
//! times of files differ between hosts.

mod reader;
mod sweep;

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use engine::backend::{PAGE_TOKENS, Snapshot};
use store::io::platform::create_private_folder;

pub(super) use self::reader::Reader;
use self::reader::{Source, Taken};
use self::sweep::sweep;
use super::super::lock::hold;
use super::super::owner::{Domain, Salt};
use super::folder::ABOUT;
use super::format::{
    self, Gate, Key, PAGE_SUFFIX, Pieces, SNAPSHOT_SUFFIX, There, file_name, key_of,
};
use super::writer::{Refused, Shelf};
use super::{at, followed, private};

/// In the folder above, for all models: keys have one domain everywhere.
const SALT: &str = "salt";
/// The folder is looked through again after so long, or after this part of its limit was written.
const SWEEP_TIME: Duration = Duration::from_secs(600);
const SWEEP_PART: u64 = 16;
/// An object's time of use is renewed when it is this old: a write over the network.
const TOUCH_AGE: Duration = Duration::from_secs(3600);

/// A folder that several servers share, and how much of it may be used.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// What must be equal for a snapshot to mean the same on every host: contents of the model, arithmetic, precision.
    pub fingerprint: u64,
    /// For people who look at the folder.
    pub model: String,
    /// Most bytes of all objects of all models.
    pub bytes_max: u64,
    /// Most bytes written in a second.
    pub bytes_per_second: u64,
}

impl SharedOptions {
    /// A folder without other limits than its size.
    pub fn new(folder: PathBuf, fingerprint: u64, bytes_max: u64) -> Self {
        Self { folder, fingerprint, model: String::new(), bytes_max, bytes_per_second: u64::MAX }
    }
}

/// What is known of the bytes in the folder, others' included.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// When it was last looked through, and what was found.
    swept: Option<Instant>,
    bytes: u64,
    /// Written by this server since then.
    written: u64,
}

/// A shared folder.
pub(super) struct SharedFolder {
    options: SharedOptions,
    pub(super) salt: Salt,
    root: PathBuf,
    /// Only ever too small by what others have written meanwhile.
    usage: Mutex<Usage>,
    rejected: AtomicU64,
    failed: AtomicU64,
}

impl SharedFolder {
    /// Opens a shared folder, or makes it.
    ///
    /// # Errors
    /// It cannot be made or read, is open to others, or its salt is damaged.
    pub(super) fn open(options: SharedOptions) -> io::Result<Self> {
        let root = options.folder.join(format!("{:016x}", options.fingerprint));
        make(&root).map_err(at(&root))?;
        for path in [&options.folder, &root] {
            private(&followed(path)?, "--cache-shared")?;
        }
        let salt = options.folder.join(SALT);
        let salt = Salt::common(&salt).map_err(at(&salt))?;
        let about = root.join(ABOUT);
        match format::open_to_write(&about, There::Refuse) {
            Ok(mut file) => file.write_all(options.model.as_bytes()).map_err(at(&about))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(at(&about)(error)),
        }
        let (usage, rejected, failed) = Default::default();
        Ok(Self { options, salt, root, usage, rejected, failed })
    }

    /// Where the page of a key lies, and the snapshots that end after it.
    fn place(&self, key: Key) -> PathBuf {
        let name = format!("{:016x}{:016x}", key[0], key[1]);
        self.root.join(&name[..2]).join(name)
    }

    fn page(&self, key: Key) -> PathBuf {
        self.place(key).join(file_name(key, PAGE_SUFFIX))
    }

    fn snapshot(&self, parent: Key, tail: usize, key: Key) -> PathBuf {
        self.place(parent).join(format!("{tail:03}-{}", file_name(key, SNAPSHOT_SUFFIX)))
    }

    /// Tokens of the longest snapshot of `domain` that `prompt` can go on from, if it saves more than `more_than`.
    fn longest(&self, domain: Domain, prompt: &[u32], more_than: usize) -> Option<usize> {
        let fingerprint = self.options.fingerprint;
        // At least one token is left to be computed.
        let most = prompt.len().checked_sub(1)?;
        let (pages, _) = format::keys(fingerprint, domain, &prompt[..most]);
        // A snapshot needs all pages before it: beyond the first that is not there is nothing.
        let there = pages.partition_point(|&key| self.page(key).exists());
        for count in (0..=there).rev() {
            let (parent, base) =
                (count.checked_sub(1).map_or(domain.0, |last| pages[last]), count * PAGE_TOKENS);
            if base + PAGE_TOKENS <= more_than + 1 {
                return None;
            }
            let fits = |(tail, key): &(usize, Key)| {
                let length = base + tail;
                (more_than + 1..=most).contains(&length)
                    && format::whole(fingerprint, parent, &prompt[base..length]) == *key
            };
            let found = self.snapshots(parent).into_iter().filter(fits);
            if let Some((tail, _)) = found.max() {
                return Some(base + tail);
            }
        }
        None
    }

    /// The snapshots that end after a page: their tokens after it, and their keys.
    fn snapshots(&self, parent: Key) -> Vec<(usize, Key)> {
        let entries = match fs::read_dir(self.place(parent)) {
            Ok(entries) => entries,
            Err(error) => {
                self.note(&error);
                return Vec::new();
            }
        };
        entries.flatten().filter_map(|entry| tail_and_key(&entry.path())).collect()
    }

    /// The files of the snapshot of `tokens`, as one stream.
    fn pieces(&self, domain: Domain, tokens: &[u32]) -> Pieces {
        let fingerprint = self.options.fingerprint;
        let (pages, key) = format::keys(fingerprint, domain, tokens);
        let parent = pages.last().copied().unwrap_or(domain.0);
        let rest = self.snapshot(parent, tokens.len() % PAGE_TOKENS, key);
        touch(&rest);
        let pages = pages.into_iter().map(|key| (self.page(key), key));
        Pieces::new(fingerprint, domain, tokens, pages, rest)
    }

    /// What was found wrong with a file: a damaged one is removed, so that it is written again; one that is gone or
    /// cannot be read was a miss.
    fn refuse(&self, path: &Path, error: &io::Error) {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        if matches!(error.kind(), InvalidData | UnexpectedEof) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            let _ = fs::remove_file(path);
        } else {
            self.note(error);
        }
    }

    /// Counts a failure of the file system; it was a miss.
    pub(super) fn note(&self, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Files that were damaged or foreign.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Times that the file system failed otherwise; each was a miss.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Bytes in the folder, as far as this server knows.
    pub(super) fn bytes(&self) -> u64 {
        let usage = hold(&self.usage);
        usage.bytes + usage.written
    }

    /// Makes room for `more` bytes; false when there is none. Every server removes what was used longest ago.
    fn make_room(&self, more: u64) -> io::Result<bool> {
        let most = self.options.bytes_max;
        if more > most {
            return Ok(false);
        }
        let Usage { swept, bytes, written } = *hold(&self.usage);
        let due = swept.is_none_or(|swept| swept.elapsed() >= SWEEP_TIME)
            || written >= most / SWEEP_PART
            || bytes + written + more > most;
        if !due {
            return Ok(true);
        }
        let bytes = sweep(&self.options.folder, most - more)?;
        *hold(&self.usage) = Usage { swept: Some(Instant::now()), bytes, written: 0 };
        Ok(bytes + more <= most)
    }
}

impl Source for SharedFolder {
    fn find(&self, domain: Domain, prompt: &[u32], more_than: usize) -> Option<usize> {
        self.longest(domain, prompt, more_than)
    }

    fn read(
        &self,
        domain: Domain,
        tokens: &[u32],
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<Taken>,
    ) -> io::Result<()> {
        let mut pieces = self.pieces(domain, tokens);
        let given = loop {
            match take(&mut pieces) {
                Ok(Taken::Part) => {}
                Ok(Taken::Nothing) => break pieces.finish(),
                Ok(Taken::GivenUp) => return Ok(()),
                Err(error) => break Err(error),
            }
        };
        given.inspect_err(|error| self.refuse(pieces.last(), error))
    }
}

impl Shelf for SharedFolder {
    const WAITS: bool = false;

    fn rate(&self) -> u64 {
        self.options.bytes_per_second
    }

    fn has(&self, _domain: Domain, _tokens: &[u32]) -> bool {
        false
    }

    fn write(
        &self,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
        gate: &mut Gate<'_>,
    ) -> io::Result<Result<u64, Refused>> {
        let fingerprint = self.options.fingerprint;
        let (keys, key) = format::keys(fingerprint, domain, tokens);
        let (bytes, page_bytes) = format::file_sizes(tokens.len(), snapshot);
        let parent = keys.last().copied().unwrap_or(domain.0);
        let path = self.snapshot(parent, tokens.len() % PAGE_TOKENS, key);
        let missing = |&index: &usize| !is_there(&self.page(keys[index]), page_bytes);
        let missing: Vec<usize> = (0..keys.len()).filter(missing).collect();
        let whole = is_there(&path, bytes);
        let more = if whole { 0 } else { bytes } + missing.len() as u64 * page_bytes;
        if more == 0 {
            return Ok(Ok(0));
        }
        if !self.make_room(more)? {
            return Ok(Err(Refused::Full));
        }
        for &index in &missing {
            let path = self.page(keys[index]);
            make(&self.place(keys[index]))?;
            let parent = index.checked_sub(1).map_or(domain.0, |before| keys[before]);
            format::write_page(&path, fingerprint, parent, tokens, index, snapshot, gate)?;
        }
        if !whole {
            make(&self.place(parent))?;
            format::write_snapshot(&path, fingerprint, domain, tokens, snapshot, gate)?;
        }
        hold(&self.usage).written += more;
        Ok(Ok(more))
    }

    fn advice(refused: Refused) -> &'static str {
        match refused {
            Refused::Full | Refused::Daily => {
                "a prompt is not shared: it does not fit the folder (raise --cache-shared-size)"
            }
            Refused::NoSpace => "prompts are not shared: the file system of --cache-shared is full",
        }
    }
}

/// What the name of a snapshot tells.
fn tail_and_key(path: &Path) -> Option<(usize, Key)> {
    let (tail, key) = path.file_name()?.to_str()?.split_once('-')?;
    let tail = tail.parse().ok().filter(|tail| *tail < PAGE_TOKENS)?;
    Some((tail, key_of(Path::new(key), SNAPSHOT_SUFFIX)?))
}

fn make(folder: &Path) -> io::Result<()> {
    create_private_folder(folder)
}

/// Whether a whole object lies there; one of another length is written again. It counts as used.
fn is_there(path: &Path, bytes: u64) -> bool {
    let there = fs::metadata(path).is_ok_and(|file| file.len() == bytes);
    if there {
        touch(path);
    }
    there
}

/// Renews an object's time of use; one that is gone is found so later.
fn touch(path: &Path) {
    let now = SystemTime::now();
    let used = fs::metadata(path).and_then(|file| file.modified());
    let old = |used| now.duration_since(used).is_ok_and(|age| age >= TOUCH_AGE);
    if used.is_ok_and(old) {
        format::touch(path);
    }
}

//! The folder of one model's kept prompts: what lies there, and what may still be written.
//!
//! `FOLDER/FINGERPRINT/` has the files of one model and arithmetic, with a `lock` that the server holds, an `about`
//! that says whose they are and the `salt` by which API keys are told apart; other models have folders of their own
//! beside it. All together stay below the limit: the snapshots used longest ago go first, and when none of this
//! model's are left, whole folders of models that no server uses. `FOLDER/written` counts the bytes of
//! the day, restarts included.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::backend::Snapshot;
use store::io::platform::{Links, create_private_folder, open_regular, read_regular, space};

use super::super::owner::{Domain, Salt};
use super::format::{
    self, ASIDE_SUFFIX, Key, PAGE_SUFFIX, SNAPSHOT_SUFFIX, There, file_name, key_of,
};
use super::writer::Refused;
use super::{DiskOptions, at, followed, private};

/// Names in a model's folder.
pub(super) const LOCK: &str = "lock";
pub(super) const ABOUT: &str = "about";
const SALT: &str = "salt";
/// Written when files were removed by somebody else than the server.
pub(super) const PURGED: &str = "purged";
/// The day's bytes, in the folder above.
const WRITTEN: &str = "written";
const DAY_SECONDS: u64 = 86_400;
/// Longest of the small files.
pub(super) const NOTE_BYTES_MAX: u64 = 4096;

/// A snapshot that is there.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    /// Whose it is.
    domain: Domain,
    tokens: Arc<[u32]>,
    pages: Vec<Key>,
    bytes: u64,
    /// Order of use: a number, so that a clock that is set changes nothing.
    used: u64,
}

/// A page that is there.
#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u64,
    /// Snapshots that need it.
    uses: usize,
}

/// What is to be written for a snapshot.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) pages: Vec<Key>,
    /// Indices of pages that are not there.
    pub(super) missing: Vec<usize>,
    pub(super) path: PathBuf,
    bytes: u64,
    page_bytes: u64,
}

/// The files of one model.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) options: DiskOptions,
    /// Of the domains in it.
    pub(super) salt: Salt,
    root: PathBuf,
    files: Vec<Known>,
    pages: HashMap<Key, Page>,
    /// Uses so far.
    uses: u64,
    /// Bytes of other models' folders.
    others: u64,
    pub(super) rejected: u64,
    /// When somebody else removed files last.
    purged: Option<SystemTime>,
    /// Held as long as the folder is used.
    _lock: File,
}

impl Folder {
    /// Opens the folder, takes its lock and reads what is there; unknown and unneeded files are removed.
    ///
    /// # Errors
    /// The folder cannot be made, is open to others, is used by another server, or cannot be read.
    pub(super) fn open(options: DiskOptions) -> io::Result<Self> {
        let root = options.folder.join(format!("{:016x}", options.fingerprint));
        create_private_folder(&root).map_err(at(&root))?;
        // The folder itself may be a link that its user has set; what is in it is the server's own.
        private(&followed(&options.folder)?, "--cache-disk")?;
        private(&root, "--cache-disk")?;
        let lock_path = root.join(LOCK);
        let lock = format::open_to_write(&lock_path, There::Keep).map_err(at(&lock_path))?;
        if !try_lock(&lock).map_err(at(&lock_path))? {
            let reason = format!(
                "{} is used by another server of this model: give this one another --cache-disk",
                root.display()
            );
            return Err(io::Error::new(io::ErrorKind::WouldBlock, reason));
        }
        let about = root.join(ABOUT);
        let file = format::open_to_write(&about, There::Empty);
        let written = file.and_then(|mut file| file.write_all(options.model.as_bytes()));
        written.map_err(at(&about))?;
        let salt = root.join(SALT);
        let (salt, replaced) = Salt::at(&salt).map_err(at(&salt))?;
        let mut folder = Self {
            options,
            salt,
            root,
            files: Vec::new(),
            pages: HashMap::new(),
            uses: 0,
            others: 0,
            rejected: u64::from(replaced),
            purged: None,
            _lock: lock,
        };
        folder.purged = folder.last_purge();
        folder.scan()?;
        folder.others = folder.bytes_of_others();
        folder.shrink(0);
        Ok(folder)
    }

    fn scan(&mut self) -> io::Result<()> {
        let mut snapshots = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(at(&self.root))?.flatten() {
            let path = entry.path();
            if let Some(key) = key_of(&path, PAGE_SUFFIX) {
                let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                self.pages.insert(key, Page { bytes, uses: 0 });
            } else if key_of(&path, SNAPSHOT_SUFFIX).is_some() {
                snapshots.push(path);
            } else if path.extension().is_some_and(|suffix| suffix == ASIDE_SUFFIX) {
                // Left by a crash.
                let _ = fs::remove_file(&path);
            }
        }
        // In the order of their last use, as the files' times have it. A time to come is that of a clock that was
        // wrong: it counts as the oldest, or such a file would outlive all others.
        let now = SystemTime::now();
        snapshots.sort_by_cached_key(|path| {
            let used = fs::metadata(path).and_then(|file| file.modified()).unwrap_or(UNIX_EPOCH);
            if used > now { UNIX_EPOCH } else { used }
        });
        for path in snapshots {
            match self.known(&path) {
                Ok(known) => self.add(known),
                Err(_) => {
                    self.rejected += 1;
                    let _ = fs::remove_file(&path);
                }
            }
        }
        // Pages without a snapshot: the crash came between.
        let unused: Vec<Key> =
            self.pages.iter().filter(|(_, page)| page.uses == 0).map(|(key, _)| *key).collect();
        unused.into_iter().for_each(|key| self.remove_page(key));
        Ok(())
    }

    fn known(&self, path: &Path) -> io::Result<Known> {
        let (domain, tokens) = format::read_tokens(path, self.options.fingerprint)?;
        let (pages, key) = format::keys(self.options.fingerprint, domain, &tokens);
        let complete = pages.iter().all(|page| self.pages.contains_key(page));
        if key_of(path, SNAPSHOT_SUFFIX) != Some(key) || !complete {
            return Err(format::damaged());
        }
        let bytes = fs::metadata(path)?.len();
        Ok(Known { path: path.to_owned(), domain, tokens, pages, bytes, used: 0 })
    }

    /// Takes in a snapshot, as the one used last.
    fn add(&mut self, mut known: Known) {
        self.uses += 1;
        known.used = self.uses;
        for key in &known.pages {
            if let Some(page) = self.pages.get_mut(key) {
                page.uses += 1;
            }
        }
        self.files.push(known);
    }

    fn page_path(&self, key: Key) -> PathBuf {
        self.root.join(file_name(key, PAGE_SUFFIX))
    }

    fn remove_page(&mut self, key: Key) {
        self.pages.remove(&key);
        let _ = fs::remove_file(self.page_path(key));
    }

    /// Forgets a snapshot, and the pages that no other snapshot needs.
    fn remove(&mut self, index: usize) {
        let known = self.files.swap_remove(index);
        let _ = fs::remove_file(&known.path);
        for key in known.pages {
            let Some(page) = self.pages.get_mut(&key) else { continue };
            page.uses -= 1;
            if page.uses == 0 {
                self.remove_page(key);
            }
        }
    }

    /// Whether a domain has a snapshot of exactly these tokens.
    pub(super) fn has(&self, domain: Domain, tokens: &[u32]) -> bool {
        self.exactly(domain, tokens).is_some()
    }

    fn exactly(&self, domain: Domain, tokens: &[u32]) -> Option<usize> {
        self.files.iter().position(|known| known.domain == domain && *known.tokens == *tokens)
    }

    /// Tokens of the longest snapshot of `domain` that `prompt` can go on from, if it saves more than `more_than`.
    pub(super) fn find(&self, domain: Domain, prompt: &[u32], more_than: usize) -> Option<usize> {
        let fits = |known: &&Known| {
            known.domain == domain
                && known.tokens.len() > more_than
                && known.tokens.len() < prompt.len()
                && prompt.starts_with(&known.tokens)
        };
        self.files.iter().filter(fits).map(|known| known.tokens.len()).max()
    }

    /// The files of the snapshot of `tokens`, as one stream; it counts as used now.
    pub(super) fn pieces(&mut self, domain: Domain, tokens: &[u32]) -> Option<format::Pieces> {
        let index = self.exactly(domain, tokens)?;
        self.uses += 1;
        let known = &mut self.files[index];
        known.used = self.uses;
        format::touch(&known.path);
        let (pages, path) = (known.pages.clone(), known.path.clone());
        let pages = pages.into_iter().map(|key| (self.page_path(key), key));
        Some(format::Pieces::new(self.options.fingerprint, domain, tokens, pages, path))
    }

    /// Removes a file that was found damaged or gone, and every snapshot that needs it.
    pub(super) fn reject(&mut self, path: &Path) {
        self.rejected += 1;
        let page = key_of(path, PAGE_SUFFIX);
        let needs = |known: &Known| {
            known.path == path || page.is_some_and(|page| known.pages.contains(&page))
        };
        while let Some(index) = self.files.iter().position(needs) {
            self.remove(index);
        }
        let _ = fs::remove_file(path);
    }

    fn last_purge(&self) -> Option<SystemTime> {
        fs::metadata(self.root.join(PURGED)).and_then(|marker| marker.modified()).ok()
    }

    /// Forgets what `flashmoe cache purge` has removed meanwhile.
    fn forget_purged(&mut self) {
        let last = self.last_purge();
        if std::mem::replace(&mut self.purged, last) == last {
            return;
        }
        while let Some(index) = self.files.iter().position(|known| !known.path.exists()) {
            self.remove(index);
        }
    }

    /// Makes room for a snapshot of `tokens` and says what of it is to be written. Evicts what was used longest ago.
    ///
    /// # Errors
    /// Outer: the file system. Inner: it may not be written now.
    pub(super) fn order(
        &mut self,
        domain: Domain,
        tokens: &[u32],
        snapshot: &Snapshot,
    ) -> io::Result<Result<Order, Refused>> {
        let (pages, key) = format::keys(self.options.fingerprint, domain, tokens);
        let (bytes, page_bytes) = format::file_sizes(tokens.len(), snapshot);
        self.forget_purged();
        let path = self.root.join(file_name(key, SNAPSHOT_SUFFIX));
        let (missing, more) = loop {
            let there = |key: &Key| self.pages.contains_key(key) && self.page_path(*key).exists();
            let missing = (0..pages.len()).filter(|&index| !there(&pages[index]));
            let missing: Vec<usize> = missing.collect();
            let more = bytes + missing.len() as u64 * page_bytes;
            if self.bytes() + self.others + more <= self.options.bytes_max {
                break (missing, more);
            }
            let all = bytes + pages.len() as u64 * page_bytes;
            if all > self.options.bytes_max || !self.evict() {
                return Ok(Err(Refused::Full));
            }
        };
        if self.written_today() + more > self.options.bytes_per_day {
            return Ok(Err(Refused::Daily));
        }
        let disk = space(&self.root).map_err(at(&self.root))?;
        if disk.free < more.saturating_add(self.options.reserve(disk.whole)) {
            return Ok(Err(Refused::NoSpace));
        }
        Ok(Ok(Order { pages, missing, path, bytes, page_bytes }))
    }

    /// The path of a page of an order.
    pub(super) fn order_page(&self, order: &Order, index: usize) -> PathBuf {
        self.page_path(order.pages[index])
    }

    /// An order was carried out: the snapshot is there. Gives the bytes that were written.
    ///
    /// # Errors
    /// The day's bytes could not be noted.
    pub(super) fn commit(
        &mut self,
        domain: Domain,
        tokens: &[u32],
        order: Order,
    ) -> io::Result<u64> {
        let written = order.bytes + order.missing.len() as u64 * order.page_bytes;
        let today = self.written_today() + written;
        self.note_written(today)?;
        for &index in &order.missing {
            let page = Page { bytes: order.page_bytes, uses: 0 };
            self.pages.entry(order.pages[index]).or_insert(page);
        }
        if let Some(index) = self.files.iter().position(|known| known.path == order.path) {
            self.remove(index);
        }
        let Order { pages, path, bytes, .. } = order;
        self.add(Known { path, domain, tokens: tokens.into(), pages, bytes, used: 0 });
        Ok(written)
    }

    /// An order was given up: its pages are of no use unless a snapshot needs them.
    pub(super) fn give_up(&mut self, order: &Order) {
        for &index in &order.missing {
            if !self.pages.contains_key(&order.pages[index]) {
                let _ = fs::remove_file(self.page_path(order.pages[index]));
            }
        }
    }

    /// Removes what was used longest ago until all is within the limit.
    fn shrink(&mut self, more: u64) {
        while self.bytes() + self.others + more > self.options.bytes_max && self.evict() {}
    }

    /// Gives up the snapshot used longest ago, or else a whole folder that no server uses. False when there is none.
    fn evict(&mut self) -> bool {
        let oldest = (0..self.files.len()).min_by_key(|&index| self.files[index].used);
        if let Some(index) = oldest {
            self.remove(index);
            return true;
        }
        let mut folders: Vec<_> = self.other_folders().collect();
        folders.sort_by_key(|folder| {
            fs::metadata(folder).and_then(|folder| folder.modified()).unwrap_or(UNIX_EPOCH)
        });
        for folder in folders {
            if bytes_in(&folder) > 0 && purge_unused(&folder).unwrap_or(false) {
                self.others = self.bytes_of_others();
                return true;
            }
        }
        false
    }

    fn other_folders(&self) -> impl Iterator<Item = PathBuf> {
        model_folders(&self.options.folder).filter(|folder| *folder != self.root)
    }

    fn bytes_of_others(&self) -> u64 {
        self.other_folders().map(|folder| bytes_in(&folder)).sum()
    }

    /// Bytes of this model's files.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|known| known.bytes).sum::<u64>();
        files + self.pages.values().map(|page| page.bytes).sum::<u64>()
    }

    /// Bytes of the day. Those of a day to come were written while the clock was wrong, and count as today's: the drive
    /// has them in any case, and the note gets today's date with the next file.
    fn written_today(&self) -> u64 {
        let path = self.options.folder.join(WRITTEN);
        let text = read_regular(&path, Links::Refused, NOTE_BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8(text).unwrap_or_default();
        let mut words = text.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        match (words.next(), words.next()) {
            (Some(day), Some(bytes)) if day >= today() => bytes,
            _ => 0,
        }
    }

    fn note_written(&self, bytes: u64) -> io::Result<()> {
        let aside = self.root.join(WRITTEN).with_extension(ASIDE_SUFFIX);
        let write = || {
            let mut file = format::open_to_write(&aside, There::Empty)?;
            file.write_all(format!("{} {bytes}\n", today()).as_bytes())?;
            fs::rename(&aside, self.options.folder.join(WRITTEN))
        };
        write().map_err(at(&aside))
    }
}

/// Days since 1970.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / DAY_SECONDS)
}

/// Takes a lock, unless somebody has it.
fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a server uses a model's folder.
pub(super) fn in_use(folder: &Path) -> io::Result<bool> {
    match open_regular(&folder.join(LOCK), Links::Refused) {
        Ok(lock) => try_lock(&lock).map(|free| !free),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The folders of models in a folder of kept prompts.
pub(super) fn model_folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.join(LOCK).is_file())
}

/// Bytes of the snapshots and pages in a model's folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let kept = entries.filter(|entry| is_kept(&entry.path()));
    kept.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// True for snapshots, pages and what a crash left of them.
pub(super) fn is_kept(path: &Path) -> bool {
    let suffixes = [PAGE_SUFFIX, SNAPSHOT_SUFFIX, ASIDE_SUFFIX];
    path.extension().and_then(|suffix| suffix.to_str()).is_some_and(|it| suffixes.contains(&it))
}

/// Empties a model's folder under its lock; false when a server has that.
fn purge_unused(folder: &Path) -> io::Result<bool> {
    let lock = open_regular(&folder.join(LOCK), Links::Refused)?;
    if !try_lock(&lock)? {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)?.flatten() {
        if is_kept(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(true)
}

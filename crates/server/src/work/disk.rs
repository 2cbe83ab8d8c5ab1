//! Snapshots on disk: what was computed survives the server.
//!
//! One file per snapshot, named by a hash of its tokens: a header, the tokens, pages and state, and the XXH3 of all
//! of it at the end. Files are written aside, synced and renamed, so a crash leaves whole files or none. They are the
//! user's conversations: mode 0600 in a folder of mode 0700. A file that is damaged, foreign or of another format is
//! removed and counted, and its prompt computed anew; nothing of it is used before its checksum is known to be
//! right. The folder never grows over its limit: the files used longest ago go first.
//!
//! Layout, little-endian: magic `FMPREFIX`, format u32, zero u32, fingerprint u64, tokens u64, bytes of pages and
//! state u64; token ids u32 each; pages and state; checksum u64.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use engine::backend::{Backend, Snapshot};
use twox_hash::XxHash3_64;

const MAGIC: [u8; 8] = *b"FMPREFIX";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 40;
const SUFFIX: &str = "prefix";
/// Tokens of the longest context that anyone plans.
const TOKENS_MAX: u64 = 1 << 24;
const BUFFER_BYTES: usize = 1 << 18;

/// Where snapshots are kept, and how many.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of all files.
    pub bytes_max: u64,
    /// What must be equal for a snapshot to mean the same: model, arithmetic, precision of the state.
    pub fingerprint: u64,
}

/// A file whose header and tokens were read.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    tokens: Arc<[u32]>,
    bytes: u64,
    used: SystemTime,
}

/// The files of one folder.
#[derive(Debug)]
pub(super) struct DiskTier {
    options: DiskOptions,
    files: Vec<Known>,
    pub(super) written: u64,
    pub(super) restored: u64,
    pub(super) rejected: u64,
}

impl DiskTier {
    /// Opens the folder and reads the headers in it.
    ///
    /// # Errors
    /// The folder cannot be made, is open to others, or cannot be read.
    pub(super) fn open(options: DiskOptions) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&options.folder)?;
        let mode = fs::metadata(&options.folder)?.permissions().mode();
        if mode & 0o077 != 0 {
            let reason = "the folder of kept prompts can be read by others: chmod 700 it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let mut tier = Self { options, files: Vec::new(), written: 0, restored: 0, rejected: 0 };
        for entry in fs::read_dir(&tier.options.folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|suffix| suffix == "new") {
                // Left by a crash.
                let _ = fs::remove_file(&path);
            } else if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                match tier.read_header(&path) {
                    Ok(known) => tier.files.push(known),
                    Err(_) => tier.reject(&path),
                }
            }
        }
        tier.shrink(0);
        Ok(tier)
    }

    fn reject(&mut self, path: &Path) {
        self.rejected += 1;
        let _ = fs::remove_file(path);
    }

    fn read_header(&self, path: &Path) -> io::Result<Known> {
        let mut file = BufReader::new(File::open(path)?);
        let metadata = file.get_ref().metadata()?;
        let (tokens, rest) = header(&mut file, self.options.fingerprint)?;
        let mut ids = vec![0; tokens * 4];
        if metadata.len() != (HEADER_BYTES + ids.len() + 8) as u64 + rest {
            return Err(damaged());
        }
        file.read_exact(&mut ids)?;
        let tokens = token_ids(&ids);
        Ok(Known {
            path: path.to_owned(),
            tokens,
            bytes: metadata.len(),
            used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }

    /// The longest file that `prompt` can go on from, if it saves more than `more_than` tokens.
    pub(super) fn find(&self, prompt: &[u32], more_than: usize) -> Option<usize> {
        let fits = |known: &Known| {
            known.tokens.len() > more_than
                && known.tokens.len() < prompt.len()
                && prompt.starts_with(&known.tokens)
        };
        let files = self.files.iter().filter(|known| fits(known));
        files.map(|known| known.tokens.len()).max()
    }

    /// Reads the file of the first `length` tokens of `prompt`, for which the backend has room. `None` when it was
    /// damaged: it is gone then.
    pub(super) fn load(
        &mut self,
        prompt: &[u32],
        length: usize,
        backend: &mut dyn Backend,
    ) -> Option<Snapshot> {
        let index = self.files.iter().position(|known| *known.tokens == prompt[..length])?;
        let path = self.files[index].path.clone();
        match self.read(&path, length, backend) {
            Ok(snapshot) => {
                self.restored += 1;
                let known = &mut self.files[index];
                known.used = SystemTime::now();
                if let Ok(file) = File::open(&path) {
                    let _ = file.set_modified(known.used);
                }
                Some(snapshot)
            }
            Err(_) => {
                self.files.swap_remove(index);
                self.reject(&path);
                None
            }
        }
    }

    fn read(&self, path: &Path, length: usize, backend: &mut dyn Backend) -> io::Result<Snapshot> {
        let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
        let mut input = Summed { inner: file, hash: XxHash3_64::new() };
        let (tokens, rest) = header(&mut input, self.options.fingerprint)?;
        let mut ids = vec![0; tokens * 4];
        input.read_exact(&mut ids)?;
        let mut body = (&mut input).take(rest);
        let snapshot = backend.read_snapshot(length, &mut body)?;
        if tokens != length || body.limit() != 0 {
            return Err(damaged());
        }
        let sum = input.hash.finish();
        let mut stored = [0; 8];
        input.inner.read_exact(&mut stored)?;
        if u64::from_le_bytes(stored) != sum { Err(damaged()) } else { Ok(snapshot) }
    }

    /// Writes a snapshot of `tokens`, unless it is there or larger than the whole folder may be.
    ///
    /// # Errors
    /// What the file system reports; nothing is left behind then.
    pub(super) fn store(&mut self, tokens: &[u32], snapshot: &Snapshot) -> io::Result<()> {
        if self.files.iter().any(|known| *known.tokens == *tokens) {
            return Ok(());
        }
        let mut counted = Counted(0);
        snapshot.write(&mut counted)?;
        let bytes = (HEADER_BYTES + tokens.len() * 4 + 8) as u64 + counted.0;
        if bytes > self.options.bytes_max {
            return Ok(());
        }
        self.shrink(bytes);
        let ids: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let name =
            format!("{:016x}", XxHash3_64::oneshot_with_seed(self.options.fingerprint, &ids));
        let path = self.options.folder.join(&name).with_extension(SUFFIX);
        let aside = path.with_extension("new");
        let written = self.write(&aside, &ids, counted.0, snapshot);
        let renamed = written.and_then(|()| fs::rename(&aside, &path));
        if let Err(error) = renamed {
            let _ = fs::remove_file(&aside);
            return Err(error);
        }
        File::open(&self.options.folder)?.sync_all()?;
        self.written += bytes;
        self.files.retain(|known| known.path != path);
        self.files.push(Known { path, tokens: tokens.into(), bytes, used: SystemTime::now() });
        Ok(())
    }

    fn write(&self, path: &Path, ids: &[u8], rest: u64, snapshot: &Snapshot) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut out = Summed { inner: file, hash: XxHash3_64::new() };
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&0u32.to_le_bytes())?;
        out.write_all(&self.options.fingerprint.to_le_bytes())?;
        out.write_all(&(ids.len() as u64 / 4).to_le_bytes())?;
        out.write_all(&rest.to_le_bytes())?;
        out.write_all(ids)?;
        snapshot.write(&mut out)?;
        let sum = out.hash.finish();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()?;
        out.inner.get_ref().sync_data()
    }

    /// Removes the files used longest ago until `more` bytes fit.
    fn shrink(&mut self, more: u64) {
        while self.bytes() + more > self.options.bytes_max {
            let oldest = (0..self.files.len()).min_by_key(|&index| self.files[index].used);
            let Some(index) = oldest else { return };
            let _ = fs::remove_file(self.files.swap_remove(index).path);
        }
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|known| known.bytes).sum()
    }
}

/// Tokens, and bytes of pages and state, that a header tells.
fn header(input: &mut dyn Read, fingerprint: u64) -> io::Result<(usize, u64)> {
    let mut bytes = [0; HEADER_BYTES];
    input.read_exact(&mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let known = bytes[..8] == MAGIC && word(8) == u64::from(FORMAT) && word(16) == fingerprint;
    if !known || word(24) == 0 || word(24) > TOKENS_MAX || word(32) > i64::MAX as u64 {
        return Err(damaged());
    }
    Ok((word(24) as usize, word(32)))
}

fn token_ids(bytes: &[u8]) -> Arc<[u32]> {
    bytes.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect()
}

fn damaged() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

/// Counts what would be written.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file with the checksum of what went through.
struct Summed<T> {
    inner: T,
    hash: XxHash3_64,
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.write(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.hash.write(&bytes[..count]);
        Ok(count)
    }
}

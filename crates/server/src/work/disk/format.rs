//! The two kinds of files of kept prompts, and how they are read and written.
//!
//! A snapshot's full pages of keys and values are functions of the tokens before their end, so each is a file of its
//! own that all snapshots of a conversation, and of its branches, share; the snapshot's file has the tokens, the
//! page that is not full, and the recurrent state. A page is found by a hash (128 bits of SHA-256) chained over its
//! domain (the owner's, see `owner`), its tokens and those before it; the tokens themselves are compared when it is
//! read. A file of another format is not found, and the next server that opens its folder removes it. All numbers are
//! little-endian.
//!
//! Page: magic `FMKVPAGE`, format u32, zero u32, fingerprint u64, bytes u64, parent's key 2 x u64 (the domain for the
//! first), the page's token ids u32 each; keys and values; XXH3 of all before, u64.
//!
//! Snapshot: magic `FMPREFIX`, format u32, zero u32, fingerprint u64, tokens u64, bytes u64 of what follows the ids,
//! domain 2 x u64; token ids u32 each; the page that is not full, the state; XXH3 of all before, u64.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use engine::backend::{PAGE_TOKENS, Snapshot};
use sha2::{Digest, Sha256};
use store::io::platform::{self, Links, forget_pages, open_no_link, open_regular, private};
use twox_hash::XxHash3_64;

use super::super::owner::Domain;
use super::at;

const PAGE_MAGIC: [u8; 8] = *b"FMKVPAGE";
const SNAPSHOT_MAGIC: [u8; 8] = *b"FMPREFIX";
pub(super) const FORMAT: u32 = 5;
const SNAPSHOT_HEADER: usize = 56;
const PAGE_HEADER: usize = 48 + PAGE_TOKENS * 4;
pub(super) const CHECKSUM_BYTES: usize = 8;
/// Tokens of the longest context that anyone plans.
pub(super) const TOKENS_MAX: u64 = 1 << 24;
const BUFFER_BYTES: usize = 1 << 18;
/// Written bytes are synced this often, so that they never come upon the disk all at once.
const SYNC_BYTES: u64 = 8 << 20;

/// Suffixes of the files.
pub(super) const PAGE_SUFFIX: &str = "page";
pub(super) const SNAPSHOT_SUFFIX: &str = "prefix";
/// A file that is not complete yet.
pub(super) const ASIDE_SUFFIX: &str = "new";

/// What a page or a whole snapshot is found by: a hash of all tokens up to its end.
pub(super) type Key = [u64; 2];

/// What a key is of. A page's is never a snapshot's, whatever their tokens.
#[derive(Clone, Copy)]
enum Kind {
    Page,
    Snapshot,
}

/// The key of `tokens` after those of `parent`: half of SHA-256, so that no two prompts that anyone can find have the
/// same. Whoever may write to a shared folder could otherwise have another prompt answered from rows of their own.
fn chained(kind: Kind, fingerprint: u64, parent: Key, tokens: &[u32]) -> Key {
    let mut hash = Sha256::new();
    hash.update(match kind {
        Kind::Page => PAGE_MAGIC,
        Kind::Snapshot => SNAPSHOT_MAGIC,
    });
    for word in [u64::from(FORMAT), fingerprint, parent[0], parent[1], tokens.len() as u64] {
        hash.update(word.to_le_bytes());
    }
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    let digest = hash.finalize();
    let (words, _) = digest.as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// Keys of the full pages of `tokens` in `domain`, then that of all of them.
pub(super) fn keys(fingerprint: u64, domain: Domain, tokens: &[u32]) -> (Vec<Key>, Key) {
    let (pages, rest) = tokens.as_chunks::<PAGE_TOKENS>();
    let mut parent = domain.0;
    let mut keys = Vec::with_capacity(pages.len());
    for page in pages {
        parent = chained(Kind::Page, fingerprint, parent, page);
        keys.push(parent);
    }
    (keys, whole(fingerprint, parent, rest))
}

/// The key of a snapshot: of the tokens of its last page, which is not full, after those of the full pages.
pub(super) fn whole(fingerprint: u64, parent: Key, rest: &[u32]) -> Key {
    chained(Kind::Snapshot, fingerprint, parent, rest)
}

/// A file's name.
pub(super) fn file_name(key: Key, suffix: &str) -> String {
    format!("{:016x}{:016x}.{suffix}", key[0], key[1])
}

/// The key of a file of the given suffix.
pub(super) fn key_of(path: &Path, suffix: &str) -> Option<Key> {
    let stem = path.file_stem()?.to_str().filter(|stem| stem.len() == 32 && stem.is_ascii())?;
    if path.extension()? != suffix {
        return None;
    }
    let half = |part: &str| u64::from_str_radix(part, 16).ok();
    Some([half(&stem[..16])?, half(&stem[16..])?])
}

/// Asked before every part of a file is written: may wait, or refuse to go on.
pub(super) type Gate<'a> = dyn FnMut(usize) -> io::Result<()> + 'a;

/// A file being written: beside its place, checksummed, synced piece by piece, then renamed.
struct Output<'a> {
    file: BufWriter<Paced<'a>>,
    hash: XxHash3_64,
}

struct Paced<'a> {
    file: File,
    gate: &'a mut Gate<'a>,
    unsynced: u64,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.gate)(bytes.len())?;
        let count = self.file.write(bytes)?;
        self.unsynced += count as u64;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.sync()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paced<'_> {
    /// Brings what was written to the disk, and out of the page cache: experts need the memory.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        forget_pages(&self.file, 0, 0);
        Ok(())
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.write(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What there is to do with a file that may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    /// It is opened as it is.
    Keep,
    /// It is opened as it is; one that is not there is an error.
    Expect,
    /// It is emptied.
    Empty,
    /// It is an error.
    Refuse,
}

/// How files of the folder are made: for their owner alone, and never through a link that was left there while
/// others could still write to the folder.
pub(super) fn open_to_write(path: &Path, there: There) -> io::Result<File> {
    let mut options = OpenOptions::new();
    private(options.write(true).create(there != There::Expect));
    options.create_new(there == There::Refuse);
    let file = open_no_link(&mut options, path)?;
    if there == There::Empty {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Notes that a file was used now, for the next server and for `flashmoe cache`.
pub(super) fn touch(path: &Path) {
    // One that is gone is found so later.
    if let Ok(file) = open_to_write(path, There::Expect) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Writes a file at `path` or nothing. Its name until it is whole is its own: another server may write the same.
pub(super) fn write_file(
    path: &Path,
    gate: &mut Gate<'_>,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut own = [0; 8];
    getrandom::fill(&mut own).map_err(io::Error::other)?;
    let aside = path.with_extension(format!("{:016x}.{ASIDE_SUFFIX}", u64::from_le_bytes(own)));
    let write = || {
        let file = open_to_write(&aside, There::Refuse)?;
        let mut forward = |bytes: usize| gate(bytes);
        let paced = Paced { file, gate: &mut forward, unsynced: 0 };
        let file = BufWriter::with_capacity(BUFFER_BYTES, paced);
        let mut out = Output { file, hash: XxHash3_64::new() };
        content(&mut out)?;
        let sum = out.hash.finish();
        out.file.write_all(&sum.to_le_bytes())?;
        out.file.flush()?;
        out.file.get_ref().sync()?;
        std::fs::rename(&aside, path)
    };
    let written = write();
    if written.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    written.map_err(at(&aside))
}

pub(super) fn write_ids(out: &mut dyn Write, ids: &[u32]) -> io::Result<()> {
    ids.iter().try_for_each(|id| out.write_all(&id.to_le_bytes()))
}

/// Writes a full page of a snapshot of `tokens`. `parent` is the key of the page before it, or the domain's hash.
pub(super) fn write_page(
    path: &Path,
    fingerprint: u64,
    parent: Key,
    tokens: &[u32],
    index: usize,
    snapshot: &Snapshot,
    gate: &mut Gate<'_>,
) -> io::Result<()> {
    write_file(path, gate, |out| {
        out.write_all(&PAGE_MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&0u32.to_le_bytes())?;
        for word in [fingerprint, snapshot.page_bytes(), parent[0], parent[1]] {
            out.write_all(&word.to_le_bytes())?;
        }
        write_ids(out, &tokens[index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS])?;
        snapshot.write_page(index, out)
    })
}

/// Writes a snapshot of `tokens`, whose full pages have files of their own.
pub(super) fn write_snapshot(
    path: &Path,
    fingerprint: u64,
    domain: Domain,
    tokens: &[u32],
    snapshot: &Snapshot,
    gate: &mut Gate<'_>,
) -> io::Result<()> {
    write_file(path, gate, |out| {
        out.write_all(&SNAPSHOT_MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&0u32.to_le_bytes())?;
        let [first, second] = domain.0;
        for word in [fingerprint, tokens.len() as u64, snapshot.rest_bytes(), first, second] {
            out.write_all(&word.to_le_bytes())?;
        }
        write_ids(out, tokens)?;
        snapshot.write_rest(out)
    })
}

/// Bytes of the file of a snapshot and of each of its full pages.
pub(super) fn file_sizes(tokens: usize, snapshot: &Snapshot) -> (u64, u64) {
    let rest = (SNAPSHOT_HEADER + tokens * 4 + CHECKSUM_BYTES) as u64;
    let page = (PAGE_HEADER + CHECKSUM_BYTES) as u64;
    (rest + snapshot.rest_bytes(), page + snapshot.page_bytes())
}

/// Brings the names in the folder of `path` to the disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), platform::sync_folder)
}

/// Domain and tokens of a snapshot's file, whose length must be what its header says.
pub(super) fn read_tokens(path: &Path, fingerprint: u64) -> io::Result<(Domain, Arc<[u32]>)> {
    let mut file = BufReader::new(open_regular(path, Links::Refused)?);
    let length = file.get_ref().metadata()?.len();
    let SnapshotHeader { tokens, rest, domain } = snapshot_header(&mut file, fingerprint)?;
    if length != (SNAPSHOT_HEADER + tokens * 4 + CHECKSUM_BYTES) as u64 + rest {
        return Err(damaged());
    }
    let mut ids = vec![0; tokens * 4];
    file.read_exact(&mut ids)?;
    let ids = ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id));
    Ok((domain, ids.collect()))
}

/// What a snapshot's header tells.
struct SnapshotHeader {
    tokens: usize,
    /// Bytes after the tokens' ids.
    rest: u64,
    domain: Domain,
}

fn snapshot_header(input: &mut dyn Read, fingerprint: u64) -> io::Result<SnapshotHeader> {
    let mut bytes = [0; SNAPSHOT_HEADER];
    input.read_exact(&mut bytes)?;
    let word = words(&bytes);
    let known = bytes[..8] == SNAPSHOT_MAGIC && word(8) == u64::from(FORMAT);
    let right = known && word(16) == fingerprint;
    if !right || word(24) == 0 || word(24) > TOKENS_MAX || word(32) > i64::MAX as u64 {
        return Err(damaged());
    }
    let domain = Domain([word(40), word(48)]);
    Ok(SnapshotHeader { tokens: word(24) as usize, rest: word(32), domain })
}

pub(super) fn words(bytes: &[u8]) -> impl Fn(usize) -> u64 {
    move |at| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn damaged() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

/// Pages and state of a snapshot as one stream, out of its files. Nothing may be used before
/// [`Pieces::finish`] has said that every checksum is right.
pub(super) struct Pieces {
    waiting: VecDeque<Piece>,
    current: Option<(Summed, u64)>,
    fingerprint: u64,
    domain: Domain,
    /// The file read last: the one to blame.
    last: PathBuf,
}

enum Piece {
    Page { path: PathBuf, parent: Key, ids: Vec<u8> },
    Rest { path: PathBuf, ids: Vec<u8> },
}

impl Pieces {
    /// The pieces of a snapshot of `tokens`, with the paths of its pages and its own.
    pub(super) fn new(
        fingerprint: u64,
        domain: Domain,
        tokens: &[u32],
        pages: impl Iterator<Item = (PathBuf, Key)>,
        rest: PathBuf,
    ) -> Self {
        let bytes = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mut parent = domain.0;
        let mut waiting = VecDeque::new();
        for ((path, key), ids) in pages.zip(tokens.chunks_exact(PAGE_TOKENS)) {
            waiting.push_back(Piece::Page { path, parent, ids: bytes(ids) });
            parent = key;
        }
        waiting.push_back(Piece::Rest { path: rest.clone(), ids: bytes(tokens) });
        Self { waiting, current: None, fingerprint, domain, last: rest }
    }

    /// The file that was being read when something failed.
    pub(super) fn last(&self) -> &Path {
        &self.last
    }

    /// Checks the last piece, and that nothing is left.
    ///
    /// # Errors
    /// A wrong checksum, or bytes left over.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.close()?;
        if self.waiting.is_empty() { Ok(()) } else { Err(damaged()) }
    }

    /// Ends the current piece.
    fn close(&mut self) -> io::Result<()> {
        let Some((mut input, left)) = self.current.take() else { return Ok(()) };
        let sum = input.hash.finish();
        let mut stored = [0; CHECKSUM_BYTES];
        input.file.read_exact(&mut stored)?;
        let at_end = input.file.read(&mut [0])? == 0;
        let right = left == 0 && at_end && u64::from_le_bytes(stored) == sum;
        if right { Ok(()) } else { Err(damaged()) }
    }

    /// Opens the next piece and checks what is before its content.
    fn open(&mut self, piece: Piece) -> io::Result<()> {
        let (Piece::Page { path, ids, .. } | Piece::Rest { path, ids }) = &piece;
        self.last.clone_from(path);
        let file = BufReader::with_capacity(BUFFER_BYTES, open_regular(path, Links::Refused)?);
        let mut input = Summed { file, hash: XxHash3_64::new() };
        let bytes = match &piece {
            Piece::Page { parent, .. } => {
                let mut header = [0; 48];
                input.read_exact(&mut header)?;
                let word = words(&header);
                let known = header[..8] == PAGE_MAGIC && word(8) == u64::from(FORMAT);
                if !known || word(16) != self.fingerprint || [word(32), word(40)] != *parent {
                    return Err(damaged());
                }
                word(24)
            }
            Piece::Rest { ids, .. } => {
                let header = snapshot_header(&mut input, self.fingerprint)?;
                if header.tokens * 4 != ids.len() || header.domain != self.domain {
                    return Err(damaged());
                }
                header.rest
            }
        };
        let mut found = vec![0; ids.len()];
        input.read_exact(&mut found)?;
        if found != *ids {
            return Err(damaged());
        }
        self.current = Some((input, bytes));
        Ok(())
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some((input, left)) = &mut self.current
                && *left > 0
            {
                let most = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let count = input.read(&mut buffer[..most])?;
                *left -= count as u64;
                // A file that ends too early.
                return if count == 0 && most > 0 { Err(damaged()) } else { Ok(count) };
            }
            self.close()?;
            let Some(piece) = self.waiting.pop_front() else { return Ok(0) };
            self.open(piece)?;
        }
    }
}

/// Reads all of a file of either kind and checks it against itself. What is wrong with it, if anything is.
pub(super) fn check_file(path: &Path) -> io::Result<Result<u64, &'static str>> {
    let opened = match open_regular(path, Links::Refused) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err("no regular file lies there"));
        }
        opened => opened?,
    };
    let mut file = BufReader::with_capacity(BUFFER_BYTES, opened);
    let length = file.get_ref().metadata()?.len();
    let mut magic = [0; 8];
    if length < (SNAPSHOT_HEADER + CHECKSUM_BYTES) as u64 {
        return Ok(Err("too short"));
    }
    file.read_exact(&mut magic)?;
    let suffix = path.extension().and_then(|suffix| suffix.to_str());
    let expected = if suffix == Some(PAGE_SUFFIX) { PAGE_MAGIC } else { SNAPSHOT_MAGIC };
    if magic != expected {
        return Ok(Err("not a file of kept prompts"));
    }
    let mut hash = XxHash3_64::new();
    hash.write(&magic);
    let mut left = length - (magic.len() + CHECKSUM_BYTES) as u64;
    let mut buffer = vec![0; BUFFER_BYTES];
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(&mut buffer[..most])?;
        if count == 0 {
            return Ok(Err("it became shorter while it was read"));
        }
        hash.write(&buffer[..count]);
        left -= count as u64;
    }
    let mut stored = [0; CHECKSUM_BYTES];
    file.read_exact(&mut stored)?;
    let right = u64::from_le_bytes(stored) == hash.finish();
    Ok(if right { Ok(length) } else { Err("the checksum does not match") })
}

/// Tokens that a snapshot's header tells, whatever its fingerprint.
pub(super) fn token_count(path: &Path) -> io::Result<usize> {
    let mut header = [0; SNAPSHOT_HEADER];
    open_regular(path, Links::Refused)?.read_exact(&mut header)?;
    let fingerprint = words(&header)(16);
    snapshot_header(&mut header.as_slice(), fingerprint).map(|header| header.tokens)
}

/// A file with the checksum of what was read.
pub(super) struct Summed {
    pub(super) file: BufReader<File>,
    pub(super) hash: XxHash3_64,
}

impl Read for Summed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(bytes)?;
        self.hash.write(&bytes[..count]);
        Ok(count)
    }
}

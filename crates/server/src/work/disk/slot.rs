//! A slot's file: one snapshot with its tokens in one file, under the name that a client gave it.
//!
//! Magic `FMSLOTED`, format u32, zero u32, fingerprint u64, tokens u64, bytes of a page u64, bytes of the rest u64,
//! domain 2 x u64; token ids u32 each; the full pages, then the page that is not full and the state, as
//! [`Snapshot::write_page`] and [`Snapshot::write_rest`] write them; XXH3 of all before, u64. All numbers are
//! little-endian. A file of another key, model or arithmetic is not read further than its header.

use std::hash::Hasher;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use engine::backend::{Backend, PAGE_TOKENS, Snapshot};
use store::io::platform::{Links, open_regular};
use twox_hash::XxHash3_64;

use super::super::owner::Domain;
use super::format::{
    CHECKSUM_BYTES, FORMAT, Summed, TOKENS_MAX, sync_folder, words, write_file, write_ids,
};
use super::tier::Beating;

const MAGIC: [u8; 8] = *b"FMSLOTED";
const HEADER: usize = 64;

/// Why a slot's file is not used.
#[derive(Debug)]
pub(in crate::work) enum SlotFault {
    /// There is none of this name for this key.
    Missing,
    /// What is wrong with it.
    Foreign(&'static str),
    /// It could not be read or written.
    Io(io::Error),
}

impl From<io::Error> for SlotFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            // A link, or what is no regular file.
            io::ErrorKind::InvalidData => Self::Foreign("is not a regular file"),
            io::ErrorKind::UnexpectedEof => Self::Foreign("ends too early"),
            _ => Self::Io(error),
        }
    }
}

/// A file's header.
struct Header {
    fingerprint: u64,
    tokens: usize,
    /// Bytes after the ids, without the checksum.
    state: u64,
    domain: Domain,
}

/// Reads a header, and checks that the file has the length that it tells.
fn header(input: &mut dyn Read, length: u64) -> Result<Header, SlotFault> {
    let mut bytes = [0; HEADER];
    input.read_exact(&mut bytes)?;
    let word = words(&bytes);
    if bytes[..8] != MAGIC {
        return Err(SlotFault::Foreign("is not the file of a slot"));
    }
    if word(8) != u64::from(FORMAT) {
        return Err(SlotFault::Foreign("was written by another version of flashmoe"));
    }
    let (tokens, page, rest) = (word(24), word(32), word(40));
    if tokens == 0 || tokens > TOKENS_MAX {
        return Err(SlotFault::Foreign("is damaged"));
    }
    let pages = page.checked_mul(tokens / PAGE_TOKENS as u64);
    let state = pages.and_then(|pages| pages.checked_add(rest));
    let before = HEADER as u64 + tokens * 4 + CHECKSUM_BYTES as u64;
    let state = state.filter(|state| state.checked_add(before) == Some(length));
    let state = state.ok_or(SlotFault::Foreign("is damaged: its length is wrong"))?;
    let domain = Domain([word(48), word(56)]);
    Ok(Header { fingerprint: word(16), tokens: tokens as usize, state, domain })
}

/// The domain of the file at `path`, where there is a file of a slot.
pub(in crate::work) fn slot_domain(path: &Path) -> Result<Domain, SlotFault> {
    let file = open_regular(path, Links::Refused)?;
    let length = file.metadata()?.len();
    Ok(header(&mut BufReader::new(file), length)?.domain)
}

/// Bytes of the file of a snapshot.
pub(in crate::work) fn slot_bytes(snapshot: &Snapshot) -> u64 {
    let before = (HEADER + snapshot.length() * 4 + CHECKSUM_BYTES) as u64;
    before + full_pages(snapshot) as u64 * snapshot.page_bytes() + snapshot.rest_bytes()
}

/// Pages that are written before the rest; none of a snapshot without pages.
fn full_pages(snapshot: &Snapshot) -> usize {
    if snapshot.page_bytes() == 0 { 0 } else { snapshot.full_pages() }
}

/// Writes the file whole or not at all; `beat` is called all the while.
pub(in crate::work) fn write_slot(
    path: &Path,
    fingerprint: u64,
    domain: Domain,
    tokens: &[u32],
    snapshot: &Snapshot,
    beat: &dyn Fn(),
) -> Result<(), SlotFault> {
    let mut gate = |_: usize| {
        beat();
        Ok(())
    };
    write_file(path, &mut gate, |out| {
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&0u32.to_le_bytes())?;
        let [first, second] = domain.0;
        let sizes = [snapshot.page_bytes(), snapshot.rest_bytes()];
        for word in [fingerprint, tokens.len() as u64, sizes[0], sizes[1], first, second] {
            out.write_all(&word.to_le_bytes())?;
        }
        write_ids(out, tokens)?;
        (0..full_pages(snapshot)).try_for_each(|index| snapshot.write_page(index, out))?;
        snapshot.write_rest(out)
    })
    .map_err(SlotFault::Io)?;
    sync_folder(path).map_err(SlotFault::Io)
}

/// A slot's file whose header and tokens are known to be right, before its state.
pub(in crate::work) struct SlotReader {
    pub(in crate::work) tokens: Arc<[u32]>,
    /// Of the file.
    pub(in crate::work) bytes: u64,
    input: Summed,
    /// Bytes of the state.
    state: u64,
}

impl SlotReader {
    /// Opens a file of this domain and fingerprint, of fewer tokens than `context`, all below `vocabulary`.
    pub(in crate::work) fn open(
        path: &Path,
        fingerprint: u64,
        domain: Domain,
        (context, vocabulary): (usize, usize),
    ) -> Result<Self, SlotFault> {
        let file = open_regular(path, Links::Refused)?;
        let bytes = file.metadata()?.len();
        let mut input = Summed { file: BufReader::new(file), hash: XxHash3_64::new() };
        let Header { fingerprint: of, tokens, state, domain: whose } = header(&mut input, bytes)?;
        if whose != domain {
            // Whether others have a file of this name is theirs.
            return Err(SlotFault::Missing);
        }
        if of != fingerprint {
            let problem = "is of another model, or of other options or another version";
            return Err(SlotFault::Foreign(problem));
        }
        if tokens >= context {
            return Err(SlotFault::Foreign("has more tokens than the context"));
        }
        let mut ids = vec![0; tokens * 4];
        input.read_exact(&mut ids)?;
        let ids = ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id));
        let tokens: Arc<[u32]> = ids.collect();
        if tokens.iter().any(|&id| id as usize >= vocabulary) {
            return Err(SlotFault::Foreign("is damaged: a token is not in the vocabulary"));
        }
        Ok(Self { tokens, bytes, input, state })
    }

    /// The state, for which `backend` has room; nothing of it is used before the checksum is right.
    pub(in crate::work) fn read(
        mut self,
        backend: &mut dyn Backend,
        beat: &dyn Fn(),
    ) -> Result<(Arc<[u32]>, Snapshot), SlotFault> {
        let mut content = (&mut self.input).take(self.state);
        let mut beating = Beating(&mut content, beat);
        let snapshot = backend.read_snapshot(self.tokens.len(), &mut beating)?;
        if content.limit() > 0 {
            return Err(SlotFault::Foreign("is damaged: its state has another size"));
        }
        let sum = self.input.hash.finish();
        let mut stored = [0; CHECKSUM_BYTES];
        self.input.file.read_exact(&mut stored)?;
        if u64::from_le_bytes(stored) != sum {
            return Err(SlotFault::Foreign("is damaged: its checksum does not match"));
        }
        Ok((self.tokens, snapshot))
    }
}

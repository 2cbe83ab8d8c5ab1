//! A slot's file: the points from which one conversation can continue, in one file that a client named.
//!
//! Magic `FMSLOTED`, format u32, count of points u32, fingerprint u64, tokens of the longest u64, domain 2 x u64; for
//! each point, the longest first: tokens u64, bytes of a page u64, bytes of the rest u64; token ids of the longest u32
//! each; for each point its full pages, then the page that is not full and the state, as [`Snapshot::write_page`] and
//! [`Snapshot::write_rest`] write them; XXH3 of all before, u64. All numbers are little-endian. A state that can be
//! left at any token needs one point; a recurrent one has the ends of turns. A file of another key, model or
//! arithmetic is not read further than its header.

use std::hash::Hasher;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use engine::backend::{PAGE_TOKENS, Snapshot};
use store::io::platform::{Links, open_regular};
use twox_hash::XxHash3_64;

use super::super::owner::Domain;
use super::format::{
    CHECKSUM_BYTES, FORMAT, Summed, TOKENS_MAX, sync_folder, words, write_file, write_ids,
};

const MAGIC: [u8; 8] = *b"FMSLOTED";
const HEADER: usize = 48;
const POINT: usize = 24;
/// Points of a file: the ends of the answer, of its prompt's last turn, and of the beginning that others share.
pub(in crate::work) const POINTS_MAX: usize = 3;

/// Why a slot's file is not used.
#[derive(Debug)]
pub(in crate::work) enum SlotFault {
    /// There is none of this name for this key.
    Missing,
    /// What is wrong with it.
    Foreign(&'static str),
    /// The backend has no room for it.
    Room,
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
    domain: Domain,
    /// Tokens of each point, the longest first, and bytes of its state.
    points: Vec<(usize, u64)>,
}

/// Reads a header, and checks that the file has the length that it tells.
fn header(input: &mut dyn Read, length: u64) -> Result<Header, SlotFault> {
    let mut bytes = [0; HEADER];
    input.read_exact(&mut bytes)?;
    let word = words(&bytes);
    if bytes[..8] != MAGIC {
        return Err(SlotFault::Foreign("is not the file of a slot"));
    }
    if word(8) as u32 != FORMAT {
        return Err(SlotFault::Foreign("was written by another version of flashmoe"));
    }
    let (count, tokens) = ((word(8) >> 32) as usize, word(24));
    if !(1..=POINTS_MAX).contains(&count) || tokens == 0 || tokens > TOKENS_MAX {
        return Err(SlotFault::Foreign("is damaged"));
    }
    let wrong = || SlotFault::Foreign("is damaged: its length is wrong");
    let mut points: Vec<(usize, u64)> = Vec::with_capacity(count);
    let mut all = (HEADER + count * POINT + CHECKSUM_BYTES) as u64 + tokens * 4;
    let mut most = tokens;
    for index in 0..count {
        let mut bytes = [0; POINT];
        input.read_exact(&mut bytes)?;
        let word = words(&bytes);
        let (own, page, rest) = (word(0), word(8), word(16));
        if own == 0 || own > most || index == 0 && own != tokens {
            return Err(wrong());
        }
        let pages = page.checked_mul(own / PAGE_TOKENS as u64);
        let state = pages.and_then(|pages| pages.checked_add(rest)).ok_or_else(wrong)?;
        all = all.checked_add(state).ok_or_else(wrong)?;
        points.push((own as usize, state));
        most = own - 1;
    }
    let domain = Domain([word(32), word(40)]);
    if all == length { Ok(Header { fingerprint: word(16), domain, points }) } else { Err(wrong()) }
}

/// The domain of the file at `path`, where there is a file of a slot.
pub(in crate::work) fn slot_domain(path: &Path) -> Result<Domain, SlotFault> {
    let file = open_regular(path, Links::Refused)?;
    let length = file.metadata()?.len();
    Ok(header(&mut BufReader::new(file), length)?.domain)
}

/// Bytes of the file of these points, the longest first.
pub(in crate::work) fn slot_bytes(points: &[&Snapshot]) -> u64 {
    let tokens = points.first().map_or(0, |longest| longest.length());
    let before = (HEADER + points.len() * POINT + tokens * 4 + CHECKSUM_BYTES) as u64;
    let state = |it: &&Snapshot| full_pages(it) as u64 * it.page_bytes() + it.rest_bytes();
    before + points.iter().map(state).sum::<u64>()
}

/// Pages that are written before the rest; none of a snapshot without pages.
fn full_pages(snapshot: &Snapshot) -> usize {
    if snapshot.page_bytes() == 0 { 0 } else { snapshot.full_pages() }
}

/// Writes the file of `tokens` whole or not at all: `points` of them, the longest first. `beat` is called all the
/// while.
pub(in crate::work) fn write_slot(
    path: &Path,
    fingerprint: u64,
    domain: Domain,
    tokens: &[u32],
    points: &[&Snapshot],
    beat: &dyn Fn(),
) -> Result<(), SlotFault> {
    let mut gate = |_: usize| {
        beat();
        Ok(())
    };
    write_file(path, &mut gate, |out| {
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&(points.len() as u32).to_le_bytes())?;
        let [first, second] = domain.0;
        for word in [fingerprint, tokens.len() as u64, first, second] {
            out.write_all(&word.to_le_bytes())?;
        }
        for point in points {
            for word in [point.length() as u64, point.page_bytes(), point.rest_bytes()] {
                out.write_all(&word.to_le_bytes())?;
            }
        }
        write_ids(out, tokens)?;
        points.iter().try_for_each(|point| {
            (0..full_pages(point)).try_for_each(|index| point.write_page(index, out))?;
            point.write_rest(out)
        })
    })
    .map_err(SlotFault::Io)?;
    sync_folder(path).map_err(SlotFault::Io)
}

/// Reads a state of so many tokens, or says that there is no room.
type Take<'a> = dyn FnMut(usize, &mut dyn Read) -> io::Result<Option<Snapshot>> + 'a;

/// A slot's file whose header and tokens are known to be right, before its state.
pub(in crate::work) struct SlotReader {
    pub(in crate::work) tokens: Arc<[u32]>,
    /// Of the file.
    pub(in crate::work) bytes: u64,
    input: Summed,
    /// Tokens and bytes of each point.
    points: Vec<(usize, u64)>,
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
        let Header { fingerprint: of, domain: whose, points } = header(&mut input, bytes)?;
        let tokens = points[0].0;
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
        Ok(Self { tokens, bytes, input, points })
    }

    /// The states that there is room for, the longest first: `take` reads that of so many tokens, or says that there is
    /// no room. Nothing of them is used before the checksum is right.
    pub(in crate::work) fn read(
        mut self,
        take: &mut Take<'_>,
    ) -> Result<(Arc<[u32]>, Vec<Snapshot>), SlotFault> {
        let mut snapshots = Vec::new();
        for (tokens, state) in std::mem::take(&mut self.points) {
            let mut content = (&mut self.input).take(state);
            match take(tokens, &mut content)? {
                Some(snapshot) => snapshots.push(snapshot),
                None if snapshots.is_empty() => return Err(SlotFault::Room),
                // The checksum is that of all.
                None => _ = io::copy(&mut content, &mut io::sink())?,
            }
            if content.limit() > 0 {
                return Err(SlotFault::Foreign("is damaged: its state has another size"));
            }
        }
        let sum = self.input.hash.finish();
        let mut stored = [0; CHECKSUM_BYTES];
        self.input.file.read_exact(&mut stored)?;
        if u64::from_le_bytes(stored) != sum {
            return Err(SlotFault::Foreign("is damaged: its checksum does not match"));
        }
        Ok((self.tokens, snapshots))
    }
}

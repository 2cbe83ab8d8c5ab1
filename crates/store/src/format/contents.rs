//! What a model is by its bytes: the same number on every host that has the same model, whatever the times and names of
//! its files.
//!
//! A native pack has sums of all its records, so its number costs nothing. Files of other layouts are read once; where
//! there is a note of the last time, a file that has its length and times has its sum.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::Path;

use twox_hash::XxHash3_64;

use super::{Checkpoint, CheckpointFile, PackInfo};
use crate::io::platform::{Links, forget_pages, open_regular, read_regular};
use crate::io::{Readers, replace};
use crate::shown;

const BUFFER_BYTES: usize = 1 << 20;
/// Read pages are given back this often: the engine needs the memory.
const FORGET_BYTES: u64 = 64 << 20;
/// Files that a note knows at most.
const NOTED: usize = 4096;
/// Each takes a line of two numbers of sixteen digits.
const NOTE_BYTES_MAX: u64 = 34 * NOTED as u64;

impl Checkpoint {
    /// Bytes that [`Checkpoint::contents`] reads, where nothing is noted.
    pub fn contents_bytes(&self) -> u64 {
        if self.pack.is_some() { 0 } else { self.file_bytes() }
    }

    /// A number of everything that decides what the model computes: configuration, layout, and all bytes of its tensors
    /// (of a pack its recorded sums, which `verify` compares with the bytes). `note` is a file that remembers sums.
    ///
    /// # Errors
    /// A file cannot be read, or the note not be written.
    pub fn contents(&self, note: Option<&Path>) -> io::Result<u64> {
        let mut hasher = XxHash3_64::new();
        hasher.write(self.kind.name().as_bytes());
        hasher.write(self.config.json().to_string().as_bytes());
        hasher.write(&[u8::from(self.norms_are_zero_centred)]);
        for (name, tensor) in &self.tensors {
            let told = format!("{name} {:?} {:?} ", tensor.shape, tensor.element);
            hasher.write(told.as_bytes());
        }
        for layer in self.experts.iter().flatten() {
            hasher.write(format!("{:?} {} ", layer.shapes, layer.experts.len()).as_bytes());
        }
        match &self.pack {
            Some(pack) => pack_sums(pack, &mut hasher),
            None => {
                let mut noted = note.map(Noted::read).unwrap_or_default();
                for file in &self.files {
                    hasher.write(&file.length.to_le_bytes());
                    hasher.write(&noted.sum(file)?.to_le_bytes());
                }
                if let Some(note) = note.filter(|_| noted.changed) {
                    noted.write(note).map_err(|error| named(note, error))?;
                }
            }
        }
        Ok(hasher.finish())
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown::path(path)))
}

fn pack_sums(pack: &PackInfo, hasher: &mut XxHash3_64) {
    hasher.write(&pack.version.to_le_bytes());
    for (name, extent, sum) in &pack.trunk {
        hasher.write(name.as_bytes());
        for number in [extent.offset, extent.length, *sum] {
            hasher.write(&number.to_le_bytes());
        }
    }
    let rows = pack.rows.iter().map(|(_, sums)| sums);
    pack.records.iter().chain(rows).flatten().for_each(|sum| hasher.write(&sum.to_le_bytes()));
}

/// Sums of files by what identifies them on this host.
#[derive(Default)]
struct Noted {
    sums: BTreeMap<u64, u64>,
    changed: bool,
}

impl Noted {
    /// Lines of two numbers, sixteen digits each; others do not count.
    fn read(path: &Path) -> Self {
        let text = read_regular(path, Links::Refused, NOTE_BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8(text).unwrap_or_default();
        let number = |word: Option<&str>| u64::from_str_radix(word?, 16).ok();
        let pair = |line: &str| {
            let mut words = line.split(' ');
            Some((number(words.next())?, number(words.next())?))
        };
        Self { sums: text.lines().take(NOTED).filter_map(pair).collect(), changed: false }
    }

    fn sum(&mut self, file: &CheckpointFile) -> io::Result<u64> {
        let mut identity = XxHash3_64::new();
        identity.write(file.path.canonicalize()?.as_os_str().as_encoded_bytes());
        identity.write(&file.length.to_le_bytes());
        identity.write(&file.modified_ns.to_le_bytes());
        identity.write(&file.changed_ns.to_le_bytes());
        let identity = identity.finish();
        if let Some(sum) = self.sums.get(&identity) {
            return Ok(*sum);
        }
        let sum = read_sum(&file.path).map_err(|error| named(&file.path, error))?;
        if self.sums.len() >= NOTED {
            self.sums.clear();
        }
        self.sums.insert(identity, sum);
        self.changed = true;
        Ok(sum)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let lines = self.sums.iter().map(|(identity, sum)| format!("{identity:016x} {sum:016x}\n"));
        replace(path, Readers::Owner, lines.collect::<String>().as_bytes())
    }
}

fn read_sum(path: &Path) -> io::Result<u64> {
    let mut file = open_regular(path, Links::Followed)?;
    let mut hasher = XxHash3_64::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut at, mut kept_from) = (0, 0);
    loop {
        let count = file.read(&mut buffer)?;
        at += count as u64;
        if count == 0 || at - kept_from >= FORGET_BYTES {
            forget_pages(&file, kept_from, at - kept_from);
            kept_from = at;
        }
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.write(&buffer[..count]);
    }
}

//! Native packs: writing and verifying them.
//!
//! A pack is written into `NAME.partial` beside its destination: the trunk, one file per layer, the
//! checksum table, the copied files, and last the manifest; then the folder is renamed. Each finished
//! file is synced before the journal names it, so a killed run goes on at the file that it was writing
//! and ends with the same bytes as an uninterrupted one. A lock on the folder keeps a second packer
//! out. One thread reads ahead while another sums and writes; memory is a few chunks of 32 MiB (or of
//! one record, where that is larger).

mod fs;
mod journal;
mod plan;
mod verify;

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use thiserror::Error;
use twox_hash::XxHash3_64;

use crate::format::manifest::{Copied, Hex, Table};
use crate::format::{self, Checkpoint, FormatError, JOURNAL, files, layout, native, sidecar};
use journal::Journal;
use plan::{Chunk, OutputFile, Plan};

pub use fs::{PackFile, PackFs, RealFs};
pub use verify::{VerifyReport, verify};

/// Chunks in flight between reader and writer.
const CHUNKS_AHEAD: usize = 2;
/// Longest single read; neighbouring pieces are fetched together up to this.
const READ_BYTES_MAX: usize = 8 << 20;
/// Room for manifest, checksums and the file system's own bookkeeping.
const SPARE_BYTES: u64 = 16 << 20;
/// tokenizer.json and its neighbours: the largest known has 35 MB.
const COPIED_BYTES_MAX: u64 = 256 << 20;

/// Choices of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackOptions {
    /// Compute sizes only; write nothing.
    pub dry_run: bool,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackProgress {
    /// Bytes written or found finished.
    pub done_bytes: u64,
    /// Bytes of trunk and experts.
    pub total_bytes: u64,
}

/// What a run did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackReport {
    /// Bytes of trunk.bin.
    pub trunk_bytes: u64,
    /// Bytes of all layer files.
    pub expert_bytes: u64,
    /// Bytes that an earlier, killed run had finished.
    pub resumed_bytes: u64,
}

/// A pack that could not be written.
#[derive(Debug, Error)]
pub enum PackError {
    /// The source, or a finished pack, cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}; run the same command again to go on", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The destination is there already.
    #[error("{}: exists; remove it or choose another destination", path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// Another packer is at work.
    #[error("{}: another pack command is writing here; wait for it", path.display())]
    Locked {
        /// The unfinished folder.
        path: PathBuf,
    },
    /// The unfinished pack beside the destination belongs to other work.
    #[error("{}: was begun from another or changed source; remove this folder to start over", path.display())]
    OtherWork {
        /// The unfinished folder.
        path: PathBuf,
    },
    /// A file of the source is not what it was at open.
    #[error("{}: changed since it was opened; open the checkpoint again", path.display())]
    SourceChanged {
        /// The file.
        path: PathBuf,
    },
    /// Too little space.
    #[error("{}: {needed} bytes are needed, {free} are free; free some or pack elsewhere", path.display())]
    Space {
        /// Where.
        path: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Bytes available.
        free: u64,
    },
    /// The source holds a shape that a pack cannot.
    #[error("the source holds a matrix too large for a pack")]
    Shape,
    /// The caller stopped it.
    #[error("stopped; run the same command again to go on")]
    Stopped,
}

impl PackError {
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}

fn write_all(file: &mut dyn PackFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Called with the state after every chunk; `Break` stops the run, which can be resumed.
pub type Progress<'a> = dyn FnMut(PackProgress) -> ControlFlow<()> + 'a;

/// Packs `source`, every encoding kept, into the folder `destination`.
pub fn pack(
    source: &Checkpoint,
    destination: &Path,
    options: PackOptions,
    progress: &mut Progress<'_>,
) -> Result<PackReport, PackError> {
    pack_on(&RealFs, source, destination, options, progress)
}

/// [`pack`] on any file system: how tests inject faults.
pub fn pack_on(
    fs: &dyn PackFs,
    source: &Checkpoint,
    destination: &Path,
    options: PackOptions,
    progress: &mut Progress<'_>,
) -> Result<PackReport, PackError> {
    let plan = Plan::new(source).ok_or(PackError::Shape)?;
    let trunk_bytes = plan.manifest.trunk_bytes;
    let mut report =
        PackReport { trunk_bytes, expert_bytes: plan.bytes() - trunk_bytes, resumed_bytes: 0 };
    if options.dry_run {
        return Ok(report);
    }
    let mut name = destination.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let at = |action: &'static str| move |path: &Path, error| PackError::io(path, action, error);
    fs.create_folder(&partial).map_err(|error| at("create")(&partial, error))?;
    let lock = File::open(&partial).map_err(|error| at("open")(&partial, error))?;
    lock.try_lock().map_err(|_| PackError::Locked { path: partial.clone() })?;
    if destination.symlink_metadata().is_ok() {
        return Err(PackError::Exists { path: destination.to_owned() });
    }
    let experts = partial.join(layout::EXPERTS);
    fs.create_folder(&experts).map_err(|error| at("create")(&experts, error))?;

    let identity = identity(source);
    let journal_path = partial.join(JOURNAL);
    let finished = resume(&journal_path, &identity, &partial, &plan)?;
    for file in &plan.files[..finished.len()] {
        report.resumed_bytes += file.bytes;
    }
    let needed = plan.bytes() - report.resumed_bytes + SPARE_BYTES;
    let free = fs.free_bytes(&partial).map_err(|error| at("examine")(&partial, error))?;
    if free < needed {
        return Err(PackError::Space { path: partial, needed, free });
    }
    let mut journal = Journal::create(fs, &journal_path, &identity, &finished)?;
    let mut state = PackProgress { done_bytes: report.resumed_bytes, total_bytes: plan.bytes() };
    let opened = open_source(source)?;
    let mut sums = finished;
    for file in &plan.files[sums.len()..] {
        let path = partial.join(&file.name);
        let file_sums = write_file(fs, source, &opened, file, &path, &mut state, progress)?;
        journal.finished(&journal_path, &file_sums)?;
        sums.push(file_sums);
    }
    finish(fs, source, plan, &partial, &sums)?;
    fs.remove(&journal_path).map_err(|error| at("remove")(&journal_path, error))?;
    fs.rename(&partial, destination).map_err(|error| at("rename")(&partial, error))?;
    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs.sync_folder(parent).map_err(|error| at("sync")(parent, error))?;
    Ok(report)
}

/// Everything that decides the bytes of the result, and the source's state.
fn identity(source: &Checkpoint) -> String {
    let mut hasher = XxHash3_64::new();
    hasher.write(&source.fingerprint().to_le_bytes());
    for file in &source.files {
        hasher.write(&file.modified_ns.to_le_bytes());
    }
    format!("flashmoe-pack-journal {} {:016x}", layout::VERSION, hasher.finish())
}

/// Checksums of the files that an earlier run finished.
fn resume(
    journal: &Path,
    identity: &str,
    partial: &Path,
    plan: &Plan,
) -> Result<Vec<Vec<u64>>, PackError> {
    let Some((found, mut finished)) = Journal::read(journal)? else { return Ok(Vec::new()) };
    if found != identity || finished.len() > plan.files.len() {
        return Err(PackError::OtherWork { path: partial.to_owned() });
    }
    let whole = plan.files.iter().take_while(|file| {
        let metadata = partial.join(&file.name).symlink_metadata();
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    });
    finished.truncate(whole.count());
    Ok(finished)
}

fn open_source(source: &Checkpoint) -> Result<Vec<File>, PackError> {
    let open = |known: &format::CheckpointFile| {
        let opened = files::open_regular(&known.path)?;
        if (opened.length, opened.modified_ns) != (known.length, known.modified_ns) {
            return Err(PackError::SourceChanged { path: known.path.clone() });
        }
        Ok(opened.file)
    };
    source.files.iter().map(open).collect()
}

/// Writes one file; its checksums are returned.
fn write_file(
    fs: &dyn PackFs,
    source: &Checkpoint,
    opened: &[File],
    file: &OutputFile,
    path: &Path,
    state: &mut PackProgress,
    progress: &mut Progress<'_>,
) -> Result<Vec<u64>, PackError> {
    let failed = |error| PackError::io(path, "write", error);
    let mut output = fs.create(path).map_err(failed)?;
    let chunks = file.chunks(source);
    let mut sums = Vec::new();
    let mut hasher = XxHash3_64::new();
    std::thread::scope(|scope| {
        let (filled_sender, filled) = sync_channel(CHUNKS_AHEAD);
        let (empty_sender, empty) = sync_channel(CHUNKS_AHEAD + 2);
        let chunks = &chunks;
        scope.spawn(move || read_chunks(source, opened, chunks, &empty, &filled_sender));
        for chunk in chunks {
            // The reader ends early only after it has sent its error.
            let buffer: Vec<u8> = filled.recv().unwrap_or(Err(PackError::Stopped))?;
            let mut rest = &buffer[..];
            for &(bytes, ends) in &chunk.sums {
                let (covered, after) = rest.split_at(bytes as usize);
                hasher.write(covered);
                rest = after;
                if ends {
                    sums.push(hasher.finish());
                    hasher = XxHash3_64::new();
                }
            }
            write_all(output.as_mut(), &buffer).map_err(failed)?;
            state.done_bytes += chunk.bytes;
            if progress(*state).is_break() {
                return Err(PackError::Stopped);
            }
            // The reader may have finished and need no more buffers.
            let _ = empty_sender.send(buffer);
        }
        Ok(())
    })?;
    output.sync().map_err(failed)?;
    Ok(sums)
}

fn read_chunks(
    source: &Checkpoint,
    opened: &[File],
    chunks: &[Chunk],
    empty: &Receiver<Vec<u8>>,
    filled: &SyncSender<Result<Vec<u8>, PackError>>,
) {
    let mut staging = Vec::new();
    for chunk in chunks {
        let mut buffer = empty.try_recv().unwrap_or_default();
        // Padding must be zero, whatever the buffer held before.
        buffer.clear();
        buffer.resize(chunk.bytes as usize, 0);
        let read = read_chunk(source, opened, chunk, &mut staging, &mut buffer);
        let failed = read.is_err();
        if filled.send(read.map(|()| buffer)).is_err() || failed {
            return;
        }
    }
}

/// Fills `buffer`; pieces that are neighbours in the source are read at once.
fn read_chunk(
    source: &Checkpoint,
    opened: &[File],
    chunk: &Chunk,
    staging: &mut Vec<u8>,
    buffer: &mut [u8],
) -> Result<(), PackError> {
    let mut copies = &chunk.copies[..];
    while let Some(&(first, to)) = copies.first() {
        let mut end = first.offset + first.length;
        let mut count = 1;
        while let Some(&(next, _)) = copies.get(count) {
            let joined = next.offset + next.length - first.offset;
            if (next.file, next.offset) != (first.file, end) || joined > READ_BYTES_MAX as u64 {
                break;
            }
            end += next.length;
            count += 1;
        }
        let index = first.file.0 as usize;
        let failed = |error| PackError::io(&source.files[index].path, "read", error);
        if count == 1 {
            let place = &mut buffer[to as usize..][..first.length as usize];
            opened[index].read_exact_at(place, first.offset).map_err(failed)?;
        } else {
            staging.resize((end - first.offset) as usize, 0);
            opened[index].read_exact_at(staging, first.offset).map_err(failed)?;
            for (extent, to) in &copies[..count] {
                let from = (extent.offset - first.offset) as usize;
                let piece = &staging[from..][..extent.length as usize];
                buffer[*to as usize..][..piece.len()].copy_from_slice(piece);
            }
        }
        copies = &copies[count..];
    }
    Ok(())
}

/// Checksum table, copied files, manifest: the small files, in this order.
fn finish(
    fs: &dyn PackFs,
    source: &Checkpoint,
    mut plan: Plan,
    partial: &Path,
    sums: &[Vec<u64>],
) -> Result<(), PackError> {
    let write = |name: &str, bytes: &[u8]| {
        let path = partial.join(name);
        let written = fs.create(&path).and_then(|mut file| {
            write_all(file.as_mut(), bytes)?;
            file.sync()
        });
        written.map_err(|error| PackError::io(&path, "write", error))
    };
    let trunk = sums.first().map_or(0, Vec::len);
    let records = sums.iter().skip(1).map(Vec::len).sum();
    let mut table = native::table_header(trunk, records).to_vec();
    table.extend(sums.iter().flatten().flat_map(|sum| sum.to_le_bytes()));
    write(layout::CHECKSUMS, &table)?;
    let xxh3 = Hex(XxHash3_64::oneshot(&table));
    plan.manifest.checksums = Table { bytes: table.len() as u64, xxh3 };
    for name in sidecar::FILES {
        if let Some(path) = files::find(&source.root, name)? {
            let bytes = files::read_small(&path, COPIED_BYTES_MAX)?;
            write(name, &bytes)?;
            let (length, xxh3) = (bytes.len() as u64, Hex(XxHash3_64::oneshot(&bytes)));
            plan.manifest.copied.push(Copied { name: name.to_owned(), bytes: length, xxh3 });
        }
    }
    for folder in [&partial.join(layout::EXPERTS), partial] {
        fs.sync_folder(folder).map_err(|error| PackError::io(folder, "sync", error))?;
    }
    write(layout::MANIFEST, &plan.manifest.to_bytes())?;
    fs.sync_folder(partial).map_err(|error| PackError::io(partial, "sync", error))
}

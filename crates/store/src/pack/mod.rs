//! Native packs: writing and verifying them.
//!
//! A pack is written into `NAME.partial` next to its destination: the trunk, one file per layer, tables
//! of rows, the checksum table, the copied files, and last the manifest; then the folder is renamed. Each finished
//! file is synced before the journal names it, so a killed run goes on at the file that it was writing
//! and ends with the same bytes as an uninterrupted one. A lock on the folder keeps a second packer
//! out, and one that this packer did not begin is refused (`folder.rs`).
//! Some threads read ahead (and encode, with all processors, what the recipe changes) while one sums,
//! one writes and one syncs (`pipeline.rs`), past the page cache where the file system can; memory is at
//! most seven chunks of 32 MiB (or of one record, where that is larger) and the reads in flight.

mod direct;
mod fill;
mod finite;
mod folder;
mod fs;
mod journal;
mod pipeline;
mod plan;
mod recipe;
mod rows;
mod turn;
mod verify;

use std::hash::Hasher;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thiserror::Error;
use twox_hash::XxHash3_64;

use crate::format::manifest::{Copied, Hex, Table};
use crate::format::{
    self, Checkpoint, FormatError, JOURNAL, Requantised, files, layout, native, sidecar,
};
use direct::SourceFile;
use folder::Claimed;
pub use journal::read_journal;
use journal::{Finished, Journal};
use kernels::quantize;
use pipeline::{Work, write_files};
use plan::Plan;

pub use fs::{PackFile, PackFs, RealFs};
pub use recipe::{Precision, Recipe};
pub use verify::{VerifyReport, verify};

/// Room for manifest, checksums and the file system's own bookkeeping.
const SPARE_BYTES: u64 = 16 << 20;

/// Choices of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackOptions {
    /// Compute sizes only; write nothing.
    pub dry_run: bool,
    /// What the pack changes.
    pub recipe: Recipe,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackProgress {
    /// Bytes written or found finished.
    pub done_bytes: u64,
    /// Bytes of trunk, experts and rows.
    pub total_bytes: u64,
}

/// What a run did, or would do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackReport {
    /// Bytes of trunk.bin.
    pub trunk_bytes: u64,
    /// Bytes of all layer files.
    pub expert_bytes: u64,
    /// Bytes of all files of rows.
    pub row_bytes: u64,
    /// Bytes that an earlier, killed run had finished.
    pub resumed_bytes: u64,
    /// Every matrix whose encoding was changed, with its error; empty in a dry run.
    pub requantised: Vec<Requantised>,
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
    #[error(
        "{}: was begun from another or changed source, or with another recipe; remove it to start over",
        path.display()
    )]
    OtherWork {
        /// The unfinished folder.
        path: PathBuf,
    },
    /// What lies where the unfinished pack would be was not begun by this user's packer.
    #[error("{}: {problem}; remove it or choose another destination", path.display())]
    Foreign {
        /// The unfinished folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
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
    /// The recipe does not fit a matrix.
    #[error(
        "{} cannot be encoded: {problem}; choose another group or keep its precision",
        crate::shown::shown(name)
    )]
    Recipe {
        /// The matrix.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The source holds a number that is none, for which a pack's checksums would vouch.
    #[error(
        "{}: {}: a value that is not finite at byte {offset}; download the model again",
        path.display(), crate::shown::shown(name)
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor, or layer and expert.
        name: String,
        /// Its first byte in the file.
        offset: u64,
    },
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

/// Packs `source` into the folder `destination`.
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
    // A head is kept.
    let whole = source.clone().with_any_head();
    let source = &whole;
    let plan = Plan::new(source, &options.recipe)?;
    let trunk_bytes = plan.manifest.trunk_bytes;
    let row_bytes = plan.manifest.row_tables.iter().map(|table| table.bytes).sum();
    let expert_bytes = plan.bytes() - trunk_bytes - row_bytes;
    let mut report = PackReport { trunk_bytes, expert_bytes, row_bytes, ..PackReport::default() };
    if options.dry_run {
        return Ok(report);
    }
    // Read first: what is wrong with a tokenizer is better said before hours of writing.
    let copied = sidecar::copies(source)?;
    let identity = identity(source, &options.recipe);
    let at = |action: &'static str| move |path: &Path, error| PackError::io(path, action, error);
    if destination.symlink_metadata().is_ok() {
        let done = finish_renamed(fs, destination, &identity, &plan)?;
        report.resumed_bytes = plan.bytes();
        report.requantised = requantised(&plan, &done);
        return Ok(report);
    }
    let mut name = destination.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let Claimed { _lock, finished } = folder::claim(fs, &partial, &identity, &plan)?;
    let journal_path = partial.join(JOURNAL);
    for file in &plan.files[..finished.len()] {
        report.resumed_bytes += file.bytes;
    }
    check_space(fs, &partial, plan.bytes() - report.resumed_bytes + SPARE_BYTES)?;
    // The journal comes first: what else is in the folder is ours because there is one.
    let mut journal = Journal::create(fs, &journal_path, &identity, &finished)?;
    let experts = partial.join(layout::EXPERTS);
    fs.create_folder(&experts).map_err(|error| at("create")(&experts, error))?;
    let mut state = PackProgress { done_bytes: report.resumed_bytes, total_bytes: plan.bytes() };
    let opened = open_source(source)?;
    let mut done = finished;
    let work = Work {
        fs,
        source,
        opened: &opened,
        folder: &partial,
        method: options.recipe.method,
        files: &plan.files[done.len()..],
    };
    let written = write_files(&work, &mut journal, &journal_path, &mut state, progress)?;
    // Windows renames no folder in which a file is open.
    drop(journal);
    done.extend(written);
    report.requantised = requantised(&plan, &done);
    finish(fs, plan, copied, &partial, &done, &report.requantised)?;
    fs.rename(&partial, destination).map_err(|error| at("rename")(&partial, error))?;
    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs.sync_folder(parent).map_err(|error| at("sync")(parent, error))?;
    let journal_path = destination.join(JOURNAL);
    fs.remove(&journal_path).map_err(|error| at("remove")(&journal_path, error))?;
    Ok(report)
}

fn check_space(fs: &dyn PackFs, folder: &Path, needed: u64) -> Result<(), PackError> {
    let free = fs.free_bytes(folder).map_err(|error| PackError::io(folder, "examine", error))?;
    match free < needed {
        true => Err(PackError::Space { path: folder.to_owned(), needed, free }),
        false => Ok(()),
    }
}

/// What a run that was killed after the rename has left is a whole pack with its journal: the journal alone is to be
/// removed. Anything else at `destination` is refused.
fn finish_renamed(
    fs: &dyn PackFs,
    destination: &Path,
    identity: &str,
    plan: &Plan,
) -> Result<Vec<Finished>, PackError> {
    let journal = destination.join(JOURNAL);
    match Journal::read(&journal)? {
        Some((found, done)) if found == identity && done.len() == plan.files.len() => {
            let removed = fs.remove(&journal);
            removed.map_err(|error| PackError::io(&journal, "remove", error))?;
            Ok(done)
        }
        _ => Err(PackError::Exists { path: destination.to_owned() }),
    }
}

/// Everything that decides the bytes of the result, and the source's state.
fn identity(source: &Checkpoint, recipe: &Recipe) -> String {
    let mut hasher = XxHash3_64::new();
    hasher.write(recipe.to_json().to_string().as_bytes());
    hasher.write(&source.fingerprint().to_le_bytes());
    for file in &source.files {
        hasher.write(&file.modified_ns.to_le_bytes());
    }
    format!("flashmoe-pack-journal {} {:016x}", layout::VERSION, hasher.finish())
}

/// The matrices that were encoded anew, with their errors.
fn requantised(plan: &Plan, done: &[Finished]) -> Vec<Requantised> {
    let files = plan.files.iter().zip(done);
    let matrices = files.flat_map(|(file, done)| file.matrices.iter().zip(&done.errors));
    let report = |(matrix, error): (&plan::EncodedMatrix, &quantize::Error)| Requantised {
        name: matrix.name.clone(),
        from: matrix.from,
        to: matrix.to,
        rmse: error.rmse(),
        relative: error.relative(),
        largest: error.largest,
    };
    matrices.map(report).collect()
}

fn open_source(source: &Checkpoint) -> Result<Vec<SourceFile>, PackError> {
    let open = |known: &format::CheckpointFile| {
        let opened = files::open_regular(&known.path)?;
        // The time of change as well: a file can be written over and its time of modification set back.
        let found = (opened.length, opened.modified_ns, opened.changed_ns);
        if found != (known.length, known.modified_ns, known.changed_ns) {
            return Err(PackError::SourceChanged { path: known.path.clone() });
        }
        Ok(SourceFile::new(opened.file, &known.path))
    };
    source.files.iter().map(open).collect()
}

/// Checksum table, copied files, manifest: the small files, in this order.
fn finish(
    fs: &dyn PackFs,
    mut plan: Plan,
    copied: Vec<(&'static str, Vec<u8>)>,
    partial: &Path,
    done: &[Finished],
    requantised: &[Requantised],
) -> Result<(), PackError> {
    let write = |name: &str, bytes: &[u8]| {
        let path = partial.join(name);
        let written = fs.create(&path).and_then(|mut file| {
            write_all(file.as_mut(), bytes)?;
            file.sync()
        });
        written.map_err(|error| PackError::io(&path, "write", error))
    };
    let trunk = done.first().map_or(0, |file| file.sums.len());
    let records = done.iter().skip(1).map(|file| file.sums.len()).sum();
    let mut table = native::table_header(trunk, records).to_vec();
    let sums = done.iter().flat_map(|file| &file.sums);
    table.extend(sums.flat_map(|sum| sum.to_le_bytes()));
    write(layout::CHECKSUMS, &table)?;
    let xxh3 = Hex(XxHash3_64::oneshot(&table));
    plan.manifest.checksums = Table { bytes: table.len() as u64, xxh3 };
    plan.manifest.note_errors(requantised);
    for (name, bytes) in copied {
        write(name, &bytes)?;
        let (length, xxh3) = (bytes.len() as u64, Hex(XxHash3_64::oneshot(&bytes)));
        plan.manifest.copied.push(Copied { name: name.to_owned(), bytes: length, xxh3 });
    }
    for folder in [&partial.join(layout::EXPERTS), partial] {
        fs.sync_folder(folder).map_err(|error| PackError::io(folder, "sync", error))?;
    }
    write(layout::MANIFEST, &plan.manifest.to_bytes())?;
    fs.sync_folder(partial).map_err(|error| PackError::io(partial, "sync", error))
}

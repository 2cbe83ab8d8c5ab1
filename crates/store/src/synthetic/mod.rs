//! Checkpoints whose bytes a function makes: real layouts of any size without a source to convert.
//!
//! A [`GeneratedModel`] names tensors, shapes and encodings; [`write()`] lays them out as a native pack or
//! as MLX files and asks a [`Content`] for the bytes, piece by piece, on several threads. The content of a
//! piece depends on nothing but its name, so neither threads nor layout change it. Everything is written
//! under a temporary name and renamed when it is whole and on the disk; sizes are bytes.

pub mod gguf;
mod mlx;
mod native;

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use twox_hash::XxHash3_64;

use crate::format::{Element, Projection, ProjectionShape};
use crate::io::platform::{self, FileExt, Links};
use crate::record::Piece;

/// Longest tokenizer.json.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// Bytes that a thread makes before it writes them.
const BUFFER_BYTES: usize = 4 << 20;
/// Written bytes after which a file is brought to the disk, so that the end does not wait for the
/// whole model in the page cache.
const SYNC_BYTES: u64 = 1 << 30;
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// What went wrong with a generated checkpoint.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// A tensor cannot exist in the encoding asked for.
    #[error("{name}: {reason}; another group size or encoding may fit")]
    Shape {
        /// Canonical name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The destination is there already.
    #[error("{0} exists already; delete it or give another name")]
    Exists(PathBuf),
    /// The disk is too small.
    #[error("{path}: the checkpoint takes {needed} bytes, {free} are free")]
    Space {
        /// Where it was to go.
        path: PathBuf,
        /// Bytes of the checkpoint.
        needed: u64,
        /// Bytes that the file system has.
        free: u64,
    },
    /// The system refused an operation.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// The tokenizer that a model is generated with.
fn tokenizer_bytes(path: &Path) -> Result<Vec<u8>, GenerateError> {
    platform::read_regular(path, Links::Followed, TOKENIZER_BYTES_MAX).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> GenerateError + '_ {
    move |source| GenerateError::Io { path: path.to_owned(), source }
}

/// A tensor outside the routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedTensor {
    /// Canonical name ([`crate::format::Checkpoint`]).
    pub name: String,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Type of the values.
    pub element: Element,
}

/// The routed experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedExperts {
    /// Gate, up, down.
    pub shapes: [ProjectionShape; 3],
    /// How many.
    pub experts: usize,
}

/// A model to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedModel {
    /// config.json, quantisation included.
    pub config: Value,
    /// What MLX puts before `model.` in tensor names.
    pub prefix: &'static str,
    /// Everything outside the routed experts, in file order. Norms are stored as they are used.
    pub tensors: Vec<GeneratedTensor>,
    /// One entry per layer; `None` for a layer without experts.
    pub layers: Vec<Option<GeneratedExperts>>,
    /// How the content was made, for the pack's manifest.
    pub recipe: Value,
    /// tokenizer.json to copy.
    pub tokenizer: Option<PathBuf>,
    /// Layers whose experts have files of their own, where not all have: the file of any other layer is a second name
    /// (hard link) of that of an earlier one with experts of the same shapes. Native packs only.
    pub distinct: Option<usize>,
}

/// Which layout to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratedLayout {
    /// Safetensors as mlx-lm writes them: stacked experts, shards of 5 GB, data at odd offsets.
    Mlx,
    /// Native pack.
    Native,
}

/// Whose bytes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Index into [`GeneratedModel::tensors`].
    Tensor(usize),
    /// One matrix of an expert.
    Expert {
        /// Layer.
        layer: usize,
        /// Expert.
        expert: usize,
        /// Matrix.
        projection: Projection,
    },
}

/// Makes bytes.
pub trait Content: Sync {
    /// Fills `out` with the bytes of `piece` from byte `start` on. `start` is a multiple of 64; the same
    /// request always has the same answer.
    fn fill(&self, owner: Owner, piece: Piece, start: u64, out: &mut [u8]);
}

/// Some of the bytes of a [`Job`].
#[derive(Clone, Copy, Debug)]
struct Segment {
    owner: Owner,
    piece: Piece,
    /// First byte inside the job.
    at: u64,
    bytes: u64,
}

/// A run of a file that one thread makes; what no segment covers is zero.
#[derive(Clone, Debug)]
struct Job {
    file: usize,
    offset: u64,
    bytes: u64,
    segments: Vec<Segment>,
    /// Nothing is written: the bytes are those of this job, whose file has a second name.
    copy_of: Option<usize>,
}

/// A file to be written.
#[derive(Clone, Debug)]
struct OutputFile {
    name: String,
    bytes: u64,
    /// First bytes, before those of any job.
    head: Vec<u8>,
    /// An earlier file that gets this as a second name.
    link_to: Option<usize>,
}

impl OutputFile {
    fn new(name: String, bytes: u64) -> Self {
        Self { name, bytes, head: Vec::new(), link_to: None }
    }
}

/// Bytes that files take on the disk.
fn disk_bytes(files: &[OutputFile]) -> u64 {
    files.iter().filter(|file| file.link_to.is_none()).map(|file| file.bytes).sum()
}

/// A checkpoint laid out.
struct Output {
    files: Vec<OutputFile>,
    jobs: Vec<Job>,
    /// Small files once the checksums of all jobs are known.
    finish: Finish,
}

type Finish = Box<dyn FnOnce(&[u64]) -> Vec<(String, Vec<u8>)>>;

/// Bytes that a user may still write to the file system of `path`.
///
/// # Errors
/// The path does not exist or cannot be asked.
pub fn free_bytes(path: &Path) -> Result<u64, GenerateError> {
    Ok(platform::space(path).map_err(failed(path))?.free)
}

fn lay_out(model: &GeneratedModel, layout: GeneratedLayout) -> Result<Output, GenerateError> {
    match layout {
        GeneratedLayout::Mlx => mlx::lay_out(model),
        GeneratedLayout::Native => native::lay_out(model),
    }
}

/// Bytes of the files that [`write()`] will make, small ones not counted. A second name takes none.
///
/// # Errors
/// A tensor that cannot exist.
pub fn required_bytes(
    model: &GeneratedModel,
    layout: GeneratedLayout,
) -> Result<u64, GenerateError> {
    Ok(disk_bytes(&lay_out(model, layout)?.files))
}

/// Writes a checkpoint to `destination`, which must not exist. `progress` hears the bytes done.
///
/// # Errors
/// A destination that exists, a disk that is too small (checked before anything is written), a failed
/// write, or [`GenerateError::Stopped`]. Nothing is left behind.
pub fn write(
    model: &GeneratedModel,
    layout: GeneratedLayout,
    destination: &Path,
    threads: usize,
    content: &dyn Content,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), GenerateError> {
    let output = lay_out(model, layout)?;
    if destination.symlink_metadata().is_ok() {
        return Err(GenerateError::Exists(destination.to_owned()));
    }
    let parent = destination.parent().filter(|path| !path.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let needed = disk_bytes(&output.files);
    let free = free_bytes(parent)?;
    if needed > free {
        return Err(GenerateError::Space { path: parent.to_owned(), needed, free });
    }
    let name = destination.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.unfinished"));
    if temporary.symlink_metadata().is_ok() {
        return Err(GenerateError::Exists(temporary));
    }
    fs::create_dir(&temporary).map_err(failed(&temporary))?;
    let done = fill_folder(&temporary, model, output, threads, content, progress)
        .and_then(|()| fs::rename(&temporary, destination).map_err(failed(destination)))
        .and_then(|()| sync_folder(parent));
    if done.is_err() {
        // The first failure is the one to report.
        let _ = fs::remove_dir_all(&temporary);
    }
    done
}

fn sync_folder(folder: &Path) -> Result<(), GenerateError> {
    platform::sync_folder(folder).map_err(failed(folder))
}

fn fill_folder(
    folder: &Path,
    model: &GeneratedModel,
    output: Output,
    threads: usize,
    content: &dyn Content,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), GenerateError> {
    let mut files = Vec::with_capacity(output.files.len());
    for file in &output.files {
        let path = folder.join(&file.name);
        if let Some(inside) = path.parent() {
            fs::create_dir_all(inside).map_err(failed(inside))?;
        }
        if let Some(first) = file.link_to {
            let first = folder.join(&output.files[first].name);
            fs::hard_link(&first, &path).map_err(failed(&path))?;
        }
        let opened = OpenOptions::new().write(true).create_new(file.link_to.is_none()).open(&path);
        let opened = opened.map_err(failed(&path))?;
        if file.link_to.is_none() {
            opened.set_len(file.bytes).map_err(failed(&path))?;
            opened.write_all_at(&file.head, 0).map_err(failed(&path))?;
        }
        files.push((path, opened));
    }
    let checksums = run(&files, &output.jobs, threads, content, progress)?;
    for (path, file) in &files {
        file.sync_all().map_err(failed(path))?;
        sync_folder(path.parent().unwrap_or(folder))?;
    }
    let mut small = (output.finish)(&checksums);
    if let Some(path) = &model.tokenizer {
        small.insert(0, ("tokenizer.json".to_owned(), tokenizer_bytes(path)?));
    }
    // The last one (a pack's manifest) is what makes the folder a checkpoint.
    for (name, bytes) in small {
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(failed(&path))?;
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(failed(&path))?;
    }
    sync_folder(folder)
}

/// Does all jobs; gives their checksums.
fn run(
    files: &[(PathBuf, File)],
    jobs: &[Job],
    threads: usize,
    content: &dyn Content,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<u64>, GenerateError> {
    let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let checksums: Vec<AtomicU64> = jobs.iter().map(|_| AtomicU64::new(0)).collect();
    let failure = Mutex::new(None);
    let work = || {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return };
            if job.copy_of.is_some() {
                continue;
            }
            let (path, file) = &files[job.file];
            let result = make(job, content, &mut buffer, file, &mut |bytes| {
                let before = done.fetch_add(bytes, Ordering::Relaxed);
                let sync = before / SYNC_BYTES != (before + bytes) / SYNC_BYTES;
                if sync { file.sync_data() } else { Ok(()) }
            });
            match result {
                Ok(checksum) => checksums[index].store(checksum, Ordering::Relaxed),
                Err(source) => {
                    let error = GenerateError::Io { path: path.clone(), source };
                    // An error or none: nothing that a panic could leave half done.
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            if progress(done.load(Ordering::Relaxed)).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(REPORT_INTERVAL);
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    if stop.load(Ordering::Relaxed) {
        return Err(GenerateError::Stopped);
    }
    let made: Vec<u64> = checksums.into_iter().map(AtomicU64::into_inner).collect();
    let of = |(index, job): (usize, &Job)| made[job.copy_of.unwrap_or(index)];
    Ok(jobs.iter().enumerate().map(of).collect())
}

/// Makes and writes the bytes of a job; gives their checksum.
fn make(
    job: &Job,
    content: &dyn Content,
    buffer: &mut Vec<u8>,
    file: &File,
    written: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut hasher = XxHash3_64::new();
    let mut start = 0;
    while start < job.bytes {
        let end = job.bytes.min(start + BUFFER_BYTES as u64);
        buffer.clear();
        buffer.resize((end - start) as usize, 0);
        for segment in &job.segments {
            let from = segment.at.max(start);
            let to = (segment.at + segment.bytes).min(end);
            if from < to {
                let out = &mut buffer[(from - start) as usize..(to - start) as usize];
                content.fill(segment.owner, segment.piece, from - segment.at, out);
            }
        }
        hasher.write(buffer);
        file.write_all_at(buffer, job.offset + start)?;
        written(end - start)?;
        start = end;
    }
    Ok(hasher.finish())
}

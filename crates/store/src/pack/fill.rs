//! Filling chunks: copies from the source, and matrices encoded anew by several threads.
//!
//! Results are put in place and errors are added up in the order of the tasks, so that neither bytes nor
//! error measures depend on the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::format::{Matrix, decode_row};
use kernels::quantize::{self, Encoded, Method};

use super::PackError;
use super::direct::{Aligned, SourceFile};
use super::finite::{self, Plane};
use super::plan::{Chunk, Copied, Encode, EncodedMatrix, OutputFile, Parameters};
use super::turn::{Planes, Turner};
use crate::format::{Checkpoint, Extent};

/// Longest single read; neighbouring pieces are fetched together up to this.
const READ_BYTES_MAX: usize = 4 << 20;

/// Reads in flight: one alone leaves the disk idle while its bytes are put in place.
const READS_AT_ONCE: usize = 8;

/// Fills the chunks of one output file after another, in order.
pub(super) struct Filler<'a> {
    source: &'a Checkpoint,
    opened: &'a [SourceFile],
    /// What is encoded anew in the file.
    matrices: &'a [EncodedMatrix],
    method: Method,
    threads: usize,
    staging: [Aligned; READS_AT_ONCE],
    /// Scales and biases of the tensor being encoded.
    kept: [Vec<u8>; 2],
    /// Error of each of the file's matrices so far.
    errors: Vec<quantize::Error>,
}

/// Neighbouring pieces of the source, and where each goes.
struct Run<'b> {
    whole: Extent,
    pieces: Vec<(Plane, &'b mut [u8])>,
}

impl Run<'_> {
    fn read(
        &mut self,
        source: &Checkpoint,
        opened: &[SourceFile],
        staging: &mut Aligned,
    ) -> Result<(), PackError> {
        let index = self.whole.file.0 as usize;
        let length = self.whole.length as usize;
        let path = &source.files[index].path;
        let failed = |error| PackError::io(path, "read", error);
        let staged = opened[index].stage(staging, self.whole.offset, length);
        let mut rest = staged.map_err(failed)?;
        for (plane, piece) in &mut self.pieces {
            let (bytes, after) = rest.split_at(piece.len());
            if let Some(wrong) = plane.first_wrong(bytes) {
                let offset = self.whole.offset + (length - rest.len() + wrong) as u64;
                let name = finite::owner(source, self.whole.file, offset);
                return Err(PackError::NotFinite { path: path.clone(), name, offset });
            }
            piece.copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }
}

/// Joins pieces, which are in source order, into runs of at most [`READ_BYTES_MAX`] (or one piece). Planes that an
/// encoding does not have are empty pieces, and left out.
fn runs<'b>(copies: &[Copied], mut buffer: &'b mut [u8]) -> Vec<Run<'b>> {
    let copies: Vec<Copied> =
        copies.iter().filter(|copied| copied.from.length > 0).copied().collect();
    let mut order: Vec<usize> = (0..copies.len()).collect();
    order.sort_unstable_by_key(|&index| copies[index].to);
    let mut places: Vec<Option<&mut [u8]>> = copies.iter().map(|_| None).collect();
    let mut begin = 0;
    for index in order {
        let Copied { from: extent, to, .. } = copies[index];
        let (_, from) = std::mem::take(&mut buffer).split_at_mut((to - begin) as usize);
        let (place, after) = from.split_at_mut(extent.length as usize);
        places[index] = Some(place);
        buffer = after;
        begin = to + extent.length;
    }
    let mut runs: Vec<Run<'b>> = Vec::new();
    for (Copied { from: extent, plane, .. }, place) in
        copies.iter().zip(places.into_iter().flatten())
    {
        if let Some(Run { whole, pieces }) = runs.last_mut() {
            let joined = whole.length + extent.length;
            let next = (whole.file, whole.offset + whole.length) == (extent.file, extent.offset);
            if next && joined <= READ_BYTES_MAX as u64 {
                whole.length = joined;
                pieces.push((*plane, place));
                continue;
            }
        }
        runs.push(Run { whole: *extent, pieces: vec![(*plane, place)] });
    }
    runs
}

/// One task done.
struct Done {
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    error: quantize::Error,
}

impl<'a> Filler<'a> {
    pub(super) fn new(source: &'a Checkpoint, opened: &'a [SourceFile], method: Method) -> Self {
        Self {
            source,
            opened,
            matrices: &[],
            method,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            staging: Default::default(),
            kept: [Vec::new(), Vec::new()],
            errors: Vec::new(),
        }
    }

    /// Turns to the chunks of `file`.
    pub(super) fn begin(&mut self, file: &'a OutputFile) {
        self.matrices = &file.matrices;
        self.errors = vec![quantize::Error::default(); file.matrices.len()];
    }

    /// The errors of the file's matrices after its last chunk.
    pub(super) fn end(&mut self) -> Vec<quantize::Error> {
        std::mem::take(&mut self.errors)
    }

    /// Fills `buffer`, which is as long as the chunk and zero.
    pub(super) fn fill(&mut self, chunk: &Chunk, buffer: &mut [u8]) -> Result<(), PackError> {
        self.copy(&chunk.copies, buffer)?;
        if let Some(kept) = chunk.kept {
            let from = &self.kept[usize::from(kept.biases)][kept.offset..][..kept.length];
            buffer[..kept.length].copy_from_slice(from);
        }
        for (task, done) in chunk.encodes.iter().zip(self.encode(&chunk.encodes)?) {
            let mut put = |bytes: &[u8], to: u64| {
                buffer[to as usize..][..bytes.len()].copy_from_slice(bytes);
            };
            put(&done.weight, task.weight_to);
            match task.parameters_to {
                Parameters::Chunk { scales, biases } => {
                    put(&done.scales, scales);
                    put(&done.biases, biases);
                }
                Parameters::Aside { scales, biases } => {
                    let planes = [(&done.scales, scales), (&done.biases, biases)];
                    for (kept, (bytes, offset)) in self.kept.iter_mut().zip(planes) {
                        kept.resize(kept.len().max(offset + bytes.len()), 0);
                        kept[offset..][..bytes.len()].copy_from_slice(bytes);
                    }
                }
            }
            if let Some(matrix) = task.matrix {
                self.errors[matrix].merge(&done.error);
            }
        }
        Ok(())
    }

    /// Copies pieces; those that are neighbours in the source are read at once, several such runs at a time.
    fn copy(&mut self, copies: &[Copied], buffer: &mut [u8]) -> Result<(), PackError> {
        let mut runs = runs(copies, buffer);
        let (source, opened) = (self.source, self.opened);
        if runs.len() < 2 {
            return runs
                .iter_mut()
                .try_for_each(|run| run.read(source, opened, &mut self.staging[0]));
        }
        let runs = Mutex::new(runs.into_iter());
        let lane = |staging: &mut Aligned| {
            loop {
                let next = runs.lock().expect("no lane panics with the lock").next();
                let Some(mut run) = next else { return Ok(()) };
                run.read(source, opened, staging)?;
            }
        };
        std::thread::scope(|scope| {
            let lane = &lane;
            let lanes = self.staging.each_mut().map(|staging| scope.spawn(move || lane(staging)));
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or(Err(PackError::Stopped)))
        })
    }

    /// Runs the tasks on all processors; results are in their order.
    fn encode(&self, tasks: &[Encode]) -> Result<Vec<Done>, PackError> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(tasks.len()));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(tasks.len()) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(task) = tasks.get(index) else { return };
                        let result = self.run(task);
                        let mut results = results.lock().expect("no task panics with the lock");
                        results.push((index, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().expect("no task panics with the lock");
        results.sort_unstable_by_key(|&(index, _)| index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// The planes of a task's rows in the source's encoding.
    fn fetch(&self, task: &Encode) -> Result<Planes, PackError> {
        let (source, opened) = (self.source, self.opened);
        if let Some((rows, matrix)) = task.turned.clone().zip(source.input_major(task.weight)) {
            return Turner { source, opened }.rows(task.weight, matrix, rows);
        }
        let fetch = |extent: Extent| {
            let mut bytes = vec![0; extent.length as usize];
            read(source, opened, extent, &mut bytes).map(|()| bytes)
        };
        let weight = fetch(task.weight)?;
        let (scales, zeros) = match task.scales_biases {
            Some((scales, biases)) => (fetch(scales)?, fetch(biases)?),
            None => (Vec::new(), Vec::new()),
        };
        Ok(Planes { weight, scales, zeros })
    }

    fn run(&self, task: &Encode) -> Result<Done, PackError> {
        let Planes { weight, scales, zeros: biases } = self.fetch(task)?;
        let Some(matrix) = task.matrix else {
            return Ok(Done { weight, scales, biases, error: quantize::Error::default() });
        };
        let name = &self.matrices[matrix].name;
        let shape = |problem: kernels::format::MatrixError| PackError::Recipe {
            name: name.clone(),
            problem: problem.to_string(),
        };
        let rows = weight.len() / task.from.weight_row_bytes(task.columns);
        let matrix = Matrix::new(task.from, rows, task.columns, &weight, &scales, &biases);
        let values = decode(&matrix.map_err(shape)?);
        let parameters = rows * task.to.scale_row_bytes(task.columns);
        let mut done = Done {
            weight: vec![0; rows * task.to.weight_row_bytes(task.columns)],
            scales: vec![0; parameters],
            biases: vec![0; parameters],
            error: quantize::Error::default(),
        };
        let Done { weight, scales, biases, error } = &mut done;
        let mut out = Encoded { weight, scales, biases };
        quantize::encode(&values, task.columns, task.to, self.method, &mut out).map_err(
            |problem| PackError::Recipe { name: name.clone(), problem: problem.to_string() },
        )?;
        let matrix = Matrix::new(task.to, rows, task.columns, weight, scales, biases);
        error.add(&values, &decode(&matrix.map_err(shape)?));
        Ok(done)
    }
}

/// All values of a matrix, row-major.
fn decode(matrix: &Matrix<'_>) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows * matrix.columns];
    for (row, values) in values.chunks_exact_mut(matrix.columns).enumerate() {
        decode_row(matrix, row, values);
    }
    values
}

fn read(
    source: &Checkpoint,
    opened: &[SourceFile],
    extent: Extent,
    to: &mut [u8],
) -> Result<(), PackError> {
    let index = extent.file.0 as usize;
    let failed = |error| PackError::io(&source.files[index].path, "read", error);
    opened[index].read(to, extent.offset).map_err(failed)
}

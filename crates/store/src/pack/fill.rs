//! Filling chunks: copies from the source, and matrices encoded anew by several threads.
//!
//! Results are put in place and errors are added up in the order of the tasks, so that neither bytes nor
//! error measures depend on the number of threads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::format::{Matrix, decode_row};
use kernels::quantize::{self, Encoded, Method};

use super::PackError;
use super::plan::{Chunk, Encode, OutputFile, Parameters};
use crate::format::{Checkpoint, Extent};

/// Longest single read; neighbouring pieces are fetched together up to this.
const READ_BYTES_MAX: usize = 8 << 20;

/// Fills the chunks of one output file, in order.
pub(super) struct Filler<'a> {
    source: &'a Checkpoint,
    opened: &'a [File],
    file: &'a OutputFile,
    method: Method,
    threads: usize,
    staging: Vec<u8>,
    /// Scales and biases of the tensor being encoded.
    kept: [Vec<u8>; 2],
    /// Error of each of the file's matrices so far.
    errors: Vec<quantize::Error>,
}

/// One task done.
struct Done {
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    error: quantize::Error,
}

impl<'a> Filler<'a> {
    pub(super) fn new(
        source: &'a Checkpoint,
        opened: &'a [File],
        file: &'a OutputFile,
        method: Method,
    ) -> Self {
        Self {
            source,
            opened,
            file,
            method,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            staging: Vec::new(),
            kept: [Vec::new(), Vec::new()],
            errors: vec![quantize::Error::default(); file.matrices.len()],
        }
    }

    /// The errors of the file's matrices after its last chunk.
    pub(super) fn into_errors(self) -> Vec<quantize::Error> {
        self.errors
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
                Parameters::Aside { offset } => {
                    for (kept, bytes) in self.kept.iter_mut().zip([&done.scales, &done.biases]) {
                        kept.resize(kept.len().max(offset + bytes.len()), 0);
                        kept[offset..][..bytes.len()].copy_from_slice(bytes);
                    }
                }
            }
            self.errors[task.matrix].merge(&done.error);
        }
        Ok(())
    }

    /// Copies pieces; those that are neighbours in the source are read at once.
    fn copy(&mut self, mut copies: &[(Extent, u64)], buffer: &mut [u8]) -> Result<(), PackError> {
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
            if count == 1 {
                let place = &mut buffer[to as usize..][..first.length as usize];
                read(self.source, self.opened, first, place)?;
            } else {
                self.staging.resize((end - first.offset) as usize, 0);
                let joined = Extent { length: end - first.offset, ..first };
                read(self.source, self.opened, joined, &mut self.staging)?;
                for (extent, to) in &copies[..count] {
                    let from = (extent.offset - first.offset) as usize;
                    let piece = &self.staging[from..][..extent.length as usize];
                    buffer[*to as usize..][..piece.len()].copy_from_slice(piece);
                }
            }
            copies = &copies[count..];
        }
        Ok(())
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

    fn run(&self, task: &Encode) -> Result<Done, PackError> {
        let fetch = |extent: Extent| {
            let mut bytes = vec![0; extent.length as usize];
            read(self.source, self.opened, extent, &mut bytes).map(|()| bytes)
        };
        let name = &self.file.matrices[task.matrix].name;
        let shape = |problem: kernels::format::MatrixError| PackError::Recipe {
            name: name.clone(),
            problem: problem.to_string(),
        };
        let weight = fetch(task.weight)?;
        let (scales, biases) = match task.scales_biases {
            Some((scales, biases)) => (fetch(scales)?, fetch(biases)?),
            None => (Vec::new(), Vec::new()),
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
    opened: &[File],
    extent: Extent,
    to: &mut [u8],
) -> Result<(), PackError> {
    let index = extent.file.0 as usize;
    let failed = |error| PackError::io(&source.files[index].path, "read", error);
    opened[index].read_exact_at(to, extent.offset).map_err(failed)
}

//! How fast a GPU reads its memory and how fast records get there, as `plan` and `bench` ask.

use std::time::Instant;

use gpu::op::product;
use gpu::{Adapter, Gpu, Trunk};
use kernels::format::{Encoding, FloatType, Matrix};

use crate::EngineError;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidths {
    /// What a product reads.
    pub memory: f64,
    /// From the process's memory, by the copies that bring records.
    pub bus: f64,
}

/// Bytes of the matrix that is read: more than caches hold.
const BYTES: u64 = 256 << 20;
const COLUMNS: usize = 4096;
const RUNS: u32 = 8;

/// Measures both by a product; takes about a second.
///
/// # Errors
/// The device cannot be opened, has no room, or failed.
pub fn bandwidths(adapter: &Adapter) -> Result<Bandwidths, EngineError> {
    let mut gpu = Gpu::open(adapter.clone())?;
    let rows = (BYTES.min(adapter.binding_bytes / 2) / (2 * COLUMNS as u64)) as usize;
    let weights = vec![0u8; 2 * rows * COLUMNS];
    let encoding = Encoding::Float(FloatType::Bf16);
    let matrix = Matrix::new(encoding, rows, COLUMNS, &weights, &[], &[]);
    let matrix = matrix.expect("the weights have the encoding's size");
    let bytes = weights.len() as f64;
    let (x, y) = (gpu.buffer("input", 4 * COLUMNS as u64)?, gpu.buffer("output", 4 * rows as u64)?);
    let started = Instant::now();
    let mut trunk = Trunk::default();
    trunk.add(&mut gpu, "matrix", &matrix)?;
    gpu.read_floats(&y, 0, 1)?;
    let bus = bytes / started.elapsed().as_secs_f64();
    let mut memory = 0.0f64;
    for runs in [1, RUNS, RUNS] {
        let started = Instant::now();
        for _ in 0..runs {
            product::launch(&mut gpu, trunk.matrix(0), &x, &y, 1, false)?;
        }
        gpu.read_floats(&y, 0, 1)?;
        memory = memory.max(f64::from(runs) * bytes / started.elapsed().as_secs_f64());
    }
    Ok(Bandwidths { memory, bus })
}

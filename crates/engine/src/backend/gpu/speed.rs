//! How fast a GPU reads its memory and how fast records get there, as `plan` and `bench` ask.

use std::time::Instant;

use gpu::op::product;
use gpu::{Adapter, Gpu, HostMemory, HostSlabs, Trunk};
use kernels::format::{Encoding, FloatType, Matrix};
use store::arena::{HugePages, SlotArena};

use crate::EngineError;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidths {
    /// What a product reads.
    pub memory: f64,
    /// From the process's memory, as records get there: by the device, or by copies of the host.
    pub bus: f64,
}

/// Bytes of the matrix that is read: more than caches hold.
const BYTES: u64 = 256 << 20;
const COLUMNS: usize = 4096;
const RUNS: u32 = 8;

/// Measures both; takes about a second. `all_in_host` says that the host tier will have every record, which the device
/// then reads by itself where it can.
///
/// # Errors
/// The device cannot be opened, has no room, or failed.
pub fn bandwidths(adapter: &Adapter, all_in_host: bool) -> Result<Bandwidths, EngineError> {
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
    let by_host = bytes / started.elapsed().as_secs_f64();
    let by_device = if all_in_host { by_device(&mut gpu)? } else { None };
    let bus = by_device.unwrap_or(by_host);
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

/// Bytes per second that the device copies from the process's memory, where it can.
fn by_device(gpu: &mut Gpu) -> Result<Option<f64>, EngineError> {
    let bytes = BYTES.min(gpu.adapter().binding_bytes / 2) as usize;
    let bytes = bytes.next_multiple_of(store::arena::PAGE_BYTES);
    let Ok(arena) = SlotArena::new(1, bytes, HugePages::Transparent) else { return Ok(None) };
    let memory = HostMemory { owner: arena as _, slot_bytes: bytes, slots: 1 };
    let Some(host) = HostSlabs::new(gpu, &[memory])? else { return Ok(None) };
    let to = gpu.buffer("copies", bytes as u64)?;
    let mut seconds = f64::INFINITY;
    for _ in 0..RUNS / 2 {
        let started = Instant::now();
        host.copy(gpu, (0, 0), (&to, 0), bytes);
        gpu.read_floats(&to, 0, 1)?;
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(Some(bytes as f64 / seconds))
}

//! The two bandwidths that bound a streaming engine, measured on the spot: disk at the model's record size,
//! memory as the compute threads read it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::backend::cuda::bandwidths;
use store::LayerId;
use store::format::Checkpoint;

use crate::failure::Failure;
use crate::plan::Plan;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speeds {
    /// Random records from the checkpoint's files.
    pub(crate) disk: f64,
    /// The memory that computes: the GPU's, else RAM as the plan's threads read it.
    pub(crate) memory: f64,
    /// From RAM to the GPU, where one computes.
    pub(crate) bus: Option<f64>,
}

/// What a disk gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskSpeed {
    /// Bytes per second.
    pub(crate) speed: f64,
    /// Whether the reads went past the page cache.
    pub(crate) direct: bool,
}

/// How long the disk is read.
const DISK_TIME: Duration = Duration::from_millis(1500);
/// Reads in flight: saturates drives at megabyte records (docs/benchmarks.md).
const DISK_THREADS: usize = 4;

impl Speeds {
    /// Measures both; takes about two seconds.
    pub(crate) fn measure(plan: &Plan) -> Result<Self> {
        let record = plan.checkpoint.record_bytes(LayerId(0)).unwrap_or(1 << 20);
        let disk = probe_disk(&plan.checkpoint, record as usize)?.speed;
        Ok(match &plan.device {
            None => Self { disk, memory: kernels::probe::read_bandwidth(plan.threads), bus: None },
            Some(device) => {
                let found = bandwidths(device.info.ordinal).map_err(Failure::engine)?;
                Self { disk, memory: found.memory, bus: Some(found.bus) }
            }
        })
    }
}

/// Random reads of `record` bytes over the largest file, past the page cache where the file system allows.
pub(crate) fn probe_disk(checkpoint: &Checkpoint, record: usize) -> Result<DiskSpeed> {
    let file = checkpoint.files.iter().max_by_key(|file| file.length);
    let file = file.ok_or_else(|| Failure::model(anyhow::anyhow!("the model has no files")))?;
    let record = record.next_multiple_of(4096);
    let places = (file.length / record as u64).max(1);
    let (opened, direct) = match store::io::open_uncached(&file.path) {
        Ok(file) => (Ok(file), true),
        Err(_) => (File::open(&file.path), false),
    };
    let handle = opened
        .map_err(Failure::io)
        .with_context(|| format!("cannot read {}", file.path.display()))?;
    let started = Instant::now();
    let read = |seed: u64| {
        // Direct reads need an aligned buffer: take the aligned part of a larger one.
        let mut buffer = vec![0u8; record + 4096];
        let start = buffer.as_ptr().align_offset(4096);
        let (mut state, mut bytes) = (seed, 0u64);
        while started.elapsed() < DISK_TIME {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let offset = (state >> 33) % places * record as u64;
            match handle.read_at(&mut buffer[start..start + record], offset) {
                Ok(0) => break,
                Ok(count) => bytes += count as u64,
                Err(_) => break,
            }
        }
        bytes
    };
    let bytes: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..DISK_THREADS as u64)
            .map(|thread| {
                scope.spawn({
                    let read = &read;
                    move || read(thread + 1)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    let speed = bytes as f64 / started.elapsed().as_secs_f64();
    if speed > 0.0 {
        Ok(DiskSpeed { speed, direct })
    } else {
        let reason = anyhow::anyhow!("{}: nothing could be read", file.path.display());
        Err(Failure::Io(reason).into())
    }
}

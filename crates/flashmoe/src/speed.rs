//! What bounds a streaming engine, measured on the spot: the disk at the model's record size, memory as the compute
//! threads read it, and products of many tokens.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::backend::{cuda, gpu};
use kernels::format::{Encoding, FloatType, Matrix, MatrixError};
use store::arena::{HugePages, PAGE_BYTES, SlotArena};
use store::format::Checkpoint;
use store::io::platform::{FileExt, Links, open_regular};
use store::split_mix::SplitMix64;

use crate::arguments::AssumedMachine;
use crate::failure::Failure;
use crate::plan::Plan;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speeds {
    /// Random records from the checkpoint's files.
    pub(crate) disk: f64,
    /// The memory that computes: the GPU's, else RAM as the plan's threads read it.
    pub(crate) memory: f64,
    /// Matrices as products of one token read them on the processor: less than memory gives where unpacking takes
    /// longer than reading.
    pub(crate) token: f64,
    /// From RAM to the GPU, where one computes.
    pub(crate) bus: Option<f64>,
    /// Operations of products of a chunk's tokens per second on the processor; zero where a GPU computes.
    pub(crate) compute: f64,
    /// And of those of [`SHORT_PROMPT`] tokens, of which an expert gets fewer.
    pub(crate) short: f64,
}

/// What a disk gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskSpeed {
    /// Bytes per second.
    pub(crate) speed: f64,
    /// Whether the reads went past the page cache.
    pub(crate) direct: bool,
}

/// Builds for tests measure roughly: dozens of tests plan and compare no speeds.
const ROUGHLY: bool = cfg!(debug_assertions);
/// How long the disk is read.
const DISK_TIME: Duration = Duration::from_millis(if ROUGHLY { 100 } else { 1500 });
/// Reads in flight: saturates drives at megabyte records (docs/benchmarks.md).
const DISK_THREADS: usize = 4;

impl Speeds {
    /// Measures all; takes about two seconds.
    pub(crate) fn measure(plan: &Plan) -> Result<Self> {
        Self::measure_at(plan, None)
    }

    /// As [`Speeds::measure`]; of a model that is not there yet the disk of the folder `place`, by a file made for it.
    pub(crate) fn measure_at(plan: &Plan, place: Option<&Path>) -> Result<Self> {
        let record = plan.checkpoint.first_record_bytes().unwrap_or(1 << 20) as usize;
        let disk = match place {
            None => probe_disk(&plan.checkpoint, record)?.speed,
            Some(folder) => probe_folder(folder, record)?.speed,
        };
        Ok(match plan.device() {
            None => {
                let memory = kernels::probe::read_bandwidth(plan.threads);
                let compute = threads(plan)?;
                let token = passing(plan, &compute)?.min(memory);
                let [compute, short] = products(plan, &compute)?;
                Self { disk, memory, token, bus: None, compute, short }
            }
            Some(device) => {
                let (memory, bus) = match &device.portable {
                    Some(adapter) => {
                        let found =
                            gpu::bandwidths(adapter, plan.pinned_all()).map_err(Failure::engine)?;
                        (found.memory, found.bus)
                    }
                    None => {
                        let ordinal = device.info.ordinal;
                        let found = cuda::bandwidths(ordinal).map_err(Failure::engine)?;
                        (found.memory, found.bus)
                    }
                };
                Self { disk, memory, token: memory, bus: Some(bus), compute: 0.0, short: 0.0 }
            }
        })
    }
}

impl Speeds {
    /// Those that a plan for another machine assumes; products of the processor are this one's where they are left out.
    pub(crate) fn assumed(machine: &AssumedMachine, plan: &Plan) -> Result<Self> {
        let AssumedMachine { disk, memory, gpu, compute, .. } = *machine;
        let bus = gpu.filter(|_| !plan.devices.is_empty()).map(|(_, bus)| bus);
        let [compute, short] = match (plan.device(), compute) {
            (Some(_), _) => [0.0; 2],
            (None, Some(compute)) => [compute; 2],
            (None, None) => products(plan, &threads(plan)?)?,
        };
        Ok(Self { disk, memory, token: memory, bus, compute, short })
    }
}

/// Tokens of a prompt that is shorter than a chunk: what `bench` has by default.
pub(crate) const SHORT_PROMPT: usize = 512;
/// Tokens of the product that is measured: those of an expert in a chunk, at most so many.
const PRODUCT_TOKENS: usize = 64;
/// Values that share a scale in it.
const PRODUCT_GROUP: usize = 64;
/// Operations of a measured batch of products, as a layer of a prompt has them: threads share many small experts.
const PRODUCT_WORK: usize = 200_000_000;
/// How long a product is measured, and how often at least; the best counts, since neighbours can only slow one down.
/// Nine runs alone, 50 ms, found 76 to 175 GFLOP/s on two cores that others used as well.
const PRODUCT_TIME: Duration = Duration::from_millis(if ROUGHLY { 20 } else { 400 });
const PRODUCT_RUNS: usize = 9;

/// The plan's threads.
fn threads(plan: &Plan) -> Result<kernels::Compute> {
    let options = kernels::ComputeOptions {
        threads: plan.threads,
        arithmetic: crate::plan::arithmetic(plan.arguments.arithmetic),
        isa: kernels::Isa::Auto,
    };
    Ok(kernels::Compute::new(options).map_err(|it| Failure::usage(it.to_string()))?)
}

/// Bytes of different matrices that products of one token pass: more than any cache holds.
const PASSED_BYTES: usize = if ROUGHLY { 16 } else { 256 } << 20;

/// Bytes per second of products of one token with matrices of the model's experts, as many at a time as it uses of a
/// layer. Encodings that are not in groups are read about as fast as memory gives them.
fn passing(plan: &Plan, compute: &kernels::Compute) -> Result<f64> {
    let expert = plan.checkpoint.experts.iter().flatten().next();
    let Some(shape) = expert.map(|it| it.shapes[0]) else { return Ok(f64::INFINITY) };
    let (encoding, rows, columns) = (shape.encoding, shape.rows, shape.columns);
    if !matches!(encoding, Encoding::Affine { .. }) {
        return Ok(f64::INFINITY);
    }
    let (weight, scales) =
        (rows * encoding.weight_row_bytes(columns), rows * encoding.scale_row_bytes(columns));
    let each = weight + 2 * scales;
    let bytes = PASSED_BYTES.div_ceil(each) * each;
    let arena = SlotArena::new(1, bytes.next_multiple_of(PAGE_BYTES), HugePages::Transparent)
        .map_err(Failure::io)?;
    if let Some(mut slot) = arena.writer(0) {
        // As `product` has them: no scale is so small that it takes a processor longer.
        slot.take(bytes).as_mut_slice().fill(0x3c);
    }
    let Some(pool) = arena.reader(0) else { return Ok(f64::INFINITY) };
    let pool = &pool.bytes()[..bytes];
    let x: Vec<f32> = (0..columns).map(|i| (i as f32).sin()).collect();
    let mut prepared = kernels::Activations::with_capacity(1, columns);
    compute.prepare(&x, columns, &[encoding], &mut prepared);
    let mut out = vec![0.0; plan.backend.top_k.max(1) * rows];
    let (mut best, mut runs, began) = (f64::INFINITY, 0, Instant::now());
    while runs < PRODUCT_RUNS || began.elapsed() < PRODUCT_TIME {
        let started = Instant::now();
        for used in pool.chunks(plan.backend.top_k.max(1) * each) {
            let jobs = used.chunks_exact(each).zip(out.chunks_exact_mut(rows));
            let jobs = jobs.map(|(bytes, out)| {
                let (bytes, [scale, bias]) = planes(bytes, weight, scales);
                let matrix = Matrix::new(encoding, rows, columns, bytes, scale, bias)?;
                Ok(kernels::MatmulJob { matrix, x: &prepared, tokens: kernels::Tokens::All, out })
            });
            let jobs: Result<Vec<_>, MatrixError> = jobs.collect();
            compute.matmul(&mut jobs.map_err(|error| Failure::Run(error.into()))?);
        }
        best = best.min(started.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok(pool.len() as f64 / best.max(1e-9))
}

/// A matrix in groups: its weights, its scales and its biases.
fn planes(bytes: &[u8], weight: usize, scales: usize) -> (&[u8], [&[u8]; 2]) {
    let (weights, rest) = bytes.split_at(weight);
    (weights, [&rest[..scales], &rest[scales..]])
}

/// Operations per second of 4-bit products of the size of the model's experts, with as many tokens as one of them gets
/// of a chunk and of a short prompt.
fn products(plan: &Plan, compute: &kernels::Compute) -> Result<[f64; 2]> {
    let chunk = plan.backend.batch_tokens;
    let given = [chunk, chunk.min(SHORT_PROMPT)].map(|tokens| {
        let tokens = tokens * plan.backend.top_k / plan.config.moe.experts.max(1);
        tokens.clamp(1, PRODUCT_TOKENS)
    });
    let long = product(plan, compute, given[0])?;
    let short = if given[1] == given[0] { long } else { product(plan, compute, given[1])? };
    Ok([long, short])
}

fn product(plan: &Plan, compute: &kernels::Compute, tokens: usize) -> Result<f64> {
    let moe = &plan.config.moe;
    let (rows, columns) = (moe.intermediate, plan.config.hidden.next_multiple_of(PRODUCT_GROUP));
    let encoding =
        Encoding::Affine { bits: 4, group: PRODUCT_GROUP as u16, scale: FloatType::Bf16 };
    let weights = vec![0x35; rows * encoding.weight_row_bytes(columns)];
    let scales = vec![0x3c; rows * encoding.scale_row_bytes(columns)];
    let matrix = Matrix::new(encoding, rows, columns, &weights, &scales, &scales);
    let matrix = matrix.map_err(|error| Failure::Run(error.into()))?;
    let x: Vec<f32> = (0..tokens * columns).map(|i| (i as f32).sin()).collect();
    let mut prepared = kernels::Activations::with_capacity(tokens, columns);
    compute.prepare(&x, columns, &[encoding], &mut prepared);
    let work = 2 * rows * columns * tokens;
    let experts = PRODUCT_WORK.div_ceil(work.max(1)).min(moe.experts.max(1));
    let mut out = vec![0.0; experts * tokens * rows];
    let (mut best, mut runs, began) = (f64::INFINITY, 0, Instant::now());
    while runs < PRODUCT_RUNS || began.elapsed() < PRODUCT_TIME {
        let started = Instant::now();
        let outs = out.chunks_exact_mut(tokens * rows);
        let jobs = outs.map(|out| kernels::MatmulJob {
            matrix,
            x: &prepared,
            tokens: kernels::Tokens::All,
            out,
        });
        compute.matmul(&mut jobs.collect::<Vec<_>>());
        best = best.min(started.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok((work * experts) as f64 / best.max(1e-9))
}

/// Bytes of the file that a folder's disk is measured by: more than drives keep in their own memory at once.
const SCRATCH_BYTES: usize = if ROUGHLY { 32 } else { 256 } << 20;

/// As [`probe_disk`], over a file that is made in `folder` and removed.
fn probe_folder(folder: &Path, record: usize) -> Result<DiskSpeed> {
    let named = || format!("cannot measure the disk of {}", folder.display());
    let mut scratch =
        tempfile::NamedTempFile::new_in(folder).map_err(Failure::io).with_context(named)?;
    // Not zeros: a file system may store those as a hole.
    let piece: Vec<u8> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..SCRATCH_BYTES / piece.len() {
        scratch.write_all(&piece).map_err(Failure::io).with_context(named)?;
    }
    scratch.as_file().sync_all().map_err(Failure::io).with_context(named)?;
    probe_file(scratch.path(), SCRATCH_BYTES as u64, record)
}

/// Random reads of `record` bytes over the largest file, past the page cache where the file system allows.
pub(crate) fn probe_disk(checkpoint: &Checkpoint, record: usize) -> Result<DiskSpeed> {
    let file = checkpoint.files.iter().max_by_key(|file| file.length);
    let file = file.ok_or_else(|| Failure::model(anyhow::anyhow!("the model has no files")))?;
    probe_file(&file.path, file.length, record)
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskWay {
    /// Past the page cache.
    direct: bool,
    /// Offsets and lengths are multiples of it and of nothing more.
    alignment: usize,
}

/// A page of a Mac: uncached reads there begin and end at its multiples.
const LARGE_PAGE: usize = 16_384;
/// Every way that an engine could read.
pub(crate) const DISK_WAYS: [DiskWay; 4] = [
    DiskWay { direct: true, alignment: 4096 },
    DiskWay { direct: true, alignment: LARGE_PAGE },
    DiskWay { direct: false, alignment: 4096 },
    DiskWay { direct: false, alignment: LARGE_PAGE },
];

impl fmt::Display for DiskWay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.direct { "direct" } else { "buffered" };
        write!(out, "{kind}, aligned to {} KiB", self.alignment >> 10)
    }
}

/// Bytes per second of random reads of `record` bytes over the largest file.
pub(crate) fn probe_way(checkpoint: &Checkpoint, record: usize, way: DiskWay) -> Result<f64> {
    let file = checkpoint.files.iter().max_by_key(|file| file.length);
    let file = file.ok_or_else(|| Failure::model(anyhow::anyhow!("the model has no files")))?;
    read_randomly(&file.path, file.length, record, way)
}

fn probe_file(path: &Path, length: u64, record: usize) -> Result<DiskSpeed> {
    let direct = store::io::open_uncached(path).is_ok();
    let speed = read_randomly(path, length, record, DiskWay { direct, alignment: 4096 })?;
    Ok(DiskSpeed { speed, direct })
}

fn read_randomly(
    path: &Path,
    length: u64,
    record: usize,
    DiskWay { direct, alignment }: DiskWay,
) -> Result<f64> {
    let record = record.next_multiple_of(alignment);
    let places = (length / record as u64).max(1);
    let opened = match direct {
        true => store::io::open_uncached(path),
        false => open_regular(path, Links::Followed),
    };
    let handle =
        opened.map_err(Failure::io).with_context(|| format!("cannot read {}", path.display()))?;
    // Where an engine's records land: a drive gives ordinary pages half of what it gives such slots, or less.
    let arena =
        SlotArena::new(DISK_THREADS, record, HugePages::Transparent).map_err(Failure::io)?;
    let started = Instant::now();
    let read = |thread: usize| {
        let Some(mut slot) = arena.writer(thread) else { return 0 };
        let mut target = slot.take(record);
        let (mut random, mut bytes) = (SplitMix64(thread as u64 + 1), 0u64);
        while started.elapsed() < DISK_TIME {
            let mut offset = random.next_u64() % places * record as u64;
            if offset.is_multiple_of(LARGE_PAGE as u64) {
                // At a multiple of the alignment asked for and of no greater one.
                offset += (alignment % LARGE_PAGE) as u64;
            }
            match handle.read_at(target.as_mut_slice(), offset) {
                Ok(0) => break,
                Ok(count) => bytes += count as u64,
                Err(_) => break,
            }
        }
        bytes
    };
    let bytes: u64 = std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> =
            (0..DISK_THREADS).map(|thread| scope.spawn(move || read(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    let speed = bytes as f64 / started.elapsed().as_secs_f64();
    if speed > 0.0 {
        Ok(speed)
    } else {
        let reason = anyhow::anyhow!("{}: nothing could be read", path.display());
        Err(Failure::Io(reason).into())
    }
}

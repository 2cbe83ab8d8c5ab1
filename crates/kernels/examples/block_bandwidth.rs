//! Prints how fast products read each encoding on this machine, next to plain reading of the same memory. The encodings
//! and reading take turns, several rounds, and the best region of about 4 MB counts: longer ones are interrupted where
//! other work shares the machine. Each measurement takes the next part of a pool that is larger than any cache, so that
//! it finds nothing that another has left there. "Cached" is one thread with a matrix of the second-level cache: what
//! the instructions alone would reach. `threads` is 1 where the second core is never free: two that wait for each other
//! take minutes then.
//!
//! `cargo run --release -p flashmoe-kernels --example block_bandwidth [isa [rounds [name part [tokens [threads]]]]]`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use kernels::format::{BlockFormat, Encoding, FloatType, GlobalScale, Matrix, ScaleType};
use kernels::{Activations, Arithmetic, Compute, ComputeOptions, Isa, MatmulJob, Tokens};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of weights in all: more than any cache.
const WORKING_SET: usize = 1 << 30;

/// Bytes that a measurement walks.
const PART: usize = 32 << 20;

/// Bytes of a region, at least: matrices of a step in one call.
const REGION: usize = 4 << 20;

/// Rows and columns of an expert's gate.
const SHAPE: (usize, usize) = (512, 2048);

/// Tokens of the products of many, unless said otherwise.
const MANY: usize = 64;

/// Bytes to measure with, part by part.
struct Pool {
    bytes: Vec<u8>,
    next: usize,
}

impl Pool {
    fn new(byte: impl Fn(u32) -> u8) -> Self {
        Self { bytes: (0..WORKING_SET as u32).map(byte).collect(), next: 0 }
    }

    /// The part after the one given last.
    fn part(&mut self) -> &[u8] {
        self.next = (self.next + PART) % self.bytes.len();
        &self.bytes[self.next..][..PART]
    }
}

/// Least seconds of `body`, run for each of the regions.
fn least<T>(regions: impl Iterator<Item = T>, mut body: impl FnMut(T)) -> f64 {
    let timed = regions.map(|region| {
        let start = Instant::now();
        body(region);
        start.elapsed().as_secs_f64()
    });
    timed.fold(f64::INFINITY, f64::min)
}

/// Most bytes per second that `threads` threads read of a part, region by region.
fn read(part: &[u8], threads: usize) -> f64 {
    let (ready, regions) = (AtomicUsize::new(0), PART / REGION);
    let share = REGION / threads;
    let seconds = std::thread::scope(|scope| {
        let walk = |thread: usize| {
            let ready = &ready;
            move || {
                least(0..regions, |region| {
                    // All begin together and end together: a region takes as long as its last thread.
                    let meet = |count: usize| {
                        ready.fetch_add(1, Ordering::AcqRel);
                        while ready.load(Ordering::Acquire) < count * threads {
                            spin_loop();
                        }
                    };
                    meet(2 * region + 1);
                    let from = &part[region * REGION + thread * share..][..share];
                    black_box(kernels::probe::sum(from));
                    meet(2 * region + 2);
                })
            }
        };
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(walk(thread))).collect();
        let own = walk(0)();
        others.into_iter().map(|other| other.join().unwrap()).fold(own, f64::max)
    });
    REGION as f64 / seconds
}

/// A matrix of the measured shape at the start of `bytes`.
fn matrix(encoding: Encoding, rows: usize, bytes: &[u8]) -> Matrix<'_> {
    let [weight, scales, biases] = encoding.plane_bytes(rows, SHAPE.1);
    let (w, rest) = bytes.split_at(weight);
    let (s, b) = (&rest[..scales], &rest[scales..][..biases]);
    Matrix::new(encoding, rows, SHAPE.1, w, s, b).unwrap()
}

/// Activations of `tokens` tokens.
fn prepared(compute: &Compute, encoding: Encoding, tokens: usize) -> Activations {
    let x: Vec<f32> = (0..tokens * SHAPE.1).map(|i| (i as f32).sin()).collect();
    let mut activations = Activations::with_capacity(tokens, SHAPE.1);
    compute.prepare(&x, SHAPE.1, &[encoding], &mut activations);
    activations
}

/// Bytes per second of products of one token.
fn decode(compute: &Compute, encoding: Encoding, part: &[u8]) -> f64 {
    let bytes = encoding.matrix_bytes(SHAPE.0, SHAPE.1);
    let count = REGION.div_ceil(bytes);
    let x = prepared(compute, encoding, 1);
    let mut outs = vec![vec![0.0; SHAPE.0]; count];
    let seconds = least(part.chunks_exact(count * bytes), |region| {
        let mut jobs: Vec<_> = region
            .chunks_exact(bytes)
            .zip(&mut outs)
            .map(|(bytes, out)| {
                let matrix = matrix(encoding, SHAPE.0, bytes);
                MatmulJob { matrix, x: &x, tokens: Tokens::All, out }
            })
            .collect();
        compute.matmul(&mut jobs);
    });
    (count * bytes) as f64 / seconds
}

/// Bytes per second of products of one token with the same few rows again and again.
fn cached(compute: &Compute, encoding: Encoding, part: &[u8]) -> f64 {
    let (rows, times) = (128, 16);
    let matrix = matrix(encoding, rows, part);
    let x = prepared(compute, encoding, 1);
    let mut outs = vec![vec![0.0; rows]; times];
    let seconds = least(0..20, |_| {
        let jobs = outs.iter_mut().map(|out| MatmulJob { matrix, x: &x, tokens: Tokens::All, out });
        compute.matmul(&mut jobs.collect::<Vec<_>>());
    });
    (times * encoding.matrix_bytes(rows, SHAPE.1)) as f64 / seconds
}

/// Operations per second of a product of `many` tokens.
fn prefill(compute: &Compute, encoding: Encoding, part: &[u8], many: usize) -> f64 {
    let (rows, columns) = SHAPE;
    let matrix = matrix(encoding, rows, part);
    let x = prepared(compute, encoding, many);
    let mut out = vec![0.0; many * rows];
    let seconds = least(0..6, |_| {
        compute.matmul(&mut [MatmulJob { matrix, x: &x, tokens: Tokens::All, out: &mut out }]);
    });
    2.0 * (many * rows * columns) as f64 / seconds
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let isa = match arguments.next().as_deref() {
        None | Some("auto") => Isa::Auto,
        Some("scalar") => Isa::Scalar,
        Some("avx2") => Isa::Avx2,
        Some("avx512") => Isa::Avx512,
        Some("amx") => Isa::Amx,
        Some("neon") => Isa::Neon,
        Some(other) => panic!("unknown instruction set {other}"),
    };
    let rounds: usize = arguments.next().map_or(5, |text| text.parse().unwrap());
    let part = arguments.next().unwrap_or_default();
    let many: usize = arguments.next().map_or(MANY, |text| text.parse().unwrap());
    let most: usize = arguments.next().map_or(2, |text| text.parse().unwrap());
    let arithmetic = Arithmetic::Int16;
    let computes =
        [1, most].map(|threads| Compute::new(ComputeOptions { threads, arithmetic, isa }).unwrap());
    let affine = |bits| Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 };
    let encodings: Vec<Encoding> = [2, 3, 4, 8]
        .map(affine)
        .into_iter()
        .chain([Encoding::Float(FloatType::Bf16)])
        .chain([
            Encoding::Mxfp4,
            Encoding::Nvfp4 { global: GlobalScale::Multiplies },
            Encoding::Nvfp4 { global: GlobalScale::Divides },
            Encoding::Symmetric { bits: 4, group: 32, scale: FloatType::Bf16 },
            Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) },
        ])
        .chain(BlockFormat::ALL.iter().copied().map(Encoding::Block))
        .filter(|encoding| part.split(',').any(|part| encoding.name().contains(part)))
        .collect();
    let random = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
    let mut any = Pool::new(random);
    // Random bytes would be subnormal numbers now and then, which take a processor a hundred times as long.
    let mut floats = Pool::new(|i| if i % 2 == 0 { random(i) } else { random(i) & 0x80 | 0x3f });
    let mut reading = [0.0f64; 2];
    let mut best = vec![[0.0f64; 5]; encodings.len()];
    for _ in 0..rounds {
        for (threads, reading) in reading.iter_mut().enumerate().take(most) {
            *reading = reading.max(read(any.part(), threads + 1));
        }
        for (&encoding, best) in encodings.iter().zip(&mut best) {
            let is_float = matches!(encoding, Encoding::Float(_) | Encoding::Fp8 { .. });
            let pool = if is_float { &mut floats } else { &mut any };
            for (i, compute) in computes.iter().enumerate().take(most) {
                best[i] = best[i].max(decode(compute, encoding, pool.part()));
                if many > 0 {
                    best[3 + i] = best[3 + i].max(prefill(compute, encoding, pool.part(), many));
                }
            }
            best[2] = best[2].max(cached(&computes[0], encoding, pool.part()));
        }
    }
    let (rows, columns) = SHAPE;
    let name = computes[0].isa_name();
    let [one, two] = reading.map(|rate| rate / 1e9);
    println!("{name}, {rows} x {columns}; reading {one:.1} and {two:.1} GB/s");
    println!(
        "encoding            GB/s, 1 and 2 threads   share of reading   cached   Gweights/s   {many} tokens GFLOP/s"
    );
    for (&encoding, best) in encodings.iter().zip(&best) {
        let weights = (rows * columns) as f64 / encoding.matrix_bytes(rows, columns) as f64;
        let [rate_one, rate_two, cached, many_one, many_two] = best.map(|rate| rate / 1e9);
        println!(
            "{:18} {rate_one:5.1} {rate_two:5.1}   {:3.0} % {:3.0} %   {cached:5.1}   {:5.1} {:5.1}   {:5.0} {:5.0}",
            encoding.name(),
            100.0 * rate_one / one,
            100.0 * rate_two / two,
            weights * rate_one,
            weights * rate_two,
            many_one,
            many_two,
        );
    }
}

//! Prints how fast products read block encodings on this machine, next to affine weights, bf16 and plain reading. The
//! encodings take turns, several rounds, and the best region of less than a millisecond counts: longer ones are
//! interrupted where other work shares the machine.
//!
//! `cargo run --release -p flashmoe-kernels --example block_bandwidth [isa [rounds [name part [tokens]]]]`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use kernels::format::{BlockFormat, Encoding, FloatType, Matrix, ScaleType};
use kernels::{Activations, Arithmetic, Compute, ComputeOptions, Isa, MatmulJob, Tokens};
use std::time::Instant;

/// Bytes of weights that a measurement walks: more than any cache.
const WORKING_SET: usize = 256 << 20;

/// Rows and columns of an expert's gate.
const SHAPE: (usize, usize) = (512, 2048);

/// Tokens of the products of many, unless said otherwise.
const MANY: usize = 64;

/// Least seconds per matrix of products of one token, eight a region as a token's experts; a round walks an eighth
/// of the pool.
fn decode(compute: &Compute, encoding: Encoding, pool: &[u8], round: usize) -> f64 {
    let (rows, columns) = SHAPE;
    let [weight, scales, _] = encoding.plane_bytes(rows, columns);
    let bytes = encoding.matrix_bytes(rows, columns);
    let x: Vec<f32> = (0..columns).map(|i| (i as f32).sin()).collect();
    let mut activations = Activations::with_capacity(1, columns);
    compute.prepare(&x, columns, &[encoding], &mut activations);
    let mut outs = vec![vec![0.0; rows]; 8];
    let mut least = f64::INFINITY;
    let part = pool.len() / 8;
    for eight in pool[round % 8 * part..][..part].chunks_exact(8 * bytes) {
        let start = Instant::now();
        let mut jobs: Vec<_> = eight
            .chunks_exact(bytes)
            .zip(&mut outs)
            .map(|(bytes, out)| {
                let (w, rest) = bytes.split_at(weight);
                let (s, b) = rest.split_at(scales);
                let matrix = Matrix::new(encoding, rows, columns, w, s, b).unwrap();
                MatmulJob { matrix, x: &activations, tokens: Tokens::All, out }
            })
            .collect();
        compute.matmul(&mut jobs);
        least = least.min(start.elapsed().as_secs_f64() / 8.0);
    }
    least
}

/// Least seconds of a product of `many` tokens.
fn prefill(compute: &Compute, encoding: Encoding, pool: &[u8], many: usize) -> f64 {
    let (rows, columns) = SHAPE;
    let [weight, scales, biases] = encoding.plane_bytes(rows, columns);
    let (w, rest) = pool.split_at(weight);
    let (s, b) = (&rest[..scales], &rest[scales..][..biases]);
    let matrix = Matrix::new(encoding, rows, columns, w, s, b).unwrap();
    let x: Vec<f32> = (0..many * columns).map(|i| (i as f32).sin()).collect();
    let mut activations = Activations::with_capacity(many, columns);
    compute.prepare(&x, columns, &[encoding], &mut activations);
    let mut out = vec![0.0; many * rows];
    let mut least = f64::INFINITY;
    for _ in 0..6 {
        let start = Instant::now();
        let job = MatmulJob { matrix, x: &activations, tokens: Tokens::All, out: &mut out };
        compute.matmul(&mut [job]);
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
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
    let arithmetic = Arithmetic::Int16;
    let computes =
        [1, 2].map(|threads| Compute::new(ComputeOptions { threads, arithmetic, isa }).unwrap());
    let affine = |bits| Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 };
    let encodings: Vec<Encoding> = [2, 3, 4, 8]
        .map(affine)
        .into_iter()
        .chain([Encoding::Float(FloatType::Bf16)])
        .chain([
            Encoding::Mxfp4,
            Encoding::Symmetric { bits: 4, group: 32, scale: FloatType::Bf16 },
            Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) },
        ])
        .chain(BlockFormat::ALL.iter().copied().map(Encoding::Block))
        .filter(|encoding| encoding.name().contains(&part))
        .collect();
    let pool: Vec<u8> =
        (0..WORKING_SET as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // Random bytes would be subnormal numbers now and then, which take a processor a hundred times as long.
    let floats: Vec<u8> =
        pool.chunks_exact(2).flat_map(|two| [two[0], two[1] & 0x80 | 0x3f]).collect();
    let mut read = [0.0f64; 2];
    let mut best = vec![[f64::INFINITY; 4]; encodings.len()];
    for round in 0..rounds {
        for (threads, read) in read.iter_mut().enumerate() {
            *read = read.max(kernels::probe::read_bandwidth(threads + 1) / 1e9);
        }
        for (&encoding, best) in encodings.iter().zip(&mut best) {
            let is_float = matches!(encoding, Encoding::Float(_) | Encoding::Fp8 { .. });
            let pool = if is_float { &floats } else { &pool };
            for (i, compute) in computes.iter().enumerate() {
                best[i] = best[i].min(decode(compute, encoding, pool, round));
                best[2 + i] = best[2 + i].min(prefill(compute, encoding, pool, many));
            }
        }
    }
    let (rows, columns) = SHAPE;
    println!(
        "{}, {rows} x {columns}; reading {:.1} and {:.1} GB/s",
        computes[0].isa_name(),
        read[0],
        read[1]
    );
    println!(
        "encoding            GB/s, 1 and 2 threads   share of reading   Gweights/s   {many} tokens GFLOP/s"
    );
    for (&encoding, best) in encodings.iter().zip(&best) {
        let bytes = encoding.matrix_bytes(rows, columns);
        let rate = |i: usize| bytes as f64 / best[i] / 1e9;
        let weights = |i: usize| (rows * columns) as f64 / best[i] / 1e9;
        let many = |i: usize| 2.0 * (many * rows * columns) as f64 / best[i] / 1e9;
        println!(
            "{:18} {:5.1} {:5.1}   {:3.0} % {:3.0} %   {:5.1} {:5.1}   {:5.0} {:5.0}",
            encoding.name(),
            rate(0),
            rate(1),
            100.0 * rate(0) / read[0],
            100.0 * rate(1) / read[1],
            weights(0),
            weights(1),
            many(2),
            many(3),
        );
    }
}

//! Prints what the kernels reach on this machine: read bandwidth, products of one token against it,
//! products of many tokens and the delta rule. Best of several runs each. (`attention.rs` measures attention.)
//!
//! `cargo run --release -p flashmoe-kernels --example bandwidth [isa]`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use kernels::format::{Encoding, FloatType, Matrix};
use kernels::{
    Activations, Arithmetic, Compute, ComputeOptions, DeltaDecay, DeltaForm, DeltaInputs,
    DeltaShape, Isa, MatmulJob, Tokens,
};
use std::time::Instant;

/// Bytes of weights that a measurement walks: more than any cache.
const WORKING_SET: usize = 1 << 30;

fn best_seconds(runs: usize, mut body: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            body();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn affine(bits: u8) -> Encoding {
    Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 }
}

/// Gigabytes per second of products of one token with matrices that fill the working set.
fn decode(compute: &Compute, encoding: Encoding, rows: usize, columns: usize, pool: &[u8]) -> f64 {
    let bytes = encoding.matrix_bytes(rows, columns);
    let count = pool.len() / bytes;
    let x: Vec<f32> = (0..columns).map(|i| (i as f32).sin()).collect();
    let mut activations = Activations::with_capacity(1, columns);
    compute.prepare(&x, columns, &[encoding], &mut activations);
    let weight = rows * encoding.weight_row_bytes(columns);
    let scales = rows * encoding.scale_row_bytes(columns);
    // Eight matrices a region, as a token's experts.
    let mut outs = vec![vec![0.0; rows]; 8];
    let seconds = best_seconds(3, || {
        for eight in pool[..count * bytes].chunks(8 * bytes) {
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
        }
    });
    (count * bytes) as f64 / seconds / 1e9
}

/// Billions of floating point operations per second of a 4-bit product of many tokens.
fn prefill(compute: &Compute, tokens: usize, rows: usize, columns: usize, pool: &[u8]) -> f64 {
    let encoding = affine(4);
    let (weight, scales) =
        (rows * encoding.weight_row_bytes(columns), rows * encoding.scale_row_bytes(columns));
    let (w, rest) = pool.split_at(weight);
    let matrix =
        Matrix::new(encoding, rows, columns, w, &rest[..scales], &rest[scales..2 * scales]);
    let matrix = matrix.unwrap();
    let x: Vec<f32> = (0..tokens * columns).map(|i| (i as f32).sin()).collect();
    let mut activations = Activations::with_capacity(tokens, columns);
    compute.prepare(&x, columns, &[encoding], &mut activations);
    let mut out = vec![0.0; tokens * rows];
    let seconds = best_seconds(5, || {
        compute.matmul(&mut [MatmulJob {
            matrix,
            x: &activations,
            tokens: Tokens::All,
            out: &mut out,
        }]);
    });
    2.0 * (tokens * rows * columns) as f64 / seconds / 1e9
}

fn delta(compute: &Compute, tokens: usize, form: DeltaForm, decays: DeltaDecay) -> f64 {
    let each = decays.of_head(128);
    let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
    let mut state = vec![0.0; shape.state_len()];
    let wave = |n: usize| (0..n).map(|i| (i as f32).sin()).collect::<Vec<f32>>();
    let (q, v, a) = (wave(tokens * 2048), wave(tokens * 4096), wave(tokens * 32 * each));
    let bias = vec![0.1; 32 * each];
    let inputs = DeltaInputs {
        q: &q,
        k: &q,
        v: &v,
        qk_stride: 2048,
        v_stride: 4096,
        decays,
        a: &a,
        b: &a[..tokens * 32],
        decay: &[0.5; 32],
        dt_bias: &bias,
    };
    let mut out = vec![0.0; v.len()];
    1e6 * best_seconds(5, || compute.delta_rule(&shape, &mut state, &inputs, form, &mut out))
        / tokens as f64
}

fn main() {
    let isa = match std::env::args().nth(1).as_deref() {
        None => Isa::Auto,
        Some("scalar") => Isa::Scalar,
        Some("avx2") => Isa::Avx2,
        Some("avx512") => Isa::Avx512,
        Some("amx") => Isa::Amx,
        Some("neon") => Isa::Neon,
        Some(other) => panic!("unknown instruction set {other}"),
    };
    let arithmetic = Arithmetic::Int16;
    let [one, two] =
        [1, 2].map(|threads| Compute::new(ComputeOptions { threads, arithmetic, isa }).unwrap());
    println!("instruction set {}", two.isa_name());
    let read = [1, 2].map(|threads| kernels::probe::read_bandwidth(threads) / 1e9);
    println!("read GB/s: 1 thread {:.1}, 2 threads {:.1}", read[0], read[1]);
    let pool: Vec<u8> =
        (0..WORKING_SET as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // Random bytes would be subnormal numbers now and then, which take a processor a hundred times as long.
    let floats: Vec<u8> =
        pool.chunks_exact(2).flat_map(|two| [two[0], two[1] & 0x80 | 0x3f]).collect();
    for (rows, columns) in [(512, 2048), (2048, 512), (4096, 1024), (8192, 2048)] {
        for encoding in
            [2, 3, 4, 5, 6, 8].map(affine).into_iter().chain([Encoding::Float(FloatType::Bf16)])
        {
            let pool = if matches!(encoding, Encoding::Float(_)) { &floats } else { &pool };
            let rates = [&one, &two].map(|c| decode(c, encoding, rows, columns, pool));
            let name = encoding.label();
            println!(
                "{rows:5} x {columns:4} {name:9} GB/s {:5.1} {:5.1}, share of read {:3.0}% {:3.0}%",
                rates[0],
                rates[1],
                100.0 * rates[0] / read[0],
                100.0 * rates[1] / read[1]
            );
        }
    }
    for (rows, columns) in [(512, 2048), (2048, 512), (4096, 2048)] {
        for tokens in [1, 4, 16, 64, 512] {
            let rates = [&one, &two].map(|c| prefill(c, tokens, rows, columns, &pool));
            println!(
                "{rows:5} x {columns:4} 4 bits, {tokens:3} tokens: GFLOP/s {:6.0} {:6.0}",
                rates[0], rates[1]
            );
        }
    }
    let (heads, channels) = (DeltaDecay::Heads, DeltaDecay::Channels);
    for (tokens, form, decays) in [
        (1, DeltaForm::Step, heads),
        (64, DeltaForm::Step, heads),
        (64, DeltaForm::Chunked, heads),
        (1, DeltaForm::Step, channels),
        (64, DeltaForm::Step, channels),
    ] {
        let micros = [&one, &two].map(|c| delta(c, tokens, form, decays));
        println!(
            "delta rule {form:?} {decays:?} {tokens:3} tokens: us per token {:6.0} {:6.0}",
            micros[0], micros[1]
        );
    }
}

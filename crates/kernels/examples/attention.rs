//! Prints what attention reaches on this machine with every cache type: billions of floating point operations per
//! second of a chunk, and gigabytes of keys and values per second of a step, at several depths. Best of several runs.
//! With one thread only the time on the processor counts, so that a busy machine changes little.
//!
//! `cargo run --release -p flashmoe-kernels --example attention [isa] [threads]`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use kernels::{
    Arithmetic, AttentionShape, BLOCK_TOKENS, Compute, ComputeOptions, Isa, KeyValueBlock,
    KeyValueBlockMut, KvType, store_keys_values,
};
use std::time::Instant;

/// Tokens of a chunk.
const CHUNK: usize = 256;

/// Seconds that the calling thread has been on a processor, where the system says so.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// Of one thread what it computed, without the time that others took its processor away.
fn best_seconds(threads: usize, runs: usize, mut body: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let (start, before) = (Instant::now(), processor_seconds());
            body();
            match (threads, before, processor_seconds()) {
                (1, Some(before), Some(after)) => after - before,
                _ => start.elapsed().as_secs_f64(),
            }
        })
        .fold(f64::INFINITY, f64::min)
}

fn wave(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn main() {
    let isa = match std::env::args().nth(1).as_deref() {
        None | Some("auto") => Isa::Auto,
        Some("scalar") => Isa::Scalar,
        Some("avx2") => Isa::Avx2,
        Some("avx512") => Isa::Avx512,
        Some("amx") => Isa::Amx,
        Some("neon") => Isa::Neon,
        Some(other) => panic!("unknown instruction set {other}"),
    };
    let threads = std::env::args().nth(2).map_or(2, |n| n.parse().unwrap());
    let arithmetic = Arithmetic::Int16;
    let compute = Compute::new(ComputeOptions { threads, arithmetic, isa }).unwrap();
    let read = kernels::probe::read_bandwidth(threads) / 1e9;
    println!("instruction set {}, {threads} threads, read {read:.1} GB/s", compute.isa_name());
    for kv_type in KvType::ALL {
        let shape = AttentionShape {
            query_heads: 16,
            key_value_heads: 2,
            head_dim: 256,
            scale: 1.0 / 16.0,
            kv_type,
        };
        let row = shape.key_value_heads * shape.head_dim;
        let rows = wave(BLOCK_TOKENS * row);
        let mut one = (vec![0; shape.block_bytes()], vec![0; shape.block_bytes()]);
        let mut block = KeyValueBlockMut { keys: &mut one.0, values: &mut one.1 };
        store_keys_values(&shape, 0, &rows, &rows, &mut block);
        for depth in [1024, 8192, 32_768] {
            let count = (depth + CHUNK).div_ceil(BLOCK_TOKENS);
            let caches: Vec<_> = (0..count).map(|_| one.clone()).collect();
            let blocks: Vec<_> =
                caches.iter().map(|(keys, values)| KeyValueBlock { keys, values }).collect();
            let q = wave(CHUNK * 16 * 256);
            let mut out = vec![0.0; q.len()];
            let runs = if depth > 8192 { 3 } else { 7 };
            let chunk = best_seconds(threads, runs, || {
                compute.attention(&shape, &q, depth, &blocks, &mut out)
            });
            let scores = (CHUNK * depth + CHUNK * CHUNK / 2) * shape.query_heads;
            let flops = (4 * scores * shape.head_dim) as f64;
            let (q, out) = (&q[..16 * 256], &mut out[..16 * 256]);
            let step =
                best_seconds(threads, 25, || compute.attention(&shape, q, depth - 1, &blocks, out));
            let bytes = (2 * depth * shape.key_value_heads * kv_type.bytes_of_head(256)) as f64;
            println!(
                "{kv_type:>4} at {depth:5}: chunk {:6.1} GFLOP/s, {:7.1} us a token; \
                 step {:5.1} GB/s = {:3.0} % of reading",
                flops / chunk / 1e9,
                1e6 * chunk / CHUNK as f64,
                bytes / step / 1e9,
                100.0 * bytes / step / 1e9 / read,
            );
        }
    }
}

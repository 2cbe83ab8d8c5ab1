//! Prints where the time of a step goes on this machine: the calls of a token (or of a chunk of a prompt) of the
//! 35B-A3B shape at 4 bits, one after the other as the engine makes them, over weights that no cache holds. Attention
//! is left out (`attention.rs` measures it). Per kind of call: microseconds of a layer, gigabytes of weights a second.
//!
//! `cargo run --release -p flashmoe-kernels --example step [threads,... [tokens [steps [brief]]]]`; with glibc's
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` weights lie in huge pages, as the engine's do.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use kernels::format::{Encoding, FloatType, Matrix};
use kernels::{
    Activations, Arithmetic, Compute, ComputeOptions, DeltaDecay, DeltaForm, DeltaInputs,
    DeltaShape, Isa, MatmulJob, Tokens,
};
use std::collections::BTreeMap;
use std::time::Instant;

const HIDDEN: usize = 2048;
const INPUTS: [usize; 4] = [8192, 4096, 32, 32];
const CHANNELS: usize = 8192;
const VALUES: usize = 4096;
const EXPERTS: usize = 256;
const CHOSEN: usize = 8;
const INNER: usize = 512;
const VOCABULARY: usize = 248_320;
const LAYERS: usize = 40;
const DELTA: DeltaShape =
    DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };

/// Bytes of weights in all: those of a token, so that a step finds nothing of the last one in a cache.
const WORKING_SET: usize = 1 << 31;

fn affine(bits: u8) -> Encoding {
    Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 }
}

/// Weights, taken one after the other.
struct Weights {
    bytes: &'static [u8],
    next: usize,
}

impl Weights {
    fn take(&mut self, bits: u8, rows: usize, columns: usize) -> Matrix<'static> {
        let encoding = affine(bits);
        let [weight, scales, biases] = encoding.plane_bytes(rows, columns);
        let all = (weight + scales + biases).next_multiple_of(4096);
        if self.next + all > self.bytes.len() {
            self.next = 0;
        }
        let bytes = &self.bytes[self.next..][..all];
        self.next += all;
        let (w, rest) = bytes.split_at(weight);
        Matrix::new(encoding, rows, columns, w, &rest[..scales], &rest[scales..][..biases]).unwrap()
    }
}

/// Seconds, bytes and calls by kind.
#[derive(Default)]
struct Times(BTreeMap<&'static str, (f64, usize, usize)>);

impl Times {
    fn of<T>(&mut self, name: &'static str, bytes: usize, body: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = body();
        let entry = self.0.entry(name).or_default();
        entry.0 += start.elapsed().as_secs_f64();
        entry.1 += bytes;
        entry.2 += 1;
        result
    }
}

fn bytes(matrices: &[Matrix<'_>]) -> usize {
    matrices.iter().map(|m| m.encoding.matrix_bytes(m.rows, m.columns)).sum()
}

/// One product for all tokens with each of `matrices`.
fn products(
    compute: &Compute,
    times: &mut Times,
    name: &'static str,
    matrices: &[Matrix<'_>],
    x: &Activations,
    rows: &[&[u32]],
    outs: &mut [Vec<f32>],
) {
    times.of(name, bytes(matrices), || {
        let jobs = matrices.iter().zip(outs).enumerate().map(|(i, (&matrix, out))| {
            let tokens = if rows.is_empty() { Tokens::All } else { Tokens::Rows(rows[i]) };
            let n = if rows.is_empty() { x.tokens() } else { rows[i].len() };
            MatmulJob { matrix, x, tokens, out: &mut out[..n * matrix.rows] }
        });
        compute.matmul(&mut jobs.collect::<Vec<_>>());
    });
}

#[allow(clippy::too_many_lines, reason = "the calls of a step in their order")]
fn step(
    compute: &Compute,
    weights: &mut Weights,
    states: &mut [Vec<f32>],
    n: usize,
    times: &mut Times,
) {
    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>();
    // Ones, because untouched zeros would be mapped while the clock runs.
    let outs = |rows: &[usize], n: usize| rows.iter().map(|r| vec![1.0; r * n]).collect::<Vec<_>>();
    let (mut hidden, norm, mut normed) = (wave(n * HIDDEN), wave(HIDDEN), wave(n * HIDDEN));
    let mut x = Activations::with_capacity(n * CHOSEN, VALUES);
    let mut inner = Activations::with_capacity(n * CHOSEN, INNER);
    let mut alone = Activations::with_capacity(n, INNER);
    let mut mixed = outs(&INPUTS, n);
    let mut convolved = wave(n * CHANNELS);
    let mut tail = wave(3 * CHANNELS);
    let convolution = wave(4 * CHANNELS);
    let mut context = wave(n * VALUES);
    let rates = wave(n * 32);
    let mut projected = outs(&[HIDDEN], n);
    let mut logits = outs(&[EXPERTS, 1], n);
    let mut activated = vec![1.0; n * CHOSEN * INNER];
    let (mut ids, mut factors) = (vec![0u16; n * CHOSEN], vec![0.0; n * CHOSEN]);
    // Tokens of each expert, as evenly spread as can be.
    let used = EXPERTS.min(n * CHOSEN);
    let mut of: Vec<Vec<u32>> = vec![Vec::new(); used];
    for pair in 0..n * CHOSEN {
        of[pair % used].push((pair / CHOSEN) as u32);
    }
    let mut first = 0;
    let places: Vec<Vec<u32>> = of
        .iter()
        .map(|tokens| {
            let rows = (first..first + tokens.len() as u32).collect();
            first += tokens.len() as u32;
            rows
        })
        .collect();
    let all: Vec<u32> = (0..n as u32).collect();
    let outer: Vec<&[u32]> = of.iter().chain([&all]).flat_map(|t| [&t[..], &t[..]]).collect();
    let mut gate_up: Vec<Vec<f32>> = outer.iter().map(|t| vec![1.0; t.len() * INNER]).collect();
    let mut down: Vec<Vec<f32>> = of.iter().map(|t| vec![1.0; t.len() * HIDDEN]).collect();
    let pairs: Vec<u32> = of.iter().flatten().copied().collect();
    let (gates, ups, all_out) =
        (wave(n * CHOSEN * INNER), wave(n * CHOSEN * INNER), wave(n * CHOSEN * HIDDEN));
    let mut sum = vec![1.0; n * HIDDEN];
    for state in states {
        let four = [affine(4)];
        times.of("norm", 0, || compute.rms_norm(&hidden, &norm, 1e-6, &mut normed));
        times.of("prepare", 0, || compute.prepare(&normed, HIDDEN, &four, &mut x));
        let matrices = INPUTS.map(|rows| weights.take(4, rows, HIDDEN));
        products(compute, times, "1 inputs", &matrices, &x, &[], &mut mixed);
        times.of("convolution", 0, || {
            compute.causal_convolution(&mut tail, &mixed[0], &convolution, 4, &mut convolved);
        });
        times.of("delta rule", 0, || {
            let inputs = DeltaInputs {
                q: &convolved,
                k: &convolved[2048..],
                v: &convolved[4096..],
                qk_stride: CHANNELS,
                v_stride: CHANNELS,
                decays: DeltaDecay::Heads,
                a: &rates,
                b: &rates,
                decay: &[0.5; 32],
                dt_bias: &[0.1; 32],
            };
            compute.delta_rule(&DELTA, state, &inputs, DeltaForm::Step, &mut context);
        });
        times.of("gated norm", 0, || {
            compute.gated_rms_norm_in_place(&mut context, &norm[..128], &mixed[1], 1e-6);
        });
        times.of("prepare context", 0, || compute.prepare(&context, VALUES, &four, &mut x));
        let matrices = [weights.take(4, HIDDEN, VALUES)];
        products(compute, times, "2 output", &matrices, &x, &[], &mut projected);
        times.of("add", 0, || compute.add(&mut hidden, &projected[0]));
        times.of("norm", 0, || compute.rms_norm(&hidden, &norm, 1e-6, &mut normed));
        times.of("prepare", 0, || {
            compute.prepare(&normed, HIDDEN, &[affine(4), affine(8)], &mut x);
        });
        let matrices = [weights.take(8, EXPERTS, HIDDEN), weights.take(8, 1, HIDDEN)];
        products(compute, times, "3 router", &matrices, &x, &[], &mut logits);
        times.of("top k", 0, || {
            compute.softmax_top_k(&logits[0], EXPERTS, CHOSEN, true, &mut ids, &mut factors);
        });
        // The shared expert goes with the others, gates and inputs first, then what leads out of them.
        let matrices: Vec<_> = outer.iter().map(|_| weights.take(4, INNER, HIDDEN)).collect();
        products(compute, times, "4 gates, ups", &matrices, &x, &outer, &mut gate_up);
        let own = &mut activated[..n * INNER];
        times
            .of("shared swiglu", 0, || compute.swiglu(&gates[..own.len()], &ups[..own.len()], own));
        times.of("shared prepare", 0, || compute.prepare(own, INNER, &four, &mut alone));
        times.of("experts swiglu", 0, || compute.swiglu(&gates, &ups, &mut activated));
        times.of("experts prepare", 0, || compute.prepare(&activated, INNER, &four, &mut inner));
        let matrices: Vec<_> = places.iter().map(|_| weights.take(4, HIDDEN, INNER)).collect();
        let last = weights.take(4, HIDDEN, INNER);
        times.of("5 downs", bytes(&matrices) + bytes(&[last]), || {
            let experts =
                matrices.iter().zip(&places).zip(&mut down).map(|((&matrix, rows), out)| {
                    MatmulJob { matrix, x: &inner, tokens: Tokens::Rows(rows), out }
                });
            let out = &mut projected[0][..];
            let shared = MatmulJob { matrix: last, x: &alone, tokens: Tokens::All, out };
            compute.matmul(&mut experts.chain([shared]).collect::<Vec<_>>());
        });
        times.of("sum of experts", 0, || {
            compute.scatter_add_scaled(&mut sum, HIDDEN, &pairs, &factors, &all_out);
        });
        times.of("add", 0, || compute.add(&mut hidden, &sum));
    }
    times.of("prepare", 0, || compute.prepare(&normed[..HIDDEN], HIDDEN, &[affine(4)], &mut x));
    let mut row = outs(&[VOCABULARY], 1);
    let matrices = [weights.take(4, VOCABULARY, HIDDEN)];
    products(compute, times, "6 head", &matrices, &x, &[], &mut row);
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().unwrap_or_else(|| "1,2".into());
    let tokens: usize = arguments.next().map_or(1, |text| text.parse().unwrap());
    let steps: usize = arguments.next().map_or(12, |text| text.parse().unwrap());
    let brief = arguments.next().is_some();
    let mut pool = vec![1u8; WORKING_SET];
    std::thread::scope(|scope| {
        for part in pool.chunks_mut(WORKING_SET / 16) {
            scope.spawn(move || {
                // Normal numbers as scales: subnormal ones take a processor a hundred times as long.
                for (i, byte) in part.iter_mut().enumerate() {
                    let random = ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
                    *byte = if i % 2 == 0 { random } else { random & 0x80 | 0x3a };
                }
            });
        }
    });
    let mut weights = Weights { bytes: pool.leak(), next: 0 };
    let mut states = vec![vec![0.5f32; DELTA.state_len()]; LAYERS];
    for threads in threads.split(',') {
        let threads = threads.parse().unwrap();
        let read = kernels::probe::read_bandwidth(threads) / 1e9;
        let options = ComputeOptions { threads, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
        let compute = Compute::new(options).unwrap();
        let mut best: Option<(f64, Times)> = None;
        for _ in 0..steps {
            let mut times = Times::default();
            step(&compute, &mut weights, &mut states, tokens, &mut times);
            let seconds = times.0.values().map(|t| t.0).sum();
            if best.as_ref().is_none_or(|best| seconds < best.0) {
                best = Some((seconds, times));
            }
        }
        let (seconds, times) = best.unwrap();
        let all: usize = times.0.values().map(|t| t.1).sum();
        println!(
            "{threads} threads, {tokens} tokens, {}: {:.2} ms, {:.1} tok/s, {:.1} GB/s, {:.0} % of reading \
             ({read:.1} GB/s)",
            compute.isa_name(),
            1e3 * seconds,
            tokens as f64 / seconds,
            all as f64 / seconds / 1e9,
            all as f64 / seconds / 1e7 / read,
        );
        if brief {
            continue;
        }
        for (name, (seconds, bytes, calls)) in &times.0 {
            println!(
                "  {name:20} {:8.1} us each, {:4.1} ms, {:6.1} GB/s",
                1e6 * seconds / *calls as f64,
                1e3 * seconds,
                *bytes as f64 / seconds / 1e9
            );
        }
    }
}

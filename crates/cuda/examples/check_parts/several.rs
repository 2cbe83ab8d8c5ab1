//! Steps of several sequences: the bits of each alone, and what a step costs by the number of sequences.

use cuda::launch::{self, ExpertStep, StepConvolution, StepInput, StepJob, StepShared};

use cuda::{ExpertShapes, Matrix, Span};
use kernels::format::{BlockFormat, Encoding, FloatType};

use super::blocks::FORMATS;
use super::{Bench, Shape, Shared};

/// A token's row.
fn row<T>(span: Span<T>, tokens: usize, token: usize) -> Span<T> {
    let width = span.len() / tokens;
    span.part(token * width, width)
}

/// The same input of one token.
fn alone(input: &StepInput, tokens: usize, token: usize) -> StepInput {
    match *input {
        StepInput::Plain { x } => StepInput::Plain { x: row(x, tokens, token) },
        StepInput::Norm { x, weight, epsilon } => {
            StepInput::Norm { x: row(x, tokens, token), weight, epsilon }
        }
        StepInput::HeadNorm { x, gate, weight, epsilon, sigmoid } => {
            let (x, gate) = (row(x, tokens, token), row(gate, tokens, token));
            StepInput::HeadNorm { x, gate, weight, epsilon, sigmoid }
        }
        StepInput::Gated { x, both, dim } => {
            StepInput::Gated { x: row(x, tokens, token), both: row(both, tokens, token), dim }
        }
    }
}

impl Bench {
    pub(super) fn equal_bits(&self, case: &str, found: Span<f32>, expected: Span<f32>) {
        let (a, b) = (self.read(found), self.read(expected));
        let differ = a.iter().zip(&b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let numbers = a.iter().all(|v| v.is_finite());
        let good = differ == 0 && numbers;
        println!("{case}: {differ} of {} differ{}", a.len(), if good { "" } else { " FAILED" });
        self.failed.set(self.failed.get() || !good);
    }

    pub(super) fn several_products(&self) {
        for (bits, group) in [(4, 64), (8, 64), (4, 32), (8, 128), (4, 128), (3, 64)] {
            for (rows, columns, tokens) in [
                (4096, 2048, 2),
                (200, 640, 3),
                (40, 4096, 4),
                (2048, 4096, 5),
                (20_000, 256, 6),
                (1, 2048, 7),
                (4096, 8192, 8),
            ] {
                let [first, second] = [(); 2].map(|()| self.matrix(rows, columns, bits, group));
                let other = self.matrix(64, columns, 8, 64);
                let label = format!("{bits} bits by {group}");
                self.products_of_several(&label, [first, second, other], tokens);
            }
        }
        let floats = [FloatType::F32, FloatType::F16, FloatType::Bf16].map(Encoding::Float);
        for encoding in FORMATS.map(|row| Encoding::Block(row.0)).into_iter().chain(floats) {
            for (rows, columns, tokens) in
                [(4096, 2048, 4), (200, 768, 3), (40, 4096, 2), (20_000, 256, 6), (1, 2048, 8)]
            {
                let [first, second] = [(); 2].map(|()| self.any_matrix(encoding, rows, columns));
                let other = self.any_matrix(Encoding::Float(FloatType::F32), 64, columns);
                self.products_of_several(&encoding.name(), [first, second, other], tokens);
            }
        }
    }

    /// Products of a step of several tokens, and of each token by itself: two matrices of one shape and a small one.
    fn products_of_several(&self, label: &str, [first, second, other]: [Matrix; 3], tokens: usize) {
        let (rows, columns) = (first.rows(), first.columns());
        let (x, weight) = (self.random(tokens * columns), self.random(columns));
        let [gate, both] = [1, 2].map(|n| self.random(n * tokens * columns));
        let head = self.random(64);
        let inputs = [
            StepInput::Norm { x, weight, epsilon: 1e-6 },
            StepInput::Gated { x, both, dim: 64 },
            StepInput::HeadNorm { x, gate, weight: head, epsilon: 1e-6, sigmoid: false },
            StepInput::HeadNorm { x, gate, weight: head, epsilon: 1e-6, sigmoid: true },
        ];
        for input in &inputs {
            let (kernel, sequences) = (4, (0..tokens as u32).rev().collect::<Vec<_>>());
            let stride = (kernel - 1) * rows;
            let (taps, tails) = (self.random(rows * kernel), self.random(tokens * stride));
            let tails = [tails, self.twin(tails)];
            let sequences = self.words(&sequences);
            let start = self.random(tokens * rows);
            let outs = [0, 1].map(|_| {
                let all: Vec<_> = (0..3).map(|_| self.twin(start)).collect();
                (all, self.poison(tokens * 64))
            });
            let jobs = |side: usize, from: usize, count: usize| {
                let (all, small) = &outs[side];
                let part = |span: Span<f32>| {
                    let width = span.len() / tokens;
                    span.part(from * width, count * width)
                };
                let convolution = StepConvolution {
                    weight: taps,
                    tails: tails[side],
                    stride,
                    sequences: sequences.part(from, count),
                    rounds: None,
                };
                let with_small = [
                    StepJob::Convolve(first, part(all[0]), convolution),
                    StepJob::Store(other, part(*small)),
                ];
                let pair = [StepJob::SwiGlu(first, second, part(all[1]))];
                let sum = [StepJob::Add(first, part(all[2]))];
                (with_small, pair, sum)
            };
            let launch = |input: &StepInput, side, from, count| {
                let (a, b, c) = jobs(side, from, count);
                launch::step_linear(&self.stream, count, input, &a).unwrap();
                launch::step_linear(&self.stream, count, input, &b).unwrap();
                launch::step_linear(&self.stream, count, input, &c).unwrap();
            };
            launch(input, 0, 0, tokens);
            for token in 0..tokens {
                launch(&alone(input, tokens, token), 1, token, 1);
            }
            let case = format!("{tokens} tokens, {label}, [{rows}, {columns}]");
            for (kind, (found, expected)) in outs[0].0.iter().zip(&outs[1].0).enumerate() {
                let kind = ["convolution", "SwiGLU", "sum"][kind];
                self.equal_bits(&format!("{kind} of {case}"), *found, *expected);
            }
            self.equal_bits(&format!("small matrix next to {case}"), outs[0].1, outs[1].1);
            self.equal_bits(&format!("tails of {case}"), tails[0], tails[1]);
        }
    }

    pub(super) fn several_experts(&self, pinned: &Shared) {
        for (hidden, inner, shared, bits, group, k, tokens) in [
            (2048, 512, 512, 4, 64, 8, 8),
            (4096, 1024, 1024, 4, 64, 10, 8),
            (512, 256, 128, 4, 32, 3, 2),
            (256, 640, 384, 4, 128, 4, 3),
            (384, 256, 256, 4, 64, 5, 5),
            (256, 128, 256, 8, 32, 4, 7),
            (512, 256, 0, 3, 64, 3, 4),
            (1024, 2048, 0, 8, 128, 2, 6),
            (4096, 3072, 256, 4, 64, 6, 4),
        ] {
            let experts = 2 * k + 3;
            let records = self.records(experts, hidden, inner, bits, group);
            let down = self.matrix(hidden, shared.max(128), bits, 64);
            let label = format!("{bits} bits by {group}");
            self.experts_of_several(&label, records, (down, shared == 0), (k, tokens), pinned);
        }
        let every = FORMATS.map(|row| (row.0, row.0, BlockFormat::Q8_0)).into_iter();
        let mixed = [
            (BlockFormat::Q4K, BlockFormat::Q6K, BlockFormat::Q6K),
            (BlockFormat::Q4K, BlockFormat::Iq2S, BlockFormat::Q4K),
        ];
        for (index, formats) in every.chain(mixed).enumerate() {
            let [first, second, dense] = [formats.0, formats.1, formats.2].map(Encoding::Block);
            for (hidden, inner, shared, k, tokens) in
                [(2048, 512, 512, 8, 4), (512, 256, 0, 3, 2 + index % 7), (256, 768, 256, 2, 8)]
            {
                let records = self.block_records(2 * k + 3, hidden, inner, [first, first, second]);
                let down = self.any_matrix(dense, hidden, shared.max(256));
                let label = format!("{} and {}", first.name(), second.name());
                self.experts_of_several(&label, records, (down, shared == 0), (k, tokens), pinned);
            }
        }
    }

    /// Experts of a step of several tokens, and of each token by itself. `without`: there is no shared expert.
    fn experts_of_several(
        &self,
        label: &str,
        (shapes, addresses): (ExpertShapes, Vec<u64>),
        (down, without): (Matrix, bool),
        (k, tokens): (usize, usize),
        pinned: &Shared,
    ) {
        let (hidden, inner, experts) = (shapes.gate().columns(), shapes.inner(), addresses.len());
        let width = down.columns();
        // Some experts are of several tokens.
        let mut chosen = Vec::new();
        for _ in 0..tokens {
            let mut ids: Vec<u32> = (0..experts as u32).collect();
            while ids.len() > k {
                ids.remove(self.next() as usize % ids.len());
            }
            chosen.extend(ids);
        }
        let named: Vec<u64> = chosen.iter().map(|&e| addresses[e as usize]).collect();
        let (x, norm) = (self.random(tokens * hidden), self.random(hidden));
        let start = self.random(tokens * hidden);
        let outs = [self.twin(start), self.twin(start)];
        let inners = [0, 1].map(|_| self.poison(tokens * k * inner));
        let (chosen, named) = (self.words(&chosen), self.long_words(&named));
        let weights = self.random(tokens * k);
        let (factor, values) = (self.random(tokens), self.random(tokens * width));
        let launch = |side: usize, from: usize, count: usize| {
            let part = |width: usize| (from * width, count * width);
            let floats = |span: Span<f32>| {
                let (at, length) = part(span.len() / tokens);
                span.part(at, length)
            };
            let (at, length) = part(k);
            let step = ExpertStep {
                x: floats(x),
                chosen: chosen.part(at, length),
                weights: floats(weights),
                addresses: named.part(at, length),
                answers: pinned.answers.span(0, experts),
                status: pinned.status.all(),
                inner: floats(inners[side]),
                out: floats(outs[side]),
                copies: None,
                ended: None,
                first_key: 0,
                k,
            };
            let second = StepShared { down, factor: floats(factor), inner: floats(values) };
            let second = (!without).then_some(&second);
            let input = StepInput::Norm { x: floats(x), weight: norm, epsilon: 1e-6 };
            launch::step_experts(&self.stream, count, &input, &step, &shapes, second, None)
                .unwrap();
        };
        launch(0, 0, tokens);
        (0..tokens).for_each(|token| launch(1, token, 1));
        let case = format!("{tokens} tokens, {k} experts of {label}, [{inner}, {hidden}]");
        self.equal_bits(&format!("inner values of {case}"), inners[0], inners[1]);
        self.equal_bits(&format!("mixture of {case}"), outs[0], outs[1]);
    }

    /// What a step costs by the number of sequences, where no two tokens have an expert in common.
    pub(super) fn several_table(&self, name: &str, shape: Shape, pinned: &Shared, copy: f64) {
        let (hidden, inner, k, inputs, columns, vocabulary) = shape;
        let bytes = |matrix: &cuda::Matrix, bits: usize| {
            matrix.rows() * matrix.columns() * bits / 8 + matrix.rows() * matrix.columns() / 16
        };
        let line = |kernel: &str, tokens: usize, bytes: usize, time: f64| {
            let rate = bytes as f64 / time / 1e3;
            println!(
                "{name:>5} {tokens} tokens, {kernel:<30} {:8.2} MB {time:8.2} us {rate:6.0} GB/s {:4.0} %",
                bytes as f64 / 1e6,
                100.0 * rate / copy
            );
        };
        const MOST: usize = 8;
        let (x, wide) = (self.random(MOST * hidden), self.random(MOST * columns));
        let (norm, out) = (self.random(hidden), self.poison(MOST * vocabulary));
        let matrices = |rows: usize, columns: usize, count: usize| -> Vec<_> {
            (0..count).map(|_| self.matrix(rows, columns, 4, 64)).collect()
        };
        let products = [
            ("norm, input projections", matrices(inputs, hidden, 8), false),
            ("output projection", matrices(hidden, columns, 16), true),
            ("output head", matrices(vocabulary, hidden, 1), false),
        ];
        let router: Vec<_> = (0..24)
            .map(|_| {
                let shared = || self.matrix(inner, hidden, 4, 64);
                [self.matrix(256, hidden, 8, 64), shared(), shared(), self.matrix(1, hidden, 8, 64)]
            })
            .collect();
        let (logits, shared) = (self.poison(MOST * 256), self.random(MOST * inner));
        let factor = self.random(MOST);
        let down = self.matrix(hidden, inner, 4, 64);
        let pool = 2 * MOST * k;
        let (shapes, addresses) = self.records(pool, hidden, inner, 4, 64);
        let ids: Vec<u32> = (0..pool as u32).collect();
        let (chosen, named) = (self.words(&ids), self.long_words(&addresses));
        let (weights, values) = (self.random(MOST * k), self.poison(MOST * k * inner));
        for tokens in [1, 2, 4, 8] {
            let input = |x: Span<f32>, columns: usize| StepInput::Norm {
                x: x.part(0, tokens * columns),
                weight: norm,
                epsilon: 1e-6,
            };
            for (kernel, matrices, add) in &products {
                let time = self.time(matrices.len().max(24), &|turn| {
                    let matrix = matrices[turn % matrices.len()];
                    let to = out.part(0, tokens * matrix.rows());
                    let (input, job) = match add {
                        true => {
                            let x = wide.part(0, tokens * columns);
                            (StepInput::Plain { x }, StepJob::Add(matrix, to))
                        }
                        false => (input(x, hidden), StepJob::Store(matrix, to)),
                    };
                    launch::step_linear(&self.stream, tokens, &input, &[job])
                });
                line(kernel, tokens, bytes(&matrices[0], 4), time);
            }
            let stream = input(x, hidden);
            let time = self.time(48, &|turn| {
                let [router, gate, up, one] = router[turn % 24];
                let jobs = [
                    StepJob::Store(router, logits.part(0, tokens * 256)),
                    StepJob::SwiGlu(gate, up, shared.part(0, tokens * inner)),
                    StepJob::Store(one, factor.part(0, tokens)),
                ];
                launch::step_linear(&self.stream, tokens, &stream, &jobs)
            });
            let size = bytes(&router[0][0], 8) + 2 * bytes(&router[0][1], 4);
            line("norm, router, shared first half", tokens, size, time);
            let second = StepShared {
                down,
                factor: factor.part(0, tokens),
                inner: shared.part(0, tokens * inner),
            };
            let pairs = tokens * k;
            let time = self.time(40, &|turn| {
                let from = turn % (pool / pairs) * pairs;
                let step = ExpertStep {
                    x: x.part(0, tokens * hidden),
                    chosen: chosen.part(from, pairs),
                    weights: weights.part(0, pairs),
                    addresses: named.part(from, pairs),
                    answers: pinned.answers.span(0, 64),
                    status: pinned.status.all(),
                    inner: values.part(0, pairs * inner),
                    out: out.part(0, tokens * hidden),
                    copies: None,
                    ended: None,
                    first_key: 0,
                    k,
                };
                launch::step_experts(
                    &self.stream,
                    tokens,
                    &stream,
                    &step,
                    &shapes,
                    Some(&second),
                    None,
                )
            });
            line("experts, both halves", tokens, (3 * pairs + 1) * bytes(&down, 4), time);
        }
    }
}

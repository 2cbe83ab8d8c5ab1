//! Compares the fused kernels of a step with their plain counterparts on random data, and times both.
//!
//! Needs a GPU: `cargo run --release -p flashmoe-cuda --example check [SEED]`. Prints a line per case and ends with an
//! error when one differs by more than f32 arithmetic explains; then a table of what a layer of two model shapes costs,
//! kernel by kernel, each launched many times in a graph over weights that no cache holds, and of experts read over the
//! bus.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failure here is a failed check; it prints a table"
)]

use std::cell::Cell;
use std::time::Instant;

use cuda::launch::{self, ExpertStep, SharedExpert, StepInput, StepJob, StepShared, TokenPlaces};
use cuda::{
    CudaError, Device, DeviceBuffer, ExpertShapes, Matrix, PinnedBuffer, Span, Stream, Word,
};
use kernels::format::{Encoding, FloatType};

#[path = "check_parts/attention.rs"]
mod attention;
#[path = "check_parts/blocks.rs"]
mod blocks;
#[path = "check_parts/bus.rs"]
mod bus;
#[path = "check_parts/chosen_rows.rs"]
mod chosen_rows;
#[path = "check_parts/compressed.rs"]
mod compressed;
#[path = "check_parts/delta.rs"]
mod delta;
#[path = "check_parts/few.rs"]
mod few;
#[path = "check_parts/gated.rs"]
mod gated;
#[path = "check_parts/head.rs"]
mod head;
#[path = "check_parts/indexed.rs"]
mod indexed;
#[path = "check_parts/latent.rs"]
mod latent;
#[path = "check_parts/pages.rs"]
mod pages;
#[path = "check_parts/planes.rs"]
mod planes;
#[path = "check_parts/rounds.rs"]
mod rounds;
#[path = "check_parts/routed.rs"]
mod routed;
#[path = "check_parts/routing.rs"]
mod routing;
#[path = "check_parts/sandwich.rs"]
mod sandwich;
#[path = "check_parts/scored.rs"]
mod scored;
#[path = "check_parts/several.rs"]
mod several;
#[path = "check_parts/tiles.rs"]
mod tiles;
#[path = "check_parts/visible.rs"]
mod visible;
#[path = "check_parts/waiting.rs"]
mod waiting;

/// Relative difference that is explained by the order of sums.
const BOUND: f64 = 2e-5;

struct Bench {
    device: Device,
    stream: Stream,
    state: Cell<u64>,
    failed: Cell<bool>,
    /// Keeps every buffer to the end: spans do not.
    held: std::cell::RefCell<Vec<DeviceBuffer>>,
}

/// Words that the host shares with the kernels of experts.
struct Shared {
    status: PinnedBuffer<u32>,
    answers: PinnedBuffer<u64>,
    copies: PinnedBuffer<u64>,
}

impl Bench {
    fn next(&self) -> u64 {
        let mut x = self.state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.state.set(x);
        x
    }

    /// Uniform in -1..1.
    fn unit(&self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn keep(&self, bytes: &[u8]) -> usize {
        let buffer = DeviceBuffer::new(&self.device, bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        self.held.borrow_mut().push(buffer);
        self.held.borrow().len() - 1
    }

    fn bytes(&self, bytes: &[u8]) -> Span<u8> {
        let index = self.keep(bytes);
        self.held.borrow()[index].span(0, bytes.len())
    }

    fn floats(&self, values: &[f32]) -> Span<f32> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let index = self.keep(&bytes);
        self.held.borrow()[index].span(0, values.len())
    }

    fn words(&self, values: &[u32]) -> Span<u32> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let index = self.keep(&bytes);
        self.held.borrow()[index].span(0, values.len())
    }

    fn long_words(&self, values: &[u64]) -> Span<u64> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let index = self.keep(&bytes);
        self.held.borrow()[index].span(0, values.len())
    }

    fn random(&self, count: usize) -> Span<f32> {
        self.floats(&(0..count).map(|_| self.unit()).collect::<Vec<_>>())
    }

    /// Not a number everywhere, so that a value that is never written is seen.
    fn poison(&self, count: usize) -> Span<f32> {
        self.floats(&vec![f32::NAN; count])
    }

    /// A copy of the same values elsewhere.
    fn twin(&self, span: Span<f32>) -> Span<f32> {
        let to = self.poison(span.len());
        self.stream.copy(span, to).unwrap();
        to
    }

    fn read(&self, span: Span<f32>) -> Vec<f32> {
        self.read_words(span)
    }

    fn read_words<T: Word>(&self, span: Span<T>) -> Vec<T> {
        let host = PinnedBuffer::new(&self.device, span.len()).unwrap();
        self.stream.copy(span, host.all()).unwrap();
        self.stream.wait().unwrap();
        host.collect(0..span.len()).collect()
    }

    /// Pieces of a random matrix: packed values, scales and biases.
    fn pieces(&self, rows: usize, columns: usize, bits: u8, group: u16) -> [Vec<u8>; 3] {
        let bytes = rows * columns * bits as usize / 8;
        let mut packed: Vec<u8> =
            (0..bytes.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        packed.truncate(bytes);
        let groups = rows * columns / group as usize;
        let levels = f32::from(bits).exp2();
        let scale = 2.0 / levels / (columns as f32).sqrt();
        let bf16 = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
        let scales = (0..groups).flat_map(|_| bf16(scale * (1.0 + 0.5 * self.unit()))).collect();
        let biases =
            (0..groups).flat_map(|_| bf16(-scale * levels / 2.0 * (1.0 + 0.1 * self.unit())));
        [packed, scales, biases.collect()]
    }

    fn matrix(&self, rows: usize, columns: usize, bits: u8, group: u16) -> Matrix {
        let encoding = Encoding::Affine { bits, group, scale: FloatType::Bf16 };
        let [weight, scales, biases] =
            self.pieces(rows, columns, bits, group).map(|piece| self.bytes(&piece));
        Matrix::new(encoding, rows, columns, weight, scales, biases)
    }

    fn compare(&self, case: &str, found: Span<f32>, expected: Span<f32>) {
        let (a, b) = (self.read(found), self.read(expected));
        let square = |v: f64| v * v;
        let error: f64 = a.iter().zip(&b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
        let relative = (error / norm).sqrt();
        // Not "above": what is no number is wrong.
        let good = relative <= BOUND;
        println!("{case}: relative {relative:.1e}{}", if good { "" } else { " FAILED" });
        self.failed.set(self.failed.get() || !good);
    }

    fn linear(&self) {
        for (bits, group) in
            [(4, 64), (8, 64), (2, 32), (3, 64), (5, 128), (6, 32), (4, 32), (4, 128), (8, 128)]
        {
            for (rows, columns, tokens) in
                [(4096, 2048, 1), (200, 640, 3), (40, 4096, 1), (20000, 256, 2)]
            {
                let x = self.random(tokens * columns);
                let weight = self.random(columns);
                let (first, second) = (
                    self.matrix(rows, columns, bits, group),
                    self.matrix(rows, columns, bits, group),
                );
                let normed = self.poison(tokens * columns);
                launch::rms_norm(&self.stream, tokens, x, None, weight, 1e-6, normed).unwrap();
                let plain: Vec<_> = (0..2).map(|_| self.poison(tokens * rows)).collect();
                let jobs = [(first, plain[0]), (second, plain[1])];
                launch::linear(&self.stream, normed, tokens, &jobs, false).unwrap();
                let input = StepInput::Norm { x, weight, epsilon: 1e-6 };
                let fused: Vec<_> = (0..3).map(|_| self.poison(tokens * rows)).collect();
                let step = [StepJob::Store(first, fused[0]), StepJob::Store(second, fused[1])];
                launch::step_linear(&self.stream, tokens, &input, &step).unwrap();
                let case =
                    format!("{bits} bits, groups of {group}, [{rows}, {columns}], {tokens} tokens");
                self.compare(&format!("norm and products, {case}"), fused[0], plain[0]);
                self.compare(&format!("second matrix, {case}"), fused[1], plain[1]);
                let step =
                    [StepJob::SwiGlu(first, second, fused[2]), StepJob::Add(first, fused[1])];
                launch::step_linear(&self.stream, tokens, &input, &step).unwrap();
                launch::linear(&self.stream, normed, tokens, &[(first, plain[1])], true).unwrap();
                launch::swiglu(
                    &self.stream,
                    plain[0],
                    self.twin(self.second(normed, tokens, second)),
                    tokens * rows,
                )
                .unwrap();
                self.compare(&format!("SwiGLU, {case}"), fused[2], plain[0]);
                self.compare(&format!("sum, {case}"), fused[1], plain[1]);
            }
        }
    }

    fn second(&self, x: Span<f32>, tokens: usize, matrix: Matrix) -> Span<f32> {
        let out = self.poison(tokens * matrix.rows());
        launch::linear(&self.stream, x, tokens, &[(matrix, out)], false).unwrap();
        out
    }

    fn places(&self, positions: &[u32], sequences: &[u32]) -> TokenPlaces {
        TokenPlaces {
            positions: self.words(positions),
            sequences: self.words(sequences),
            single: true,
            runs: None,
            end: positions.iter().max().map_or(0, |last| *last as usize + 1),
        }
    }

    /// Records of `experts` experts one after another, their shapes and addresses.
    fn records(
        &self,
        experts: usize,
        hidden: usize,
        inner: usize,
        bits: u8,
        group: u16,
    ) -> (ExpertShapes, Vec<u64>) {
        let encoding = Encoding::Affine { bits, group, scale: FloatType::Bf16 };
        let mut places = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..experts {
            let mut record: Vec<u8> = Vec::new();
            for (rows, columns) in [(inner, hidden), (inner, hidden), (hidden, inner)] {
                for piece in self.pieces(rows, columns, bits, group) {
                    places.push(record.len() as u32);
                    record.extend(piece);
                }
            }
            addresses.push(self.bytes(&record).address());
        }
        let shape = |rows, columns| Matrix::shape(encoding, rows, columns);
        let (gate, down) = (shape(inner, hidden), shape(hidden, inner));
        (ExpertShapes::new(gate, gate, down, self.words(&places)), addresses)
    }

    fn mixture(&self, pinned: &Shared) {
        for (hidden, inner, shared, bits, group) in [
            (2048, 512, 512, 4, 64),
            (512, 256, 128, 4, 32),
            (256, 640, 384, 4, 128),
            (384, 256, 256, 4, 64),
            (256, 128, 256, 8, 32),
            (512, 256, 0, 3, 64),
            (1024, 2048, 0, 4, 64),
            (256, 3072, 256, 8, 64),
            (4096, 3072, 0, 2, 64),
        ] {
            let (experts, k, tokens) = (6, 3, 2);
            let (shapes, addresses) = self.records(experts, hidden, inner, bits, group);
            let chosen = [0u32, 2, 5, 1, 3, 4];
            let named: Vec<u64> = chosen.iter().map(|&e| addresses[e as usize]).collect();
            let x = self.random(tokens * hidden);
            let norm = self.random(hidden);
            let normed = self.poison(tokens * hidden);
            launch::rms_norm(&self.stream, tokens, x, None, norm, 1e-6, normed).unwrap();
            let (plain, fused) = (self.random(tokens * hidden), self.poison(tokens * hidden));
            self.stream.copy(plain, fused).unwrap();
            let step = |x, out| ExpertStep {
                x,
                chosen: self.words(&chosen),
                weights: self.floats(&[0.2, 0.5, 0.3, 0.1, 0.8, 0.1]),
                addresses: self.long_words(&named),
                answers: pinned.answers.span(0, experts),
                status: pinned.status.all(),
                inner: self.poison(tokens * k * inner),
                out,
                copies: None,
                ended: None,
                first_key: 0,
                k,
            };
            let width = shared.max(32);
            let expert = SharedExpert {
                gate: self.matrix(width, hidden, 8, 64),
                up: self.matrix(width, hidden, 8, 64),
                down: self.matrix(hidden, width, 8, 32),
                factor: self.random(tokens),
                inner: self.poison(tokens * width),
            };
            let some = shared > 0;
            launch::experts(
                &self.stream,
                tokens,
                &step(normed, plain),
                &shapes,
                some.then_some(&expert),
            )
            .unwrap();
            let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
            let twin = self.poison(tokens * width);
            let job = StepJob::SwiGlu(expert.gate, expert.up, twin);
            launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
            if some {
                self.compare("inner values of the shared expert", twin, expert.inner);
            }
            let shared = StepShared { down: expert.down, factor: expert.factor, inner: twin };
            let shared = some.then_some(&shared);
            launch::step_experts(
                &self.stream,
                tokens,
                &input,
                &step(x, fused),
                &shapes,
                shared,
                None,
            )
            .unwrap();
            self.compare(&format!("experts of {bits} bits, [{inner}, {hidden}]"), fused, plain);
        }
    }

    /// Microseconds of one of `count` launches in a graph; the best of a few replays.
    fn time(&self, count: usize, launch: &dyn Fn(usize) -> Result<(), CudaError>) -> f64 {
        launch(0).unwrap();
        self.stream.wait().unwrap();
        self.stream.begin_capture().unwrap();
        (0..count).for_each(|turn| launch(turn).unwrap());
        let graph = self.stream.end_capture().unwrap();
        let mut best = f64::MAX;
        for _ in 0..5 {
            let started = Instant::now();
            self.stream.launch_graph(&graph).unwrap();
            self.stream.wait().unwrap();
            best = best.min(started.elapsed().as_secs_f64());
        }
        best * 1e6 / count as f64
    }
}

/// Hidden width, inner width of experts, experts per token, rows of the input projections of a delta layer, columns of
/// its output projection, vocabulary.
type Shape = (usize, usize, usize, usize, usize, usize);

const SHAPES: [(&str, Shape); 2] = [
    ("35B", (2048, 512, 8, 12_352, 4096, 248_320)),
    ("397B", (4096, 1024, 10, 20_608, 8192, 248_320)),
];

impl Bench {
    fn table(&self, name: &str, shape: Shape, pinned: &Shared, copy: f64) {
        let (hidden, inner, k, inputs, columns, vocabulary) = shape;
        let row = |kernel: &str, bytes: usize, plain: f64, fused: f64| {
            let rate = bytes as f64 / fused / 1e3;
            println!(
                "{name:>5} {kernel:<34} {:8.2} MB {plain:8.2} us plain {fused:8.2} us {rate:6.0} GB/s {:4.0} %",
                bytes as f64 / 1e6,
                100.0 * rate / copy
            );
        };
        let bytes = |matrix: &Matrix, bits: usize| {
            matrix.rows() * matrix.columns() * bits / 8 + matrix.rows() * matrix.columns() / 16
        };
        let (x, wide) = (self.random(hidden), self.random(columns));
        let norm = self.random(hidden);
        let out = self.poison(vocabulary);
        let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
        let product = |rows: usize, columns: usize, add: bool, copies: usize| {
            let matrices: Vec<Matrix> =
                (0..copies).map(|_| self.matrix(rows, columns, 4, 64)).collect();
            let count = copies.max(24);
            let (input, x) = if add { (StepInput::Plain { x: wide }, wide) } else { (input, x) };
            let fused = self.time(count, &|turn| {
                let matrix = matrices[turn % copies];
                let job = if add { StepJob::Add(matrix, out) } else { StepJob::Store(matrix, out) };
                launch::step_linear(&self.stream, 1, &input, &[job])
            });
            let plain = self.time(count, &|turn| {
                launch::linear(&self.stream, x, 1, &[(matrices[turn % copies], out)], add)
            });
            (bytes(&matrices[0], 4), plain, fused)
        };
        let (size, plain, fused) = product(inputs, hidden, false, 8);
        row("norm, input projections", size, plain, fused);
        let (size, plain, fused) = product(hidden, columns, true, 16);
        row("output projection", size, plain, fused);
        let (size, plain, fused) = product(vocabulary, hidden, false, 1);
        row("output head", size, plain, fused);

        let router: Vec<[Matrix; 4]> = (0..24)
            .map(|_| {
                let shared = || self.matrix(inner, hidden, 4, 64);
                [self.matrix(256, hidden, 8, 64), shared(), shared(), self.matrix(1, hidden, 8, 64)]
            })
            .collect();
        let (logits, factor, shared) = (self.poison(256), self.random(1), self.poison(inner));
        let fused = self.time(48, &|turn| {
            let [router, gate, up, one] = router[turn % 24];
            let jobs = [
                StepJob::Store(router, logits),
                StepJob::SwiGlu(gate, up, shared),
                StepJob::Store(one, factor),
            ];
            launch::step_linear(&self.stream, 1, &input, &jobs)
        });
        let size = bytes(&router[0][0], 8) + 2 * bytes(&router[0][1], 4);
        row("norm, router, shared expert's first", size, f64::NAN, fused);

        let (shapes, addresses) = self.records(4 * k, hidden, inner, 4, 64);
        let step = |x, turn: usize, list: &[Span<u64>], chosen: &[Span<u32>], weights| ExpertStep {
            x,
            chosen: chosen[turn % 4],
            weights,
            addresses: list[turn % 4],
            answers: pinned.answers.span(0, 4 * k),
            status: pinned.status.all(),
            inner: wide,
            out,
            copies: None,
            ended: None,
            first_key: 0,
            k,
        };
        let list: Vec<_> = addresses.chunks(k).map(|turn| self.long_words(turn)).collect();
        let chosen: Vec<_> = (0..4)
            .map(|turn| self.words(&(0..k).map(|i| (turn * k + i) as u32).collect::<Vec<_>>()))
            .collect();
        let wide = self.random(k * inner);
        let weights = self.random(k);
        let step = |x, turn| ExpertStep { inner: wide, ..step(x, turn, &list, &chosen, weights) };
        let expert = SharedExpert {
            gate: self.matrix(inner, hidden, 4, 64),
            up: self.matrix(inner, hidden, 4, 64),
            down: self.matrix(hidden, inner, 4, 64),
            factor,
            inner: shared,
        };
        let second = StepShared { down: expert.down, factor, inner: shared };
        let fused = self.time(40, &|turn| {
            launch::step_experts(
                &self.stream,
                1,
                &input,
                &step(x, turn),
                &shapes,
                Some(&second),
                None,
            )
        });
        let plain = self.time(40, &|turn| {
            launch::experts(&self.stream, 1, &step(x, turn), &shapes, Some(&expert))
        });
        row("experts, both halves", (3 * k + 1) * bytes(&expert.down, 4), plain, fused);
        self.over_the_bus(name, shape, &|turn, addresses| {
            let step = ExpertStep { addresses, ..step(x, turn) };
            launch::step_experts(&self.stream, 1, &input, &step, &shapes, Some(&second), None)
        });
    }
}

#[cfg(not(test))]
fn main() {
    run(std::env::args().nth(1).map_or(1, |text| text.parse().unwrap()));
}

/// All cases with random data of `seed`.
///
/// # Panics
/// When one differs.
pub(crate) fn run(seed: u64) {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    println!("{:?}, seed {seed}", device.info());
    let stream = Stream::new(&device).unwrap();
    let bench = Bench {
        device: device.clone(),
        stream,
        state: Cell::new(0x9e37_79b9_7f4a_7c15 ^ seed),
        failed: Cell::new(false),
        held: std::cell::RefCell::new(Vec::new()),
    };
    let pinned = Shared {
        status: PinnedBuffer::new(&device, launch::STATUS_WORDS).unwrap(),
        answers: PinnedBuffer::new(&device, 64).unwrap(),
        copies: PinnedBuffer::new(&device, 64).unwrap(),
    };
    bench.compressed();
    bench.pages();
    bench.linear();
    bench.several_products();
    bench.several_experts(&pinned);
    bench.routed_experts(&pinned);
    bench.delta();
    bench.delta_runs();
    bench.delta_rounds();
    bench.attention_rounds();
    bench.attention_step();
    bench.attention();
    bench.visible();
    bench.sandwich(&pinned);
    bench.latent();
    bench.chosen_rows();
    bench.tiles();
    bench.few();
    bench.mixture(&pinned);
    bench.blocks();
    bench.block_experts(&pinned);
    bench.planes();
    bench.plane_experts(&pinned);
    bench.waiting(&pinned);
    bench.routing();
    bench.head();
    bench.gated();
    bench.indexed();
    let size = 256 << 20;
    let (from, to) =
        (DeviceBuffer::new(&device, size).unwrap(), DeviceBuffer::new(&device, size).unwrap());
    let copied = bench.time(8, &|_| bench.stream.copy(from.span::<u8>(0, size), to.span(0, size)));
    let copy = 2.0 * size as f64 / copied / 1e3;
    println!("copy within device memory: {copy:.0} GB/s read and written");
    bench.blocks_table(copy, &pinned);
    bench.several_blocks_table();
    bench.planes_table(copy, &pinned);
    for (name, shape) in SHAPES {
        bench.several_table(name, shape, &pinned, copy);
    }
    bench.attention_table(copy);
    bench.latent_table();
    bench.chosen_table();
    bench.few_table();
    bench.tiles_table();
    bench.delta_table();
    bench.rounds_table();
    for (name, shape) in SHAPES {
        bench.table(name, shape, &pinned, copy);
    }
    assert!(!bench.failed.get(), "some cases differ");
}

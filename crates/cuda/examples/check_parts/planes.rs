//! Encodings in planes of weights and scales: 8-bit floats under tiles of 128 x 128, MXFP4, symmetric codes. Plain
//! kernels against the scalar reference of the processor, fast ones against plain ones, and their time: a part of the
//! example `check`.

use cuda::launch::{self, ExpertActivation, ExpertStep, SharedExpert, StepInput, StepJob};
use kernels::format::{Encoding, FloatType, ScaleType};

use super::{Bench, Shared};

const FP8: Encoding = Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) };
const FP8_POWERS: Encoding = Encoding::Fp8 { scale: ScaleType::E8m0 };
const FP8_BF16: Encoding = Encoding::Fp8 { scale: ScaleType::Float(FloatType::Bf16) };
const INT4: Encoding = Encoding::Symmetric { bits: 4, group: 32, scale: FloatType::Bf16 };
const INT8: Encoding = Encoding::Symmetric { bits: 8, group: 128, scale: FloatType::Bf16 };
const BF16: Encoding = Encoding::Float(FloatType::Bf16);

impl Bench {
    /// Products, embedded rows and tiles of every encoding.
    pub(super) fn planes(&self) {
        for encoding in [FP8, FP8_POWERS, FP8_BF16, INT4, INT8, Encoding::Mxfp4] {
            for (rows, columns, tokens) in [
                (40, 96, 1),
                (33, 70, 2),
                (300, 512, 3),
                (2100, 2048, 1),
                (24, 4096, 2),
                (520, 1408, 1),
                (129, 384, 8),
            ] {
                if columns % encoding.block_values() == 0 {
                    self.block_products(encoding, rows, columns, tokens);
                }
            }
            for (rows, columns, tokens) in
                [(300, 2048, 1), (40, 512, 17), (1000, 256, 129), (520, 768, 300), (130, 1408, 40)]
            {
                self.block_tiles(encoding, rows, columns, tokens);
            }
        }
        self.planes_beside_floats();
        self.no_numbers();
    }

    /// A product of planes and of floats in one launch, as a router and a shared expert have it.
    fn planes_beside_floats(&self) {
        let (rows, columns, tokens) = (160, 1024, 2);
        let (x, weight) = (self.random(tokens * columns), self.random(columns));
        let normed = self.poison(tokens * columns);
        launch::rms_norm(&self.stream, tokens, x, None, weight, 1e-6, normed).unwrap();
        for encoding in [FP8, FP8_POWERS, Encoding::Mxfp4] {
            let [router, gate, up] =
                [BF16, encoding, encoding].map(|it| self.any_matrix(it, rows, columns));
            let plain: Vec<_> = (0..3).map(|_| self.poison(tokens * rows)).collect();
            let jobs = [(router, plain[0]), (gate, plain[1]), (up, plain[2])];
            launch::linear(&self.stream, normed, tokens, &jobs, false).unwrap();
            launch::swiglu(&self.stream, plain[1], plain[2], tokens * rows).unwrap();
            let fused: Vec<_> = (0..2).map(|_| self.poison(tokens * rows)).collect();
            let input = StepInput::Norm { x, weight, epsilon: 1e-6 };
            let jobs = [StepJob::Store(router, fused[0]), StepJob::SwiGlu(gate, up, fused[1])];
            launch::step_linear(&self.stream, tokens, &input, &jobs).unwrap();
            self.compare(&format!("bf16 beside {}", encoding.name()), fused[0], plain[0]);
            self.compare(&format!("{} beside bf16", encoding.name()), fused[1], plain[1]);
        }
    }

    /// An 8-bit float that is no number makes its row none, and no other.
    fn no_numbers(&self) {
        let (rows, columns) = (48, 512);
        let mut bytes = self.encoded(FP8, rows, columns);
        bytes[17 * columns + 130] = 0x7f;
        bytes[34 * columns + 7] = 0xff;
        let matrix = self.on_device(FP8, rows, columns, &bytes);
        let x = self.random(columns);
        let split = launch::split_form(&self.device, &matrix);
        let split = split.map(|form| self.split_as(form, x, 1, columns));
        let (plain, step) = (self.second(x, 1, matrix), self.poison(rows));
        if launch::step_serves(&self.device, [&matrix]) {
            let job = StepJob::Store(matrix, step);
            launch::step_linear(&self.stream, 1, &StepInput::Plain { x }, &[job]).unwrap();
        } else {
            self.stream.copy(plain, step).unwrap();
        }
        let tiles = self.product(x, 1, matrix, split.as_ref());
        for (name, found) in [("plain", plain), ("step", step), ("tiles", tiles)] {
            let found = self.read(found);
            let broken: Vec<usize> = (0..rows).filter(|&row| found[row].is_nan()).collect();
            let good = broken == [17, 34];
            println!("no numbers, {name}: rows {broken:?}{}", if good { "" } else { " FAILED" });
            self.failed.set(self.failed.get() || !good);
        }
    }

    /// Experts of every encoding, with a shared one of another.
    pub(super) fn plane_experts(&self, pinned: &Shared) {
        for (first, second, shared) in [
            (FP8, FP8, FP8),
            (FP8_POWERS, FP8_POWERS, FP8),
            (Encoding::Mxfp4, Encoding::Mxfp4, FP8_POWERS),
            (Encoding::Mxfp4, FP8, Encoding::Mxfp4),
            (INT4, INT4, INT8),
            (INT4, INT4, BF16),
        ] {
            for sizes in [(2048, 512), (512, 256), (384, 640), (1024, 1408)] {
                self.experts_of(sizes, [first, first, second], shared, pinned);
            }
        }
        self.plane_parts(pinned);
    }

    /// Experts in 4-bit floats with biases and clamped values, to the bit: in kernels of their own, and beside a shared
    /// expert without weight in those of any format.
    fn plane_parts(&self, pinned: &Shared) {
        let (experts, k, tokens) = (6, 3, 2);
        let chosen = [0u32, 2, 5, 1, 3, 4];
        for (hidden, inner, in_turns) in [(2880, 2880, true), (640, 1280, false), (64, 4096, true)]
        {
            let encoding = Encoding::Mxfp4;
            let (shapes, addresses) = self.block_records(experts, hidden, inner, [encoding; 3]);
            let named: Vec<u64> = chosen.iter().map(|&e| addresses[e as usize]).collect();
            let (x, start) = (self.random(tokens * hidden), self.random(tokens * hidden));
            let [outs, inners] = [start, self.poison(tokens * k * inner)]
                .map(|span| [0, 1].map(|_| self.twin(span)));
            let activation = ExpertActivation {
                biases: Some([inner, inner, hidden].map(|width| self.random(experts * width))),
                clamped: Some((1.702, 0.4)),
                in_turns,
                shared: false,
                gelu: false,
            };
            let none = SharedExpert {
                gate: self.any_matrix(encoding, 64, hidden),
                up: self.any_matrix(encoding, 64, hidden),
                down: self.any_matrix(encoding, hidden, 64),
                factor: self.floats(&[f32::NEG_INFINITY; 2]),
                inner: self.poison(tokens * 64),
            };
            for (side, shared) in [None, Some(&none)].into_iter().enumerate() {
                let step = ExpertStep {
                    x,
                    chosen: self.words(&chosen),
                    weights: self.floats(&[0.2, 0.5, 0.3, 0.1, 0.8, 0.1]),
                    addresses: self.long_words(&named),
                    answers: pinned.answers.span(0, experts),
                    status: pinned.status.all(),
                    inner: inners[side],
                    out: outs[side],
                    copies: None,
                    ended: None,
                    first_key: 0,
                    k,
                };
                let (stream, parts) = (&self.stream, Some(&activation));
                launch::experts_activated(stream, tokens, &step, &shapes, shared, parts).unwrap();
            }
            let case = format!("experts of {}, [{inner}, {hidden}], with biases", encoding.label());
            let [a, b] = inners.map(|span| self.read(span));
            self.same_bits(&format!("inner values of {case}"), &a, &b);
            let [a, b] = outs.map(|span| self.read(span));
            self.same_bits(&case, &a, &b);
        }
    }

    /// Time of products of one token and of many, and of experts, as [`Bench::blocks_table`].
    pub(super) fn planes_table(&self, copy: f64, pinned: &Shared) {
        let (rows, hidden, inner, k, tokens) = (12_352, 4096, 1536, 8, 512);
        for encoding in [FP8, FP8_POWERS, INT4, Encoding::Mxfp4, BF16] {
            let matrices: Vec<_> =
                (0..4).map(|_| self.any_matrix(encoding, rows, hidden)).collect();
            let (x, norm, out) =
                (self.random(hidden), self.random(hidden), self.poison(rows * tokens));
            let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
            let time = self.time(24, &|turn| {
                let job = StepJob::Store(matrices[turn % 4], out);
                launch::step_linear(&self.stream, 1, &input, &[job])
            });
            let rate = encoding.matrix_bytes(rows, hidden) as f64 / time / 1e3;
            let many = self.random(tokens * hidden);
            let form = launch::split_form(&self.device, &matrices[0]).unwrap();
            let split = self.split_as(form, many, tokens, hidden);
            let chunk = self.time(4, &|turn| {
                let (matrix, stream) = (matrices[turn % 4], &self.stream);
                launch::tile_linear(stream, many, tokens, matrix, out, false, Some(&split))
            });
            let work = 2.0 * (rows * hidden * tokens) as f64 / chunk / 1e6;
            let experts = match encoding {
                Encoding::Float(_) => f64::NAN,
                _ => self.expert_time(encoding, [hidden, inner, k], pinned),
            };
            let bytes = 3 * k * encoding.matrix_bytes(inner, hidden);
            println!(
                "planes {:<8} step {time:6.2} us {rate:5.0} GB/s {:3.0} %, 512 tokens {chunk:7.1} us {work:6.1} \
                 TFLOP/s, experts {experts:6.2} us {:5.0} GB/s",
                encoding.label(),
                100.0 * rate / copy,
                bytes as f64 / experts / 1e3,
            );
        }
    }
}
